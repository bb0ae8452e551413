"""When does a run say what an earlier one said? Then it writes no report: that one's answers for it.

Most runs delete nothing, for the reasons of the run before. What each segment is kept for is in their plans.
"""

from __future__ import annotations

import hashlib
import json
from itertools import groupby

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.model.report.validation import Status, ValidationResult
from storage_engine.retention.release.dependents import deleted_dependents
from storage_engine.retention.report.report import Outcome, Report
from storage_engine.retention.store.context import AnyStore, Context, open_context
from storage_engine.retention.store.report_files import REPORT_JSON, run_directory

WHY = "why"
"""Key of a report's result in the journal: the digest of its reasons."""
SINCE = "unchanged_since"
"""Key of a report's result in the journal: the run whose report answers for the run."""


def unchanged_since(context: Context, run: Run, report: Report) -> str | None:
    """Return the key of the earlier run whose report answers for this one; None: it needs one of its own.

    That report is there, gives the same reasons, and this run did nothing and alarms nobody.
    """
    own = context.journal.events(run, Step.REPORT, Phase.RESULT)
    last = own[-1] if own else context.journal.last_result(run.store_id, Step.REPORT)
    if last is None or not is_idle(report) or last.payload.get(WHY) != reasons_digest(report):
        return None
    since = last.payload.get(SINCE) or last.run_key
    there = (run_directory(context.store, since) / REPORT_JSON).is_file()
    return str(since) if since != run.run_key and there else None


def validated_since(store: AnyStore, run_key: str) -> str | None:
    """Return the key of the run that validated the store as it still is; None: it changed, or it failed.

    Both plans delete nothing and are made of the very same files, and this run deleted nothing behind them.
    """
    context = open_context(store)
    run = context.run(run_key)
    # Rows are validated by runs without a plan, which say nothing of this one's.
    last = context.journal.last_result(run.store_id, Step.VALIDATE, of_plan=True)
    if last is None or run.plan is None or run.plan.to_delete or deleted_dependents(context, run):
        return None
    before = context.run(last.run_key)
    overall = from_jsonable(ValidationResult, last.payload["result"]).overall
    same = before.plan is not None and before.plan.decisions == run.plan.decisions
    return last.run_key if same and overall is not Status.FAILURE else None


def is_idle(report: Report) -> bool:
    """Tell whether a run changed nothing and found nothing that a person has to hear of."""
    did = (
        report.archived,
        report.archived_ahead,
        report.hashed_again,
        report.dependents,
        report.validation,
        report.freed_bytes,
    )
    said = (
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
        and not any((*did, *said))
    )


def reasons_digest(report: Report) -> str:
    """Return a digest of why nothing goes: causes, notices, and the reasons of the segments in their order.

    Not of their number: a log that grows is kept for the reasons it was kept for.
    """
    reasons = groupby(report.segments, key=lambda segment: (segment.log, segment.reason.value))
    why = {
        "causes": sorted((trigger.cause.value, trigger.urgency.value) for trigger in report.triggers),
        "request": to_jsonable(report.request),
        "reasons": [key for key, _ in reasons],
        "notices": report.notices,
        "crashed": report.crashed,
        "lineage": report.lineage,
        "policies": (report.archive_mode, report.lag_policy, report.pending_policy),
        "lakes": (report.lake, report.second_lake),
    }
    return hashlib.sha256(json.dumps(why, sort_keys=True).encode()).hexdigest()
