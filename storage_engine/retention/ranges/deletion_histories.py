"""A store's deletions and losses in the journal, compared with the other records of its runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from storage_engine.brokers import find_broker
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.run_rows import (
    DeletingRun,
    ReportRecord,
    RunRecord,
    deleting_runs,
    events_around,
    events_of_deletion,
    read_run_record,
)
from storage_engine.journal.records import REPORT_VERSION, Event, Phase, RunState, Step
from storage_engine.journal.tables.rows import find_waiver_row
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.soundness.receipts import receipts_in
from storage_engine.model.plan import PlanRequest, Trigger
from storage_engine.model.proof.deleted_range import DeletedRange, RunDigest
from storage_engine.retention.proof.history import segment_subject
from storage_engine.retention.ranges.deleted_ranges import (
    ExplainedAbsence,
    RunHistory,
    explain_absence,
    find_absent,
    missing_ranges,
    with_store_times,
)

_NAMED = 3
"""Number of segments that a text names. The others are only counted."""
_DELETED = "deleted"
"""A segment's fate in a report: it was deleted."""
_UNDONE = "undone"
"""A report's outcome: the run was undone."""
_OF_RELEASE = {
    "proof": "passage",
    "proof_detail": "passage_detail",
    "sha256": "sha256",
    "data_file": "data_file",
}
"""Fields of a deleted segment: name in a report → name in its event."""


def find_contradictions(history: RunHistory, record: RunRecord) -> tuple[str, ...]:
    """Return contradictions among a run's records. Each is a clause "expected …, found …".

    Records that are written at a run's end are expected only if the run has ended.
    """
    if record.fault:
        return (f"its plan or its report can't be read ({record.fault})",)
    try:
        return tuple(_contradictions(history, record))
    except (BadInputError, *MALFORMED) as error:
        return (f"its records can't be understood ({error})",)


def _contradictions(history: RunHistory, record: RunRecord) -> Iterator[str]:
    deleted = {
        event.subject: event
        for event in history.events
        if (event.step, event.phase) == (Step.RELEASE, Phase.RESULT) and event.subject
    }
    result = (record.released or {}).get("result", {})
    has_ended = record.state == RunState.FINISHED
    is_over = has_ended or record.state == RunState.EXPIRED
    yield from _compare("whether it is finished", is_over, record.finished_at_ms is not None)
    if record.state != RunState.EXPIRED:
        yield from _compare_plan(history, record, deleted)
    if record.released is not None or (has_ended and deleted):
        subjects = map(_subject, result.get("deleted", ()))
        yield from _compare_subjects("deleted segments in its result", deleted, subjects)
        yield from _compare("the plan of its result", history.run.plan_digest, result.get("digest"))
    report = record.report
    if report is None or report.version != REPORT_VERSION:
        return
    if report.content is None:
        yield from _compare_subjects("segments deleted by a run without a report of its own", (), deleted)
        return
    yield from _compare_columns(report, report.content)
    yield from _compare_report(history, record, report, report.content)
    if report.content["finished_at_ms"] is not None:
        others = map(_subject, result.get("deleted_by_others", ()))
        yield from _compare_segments(deleted, {*deleted, *others}, record, report.content)


def _compare_plan(history: RunHistory, record: RunRecord, deleted: Collection[str]) -> Iterator[str]:
    plan = record.plan
    digest = None if plan is None else plan.digest
    yield from _compare("the SHA-256 of its plan", history.run.plan_digest, digest)
    if plan is not None:
        planned = {segment_subject(*segment.id) for segment in plan.to_delete}
        unplanned = set(deleted) - planned
        yield from _compare_subjects("segments that it deleted though its plan keeps them", (), unplanned)


def _compare_columns(report: ReportRecord, content: Mapping[str, Any]) -> Iterator[str]:
    count = sum(row["fate"] == _DELETED for row in content["segments"])
    validation, lost_ranges = report.verdict
    expected = {
        "outcome": content["outcome"],
        "causes": ",".join(dict.fromkeys(trigger["cause"] for trigger in content["triggers"])),
        "deleted_segments": 0 if content["outcome"] == _UNDONE else count,
        "freed_bytes": content["freed_bytes"],
        "validation": validation,
        "lost_ranges": lost_ranges,
    }
    for name, value in report.columns.items():
        # Older journals have NULL in the last two columns.
        if value is not None or name not in ("validation", "lost_ranges"):
            yield from _compare(f"{name} in the list of runs, by its report", expected[name], value)


def _compare_report(
    history: RunHistory, record: RunRecord, report: ReportRecord, content: Mapping[str, Any]
) -> Iterator[str]:
    run, plan = history.run, record.plan
    expected: dict[str, object] = {
        "store_id": history.store_id,
        "run_key": run.run_key,
        "began_at_ms": run.begun_at_ms,
        "request": from_jsonable(PlanRequest, run.request),
    }
    actual = {**content, "request": from_jsonable(PlanRequest, content["request"])}
    if content["plan_digest"] is not None:
        expected["plan_digest"] = run.plan_digest
        if plan is not None:
            expected |= {"decided_at_ms": plan.decided_at_ms, "triggers": plan.triggers}
            actual["triggers"] = tuple(from_jsonable(Trigger, row) for row in content["triggers"])
    if content["waiver"] is not None:
        expected["waiver"] = to_jsonable(history.waiver)
    if content["finished_at_ms"] is not None:
        expected["finished_at_ms"] = record.finished_at_ms
    for name, value in expected.items():
        yield from _compare(f"{name} of its report", value, actual[name])
    if report.at_ms < (ended_ms := content["finished_at_ms"] or 0):
        yield f"when its report was written: expected {ended_ms} ms or later, found {report.at_ms} ms"


def _compare_segments(
    deleted: Mapping[str, Event], all_deleted: Collection[str], record: RunRecord, content: Mapping[str, Any]
) -> Iterator[str]:
    """Yield differences between the journal and an ended run's report on deleted segments.

    :param all_deleted: planned segments that this run or another one deleted.
    """
    rows = {_subject(row): row for row in content["segments"] if row["fate"] == _DELETED}
    yield from _compare_subjects("deleted segments in its report", all_deleted, rows)
    decisions = {
        segment_subject(*decision.segment.id): decision
        for decision in (record.plan.decisions if record.plan else ())
    }
    for subject in sorted(deleted.keys() & rows.keys()):
        row, payload = rows[subject], deleted[subject].payload
        for name, key in _OF_RELEASE.items():
            yield from _compare(f"{name} of {subject} in its report", payload[key], row[name])
        if (decision := decisions.get(subject)) is not None:
            reason, reported = (decision.reason.value, decision.detail), (row["reason"], row["detail"])
            yield from _compare(f"why {subject} was deleted, in its report", reason, reported)


def _subject(row: Mapping[str, Any]) -> str:
    return segment_subject(row["log"], row["base_offset"])


def _compare(subject: str, expected: object, actual: object) -> Iterator[str]:
    if expected != actual:
        yield f"{subject}: expected {expected}, found {actual}"


def _compare_subjects(subject: str, expected: Iterable[str], actual: Iterable[str]) -> Iterator[str]:
    expected_ids, actual_ids = set(expected), set(actual)
    for word, subjects in (("without", expected_ids - actual_ids), ("with", actual_ids - expected_ids)):
        if subjects:
            more = f" and {len(subjects) - _NAMED} more" if len(subjects) > _NAMED else ""
            yield f"{subject}: found {word} {', '.join(sorted(subjects)[:_NAMED])}{more}"


def read_deleting_runs(reader: JournalReader, store_id: str) -> tuple[DeletingRun, ...]:
    """Return a store's runs that deleted or lost ranges, the newest last.

    :raises JournalUnavailableError: the journal can't be read.
    """
    return reader.read(partial(deleting_runs, store_id=store_id))


def read_history(reader: JournalReader, store_id: str, run: DeletingRun) -> RunHistory:
    """Read the events and the waiver of a run that deleted from a store.

    :raises JournalUnavailableError: the journal can't be read.
    """
    events = reader.read(partial(events_of_deletion, run_id=run.run_id))
    waiver = reader.read(partial(find_waiver_row, plan_digest=run.plan_digest)) if run.plan_digest else None
    return RunHistory(store_id, run, events, waiver)


def read_run_contradictions(reader: JournalReader, history: RunHistory) -> tuple[str, ...]:
    """Return contradictions among a run's records, and between them and its events, as clauses.

    :raises JournalUnavailableError: the journal can't be read.
    """
    return find_contradictions(history, reader.read(partial(read_run_record, run_id=history.run.run_id)))


def explain_absent_runs(
    reader: JournalReader,
    store_id: str,
    runs: Collection[DeletingRun],
    digests: Iterable[RunDigest],
    rows: Collection[DeletedRange],
) -> tuple[ExplainedAbsence, ...]:
    """Return why the journal lacks runs whose deletions were witnessed.

    :param runs: the runs that :func:`read_deleting_runs` returns.
    :raises JournalUnavailableError: the journal can't be read.
    """
    witnesses = (*digests, *(row.digest for row in rows))
    absent_runs = find_absent(runs, witnesses, rows)
    if not absent_runs:
        return ()
    keys = {absent.run for absent in absent_runs}
    witnessed = {(digest.run, digest.begun_at_ms) for digest in witnesses}
    histories = [
        read_history(reader, store_id, run)
        for run in runs
        if run.run_key in keys or (run.run_key, run.begun_at_ms) not in witnessed
    ]
    return tuple(
        explain_absence(absent, histories, reader.read(partial(events_around, event_id=absent.event_id)))
        for absent in absent_runs
    )


def missing_rows(
    lake: Lake,
    reader: JournalReader,
    store_id: str,
    runs: Collection[DeletingRun],
    present_rows: Collection[DeletedRange],
) -> Iterator[DeletedRange]:
    """Yield the rows that a lake lacks, run by run.

    Runs that the lake has with another key or beginning are left out.

    :param runs: the runs that :func:`read_deleting_runs` returns.
    :raises JournalUnavailableError: the journal can't be read.
    :raises LakeUnavailableError: the lake's receipts can't be read.
    """
    reached: dict[tuple[str, int], int] = {}
    for row in present_rows:
        key = (row.run, row.run_begun_at_ms)
        reached[key] = max(row.event_id, reached.get(key, 0))
    topic_id_of = find_broker(lake.broker).codec.columns.topic_id_of
    explained = explain_absent_runs(reader, store_id, runs, (), present_rows)
    altered = {absence.altered.run_id for absence in explained if absence.altered is not None}
    for run in runs:
        if run.run_id not in altered and run.last_id > reached.get((run.run_key, run.begun_at_ms), 0):
            rows = missing_ranges(read_history(reader, store_id, run), present_rows, topic_id_of)
            yield from _add_times(lake, store_id, rows)


def _add_times(lake: Lake, store_id: str, rows: Collection[DeletedRange]) -> Iterator[DeletedRange]:
    if not rows:
        return
    span = (min(row.start_offset for row in rows), max(row.end_offset for row in rows) - 1)
    logs = {row.log for row in rows}
    log = logs.pop() if len(logs) == 1 else None
    # Receipts of segments that have expired since have times, too.
    receipts = receipts_in(lake.segments(), store_id, log=log, base_offsets=span, with_ended=True)
    yield from with_store_times(rows, receipts)
