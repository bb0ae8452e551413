"""When, why and how urgently the broker cleans: DefaultMessageStore.CleanCommitLogService. Pure.

One rule differs from the broker's. The broker counts a disk that it can't measure as -1 % used, and cleans
because of that. Here the level of such a disk is unknown: it triggers nothing, and a notice says so.

The deleteWhen window is the hours of the day in which the broker cleans by age.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final
from zoneinfo import ZoneInfo

import tzlocal

from storage_engine.core.clock import HOUR_MS, hour_changes_ms, is_in_hours
from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError, BrokerConfigError
from storage_engine.model.disk import DiskUsage, percent_rounded_up, smallest_and_fullest
from storage_engine.model.plan import (
    Cause,
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
from storage_engine.model.store import (
    Archivable,
    LogSnapshot,
    Segment,
    SegmentId,
    SegmentState,
    StoreSnapshot,
)
from storage_engine.rocketmq.format.broker_config import BrokerConfig, parse_delete_when
from storage_engine.rocketmq.format.layout import StoreLayout

_SEARCH_MS = 8 * 24 * HOUR_MS
"""How far to search for the next window. If a clock change skips an hour of a day, a later day has it."""


def time_zone(name: str | None) -> ZoneInfo:
    """Return the time zone of a store's deleteWhen.

    :param name: IANA name. None means this machine's zone, with its rules for daylight saving time.
    :raises BadInputError: the zone doesn't exist, or this machine doesn't tell its zone.
    """
    try:
        return tzlocal.reload_localzone() if name is None else ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        zone = "this machine's time zone" if name is None else f"time zone {name!r}"
        raise BadInputError(
            f"{zone}: expected an IANA name such as Asia/Shanghai, found none with data ({error}). "
            "Set the store's time_zone."
        ) from error


def next_window_ms(now_ms: int, hours: Collection[int], zone: ZoneInfo) -> int | None:
    """Return the next moment at which the window is open: now, or the next start of one of its hours.

    If a clock change skips an hour, that day has no window. If the hour comes twice, the day has two.

    :return: milliseconds since the epoch; None if none of these hours is from 0 to 23.
    """
    if not any(0 <= hour <= 23 for hour in hours):
        return None
    return next(hour_changes_ms(now_ms, now_ms + _SEARCH_MS, hours, zone), None)


NOTICE_LEVEL_PERCENT = 70
"""Disk level in percent. Above it a notice tells a person, but nothing else happens."""


@dataclass(frozen=True, slots=True)
class _Finding:
    """A disk level above one of the thresholds."""

    detail: str
    at_once: bool
    """Whether the level is so high that the broker ignores age, if its settings allow that."""


def triggers(
    snapshot: StoreSnapshot, config: BrokerConfig, now_ms: int, zone: ZoneInfo, request: PlanRequest
) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
    """Return the present causes of a cleanup, each with its urgency, and notices for a person.

    The rule is that of CleanCommitLogService#deleteExpiredFiles.

    :param request: ``manual`` and ``forced`` are causes, too. Without cleanFileForciblyEnable a forced
        request becomes an ordinary manual one, as in the broker, and adds a notice.
    :raises BrokerConfigError: the broker can't parse an hour of deleteWhen. It would then give up the
        whole pass, even for space or by hand, unless an earlier hour in the list is the present one.
    """
    causes: list[Trigger] = []
    notices: list[str] = []
    # The whole hour counts (UtilAll#isItTimeToDo).
    if is_in_hours(now_ms, delete_hours(config), zone):
        detail = f"it is {time_text(now_ms, zone)} in {zone}, and deleteWhen is {config.delete_when}"
        causes.append(Trigger(Cause.TIME_UP, Urgency.ORDINARY, detail))
    findings, disk_notices = space_findings(snapshot, config)
    notices += disk_notices
    for finding in findings:
        forced = finding.at_once and config.clean_file_forcibly_enable
        if finding.at_once and not forced:
            notices.append(
                f"{finding.detail}, but cleanFileForciblyEnable is false: only expired segments may be "
                "deleted"
            )
        causes.append(
            Trigger(
                Cause.SPACE_FULL,
                Urgency.FORCED if forced else Urgency.ORDINARY,
                finding.detail,
                at_once=finding.at_once,
            )
        )
    if request.manual or request.forced:
        forced = request.forced and config.clean_file_forcibly_enable
        if request.forced and not forced:
            notices.append(
                "a forced cleanup was asked for and is refused: cleanFileForciblyEnable is false, so only "
                "expired segments may be deleted. Set cleanFileForciblyEnable=true to ignore age"
            )
        detail = f"asked for by a person{f': {request.reason}' if request.reason else ''}"
        causes.append(Trigger(Cause.MANUAL, Urgency.FORCED if forced else Urgency.ORDINARY, detail))
    return tuple(causes), tuple(notices)


def space_findings(
    snapshot: StoreSnapshot, config: BrokerConfig
) -> tuple[tuple[_Finding, ...], tuple[str, ...]]:
    """Compare the disks with the water levels (CleanCommitLogService#isSpaceToDelete).

    The least used commitlog disk decides for the log, since the broker can still write there. The consume
    queue's disk decides as well. With replicasPerDiskPartition > 1 the store has a share of the disk. Then
    the used part of that share is compared with the ordinary threshold, and with
    logicalDiskSpaceCleanForciblyThreshold, above which a pass ignores age. A level that only equals its
    threshold is no cause.
    """
    findings: list[_Finding] = []
    notices = _disk_notices(snapshot, config)
    log_disk = least_used(snapshot.log_disks)
    dependents = snapshot.dependents_disk
    ordinary = config.replicas_per_disk_partition <= 1
    if log_disk is not None and log_disk.used_percent is not None:
        log_text = (
            "the commitlog's disk"
            if len(snapshot.log_disks) == 1
            else f"the least used of the {len(snapshot.log_disks)} commitlog disks"
        )
        findings += _find_level(log_disk.used_percent, f"{log_text} ({log_disk.path})", config, ordinary)
    if dependents.used_percent is not None:
        disk_text = f"the consume queue's disk ({dependents.path})"
        findings += _find_level(dependents.used_percent, disk_text, config, ordinary)
    if not ordinary:
        share, notice = _share_finding(snapshot, config, log_disk)
        findings += share
        notices += notice
    return tuple(findings), tuple(notices)


def least_used(disks: Sequence[DiskUsage]) -> DiskUsage | None:
    """Return the least used disk, or None if there is no disk or any disk's level is unknown."""
    if any(disk.used_percent is None for disk in disks):
        return None
    return min(disks, key=lambda disk: disk.used_percent or 0, default=None)


def delete_hours(config: BrokerConfig) -> tuple[int, ...]:
    """:raises BrokerConfigError: deleteWhen can't be parsed."""
    try:
        return parse_delete_when(config.delete_when)
    except ValueError as error:
        raise BrokerConfigError(
            f"{config.source or 'settings'}: deleteWhen: expected hours joined by ';' such as 04 or 02;14, "
            f"found {config.delete_when!r}. The broker would not clean at all with it."
        ) from error


def expires_at_ms(segment: Segment, config: BrokerConfig) -> int:
    """Return mtime + fileReservedTime, in ms (MappedFileQueue#deleteExpiredFileByTime)."""
    return expires_ms(mtime_ms(segment), config)


def expires_ms(written_ms: int, config: BrokerConfig) -> int:
    """Return when a file expires, in ms, by the time of its last write."""
    return written_ms + config.file_reserved_time_hours * HOUR_MS


def age_reason(written_ms: int, now_ms: int, config: BrokerConfig, *, forced: bool) -> Reason:
    """Return why a pass deletes a sealed segment: EXPIRED or FORCED, else NOT_EXPIRED.

    A segment with a write time in the future has not expired: its age is unknown.
    """
    if written_ms <= now_ms and now_ms >= expires_ms(written_ms, config):
        return Reason.EXPIRED
    return Reason.FORCED if forced else Reason.NOT_EXPIRED


def accepts_writes(used_percent: int, accepted: bool, config: BrokerConfig) -> bool:
    """Return whether the broker accepts writes after a pass (CleanCommitLogService#isSpaceToDelete).

    Between the level of forced cleaning and the warning level, the answer stays as it was before the pass.

    :param accepted: whether the broker accepted writes before the pass.
    """
    if used_percent > config.disk_space_warning_level_percent:
        return False
    return accepted or used_percent <= config.disk_space_clean_forcibly_percent


def accepts_writes_by(snapshot: StoreSnapshot, accepted: bool, config: BrokerConfig) -> bool:
    """Return whether the broker accepts writes after a pass, by the disks of its log and its consume queues.

    The queues' disk isn't checked if the log's disk is above the level of forced cleaning. An unknown level
    changes nothing.

    :param accepted: whether the broker accepted writes before the pass.
    """
    for disk in (least_used(snapshot.log_disks), snapshot.dependents_disk):
        if disk is None or disk.used_percent is None:
            continue
        accepted = accepts_writes(disk.used_percent, accepted, config)
        if disk.used_percent > config.disk_space_clean_forcibly_percent:
            return accepted
    return accepted


def full_log_disks(snapshot: StoreSnapshot, config: BrokerConfig) -> tuple[str, ...]:
    """Return the log directories whose disks are too full for a new file (CommitLog#setFullStorePaths)."""
    level = config.disk_space_clean_forcibly_percent
    return tuple(disk.path for disk in snapshot.log_disks if (disk.used_percent or 0) > level)


def age_deletions_ms(
    snapshot: StoreSnapshot, config: BrokerConfig, now_ms: int, zone: ZoneInfo
) -> dict[SegmentId, int | None]:
    """Return for each sealed segment the earliest time, not before now, at which age allows its deletion.

    A segment is deleted only after all older ones. The last segment with content is never deleted, and is
    left out. Times are in ms since the epoch; None if no hour of deleteWhen is from 0 to 23.
    """
    times_ms: dict[SegmentId, int | None] = {}
    hours, windows = delete_hours(config), dict[int, int | None]()
    for log in snapshot.logs:
        expired_ms = now_ms
        for segment in log.sealed:
            expired_ms = max(expired_ms, expires_at_ms(segment, config))
            if segment.end_offset < log.max_offset:
                if expired_ms not in windows:
                    windows[expired_ms] = next_window_ms(expired_ms, hours, zone)
                times_ms[segment.id] = windows[expired_ms]
    return times_ms


def mtime_ms(segment: Segment) -> int:
    """Return a segment's mtime in whole milliseconds, as Java's File#lastModified does."""
    return segment.mtime_ns // 1_000_000


def _find_level(percent: int, disk_text: str, config: BrokerConfig, ordinary: bool) -> list[_Finding]:
    """Return the highest threshold that a disk's level exceeds, if it exceeds one."""
    text = f"{disk_text} is {percent} % used, above"
    if percent > (level := config.disk_space_warning_level_percent):
        return [_Finding(f"{text} the warning level {level} %: the broker refuses writes", at_once=True)]
    if percent > (level := config.disk_space_clean_forcibly_percent):
        return [_Finding(f"{text} diskSpaceCleanForciblyRatio {level} %", at_once=True)]
    if ordinary and percent > (level := config.disk_max_used_space_ratio_percent):
        return [_Finding(f"{text} diskMaxUsedSpaceRatio {level} %", at_once=False)]
    return []


def _share_finding(
    snapshot: StoreSnapshot, config: BrokerConfig, log_disk: DiskUsage | None
) -> tuple[list[_Finding], list[str]]:
    """Compare the store's own size with its share of the disk (replicasPerDiskPartition > 1).

    For a missing path the broker takes -1 as the disk's size, and the share as exceeded. Here the share is
    unknown.
    """
    replicas = config.replicas_per_disk_partition
    share_bytes = (log_disk.total_bytes or 0) // replicas if log_disk is not None else 0
    if snapshot.used_bytes is None or share_bytes <= 0:
        return [], [
            f"the store's share of its disk (replicasPerDiskPartition {replicas}) is unknown, so it triggers "
            "nothing"
        ]
    percent = percent_rounded_up(snapshot.used_bytes, share_bytes)
    text = f"the store takes {snapshot.used_bytes} of the {share_bytes} bytes that are its share, {percent} %"
    if percent > (level := config.logical_disk_space_clean_forcibly_threshold_percent):
        return [_Finding(f"{text}, above logicalDiskSpaceCleanForciblyThreshold {level} %", at_once=True)], []
    if percent > (level := config.disk_max_used_space_ratio_percent):
        return [_Finding(f"{text}, above diskMaxUsedSpaceRatio {level} %", at_once=False)], []
    return [], []


def _disk_notices(snapshot: StoreSnapshot, config: BrokerConfig) -> list[str]:
    notices = []
    for disk in snapshot.disks:
        if disk.used_percent is None:
            notices.append(
                f"disk level unknown, so it triggers nothing: {disk.error or disk.path}. "
                "The broker counts such a disk as -1 % used and cleans because of it"
            )
        elif disk.used_percent > NOTICE_LEVEL_PERCENT:
            notices.append(
                f"{disk.path} is {disk.used_percent} % used, above the notice level {NOTICE_LEVEL_PERCENT} %"
            )
    full = full_log_disks(snapshot, config)
    if full and len(full) < len(snapshot.log_disks):
        notices.append(
            f"the broker creates no new segment on {', '.join(full)}: above diskSpaceCleanForciblyRatio "
            f"{config.disk_space_clean_forcibly_percent} %"
        )
    return notices


def log_disks(layout: StoreLayout) -> tuple[int | None, int | None]:
    """Return the size in bytes of the log's smallest disk, and the level in percent of its fullest disk.

    Levels are computed as the broker does (UtilAll#getDiskPartitionSpaceUsedPercent). For a missing path, a
    failed call or a disk without size, the broker uses -1 as a level; here the level is unknown.

    :return: None for a value that can't be measured.
    """
    return smallest_and_fullest(map(DiskUsage.of, layout.commitlog_paths))


def plan(
    snapshot: StoreSnapshot, config: BrokerConfig, now_ms: int, zone: ZoneInfo, request: PlanRequest
) -> Plan:
    """Decide which segments a pass over the commitlog would delete, and why each other segment stays.

    First each segment is judged alone. Then the run of deletable segments that begins with the oldest is
    limited to the batch and to the request's target level.

    A segment with an mtime in the future has not expired, whatever fileReservedTime says. Either a hold set
    that mtime, or a clock jumped. Neither permits a deletion. Only a forced pass deletes such a segment.

    :raises BadInputError: the request has an impossible number of segments or an impossible level.
    :raises BrokerConfigError: the broker can't parse deleteWhen.
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
    """Return the sealed segments whose bytes are final, and a notice if other sealed ones must wait."""
    (log,) = snapshot.logs
    confirmed = tuple(filter(log.is_confirmed, log.sealed))
    if len(confirmed) == len(log.sealed):
        return Archivable(confirmed)
    return Archivable(confirmed, {log.name: unconfirmed_text(log)})


def unconfirmed_text(log: LogSnapshot) -> str:
    """Return the reason why a segment may still change although its broker no longer writes to it."""
    cut = "may be cut off and written again when another broker becomes the master"
    if not log.confirmed_offset:
        return (
            "a controller chooses the master, and only a running master says what all replicas in sync have: "
            f"the rest {cut}. Archive beside the master while it runs and its replicas are connected, or a "
            "stopped broker's store where its controller answers that it alone is in sync"
        )
    return (
        f"all replicas in sync have the log up to {log.confirmed_offset}. Until they have more, the rest "
        f"{cut}"
    )


def keep_all(
    snapshot: StoreSnapshot,
    now_ms: int,
    causes: tuple[Trigger, ...],
    notices: tuple[str, ...],
    why: str = "this store is archived alone: nothing of it is deleted",
) -> Plan:
    """Return a plan that deletes nothing."""
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
    forced = any(cause.urgency is Urgency.FORCED for cause in causes)
    last = _last_with_content(log)
    no_cause = "" if causes else _no_cause_text(config, now_ms, zone)

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
                f"the last file with content (up to {log.max_offset}): the broker never deletes its last "
                "file, and removes empty files behind it when it starts"
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
            detail = (
                f"consume queues have entries up to offset {log.dispatched_offset}: consumers would lose the "
                "messages behind it"
            )
            return Decision(segment, Reason.NOT_DISPATCHED, detail)
        return Decision(
            segment, reason, f"age is ignored in a forced pass; {age}" if reason is Reason.FORCED else age
        )

    return [judge(segment) for segment in log.segments]


def _last_with_content(log: LogSnapshot) -> Segment | None:
    """Return the newest segment that begins below the log's end; None if the log has no content.

    This segment stays even if it is sealed, since a store without content restarts at offset 0. An empty file
    behind it doesn't count as the last file: the broker removes it when it starts.
    """
    return max(
        (segment for segment in log.segments if segment.base_offset < log.max_offset),
        key=lambda segment: segment.base_offset,
        default=None,
    )


def _age_text(segment: Segment, config: BrokerConfig, now_ms: int, *, expired: bool) -> str:
    written = f"last written {time_text(mtime_ms(segment))}"
    if mtime_ms(segment) > now_ms:
        return f"{written}, which is in the future: not expired, as its age is unknown"
    # Times rather than ages: the same plan a minute later has the same text, and is stored once.
    reserved = f"fileReservedTime {config.file_reserved_time_hours} h"
    when = f"{'expired' if expired else 'expires'} {time_text(expires_at_ms(segment, config))}"
    return f"{written}, {reserved}: {when}"


def _no_cause_text(config: BrokerConfig, now_ms: int, zone: ZoneInfo) -> str:
    opens_ms = next_window_ms(now_ms, delete_hours(config), zone)
    when = "never comes" if opens_ms is None else f"comes at {time_text(opens_ms, zone)}"
    return (
        f"no cleanup is due: deleteWhen {config.delete_when} {when}, no known disk level calls for one, and "
        "no person asks for one"
    )


def _cut(
    judged: Sequence[Decision], disks: Sequence[DiskUsage], config: BrokerConfig, request: PlanRequest
) -> tuple[Decision, ...]:
    """Limit deletable segments to a prefix, the batch and the target. Give all others a reason to stay."""
    batch = config.delete_file_batch_max if request.max_segments is None else request.max_segments
    limit = "deleteFileBatchMax" if request.max_segments is None else "at most, as asked,"
    decisions: list[Decision] = []
    going: list[Segment] = []
    stopped: Decision | None = None
    for decision in judged:
        if decision.deletes:
            if stopped is not None:
                decision = _keep_behind(stopped, decision)
            elif reached := target_reached(disks, going, request.target_used_percent, _DISK):
                decision = Decision(decision.segment, Reason.TARGET_REACHED, reached)
            elif len(going) >= batch:
                detail = f"{limit} {batch} segments are deleted in one pass"
                decision = Decision(decision.segment, Reason.BATCH_FULL, detail)
            else:
                going.append(decision.segment)
        if not decision.deletes and (stopped is None or stopped.reason in _LIMITS):
            stopped = decision
        decisions.append(decision)
    return tuple(decisions)


def _keep_behind(stopped: Decision, decision: Decision) -> Decision:
    """Keep a deletable segment because an older segment stays."""
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
    return (
        f"{len(ahead)} sealed segment(s) were last written in the future, the first is {ahead[0].name} at "
        f"{time_text(mtime_ms(ahead[0]))}: they are held on purpose, or a clock jumped. They don't expire",
    )


FIRST_PASS_MS: Final = 60_000
"""Time from a broker's start to its first pass (DefaultMessageStore#addScheduleTask)."""
DEFAULT_INTERVAL_MS: Final = 10_000
MANUAL_PASSES: Final = 20
"""Number of passes that one manual trigger requests (CleanCommitLogService.MAX_MANUAL_DELETE_FILE_TIMES)."""
SLACK_SECONDS: Final = 10.0
"""Extra time for a broker, a disk or a machine that is busy."""
MEANWHILE_SECONDS: Final = 20.0


def interval_ms(config: BrokerConfig) -> int:
    """Return the time between two passes (cleanResourceInterval, which a broker reads at its start)."""
    return int(config.raw.get("cleanResourceInterval", DEFAULT_INTERVAL_MS))


def until_first_pass_seconds(boot_timestamp_ms: int) -> float:
    """Return the seconds until a just started broker's first pass; 0 if the pass may have begun."""
    wait_ms = boot_timestamp_ms + FIRST_PASS_MS - time.time_ns() // 1_000_000
    return min(max(wait_ms, 0), FIRST_PASS_MS) / 1000


def segment_patience_seconds(config: BrokerConfig) -> float:
    """Return the longest time that a working broker takes from one deleted segment to the next.

    If a reader still uses a segment, the broker destroys it by force in the first pass after
    destroyMapedFileIntervalForcibly (DefaultMappedFile#destroy).
    """
    one_pass_ms = (
        interval_ms(config) + config.delete_file_batch_max * config.delete_commit_log_files_interval_ms
    )
    return (2 * one_pass_ms + config.destroy_mapped_file_interval_forcibly_ms) / 1000 + SLACK_SECONDS


def dependents_patience_seconds(config: BrokerConfig) -> float:
    """Return the longest time that a working broker takes between two deleted queue or index files."""
    return (2 * interval_ms(config) + config.delete_consume_queue_files_interval_ms) / 1000 + SLACK_SECONDS


class Patience:
    """A wait that ends after too long a time without progress.

    :param at_first_seconds: additional time until the first progress.
    :param meanwhile: called about every 20 s during the wait, such as to renew a lease.
    """

    def __init__(self, seconds: float, at_first_seconds: float, meanwhile: Callable[[], object]) -> None:
        self._seconds = seconds
        self._meanwhile = meanwhile
        self._began = self._renewed = time.monotonic()
        self._ends = self._began + seconds + at_first_seconds

    @property
    def waited_seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends

    def progressed(self) -> None:
        self._ends = max(self._ends, time.monotonic() + self._seconds)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)
        if time.monotonic() - self._renewed >= MEANWHILE_SECONDS:
            self._meanwhile()
            self._renewed = time.monotonic()
