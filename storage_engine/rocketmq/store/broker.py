"""A stopped RocketMQ broker's store, with the broker's rules, as retention's ``BrokerStore``.

Callers that wait for the cause of a cleanup can find it from clock and disks, without the store's files.

Replicas use the same name for their log, and have equal bytes at the same offsets. A promoted slave has equal
bytes up to the offset that it had copied. Unrelated brokers may have the same names, so names prove nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from zoneinfo import ZoneInfo

from storage_engine.core import durable
from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.broker_store import (
    BrokerStore,
    LockedStore,
    Pending,
    PendingKind,
    Remove,
    StoreCauses,
    StoreConsumers,
    StoreCourse,
    StoreDependents,
    StoreHold,
    StoreLimit,
    StoreProcess,
    StoreReplicas,
    StoreSettings,
    StoreShield,
    Watch,
)
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import HoldMemory, ShieldNeed
from storage_engine.model.lag import Unread
from storage_engine.model.plan import DependentFile, Plan, PlanRequest, Trigger
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.simulation import CourseStart
from storage_engine.model.store import (
    NAMED,
    Archivable,
    LogSnapshot,
    Segment,
    SegmentContext,
    SegmentId,
    SegmentState,
    StoreSnapshot,
)
from storage_engine.rocketmq import cleanup_rules
from storage_engine.rocketmq.cleanup_rules import (
    archivable,
    delete_hours,
    keep_all,
    least_used,
    log_disks,
    next_window_ms,
    plan,
    triggers,
)
from storage_engine.rocketmq.cleanup_rules import time_zone as zone_of
from storage_engine.rocketmq.codec.commitlog import last_message, near_logical_end
from storage_engine.rocketmq.codec.stored_messages import oldest_message_ms, sealed_at_ms
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.format.checkpoint import read_known_values
from storage_engine.rocketmq.format.layout import IDENTITY, LOG, StoreLayout, has_controller
from storage_engine.rocketmq.format.mapped_files import is_offset, list_raw_files, map_file
from storage_engine.rocketmq.format.stored_files import open_stored, read_stored, reread
from storage_engine.rocketmq.hold.fence import with_original_times
from storage_engine.rocketmq.hold.hold_state import CLUSTER, NAME, ROLE, SLAVE, known_replicas
from storage_engine.rocketmq.hold.marker import read_marker
from storage_engine.rocketmq.pending import pending
from storage_engine.rocketmq.simulation import course_start
from storage_engine.rocketmq.store import dependents
from storage_engine.rocketmq.store.store import BROKER, RocketMQStore
from storage_engine.rocketmq.store.store_lock import holder_text, is_locked_by_us, lock
from storage_engine.same_bytes.removing import remove_unchanged

_BEFORE, _LAST = "message_before", "last_message"
"""Keys in a receipt's evidence: SHA-256 of the previous segment's last message, and of the segment's own."""
_CHUNK_BYTES = 1 << 20


def _last_message_sha256(path: Path, base_offset: int) -> str:
    """Return the SHA-256 of a segment's last message; "" if there is no message near its end."""
    with map_file(path) as data:
        message = last_message(data, base_offset)
    return hashlib.sha256(message).hexdigest() if message else ""


def range_sha256(segments: Sequence[Segment], first: int, end: int) -> str | None:
    """Return the SHA-256 of a log's bytes [first, end); None if its files don't have all of them.

    :param segments: oldest first.
    :raises OSError: a file can't be read.
    """
    inside = [segment for segment in segments if segment.base_offset < end and segment.end_offset > first]
    digest, reached = hashlib.sha256(), first
    for segment in inside:
        if segment.base_offset > reached:
            return None
        with open_stored(segment.facts.path) as file:
            file.seek(reached - segment.base_offset)
            left_bytes = min(end, segment.end_offset) - reached
            while left_bytes and (chunk := file.read(min(left_bytes, _CHUNK_BYTES))):
                digest.update(chunk)
                left_bytes -= len(chunk)
                reached += len(chunk)
    return digest.hexdigest() if reached == end else None


def continues(left: Receipt, right: Receipt) -> bool:
    """Return whether the segment of ``right`` directly continues another replica's segment, that of ``left``.

    Each message contains its offsets and store time. So if the last message of ``left`` is the last message
    before ``right``, both logs have the same bytes up to that message.
    """
    before = right.known.get(_BEFORE)
    same_log = left.log_id is not None and left.log_id == right.log_id
    return same_log and bool(before) and left.known.get(_LAST) == before


def watch_levels(
    log_disks: Sequence[DiskUsage],
    dependents_disk: DiskUsage,
    config: BrokerConfig,
    now_ms: int,
    zone: ZoneInfo,
) -> Watch:
    """Return the causes of a cleanup, from the clock and from disks that were measured on any host.

    With replicasPerDiskPartition > 1 the store's size can be a cause, too. Here the size is unknown, and no
    cause.

    :param zone: time zone of deleteWhen.
    """
    snapshot = StoreSnapshot(
        broker=BROKER,
        root=config.store_path_root_dir,
        taken_at_ms=now_ms,
        logs=(),
        log_disks=tuple(log_disks),
        dependents_disk=dependents_disk,
        crashed=False,
    )
    causes, notices = triggers(snapshot, config, now_ms, zone, PlanRequest())
    deciding = [
        disk.used_percent
        for disk in (least_used(snapshot.log_disks), dependents_disk)
        if disk is not None and disk.used_percent is not None
    ]
    return Watch(
        watched_at_ms=now_ms,
        triggers=causes,
        notices=notices,
        levels=(*snapshot.log_disks, dependents_disk),
        deciding_percent=max(deciding, default=None),
        ordinary_percent=config.disk_max_used_space_ratio_percent,
        next_window_ms=next_window_ms(now_ms, delete_hours(config), zone),
    )


@dataclass(frozen=True, slots=True)
class MarkedHold(StoreHold):
    """The end of a hold of a stopped broker's store, from the marker. A stopped broker deletes nothing."""

    root: Path

    def held_until_ms(self) -> int | None:
        marker = read_marker(self.root)
        return None if marker is None else marker.ends_at_ms


@dataclass(frozen=True, slots=True)
class LogReplicas(StoreReplicas):
    """Comparison of a log with the logs of other brokers with the same name."""

    config: BrokerConfig
    layout: StoreLayout

    def contexts(self, segments: Sequence[Segment]) -> Mapping[SegmentId, SegmentContext]:
        """Return the facts that a broker's replicas share with it; empty if its name or cluster is unknown.

        :raises OSError: a file can't be read.
        """
        names = [self.config.raw.get(key, "").strip() for key in (CLUSTER, NAME)]
        if not all(names):
            return {}
        files = [(path, size) for path, size in list_raw_files(self.layout.log_paths) if is_offset(path.name)]
        by_end = {int(path.name) + size_bytes: path for path, size_bytes in files}
        contexts = {}
        for segment in segments:
            evidence = {_LAST: _last_message_sha256(Path(segment.facts.path), segment.base_offset)}
            if before := by_end.get(segment.base_offset):
                with suppress(FileNotFoundError):
                    evidence[_BEFORE] = _last_message_sha256(before, int(before.name))
            contexts[segment.id] = SegmentContext(NAMED + "/".join(names), evidence)
        return contexts

    def range_sha256(self, segments: Sequence[Segment], first: int, end: int) -> str | None:
        return range_sha256(segments, first, end)


@dataclass(frozen=True, slots=True)
class FileConsumers(StoreConsumers):
    """Consumers in a stopped broker's files."""

    layout: StoreLayout

    def pending(self, snapshot: StoreSnapshot) -> tuple[Pending, ...]:
        if self.layout.archive_only:
            return tuple(Pending(kind, None, error=self.layout.archive_only, log=LOG) for kind in PendingKind)
        return pending(self.layout)

    def unread(
        self, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int], *, deleted: bool = False
    ) -> Unread:
        # Loading Arrow takes longer than most plans take.
        from storage_engine.rocketmq.lag.consumer_offsets import consumers_in_files, group_positions
        from storage_engine.rocketmq.lag.lag import unread_messages

        self.layout.check_cleanable()
        (log,) = snapshot.logs
        layout, end_offset = self.layout, new_min_offsets[LOG]
        consumers = consumers_in_files(layout)
        positions = group_positions(layout, consumers)
        result = unread_messages(layout, log.segments, positions, end_offset, 1, deleted=deleted)
        return result.with_errors(consumers.unknown)


@dataclass(frozen=True, slots=True)
class FileCourse(StoreCourse):
    """Future deletions, computed from a broker's settings and files."""

    layout: StoreLayout
    config: BrokerConfig
    zone: ZoneInfo

    def sealed_at_ms(self, snapshot: StoreSnapshot) -> Mapping[SegmentId, int]:
        return sealed_at_ms(snapshot)

    def deletes_at_ms(self, snapshot: StoreSnapshot, now_ms: int) -> Mapping[SegmentId, int | None]:
        return cleanup_rules.age_deletions_ms(snapshot, self.config, now_ms, self.zone)

    def oldest_message_ms(self, snapshot: StoreSnapshot) -> int | None:
        return oldest_message_ms(snapshot)

    def kept_ms(self) -> int:
        return self.config.file_reserved_time_hours * HOUR_MS

    def rule_config(self) -> Mapping[str, str]:
        return self.config.raw

    def start(self, snapshot: StoreSnapshot) -> CourseStart | None:
        if self.layout.archive_only:
            return None
        oldest_ms = self.oldest_message_ms(snapshot)
        return course_start(snapshot, self.layout, self.zone, oldest_ms)


@dataclass(frozen=True, slots=True)
class FileCauses(StoreCauses):
    """Causes of a cleanup, from a broker's settings, its disks and the clock."""

    layout: StoreLayout
    config: BrokerConfig
    zone: ZoneInfo

    def triggers(
        self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest
    ) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
        return cleanup_rules.triggers(snapshot, self.config, now_ms, self.zone, request)

    def watch(self, now_ms: int) -> Watch:
        log_disks = [DiskUsage.of(path) for path in self.layout.commitlog_paths]
        return watch_levels(log_disks, DiskUsage.of(self.layout.consumequeue), self.config, now_ms, self.zone)


@dataclass(frozen=True, slots=True)
class FileProcess(StoreProcess):
    """The process that has a store's lock, and the broker's progress in the store's files."""

    layout: StoreLayout

    def user(self) -> str:
        return holder_text(self.layout)

    def is_user_ours(self) -> bool:
        return is_locked_by_us(self.layout)

    def checkpoint(self) -> Mapping[str, int]:
        return read_known_values(self.layout.checkpoint) or {}

    def flush_paths(self, snapshot: StoreSnapshot) -> tuple[Path, ...]:
        layout = self.layout
        (log,) = snapshot.logs
        active = [Path(s.facts.path) for s in log.segments if s.state is SegmentState.ACTIVE]
        others = (layout.checkpoint, layout.index, layout.consumequeue, layout.root, *layout.log_paths)
        return tuple(path for path in (*active, *others) if path.exists())


@dataclass(frozen=True, slots=True)
class FileShield(StoreShield):
    """The shield of a stopped broker's store. Its size has no limit, since the broker deletes no segment."""

    files: RocketMQStore

    def need(self) -> ShieldNeed:
        disk_bytes, used_percent = log_disks(self.files.layout)
        return ShieldNeed(disk_bytes=disk_bytes, used_percent=used_percent)

    def sealed_files(self) -> tuple[Segment, ...]:
        return with_original_times(self.files.raw_log(), None, self.files.layout.root).sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedLog(LockedStore):
    """A stopped broker's store, under its lock.

    :param memory: memory of an earlier hold beside the running broker. It has the broker's replicas.
    :param only_master: not empty after a check has found no other master of the broker's name.
    """

    layout: StoreLayout
    config: BrokerConfig
    memory: HoldMemory | None
    only_master: list[bool] = field(default_factory=list, compare=False, repr=False)

    def check_deletable(self, is_replicated: Callable[[], bool]) -> None:
        """Check once that no other broker is the master of the broker's name.

        A stopped master becomes master again when it starts, so it is always checked. A slave is checked
        only if a controller decides the roles.
        """
        # Loading Arrow takes longer than most plans take.
        from storage_engine.rocketmq.remoting.masters import BrokerGroup

        settings = self.config.raw
        is_slave = settings.get(ROLE, "").strip() == SLAVE
        if self.only_master or (is_slave and not has_controller(self.config, self.layout)):
            return
        others = BrokerGroup(settings).find_replicas(known_replicas(self.memory, settings), is_replicated)
        others.check_only_master(self.layout.root)
        self.only_master.append(True)


@dataclass(frozen=True, slots=True)
class QueuesAndIndex(StoreDependents):
    """Consume queues and index.

    :param left_out: reasons why the last search left files out.
    :param attempts: number of attempts to read files to which a running broker may write.
    """

    layout: StoreLayout
    config: BrokerConfig
    left_out: list[str]
    attempts: int = 1

    def find(self, min_offsets: Mapping[str, int]) -> tuple[DependentFile, ...]:
        self.layout.check_cleanable()

        def find() -> tuple[DependentFile, ...]:
            self.left_out.clear()
            return dependents.expired_dependents(
                self.layout, self.config, min_offsets[LOG], self.left_out, self.attempts
            )

        return reread(find, self.attempts)

    @property
    def unread(self) -> tuple[str, ...]:
        return tuple(self.left_out)

    def delete(
        self,
        files: Sequence[DependentFile],
        meanwhile: Callable[[], object],
        remove: Remove = durable.unlink_in,
    ) -> None:
        self.layout.check_cleanable()
        dependents.delete_dependents(self.layout, files, remove)


@dataclass(frozen=True, slots=True)
class RocketMQBrokerStore(BrokerStore):
    """A stopped broker's store. If only its log is readable, it can be inspected and archived, not cleaned.

    :param opened_by: settings with which it was opened.
    :param left_out: reasons why the last search for queue and index files left files out.
    :param memory: memory of a hold beside its running broker.
    """

    files: RocketMQStore
    config: BrokerConfig
    zone: ZoneInfo
    opened_by: StoreSettings
    left_out: list[str] = field(default_factory=list, compare=False, repr=False)
    memory: HoldMemory | None = field(default=None, compare=False, repr=False)

    def renewed(self, memory: HoldMemory) -> RocketMQBrokerStore:
        return replace(open_any(self.opened_by), memory=memory)

    @property
    def limit(self) -> StoreLimit | None:
        reason = self.files.layout.archive_only
        return StoreLimit(reason) if reason else None

    @property
    def data_paths(self) -> tuple[Path, ...]:
        layout = self.files.layout
        return (layout.root, *layout.log_paths, layout.consumequeue, layout.index)

    @property
    def consumers(self) -> StoreConsumers:
        return FileConsumers(self.files.layout)

    @property
    def course(self) -> FileCourse:
        return FileCourse(self.files.layout, self.config, self.zone)

    @property
    def causes(self) -> FileCauses:
        return FileCauses(self.files.layout, self.config, self.zone)

    @property
    def process(self) -> FileProcess:
        return FileProcess(self.files.layout)

    @property
    def shield(self) -> StoreShield:
        return FileShield(self.files)

    @property
    def dependents(self) -> QueuesAndIndex:
        return QueuesAndIndex(self.files.layout, self.config, self.left_out)

    @property
    def replicas(self) -> LogReplicas:
        return LogReplicas(self.config, self.files.layout)

    @property
    def hold(self) -> MarkedHold:
        return MarkedHold(self.files.layout.root)

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """Return the store's snapshot. If a hold outlived the broker, mtimes are those before the hold."""
        return self._as_without_hold(self.files.snapshot(now_ms))

    def glance(self, now_ms: int) -> StoreSnapshot:
        return self._as_without_hold(self.files.snapshot(now_ms, find_end=near_logical_end))

    def _as_without_hold(self, snapshot: StoreSnapshot) -> StoreSnapshot:
        root = self.files.layout.root
        if self.limit and snapshot.crashed and self.process.user():
            # A running broker leaves the same sign as a crash, and such a store is archived beside it.
            snapshot = replace(snapshot, crashed=False)
        logs = (with_original_times(log, None, root) for log in snapshot.logs)
        return replace(snapshot, logs=tuple(map(self._as_confirmed, logs)))

    def _as_confirmed(self, log: LogSnapshot) -> LogSnapshot:
        """Return the log. It counts as confirmed up to its end if a controller can elect only its broker."""
        if log.confirmed_offset is None or self.opened_by.live is not None:
            return log
        # Loading Arrow takes longer than most plans take.
        from storage_engine.rocketmq.remoting.masters import BrokerGroup

        try:
            identity = read_stored(self.files.layout.root / IDENTITY).decode()
        except (OSError, UnicodeDecodeError, BadInputError):
            return log
        is_final = BrokerGroup(self.config.raw).is_alone_in_sync(identity)
        return replace(log, confirmed_offset=None) if is_final else log

    def archivable(self, snapshot: StoreSnapshot) -> Archivable:
        return archivable(snapshot)

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        if self.limit:
            causes, notices = self.causes.triggers(snapshot, now_ms, request)
            return keep_all(snapshot, now_ms, causes, notices)
        return plan(snapshot, self.config, now_ms, self.zone, request)

    @contextmanager
    def lock(self) -> Iterator[LockedStore]:
        with lock(self.files.layout) as locked_store:
            yield self.locked(locked_store.notices)

    def locked(self, notices: tuple[str, ...]) -> LockedLog:
        """Return the locked store, for a caller that has the lock."""
        return LockedLog(notices, 1, layout=self.files.layout, config=self.config, memory=self.memory)

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        self.files.layout.check_cleanable()
        for segment in segments:
            remove_unchanged(segment, self.files.layout.root, remove)


def cut_log(log: LogSnapshot, end: int, dispatched: int) -> LogSnapshot:
    """Return a log, as its files show it, cut at an end that its writer reported before the files were read.

    :param end: the reported end. Only segments below this offset are sealed.
    :param dispatched: offset up to which messages are in consume queues.
    """
    segments = tuple(
        replace(segment, state=SegmentState.ACTIVE) if segment.end_offset > end else segment
        for segment in log.segments
    )
    dispatched = max(min(log.dispatched_offset, dispatched), log.min_offset)
    return replace(log, segments=segments, dispatched_offset=dispatched)


def open_files(settings: StoreSettings) -> RocketMQBrokerStore:
    """Open a stopped broker's store, or any broker's files.

    :raises UnsupportedLayoutError: the store's layout doesn't permit deletions.
    """
    store = open_any(settings)
    store.files.layout.check_cleanable()
    return store


def open_any(settings: StoreSettings) -> RocketMQBrokerStore:
    """Open a store's files. If only the log can be read, it can be archived, but not cleaned."""
    config = load_broker_config(settings.broker_conf, settings.overrides, root=settings.root)
    files = RocketMQStore.open(config, to_archive=True)
    return RocketMQBrokerStore(files, config, zone_of(settings.time_zone), settings)
