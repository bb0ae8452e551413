"""What a run's plan, result, end and report say against each other and against its events. Pure.

The events of a deletion are witnessed outside the journal; the others are held against them and each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.run_records import ReportRecord, RunRecord
from storage_engine.journal.records import REPORT_VERSION, Event, Phase, RunState, Step
from storage_engine.model.plan.plan import PlanRequest, Trigger
from storage_engine.retention.proof.history import segment_subject
from storage_engine.retention.ranges.deleted_ranges import RunHistory

_NAMED = 3
"""Of more segments than these only the number is told."""
_DELETED = "deleted"
"""Fate of a segment, in a report."""
_UNDONE = "undone"
"""Outcome of a report."""
_OF_RELEASE = {
    "proof": "passage",
    "proof_detail": "passage_detail",
    "sha256": "sha256",
    "data_file": "data_file",
}
"""Fields of a deleted segment in a report, and of its event."""


def find_contradictions(history: RunHistory, record: RunRecord) -> tuple[str, ...]:
    """Return as clauses what a run's records say against each other, each: expected …, found …

    Of a run that hasn't ended, what its end writes isn't expected yet.
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
    yield from _differing("whether it is finished", is_over, record.finished_at_ms is not None)
    if record.state != RunState.EXPIRED:
        yield from _of_plan(history, record, deleted)
    if record.released is not None or (has_ended and deleted):
        of_result = map(_subject, result.get("deleted", ()))
        yield from _differing_segments("segments that its result says it deleted", deleted, of_result)
        yield from _differing("the plan of its result", history.run.plan_digest, result.get("digest"))
    report = record.report
    if report is None or report.version != REPORT_VERSION:
        return
    if report.content is None:
        yield from _differing_segments("segments that a run without an own report deleted", (), deleted)
        return
    yield from _of_columns(report, report.content)
    yield from _of_report(history, record, report, report.content)
    if report.content["finished_at_ms"] is not None:
        others = map(_subject, result.get("deleted_by_others", ()))
        yield from _of_segments(deleted, {*deleted, *others}, record, report.content)


def _of_plan(history: RunHistory, record: RunRecord, deleted: Collection[str]) -> Iterator[str]:
    plan = record.plan
    found = None if plan is None else plan.digest
    yield from _differing("the SHA-256 of its plan", history.run.plan_digest, found)
    if plan is not None:
        planned = {segment_subject(*segment.id) for segment in plan.to_delete}
        unplanned = set(deleted) - planned
        yield from _differing_segments("segments that it deleted and its plan keeps", (), unplanned)


def _of_columns(report: ReportRecord, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what lists of runs show otherwise than the report says."""
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
        # Journals of before there were the last two have NULL.
        if value is not None or name not in ("validation", "lost_ranges"):
            yield from _differing(f"{name} in the list of runs, by its report", expected[name], value)


def _of_report(
    history: RunHistory, record: RunRecord, report: ReportRecord, content: Mapping[str, Any]
) -> Iterator[str]:
    run, plan = history.run, record.plan
    expected: dict[str, object] = {
        "store_id": history.store_id,
        "run_key": run.run_key,
        "began_at_ms": run.begun_at_ms,
        "request": from_jsonable(PlanRequest, run.request),
    }
    found = {**content, "request": from_jsonable(PlanRequest, content["request"])}
    if content["plan_digest"] is not None:
        expected["plan_digest"] = run.plan_digest
        if plan is not None:
            expected |= {"decided_at_ms": plan.decided_at_ms, "triggers": plan.triggers}
            found["triggers"] = tuple(from_jsonable(Trigger, row) for row in content["triggers"])
    if content["waiver"] is not None:
        expected["waiver"] = to_jsonable(history.waiver)
    if content["finished_at_ms"] is not None:
        expected["finished_at_ms"] = record.finished_at_ms
    for name, value in expected.items():
        yield from _differing(f"{name} of its report", value, found[name])
    if report.at_ms < (ended_ms := content["finished_at_ms"] or 0):
        yield f"when its report was written: expected {ended_ms} ms or later, found {report.at_ms} ms"


def _of_segments(
    deleted: Mapping[str, Event], went: Collection[str], record: RunRecord, content: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what the report of a run that has ended says otherwise of what it deleted.

    :param went: what this run or another one deleted of its plan.
    """
    rows = {_subject(row): row for row in content["segments"] if row["fate"] == _DELETED}
    yield from _differing_segments("segments that its report says were deleted", went, rows)
    decisions = {
        segment_subject(*decision.segment.id): decision
        for decision in (record.plan.decisions if record.plan else ())
    }
    for subject in sorted(deleted.keys() & rows.keys()):
        row, payload = rows[subject], deleted[subject].payload
        for name, of_event in _OF_RELEASE.items():
            yield from _differing(f"{name} of {subject} in its report", payload[of_event], row[name])
        if (decision := decisions.get(subject)) is not None:
            why = (decision.reason.value, decision.detail)
            yield from _differing(f"why {subject} went in its report", why, (row["reason"], row["detail"]))


def _subject(row: Mapping[str, Any]) -> str:
    return segment_subject(row["log"], row["base_offset"])


def _differing(what: str, expected: object, found: object) -> Iterator[str]:
    if expected != found:
        yield f"{what}: expected {expected}, found {found}"


def _differing_segments(what: str, expected: Iterable[str], found: Iterable[str]) -> Iterator[str]:
    wanted, there = set(expected), set(found)
    for said, subjects in (("without", wanted - there), ("with", there - wanted)):
        if subjects:
            more = f" and {len(subjects) - _NAMED} more" if len(subjects) > _NAMED else ""
            yield f"{what}: found {said} {', '.join(sorted(subjects)[:_NAMED])}{more}"
