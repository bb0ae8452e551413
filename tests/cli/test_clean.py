"""clean: what is deleted, why, and that an interrupted run is finished by its key."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage_engine.quality.expectation_rules import NOTE
from tests.rounds import later
from tests.services import toy
from tests.services.lock_holder import lock_held
from tests.services.toy_faults import files_of, make_store

MIB = 1 << 20


def _there(store: Path) -> list[int]:
    return sorted(int(path.name) for path in (store / "commitlog").iterdir())


def test_dry_run_shows_the_plan_and_changes_nothing(cli, store, lake, files) -> None:
    before = files(store, lake)
    dry = cli("clean", store, "--lake", lake, "--manual", "--dry-run")
    assert dry.exit_code == 0
    assert f"delete  {0:020d} … {MIB:020d} (2 segments), 2.0 MiB\n          expired: last written" in dry.out
    assert dry.out.startswith("Dry run: this is what a run would do now.\n")
    assert dry.out.endswith("Dry run: nothing was archived, deleted or changed.\n")
    assert files(store, lake) == before


def test_dry_run_shows_what_consumers_would_lose(cli, store_copy, expire, lake) -> None:
    store = store_copy("clean-stop")
    expire(store)
    words = ("clean", store, "--lake", lake, "--manual", "--dry-run", "--max-segments", 5)
    first = cli(*words, "--json").json["groups"][0]
    assert (first["group"], first["losing_queues"]) == ("cg_orders", 8)
    shown = cli(*words).out
    assert re.search(r"^  cg_orders +\d+ +0 +8$", shown, re.M)
    assert "WARNING 37 unread messages of cg_orders in orders would be only in the lake if deleted" in shown


def test_a_store_in_use_is_refused_also_where_nothing_has_expired(cli, store_copy, lake) -> None:
    store = store_copy("clean-stop")
    words = ("clean", store, "--lake", lake, "--set", "fileReservedTime=1000000")
    with lock_held(store / "lock") as holder:
        refused = cli(*words)
        assert refused.exit_code == 1
        assert f"{store}/lock is locked by process {holder} (" in refused.err
        assert "name the broker: --broker ADDRESS at a shell" in refused.err
        assert cli(*words, "--dry-run").exit_code == 0
    assert cli(*words).exit_code == 0


@pytest.mark.again
@pytest.mark.slow
def test_a_run_killed_after_its_deletions_is_finished_by_its_key(cli, store, lake, plainly) -> None:
    main = "from storage_engine.cli.main import main; main()"
    words = ("clean", store, "--lake", lake, "--manual", "--max-segments", "1", "--run-key", "night")
    command = [sys.executable, "-c", main, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("release: 1 segment deleted"):
                os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert _there(store) == [MIB, 2 * MIB]

    finished = cli(*words)
    assert finished.exit_code == 0
    assert "Run night: done" in finished.out
    assert "release: 1 segment deleted, 1.0 MiB freed" in finished.err
    assert _there(store) == [MIB, 2 * MIB]

    other = cli("clean", store, "--lake", lake, "--manual", "--run-key", "night")
    assert other.exit_code == 1
    assert "night" in other.err


@pytest.mark.slow
def test_a_log_that_may_not_be_written_is_named_and_the_run_reported(cli, store, lake) -> None:
    log = store / "commitlog"
    done = subprocess.run(["chattr", "+i", str(log)], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("directories can't be made immutable here")
    try:
        refused = cli("clean", store, "--lake", lake, "--manual", "--archive-policy", "off")
    finally:
        subprocess.run(["chattr", "-i", str(log)], check=True)
    assert refused.exit_code == 1
    assert f"Error: {log}/{0:020d}: Operation not permitted." in refused.err
    assert "stopped; the plan is " in refused.err
    assert _there(store) == [0, MIB, 2 * MIB]


@pytest.mark.slow
def test_a_run_is_reported_whatever_ends_it(cli, store, lake, monkeypatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("storage_engine.retention.release.releasing.judge_logs", broken)
    with pytest.raises(ZeroDivisionError):
        cli("clean", store, "--lake", lake, "--manual", "--run-key", "night")
    (report,) = (lake / "reports").rglob("report.json")
    assert "ZeroDivisionError" in report.read_text()
    assert "by nothing" in report.read_text()
    said = [report.with_name(name).read_text() for name in ("report.html", "summary.html", "summary.txt")]
    assert all("Read the error and correct its cause, then run again." in text for text in said)


@pytest.mark.again
@pytest.mark.slow
def test_cleaning_again_finds_nothing_to_do(cli, store, lake, files) -> None:
    first = cli("clean", store, "--lake", lake, "--manual", "--json").json["report"]
    assert first["outcome"] == "done"
    took = {step["step"]: step["took_ms"] for step in first["steps"]}
    assert all(took[step] is not None for step in ("plan", "archive", "lag", "release", "validate"))
    before = files(store)
    second = cli("clean", store, "--lake", lake, "--manual")
    assert second.exit_code == 0
    assert "nothing-to-do" in second.out
    assert files(store) == before
    report, page = (
        line.split()[1] for line in second.out.splitlines() if line.startswith(("Report", "Page"))
    )
    assert Path(report).is_file()
    assert Path(page).is_file()

    reports = set((lake / "reports").rglob("*"))
    third = cli("clean", store, "--lake", lake, "--manual")
    assert "validate: nothing was deleted, and nothing changed since" in third.err
    assert "Unchanged since clean-" in third.out
    assert report in third.out
    assert set((lake / "reports").rglob("*")) == reports


@pytest.mark.slow
def test_a_lag_policy_of_block_keeps_what_a_group_still_has_to_read(
    cli, store_copy, expire, lake, plainly
) -> None:
    store = store_copy("clean-stop")
    expire(store)
    words = ("clean", store, "--lake", lake, "--manual", "--lag-policy", "block")
    shown = cli(*words, "--dry-run", "--json").json
    said = cli(*words, "--dry-run").out
    blocked = cli(*words, "--json").json["report"]
    stays = [row for row in blocked["segments"] if row["reason"] == "lag-blocked"]
    assert stays
    # The dry run shows what the run does, and nobody loses what stays.
    decided = [one for one in shown["plan"]["decisions"] if one["reason"] == "lag-blocked"]
    assert [one["segment"]["base_offset"] for one in decided] == [row["base_offset"] for row in stays]
    assert {one["losing_queues"] for one in shown["groups"]} == {0}
    assert "lag-blocked: group " in said
    assert all(int(name) in _there(store) for name in (f"{row['base_offset']:020d}" for row in stays))


@pytest.mark.slow
def test_a_waived_plan_goes_although_it_cannot_be_archived(cli, store, lake, plainly) -> None:
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(4)
        file.write(bytes(8))
    expired_ns = time.time_ns() - 30 * 24 * 3600 * 10**9
    os.utime(store / "commitlog" / f"{0:020d}", ns=(expired_ns, expired_ns))
    words = ("clean", store, "--lake", lake, "--manual", "--max-segments", 1, "--run-key", "waived")
    refused = cli(*words)
    assert refused.exit_code == 1
    assert "bad frame at physical offset 0" in refused.err
    assert _there(store) == [0, MIB, 2 * MIB]

    dry = cli("clean", store, "--lake", lake, "--manual", "--max-segments", 1, "--dry-run", "--json").json
    digest = dry["plan"]["digest"]
    assert digest in refused.err
    waiver = cli("waive", digest, "--lake", lake, "--reason", "a test store", "--json").json
    assert waiver["plan_digest"] == digest
    assert waiver["person"]
    assert "a test store" in cli("waive", digest, "--lake", lake, "--reason", "another reason").out

    done = cli(*words)
    assert _there(store) == [MIB, 2 * MIB]
    assert done.exit_code == 0
    assert "Run waived: done" in done.out
    assert f"{0:020d}  never archived" in done.out
    assert "Receipts waived by" in done.out
    assert done.out.count(NOTE) == 1
    assert "a test store" in done.out


@pytest.mark.parametrize("as_json", [False, *later(True)])
def test_a_run_that_refused_a_log_ends_as_failed_each_time(cli, tmp_path, as_json) -> None:
    with toy.registered(tmp_path / "broker"):
        faults = {"a": ("nothing", 0), "b": ("unreadable dependents", 0)}
        store = make_store(tmp_path / "store", tmp_path / "lake", faults)
        words = ("clean", store.root, "--lake", tmp_path / "lake", "--broker-type", "toy", "--run-key", "r")
        words += ("--lag-policy", "ignore", "--manual", *(["--json"] if as_json else []))
        before = files_of(tmp_path / "store", "b")
        done = cli(*words)
        assert (done.exit_code, len(files_of(tmp_path / "store", "a"))) == (1, 3)
        if as_json:
            assert (done.json["report"]["outcome"], done.json["report"]["ok"]) == ("released-in-part", False)
            assert [one["log"] for one in done.json["report"]["refused"]] == ["b"]
            assert "log b was refused" in done.json["error"]["message"]
            assert (cli(*words).exit_code, cli(*words).json["report"]["refused"]) == (
                1,
                done.json["report"]["refused"],
            )
        else:
            assert "FAILED log b was refused" in done.out
            assert "expected every log to pass" in done.err
            page = next((tmp_path / "lake").rglob("report.html")).read_text()
            assert [word in page for word in ("Refused in part", "was refused")] == [True, True]
        assert files_of(tmp_path / "store", "b") == before
