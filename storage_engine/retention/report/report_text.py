"""A report as plain text, one fact on a line. Long names and hashes are complete only in the JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from shlex import quote

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text, join_texts
from storage_engine.core.wording import (
    UNCHANGED,
    bytes_text,
    count_text,
    duration_text,
    exact_bytes_text,
    printable,
    shorten,
    store_text,
    time_text,
)
from storage_engine.model.broker.broker_words import Aside
from storage_engine.model.lag import PositionsFrom, QueueLag
from storage_engine.model.plan import Reason, with_spans, without_moments
from storage_engine.retention.hold.hold_text import drift_text, hold_text, positions_text, progress_text
from storage_engine.retention.plan.deciding import pending_text
from storage_engine.retention.proof.refusing import LOGS_SHOWN, log_text
from storage_engine.retention.quarantine.records import QuarantineState
from storage_engine.retention.report.report import Fate, Outcome, Report, SegmentReport

_LAGGING_SHOWN = 10
_NAME_WIDTH = 60


def report_text(report: Report) -> str:
    return join_texts("\n", (Text(line).each(printable) for line in _lines(report))) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield store_text(report.store, report.broker, report.root)
    yield f"Run {report.run_key}: {outcome_text(report.outcome)}"
    if report.approval:
        yield report.approval
    yield from (Text("FAILED ", reason) for reason in report.wrong_lakes)
    for log in report.refused[:LOGS_SHOWN]:
        yield f"FAILED {log_text(log)}"
    if (more := len(report.refused) - LOGS_SHOWN) > 0:
        yield f"FAILED {count_text(more, 'more log')} refused; report.json names all of them"
    for line in (*report.unread_lines, *report.alarms):
        yield Text("WARNING ", line)
    yield f"Began {time_text(report.began_at_ms)}, ended {time_text(report.finished_at_ms) or 'not yet'}"
    yield from report.ran
    yield from _cause(report)
    yield from _section("Hold beside the running broker", _hold(report))
    yield from _section("Archived and proven", _archived_lines(report))
    yield from _section("Archive lag", _archive_lag(report))
    yield from _section("Deleted", _segments(report, Fate.DELETED))
    pending = "Would be deleted" if report.request.dry_run else "To be deleted"
    yield from _section(pending, _segments(report, Fate.PENDING))
    yield from _section("Deleted by no run, and proven", _segments(report, Fate.GONE_PROVEN))
    yield from _section("Missing", _segments(report, Fate.MISSING))
    yield from _section("Kept", _segments(report, Fate.KEPT))
    yield from _section(find_broker(report.broker).words.dependents, _dependents(report))
    yield from _section("Quarantine", _quarantine(report))
    yield from _section("Consumer lag", _lag(report))
    yield from _section("Messages still pending", _pending(report))
    yield from _section("Checkpoint", _checkpoint(report))
    yield from _section("Validation", _validation(report))
    yield from _section("Notices", _notices(report))
    yield from _section("Steps", _steps(report))
    yield ""
    yield f"Lake     {report.lake}"
    if report.second_lake is not None:
        yield f"Second   {report.second_lake}"
    yield f"Journal  {report.journal}"


_QUESTION_BYTES = 4096
"""Greatest length of a question, in UTF-8 bytes. A longer question is cut, with a link to all of it."""


def question_subject(report: Report) -> str:
    """Return the question to a second person in one line: whether a plan's segments may be deleted."""
    going = [row for row in report.segments if row.planned]
    size = bytes_text(sum(row.size_bytes for row in going))
    return f"{report.store}: delete {count_text(len(going), 'segment')}, {size}?"


def question_body(report: Report, why: str, link: str) -> str:
    """Describe a plan to a second person: the segments to delete and why, consumers' losses, and the proofs.

    :param why: why a second person is asked, as a clause.
    """
    going = [row for row in report.segments if row.planned]
    reasons = Counter(row.reason.value for row in going)
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    proven = {(row.log, row.base_offset) for row in report.archived}
    unproven = [row for row in going if (row.log, row.base_offset) not in proven]
    lines = [
        f"{question_subject(report)} Asked because {why}.",
        f"Reasons: {listed}. Plan {report.plan_digest}, run {report.run_key}.",
        *_cause(report),
        *(f"Consumers: {line}" for line in report.unread_lines or ("no group is known to lose a message.",)),
        f"In the lake with proof: {count_text(len(going) - len(unproven), 'segment')}. Lake {report.lake}.",
        *(f"NOT PROVEN: {_label(report, row.log, row.base_offset)}" for row in unproven),
        *(f"Notice: {notice}" for notice in report.notices),
        *(f"{_label(report, row.log, row.base_offset)}: {row.reason.value}, {row.detail}" for row in going),
    ]
    text = "\n\n".join(map(printable, lines))
    more = Text("\n\n… all of it: ", Command("runs", quote(report.run_key)), f", and {link}")
    if len(text.encode()) <= _QUESTION_BYTES:
        return text
    return text.encode()[: _QUESTION_BYTES - len(more.encode())].decode(errors="ignore") + more


def outcome_text(outcome: Outcome) -> str:
    if outcome is Outcome.DRY_RUN:
        return "dry run: nothing was archived or deleted"
    return outcome.value


def _cause(report: Report) -> Iterator[str]:
    if report.plan_digest is None:
        return
    if not report.triggers:
        yield "Cause: none holds"
    for trigger in report.triggers:
        yield f"Cause: {trigger.cause.value} ({trigger.urgency.value}): {trigger.detail}"
    for disk in report.levels:
        level = f"unknown ({disk.error})" if disk.used_percent is None else f"{disk.used_percent} % used"
        yield f"Disk {disk.path}: {level}"
    if report.crashed:
        yield "The broker did not stop cleanly: the store may be read, but not changed."
    if report.request.reason:
        yield f"Asked for because: {report.request.reason}"
    yield f"Plan {report.plan_digest}"
    if report.waiver is not None:
        waiver = report.waiver
        yield f"Receipts waived by {waiver.person} at {time_text(waiver.at_ms)}: {waiver.reason}"


def _hold(report: Report) -> Iterator[str]:
    if report.hold:
        yield hold_text(report.hold)
        yield from (f"WARNING {drift_text(drift)}" for drift in report.hold.disturbances)


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    body = [Text("  ", line) for line in lines]
    if body:
        yield ""
        yield title
        yield from body


def _label(report: Report, log: str, base_offset: int) -> str:
    """Return a segment's name, preceded by its log's name if the report has several logs."""
    return f"{log}/{base_offset:020d}" if log and report.has_several_logs else f"{base_offset:020d}"


def _archived_lines(report: Report) -> Iterator[str]:
    for row in report.archived:
        damage = f", {exact_bytes_text(row.damaged_bytes)} that don't decode" if row.damaged_bytes else ""
        when = "" if row.by_this_run else f", proven before, at {time_text(row.proven_at_ms)}"
        when += f"; {UNCHANGED}" * row.hashed_again
        yield (
            f"{_label(report, row.log, row.base_offset)}  {count_text(row.message_count, 'message')}, "
            f"{exact_bytes_text(row.size_bytes)}{damage}, SHA-256 {_short_hashes(row.sha256)}{when}"
        )
        yield f"  {row.data_file} ({exact_bytes_text(row.data_file_bytes)})"
    deleted = {(row.log, row.base_offset) for row in report.segments if row.fate is Fate.DELETED}
    for log, offset in report.unproven_ids:
        state = "never archived" if (log, offset) in deleted else "not in the lake yet"
        yield f"{_label(report, log, offset)}  {state}"
    if report.archive_mode == "off":
        yield "The store's policy is archive: off; nothing has to be in the lake."


def _archive_lag(report: Report) -> Iterator[str]:
    if report.archived_ahead:
        yield f"{count_text(report.archived_ahead, 'segment')} archived and proven ahead of deletion"
    if report.hashed_again:
        yield f"{count_text(report.hashed_again, 'segment')} {UNCHANGED}"
    if report.archive_lag is not None:
        yield report.archive_lag.text
        yield from report.archive_lag.notes


def _segments(report: Report, fate: Fate) -> Iterator[str]:
    rows = [row for row in report.segments if row.fate is fate]
    for _, group in groupby(
        rows, lambda row: (row.log, row.reason, without_moments(_reason_text(row)), _ground(row))
    ):
        first, *others = group
        name = _label(report, first.log, first.base_offset)
        if others:
            name += f" … {others[-1].base_offset:020d} ({len(others) + 1} segments)"
        reason = with_spans([_reason_text(row) for row in (first, *others)])
        yield f"{name}  {first.reason.value}: {reason}{_ground(first)}"
    if rows and fate is Fate.DELETED:
        begins = "" if report.new_min_offset is None else f"; the log begins at {report.new_min_offset} now"
        yield f"{exact_bytes_text(report.freed_bytes)} freed{begins}"


def _reason_text(row: SegmentReport) -> str:
    """Return the detail of a segment's reason. If the reason is consumer lag, long names lose their middle.

    Names in brokers have up to 255 characters.
    """
    if row.reason is not Reason.LAG_BLOCKED:
        return row.detail
    return re.sub(r"[^\s,;]+", lambda word: shorten(word[0], _NAME_WIDTH), row.detail)


def _ground(row: SegmentReport) -> str:
    return f" [{row.proof}: {_short_hashes(row.proof_detail)}]" if row.proof else ""


def _short_hashes(text: str) -> str:
    """Return enough of each SHA-256 to find it in the JSON report, which has it complete."""
    return re.sub(r"\b([0-9a-f]{16})[0-9a-f]{48}\b", r"\1…", text)


def _dependents(report: Report) -> Iterator[str]:
    counts = Counter(str(file.kind) for file in report.dependents)
    freed = Counter[str]()
    for file in report.dependents:
        freed[file.kind] += file.facts.size_bytes
    for kind, count in sorted(counts.items()):
        yield f"{kind}: {count_text(count, 'file')} deleted, {exact_bytes_text(freed[kind])}"


def _quarantine(report: Report) -> Iterator[str]:
    quarantine = report.quarantine
    if quarantine is None:
        return
    if not quarantine.there:
        yield f"{quarantine.state.value} at {time_text(quarantine.state_at_ms)}: {quarantine.detail}"
        return
    if quarantine.state is QuarantineState.UNDO_ENDED:
        yield f"its undo ended at {time_text(quarantine.state_at_ms)}, unfinished: {quarantine.detail}"
        yield f"the remaining files free nothing until {time_text(quarantine.until_ms)}"
        yield from (str(place.directory) for place in quarantine.places)
        return
    deleted = [row.size_bytes for row in report.segments if row.fate is Fate.DELETED]
    sizes = [*deleted, *(file.facts.size_bytes for file in report.dependents)]
    yield (
        f"{count_text(len(sizes), 'file')}, {exact_bytes_text(sum(sizes))}: frees nothing until "
        f"{time_text(quarantine.until_ms)}, or until space is the cause of a run"
    )
    yield from (str(place.directory) for place in quarantine.places)
    until = ", if run before its broker starts" if find_broker(report.broker).aside is Aside.OUTSIDE else ""
    yield Text(Command("undo", quote(report.run_key)), f" brings all of it back{until}")


def _lag(report: Report) -> Iterator[str]:
    lag = report.lag
    if lag is None:
        return
    unit = find_broker(report.broker).words.queue
    yield (
        f"{count_text(lag.groups, 'group')}, {count_text(lag.queues, unit)}, "
        f"{count_text(lag.total_lag_messages, 'message')} behind, at most {duration_text(lag.max_lag_ms)}; "
        f"{lag.unknown} unknown; policy: {report.lag_policy}"
    )
    if lag.source.positions is PositionsFrom.BROKER:
        yield "positions: as the running broker had them"
    for notice in lag.source.notices:
        yield Text("WARNING ", notice)
    if lag.logs is not None:
        yield f"measured in {count_text(lag.logs, 'log')}; the lag of other logs is unknown"
    if lag.lost_messages:
        yield f"{count_text(lag.lost_messages, 'message')} gone before a group had read them"
    if lag.soonest_loss_ms is not None:
        when = f"in {duration_text(lag.soonest_loss_ms)}" if lag.soonest_loss_ms > 0 else "now"
        yield f"the next loss by age: {when}"
    if lag.worst:
        yield "furthest behind:"
    for row in lag.worst:
        yield f"  {_position(row)}"
    if lag.at_risk_groups:
        names = [shorten(group, _NAME_WIDTH) for group in lag.at_risk_groups[:_LAGGING_SHOWN]]
        unnamed = len(lag.at_risk_groups) - len(names) + lag.more_at_risk_groups
        if unnamed:
            names.append(f"{unnamed} more groups")
        queues = count_text(lag.at_risk_queues, unit)
        yield f"groups that still have to read segments of the plan, in {queues}: {', '.join(names)}"
    shown = {(row.group, row.topic, row.queue_id) for row in lag.worst}
    others = [row for row in report.lagging if (row.group, row.topic, row.queue_id) not in shown]
    for row in others[:_LAGGING_SHOWN]:
        yield _position(row)
    if len(others) > _LAGGING_SHOWN:
        yield f"and {len(others) - _LAGGING_SHOWN} more"


def _notices(report: Report) -> Iterator[str]:
    """Yield the notices. If several steps gave the same notice, it is yielded once, with all their names."""
    steps: dict[str, list[str]] = {}
    for notice in report.notices:
        step, _, rest = notice.partition(": ") if notice.startswith("while ") else ("", "", notice)
        steps.setdefault(rest, []).append(step)
    for rest, named in steps.items():
        names = ", and ".join(step for step in named if step)
        yield f"{names}: {rest}" if names else rest


def _position(row: QueueLag) -> str:
    count = "unknown" if row.lag_messages is None else count_text(row.lag_messages, "message")
    group, topic = shorten(row.group, _NAME_WIDTH), shorten(row.topic, _NAME_WIDTH)
    return f"{group} {topic}/{row.queue_id}: {count} behind"


def _pending(report: Report) -> Iterator[str]:
    pending = [item for item in report.owed if item.count != 0]
    yield from (pending_text(item) for item in pending)
    if pending:
        yield f"state when the plan was made; policy: {report.pending_policy}"


def _checkpoint(report: Report) -> Iterator[str]:
    if report.checkpoint is not None:
        if report.checkpoint.progress is None:
            yield f"{report.checkpoint.flushed} files and directories flushed"
        else:
            yield progress_text(report.checkpoint.progress)
        if report.checkpoint.positions_before is not None:
            yield f"before the flush: {positions_text(report.checkpoint.positions_before)}"
        if report.checkpoint.positions is not None:
            yield positions_text(report.checkpoint.positions)
        for name, value in report.checkpoint.checkpoint.items():
            yield f"{name.removesuffix('_ms')} {time_text(value) if name.endswith('_ms') else value}"


def _validation(report: Report) -> Iterator[str]:
    result = report.validation
    if result is None:
        return
    yield f"{result.overall.value} ({result.scope}, {count_text(len(result.checks), 'check')})"
    for row in result.ranges:
        span = f"{row.log} [{row.start_offset}, {row.end_offset})"
        yield f"{span} {row.where.value} {row.status.value}: {row.detail}"
    for check in result.failures:
        yield f"{check.expectation}: {check.description}: {'; '.join(check.examples)}"
    # Wrong lakes are named above.
    yield from (note for note in result.notes if not note.endswith(report.wrong_lakes))


def _steps(report: Report) -> Iterator[str]:
    for step in report.steps:
        took = f" in {step.took_ms} ms" if step.took_ms is not None else ""
        if step.error:
            # The report's JSON names the error's class, for programs.
            yield Text(f"{step.step}: failed: ", step.error.partition(": ")[2])
        elif step.done:
            yield f"{step.step}: done{took}"
