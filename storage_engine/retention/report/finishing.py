"""The end of a run with its report, whether it failed or not.

A run that would report the same as an earlier one writes no report: the earlier report counts for it. Most
runs delete nothing, for the same reasons as the run before. Their plans say why each segment is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from storage_engine.commands import Text
from storage_engine.core import durable
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.journal.journal import Phase, ReportRow, Run, RunState, Step
from storage_engine.journal.reading.answers import StoredReport
from storage_engine.journal.records import REPORT_VERSION
from storage_engine.model.report.validation import Status, ValidationResult, Where
from storage_engine.retention.proof.approvals import read_approval
from storage_engine.retention.proof.refusing import ending_error, refused_text
from storage_engine.retention.ranges.recording_deletions import record_deletions
from storage_engine.retention.release.checkpointing import deleted_dependents
from storage_engine.retention.report.report import Fate, Outcome, Report, read_lakes, read_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.context import AnyStore, Context, open_context
from storage_engine.retention.store.managed_store import (
    PAGE,
    REPORT_JSON,
    REPORT_TEXT,
    SUMMARY_HTML,
    SUMMARY_TEXT,
    page_links,
    run_directory,
)

WHY = "why"
"""Key in the result of a report event: the digest of its reasons."""
SINCE = "unchanged_since"
"""Key in the result of a report event: the run whose report counts for this run."""


def unchanged_since(context: Context, run: Run, report: Report) -> str | None:
    """Return the key of the earlier run whose report counts for this run, or None if it needs its own report.

    The earlier report exists and gives the same reasons, and this run did nothing and has no alarm.
    """
    results = context.journal.events(run, Step.REPORT, Phase.RESULT)
    last = results[-1] if results else context.journal.last_result(run.store_id, Step.REPORT)
    if last is None or not is_idle(report) or last.payload.get(WHY) != reasons_digest(report):
        return None
    since = last.payload.get(SINCE) or last.run_key
    exists = (run_directory(context.store, since) / REPORT_JSON).is_file()
    return str(since) if since != run.run_key and exists else None


def validated_since(store: AnyStore, run_key: str) -> str | None:
    """Return the key of the run that validated the store's present state without a failure, or None.

    The plans of both runs delete nothing and name exactly the same files, and this run deleted no dependents.
    """
    context = open_context(store)
    run = context.run(run_key)
    # A run without a plan validates rows, not the store.
    last = context.journal.last_result(run.store_id, Step.VALIDATE, of_plan=True)
    if last is None or run.plan is None or run.plan.to_delete or deleted_dependents(context, run):
        return None
    before = context.run(last.run_key)
    overall = from_jsonable(ValidationResult, last.payload["result"]).overall
    is_same_plan = before.plan is not None and before.plan.decisions == run.plan.decisions
    return last.run_key if is_same_plan and overall is not Status.FAILURE else None


def is_idle(report: Report) -> bool:
    """Return whether a run changed nothing and found nothing that a person has to know."""
    facts = (
        report.archived,
        report.archived_ahead,
        report.hashed_again,
        report.dependents,
        report.validation,
        report.freed_bytes,
        report.alarms,
        report.wrong_lakes,
        report.unproven,
        report.waiver,
        report.hold and report.hold.disturbances,
    )
    return (
        report.outcome in (Outcome.NOTHING_TO_DO, Outcome.BLOCKED)
        and not any(segment.planned for segment in report.segments)
        and not any(step.error for step in report.steps)
        and not any(facts)
    )


def reasons_digest(report: Report) -> str:
    """Return a digest of the reasons why nothing is deleted, such as causes, notices and policies.

    The segments' reasons count in their order. The number of segments doesn't count: a log that grows is kept
    for the same reasons.
    """
    reasons = groupby(report.segments, key=lambda segment: (segment.log, segment.reason.value))
    facts = {
        "causes": sorted((trigger.cause.value, trigger.urgency.value) for trigger in report.triggers),
        "request": to_jsonable(report.request),
        "reasons": [key for key, _ in reasons],
        "notices": report.notices,
        "crashed": report.crashed,
        "lineage": report.lineage,
        "policies": (report.archive_mode, report.lag_policy, report.pending_policy),
        "lakes": (report.lake, report.second_lake),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def report_of_stored(stored: StoredReport) -> Report:
    """Return the report that a journal stores.

    :raises BadInputError: another release of storage-engine wrote the report, with other fields.
    """
    fields = {name: value for name, value in stored.report.items() if name != "ok"}
    run = fields.get("run_key", "")
    if stored.version != REPORT_VERSION:
        raise BadInputError(
            f"run {run}: expected a report of version {REPORT_VERSION}, found version {stored.version}. "
            "Nothing was changed. Use the release of storage-engine that wrote it. The option --json shows "
            "the report unchanged."
        )
    return from_jsonable(Report, fields, f"report of run {run}")


_ENDED = frozenset(
    {
        Outcome.DONE,
        Outcome.NOTHING_TO_DO,
        Outcome.BLOCKED,
        Outcome.RELEASED_IN_PART,
        Outcome.UNDONE,
        Outcome.DRY_RUN,
    }
)


@dataclass(frozen=True, slots=True)
class FinishResult:
    """End of a run.

    :param ok: nothing failed, and nothing was refused.
    :param finished: the run has ended; otherwise it continues under the same run key.
    :param unread: lines on consumers' losses by the run, with the command that exports the messages.
    :param refused: the error with which the run ends because of refused logs; "" without such logs, or if the
        run was undone.
    :param errors: why steps of the run failed, unless they were done later, and the rules that validation
        found broken.
    :param wrong_lakes: why lakes can't be used as they are. This fails the run's end as well.
    :param unchanged_since: the earlier run whose report counts for this run, or None if it has its own.
    :param notices: rows of the store's deletions that could not be written; the next run writes them.
    :param not_approved: a sentence on a refusal, on no answer in time, or on an approval that doesn't count.
        "" without these, or if other runs have deleted all planned segments.
    """

    run_key: str
    outcome: Outcome
    ok: bool
    finished: bool
    report_json: str
    report_text: str
    unchanged_since: str | None = None
    unread: tuple[str, ...] = ()
    refused: str = ""
    errors: tuple[str, ...] = ()
    wrong_lakes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    not_approved: str = ""

    @property
    def ending_error(self) -> StorageEngineError | None:
        """Return the error that the run has to end with, or None."""
        return ending_error(self.refused, self.wrong_lakes)

    def raise_refused(self) -> None:
        """Raise the error that the run has to end with, if there is one.

        :raises LogsRefusedError: logs of the run were refused.
        :raises LakeIdentityError: a lake can't be used as it is, such as a copy.
        """
        if (error := self.ending_error) is not None:
            raise error


def finish(store: AnyStore, run_key: str) -> FinishResult:
    """Write the run's report as JSON and text, and close the run if all its steps are done.

    A run that did nothing, for the same reasons as in the last report, writes none.

    :raises RunStateError: there is no such run.
    """
    context = open_context(store)
    run = context.run(run_key)
    with context.errors(run, Step.REPORT):
        notices = record_deletions(context, run)
        in_lakes = read_lakes(context, run)
        report = read_report(context, run, in_lakes)
        since = unchanged_since(context, run, report)
        if report.outcome in _ENDED and run.state is not RunState.FINISHED:
            result = {"result": report.outcome.value, WHY: reasons_digest(report)}
            context.journal.finish_run(run, {**result, SINCE: since} if since else result)
            report = read_report(context, context.run(run_key), in_lakes)
        directory = run_directory(context.store, since or run_key)
        json_path, text_path = directory / REPORT_JSON, directory / REPORT_TEXT
        written = plain = None
        if since is None:
            plain = report_json(report)
            written = json.dumps(plain, indent=2).encode()
            durable.make_dirs(directory)
            durable.write_file(json_path, written)
            durable.write_file(text_path, report_text(report).encode())
        context.journal.save_report(run, _row(report, written, since))
        if plain is not None:
            _write_pages(directory, plain)
    ended = report.outcome in _ENDED
    approval = read_approval(context.journal, run)
    broken = report.validation.failures if report.validation else ()
    rules = ", ".join(check.expectation for check in broken)
    return FinishResult(
        run_key=run_key,
        outcome=report.outcome,
        ok=report.ok,
        finished=ended,
        report_json=str(json_path),
        report_text=str(text_path),
        unchanged_since=since,
        unread=report.unread_lines,
        refused=(
            refused_text(report.run_key, report.root, report.refused)
            if report.refused and report.outcome is not Outcome.UNDONE
            else ""
        ),
        errors=(
            *(Text(f"{step.step}: ", step.error) for step in report.steps if step.error),
            *([f"Validation found {count_text(len(broken), 'rule')} broken: {rules}."] if broken else ()),
        ),
        wrong_lakes=report.wrong_lakes,
        notices=notices,
        not_approved=report.approval if approval.is_refused and not approval.is_moot else "",
    )


def _write_pages(directory: Path, report: Mapping[str, Any]) -> None:
    # Imported only here: templates take a fifth of a second to import and compile.
    from storage_engine.pages.report import report_html
    from storage_engine.pages.summary import summary_html, summary_text

    durable.write_file(directory / PAGE, report_html(report, links=page_links(directory)).encode())
    durable.write_file(directory / SUMMARY_TEXT, summary_text(report).encode())
    durable.write_file(directory / SUMMARY_HTML, summary_html(report).encode())


def _row(report: Report, written: bytes | None, since: str | None) -> ReportRow:
    deleted = (
        0
        if report.outcome is Outcome.UNDONE
        else sum(segment.fate is Fate.DELETED for segment in report.segments)
    )
    ranges = report.validation.ranges if report.validation else ()
    return ReportRow(
        version=REPORT_VERSION,
        outcome=report.outcome.value,
        causes=tuple(dict.fromkeys(trigger.cause.value for trigger in report.triggers)),
        deleted_segments=deleted,
        freed_bytes=report.freed_bytes,
        report=written,
        unchanged_since=since,
        validation=report.validation.overall.value if report.validation else "",
        lost_ranges=sum(row.where is Where.LOST and row.status is Status.FAILURE for row in ranges),
    )


def report_json(report: Report) -> dict[str, Any]:
    return {**to_jsonable(report), "ok": report.ok}
