"""Simulation of a store over days: its disk fills, and its broker cleans (CleanCommitLogService). Pure.

A pass comes every cleanResourceInterval. Only passes that may decide differently from the one before are
computed. Before such a pass the level reaches another whole percent, a window opens or closes, a segment
expires, the last batch was full, or a new segment makes another one deletable. The rules of the real cleanup
decide why a pass cleans, and which segments it deletes.

RocketMQ's rules also work without a store: for a simulation, and for advice on settings that fit an ingest.
The broker deletes a segment when its last write is fileReservedTime ago; above diskMaxUsedSpaceRatio it does
so at any hour. So the log needs space for three things. They are the messages that come within
fileReservedTime at the busiest time of the day, a further segment that has partly expired, and the messages
that come within a pass.

Kinds of advice, with their numbers:

- ``fits``, ``does-not-fit``: hours (fileReservedTime), level_percent (with all messages of these hours),
  cleans_percent (also with expired messages that wait for the window or for diskMaxUsedSpaceRatio),
  limit_percent (above it the broker deletes whatever the age, or else refuses writes), longest_hours (the
  longest fileReservedTime that fits this disk), disk_bytes (the smallest disk that these hours fit).
- ``quiet-disk``: hours, disk_bytes (the smallest disk on which deletions in the window are enough),
  level_percent.
- ``disk-for-wish``: hours (that a person wishes), disk_bytes, level_percent.
- ``ratio-too-high``: ratio_percent, limit_percent: segments that expire outside the window are deleted too
  late.
- ``force-is-off``: refuses_percent: if these hours don't fit, writes are refused.
- ``window-too-short``: window_bytes (that passes can delete in a day), day_bytes (written in a day).
- ``trace-topic``: topic, size_bytes, share_percent, longest_hours (without it).
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG
from zoneinfo import ZoneInfo

from storage_engine.core.clock import DAY_MS, HOUR_MS, hour_changes_ms, hour_spans_ms
from storage_engine.exceptions import BadInputError, BrokerConfigError, SimulationTooLongError
from storage_engine.model.disk import DiskUsage, percent_rounded_up
from storage_engine.model.plan import PlanRequest, Reason, Urgency
from storage_engine.model.simulation import (
    HOURS_A_DAY,
    LONGEST_HORIZON_MS,
    MOST_SECONDS,
    Advice,
    BrokerRules,
    Course,
    CourseRecord,
    CourseStart,
    Inflow,
    Ingest,
    RuleLevels,
    RuleSetting,
    SegmentRun,
    SettingType,
    condensed,
    ingest_from,
    most_bytes_within,
)
from storage_engine.model.store import LogSnapshot, Segment, StoreSnapshot
from storage_engine.rocketmq import cleanup_rules
from storage_engine.rocketmq.cleanup_rules import (
    DEFAULT_INTERVAL_MS,
    NOTICE_LEVEL_PERCENT,
    accepts_writes,
    age_deletions_ms,
    age_reason,
    delete_hours,
    expires_at_ms,
    expires_ms,
    interval_ms,
    least_used,
    mtime_ms,
    triggers,
)
from storage_engine.rocketmq.format.broker_config import (
    CLEAN_FORCIBLY_PROPERTY,
    MULTI_PATH_SPLITTER,
    WARNING_LEVEL_PROPERTY,
    BrokerConfig,
    load_broker_config,
)
from storage_engine.rocketmq.format.layout import StoreLayout

SHARE_UNIT = 1_000_000
"""Shares are counted in millionths of the log's size."""
_PATH = "the disk"
_NEVER = 1 << 62
_STEPS_A_LOOK = 2_048
"""Number of steps after which the processor time is checked."""
_INTERVAL = "cleanResourceInterval"
_MOST_INTERVAL_MS = DAY_MS

SETTINGS = (
    RuleSetting(
        "fileReservedTime",
        SettingType.INT,
        "Messages stay at least so long, unless the disk is too full.",
        0,
        87_600,
        "h",
    ),
    RuleSetting(
        "deleteWhen",
        SettingType.HOURS,
        "Hours of the day at which expired segments are deleted, such as 04 or 02;14.",
    ),
    RuleSetting(
        "diskMaxUsedSpaceRatio",
        SettingType.PERCENT,
        "Above this level expired segments are deleted at any hour.",
        10,
        95,
        "%",
    ),
    RuleSetting(
        "diskSpaceCleanForciblyRatio",
        SettingType.PERCENT,
        "Above this level the oldest segments are deleted, whatever their age.",
        30,
        85,
        "%",
    ),
    RuleSetting(
        "diskSpaceWarningLevelRatio",
        SettingType.PERCENT,
        "Above this level the broker refuses writes, until the level is down to diskSpaceCleanForciblyRatio.",
        35,
        90,
        "%",
    ),
    RuleSetting(
        "cleanFileForciblyEnable",
        SettingType.BOOL,
        "Whether segments may be deleted before their time when the disk is too full.",
    ),
    RuleSetting("deleteFileBatchMax", SettingType.INT, "Segments deleted in one pass at most.", 1, 100_000),
    RuleSetting(
        "deleteCommitLogFilesInterval",
        SettingType.INT,
        "The pause after each segment that is deleted.",
        0,
        HOUR_MS,
        "ms",
    ),
    RuleSetting(
        _INTERVAL, SettingType.INT, "From one cleanup pass to the next.", 100, _MOST_INTERVAL_MS, "ms"
    ),
)
_NAMES = frozenset(setting.name for setting in SETTINGS)
_READ = _NAMES | {WARNING_LEVEL_PROPERTY, CLEAN_FORCIBLY_PROPERTY}
_INGEST_MS = 7 * DAY_MS
"""Length of the period from which the ingest is computed."""
_BLOCK_BYTES = 512
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_LONGEST_HOURS = LONGEST_HORIZON_MS // HOUR_MS
_NO_HOURS = -1


def course(
    config: BrokerConfig,
    start: CourseStart,
    horizon_ms: int,
    zone: ZoneInfo,
    limit_seconds: float,
    record: CourseRecord | None = None,
) -> Course:
    """Simulate a store without a hold whose log and queues lie on one disk.

    Queues and indexes grow and shrink in proportion to the log. All written messages are dispatched at once.

    :param limit_seconds: limit of this thread's processor time.
    :raises SimulationTooLongError: the computation takes longer.
    """
    walk = _Walk(config, start, horizon_ms, zone, limit_seconds)
    return walk.through(CourseRecord(start, horizon_ms) if record is None else record)


class _Walk:
    """State of a store between two passes.

    :ivar now_ms: time at which the last pass began.
    :ivar due_ms: time at which that pass was due; a pass that deletes for a long time delays the next ones.
    :ivar free_ms: time from which the next pass can begin.
    """

    def __init__(
        self, config: BrokerConfig, start: CourseStart, horizon_ms: int, zone: ZoneInfo, limit_seconds: float
    ) -> None:
        self.config, self.start, self.zone = config, start, zone
        self.interval_ms = interval_ms(config)
        self.end_ms = start.now_ms + horizon_ms
        self.now_ms = self.due_ms = self.free_ms = start.now_ms
        self.inflow = Inflow(start.ingest, start.now_ms, self.end_ms, zone)
        self.came_bytes = self.inflow.until(start.now_ms)
        self.log_bytes, self.active_bytes = start.log_bytes, start.active_bytes
        self.sealed = deque(
            (run.size_bytes, run.written_ms(index)) for run in start.runs for index in range(run.segments)
        )
        self.oldest_ms = start.oldest_message_ms
        self.accepted = True
        self.refused_bytes = 0
        self.share_parts = SHARE_UNIT + round(start.dependents_share * SHARE_UNIT)
        self.window_changes = tuple(hour_changes_ms(start.now_ms, self.end_ms, delete_hours(config), zone))
        self.causes: dict[tuple[int, bool], tuple[tuple[str, ...], bool]] = {}
        self.deadline = time.thread_time() + limit_seconds
        self.limit_seconds = limit_seconds
        self.steps_left = _STEPS_A_LOOK

    def through(self, record: CourseRecord) -> Course:
        while True:
            self._pass(record)
            next_ms = self._next_pass_ms()
            if next_ms > self.end_ms:
                break
            self._write_until(next_ms)
        self._write_until(self.end_ms)
        record.point(self.end_ms, self._used_bytes(), self.end_ms - self.oldest_ms)
        return record.result(refused_bytes=self.refused_bytes)

    def _pass(self, record: CourseRecord) -> None:
        self._spend(1)
        now_ms, used_bytes = self.now_ms, self._used_bytes()
        record.point(now_ms, used_bytes, now_ms - self.oldest_ms)
        percent = percent_rounded_up(used_bytes, self.start.disk_bytes)
        accepted = accepts_writes(percent, self.accepted, self.config)
        if accepted is not self.accepted:
            self.accepted = accepted
            record.accepts(now_ms, accepted)
        causes, forced = self._causes(percent)
        self.free_ms = now_ms
        if causes:
            segments, size_bytes, unexpired = self._delete(forced)
            if segments:
                record.deletion(now_ms, segments, size_bytes, causes, forced=forced, unexpired=unexpired)
                record.point(now_ms, self._used_bytes(), now_ms - self.oldest_ms)

    def _delete(self, forced: bool) -> tuple[int, int, int]:
        """Delete the oldest segments, up to the first that must stay, at most deleteFileBatchMax.

        The last segment with content always stays. A pass pauses after a deletion, then checks the next age.

        :return: number of deleted segments, their bytes, and the number of those that had not expired.
        """
        config, at_ms, sealed = self.config, self.now_ms, self.sealed
        most = min(self._deletable(), config.delete_file_batch_max)
        segments = size_bytes = unexpired = 0
        while segments < most:
            reason = age_reason(sealed[0][1], at_ms, config, forced=forced)
            if reason is Reason.NOT_EXPIRED:
                break
            unexpired += reason is Reason.FORCED
            bytes_, self.oldest_ms = sealed.popleft()
            size_bytes += bytes_
            segments += 1
            # No pause follows the batch's last deletion, or the one before the last segment with content.
            if segments < most:
                at_ms += config.delete_commit_log_files_interval_ms
        self.log_bytes -= size_bytes
        self.free_ms = at_ms
        return segments, size_bytes, unexpired

    def _next_pass_ms(self) -> int:
        """Find the next pass that may decide differently, set ``due_ms`` to it, and return when it begins."""
        percent = percent_rounded_up(self._used_bytes(), self.start.disk_bytes)
        at_ms = self._crossing_ms(percent)
        index = bisect_right(self.window_changes, self.now_ms)
        if index < len(self.window_changes):
            at_ms = min(at_ms, self.window_changes[index])
        if accepts_writes(percent, self.accepted, self.config) is not self.accepted:
            at_ms = self.now_ms
        causes, forced = self._causes(percent)
        if causes:
            if self._deletable() == 0:
                at_ms = min(at_ms, self._filled_ms())
            elif forced:
                at_ms = self.now_ms
            else:
                written_ms = self.sealed[0][1]
                at_ms = min(at_ms, max(self.now_ms, written_ms, expires_ms(written_ms, self.config)))
        return self._begin_at(at_ms)

    def _begin_at(self, at_ms: int) -> int:
        """Set ``due_ms`` to the first pass at or after ``at_ms``, and return when this pass begins.

        A late pass begins as soon as the pass before it has ended.
        """
        next_due_ms = self.due_ms + self.interval_ms
        if at_ms <= self.free_ms and self.free_ms > next_due_ms:
            self.due_ms = next_due_ms
            return self.free_ms
        behind_ms = max(at_ms, next_due_ms, self.free_ms) - self.start.now_ms
        self.due_ms = self.start.now_ms - (-behind_ms // self.interval_ms) * self.interval_ms
        return self.due_ms

    def _crossing_ms(self, percent: int) -> int:
        """Return the time at which the level exceeds this whole percent."""
        if not self.accepted:
            return _NEVER
        least_used = percent * self.start.disk_bytes // 100 + 1 - self.start.other_bytes
        least_log = -(-least_used * SHARE_UNIT // self.share_parts)
        return self._find_time_ms(least_log - self.log_bytes)

    def _filled_ms(self) -> int:
        """Return when the next segment begins: with the first message that doesn't fit into the active one.

        Without an active segment, that is the next message.
        """
        if not self.accepted:
            return _NEVER
        left_bytes = self.start.segment_bytes - self.active_bytes
        return self._find_time_ms(1 if self.sealed and self.active_bytes == 0 else left_bytes + 1)

    def _find_time_ms(self, more_bytes: int) -> int:
        at_ms = self.inflow.when(self.came_bytes + more_bytes)
        return _NEVER if at_ms is None else at_ms

    def _write_until(self, at_ms: int) -> None:
        came_bytes = self.inflow.until(at_ms)
        more_bytes = came_bytes - self.came_bytes
        if self.accepted:
            self.log_bytes += more_bytes
            self.active_bytes += more_bytes
            segment_bytes = self.start.segment_bytes
            if self.active_bytes >= segment_bytes:
                full, self.active_bytes = divmod(self.active_bytes, segment_bytes)
                self._spend(full)
                filled_at = came_bytes - self.active_bytes - (full - 1) * segment_bytes
                for _ in range(full):
                    written_ms = self.inflow.when(filled_at)
                    self.sealed.append((segment_bytes, at_ms if written_ms is None else written_ms))
                    filled_at += segment_bytes
        else:
            self.refused_bytes += more_bytes
        self.came_bytes, self.now_ms = came_bytes, at_ms

    def _causes(self, percent: int) -> tuple[tuple[str, ...], bool]:
        """Return the causes of a cleanup at a level and at this time of day, and whether any ignores age."""
        is_open = bisect_right(self.window_changes, self.now_ms) % 2 == 1
        causes = self.causes.get((percent, is_open))
        if causes is None:
            disk = DiskUsage(_PATH, percent)
            snapshot = StoreSnapshot("rocketmq", _PATH, self.now_ms, (), (disk,), disk, crashed=False)
            present, _ = triggers(snapshot, self.config, self.now_ms, self.zone, PlanRequest())
            names = tuple(dict.fromkeys(trigger.cause.value for trigger in present))
            causes = names, any(trigger.urgency is Urgency.FORCED for trigger in present)
            self.causes[percent, is_open] = causes
        return causes

    def _deletable(self) -> int:
        """Return the number of segments before the last one with content."""
        return len(self.sealed) if self.active_bytes or not self.sealed else len(self.sealed) - 1

    def _used_bytes(self) -> int:
        return self.start.other_bytes + self.log_bytes * self.share_parts // SHARE_UNIT

    def _spend(self, steps: int) -> None:
        """:raises SimulationTooLongError: the time is up."""
        self.steps_left -= steps
        if self.steps_left > 0:
            return
        self.steps_left = _STEPS_A_LOOK
        if time.thread_time() > self.deadline or steps > 1_000_000:
            days = (self.now_ms - self.start.now_ms) / DAY_MS
            raise SimulationTooLongError(
                f"simulation: expected its end within {self.limit_seconds:g} s of processor time, found day "
                f"{days:.1f} of {(self.end_ms - self.start.now_ms) / DAY_MS:.1f}. Nothing was changed. "
                "Ask for fewer days, or for a smaller ingest."
            )


def config_of(values: Mapping[str, str]) -> BrokerConfig:
    """Return the effective settings. Settings that a simulation ignores have their defaults.

    :raises BrokerConfigError: the broker would not accept a value.
    """
    settings = {name: value for name, value in values.items() if name in _READ}
    interval = settings.get(_INTERVAL, str(DEFAULT_INTERVAL_MS))
    if not (interval.isascii() and interval.isdigit() and 100 <= int(interval[:10]) <= _MOST_INTERVAL_MS):
        raise BrokerConfigError(
            f"{_INTERVAL}: expected a whole number of 100 to {_MOST_INTERVAL_MS}, found {interval!r}."
        )
    return load_broker_config(None, settings, root="/")


def unsupported(config: Mapping[str, str]) -> str:
    """Return the reason why a store with these settings can't be simulated; "" if it can."""
    paths = config.get("storePathCommitLog", "").strip().rstrip(MULTI_PATH_SPLITTER)
    if MULTI_PATH_SPLITTER in paths:
        return "its commitlog is on several disks (storePathCommitLog), and a simulation has one"
    if config.get("replicasPerDiskPartition", "1").strip() not in ("1", "0"):
        return "several brokers share its disk (replicasPerDiskPartition), and a simulation has one of them"
    return ""


def course_start(
    snapshot: StoreSnapshot, layout: StoreLayout, zone: ZoneInfo, oldest_message_ms: int | None
) -> CourseStart | None:
    """Return the start of a simulation; None if the disk's level is unknown, or the log has no segment.

    The ingest is computed from segments' last writes in the last seven days. An unknown ingest is 0 bytes.
    """
    disk, (log,) = least_used(snapshot.log_disks), snapshot.logs
    if disk is None or not disk.total_bytes or disk.usable_bytes is None or not log.segments:
        return None
    full = [segment for segment in log.segments if segment.end_offset <= log.max_offset]
    behind = full[-1].end_offset if full else log.min_offset
    sizes = Counter(segment.facts.size_bytes for segment in log.segments)
    segment_bytes = layout.segment_size_bytes or sizes.most_common(1)[0][0]
    log_bytes = log.max_offset - log.min_offset
    dependents_bytes = sum(_iter_allocated(layout)) if snapshot.dependents_disk.device == disk.device else 0
    if oldest_message_ms is None:
        oldest_message_ms = mtime_ms(log.segments[0])
    ingest = ingest_from(_growth(log, oldest_message_ms, snapshot.taken_at_ms), zone) or Ingest(0)
    return CourseStart(
        now_ms=snapshot.taken_at_ms,
        disk_bytes=disk.total_bytes,
        other_bytes=max(disk.total_bytes - disk.usable_bytes - log_bytes - dependents_bytes, 0),
        segment_bytes=segment_bytes,
        runs=condensed([(segment.facts.size_bytes, mtime_ms(segment)) for segment in full]),
        active_bytes=min(log.max_offset - behind, segment_bytes - 1),
        oldest_message_ms=oldest_message_ms,
        time_zone=zone.key,
        ingest=ingest,
        dependents_share=round(min(dependents_bytes / log_bytes, 100), 6) if log_bytes else 0.0,
    )


def _growth(log: LogSnapshot, oldest_message_ms: int, now_ms: int) -> list[tuple[int, int]]:
    """Return the log's end at several times, as (time in ms, offset), oldest first.

    The times are the last writes of sealed segments, and now. If fewer than two segments are sealed, the
    oldest message comes first. Of the times before the last seven days, only the last one is kept.
    """
    ends = [(mtime_ms(segment), segment.end_offset) for segment in log.sealed]
    begin = [(oldest_message_ms, log.min_offset)] if len(ends) < 2 else []
    points = [*begin, *ends, (now_ms, log.max_offset)]
    first = next((i for i, (at_ms, _) in enumerate(points) if at_ms >= now_ms - _INGEST_MS), 0)
    return points[max(first - 1, 0) :]


def _iter_allocated(layout: StoreLayout) -> Iterator[int]:
    """Yield the disk space in bytes of each file of queues and index. Files that vanish are left out."""
    for directory in (layout.consumequeue, layout.batchconsumequeue, layout.index):
        for root, _, names in os.walk(directory):
            for name in names:
                with suppress(FileNotFoundError):
                    stat = (Path(root) / name).lstat()
                    if S_ISREG(stat.st_mode):
                        yield stat.st_blocks * _BLOCK_BYTES


def used_by_age(config: BrokerConfig, start: CourseStart, hours: int) -> int:
    """Return the most used bytes of a disk at this ingest, if each segment is deleted once it has expired."""
    pass_bytes = max(start.ingest.hour_bytes(0)) * interval_ms(config) // HOUR_MS
    log_bytes = most_bytes_within(start.ingest, hours) + start.segment_bytes + pass_bytes
    return start.other_bytes + log_bytes + int(log_bytes * start.dependents_share)


def longest_hours(config: BrokerConfig, start: CourseStart) -> int:
    """Return the longest fileReservedTime that fits the disk; -1 if none fits."""
    limit = _limit_percent(config)

    def fits(hours: int) -> bool:
        return percent_rounded_up(used_by_age(config, start, hours), start.disk_bytes) <= limit

    low, high = _NO_HOURS, _LONGEST_HOURS
    while low < high:
        middle = low + (high - low + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def smallest_disk_bytes(used_bytes: int, level_percent: int) -> int:
    """Return the size of the smallest disk whose level is at most ``level_percent`` with ``used_bytes``."""
    return -(-used_bytes * 100 // level_percent)


def _limit_percent(config: BrokerConfig) -> int:
    """Return the lowest level above which segments are deleted whatever their age, or writes are refused."""
    force, warning = config.disk_space_clean_forcibly_percent, config.disk_space_warning_level_percent
    return min(force, warning) if config.clean_file_forcibly_enable else warning


def _advise_on_window(config: BrokerConfig, start: CourseStart) -> list[Advice]:
    """Advise on the smallest disk for which deletions in the window are enough.

    If the window is too short to delete a day's messages, advise on that instead.
    """
    hours = sorted({hour for hour in delete_hours(config) if 0 <= hour < HOURS_A_DAY})
    if not hours:
        return []
    passes = HOUR_MS // interval_ms(config)
    window_bytes = len(hours) * passes * config.delete_file_batch_max * start.segment_bytes
    day_bytes = start.ingest.day_bytes
    if window_bytes < day_bytes:
        return [Advice("window-too-short", {"window_bytes": window_bytes, "day_bytes": day_bytes})]
    next_hours = [*hours[1:], hours[0] + HOURS_A_DAY]
    closed_hours = max(later - hour - 1 for hour, later in zip(hours, next_hours, strict=True))
    most_hours = config.file_reserved_time_hours + closed_hours
    cleans = config.disk_max_used_space_ratio_percent
    disk_bytes = smallest_disk_bytes(used_by_age(config, start, most_hours), cleans)
    numbers = {"hours": config.file_reserved_time_hours, "disk_bytes": disk_bytes, "level_percent": cleans}
    return [Advice("quiet-disk", numbers)]


def _advise_on_trace(config: BrokerConfig, start: CourseStart) -> list[Advice]:
    size_bytes, all_bytes = start.topic_bytes.get(TRACE_TOPIC, 0), sum(start.topic_bytes.values())
    if size_bytes <= 0:
        return []
    factor = start.ingest.factor * (1 - size_bytes / all_bytes)
    without = replace(start, ingest=replace(start.ingest, factor=factor))
    share_percent = round(size_bytes * 100 / all_bytes, 1)
    return [
        Advice(
            "trace-topic",
            {
                "topic": TRACE_TOPIC,
                "size_bytes": size_bytes,
                "share_percent": share_percent,
                "longest_hours": max(longest_hours(config, without), 0),
            },
        )
    ]


class RocketMQRules(BrokerRules):
    """The rules of CleanCommitLogService."""

    @property
    def settings(self) -> tuple[RuleSetting, ...]:
        return SETTINGS

    def values(self, config: Mapping[str, str]) -> dict[str, str]:
        read = config_of(config)
        return {
            "fileReservedTime": str(read.file_reserved_time_hours),
            "deleteWhen": read.delete_when,
            "diskMaxUsedSpaceRatio": str(read.disk_max_used_space_ratio_percent),
            "diskSpaceCleanForciblyRatio": str(read.disk_space_clean_forcibly_percent),
            "diskSpaceWarningLevelRatio": str(read.disk_space_warning_level_percent),
            "cleanFileForciblyEnable": str(read.clean_file_forcibly_enable).lower(),
            "deleteFileBatchMax": str(read.delete_file_batch_max),
            "deleteCommitLogFilesInterval": str(read.delete_commit_log_files_interval_ms),
            _INTERVAL: config.get(_INTERVAL, str(DEFAULT_INTERVAL_MS)),
        }

    def unsupported(self, config: Mapping[str, str]) -> str:
        return unsupported(config)

    def levels(self, values: Mapping[str, str]) -> RuleLevels:
        config = config_of(values)
        forces = config.disk_space_clean_forcibly_percent if config.clean_file_forcibly_enable else None
        return RuleLevels(
            notice_percent=NOTICE_LEVEL_PERCENT,
            cleans_percent=config.disk_max_used_space_ratio_percent,
            forces_percent=forces,
            refuses_percent=config.disk_space_warning_level_percent,
            accepts_percent=min(
                config.disk_space_clean_forcibly_percent, config.disk_space_warning_level_percent
            ),
        )

    def hours(self, values: Mapping[str, str]) -> tuple[int, ...]:
        return delete_hours(config_of(values))

    def windows(
        self, values: Mapping[str, str], time_zone: str, start_ms: int, end_ms: int
    ) -> tuple[tuple[int, int], ...]:
        _check_horizon(end_ms - start_ms)
        return hour_spans_ms(start_ms, end_ms, self.hours(values), cleanup_rules.time_zone(time_zone))

    def course(
        self,
        values: Mapping[str, str],
        start: CourseStart,
        horizon_ms: int,
        *,
        limit_seconds: float = MOST_SECONDS,
    ) -> Course:
        _check_horizon(horizon_ms)
        return course(
            config_of(values), start, horizon_ms, cleanup_rules.time_zone(start.time_zone), limit_seconds
        )

    def advice(
        self, values: Mapping[str, str], start: CourseStart, *, wished_hours: int | None = None
    ) -> tuple[Advice, ...]:
        config = config_of(values)
        if start.ingest.day_bytes == 0:
            return ()
        limit = _limit_percent(config)
        hours = config.file_reserved_time_hours
        used_bytes = used_by_age(config, start, hours)
        level = percent_rounded_up(used_bytes, start.disk_bytes)
        fits = level <= limit
        items = [
            Advice(
                "fits" if fits else "does-not-fit",
                {
                    "hours": hours,
                    "level_percent": level,
                    "limit_percent": limit,
                    "cleans_percent": max(level, min(config.disk_max_used_space_ratio_percent, limit)),
                    "longest_hours": max(longest_hours(config, start), 0),
                    "disk_bytes": smallest_disk_bytes(used_bytes, limit),
                },
            )
        ]
        if not fits and not config.clean_file_forcibly_enable:
            items.append(Advice("force-is-off", {"refuses_percent": config.disk_space_warning_level_percent}))
        cleans = config.disk_max_used_space_ratio_percent
        if cleans >= limit:
            items.append(Advice("ratio-too-high", {"ratio_percent": cleans, "limit_percent": limit}))
        items += _advise_on_window(config, start)
        if wished_hours is not None:
            disk_bytes = smallest_disk_bytes(used_by_age(config, start, wished_hours), limit)
            numbers = {"hours": wished_hours, "disk_bytes": disk_bytes, "level_percent": limit}
            items.append(Advice("disk-for-wish", numbers))
        return (*items, *_advise_on_trace(config, start))


def _check_horizon(horizon_ms: int) -> None:
    if not 0 < horizon_ms <= LONGEST_HORIZON_MS:
        raise BadInputError(
            f"simulation: expected more than 0 and at most {LONGEST_HORIZON_MS // DAY_MS} days, found "
            f"{horizon_ms / DAY_MS:g}."
        )


RULES = RocketMQRules()


def unheld_segments(
    snapshot: StoreSnapshot, config: BrokerConfig, until_ms: int, zone: ZoneInfo, start: CourseStart | None
) -> tuple[Segment, ...]:
    """Return the oldest sealed segments that the broker would delete between the snapshot and a given time.

    The last segment with content is never deleted. If the disks can't be simulated, the worst is assumed:
    deletion outside the window as well, and if the broker may delete by force, at any age.

    :param config: settings after the end of the hold.
    :param start: start of the simulation; None if unknown.
    :raises BrokerConfigError: the broker can't parse deleteWhen.
    """
    (log,) = snapshot.logs
    may_go = [segment for segment in log.sealed if segment.end_offset < log.max_offset]
    by_age = age_deletions_ms(snapshot, config, snapshot.taken_at_ms, zone).values()
    of_age = sum(at_ms is not None and at_ms <= until_ms for at_ms in by_age)
    by_course = None
    if start is not None and not unsupported(config.raw) and _is_one_level(snapshot, config):
        by_course = _count_in_course(log, config, until_ms, zone, start)
    if by_course is None:
        by_course = len(may_go)
        if not config.clean_file_forcibly_enable:
            young = (i for i, segment in enumerate(may_go) if expires_at_ms(segment, config) > until_ms)
            by_course = next(young, by_course)
    return tuple(may_go[: max(of_age, by_course)])


def _is_one_level(snapshot: StoreSnapshot, config: BrokerConfig) -> bool:
    """Return whether only the level of the log's disk can lead to deletions."""
    disk, dependents = least_used(snapshot.log_disks), snapshot.dependents_disk
    if disk is None or dependents.used_percent is None:
        return False
    return (
        dependents.device == disk.device
        or dependents.used_percent <= config.disk_max_used_space_ratio_percent
    )


def _count_in_course(
    log: LogSnapshot, config: BrokerConfig, until_ms: int, zone: ZoneInfo, start: CourseStart
) -> int | None:
    """Simulate, and return how many segments the broker deletes; None if the simulation takes too long."""
    full = [segment for segment in log.segments if segment.end_offset <= log.max_offset]
    # One run for each segment, since runs of many segments have only approximate times.
    runs = tuple(SegmentRun(1, s.facts.size_bytes, mtime_ms(s), mtime_ms(s)) for s in full)
    try:
        result = course(
            config, replace(start, runs=runs), until_ms - start.now_ms, zone, limit_seconds=MOST_SECONDS
        )
    except SimulationTooLongError:
        return None
    return sum(deletion.segments for deletion in result.deletions)
