"""When is a segment deleted? This module decides it for every segment of a commitlog, with its reason. Pure.

MappedFileQueue#deleteExpiredFileByTime: from the oldest on, as long as each has expired (or age is ignored),
never the last file, at most a batch in one pass. Beyond that, never what consume queues don't know of yet,
nothing of a crashed store, and nothing by a clock that can't be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from storage_engine.core.wording import time_text
from storage_engine.model.plan.plan import (
    Decision,
    LogPlan,
    Plan,
    PlanRequest,
    Reason,
    Trigger,
    Urgency,
    check_limits,
    target_reached,
)
from storage_engine.model.store.store import (
    Archivable,
    DiskUsage,
    LogSnapshot,
    Segment,
    SegmentState,
    StoreSnapshot,
)
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.rules.rules import age_reason, delete_hours, expires_at_ms, mtime_ms, triggers
from storage_engine.rocketmq.rules.window import next_window_ms


def plan(
    snapshot: StoreSnapshot,
    config: BrokerConfig,
    now_ms: int,
    zone: ZoneInfo,
    request: PlanRequest,
) -> Plan:
    """Decide what one pass over the commitlog would delete, and why everything else stays.

    Every segment is judged by itself first; then the longest run of segments that may go, from the oldest
    on, is cut to the batch and to the request's target level.

    A segment with an mtime in the future has not expired, whatever fileReservedTime says: either it is held
    on purpose, or a clock jumped, which never permits a deletion. A forced pass ignores age and so this too.

    :param zone: in which deleteWhen is meant.
    :raises BadInputError: a request that makes no sense.
    :raises BrokerConfigError: a deleteWhen that the broker can't parse.
    """
    check_limits(request)
    (log,) = snapshot.logs
    causes, notices = triggers(snapshot, config, now_ms, zone, request)
    judged = _judge_each(snapshot, log, config, now_ms, zone, causes)
    decisions = _cut(judged, snapshot.log_disks, config, request)
    return Plan(
        store_root=snapshot.root,
        decided_at_ms=now_ms,
        triggers=causes,
        logs=(LogPlan(log.name, decisions),),
        notices=notices + _future_notice(log, now_ms),
    )


def archivable(snapshot: StoreSnapshot) -> Archivable:
    """Return the sealed segments that stay as they are, and why others may not be archived yet."""
    (log,) = snapshot.logs
    confirmed = tuple(filter(log.is_confirmed, log.sealed))
    if len(confirmed) == len(log.sealed):
        return Archivable(confirmed)
    return Archivable(confirmed, {log.name: unconfirmed_text(log)})


def unconfirmed_text(log: LogSnapshot) -> str:
    """Say why a segment of a log isn't final that its broker no longer writes to."""
    cut = "may be cut off, and written again, when another becomes the master"
    if not log.confirmed_offset:
        return (
            "a controller chooses the master, and only a running master says what all replicas in sync have: "
            f"the rest {cut}. Archive beside the master while it runs and its replicas are connected, or a "
            "stopped broker's store where its controller answers that it alone is in sync"
        )
    return (
        f"all replicas in sync have the log up to {log.confirmed_offset}: what is behind it {cut}; until "
        "they have it"
    )


def keep_all(
    snapshot: StoreSnapshot,
    now_ms: int,
    causes: tuple[Trigger, ...],
    notices: tuple[str, ...],
    why: str = "this store is archived alone: nothing of it is deleted",
) -> Plan:
    """Plan for a store of which we delete nothing: whatever holds, everything stays."""
    (log,) = snapshot.logs
    decisions = tuple(Decision(segment, Reason.UNKNOWN, why) for segment in log.segments)
    return Plan(
        store_root=snapshot.root,
        decided_at_ms=now_ms,
        triggers=causes,
        logs=(LogPlan(log.name, decisions),),
        notices=notices,
    )


def _judge_each(
    snapshot: StoreSnapshot,
    log: LogSnapshot,
    config: BrokerConfig,
    now_ms: int,
    zone: ZoneInfo,
    causes: Sequence[Trigger],
) -> list[Decision]:
    """Each segment's verdict without regard to the others."""
    forced = any(cause.urgency is Urgency.FORCED for cause in causes)
    last = _last_with_content(log)
    no_cause = "" if causes else _no_cause(config, now_ms, zone)

    def judge(segment: Segment) -> Decision:
        if segment.state is SegmentState.ACTIVE or segment.end_offset > log.max_offset:
            detail = (
                f"the log ends at {log.max_offset}, in this file"
                if segment.base_offset <= log.max_offset
                else f"preallocated behind the log's end at {log.max_offset}"
            )
            return Decision(segment, Reason.ACTIVE, detail)
        if not log.is_confirmed(segment):
            return Decision(segment, Reason.NOT_REPLICATED, unconfirmed_text(log))
        if segment is last:
            detail = (
                f"the last file with content (up to {log.max_offset}): the broker never deletes its last, "
                "and drops empty ones behind it when it starts"
            )
            return Decision(segment, Reason.ACTIVE, detail)
        if snapshot.crashed:
            detail = (
                "the store was not stopped cleanly (its abort file exists): start and stop its broker, which "
                "recovers it, before anything is deleted"
            )
            return Decision(segment, Reason.STORE_CRASHED, detail)
        reason = age_reason(mtime_ms(segment), now_ms, config, forced=forced)
        age = _age_text(segment, config, now_ms, expired=reason is Reason.EXPIRED)
        if not causes:
            return Decision(segment, Reason.NO_CAUSE, f"{no_cause}; {age}")
        if segment.end_offset > log.dispatched_offset:
            detail = f"consume queues reach up to {log.dispatched_offset}: consumers would lose the rest"
            return Decision(segment, Reason.NOT_DISPATCHED, detail)
        return Decision(
            segment, reason, f"age is ignored in a forced pass; {age}" if reason is Reason.FORCED else age
        )

    return [judge(segment) for segment in log.segments]


def _last_with_content(log: LogSnapshot) -> Segment | None:
    """The newest segment below the log's end. It stays even if it is full and sealed: an empty file behind
    it is no last file, as opening the store removes it, and a store without content restarts at offset 0."""
    return max(
        (segment for segment in log.segments if segment.base_offset < log.max_offset),
        key=lambda segment: segment.base_offset,
        default=None,
    )


def _age_text(segment: Segment, config: BrokerConfig, now_ms: int, *, expired: bool) -> str:
    written = f"last written {time_text(mtime_ms(segment))}"
    if mtime_ms(segment) > now_ms:
        return f"{written}, which is in the future: not expired, as no clock says how old it is"
    # Moments, no ages: the same plan a minute later has the same words, and is stored once.
    reserved = f"fileReservedTime {config.file_reserved_time_hours} h"
    when = f"{'expired' if expired else 'expires'} {time_text(expires_at_ms(segment, config))}"
    return f"{written}, {reserved}: {when}"


def _no_cause(config: BrokerConfig, now_ms: int, zone: ZoneInfo) -> str:
    opens_ms = next_window_ms(now_ms, delete_hours(config), zone)
    when = "never comes" if opens_ms is None else f"comes at {time_text(opens_ms, zone)}"
    return (
        f"no cleanup is due: deleteWhen {config.delete_when} {when}, no disk level that is known "
        "asks for one, and no person does"
    )


def _cut(
    judged: Sequence[Decision],
    disks: Sequence[DiskUsage],
    config: BrokerConfig,
    request: PlanRequest,
) -> tuple[Decision, ...]:
    """Cut what may go to a prefix, to the batch and to the target; what falls off gets its reason."""
    batch = config.delete_file_batch_max if request.max_segments is None else request.max_segments
    asked = "deleteFileBatchMax" if request.max_segments is None else "at most, as asked,"
    decisions: list[Decision] = []
    going: list[Segment] = []
    stopped: Decision | None = None
    for decision in judged:
        if decision.deletes:
            reached = (
                target_reached(disks, going, request.target_used_percent, _DISK) if stopped is None else ""
            )
            if stopped is not None:
                decision = _after(stopped, decision)
            elif reached:
                decision = Decision(decision.segment, Reason.TARGET_REACHED, reached)
            elif len(going) >= batch:
                detail = f"{asked} {batch} segments go in one pass"
                decision = Decision(decision.segment, Reason.BATCH_FULL, detail)
            else:
                going.append(decision.segment)
        if not decision.deletes and (stopped is None or stopped.reason in _LIMITS):
            stopped = decision
        decisions.append(decision)
    return tuple(decisions)


def _after(stopped: Decision, decision: Decision) -> Decision:
    """Return what becomes of a segment that may go by itself, behind one that stays."""
    if stopped.reason in _LIMITS:
        return Decision(decision.segment, stopped.reason, stopped.detail)
    detail = f"{stopped.segment.name} before it stays ({stopped.reason.value}); {decision.detail}"
    return Decision(decision.segment, Reason.BEHIND_KEPT, detail)


_LIMITS = frozenset({Reason.TARGET_REACHED, Reason.BATCH_FULL})
_DISK = "commitlog disk"


def _future_notice(log: LogSnapshot, now_ms: int) -> tuple[str, ...]:
    ahead = [segment for segment in log.sealed if mtime_ms(segment) > now_ms]
    if not ahead:
        return ()
    first = ahead[0]
    return (
        f"{len(ahead)} sealed segment(s) were last written in the future, the first is {first.name} at "
        f"{time_text(mtime_ms(first))}: they are held on purpose, or a clock jumped. They don't "
        "expire",
    )
