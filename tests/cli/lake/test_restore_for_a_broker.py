"""A restore for a broker: queues, index and configuration are there before it starts, or nothing is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_engine.rocketmq.engine.recover_on_demand import recover_store
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.index_file import open_index
from storage_engine.rocketmq.format.layout import resolve_layout

pytestmark = pytest.mark.slow

SIZES = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    values = {"storePathRootDir": "/data/elsewhere", **SIZES}
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


def test_queues_and_index_are_those_of_the_broker_that_was_archived(cli, archived, tmp_path, conf) -> None:
    back = tmp_path / "back"
    done = cli("restore", "--lake", archived.lake, "--to", back, "--for-store", conf)
    assert done.exit_code == 0, done.err
    config = load_broker_config(None, SIZES, root=back)
    ours, theirs = (
        resolve_layout(config),
        resolve_layout(load_broker_config(None, SIZES, root=archived.store)),
    )
    found = recover_store(config, dry_run=True, cut_messages=False)
    assert (found.crashed, found.missing_messages, found.stray_entries) == (False, 0, 0)
    queues = 0
    for queue in iter_queues(ours.consumequeue):
        form = consume_queue.FORMAT
        made = form.read_queue(form.files(queue.path))
        before = form.read_queue(form.files(theirs.consumequeue / queue.topic / str(queue.queue_id)))
        archived_part = before[before["offset"] < found.log_end]
        assert made.tobytes() == archived_part.tobytes()
        assert len(made) > 0
        queues += 1
    assert queues > 3
    assert list((back / "index").iterdir())
    assert open_index(ours, config) is not None


@pytest.mark.parametrize("killed", [False, True])
def test_a_restore_that_made_queues_may_be_run_again(cli, archived, tmp_path, conf, files, killed) -> None:
    back = tmp_path / "back"
    words = ("restore", "--lake", archived.lake, "--to", back, "--for-store", conf)
    assert cli(*words).exit_code == 0
    made = {path: facts[2] for path, facts in files(back).items()}
    if killed:
        (back / "abort").touch()
        next((back / "index").iterdir()).unlink()
        next(path for path in (back / "consumequeue").rglob("*") if path.is_file()).unlink()
    assert cli(*words).exit_code == 0
    again = {path: facts[2] for path, facts in files(back).items()}
    # An index file is named by the time at which it is made.
    names = {path for path in made if Path(path).parent.name != "index"}
    assert {path: again[path] for path in names} == {path: made[path] for path in names}
    assert len(again) == len(made)
    (back / "stranger").touch()
    refused = cli(*words)
    assert refused.exit_code != 0
    assert "stranger" in refused.err


def test_a_configuration_that_no_broker_takes_is_refused_before_anything_is_written(
    cli, archived, tmp_path, conf
) -> None:
    conf.write_text("maxIndexNum=many\n")
    refused = cli("restore", "--lake", archived.lake, "--to", tmp_path / "back", "--for-store", conf)
    assert refused.exit_code == 2
    assert "maxIndexNum" in refused.err
    assert not (tmp_path / "back").exists()


def test_without_a_broker_s_file_its_defaults_hold_and_are_said(cli, archived, tmp_path) -> None:
    said = cli("restore", "--lake", archived.lake, "--to", tmp_path / "said")
    assert said.exit_code == 0, said.err
    rows = [line.split() for line in said.out.splitlines()]
    assert ["mappedFileSizeCommitLog", "1048576", "lake"] in rows
    assert ["mappedFileSizeConsumeQueue", "6000000", "default"] in rows
    assert ["maxIndexNum", "20000000", "default"] in rows
    assert "--for-store BROKER.CONF" in said.out
    for path in (tmp_path / "said" / "consumequeue").rglob("*"):
        assert path.is_dir() or path.stat().st_size == 6_000_000
    (index,) = (tmp_path / "said" / "index").iterdir()
    assert index.stat().st_size == 40 + 4 * 5_000_000 + 20 * 20_000_000
    given = {"mappedFileSizeCommitLog": str(1 << 20)}
    config = load_broker_config(None, given, root=tmp_path / "said")
    found = recover_store(config, dry_run=True, cut_messages=False)
    assert (found.crashed, found.missing_messages, found.stray_entries) == (False, 0, 0)


def test_a_file_without_the_log_s_size_gets_the_lake_s(cli, archived, tmp_path, conf) -> None:
    conf.write_text("maxHashSlotNum=100\nmaxIndexNum=400\n")
    words = ("restore", "--lake", archived.lake, "--to", tmp_path / "back", "--to-offset", 1)
    words = (*words, "--for-store", conf)
    said = cli(*words)
    assert ["mappedFileSizeCommitLog", "1048576", "lake"] in [line.split() for line in said.out.splitlines()]
    assert "maxHashSlotNum" not in said.out
    (found,) = (one for one in cli(*words, "--json").json["settings"] if one["name"] == "maxIndexNum")
    assert found == {"name": "maxIndexNum", "value": "400", "source": str(conf), "note": ""}


def test_files_alone_come_back_alone_and_it_is_said_who_serves_them(cli, archived, tmp_path, conf) -> None:
    words = ("restore", "--lake", archived.lake, "--to", tmp_path / "back", "--files-only")
    said = cli(*words)
    assert said.exit_code == 0, said.err
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["commitlog"]
    assert "Then 4.9.7 and 5.3.3 serve all messages, 5.0 to 5.2 serve none, and 5.4 and 5.5 serve" in said.out
    refused = cli(*words[:3], "--to", tmp_path / "b", "--files-only", "--for-store", conf)
    assert refused.exit_code == 2
    assert "Nothing was written" in refused.err


@pytest.mark.parametrize(
    "setting",
    [
        "enableControllerMode=true",
        "duplicationEnable=true",
        "enableDLegerCommitLog=true",
        "rocksdbCQDoubleWriteEnable=true",
        "combineCQUseRocksdbForLmq=true",
        "mappedFileSizeCommitLog=2097152",
    ],
)
def test_what_can_not_be_made_is_told_before_the_first_byte(cli, archived, tmp_path, conf, setting) -> None:
    conf.write_text(f"{setting}\n")
    words = ("restore", "--lake", archived.lake, "--to", tmp_path / "back")
    refused = cli(*words, "--for-store", conf)
    assert refused.exit_code == 1
    for part in (f"{conf}: {setting.partition('=')[0]}", "Nothing was written", "--files-only"):
        assert part in refused.err
    assert not (tmp_path / "back").exists()


def test_a_broker_makes_its_queues_in_rocksdb_itself_of_as_many_segments_as_it_is_told(
    cli, archived, tmp_path, conf
) -> None:
    conf.write_text("storeType=defaultRocksDB\n")
    words = ("restore", "--lake", archived.lake, "--to", tmp_path / "back", "--for-store", conf)
    restored = cli(*words, "--json").json
    segments = len(restored["restored"])
    size, most = restored["settings"]
    assert (most["name"], most["value"]) == ("commitLogRecoverMaxNum", str(segments + 1))
    assert size["name"] == "mappedFileSizeCommitLog"
    assert "physical offset 0 is in no queue" in most["note"]
    assert {path.name for path in (tmp_path / "back").iterdir()} == {"commitlog", "config"}
    topics = json.loads((tmp_path / "back" / "config" / "topics.json").read_text())
    # What isn't newer than a new database no broker takes into it.
    assert topics["dataVersion"]["counter"] == 1
    assert most["note"] in cli(*words).out
    last = cli(*words[:4], tmp_path / "last", *words[5:], "--from-offset", size["value"], "--json").json
    assert last["settings"][1]["note"] == ""


def test_a_broker_of_a_configuration_in_rocksdb_is_told_to_read_its_topics_from_files(
    cli, archived, tmp_path, conf
) -> None:
    words = ("restore", "--lake", archived.lake, "--for-store", conf, "--json", "--to")
    conf.write_text("")
    in_files = cli(*words, tmp_path / "v1").json
    conf.write_text("configManagerVersion=v2\n")
    restored = cli(*words, tmp_path / "v2").json
    version, *others = restored["settings"]
    assert (version["name"], version["value"]) == ("configManagerVersion", "v1")
    assert "serves none of them" in version["note"]
    assert others == in_files["settings"]
    queues = {"v1": {}, "v2": {}}
    for name, files in queues.items():
        below = (tmp_path / name / "consumequeue").rglob("*")
        files |= {path.relative_to(tmp_path / name): path.read_bytes() for path in below if path.is_file()}
        assert (tmp_path / name / "config" / "topics.json").exists()
    assert queues["v2"] == queues["v1"] != {}


def test_two_brokers_are_one_too_many(cli, archived, tmp_path, conf) -> None:
    words = ("restore", "--lake", archived.lake, "--to", tmp_path / "back")
    refused = cli(*words, "--for-store", conf, "--for-store", conf)
    assert refused.exit_code == 2
    assert not (tmp_path / "back").exists()
