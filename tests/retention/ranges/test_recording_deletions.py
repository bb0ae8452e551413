"""What runs deleted or lost is in the lake once, and stamp and receipts witness it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.table import Table

from storage_engine import cycle
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.journal import WATCH_RUN, Journal, Phase, Step, StoreRecord, record_drift
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.lake.archive.deletions import read_deletions
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.tables import DELETIONS
from storage_engine.lake.soundness.receipts import receipt_history
from storage_engine.lake.storage.small_files import forget_files
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.deleted_range import DELETION, DeletedRange
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.retention import steps
from storage_engine.retention.ranges import recording_deletions
from storage_engine.retention.ranges.deleted_ranges import AcceptedLoss, record_loss
from storage_engine.retention.ranges.deletion_histories import read_deleting_runs, read_history
from storage_engine.retention.ranges.verification import deletion_findings, verify_lake, verify_store
from storage_engine.retention.report.finishing import FinishResult, finish
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import read_stamp
from tests.integration.stores import unpack
from tests.lakes import make_lakes
from tests.retention.conftest import HOURS_AGO_NS, MANUAL

pytestmark = pytest.mark.slow

MIB = 1 << 20


def cleaned(store: ManagedStore, run_key: str, segments: int = 1) -> FinishResult:
    cleanup = cycle.Cleanup(store, run_key, replace(MANUAL, max_segments=segments))
    for step in (cycle.plan, cycle.archive, cycle.release, cycle.clean_dependents):
        step(cleanup)
    return cycle.report(cleanup)


def lake_of(store: ManagedStore) -> Lake:
    return open_lake(store.lakes[0])


def record_of(store: ManagedStore) -> StoreRecord:
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    return record


def rows_of(store: ManagedStore) -> tuple[DeletedRange, ...]:
    return read_deletions(lake_of(store), record_of(store).store_id)


def lose_data(table: Table) -> None:
    for file in Path(table.location().removeprefix("file://")).rglob("data/**/*.parquet"):
        file.unlink()
    forget_files()


def expired(base: Path) -> ManagedStore:
    """A store of which every segment has expired."""
    root = unpack("clean-stop", base / "store")
    old_ns = clock_ms() * 10**6 - HOURS_AGO_NS
    for segment in (root / "commitlog").iterdir():
        os.utime(segment, ns=(old_ns, old_ns))
    return make_lakes(ManagedStore.local("main", str(root), base / "managed", time_zone="UTC"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedStore]:
    """A run deleted two segments and ended twice, and a second run deleted one."""
    store = expired(tmp_path_factory.mktemp("deletions"))
    assert cleaned(store, "first", 2).notices == ()
    assert finish(store, "first").notices == ()
    assert cleaned(store, "second").notices == ()
    return store


def test_each_range_of_a_run_is_there_once(store: ManagedStore) -> None:
    first, second = rows_of(store)
    assert [(row.run, row.log, row.start_offset, row.end_offset) for row in (first, second)] == [
        ("first", "commitlog", 0, 2 * MIB),
        ("second", "commitlog", 2 * MIB, 3 * MIB),
    ]
    assert {(row.what, row.cause, row.who) for row in (first, second)} == {
        ("released", "expired", "storage-engine")
    }
    assert {first.store_name, second.store_name} == {"main"}
    receipts = receipt_history(lake_of(store), first.store_id)
    assert first.first_store_timestamp_ms == receipts[0].first_store_timestamp_ms
    assert first.last_store_timestamp_ms == receipts[1].last_store_timestamp_ms
    assert second.first_store_timestamp_ms == receipts[2].first_store_timestamp_ms is not None
    results = Journal(store.journal_url).store_events(first.store_id, Step.RELEASE, Phase.RESULT)
    assert first.at_ms == max(one.at_ms for one in results if one.subject and one.run_key == "first")


def test_stamp_and_the_next_receipt_have_the_digest_of_the_last_deletion(store: ManagedStore) -> None:
    first, second = rows_of(store)
    receipts = receipt_history(lake_of(store), first.store_id)
    assert [row.known.get(DELETION) for row in receipts] == [None, None, to_jsonable(first.digest)]
    stamp = read_stamp(store.real_root)
    assert stamp is not None
    assert stamp.deletion == second.digest


CHANGES = {
    "UPDATE storage_engine_events SET payload = replace(payload, '\"expired\"', '\"forced\"') "
    "WHERE step = 'release'": "the cause expired became forced",
    "UPDATE storage_engine_events SET at_ms = at_ms - 86400000 WHERE step = 'release'": "the time ",
    "UPDATE storage_engine_runs SET plan_digest = substr(plan_digest, 2) || 'x'": "was changed since",
}


@pytest.mark.parametrize("sql", CHANGES, ids=["reason", "time", "plan"])
def test_a_deletion_that_was_changed_in_the_journal_is_named(
    store: ManagedStore, tmp_path: Path, sql: str
) -> None:
    (found,) = verify_store(store, VerifyLevel.RECEIPTS)
    assert (found.overall, found.findings) == (Status.OK, ())
    shutil.copy2(store.journal_url.removeprefix("sqlite:///"), tmp_path / "journal.db")
    changed = replace(store, journal_url=f"sqlite:///{tmp_path / 'journal.db'}")
    with closing(sqlite3.connect(tmp_path / "journal.db")) as journal:
        journal.execute(sql)
        journal.commit()
    (found,) = verify_store(changed, VerifyLevel.RECEIPTS)
    (of_lake,) = verify_lake(store.lakes[0], changed.journal_url, VerifyLevel.RECEIPTS)
    for findings in (found.findings, of_lake.findings):
        assert [(one.status, one.subject) for one in findings] == [
            (Status.FAILURE, "run first"),
            (Status.FAILURE, "run second"),
        ]
        assert all(CHANGES[sql] in one.detail for one in findings)
    assert "the lake's table deletions and a receipt's evidence" in found.findings[0].detail
    assert "the lake's table deletions and the store's stamp" in found.findings[1].detail
    assert (f"commitlog [0, {2 * MIB}): " in found.findings[0].detail) is ("events" in sql)


_RUN, _EVENT, _REPORT, _PLAN = (
    f"UPDATE storage_engine_{table} SET " for table in ("runs", "events", "reports", "plans")
)
_BACK = "created_at_ms = created_at_ms - 86400000"
_REMOVE = "; ".join(
    f"DELETE FROM storage_engine_{table} WHERE {key} = " + "{0}"
    for table, key in (("events", "run_id"), ("reports", "run_id"), ("runs", "id"))
)
_PAYLOAD = "payload = replace(payload, "
_FIRST = (("FAILURE", "run first"),)
_BOTH = (*_FIRST, ("FAILURE", "run second"))
_WAIVER = (
    "INSERT INTO storage_engine_waivers SELECT plan_digest, 'mallory', 'because', created_at_ms + {0} "
    "FROM storage_engine_runs WHERE run_key = 'first'"
)
FORGED: dict[str, tuple[str, tuple[tuple[str, str], ...], str]] = {
    "nothing": ("SELECT 1", (), ""),
    "a run's beginning and times, back": (
        f"{_RUN} {_BACK} WHERE run_key = 'first'; {_EVENT} at_ms = at_ms - 86400000, "
        f"{_PAYLOAD}'expired', 'forced') WHERE run_id = 1",
        _FIRST,
        "found run first begun",
    ),
    "a run's beginning and times, forward": (
        f"{_RUN} created_at_ms = created_at_ms + 86400000 WHERE run_key = 'second'; "
        f"{_EVENT} at_ms = at_ms + 86400000 WHERE run_id = 2",
        _BOTH[1:],
        "found run second begun",
    ),
    "a run's key": (
        f"{_RUN} run_key = 'other' WHERE run_key = 'second'",
        _BOTH[1:],
        "found run other begun",
    ),
    "a run": (_REMOVE.format(1), _FIRST, f"(commitlog [0, {2 * MIB})), by the lake's table"),
    "a run's deletions": (
        "DELETE FROM storage_engine_events WHERE run_id = 1 AND step = 'release'",
        _FIRST,
        "found none of it between the events before and after it",
    ),
    "the last run": (_REMOVE.format(2), (("WARNING", "run second"),), "found no such run"),
    "all runs": (
        "; ".join(f"{_REMOVE.format(number)}" for number in (1, 2)),
        (("WARNING", "run first"), ("WARNING", "run second")),
        "found no such run",
    ),
    "a plan's trigger": (
        f"{_RUN} plan = replace(plan, '\"manual\"', '\"space-full\"') WHERE run_key = 'first'",
        _FIRST,
        "triggers of its report",
    ),
    "a plan's segments": (
        f"{_RUN} plan = replace(plan, '\"skip\": ', '\"skip\": 1') WHERE run_key = 'first'",
        _FIRST,
        "can't be read",
    ),
    "decisions": (f"{_PLAN} decisions = x'78da'", _BOTH, "can't be read"),
    "no decisions": ("DELETE FROM storage_engine_plans", _BOTH, "can't be read"),
    "no plan": (f"{_RUN} plan = NULL WHERE run_key = 'first'", _FIRST, "the SHA-256 of its plan"),
    "another run's plan": (
        f"{_RUN} plan = (SELECT plan FROM storage_engine_runs WHERE run_key = 'second')",
        _FIRST,
        "segments that it deleted though its plan keeps them: found with commitlog/00000000000000000000",
    ),
    "an end": (f"{_RUN} finished_at_ms = finished_at_ms - 1 WHERE id = 1", _FIRST, "finished_at_ms"),
    "a state": (f"{_RUN} state = 'abandoned' WHERE id = 1", _FIRST, "whether it is finished"),
    "a report's causes": (
        f"{_REPORT} causes = 'space-full' WHERE run_id = 1",
        _FIRST,
        "manual, found space-full",
    ),
    "a report's outcome": (f"{_REPORT} outcome = 'blocked' WHERE run_id = 1", _FIRST, "expected done"),
    "a report's number": (f"{_REPORT} deleted_segments = 9 WHERE run_id = 1", _FIRST, "found 9"),
    "a report's bytes": (f"{_REPORT} freed_bytes = 9 WHERE run_id = 1", _FIRST, "found 9"),
    "a report's time": (f"{_REPORT} at_ms = at_ms - 86400000 WHERE run_id = 1", _FIRST, "or later"),
    "another run's report": (
        f"{_REPORT} report = (SELECT report FROM storage_engine_reports WHERE run_id = 2) WHERE run_id = 1",
        _FIRST,
        "run_key of its report: expected first, found second",
    ),
    "another's report answers": (
        f"{_REPORT} report = NULL, unchanged_since = 'second' WHERE run_id = 1",
        _FIRST,
        "segments deleted by a run without a report of its own",
    ),
    "a release's result": (
        f"{_EVENT} {_PAYLOAD}'\"deleted\"', '\"kept\"') "
        "WHERE run_id = 1 AND step = 'release' AND subject = ''",
        _FIRST,
        "deleted segments in its result: found without",
    ),
    "no release's result": (
        "DELETE FROM storage_engine_events WHERE step = 'release' AND subject = ''",
        _BOTH,
        "the plan of its result",
    ),
    "a segment that went": (
        "INSERT INTO storage_engine_events (run_id, step, phase, subject, payload, at_ms) "
        "SELECT run_id, step, phase, 'commitlog/00000000000005242880', payload, at_ms "
        "FROM storage_engine_events WHERE run_id = 1 AND step = 'release' AND subject != ''",
        _FIRST,
        "segments that it deleted though its plan keeps them: found with commitlog/00000000000005242880",
    ),
    "a waiver from before": (_WAIVER.format(1), _FIRST, "was changed since"),
    "a waiver from after": (_WAIVER.format(86_400_000), (), ""),
}
"""What is changed, by which statements, which runs are named, and by which words."""


@pytest.mark.parametrize("what", FORGED)
def test_what_was_forged_of_a_run_is_named(store: ManagedStore, tmp_path: Path, what: str) -> None:
    sql, runs, words = FORGED[what]
    stamp, path = read_stamp(store.real_root), tmp_path / "journal.db"
    assert stamp is not None
    shutil.copy2(store.journal_url.removeprefix("sqlite:///"), path)
    with closing(sqlite3.connect(path)) as journal:
        journal.executescript(sql)
        assert bool(journal.total_changes) is (what != "nothing")
        journal.commit()
    reader = JournalReader(f"sqlite:///{path}")
    findings = list(deletion_findings(reader, lake_of(store), stamp.store_id, stamp.deletion))
    assert {(it.status.value, it.subject) for it in findings} == set(runs)
    assert words in " ".join(it.detail for it in findings)


def test_what_a_changed_run_deleted_is_not_written_again_and_the_stamp_stays(tmp_path: Path) -> None:
    store = expired(tmp_path)
    assert cleaned(store, "first").notices == ()
    rows, stamp = rows_of(store), read_stamp(store.real_root)
    change(store, f"{_RUN} {_BACK}")
    change(store, f"{_EVENT} at_ms = at_ms - 86400000")
    of_lake, of_stamp = finish(store, "first").notices
    assert "The run's deletions aren't written again" in of_lake
    assert "The stamp stays as it is" in of_stamp
    assert (rows_of(store), read_stamp(store.real_root)) == (rows, stamp)


def test_a_journal_that_never_knew_the_store_says_nothing(store: ManagedStore, tmp_path: Path) -> None:
    (found,) = verify_lake(store.lakes[0], f"sqlite:///{tmp_path / 'journal.db'}", VerifyLevel.RECEIPTS)
    assert found.findings == ()


def test_what_could_not_be_written_is_a_notice_and_brought_in_by_the_next_run(tmp_path: Path) -> None:
    store = expired(tmp_path)
    location = Path(lake_of(store).segments().location().removeprefix("file://")).with_name(DELETIONS)
    location.write_text("in the way")
    ended = cleaned(store, "first")
    assert (ended.ok, ended.finished) == (True, True)
    (notice,) = ended.notices
    assert "could not be written into its table deletions. The next run tries again" in notice
    dry = cycle.Cleanup(store, "dry", replace(MANUAL, dry_run=True))
    cycle.plan(dry)
    assert cycle.report(dry).notices == ()
    location.unlink()
    journal, record = Journal(store.journal_url), record_of(store)
    gone = Drift(DriftKind.SEGMENT_GONE, "the broker deleted it", "commitlog", MIB, 2 * MIB)
    record_drift(journal, record, journal.begin_run(record.store_id, WATCH_RUN, PlanRequest()), [gone])
    run = journal.begin_run(record.store_id, "losses", PlanRequest())
    record_loss(journal, run, AcceptedLoss("commitlog", 0, MIB, 2 * MIB, "ann", "no copy is left"))
    assert finish(store, "first").notices == ()
    assert [(row.run, row.start_offset, row.what, row.cause, row.who) for row in rows_of(store)] == [
        ("first", 0, "released", "expired", "storage-engine"),
        (WATCH_RUN, MIB, "gone", "segment-gone", "not storage-engine"),
        ("losses", MIB, "lost", "accept-loss", "ann"),
    ]
    (found,) = verify_store(store, VerifyLevel.RECEIPTS)
    assert [one.subject for one in found.findings if one.subject.startswith(("run ", "table "))] == []


def test_a_run_that_ends_leaves_what_the_stamp_says_of_a_deletion_and_says_so(tmp_path: Path) -> None:
    store = expired(tmp_path)
    assert cleaned(store, "first").notices == ()
    before = read_stamp(store.real_root)
    assert before is not None
    assert before.deletion is not None
    with closing(sqlite3.connect(store.journal_url.removeprefix("sqlite:///"))) as journal:
        journal.execute(next(iter(CHANGES)))
        journal.commit()
    (notice,) = finish(store, "first").notices
    assert notice.startswith("run first: ")
    assert f"{before.deletion.sha256}, by the store's stamp, found " in notice
    assert read_stamp(store.real_root) == before


def change(store: ManagedStore, sql: str) -> None:
    with closing(sqlite3.connect(store.journal_url.removeprefix("sqlite:///"))) as journal:
        journal.execute(sql)
        journal.commit()


@pytest.mark.parametrize("later", ["first", "second"])
def test_no_later_event_moves_the_stamp_on_from_a_deletion_that_was_changed(
    tmp_path: Path, later: str
) -> None:
    store = expired(tmp_path)
    assert cleaned(store, "first").notices == ()
    before = read_stamp(store.real_root)
    assert before is not None
    assert before.deletion is not None
    change(store, next(iter(CHANGES)))
    journal, record = Journal(store.journal_url), record_of(store)
    run = journal.begin_run(record.store_id, later, replace(MANUAL, max_segments=1))
    gone = Drift(DriftKind.SEGMENT_GONE, "the broker deleted it", "commitlog", MIB, 2 * MIB)
    record_drift(journal, record, run, [gone])
    (notice,) = (one for one in finish(store, "first").notices if "SHA-256" in one)
    assert f"{before.deletion.sha256}, by the store's stamp, found " in notice
    stamp = read_stamp(store.real_root)
    assert stamp is not None
    assert stamp.deletion == before.deletion
    # Once it is as it was, the stamp goes on.
    undo = next(iter(CHANGES)).replace("expired", "?").replace("forced", "expired").replace("?", "forced")
    change(store, undo)
    assert finish(store, "first").notices == ()
    stamp = read_stamp(store.real_root)
    assert stamp is not None
    assert stamp.deletion is not None
    assert (stamp.deletion.run, stamp.deletion != before.deletion) == (later, True)


@pytest.mark.again
def test_a_malformed_event_is_told_as_the_journal_s_and_is_no_promise(tmp_path: Path) -> None:
    store = expired(tmp_path)
    for run_key in ("first", "second"):
        assert cleaned(store, run_key).notices == ()
    results = "run_id = 1 AND step = 'release' AND phase = 'result' AND subject != ''"
    change(store, f"UPDATE storage_engine_events SET payload = '{{}}' WHERE {results}")
    rows = lake_of(store).deletions()
    assert rows is not None
    lose_data(rows)
    said = finish(store, "second").notices
    assert [one for one in said if one.startswith("runs' deletions could not be read from the journal: ")]
    assert not [one for one in said if "The next run tries again" in one]


def test_no_fault_of_writing_is_told_as_the_journal_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = expired(tmp_path)

    def fails(*_: object) -> None:
        raise TypeError("of our own")

    monkeypatch.setattr(recording_deletions, "add_deletions", fails)
    with pytest.raises(TypeError, match="of our own"):
        cleaned(store, "first")


def test_who_waived_a_proof_is_part_of_what_is_witnessed(tmp_path: Path) -> None:
    store = expired(tmp_path)
    cleanup = cycle.Cleanup(store, "first", replace(MANUAL, max_segments=1))
    cycle.plan(cleanup)
    plan = steps.recorded_plan(store, "first")
    Journal(store.journal_url).waive(plan.digest, "ann", "test data")
    for step in (cycle.release, cycle.clean_dependents):
        step(cleanup)
    (released,) = steps.release(store, "first").deleted
    assert released.passage == "waived"
    cycle.report(cleanup)
    (found,) = verify_store(store, VerifyLevel.RECEIPTS)
    assert not [one for one in found.findings if one.subject == "run first"]
    stamp = read_stamp(store.real_root)
    assert stamp is not None
    assert stamp.deletion is not None
    change(store, "UPDATE storage_engine_waivers SET person = 'bob'")
    (found,) = verify_store(store, VerifyLevel.RECEIPTS)
    (finding,) = (one for one in found.findings if one.subject == "run first")
    assert finding.status is Status.FAILURE
    assert "the decider ann became bob" in finding.detail
    # As it was witnessed before waivers counted.
    change(store, "UPDATE storage_engine_waivers SET person = 'ann'")
    reader = JournalReader(store.journal_url)
    (run,) = read_deleting_runs(reader, record_of(store).store_id)
    history = read_history(reader, record_of(store).store_id, run)
    older = replace(history, waiver=None).digest
    assert older != history.digest == stamp.deletion
    assert history.differing((older, history.digest)) == {}


def test_the_table_is_dropped_for_its_own_damage_alone_and_the_runs_end_says_so(tmp_path: Path) -> None:
    store = expired(tmp_path)
    assert cleaned(store, "first").notices == ()
    table = lake_of(store).deletions()
    assert table is not None
    rows = rows_of(store)
    lose_data(table)
    (notice,) = finish(store, "first").notices
    assert "its table deletions was damaged (" in notice
    assert "made again from the journal" in notice
    assert rows_of(store) == rows
    assert finish(store, "first").notices == ()
    journal, record = Journal(store.journal_url), record_of(store)
    run = journal.begin_run(record.store_id, "losses", PlanRequest())
    record_loss(journal, run, AcceptedLoss("commitlog", 0, 0, MIB, "ann", "no copy is left"))
    lose_data(lake_of(store).segments())
    (notice,) = finish(store, "first").notices
    assert "could not be written into its table deletions. The next run tries again" in notice
    assert rows_of(store) == rows
