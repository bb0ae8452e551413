"""Two logs of one store have segments of the same base offsets. Each goes by its own proofs alone."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import LakeConflictError, LogsRefusedError, RunStateError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.model.settings.policy import LagPolicy, Policy
from storage_engine.retention import steps
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import Fate, Outcome, build_report
from storage_engine.retention.store.managed_store import ManagedStore
from tests.fixture_stores import file_sha256
from tests.integration.stores import unpack
from tests.lakes import make_lakes
from tests.retention.conftest import HOURS_AGO_NS, MANUAL
from tests.services import two_logs
from tests.services.restoring import restore
from tests.services.two_logs import LEFT, RIGHT


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManagedStore:
    """All sealed segments have expired; a plan under the run key "r", archived."""
    two_logs.known(monkeypatch)
    root = tmp_path / "store"
    old_ns = clock_ms() * 10**6 - HOURS_AGO_NS
    for log, name in ((LEFT, "clean-stop"), (RIGHT, "edge-frames")):
        durable.make_dirs(root)
        unpack(name, tmp_path / f"unpacked-{log}").rename(root / log)
        for segment in (root / log / "commitlog").iterdir():
            os.utime(segment, ns=(old_ns, old_ns))
    managed = ManagedStore.local(
        "two", str(root), tmp_path / "managed", broker=two_logs.BROKER, time_zone="UTC",
        policy=Policy(lag_policy=LagPolicy.IGNORE),
    )  # fmt: skip
    make_lakes(managed)
    assert steps.make_plan(managed, "r", MANUAL).deletes
    steps.archive(managed, "r", steps.archive_jobs(managed, "r"))
    return managed


def segments(store: ManagedStore, log: str) -> list[Path]:
    return sorted((Path(store.root) / log / "commitlog").iterdir())


def planned(store: ManagedStore, log: str) -> list[Path]:
    return [Path(one.facts.path) for one in steps.recorded_plan(store, "r").to_delete if one.log == log]


Act = Callable[[Path], object]


@pytest.mark.slow
def test_both_logs_go_on_their_own_proofs(store: ManagedStore) -> None:
    going = {log: [(path.name, file_sha256(path)) for path in planned(store, log)] for log in (LEFT, RIGHT)}
    assert all(len(names) > 1 for names in going.values())
    assert going[LEFT][0][0] == going[RIGHT][0][0]
    result = steps.release(store, "r")
    deleted = [(one.log, Path(one.facts.path).name, one.sha256) for one in result.deleted]
    assert sorted(deleted) == sorted((log, *one) for log in going for one in going[log])
    assert result.new_min_offset is None
    assert result.new_min_offsets == {log: int(segments(store, log)[0].name) for log in going}
    steps.clean_dependents(store, "r")
    report = build_report(store, "r")
    assert report.outcome is Outcome.DONE
    assert {row.log for row in report.segments if row.fate is Fate.DELETED} == {LEFT, RIGHT}


@pytest.mark.again
@pytest.mark.slow
def test_one_log_is_restored_by_its_name(store: ManagedStore, tmp_path: Path) -> None:
    bytes_of = {
        log: [(path.name, file_sha256(path)) for path in planned(store, log)] for log in (LEFT, RIGHT)
    }
    steps.release(store, "r")
    store_id = steps.recorded_plan(store, "r").store_id
    assert store_id is not None
    for log in (LEFT, RIGHT):
        restored = restore(
            open_lake(store.lake), store_id, tmp_path / f"back-{log}", log=log, files_only=True
        )
        assert [(Path(one.path).name, file_sha256(Path(one.path))) for one in restored] == bytes_of[log]
        assert {Path(one.path).parent.name for one in restored} == {log}


def rewrite(path: Path) -> None:
    """Change a byte of a file and leave it as old as it was."""
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.slow
def test_what_refuses_one_log_stops_no_other(store: ManagedStore) -> None:
    rewrite(planned(store, RIGHT)[0])
    going, before = planned(store, LEFT), segments(store, RIGHT)
    result = steps.release(store, "r")
    assert [Path(one.facts.path) for one in result.deleted] == going
    (refused,) = result.refused
    assert (refused.log, str(before[0]) in refused.why) == (RIGHT, True)
    assert segments(store, RIGHT) == before
    assert result.new_min_offsets[RIGHT] == int(before[0].name)
    assert steps.release(store, "r") == result
    steps.clean_dependents(store, "r")
    finished = finish(store, "r")
    assert (finished.outcome, finished.ok, finished.finished) == (Outcome.RELEASED_IN_PART, False, True)
    with pytest.raises(LogsRefusedError, match=f"log {RIGHT} was refused"):
        finished.raise_refused()


@pytest.mark.slow
def test_what_is_proven_and_went_from_one_log_is_told_and_refuses_none(store: ManagedStore) -> None:
    (went, *rest), going = planned(store, RIGHT), planned(store, LEFT)
    went.unlink()
    result = steps.release(store, "r")
    assert (result.refused, [(one.log, one.is_proven) for one in result.gone]) == ((), [(RIGHT, True)])
    assert [Path(one.facts.path) for one in result.deleted] == [*going, *rest]


def test_a_release_whose_logs_are_all_refused_ends_as_that_of_a_store_of_one_log(store: ManagedStore) -> None:
    before = [path for log in (LEFT, RIGHT) for path in segments(store, log)]
    rewrite(planned(store, LEFT)[0])
    rewrite(planned(store, RIGHT)[0])
    with pytest.raises(LakeConflictError, match=str(planned(store, LEFT)[0])):
        steps.release(store, "r")
    assert [path for log in (LEFT, RIGHT) for path in segments(store, log)] == before
    assert build_report(store, "r").outcome is Outcome.FAILED


@pytest.mark.slow
def test_a_log_that_needs_no_more_goes_while_another_is_kept(
    store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no longer expired in one log stays there, and keeps nothing of the other."""
    kept, going = planned(store, RIGHT), planned(store, LEFT)
    os.utime(kept[0])
    result = steps.release(store, "r")
    assert [Path(one.facts.path) for one in result.deleted] == going
    assert all(path.exists() for path in kept)
    assert {one.log for one in result.kept} == {RIGHT}


@pytest.mark.slow
def test_a_plan_that_is_not_the_recorded_one_is_never_released(store: ManagedStore, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "managed" / "journal.db") as connection:
        connection.execute("UPDATE storage_engine_runs SET plan_digest = ?", ("0" * 64,))
    connection.close()
    with pytest.raises(RunStateError, match="expected a plan with the recorded digest"):
        steps.release(store, "r")
