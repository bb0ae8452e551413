"""Findings on disks, growth and the broker's rules: when segments are deleted, and when a disk is full.

The figures come through the broker's contract. No segment is read as a whole.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.core.wording import bytes_text, count_text, duration_text, reason_text, shorten, time_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.broker.broker_store import BrokerStore, Pending, consumers_of, course_of, hold_of
from storage_engine.model.disk import fills_in_ms, room_of_disks
from storage_engine.model.hold import HoldStatus
from storage_engine.model.lag import Unread, UnreadMessages, touched_text
from storage_engine.model.plan import Cause, PlanRequest, Reason, Urgency
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short, reason_of
from storage_engine.model.settings.policy import PendingPolicy
from storage_engine.model.store import Archivable, LogSnapshot, Segment, SegmentId, StoreSnapshot
from storage_engine.retention.plan.deciding import pending_by, with_disk_levels
from storage_engine.retention.store.broker_answers import propose, take_archivable, take_glance, take_triggers

LEAST_SPAN_MS = HOUR_MS
"""Least time that samples have to cover, in milliseconds. A shorter time doesn't show a day's growth."""
LEAST_SPREAD_MS = 6 * HOUR_MS
"""Least time between oldest and newest sealed segment, in milliseconds. A burst shows no day's growth."""


class GrowthFrom(StrEnum):
    SAMPLES = "samples"
    SEGMENTS = "segments"


@dataclass(frozen=True, slots=True)
class Growth:
    """How fast the logs grow."""

    bytes_per_day: int
    source: GrowthFrom


def growth_of(samples: Sequence[tuple[int, int]], logs: Sequence[LogSnapshot], now_ms: int) -> Growth | None:
    """Return how fast the logs grew in the last day, or None if there is too little data.

    :param samples: (moment, sum of the logs' max offsets), oldest first.
    """
    by_samples = _growth_by_samples([row for row in samples if now_ms - DAY_MS <= row[0] <= now_ms])
    if by_samples is not None:
        return Growth(by_samples, GrowthFrom.SAMPLES)
    growths = [grown for log in logs if (grown := _growth_by_segments(log, now_ms)) is not None]
    return Growth(sum(growths), GrowthFrom.SEGMENTS) if growths else None


def _growth_by_samples(samples: Sequence[tuple[int, int]]) -> int | None:
    if len(samples) < 2 or samples[-1][0] - samples[0][0] < LEAST_SPAN_MS:
        return None
    grown = samples[-1][1] - samples[0][1]
    return None if grown < 0 else grown * DAY_MS // (samples[-1][0] - samples[0][0])


def _growth_by_segments(log: LogSnapshot, now_ms: int) -> int | None:
    """Return a log's growth in bytes a day, by the sizes of its last segments.

    The sum begins after the newest sealed segment that is at least a day old. If all are younger, it begins
    after the oldest one.

    :return: None if the sealed segments cover too short a time.
    """
    sealed = [segment for segment in log.sealed if segment.mtime_ns // 1_000_000 < now_ms]
    if not sealed or (sealed[-1].mtime_ns - sealed[0].mtime_ns) // 1_000_000 < LEAST_SPREAD_MS:
        return None
    before = [segment for segment in sealed if segment.mtime_ns // 1_000_000 <= now_ms - DAY_MS]
    start = before[-1] if before else sealed[0]
    newer = [segment for segment in log.segments if segment.base_offset > start.base_offset]
    grown = 0
    for segment in newer:
        if segment.end is None:
            grown += max(0, min(segment.end_offset, log.max_offset) - segment.base_offset)
        else:
            grown += segment.disk_bytes
    return grown * DAY_MS // max(1, now_ms - start.mtime_ns // 1_000_000)


@dataclass(frozen=True, slots=True)
class Levels:
    """Lowest whole percentages of a disk's use at which a kind of deletion begins, or None if it never does.

    :param cleans_percent: from this level on the broker deletes expired segments, at any hour.
    :param forces_percent: from this level on the broker deletes the oldest segments, whatever their age.
    :param urges_percent: from this level on the broker would delete at any age if its settings allowed it.
    """

    cleans_percent: int | None = None
    forces_percent: int | None = None
    urges_percent: int | None = None


def levels_of(broker: BrokerStore, snapshot: StoreSnapshot, now_ms: int) -> Levels:
    """Find the levels: ask a broker's rules about each percentage from 0 to 100 on all of its disks."""
    paths = [disk.path for disk in snapshot.disks]
    levels: dict[str, int] = {}
    for percent in range(101):
        assumed = with_disk_levels(snapshot, dict.fromkeys(paths, percent))
        causes, _ = take_triggers(broker, assumed, now_ms, PlanRequest())
        for cause in causes:
            if cause.cause is Cause.SPACE_FULL:
                levels.setdefault("cleans", percent)
                if cause.urgency is Urgency.FORCED:
                    levels.setdefault("forces", percent)
                if cause.at_once:
                    levels.setdefault("urges", percent)
    return Levels(levels.get("cleans"), levels.get("forces"), levels.get("urges"))


HORIZONS_MS = (DAY_MS, 3 * DAY_MS)
"""Spans in milliseconds. Consumers' losses are shown for the first span in which a segment is deleted."""


_FAR_MS = 365 * DAY_MS
"""Longest forecast, in milliseconds: the growth of one day says nothing about a disk after a year."""


@dataclass(frozen=True)
class Figures:
    """Figures that a look at an open store measured.

    :param full_percent: level above which the broker refuses messages, or None if there is none.
    :param deletes_at_ms: sealed segment → when the broker's rules may delete it by age, or None if never.
    :param going: segments that the broker's rules delete at this moment.
    :param replicas_elsewhere: number of expired segments that stay because other nodes have replicas.
    :param leaving: segments that are deleted within ``leaves_in_ms``, one of :data:`HORIZONS_MS`.
    :param unread: consumers' losses by the deletion of ``leaving``.
    :param archivable: segments that may be archived by now.
    :param hold: status of the hold on a running broker's store, or None if no broker was named.
    """

    now_ms: int
    snapshot: StoreSnapshot
    full_percent: int | None
    oldest_message_ms: int | None
    growth: Growth | None
    levels: Levels
    deletes_at_ms: Mapping[SegmentId, int | None]
    going: tuple[Segment, ...]
    leaving: tuple[Segment, ...]
    leaves_in_ms: int
    pending: tuple[Pending, ...]
    unread: Unread
    archivable: Archivable
    hold: HoldStatus | None = None
    replicas_elsewhere: int = 0

    @property
    def sealed(self) -> tuple[Segment, ...]:
        return tuple(segment for log in self.snapshot.logs for segment in log.sealed)

    @property
    def log_bytes(self) -> int:
        return sum(segment.disk_bytes for log in self.snapshot.logs for segment in log.segments)

    @cached_property
    def forces_in_ms(self) -> int | None:
        """Return the time until a full disk makes the broker ignore age; None if unknown or never."""
        return self._fills_in_ms(self.levels.forces_percent)

    @cached_property
    def full_in_ms(self) -> int | None:
        """Return the time until the broker refuses messages; None if unknown or never."""
        return self._fills_in_ms(self.full_percent)

    def _fills_in_ms(self, percent: int | None) -> int | None:
        room = None if percent is None else room_of_disks(self.snapshot.log_disks, percent)
        if room is None or self.growth is None:
            return None
        dated = [(at_ms, segment) for segment in self.sealed if (at_ms := self.deletes_at_ms.get(segment.id))]
        leaving = sorted((max(0, at_ms - self.now_ms), segment.disk_bytes) for at_ms, segment in dated)
        kept = [max(at_ms, self.now_ms) - segment.mtime_ns // 1_000_000 for at_ms, segment in dated]
        goes_after_ms = max(kept) if kept and len(kept) == len(self.sealed) else None
        return fills_in_ms(room, self.growth.bytes_per_day, leaving=leaving, goes_after_ms=goes_after_ms)

    @property
    def next_deletion_ms(self) -> int | None:
        """Return when the broker's rules delete next, by age or by level; None if unknown or never."""
        if self.going:
            return self.now_ms
        by_age = [at_ms for at_ms in self.deletes_at_ms.values() if at_ms is not None]
        fills = self.sealed and self.forces_in_ms is not None and self.forces_in_ms < _FAR_MS
        by_space = [self.now_ms + (self.forces_in_ms or 0)] if fills else []
        return min(by_age + by_space, default=None)


def take_figures(
    broker: BrokerStore, kind: str, now_ms: int, samples: Sequence[tuple[int, int]], full_percent: int | None
) -> Figures:
    """Return the figures of an open store.

    :param kind: the broker's name.
    :param samples: (moment, sum of the logs' max offsets), oldest first.
    :raises StorageEngineError: the store can't be read, or isn't sound.
    :raises OSError: a file can't be read.
    """
    snapshot = take_glance(broker, now_ms, kind)
    deletes_at = course_of(broker).deletes_at_ms(snapshot, now_ms)
    plan = propose(broker, snapshot, now_ms, PlanRequest())
    leaving, span_ms = _find_leaving(snapshot, deletes_at, plan.to_delete, now_ms)
    oldest_ms = None
    with suppress(OSError):
        oldest_ms = course_of(broker).oldest_message_ms(snapshot)
    return Figures(
        now_ms=now_ms,
        snapshot=snapshot,
        full_percent=full_percent,
        oldest_message_ms=oldest_ms,
        growth=growth_of(samples, snapshot.logs, now_ms),
        levels=levels_of(broker, snapshot, now_ms),
        deletes_at_ms=deletes_at,
        going=plan.to_delete,
        leaving=leaving,
        leaves_in_ms=span_ms,
        pending=pending_by(broker, snapshot, PendingPolicy.BLOCK),
        unread=_read_unread(broker, snapshot, leaving),
        archivable=take_archivable(broker, snapshot),
        hold=hold_of(broker).status(now_ms) if broker.is_live else None,
        replicas_elsewhere=sum(decision.reason is Reason.REPLICAS_ELSEWHERE for decision in plan.decisions),
    )


def _find_leaving(
    snapshot: StoreSnapshot, deletes_at: Mapping[SegmentId, int | None], going: Sequence[Segment], now_ms: int
) -> tuple[tuple[Segment, ...], int]:
    """Return the segments that are deleted in one of ``HORIZONS_MS``, and this span.

    It is the first span in which segments are deleted. Without such a span, return none and the last span.
    """
    going_ids = {segment.id for segment in going}
    for span_ms in HORIZONS_MS:
        due = {key for key, at_ms in deletes_at.items() if at_ms is not None and at_ms <= now_ms + span_ms}
        leaving_ids = going_ids | due
        sealed = (segment for log in snapshot.logs for segment in log.sealed)
        if segments := tuple(segment for segment in sealed if segment.id in leaving_ids):
            return segments, span_ms
    return (), HORIZONS_MS[-1]


def _read_unread(broker: BrokerStore, snapshot: StoreSnapshot, leaving: Sequence[Segment]) -> Unread:
    ends: dict[str, int] = {}
    for segment in leaving:
        ends[segment.log] = max(ends.get(segment.log, 0), segment.end_offset)
    if not ends:
        return Unread()
    try:
        return consumers_of(broker).unread(snapshot, ends)
    except (StorageEngineError, OSError) as error:
        return Unread(error=reason_text(error))


_FROM = {GrowthFrom.SAMPLES: "by the journal's samples", GrowthFrom.SEGMENTS: "by the times of its segments"}


def growth_text(growth: Growth | None) -> str:
    """Return the clause on how fast a store grows, with the source of the figure."""
    if growth is None:
        return "its growth is unknown: there are no samples over an hour, and no segments sealed 6 h apart"
    if growth.bytes_per_day == 0:
        return f"it didn't grow in the last day, {_FROM[growth.source]}"
    return f"it grows {bytes_text(growth.bytes_per_day)} a day, {_FROM[growth.source]}"


def space_findings(figures: Figures) -> Iterator[Finding]:
    """Yield findings on disks that are full or are filling."""
    disks, levels, full = figures.snapshot.log_disks, figures.levels, figures.full_percent
    for disk in figures.snapshot.disks:
        if disk.used_percent is None:
            advice = "check that it is mounted: a broker may delete segments if a disk's level is unknown"
            yield Finding.warning("disk-unknown", f"the level of a disk is unknown: {disk.error}", advice)
    fullest = max(disks, key=lambda disk: disk.used_percent or -1, default=None)
    used = None if fullest is None else fullest.used_percent
    if fullest is None or used is None:
        return
    text = f"{fullest.path} is {used} % used"
    if full is not None and used > full:
        yield Finding.urgent(
            "disk-full", f"{text}: above {full} % the broker refuses messages", _room(figures)
        )
    elif levels.forces_percent is not None and used >= levels.forces_percent:
        yield Finding.urgent(
            "disk-forces",
            f"{text}: from {levels.forces_percent} % on the broker deletes its oldest segments, read or not",
            _room(figures),
        )
    elif levels.urges_percent is not None and used >= levels.urges_percent and not figures.going:
        yield Finding.urgent(
            "disk-forces",
            f"{text}: no segment has expired, and the broker may not delete others, so the disk goes on "
            "filling",
            "allow it (cleanFileForciblyEnable=true), or add space",
        )
    else:
        yield from _judge_filling(figures, used, text)


def _judge_filling(figures: Figures, used_percent: int, disk_text: str) -> Iterator[Finding]:
    levels, full = figures.levels, figures.full_percent
    begins = [
        (in_ms, percent, text)
        for in_ms, percent, text in (
            (
                figures.forces_in_ms,
                levels.forces_percent,
                "the broker deletes its oldest segments, read or not",
            ),
            (figures.full_in_ms, full, "the broker refuses messages"),
        )
        if in_ms is not None and in_ms < 3 * DAY_MS
    ]
    if begins:
        in_ms, percent, text = min(begins)
        yield Finding(
            Severity.URGENT if in_ms < DAY_MS else Severity.WARNING,
            "disk-fills",
            f"{disk_text}. It will be above {percent} % in {duration_text(in_ms)}, because "
            f"{growth_text(figures.growth)}: then {text}",
            _room(figures),
        )
    elif levels.cleans_percent is not None and used_percent >= levels.cleans_percent:
        yield Finding.warning(
            "disk-cleans",
            f"{disk_text}: from {levels.cleans_percent} % on the broker deletes expired segments at any hour",
            "archive ahead, or add space",
        )


def retention_findings(figures: Figures, age_setting: str) -> Iterator[Finding]:
    """Yield a finding if the disk, at its present growth, has no room for the broker's retention.

    :param age_setting: the broker's setting of how long segments stay, as ``KEY=VALUE``; "" for none.
    """
    kept_ms = _kept_ms(figures)
    level = figures.levels.forces_percent or figures.full_percent
    if kept_ms is None or level is None or figures.growth is None or not age_setting:
        return
    room = room_of_disks(figures.snapshot.log_disks, level)
    needed = figures.growth.bytes_per_day * kept_ms // DAY_MS
    if room is None or needed <= figures.log_bytes + room or figures.growth.bytes_per_day <= 0:
        return
    fits_ms = (figures.log_bytes + room) * DAY_MS // figures.growth.bytes_per_day
    yield Finding.warning(
        "retention-unreachable",
        f"{age_setting} can't be reached: {growth_text(figures.growth)}, and the disk has room for "
        f"{duration_text(fits_ms)} up to {level} %. Then the broker deletes younger segments",
        f"lower {age_setting.partition('=')[0]}, or add {bytes_text(needed - figures.log_bytes - room)}",
    )


def minimum_findings(figures: Figures, minimum_hours: int | None) -> Iterator[Finding]:
    """Yield a finding if the disk has no room for the minimum retention of the store's policy."""
    if minimum_hours is None or figures.growth is None or figures.growth.bytes_per_day <= 0:
        return
    free = room_of_disks(figures.snapshot.log_disks, figures.full_percent or 100)
    needed = figures.growth.bytes_per_day * minimum_hours // 24
    if free is not None and needed > (room := figures.log_bytes + free):
        yield Finding.warning(
            "minimum-retention",
            f"minimum_retention_hours {minimum_hours} needs {bytes_text(needed)}, as "
            f"{growth_text(figures.growth)}; the disk has room for {bytes_text(room)}, and is full before a "
            "segment may be deleted",
            f"lower minimum_retention_hours, or add {bytes_text(needed - room)}",
        )


def _kept_ms(figures: Figures) -> int | None:
    """Return the shortest time from a sealed segment's last write to its deletion, or None if unknown."""
    ages = [
        at_ms - segment.mtime_ns // 1_000_000
        for segment in figures.sealed
        if (at_ms := figures.deletes_at_ms.get(segment.id)) is not None and at_ms > figures.now_ms
    ]
    return min(ages, default=None)


def deletion_text(figures: Figures) -> str:
    """Return the text on when the broker's rules delete next."""
    at_ms = figures.next_deletion_ms
    if figures.going:
        return f"now: {count_text(len(figures.going), 'segment')} may be deleted by the broker's rules"
    if at_ms is None:
        return "nothing, as far as is known" if figures.sealed else "nothing: no segment is sealed"
    by_space = figures.forces_in_ms is not None and at_ms == figures.now_ms + figures.forces_in_ms
    reason = f"about then the disk is above {figures.levels.forces_percent} %" if by_space else "by age"
    return f"the next {time_text(at_ms)} (in {duration_text(at_ms - figures.now_ms)}), {reason}"


def _room(figures: Figures) -> str:
    if figures.going:
        return Text("archive and delete with proof: ", Command("clean"), "; or add space")
    return Text("add space, or delete with proof: ", Command("clean"))


_NAME_WIDTH = 30


def consumer_findings(figures: Figures, unit: str = "queue") -> Iterator[Finding]:
    """Yield findings on the groups that are about to lose messages.

    :param unit: the broker's word for the parts of a topic that have its messages, such as queue.
    """
    severity = Severity.URGENT if figures.leaves_in_ms <= DAY_MS else Severity.WARNING
    unread = figures.unread
    if unread.error:
        # An unknown loss is as urgent as a known one.
        text = f"consumers' losses {_moment(figures)} are unknown: {reason_of(unread.error)}"
        yield Finding(severity, "consumers-unknown", text, Text("look closer: ", Command("lag")))
    if rows := [row for row in unread.rows if row.messages is not None]:
        groups = _count_by_group(rows)
        listed = named_in_short([f"{shorten(name, _NAME_WIDTH)} {count}" for name, count in groups])
        more = f", and in {unread.more} more topics" if unread.more else ""
        yield Finding(
            severity,
            "consumers-lose",
            f"{count_text(len(groups), 'group')} {'loses' if len(groups) == 1 else 'lose'} "
            f"{count_text(sum(count for _, count in groups), 'unread message')} {_moment(figures)}: "
            f"{listed}{more}",
            Text(
                "let the groups catch up, or archive first: then the messages stay readable. Details: ",
                Command("lag"),
            ),
        )
    if unknown := sorted({row.group for row in unread.rows if row.messages is None}):
        yield Finding.warning(
            "consumers-unknown",
            f"in some {unit}s {count_text(len(unknown), 'group')} never committed an offset, and may need "
            f"messages that are deleted {_moment(figures)}: "
            f"{named_in_short([shorten(group, _NAME_WIDTH) for group in unknown])}",
            Text("find out whether these groups are in use: ", Command("lag")),
        )


def _count_by_group(rows: Sequence[UnreadMessages]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.group] = counts.get(row.group, 0) + (row.messages or 0)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _moment(figures: Figures) -> str:
    at_ms = _first_ms(figures.leaving, figures)
    return "at the next cleanup, which is due" if at_ms <= figures.now_ms else f"from {time_text(at_ms)} on"


def _first_ms(segments: Sequence[Segment], figures: Figures) -> int:
    return min(_deletion_times(segments, figures), default=figures.now_ms)


def _deletion_times(segments: Sequence[Segment], figures: Figures) -> list[int]:
    going = {segment.id for segment in figures.going}
    times = [figures.now_ms if row.id in going else figures.deletes_at_ms.get(row.id) for row in segments]
    return [at_ms for at_ms in times if at_ms is not None]


def pending_findings(figures: Figures) -> Iterator[Finding]:
    """Yield findings on messages that the broker still has to deliver or to decide."""
    if unknown := [item for item in figures.pending if item.count is None]:
        kinds = " and ".join(item.kind.value for item in unknown)
        yield Finding.warning(
            "pending-unknown",
            f"it is unknown whether {kinds} messages wait. If they do, they are deleted with their "
            f"segments: {reason_of(unknown[0].error)}",
            "give cleanups --pending-policy block, which keeps all segments",
        )
    waiting = [item for item in figures.pending if item.count and item.first_offset is not None]
    if leaving := [item for item in waiting if _leaves(item, figures)]:
        yield Finding(
            Severity.URGENT if figures.leaves_in_ms <= DAY_MS else Severity.WARNING,
            "pending-lose",
            f"{_pending_text(leaving)} in segments that are deleted {_moment(figures)}"
            f"{_consequences(leaving)}",
            "give cleanups --pending-policy block, which keeps those segments",
        )
    if staying := [item for item in waiting if item not in leaving]:
        due_ms = max((item.last_due_ms for item in staying if item.last_due_ms is not None), default=None)
        due = "" if due_ms is None else f", due until {time_text(due_ms)}"
        yield Finding.note("pending", f"{_pending_text(staying)}{due}")
    if lost := [item for item in figures.pending if item.lost]:
        counts = " and ".join(f"{item.lost} {item.kind.value}" for item in lost)
        text = f"the broker waits for messages whose segments are gone: {counts}{_consequences(lost)}"
        yield Finding.note("pending-lost", text)


def _pending_text(items: Sequence[Pending]) -> str:
    counts = " and ".join(f"{item.count} {item.kind.value}" for item in items)
    is_single = sum(item.count or 0 for item in items) == 1
    return f"{counts} {'message waits' if is_single else 'messages wait'}"


def _leaves(item: Pending, figures: Figures) -> bool:
    first = item.first_offset
    return first is not None and any(
        item.log in (None, segment.log) and first < segment.end_offset for segment in figures.leaving
    )


def _consequences(items: Sequence[Pending]) -> str:
    return "".join(f"; {item.consequence}" for item in items if item.consequence)


def unproven_findings(
    figures: Figures,
    unproven: Sequence[Segment] | None,
    stamped_lakes: Sequence[str],
    *,
    running: bool | None,
    some_unasked: bool = False,
    refused: Collection[str] = (),
    kind_option: str = "",
) -> Iterator[Finding]:
    """Yield findings on sealed segments that no lake proves. A finding says when the broker deletes them.

    :param unproven: segments that no lake proves; None if no lake was named. Then all count as unproven.
    :param stamped_lakes: lakes that the store was archived into, as its own stamp says.
    :param running: whether a broker runs, and so deletes by itself; None if unknown.
    :param some_unasked: a lake couldn't be asked. That lake may prove some of these segments.
    :param refused: logs that can't be archived in their present state.
    :param kind_option: the option with which a lake for this kind of store is made.
    """
    sealed = figures.archivable.segments if unproven is None else tuple(unproven)
    if kept := [segment for segment in sealed if segment.log in refused]:
        logs = list(dict.fromkeys(segment.log for segment in kept))
        yield Finding(
            _urgency(kept, figures, running),
            "unproven-refused",
            f"{count_text(len(kept), 'sealed segment')} of logs that can't be archived as they are, "
            f"{named_in_short(logs)}: {_plural(_span(kept, figures, running), len(kept))}",
            "mend these logs as the other findings here advise, then archive them",
        )
    segments = [segment for segment in sealed if segment.log not in refused]
    if not segments:
        return
    size = bytes_text(sum(segment.disk_bytes for segment in segments))
    subject = f"{count_text(len(segments), 'sealed segment')} ({size})"
    span = _span(segments, figures, running)
    if unproven is None:
        proven = f"are proven in no lake that was named; {span}"
        make_options = f"--lake DIRECTORY{kind_option}" if kind_option else ""
        advice = (
            f"this store was archived before; name its lake: --lake {shlex.quote(stamped_lakes[0])}"
            if stamped_lakes
            else Text("make a lake and archive them: ", Command("init-lake", make_options))
        )
        yield Finding.warning("unproven", f"{subject} {_plural(proven, len(segments))}", advice)
        return
    where = "no lake that could be asked" if some_unasked else "no lake"
    text = _plural(f"are proven in {where}; {span}", len(segments))
    severity = _urgency(segments, figures, running)
    yield Finding(severity, "unproven", f"{subject} {text}", Text("archive them: ", Command("archive")))


def touched_findings(count: int) -> Iterator[Finding]:
    """Yield a finding if files of archived sealed segments were touched after their proof."""
    if count:
        advice = Text(
            "a cleanup hashes them again before it deletes them. To do it now: ", Command("archive")
        )
        yield Finding.note("touched", touched_text(count), advice)


def _urgency(segments: Sequence[Segment], figures: Figures, running: bool | None) -> Severity:
    soon = _first_ms(segments, figures) <= figures.now_ms + DAY_MS and any(
        figures.deletes_at_ms.get(segment.id) is not None or segment in figures.going for segment in segments
    )
    return Severity.URGENT if soon and running is not False else Severity.WARNING


def _plural(text: str, count: int) -> str:
    return text.replace("are ", "is ", 1).replace("them", "it") if count == 1 else text


def _span(segments: Sequence[Segment], figures: Figures, running: bool | None) -> str:
    times = sorted(_deletion_times(segments, figures))
    actor = "its broker, once it runs, deletes them" if running is False else "its broker deletes them"
    if not times:
        never = all(segment.id in figures.deletes_at_ms for segment in segments)
        return "its broker never deletes them for their age" if never else f"{actor} at an unknown hour"
    first, last = (max(at_ms, figures.now_ms) for at_ms in (times[0], times[-1]))
    if last <= figures.now_ms:
        return f"{actor} at any moment"
    begins = "now" if first <= figures.now_ms else time_text(first)
    return f"{actor} {begins}" if first == last else f"{actor} from {begins} to {time_text(last)}"
