"""RocketMQ's rules without a store: for a simulation, and for the advice on settings that fit an ingest.

Advice: the broker deletes a segment once its last write is fileReservedTime ago, and above
diskMaxUsedSpaceRatio it does so at any hour. So the log needs what comes within fileReservedTime at the
busiest time of the day, one segment more that has expired in part, and what comes within a pass.

Its kinds, with their numbers:

- ``fits``, ``does-not-fit``: hours (fileReservedTime), level_percent (with all messages of these hours),
  cleans_percent (with what has expired and waits for the window or for diskMaxUsedSpaceRatio, too),
  limit_percent (above it the broker deletes whatever the age, or else refuses writes), longest_hours (the
  longest fileReservedTime that fits this disk), disk_bytes (the smallest disk that these hours fit).
- ``quiet-disk``: hours, disk_bytes (the smallest on which the time of day alone cleans), level_percent.
- ``disk-for-wish``: hours (that a person wishes), disk_bytes, level_percent.
- ``ratio-too-high``: ratio_percent, limit_percent: what has expired outside the window goes too late.
- ``force-is-off``: refuses_percent: where these hours don't fit, writes are refused.
- ``window-too-short``: window_bytes (that passes can delete a day), day_bytes (that come).
- ``trace-topic``: topic, size_bytes, share_percent, longest_hours (without it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from zoneinfo import ZoneInfo

from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.exceptions import BadInputError
from storage_engine.model.course.course import (
    HOURS_A_DAY,
    LONGEST_HORIZON_MS,
    MOST_SECONDS,
    Advice,
    BrokerRules,
    Course,
    CourseStart,
    RuleLevels,
    RuleSetting,
)
from storage_engine.model.course.daily_hours import hour_spans_ms
from storage_engine.model.course.ingest import most_bytes_within
from storage_engine.model.store.store import percent_rounded_up
from storage_engine.rocketmq.course.course import SETTINGS, config_of, course, unsupported, values_of
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.rules.cleanup_schedule import interval_ms
from storage_engine.rocketmq.rules.rules import NOTICE_LEVEL_PERCENT, delete_hours
from storage_engine.rocketmq.rules.window import time_zone

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_LONGEST_HOURS = LONGEST_HORIZON_MS // HOUR_MS
_NO_HOURS = -1


def advice(config: BrokerConfig, start: CourseStart, wished_hours: int | None) -> tuple[Advice, ...]:
    """Return what follows for a store; nothing where nothing comes.

    :param wished_hours: how long messages should stay; None: nobody says.
    """
    if start.ingest.day_bytes == 0:
        return ()
    limit = _limit_percent(config)
    hours = config.file_reserved_time_hours
    used_bytes = used_by_age(config, start, hours)
    level = percent_rounded_up(used_bytes, start.disk_bytes)
    fits = level <= limit
    found = [
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
        found.append(Advice("force-is-off", {"refuses_percent": config.disk_space_warning_level_percent}))
    cleans = config.disk_max_used_space_ratio_percent
    if cleans >= limit:
        found.append(Advice("ratio-too-high", {"ratio_percent": cleans, "limit_percent": limit}))
    found += _of_window(config, start)
    if wished_hours is not None:
        disk_bytes = smallest_disk_bytes(used_by_age(config, start, wished_hours), limit)
        numbers = {"hours": wished_hours, "disk_bytes": disk_bytes, "level_percent": limit}
        found.append(Advice("disk-for-wish", numbers))
    return (*found, *_of_trace_topic(config, start))


def used_by_age(config: BrokerConfig, start: CourseStart, hours: int) -> int:
    """Return the most that a disk is used at this ingest while each segment goes as soon as it has expired.

    :param hours: instead of fileReservedTime.
    """
    a_pass = start.ingest.hour_bytes(0)
    pass_bytes = max(a_pass) * interval_ms(config) // HOUR_MS
    log_bytes = most_bytes_within(start.ingest, hours) + start.segment_bytes + pass_bytes
    return start.other_bytes + log_bytes + int(log_bytes * start.dependents_share)


def longest_hours(config: BrokerConfig, start: CourseStart) -> int:
    """Return the longest fileReservedTime that fits the disk; -1: none does."""
    limit = _limit_percent(config)

    def fits(hours: int) -> bool:
        return percent_rounded_up(used_by_age(config, start, hours), start.disk_bytes) <= limit

    low, high = _NO_HOURS, _LONGEST_HOURS
    while low < high:
        middle = low + (high - low + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def smallest_disk_bytes(used_bytes: int, level_percent: int) -> int:
    """Return the smallest disk whose level isn't above this with so much used."""
    return -(-used_bytes * 100 // level_percent)


def _limit_percent(config: BrokerConfig) -> int:
    """Return the level above which young segments are deleted, or writes refused."""
    force, warning = config.disk_space_clean_forcibly_percent, config.disk_space_warning_level_percent
    return min(force, warning) if config.clean_file_forcibly_enable else warning


def _of_window(config: BrokerConfig, start: CourseStart) -> list[Advice]:
    """Say on which disk the time of day is enough, and whether it lasts for what comes in a day."""
    hours = sorted({hour for hour in delete_hours(config) if 0 <= hour < HOURS_A_DAY})
    if not hours:
        return []
    passes = HOUR_MS // interval_ms(config)
    window_bytes = len(hours) * passes * config.delete_file_batch_max * start.segment_bytes
    day_bytes = start.ingest.day_bytes
    if window_bytes < day_bytes:
        return [Advice("window-too-short", {"window_bytes": window_bytes, "day_bytes": day_bytes})]
    closed = [
        (later - hour - 1) % HOURS_A_DAY for hour, later in zip(hours, hours[1:] + hours[:1], strict=True)
    ]
    cleans = config.disk_max_used_space_ratio_percent
    most_hours = config.file_reserved_time_hours + (
        max(closed) or (HOURS_A_DAY - 1 if len(hours) == 1 else 0)
    )
    disk_bytes = smallest_disk_bytes(used_by_age(config, start, most_hours), cleans)
    numbers = {"hours": config.file_reserved_time_hours, "disk_bytes": disk_bytes, "level_percent": cleans}
    return [Advice("quiet-disk", numbers)]


def _of_trace_topic(config: BrokerConfig, start: CourseStart) -> list[Advice]:
    size_bytes, all_bytes = start.topic_bytes.get(TRACE_TOPIC, 0), sum(start.topic_bytes.values())
    if size_bytes <= 0:
        return []
    left = start.ingest.factor * (1 - size_bytes / all_bytes)
    without = replace(start, ingest=replace(start.ingest, factor=left))
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
    """Those of CleanCommitLogService."""

    @property
    def settings(self) -> tuple[RuleSetting, ...]:
        return SETTINGS

    def values(self, config: Mapping[str, str]) -> dict[str, str]:
        return values_of(config)

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
        return hour_spans_ms(start_ms, end_ms, self.hours(values), _zone(time_zone))

    def course(
        self,
        values: Mapping[str, str],
        start: CourseStart,
        horizon_ms: int,
        *,
        limit_seconds: float = MOST_SECONDS,
    ) -> Course:
        _check_horizon(horizon_ms)
        return course(config_of(values), start, horizon_ms, _zone(start.time_zone), limit_seconds)

    def advice(
        self, values: Mapping[str, str], start: CourseStart, *, wished_hours: int | None = None
    ) -> tuple[Advice, ...]:
        return advice(config_of(values), start, wished_hours)


def _zone(name: str) -> ZoneInfo:
    return time_zone(name)


def _check_horizon(horizon_ms: int) -> None:
    if not 0 < horizon_ms <= LONGEST_HORIZON_MS:
        raise BadInputError(
            f"simulation: expected more than 0 and at most {LONGEST_HORIZON_MS // DAY_MS} days, found "
            f"{horizon_ms / DAY_MS:g}."
        )


RULES = RocketMQRules()
