"""storage-engine doctor: what a stranger's store is, what is wrong with it, and that nothing is changed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.cli.store_argument import managed_store
from storage_engine.clock import clock_ms
from storage_engine.journal.database import JournalDatabase
from storage_engine.own_directory import DIRECTORY
from storage_engine.retention.diagnosis.doctor import diagnose
from storage_engine.rocketmq.live.marker import write_marker
from tests.services import toy

MIB = 1 << 20
DAY_NS = 24 * 3600 * 10**9
StoreCopy = Callable[[str], Path]


def tree(*roots: Path) -> dict[str, tuple[int, ...]]:
    """Every file and directory below some roots: kind, size and times, but for when they were read."""
    found = {}
    for root in roots:
        for path in (root, *root.rglob("*")):
            facts = path.lstat()
            found[str(path)] = (
                facts.st_mode,
                facts.st_size,
                facts.st_mtime_ns,
                facts.st_ctime_ns,
                facts.st_ino,
            )
    return found


def kinds(outcome: Any) -> dict[str, str]:
    """Severity by kind of finding; of one that is there twice, the most urgent."""
    found: dict[str, str] = {}
    for one in outcome.json["findings"]:
        found.setdefault(one["kind"], one["severity"])
    return found


def aged(store: Path, days: float) -> None:
    at_ns = time.time_ns() - round(days * DAY_NS)
    for path in (store / "commitlog").iterdir():
        os.utime(path, ns=(at_ns, at_ns))


@pytest.mark.parametrize("name", ["clean-stop", "cqext-batchcq", "edge-frames", "kill9", "rocksdb-pending"])
def test_every_store_is_told_in_80_columns_and_left_as_it_was(cli, store_copy: StoreCopy, name: str) -> None:
    store = store_copy(name)
    before = tree(store.parent)
    outcome = cli("doctor", store)
    assert outcome.exit_code == 0, outcome.err
    assert not outcome.err
    assert max(len(line) for line in outcome.out.splitlines() if str(store) not in line) <= 80
    assert outcome.out.splitlines()[-1].startswith("Next: storage-engine init-lake --lake DIRECTORY")
    assert tree(store.parent) == before


def test_what_a_store_is_comes_from_its_files(cli, store_copy: StoreCopy) -> None:
    found = cli("doctor", store_copy("clean-stop"), "--json").json
    assert (found["kind"], found["version"], found["urgent"]) == ("doctor", 1, False)
    assert found["broker"]["name"] == "rocketmq"
    assert found["broker"]["version"].startswith("5.0 or later")
    assert found["broker"]["running"] is False
    figures = found["figures"]
    assert (figures["segments"], figures["sealed_segments"], figures["size_bytes"]) == (8, 7, 8 * MIB)
    assert figures["logs"] == [{"name": "commitlog", "min_offset": 0, "max_offset": 7442667}]
    assert figures["oldest_message_ms"] < figures["newest_message_ms"]
    assert figures["growth"] is None, "all its segments are of a few seconds"
    assert {one["name"] for one in found["settings"]} >= {"deleteWhen", "fileReservedTime"}
    assert {one["source"] for one in found["settings"]} == {"default"}


def test_the_figures_are_those_that_a_plan_is_made_from(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    inspected = cli("inspect", store, "--json").json
    (log,) = cli("doctor", store, "--json").json["figures"]["logs"]
    assert (log["min_offset"], log["max_offset"]) == (inspected["min_offset"], inspected["max_offset"])


def test_settings_say_where_they_are_from_and_which_defeat_each_other(
    cli, store_copy: StoreCopy, tmp_path: Path
) -> None:
    store, conf = store_copy("clean-stop"), tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=4\ndiskMaxUsedSpaceRatio=99\ndeleteWhen=25\n")
    outcome = cli("doctor", store, "--broker-conf", conf, "--set", "deleteFileBatchMax=3", "--json")
    settings = {one["name"]: one for one in outcome.json["settings"]}
    assert settings["fileReservedTime"]["source"] == "config-file"
    assert settings["deleteFileBatchMax"]["source"] == "override"
    assert settings["cleanFileForciblyEnable"]["source"] == "default"
    assert settings["diskMaxUsedSpaceRatio"]["value"] == "95 %"
    assert "99 is configured" in settings["diskMaxUsedSpaceRatio"]["note"]
    said = " ".join(one["what"] for one in outcome.json["findings"])
    assert "is not below diskSpaceCleanForciblyRatio 85" in said
    assert "deleteWhen 25: no clock shows that hour" in said
    assert "no-broker-conf" not in kinds(outcome)


def test_a_setting_that_the_broker_does_not_work_with_is_urgent_and_no_bad_input(
    cli, store_copy: StoreCopy, tmp_path: Path
) -> None:
    store, conf = store_copy("clean-stop"), tmp_path / "broker.conf"
    conf.write_text("deleteWhen=four\nfileReservedTime=48\n")
    outcome = cli("doctor", store, "--broker-conf", conf, "--json")
    assert outcome.exit_code == 1
    assert kinds(outcome)["setting"] == "urgent"
    assert {one["name"]: one["value"] for one in outcome.json["settings"]}["fileReservedTime"] == "48 h"
    assert outcome.json["next"]["command"] == f"storage-engine doctor {store}" + f" --broker-conf {conf}"


@pytest.mark.parametrize(
    "words",
    [
        ("nowhere",),
        ("STORE", "--set", "deleteWhen=four"),
        ("STORE", "--broker-conf", "nowhere.conf"),
        ("STORE", "--conn-id", "a"),
        (),
    ],
)
def test_bad_input_ends_with_2(cli, store_copy: StoreCopy, tmp_path: Path, words: tuple[str, ...]) -> None:
    store = store_copy("edge-frames")
    before = tree(store)
    given = [
        store if word == "STORE" else tmp_path / word if word.startswith("nowhere") else word
        for word in words
    ]
    assert cli("doctor", *given).exit_code == 2
    assert tree(store) == before


def _hole(store: Path) -> None:
    (store / "commitlog" / f"{MIB:020d}").unlink()


def _short(store: Path) -> None:
    os.truncate(store / "commitlog" / f"{MIB:020d}", 4096)


def _foreign(store: Path) -> None:
    (store / "commitlog" / "notes.txt").write_text("mine")


def _pipe(store: Path) -> None:
    os.mkfifo(store / "commitlog" / "pipe")


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (_hole, "hole"),
        (_short, "segment-size"),
        (_foreign, "foreign-file"),
        (_pipe, "foreign-file"),
    ],
)
def test_a_log_that_no_command_works_with_is_urgent_with_its_reason(
    cli, store_copy: StoreCopy, damage: Callable[[Path], None], kind: str
) -> None:
    store = store_copy("clean-stop")
    damage(store)
    outcome = cli("doctor", store, "--json")
    assert outcome.exit_code == 1
    assert kinds(outcome)[kind] == "urgent"
    assert outcome.json["figures"] is None
    assert outcome.json["next"]["command"] == f"storage-engine doctor {store}"


def test_a_layout_that_this_version_does_not_handle_is_named(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    (store / "consumequeue" / "CURRENT").write_text("MANIFEST-000001\n")
    outcome = cli("doctor", store, "--json")
    assert outcome.exit_code == 1
    assert kinds(outcome) == {"layout": "urgent", "no-broker-conf": "note"}
    assert "RocksDB consume queue" in outcome.json["findings"][0]["what"]


def test_consumers_that_are_about_to_lose_messages_are_urgent(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    aged(store, 5)
    outcome = cli("doctor", store, "--json")
    assert outcome.exit_code == 1
    (finding,) = [one for one in outcome.json["findings"] if one["kind"] == "consumers-lose"]
    assert finding["severity"] == "urgent"
    assert "cg_orders 51" in finding["what"]
    assert f"storage-engine lag {store}" in finding["advice"]


def test_an_empty_file_of_a_queue_is_named_and_as_urgent_as_what_it_may_hide(
    cli, store_copy: StoreCopy
) -> None:
    store = store_copy("clean-stop")
    aged(store, 5)
    first = next(iter(sorted(store.glob("consumequeue/orders/*/*"))))
    second = first.with_name(f"{first.stat().st_size:020d}")
    second.write_bytes(bytes(first.stat().st_size))
    first.write_bytes(b"")
    outcome = cli("doctor", store, "--json")
    assert outcome.exit_code == 1
    (finding,) = [one for one in outcome.json["findings"] if one["kind"] == "consumers-unknown"]
    assert finding["severity"] == "urgent"
    assert f"{first}: expected a file of whole entries, found 0 bytes" in finding["what"]


def test_a_queue_whose_only_file_is_empty_is_unknown(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    aged(store, 5)
    first, *others = sorted(store.glob("consumequeue/orders/0/*"))
    for path in others:
        path.unlink()
    first.write_bytes(b"")
    (finding,) = [
        one for one in cli("doctor", store, "--json").json["findings"] if one["kind"] == "consumers-unknown"
    ]
    assert finding["severity"] == "urgent"
    assert f"{first}: expected a file of whole entries, found 0 bytes" in finding["what"]
    lag = cli("lag", store)
    assert (lag.exit_code, "and no other file of its queue" in lag.err) == (2, True)


def test_a_clock_that_is_off_is_told(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    aged(store, -3)
    assert kinds(cli("doctor", store, "--json"))["clock"] == "warning"


def test_a_hold_that_is_over_is_told(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    write_marker(store, "somebody", time.time_ns() // 1_000_000 - 60_000)
    outcome = cli("doctor", store, "--json")
    assert kinds(outcome)["dead-hold"] == "warning"
    assert (store / ".storage-engine-hold").exists()


def test_a_broker_that_has_the_lock_is_told_with_its_port(cli, store_copy: StoreCopy, tmp_path: Path) -> None:
    store, conf = store_copy("clean-stop"), tmp_path / "broker.conf"
    conf.write_text("listenPort=30911\n")
    code = (
        "import fcntl, os, sys, time\nfd = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)\nprint('locked', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        outcome = cli("doctor", store, "--broker-conf", conf, "--json")
        assert outcome.json["broker"]["running"] is True
        (finding,) = [one for one in outcome.json["findings"] if one["kind"] == "running"]
        assert f"process {holder.pid}" in finding["what"]
        assert finding["advice"].endswith("--broker HOST:30911")
        holder.communicate()


def test_a_broker_that_does_not_answer_leaves_what_the_files_say(cli, store_copy: StoreCopy) -> None:
    outcome = cli("doctor", store_copy("clean-stop"), "--broker", "127.0.0.1:1", "--json")
    assert outcome.exit_code == 1
    assert kinds(outcome)["broker-unreachable"] == "urgent"
    assert outcome.json["figures"]["segments"] == 8


@pytest.mark.slow
def test_the_way_from_a_store_to_its_first_proof(
    cli, store_copy: StoreCopy, tmp_path: Path, plainly: None
) -> None:
    """Each diagnosis ends with the command that leads on, and leaves store, lake and journal as they were."""
    store, lake = store_copy("clean-stop"), tmp_path / "my lake"
    assert (
        cli("doctor", store, "--json").json["next"]["command"] == "storage-engine init-lake --lake DIRECTORY"
    )
    assert cli("init-lake", "--lake", lake).exit_code == 0

    before = tree(store, lake)
    found = cli("doctor", store, "--lake", lake, "--json").json
    assert found["next"]["command"] == f"storage-engine archive {store} --lake '{lake}'"
    assert found["figures"]["unproven_segments"] == 7
    assert tree(store, lake) == before

    assert cli("archive", store, "--lake", lake).exit_code == 0
    aged(store, 5)
    # Its times were changed: the bytes are compared once more.
    assert cli("archive", store, "--lake", lake).exit_code == 0
    (lake / "journal.db.reserve").unlink()
    before = tree(store, lake)
    outcome = cli("doctor", store, "--lake", lake, "--json")
    found = outcome.json
    assert found["figures"]["unproven_segments"] == 0
    assert found["figures"]["due_segments"] == 7
    assert found["lakes"][0]["segments"] == 7
    assert found["next"]["command"] == (
        f"storage-engine clean {store} --lake '{lake}' --broker-conf FILE --dry-run"
    )
    assert kinds(outcome)["same-disk"] == "warning"
    assert tree(store, lake) == before

    # A stranger who finds only the store is led to its lake.
    alone = cli("doctor", store, "--set", "fileReservedTime=24", "--json").json
    assert alone["next"]["command"] == (
        f"storage-engine doctor {store} --lake '{lake}' --set fileReservedTime=24"
    )

    assert cli("clean", "--manual", store, "--lake", lake).exit_code == 0
    after = cli("doctor", store, "--lake", lake, "--json").json
    assert after["figures"]["segments"] == 1
    assert after["next"]["command"] is None


@pytest.mark.slow
def test_a_lake_that_can_not_be_used_is_urgent(cli, store_copy: StoreCopy, lake: Path) -> None:
    store = store_copy("clean-stop")
    (lake / "warehouse").rename(lake / "elsewhere")
    outcome = cli("doctor", store, "--lake", lake, "--json")
    assert outcome.exit_code == 1
    assert kinds(outcome)["lake-refused"] == "urgent"
    assert outcome.json["next"]["command"] == f"storage-engine lake info --lake {lake}"


@pytest.mark.slow
def test_a_journal_of_another_version_is_told_and_not_brought_up_to_date(
    cli, store_copy: StoreCopy, lake: Path
) -> None:
    store, journal = store_copy("clean-stop"), lake / "journal.db"
    database = JournalDatabase(f"sqlite:///{journal}")
    database.write(
        lambda connection: connection.exec_driver_sql("UPDATE storage_engine_schema SET version = 3")
    )
    before = tree(lake)
    outcome = cli("doctor", store, "--lake", lake, "--json")
    assert kinds(outcome)["journal"] == "warning"
    assert kinds(outcome)["proof-unknown"] == "warning"
    assert "unproven" not in kinds(outcome)
    assert outcome.json["figures"]["unproven_segments"] is None
    assert tree(lake) == before


@pytest.mark.slow
@pytest.mark.parametrize("stamped", [True, False])
def test_a_store_whose_journal_is_gone_is_not_called_unproven(
    cli, store_copy: StoreCopy, lake: Path, stamped: bool
) -> None:
    store = store_copy("clean-stop")
    assert cli("archive", store, "--lake", lake).exit_code == 0
    for path in lake.glob("journal.db*"):
        path.unlink()
    if not stamped:
        shutil.rmtree(store / DIRECTORY)
    outcome = cli("doctor", store, "--lake", lake, "--json")
    (finding,) = [one for one in outcome.json["findings"] if one["kind"] == "proof-unknown"]
    assert finding["what"].startswith("which of 7 sealed segments a lake proves isn't known")
    assert "unproven" not in kinds(outcome)
    words = shlex.split(outcome.json["next"]["command"])[1:]
    assert words[0] == "archive"
    assert cli(*words).exit_code == 0
    again = cli("doctor", store, "--lake", lake, "--json")
    assert again.json["figures"]["unproven_segments"] == 0
    assert "proof-unknown" not in kinds(again)


def test_another_packages_broker_need_not_know_of_doctor(cli, tmp_path: Path) -> None:
    with toy.registered(tmp_path / "broker"):
        toy.make_store(tmp_path / "store")
        before = tree(tmp_path / "store")
        found = cli("doctor", tmp_path / "store", "--broker-type", "toy", "--json").json
        assert tree(tmp_path / "store") == before
    assert found["broker"] == {"name": "toy", "version": None, "running": None, "layout": []}
    assert [log["name"] for log in found["figures"]["logs"]] == ["access", "errors"]
    assert found["figures"]["next_deletion_ms"] == found["at_ms"]
    (unproven,) = [one for one in found["findings"] if one["kind"] == "unproven"]
    assert unproven["what"].endswith("its broker deletes them at any moment")


def test_our_own_directory_is_not_made(cli, store_copy: StoreCopy) -> None:
    store = store_copy("edge-frames")
    cli("doctor", store)
    assert not (store / DIRECTORY).exists()


@pytest.mark.slow
def test_a_lake_that_is_not_the_one_of_the_store_s_stamp_is_urgent_and_takes_nothing(
    cli, store_copy: StoreCopy, lake: Path, tmp_path: Path, plainly: None
) -> None:
    store, other = store_copy("clean-stop"), tmp_path / "other"
    aged(store, 5)
    assert cli("archive", store, "--lake", lake).exit_code == 0
    assert cli("clean", "--manual", "--max-segments", 5, store, "--lake", lake).exit_code == 0
    assert cli("init-lake", "--lake", other).exit_code == 0
    assert "other-lake" not in kinds(cli("doctor", store, "--lake", lake, "--json"))

    outcome = cli("doctor", store, "--lake", other, "--json")
    assert outcome.exit_code == 1
    (finding,) = [one for one in outcome.json["findings"] if one["kind"] == "other-lake"]
    assert finding["severity"] == "urgent"
    assert f"({lake})" in finding["what"]
    assert "unproven" not in kinds(outcome)
    assert outcome.json["next"]["command"] == f"storage-engine doctor {store} --lake {lake}"
    both = cli("doctor", store, "--lake", lake, "--second-lake", other, "--json")
    assert "other-lake" not in kinds(both)

    verified = cli("verify", store, "--lake", other)
    assert verified.exit_code == 1
    assert f"({lake}): the store was archived into it" in verified.out
    assert f"nothing here tells what was before offset {5 * MIB}" in verified.out
    known = cli("verify", store, "--lake", lake)
    assert (known.exit_code, "nothing here tells" in known.out) == (0, False)


@pytest.mark.slow
def test_a_journal_knows_the_lake_of_a_store_that_lost_its_stamp(
    cli, store_copy: StoreCopy, lake: Path, tmp_path: Path
) -> None:
    store, other = store_copy("clean-stop"), tmp_path / "other"
    for words in (("archive", store, "--lake", lake), ("init-lake", "--lake", other)):
        assert cli(*words).exit_code == 0
    shutil.rmtree(store / DIRECTORY)
    named = managed_store(store, lake_dir=other)
    found = diagnose(replace(named, journal_url=f"sqlite:///{lake}/journal.db"), clock_ms(), has_lake=True)
    (finding,) = [one for one in found.findings if one.kind == "other-lake"]
    assert f"({lake})" in finding.what
    assert found.unproven is None


def test_a_lake_that_is_not_there_yet_is_a_finding(
    cli, store_copy: StoreCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "a lake"
    monkeypatch.setenv("STORAGE_ENGINE_LAKE", str(lake))
    outcome = cli("doctor", store_copy("clean-stop"), "--json")
    assert kinds(outcome)["no-lake"] == "warning"
    assert outcome.json["next"]["command"] == f"storage-engine init-lake --lake '{lake}'"
    assert not lake.exists()
