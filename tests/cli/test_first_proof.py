"""Four commands to the first proven deletion, each typed as the one before says."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from storage_engine.project.up import unpack_sample_store
from tests.rounds import later
from tests.services.command_line import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plainly")]


def _next(outcome: Outcome, **chosen: object) -> list[str]:
    """Return the words of the command that an output's last line names, without the program's name.

    :param chosen: what stands in the place of words that only a person can choose.
    """
    *_, last = outcome.out.rstrip("\n").splitlines()
    assert last.startswith("Next: storage-engine "), outcome
    words = shlex.split(last.removeprefix("Next: storage-engine "))
    return [str(chosen.get(word, word)) for word in words]


@pytest.mark.parametrize("conf", [True, *later(False)])
def test_each_command_ends_with_the_next(cli, tmp_path: Path, conf: bool) -> None:
    sample = unpack_sample_store(tmp_path)
    lake = tmp_path / "a lake"
    of_file = ["--broker-conf", str(sample.broker_conf)]
    options = of_file if conf else []
    seen = cli("doctor", sample.root, *options)
    words = _next(seen, DIRECTORY=lake)
    assert words == ["init-lake", "--lake", str(lake)]
    words = _next(cli(*words), STORE=sample.root)
    # A lake takes any kind of store at first, and the settings are known to who types this.
    assert words == ["archive", str(sample.root), "--lake", str(lake)]
    archived = cli(*words, *options)
    assert archived.exit_code == 0
    assert "WARNING 37 unread messages of cg_orders" in archived.out
    words = _next(archived)
    if not conf:
        # The broker's own settings may keep what its defaults delete.
        assert words == ["clean", str(sample.root), "--lake", str(lake), "--broker-conf", "FILE", "--dry-run"]
        assert "broker's defaults, which were assumed" in archived.out
        assert (
            "broker's default settings are assumed"
            in cli("clean", sample.root, "--lake", lake, "--dry-run").out
        )
        assert cli("plan", sample.root, "--json").json["assumes_defaults"]
        assert not cli("plan", sample.root, *of_file, "--json").json["assumes_defaults"]
        done = cli("clean", sample.root, "--lake", lake, "--json").json
        assert (done["dry_run"], done["assumes_defaults"]) == (False, True)
        return
    assert words == ["clean", str(sample.root), "--lake", str(lake), *options]
    cleaned = cli(*words)
    assert "defaults" not in cleaned.err
    assert cleaned.exit_code == 0, cleaned
    assert not any(path.exists() for path in sample.old)
    words = _next(cleaned)
    assert words == ["verify", str(sample.root), "--lake", str(lake), *options]
    verified = cli(*words)
    assert verified.exit_code == 0, verified
    assert _next(verified) == ["doctor", str(sample.root), "--lake", str(lake), *options]
    again = cli("clean", sample.root, "--lake", lake, *options)
    assert _next(again) == ["doctor", str(sample.root), "--lake", str(lake), *options]


def test_next_commands_keep_both_lakes(cli, tmp_path: Path) -> None:
    sample = unpack_sample_store(tmp_path)
    lakes = []
    for option, name in (("--lake", "one"), ("--second-lake", "two")):
        assert cli("init-lake", "--lake", tmp_path / name).exit_code == 0
        lakes += [option, str(tmp_path / name)]
    # No clock shows that hour.
    settings = ["--set", "fileReservedTime=72", "--set", "deleteWhen=99", "--name", "orders"]
    done = cli("archive", sample.root, *lakes, *settings)
    assert _next(done) == ["clean", "--manual", str(sample.root), *lakes, *settings]
    assert "deletes outside deleteWhen" in done.out


def test_a_verification_leads_on_by_what_it_found(cli, archived, tmp_path: Path) -> None:
    # Without what other tests have verified.
    lake = shutil.copytree(archived.lake, tmp_path / "the copy", ignore=shutil.ignore_patterns("journal*"))
    assert cli("lake", "relocate", "--lake", lake).exit_code == 0
    of_lake = ["--lake", str(lake)]
    near = cli("verify", *of_lake, "--level", "files")
    assert _next(near) == ["verify", *of_lake, "--level", "bytes"]
    some = cli("verify", *of_lake, "--max-bytes", "1KiB")
    assert _next(some) == ["verify", *of_lake, "--level", "bytes"]
    every = cli(*_next(some))
    assert _next(every) == ["restore", *of_lake, "--to", "DIRECTORY"]
    restored = cli(*_next(every, DIRECTORY=tmp_path / "back again"))
    assert _next(restored) == ["inspect", str(tmp_path / "back again")]
    assert cli(*_next(restored)).exit_code == 0
    assert "Next:" not in cli("verify", *of_lake, "--json").out
    largest = max(lake.rglob("*.parquet"), key=lambda path: path.stat().st_size)
    largest.unlink()
    broken = cli("verify", *of_lake)
    assert (broken.exit_code, _next(broken)) == (1, ["verify", *of_lake, "--level", "bytes"])


def test_a_verification_of_an_empty_lake_leads_to_archive(cli, store, lake) -> None:
    of_lake = ["--lake", str(lake)]
    assert _next(cli("verify", *of_lake), STORE=store)[:2] == ["archive", str(store)]
    assert _next(cli("verify", store, *of_lake)) == ["archive", str(store), *of_lake]


def test_an_archive_before_anything_expired_leads_to_doctor(cli, store_copy, lake) -> None:
    store = store_copy("edge-frames")
    done = cli("archive", store, "--lake", lake, "--set", "fileReservedTime=1000000")
    assert _next(done)[0] == "doctor"
    assert "Next:" not in cli("archive", store, "--lake", lake, "--json").out
