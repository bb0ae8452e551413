"""The causes of a cleanup as a running broker's own figures have them: none of our paths is looked at.

And what its rules take by a moment of a store that nobody holds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from zoneinfo import ZoneInfo

from storage_engine.exceptions import BrokerError, NotOnBrokerError, SimulationTooLongError
from storage_engine.model.broker.broker_store import StoreSettings, Watch
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.course.course import MOST_SECONDS, CourseStart, SegmentRun
from storage_engine.model.store.store import DiskUsage, LogSnapshot, Segment, StoreSnapshot
from storage_engine.rocketmq.course import course, unsupported
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.live.connect import local_settings, reach, refuse_slave
from storage_engine.rocketmq.remoting.answers import RuntimeInfo
from storage_engine.rocketmq.rules.rules import age_deletions_ms, expires_at_ms, least_used, mtime_ms
from storage_engine.rocketmq.rules.window import time_zone
from storage_engine.rocketmq.store.causes import watch_levels


def watch(info: RuntimeInfo, config: BrokerConfig, now_ms: int, zone: ZoneInfo) -> Watch:
    """Apply the rules to the levels that the broker says it sees, and the clock.

    :param config: the broker's settings as they are in effect.
    :param zone: in which deleteWhen is meant.
    """
    return watch_levels(*disks(info, config), config, now_ms, zone)


def disks(info: RuntimeInfo, config: BrokerConfig) -> tuple[tuple[DiskUsage, ...], DiskUsage]:
    """The log's disks and the consume queue's, by the broker's own names and figures.

    A level that the broker gives as -1 is one that it can't measure: unknown.
    """
    log_disks = tuple(
        _disk(path, percent) for path, percent in sorted(info.commitlog_used_percent.items())
    ) or (_disk("the commitlog", None),)
    # StorePathConfigHelper#getStorePathConsumeQueue
    queues = f"{config.store_path_root_dir}/consumequeue"
    return log_disks, _disk(queues, info.consume_queue_used_percent)


def _disk(path: str, percent: float | None) -> DiskUsage:
    if percent is None:
        return DiskUsage(path=path, used_percent=None, error=f"{path}: the broker can't measure its disk")
    # It is a whole percent already (UtilAll#getDiskPartitionSpaceUsedPercent), which a double as 0.57 blurs.
    return DiskUsage(path=path, used_percent=math.ceil(round(percent, 6)))


def watch_store(settings: StoreSettings, live: LiveBroker, now_ms: int) -> Watch:
    """Ask the broker, wherever this runs; takes no longer than its connection's timeouts.

    :return: a look that isn't ``known`` where it can't be asked, or answers nothing that can be used.
    :raises BadInputError: settings that can't be worked with, or a slave.
    """
    try:
        with reach(live) as admin:
            found, info, address = admin.config(), admin.runtime_info(), admin.address
    except (BrokerError, NotOnBrokerError) as error:
        return unknown(now_ms, f"the broker can't be asked, so nothing triggers: {error}")
    refuse_slave(found, address)
    here = local_settings(found, settings.root, settings.overrides)
    config = load_broker_config(None, here, root=settings.root)
    return watch(info, config, now_ms, time_zone(settings.time_zone))


def unknown(now_ms: int, notice: str) -> Watch:
    """A look that saw nothing: neither a cause, nor that one has ended."""
    return Watch(
        watched_at_ms=now_ms,
        triggers=(),
        notices=(notice,),
        levels=(),
        deciding_percent=None,
        ordinary_percent=None,
        next_window_ms=None,
        known=False,
    )


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
