"""Which segments the broker's rules take by a moment, of a store that nobody holds. Pure."""

from __future__ import annotations

from dataclasses import replace
from zoneinfo import ZoneInfo

from storage_engine.exceptions import SimulationTooLongError
from storage_engine.model.course.course import MOST_SECONDS, CourseStart, SegmentRun
from storage_engine.model.store.store import LogSnapshot, Segment, StoreSnapshot
from storage_engine.rocketmq.course.course import course
from storage_engine.rocketmq.course.course_settings import unsupported
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.rules.rules import age_deletions_ms, expires_at_ms, least_used, mtime_ms


def unheld_segments(
    snapshot: StoreSnapshot, config: BrokerConfig, until_ms: int, zone: ZoneInfo, start: CourseStart | None
) -> tuple[Segment, ...]:
    """Return the oldest sealed segments, as many as go by a moment, from that of the snapshot on.

    The last with content never goes. Where the course of the disks isn't known, age protects nothing from a
    broker that may delete by force, and the hour nothing from any.

    :param config: as it is once nothing is held.
    :param start: of the course of this store; None: not known.
    :raises BrokerConfigError: a deleteWhen that the broker can't parse.
    """
    (log,) = snapshot.logs
    may_go = [segment for segment in log.sealed if segment.end_offset < log.max_offset]
    by_age = age_deletions_ms(snapshot, config, snapshot.taken_at_ms, zone).values()
    of_age = sum(at_ms is not None and at_ms <= until_ms for at_ms in by_age)
    by_course = None
    if start is not None and not unsupported(config.raw) and _is_one_level(snapshot, config):
        by_course = _in_course(log, config, until_ms, zone, start)
    if by_course is None:
        by_course = len(may_go)
        if not config.clean_file_forcibly_enable:
            young = (i for i, one in enumerate(may_go) if expires_at_ms(one, config) > until_ms)
            by_course = next(young, by_course)
    return tuple(may_go[: max(of_age, by_course)])


def _is_one_level(snapshot: StoreSnapshot, config: BrokerConfig) -> bool:
    """Return whether the disk that a course follows is the only one whose level decides."""
    disk, dependents = least_used(snapshot.log_disks), snapshot.dependents_disk
    if disk is None or dependents.used_percent is None:
        return False
    return (
        dependents.device == disk.device
        or dependents.used_percent <= config.disk_max_used_space_ratio_percent
    )


def _in_course(
    log: LogSnapshot, config: BrokerConfig, until_ms: int, zone: ZoneInfo, start: CourseStart
) -> int | None:
    """Return how many segments the broker deletes in the course of this time; None: it can't be computed."""
    full = [segment for segment in log.segments if segment.end_offset <= log.max_offset]
    # As they are: a start for a record has them in rows of many.
    runs = tuple(SegmentRun(1, s.facts.size_bytes, mtime_ms(s), mtime_ms(s)) for s in full)
    try:
        found = course(
            config, replace(start, runs=runs), until_ms - start.now_ms, zone, limit_seconds=MOST_SECONDS
        )
    except SimulationTooLongError:
        return None
    return sum(deletion.segments for deletion in found.deletions)
