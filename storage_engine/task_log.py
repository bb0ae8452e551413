"""Lines on the results of each step, for its task's log. Details are in XCom and in the report."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from storage_engine.commands import join_texts
from storage_engine.core.wording import UNCHANGED, bytes_text, count_text, duration_text, shorten

if TYPE_CHECKING:
    from storage_engine.lake.gc.snapshot_expiry import LakeMaintenance
    from storage_engine.model.lag import LagSummary
    from storage_engine.model.plan import Plan
    from storage_engine.model.report.usage import RetentionReport
    from storage_engine.model.report.validation import ValidationResult
    from storage_engine.retention.housekeeping.maintaining import MaintainResult
    from storage_engine.retention.steps import (
        ArchiveResult,
        CheckpointResult,
        DependentsResult,
        MonitorResult,
        ReleaseResult,
    )

DRY_RUN = "Dry run: nothing is archived or deleted."

_TALKATIVE = ("great_expectations", "py4j", "pyiceberg")
"""Libraries that log each load and open at INFO, many times in a task."""
_SHOWN = 5
"""The most sentences or names to show. Further ones are only counted."""
_NAME_WIDTH = 60


def quiet_libraries() -> None:
    """Limit the logs of our libraries to warnings and errors, if Airflow's logging doesn't configure them."""
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def together(sentences: Iterable[str]) -> str:
    """Join sentences in one line, each only once. Of many, show the first, and count the others."""
    texts = list(dict.fromkeys(sentences))
    more = [f"and {len(texts) - _SHOWN} more, in XCom and in the report"] if len(texts) > _SHOWN else []
    return join_texts("; ", (*texts[:_SHOWN], *more))


def plan_lines(plan: Plan, *, dry_run: bool) -> Iterator[str]:
    causes = (f"{trigger.cause} ({trigger.urgency}): {trigger.detail}" for trigger in plan.triggers)
    yield f"Cause: {together(causes) or 'none holds'}"
    segments = plan.to_delete
    if segments:
        size = bytes_text(sum(segment.disk_bytes for segment in segments))
        verb = "would be deleted" if dry_run else "to delete"
        ends = ", ".join(f"{log} up to {end}" for log, end in list(plan.new_min_offsets.items())[:_SHOWN])
        yield f"{count_text(len(segments), 'segment')} {verb}, {size}: {ends}"
    kept = Counter(decision.reason.value for decision in plan.decisions if not decision.deletes)
    if kept:
        reasons = ", ".join(f"{count} {reason}" for reason, count in kept.most_common())
        yield f"{count_text(sum(kept.values()), 'segment')} to keep: {reasons}"
    if dry_run:
        yield DRY_RUN
    elif not segments:
        yield "The steps after this one are skipped."


def lag_lines(lag: LagSummary, unit: str, *, dry_run: bool) -> Iterator[str]:
    """Yield lines on consumers' lag.

    :param unit: the word for a part of a topic, such as queue or partition.
    """
    groups, queues = count_text(lag.groups, "group"), count_text(lag.queues, unit)
    lag_text, unknown = count_text(lag.total_lag_messages, "message"), f"{lag.unknown} unknown"
    yield f"{groups}, {queues}: {lag_text} behind, at most {duration_text(lag.max_lag_ms)}; {unknown}"
    if dry_run:
        yield f"{DRY_RUN} The steps after this one are skipped."


def at_risk_text(lag: LagSummary, unit: str) -> str:
    """Return a clause on the groups whose next message is deleted. "" if there is no such group.

    :param unit: the word for a part of a topic, such as queue or partition.
    """
    if not lag.at_risk_groups:
        return ""
    names = [shorten(group, _NAME_WIDTH) for group in lag.at_risk_groups[:_SHOWN]]
    unnamed = len(lag.at_risk_groups) - len(names) + lag.more_at_risk_groups
    more = f" and {count_text(unnamed, 'more group')}" if unnamed else ""
    queues = count_text(lag.at_risk_queues, unit)
    return f"groups that still have to read segments of the plan, in {queues}: {', '.join(names)}{more}"


def archive_lines(done: ArchiveResult) -> Iterator[str]:
    receipts = done.receipts
    if receipts:
        messages = count_text(sum(row.message_count for row in receipts), "message")
        size = bytes_text(sum(row.size_bytes for row in receipts))
        yield f"{count_text(len(receipts), 'segment')} archived and proven, {size}, {messages}: {done.lake}"
    if done.hashed_again:
        yield f"{count_text(len(done.hashed_again), 'segment')} {UNCHANGED}"
    elif not receipts and done.waiver is None:
        yield "Nothing had to be archived: everything is in a lake already, or needs no archive."


def release_lines(result: ReleaseResult) -> Iterator[str]:
    if not result.deleted:
        yield "Nothing was deleted."
        return
    begins = ", ".join(f"{log} begins at {at}" for log, at in list(result.new_min_offsets.items())[:_SHOWN])
    deleted = count_text(len(result.deleted), "segment")
    yield f"{deleted} deleted, {bytes_text(result.freed_bytes)} freed; {begins}"


def dependents_lines(result: DependentsResult) -> Iterator[str]:
    if not result.deleted:
        yield "No queue or index file points only at deleted segments: nothing was deleted."
        return
    files = count_text(sum(result.deleted.values()), "file")
    yield f"{files} deleted, {bytes_text(result.freed_bytes)} freed: {_count_text(result.deleted)}"


def checkpoint_lines(result: CheckpointResult) -> Iterator[str]:
    from storage_engine.retention.hold.hold_text import progress_text

    if result.progress is not None:
        yield f"The broker flushes by itself: {progress_text(result.progress)}"
    else:
        yield f"{result.flushed} files and directories flushed; the checkpoint was read, not changed."


def monitor_lines(result: MonitorResult) -> Iterator[str]:
    from storage_engine.retention.hold.hold_text import hold_text, progress_text

    if result.hold:
        yield hold_text(result.hold)
    levels = (
        f"{disk.path} {disk.used_percent} %" for disk in result.sensed.levels if disk.used_percent is not None
    )
    yield f"Disks: {together(levels) or 'unknown'}"
    if result.sensed.progress is not None:
        yield progress_text(result.sensed.progress)
    if result.archive_lag is not None:
        yield f"Archive: {result.archive_lag.text}"


def usage_lines(report: RetentionReport) -> Iterator[str]:
    size = bytes_text(report.size_bytes)
    yield f"{count_text(report.messages, 'message')}, {size}: {report.usage_path}"
    if report.advice is not None:
        yield "; ".join(filter(None, (report.advice.what, report.advice.advice)))
    for topic in report.topics[:_SHOWN]:
        if topic.advice:
            yield f"{shorten(topic.name, _NAME_WIDTH)}, {100 * topic.share:.1f} % of bytes: {topic.advice}"


def validation_lines(result: ValidationResult) -> Iterator[str]:
    checks = Counter(check.status.value for check in result.checks)
    ranges = Counter(row.where.value for row in result.ranges)
    yield f"{result.overall.value}: checks {_count_text(checks)}; ranges of offsets {_count_text(ranges)}"


def broken_text(result: ValidationResult) -> str:
    """Return the checks that failed or warn, each with an example. "" if no check did."""
    return together(
        f"{check.status.value} {check.expectation}: {', '.join(check.examples[:1])}"
        for check in result.checks
        if check.status.value != "OK"
    )


def maintenance_lines(lakes: Sequence[LakeMaintenance], done: MaintainResult) -> Iterator[str]:
    for lake in lakes:
        tables = "; ".join(table.text for table in lake.tables)
        files = count_text(lake.taken_files, "file")
        yield f"Lake: {tables}; {files}, {bytes_text(lake.taken_bytes)} into its trash"
    reports, jobs = count_text(len(done.report_directories), "report"), len(done.job_directories)
    yield f"Removed: {reports}, files of {count_text(jobs, 'job')}; of the journal: {done.rows}"
    if done.quarantines:
        yield together(done.quarantines)


def _count_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
