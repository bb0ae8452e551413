"""Decisions on a store's segments at one moment. Every file that the cleanup depends on is read.

A segment that was written too recently stays, whoever asks for its deletion and however full a disk is.
Broken queues or indexes of one log don't affect another log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.long_work import no_collection
from storage_engine.core.wording import count_text, time_text
from storage_engine.exceptions import BadInputError, FileGoneError
from storage_engine.model.broker.broker_store import BrokerStore, Pending, PendingKind, course_of
from storage_engine.model.disk import DiskUsage
from storage_engine.model.lag import Unread
from storage_engine.model.plan import Decision, DependentFile, LogPlan, Plan, PlanRequest, Reason
from storage_engine.model.settings.policy import LagPolicy, PendingPolicy, Policy
from storage_engine.model.store import Segment, SegmentId, StoreSnapshot
from storage_engine.retention.lag.unread_losses import find_unread
from storage_engine.retention.proof.refusing import refuse_in_plan
from storage_engine.retention.store.broker_answers import (
    list_dependents,
    propose,
    take_checkpoint,
    take_snapshot,
)
from storage_engine.retention.store.brokers import check_undo_settings
from storage_engine.retention.store.managed_store import ManagedStore

_NAMES = {
    PendingKind.DELAYED: "delayed message",
    PendingKind.TIMER: "timer message",
    PendingKind.HALF: "undecided half message",
}


def apply_pending_policy(plan: Plan, pending: Iterable[Pending], policy: PendingPolicy) -> Plan:
    """Under ``PendingPolicy.BLOCK``, cut each log of a plan before the first segment with a pending message.

    If it is unknown where messages of a kind are, the whole log stays, because any segment may have some.
    """
    if policy is not PendingPolicy.BLOCK:
        return plan
    # If no log has this name, the messages may be in any log.
    names = plan.log_names
    pending = [item if item.log in names else replace(item, log=None) for item in pending]
    return plan.each_log(lambda log: _keep_pending(log, pending))


def _keep_pending(log: LogPlan, pending: Sequence[Pending]) -> Sequence[Decision]:
    texts: dict[int, list[str]] = {}
    for item in pending:
        if (segment := _first_affected(log, item)) is not None:
            texts.setdefault(segment.base_offset, []).append(pending_text(item))
    if not texts:
        return log.decisions
    kept_from = min(texts)
    return log.kept(Reason.PENDING_BLOCKED, "; ".join(texts[kept_from]), from_offset=kept_from)


def pending_notices(plan: Plan, pending: Sequence[Pending], policy: PendingPolicy) -> tuple[str, ...]:
    """Return notices on pending messages in the segments to delete, and on pending messages already lost.

    :param plan: the plan, already cut by :func:`apply_pending_policy`.
    """
    if policy is PendingPolicy.IGNORE:
        return ()
    affected = [
        f"{pending_text(item)}: those in the plan's segments, from {segment.name} on, will not be "
        f"delivered{_effect_text(item)}"
        for item in pending
        for log in plan.logs
        if item.error == "" and (segment := _first_affected(log, item))
    ]
    unknown = [pending_text(item) for item in pending if item.error and plan.to_delete]
    lost = [
        f"{_amount_text(item, item.lost)} that the broker still waits for were in deleted segments"
        f"{_effect_text(item)}"
        for item in pending
        if item.lost
    ]
    return (*affected, *unknown, *lost)


def pending_text(item: Pending) -> str:
    """Return a text on the number of pending messages, the first offset, and until when they are due."""
    if item.count is None:
        kind = _NAMES[item.kind]
        return f"whether {kind}s are pending is unknown, so any segment may hold one: {item.error}"
    if item.first_offset is None:
        return f"no {_NAMES[item.kind]} is pending"
    text = f"{_amount_text(item, item.count)} pending, the first at offset {item.first_offset}"
    if item.last_due_ms is not None:
        text += f", due until {time_text(item.last_due_ms)}"
    return text


def _first_affected(log: LogPlan, item: Pending) -> Segment | None:
    """Return a log's first segment to delete that has, or may have, a pending message."""
    if item.log not in (None, log.log):
        return None
    first = -1 if item.count is None else item.first_offset
    return next((row for row in log.to_delete if first is not None and first < row.end_offset), None)


def _amount_text(item: Pending, count: int) -> str:
    return count_text(count, _NAMES[item.kind])


def _effect_text(item: Pending) -> str:
    return f"; {item.consequence}" if item.consequence else ""


_NAMED: Final = 3
"""Number of unreadable files that a notice names."""
Unreadable = dict[str, BadInputError | FileGoneError | OSError]
"""Name of a log → why its dependents are unknown."""


def find_dependents(
    broker: BrokerStore, snapshot: StoreSnapshot, min_offsets: Mapping[str, int]
) -> tuple[tuple[DependentFile, ...], Unreadable]:
    """Find the files that point only below these offsets, and the logs whose files can't be found.

    :param min_offsets: name of a log → where it will begin.
    """
    if not min_offsets:
        return (), {}
    try:
        return list_dependents(broker, snapshot, min_offsets), {}
    except (BadInputError, FileGoneError, OSError) as error:
        unreadable = _find_unreadable(broker, snapshot, min_offsets, error)
        if not unreadable:
            raise
    readable = {log: offset for log, offset in min_offsets.items() if log not in unreadable}
    dependents, more = find_dependents(broker, snapshot, readable)
    return dependents, {**unreadable, **more}


def unread_dependents_notices(broker: BrokerStore) -> tuple[str, ...]:
    """Return a notice that names the dependents that stay because they can't be read."""
    unread = [] if broker.dependents is None else [*map(str, broker.dependents.unread)]
    if not unread:
        return ()
    more = f", and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
    return (f"dependents that can't be read stay: {'; '.join(unread[:_NAMED])}{more}",)


def _find_unreadable(
    broker: BrokerStore,
    snapshot: StoreSnapshot,
    min_offsets: Mapping[str, int],
    error: BadInputError | FileGoneError | OSError,
) -> Unreadable:
    """Return the logs whose dependents can't be found, each with its error.

    :param error: the fault that occurred when all logs were read together.
    """
    if len(min_offsets) == 1:
        return dict.fromkeys(min_offsets, error)
    unreadable: Unreadable = {}
    for log, offset in min_offsets.items():
        try:
            list_dependents(broker, snapshot, {log: offset})
        except (BadInputError, FileGoneError, OSError) as of_log:
            unreadable[log] = of_log
    return unreadable


def with_disk_levels(snapshot: StoreSnapshot, used_percents: Mapping[str, int]) -> StoreSnapshot:
    """Return the snapshot with other disk levels.

    :param used_percents: path of a log or of its dependents → whole percent. Other paths keep their level.
    :raises BadInputError: a path isn't one of the store's, or a level is outside 0 to 100.
    """
    levels = {os.path.normpath(path): percent for path, percent in used_percents.items()}
    paths = dict.fromkeys(os.path.normpath(disk.path) for disk in snapshot.disks)
    for path, percent in levels.items():
        if path not in paths:
            raise BadInputError(
                f"disk level of {path}: expected one of the store's paths {', '.join(paths)}, found "
                "another path."
            )
        if not 0 <= percent <= 100:
            raise BadInputError(
                f"disk level of {path}: expected 0 to 100 percent, found {percent}. Nothing was "
                "changed. Correct it."
            )

    def at_level(disk: DiskUsage) -> DiskUsage:
        percent = levels.get(os.path.normpath(disk.path))
        if percent is None:
            return disk
        usable = None if disk.total_bytes is None else disk.total_bytes * (100 - percent) // 100
        return replace(disk, used_percent=percent, usable_bytes=usable, error="")

    log_disks = tuple(map(at_level, snapshot.log_disks))
    return replace(snapshot, log_disks=log_disks, dependents_disk=at_level(snapshot.dependents_disk))


_NOTHING: Mapping[SegmentId, int] = {}


def apply_minimum_retention(
    plan: Plan, hours: int | None, now_ms: int, sealed_ms: Mapping[SegmentId, int] = _NOTHING
) -> Plan:
    """Cut each log of a plan before the first segment whose last write is less than ``hours`` ago.

    Only the broker's last write counts, not a time that a hold has set on the file. A time that another
    program has set never makes a segment older than its messages. A write in the future has no age.

    :param hours: minimum age in hours. None leaves the plan as it is.
    :param sealed_ms: segment → time of its last message, if it is known.
    """
    return plan if hours is None else plan.each_log(lambda log: _keep_young(log, hours, now_ms, sealed_ms))


def _keep_young(log: LogPlan, hours: int, now_ms: int, sealed_ms: Mapping[SegmentId, int]) -> list[Decision]:
    first: Segment | None = None
    decisions = []
    for decision in log.decisions:
        if decision.deletes:
            sealed = sealed_ms.get(decision.segment.id, 0)
            # in milliseconds, rounded up
            written_ms = max(-(-decision.segment.mtime_ns // 1_000_000), sealed)
            if now_ms < written_ms + hours * HOUR_MS:
                first = first or decision.segment
                source = ", by its messages" if written_ms == sealed else ""
                detail = _young_text(decision, hours, written_ms, source)
                decision = Decision(decision.segment, Reason.MINIMUM_RETENTION, detail)
            elif first is not None:
                detail = f"{first.name} before it stays ({Reason.MINIMUM_RETENTION.value}); {decision.detail}"
                decision = Decision(decision.segment, Reason.BEHIND_KEPT, detail)
        decisions.append(decision)
    return decisions


def _young_text(decision: Decision, hours: int, written_ms: int, source: str) -> str:
    # The text has times and no ages, so that the same plan a minute later is equal and is stored once.
    return (
        f"last written {time_text(written_ms)}{source}, minimum_retention_hours {hours}: nothing deletes it "
        f"before {time_text(written_ms + hours * HOUR_MS)}; without that: {decision.detail}"
    )


HoldBack = Callable[[Plan], Plan]
"""Returns the plan with the same or fewer deletions."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan and the facts that it was decided from.

    :param dependents: the files that would be deleted after the plan's segments.
    :param checkpoint: the values of the broker's checkpoint by name.
    :param pending: messages that the broker still has to deliver or to decide; empty under the policy IGNORE.
    :param unread: consumers' losses from the plan; empty if the lag policy ignores them or keeps the
        segments.
    """

    snapshot: StoreSnapshot
    plan: Plan
    dependents: tuple[DependentFile, ...]
    checkpoint: Mapping[str, int]
    pending: tuple[Pending, ...]
    unread: Unread

    @property
    def disks(self) -> tuple[DiskUsage, ...]:
        return self.snapshot.disks


@no_collection()
def decide(
    broker: BrokerStore,
    request: PlanRequest,
    now_ms: int,
    used_percents: Mapping[str, int] | None = None,
    *,
    kind: str,
    policy: Policy,
    hold_back: HoldBack | None = None,
    take: Callable[[BrokerStore, int, str], StoreSnapshot] = take_snapshot,
) -> Decided:
    """Decide which segments are deleted and why. Reads only.

    The plan doesn't need the dependents and the checkpoint. They are read so that faults in them are reported
    while every segment is still there. Dependents that can't be read stay if the broker can leave them out.
    Otherwise their log is refused, or the whole call fails if there is no other log.

    :param used_percents: levels to assume, by path. Other disks are measured.
    :param hold_back: cuts the plan once more, for example before messages that consumers still have to read.
    :param take: takes the snapshot. A caller that only looks passes ``take_glance``.
    :raises BadInputError: the store can't be planned or cleaned up, or a path isn't on one of its disks.
    """
    snapshot = with_disk_levels(take(broker, now_ms, kind), used_percents or {})
    plan = propose(broker, snapshot, now_ms, request)
    pending = pending_by(broker, snapshot, policy.pending_policy)
    plan = cut_by_policy(plan, pending, policy, now_ms, sealed_by(broker, snapshot, policy))
    plan = replace(plan, notices=plan.notices + pending_notices(plan, pending, policy.pending_policy))
    plan = plan if hold_back is None else hold_back(plan)
    dependents, unreadable = find_dependents(broker, snapshot, plan.new_min_offsets)
    if unreadable and unreadable.keys() == plan.new_min_offsets.keys():
        raise next(iter(unreadable.values()))
    plan = refuse_in_plan(plan, unreadable)
    stay_notices = unread_dependents_notices(broker)
    # Under the policy BLOCK, segments with unread messages stay, so consumers lose nothing by the plan.
    min_offsets = plan.new_min_offsets if policy.lag_policy is LagPolicy.WARN else {}
    unread = find_unread(broker, snapshot, min_offsets, policy.lag_policy)
    checkpoint, no_checkpoint = take_checkpoint(broker)
    plan = replace(plan, notices=(*plan.notices, *stay_notices, *unread.notices, *no_checkpoint))
    return Decided(snapshot, plan, dependents, checkpoint, pending, unread)


def cut_by_policy(
    plan: Plan, pending: Iterable[Pending], policy: Policy, now_ms: int, sealed_ms: Mapping[SegmentId, int]
) -> Plan:
    """Cut a broker's plan before the first segment that the store's policy keeps.

    :param pending: the result of :func:`pending_by`.
    :param sealed_ms: the result of :func:`sealed_by`.
    """
    plan = apply_minimum_retention(plan, policy.minimum_retention_hours, now_ms, sealed_ms)
    return apply_pending_policy(plan, pending, policy.pending_policy)


def sealed_by(broker: BrokerStore, snapshot: StoreSnapshot, policy: Policy) -> Mapping[SegmentId, int]:
    """Return the time of each segment's last message. Without a minimum retention nothing is read."""
    return {} if policy.minimum_retention_hours is None else course_of(broker).sealed_at_ms(snapshot)


def pending_by(
    broker: BrokerStore, snapshot: StoreSnapshot, pending_policy: PendingPolicy
) -> tuple[Pending, ...]:
    """Return the messages that a broker still has to deliver or to decide; none under the policy IGNORE."""
    if pending_policy is PendingPolicy.IGNORE:
        return ()
    if broker.consumers is not None:
        return broker.consumers.pending(snapshot)
    reason = "the broker doesn't say what it still has to deliver"
    # Under WARN, each plan would have the same warning.
    kinds = PendingKind if pending_policy is PendingPolicy.BLOCK else ()
    return tuple(Pending(kind, None, error=reason) for kind in kinds)


def check_quarantine(store: ManagedStore, data_paths: tuple[Path, ...], decided: Decided) -> None:
    """Make sure that a plan's files can be set aside, if the policy requires it. Changes nothing.

    :raises BrokerPackageError: a file is outside of the store; nothing was deleted.
    :raises BadInputError: a directory's file system has no place for a quarantine.
    """
    if store.policy.undo_window_hours is None:
        return
    from storage_engine.retention.quarantine.places import choose_places

    check_undo_settings(store)
    segment_files = (file for segment in decided.plan.to_delete for file in segment.files)
    files = (*segment_files, *(file.facts for file in decided.dependents))
    choose_places(store, data_paths, "", "", (Path(facts.path) for facts in files))
