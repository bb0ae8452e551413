"""Lag of consumer groups and of lakes behind a broker, and the losses of consumer groups by a deletion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from storage_engine.core.wording import bytes_text, count_text, duration_text, exact_bytes_text
from storage_engine.model.settings.policy import Policy
from storage_engine.model.store import Segment


@dataclass(frozen=True, slots=True)
class ArchiveLag:
    """:param segments: number of sealed segments without a proof.
    :param oldest_base_offset: base offset of the segment with the oldest last write; None if there is no such
        segment.
    :param oldest_age_seconds: time since that write; 0 if there is no such segment.
    :param notes: lakes that could not be asked; for them the journal's records were used.
    :param touched: number of archived segments whose files were touched after their proof. They don't count
        as lag.
    """

    measured_at_ms: int
    segments: int
    size_bytes: int
    oldest_base_offset: int | None
    oldest_age_seconds: int
    notes: tuple[str, ...] = ()
    touched: int = 0

    @property
    def text(self) -> str:
        """Return the lag as a sentence."""
        touched = f"; {touched_text(self.touched)}" if self.touched else ""
        if self.oldest_base_offset is None:
            return f"all sealed segments are {'archived' if touched else 'proven in the lake'}{touched}"
        age = duration_text(self.oldest_age_seconds * 1000)
        segments, size = count_text(self.segments, "segment"), exact_bytes_text(self.size_bytes)
        return (
            f"{segments} sealed and not proven, {size}; the oldest, "
            f"{self.oldest_base_offset:020d}, was last written to {age} ago{touched}"
        )

    def alarms(self, policy: Policy) -> tuple[str, ...]:
        """Return a sentence on each threshold of the policy that is exceeded."""
        sentences = []
        most_bytes, most_seconds = policy.archive_lag_alarm_bytes, policy.archive_lag_alarm_seconds
        if most_bytes is not None and self.size_bytes > most_bytes:
            sentences.append(
                f"archive lag: expected at most {bytes_text(most_bytes)} sealed and not proven in the lake, "
                f"found {bytes_text(self.size_bytes)} in {count_text(self.segments, 'segment')}"
            )
        if most_seconds is not None and self.oldest_age_seconds > most_seconds:
            sentences.append(
                f"archive lag: expected every segment in the lake {duration_text(most_seconds * 1000)} after "
                f"its last write, found {self.oldest_base_offset:020d} without a proof after "
                f"{duration_text(self.oldest_age_seconds * 1000)}"
            )
        return tuple(sentences)


def touched_text(count: int) -> str:
    """Return a clause on how many archived segments were touched after their proof, as by a chmod or a hard
    link.
    """
    verb = "was" if count == 1 else "were"
    return f"{count_text(count, 'archived segment')} {verb} touched since, to be hashed again"


def archive_lag_of(
    unproven: Iterable[Segment], now_ms: int, notes: tuple[str, ...] = (), touched: int = 0
) -> ArchiveLag:
    """Sum up the sealed segments that no lake proves.

    :param touched: number of further segments that a lake has, but whose files were touched after their
        proof.
    """
    segments = list(unproven)
    oldest = min(segments, key=lambda segment: segment.mtime_ns, default=None)
    age_ms = 0 if oldest is None else now_ms - oldest.mtime_ns // 1_000_000
    return ArchiveLag(
        measured_at_ms=now_ms,
        segments=len(segments),
        size_bytes=sum(segment.facts.size_bytes for segment in segments),
        oldest_base_offset=None if oldest is None else oldest.base_offset,
        oldest_age_seconds=max(0, age_ms // 1000),
        notes=notes,
        touched=touched,
    )


class PositionsFrom(StrEnum):
    FILES = "files"
    """Positions in the broker's files: the only source while the broker is stopped."""
    BROKER = "broker"
    """Positions that the running broker reported."""
    NOBODY = "nobody"
    """There are no positions: the broker doesn't say who consumes."""


@dataclass(frozen=True, slots=True)
class LagSource:
    """Source of groups' positions.

    :param written_at_ms: when the files with the positions were last written, if a running broker keeps
        writing them. None if the running broker itself reported the positions, or the broker is stopped.
    :param notices: notices about the positions for a person.
    """

    positions: PositionsFrom = PositionsFrom.FILES
    written_at_ms: int | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueLag:
    """One group's position in one queue.

    :param committed_offset: the group's next queue offset; None when it never committed (unknown, not zero).
    :param min_offset: first queue offset that is still readable.
    :param max_offset: queue offset behind the last message.
    :param lag_messages: max_offset - committed_offset; None when unknown.
    :param lag_ms: store time of the queue's newest message, minus the store time of the group's next message;
        0 when caught up; None when unknown.
    :param next_physical_offset: commitlog offset of the group's next message; None when caught up or unknown.
    :param next_segment_base_offset: base offset of the segment with the group's next message; None when
        caught up or unknown.
    :param at_risk: whether the plan deletes the segment with the group's next message. If that message is
        unknown, the group may need the queue's oldest readable message, so that message counts instead.
    :param lost_messages: messages the group can no longer read (min_offset - committed_offset, ≥ 0).
    :param time_to_loss_ms: time until the segment with the group's next message may be deleted by age; 0 when
        it may be deleted now; None when caught up or unknown.
    :param log: the log with the queue's messages; None if not given, as in tables of older versions.
    :param lag_bytes: bytes of the log from the group's next message on; None if unknown, or if the log has
        several queues.
    """

    group: str
    topic: str
    queue_id: int
    committed_offset: int | None
    min_offset: int
    max_offset: int
    lag_messages: int | None
    lag_ms: int | None
    next_physical_offset: int | None
    next_segment_base_offset: int | None
    at_risk: bool
    lost_messages: int
    time_to_loss_ms: int | None
    log: str | None = None
    lag_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One consumer group in all its queues.

    :param lag_messages: messages that the group has not read, in the queues where its position is known.
    :param unknown_queues: number of queues where its position is not known.
    :param first_unread_offset: physical offset of the group's first unread message; None if the group has
        read all messages.
    :param time_to_loss_ms: time until that message may be deleted by age; None if there is no such message,
        or if the time is unknown.
    """

    group: str
    lag_messages: int
    unknown_queues: int
    first_unread_offset: int | None
    time_to_loss_ms: int | None


@dataclass(frozen=True, slots=True)
class UnreadMessages:
    """Messages of a topic that a group has not read, and that no broker has after a deletion.

    :param messages: number of messages in queues where the group's position is known; None if it is known in
        no queue, so that the group may need any message there.
    :param queues: number of the topic's queues with such messages.
    :param from_ms: store timestamp of the first such message; None if unknown.
    """

    group: str
    topic: str
    messages: int | None
    queues: int
    from_ms: int | None


@dataclass(frozen=True, slots=True)
class Unread:
    """Messages that consumers lose by a deletion, in a bounded number of rows.

    :param rows: rows with the most messages come first, rows with an unknown number last.
    :param more: number of further rows that were left out.
    :param error: why the losses are not known; "" if they are known.
    :param notices: notices about the groups' positions for a person.
    :param shielded: unread messages that the broker has lost already, because another program deleted them.
        Only the store's shield has them.
    :param shielded_error: why the ``shielded`` messages are not all known; "" if all are known.
    :param logs: the logs whose losses were measured; None means all logs that lose segments.
    """

    rows: tuple[UnreadMessages, ...] = ()
    more: int = 0
    error: str = ""
    notices: tuple[str, ...] = ()
    shielded: tuple[UnreadMessages, ...] = ()
    shielded_error: str = ""
    logs: tuple[str, ...] | None = None

    def with_errors(self, errors: Sequence[str]) -> Unread:
        """Return the same losses, with further reasons in ``error``."""
        return replace(self, error="; ".join([*errors, *([self.error] if self.error else [])]))

    def logs_beyond(self, new_min_offsets: Mapping[str, int]) -> dict[str, int]:
        """Return the logs whose lag was not measured, each with its start offset after the deletion."""
        measured = frozenset(new_min_offsets if self.logs is None else self.logs)
        return {log: offset for log, offset in new_min_offsets.items() if log not in measured}


@dataclass(frozen=True, slots=True)
class LagSummary:
    """Lag for XCom and the report's head. A summary stays small, whatever the number of queues.

    :param unknown: number of unknown positions of groups in queues.
    :param at_risk_groups: the first groups, by name, with unread messages in segments that the plan deletes.
    :param lost_messages: messages that groups can no longer read, over all groups.
    :param soonest_loss_ms: time until the first unread message of any group may be deleted; None if there is
        no unread message, or if the time is unknown.
    :param worst: the queues and groups that are furthest behind, in messages.
    :param logs: number of measured logs; None means all logs of the store. The journal has their names.
    """

    groups: int
    queues: int
    total_lag_messages: int
    max_lag_ms: int
    unknown: int
    at_risk_groups: tuple[str, ...]
    at_risk_queues: int
    more_at_risk_groups: int = 0
    lost_messages: int = 0
    soonest_loss_ms: int | None = None
    worst: tuple[QueueLag, ...] = ()
    source: LagSource = field(default_factory=LagSource)
    logs: int | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """Measured lag of a store's consumers.

    :param at_risk: rows of groups that still have to read messages in segments that the plan deletes. Of each
        log, the row that decides what the lag policy keeps is always among them.
    :param logs: the measured logs; None means all logs of the store.
    """

    summary: LagSummary
    at_risk: tuple[QueueLag, ...]
    logs: tuple[str, ...] | None = None

    @property
    def measured(self) -> frozenset[str] | None:
        """Return the logs whose lag is known. None means all logs of the store.

        If ``logs`` and the summary's number of logs differ, no log counts as known.
        """
        if self.summary.logs is None and self.logs is None:
            return None
        names = frozenset(self.logs or ())
        return names if len(names) == self.summary.logs else frozenset()
