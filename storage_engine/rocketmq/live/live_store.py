"""The store of a running broker, as retention uses it. Facts come from files and from the broker.

A running broker deletes queue and index files itself after its log's min offset has moved. It does so in a
pass of its own, each cleanResourceInterval (CleanConsumeQueueService#deleteExpiredFiles). Request 306 would
not speed this up: it drops whole queues, with their last file and their count of offsets
(ConsumeQueueStore#cleanExpired).

A watch takes the causes of a cleanup from the broker's own figures, and measures none of our paths. A plan
takes them from the snapshot, whose disks are measured here. Consumers and their positions come from the
broker, or from files if it doesn't answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from storage_engine.arrow.name_columns import names_of, one_array
from storage_engine.commands import Command, Text
from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import count_text, duration_text, time_text
from storage_engine.exceptions import (
    BadInputError,
    BrokerError,
    BrokerUnavailableError,
    GateRefusedError,
    NotOnBrokerError,
)
from storage_engine.model.broker.broker_store import (
    BrokerStore,
    Pending,
    Remove,
    StoreConsumers,
    StoreSettings,
    StoreShield,
    UnheldSegments,
    Watch,
)
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import BrokerProgress, Drift, DriftKind, HoldMemory, HoldStatus, ShieldNeed
from storage_engine.model.lag import LagSource, PositionsFrom, Unread
from storage_engine.model.plan import DependentFile, Plan, PlanRequest, Trigger
from storage_engine.model.store import Archivable, LogSnapshot, Segment, SegmentId, StoreSnapshot
from storage_engine.rocketmq.cleanup_rules import (
    Patience,
    dependents_patience_seconds,
    interval_ms,
    keep_all,
    log_disks,
    time_zone,
    until_first_pass_seconds,
)
from storage_engine.rocketmq.codec.stored_messages import file_of, newest_message_ms, sealed_at_ms
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.layout import LOG, StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile
from storage_engine.rocketmq.format.stored_files import ATTEMPTS, reread
from storage_engine.rocketmq.hold import fence, marker
from storage_engine.rocketmq.hold.heartbeat import is_shield_tended
from storage_engine.rocketmq.hold.hold_state import (
    FORCIBLY,
    ROLE,
    SLAVE,
    HoldMemories,
    HoldState,
    Observed,
    load_state,
    save_state,
)
from storage_engine.rocketmq.lag.consumer_offsets import Consumers, consumers_in_files, read_filtered
from storage_engine.rocketmq.live import hold, release, status
from storage_engine.rocketmq.live.connect import (
    as_who_may_read,
    local_settings,
    reach,
    reach_master,
    refuse_other_broker,
    refuse_slave,
)
from storage_engine.rocketmq.live.drift import ENDS_TRUST, all_drift
from storage_engine.rocketmq.live.hold import LockedLive
from storage_engine.rocketmq.live.identity import ask_and_look, ask_known_frame, check_same_store
from storage_engine.rocketmq.live.observe import LiveParts, Session, observe
from storage_engine.rocketmq.pending import pending
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.remoting.answers import RuntimeInfo
from storage_engine.rocketmq.simulation import unheld_segments
from storage_engine.rocketmq.store import store_lock
from storage_engine.rocketmq.store.broker import (
    FileCauses,
    FileCourse,
    FileProcess,
    LogReplicas,
    MarkedHold,
    QueuesAndIndex,
    cut_log,
    open_files,
    watch_levels,
)


def watch(info: RuntimeInfo, config: BrokerConfig, now_ms: int, zone: ZoneInfo) -> Watch:
    """Return the causes of a cleanup, from the disk levels that the broker reports and from the clock."""
    return watch_levels(*disks(info, config), config, now_ms, zone)


def disks(info: RuntimeInfo, config: BrokerConfig) -> tuple[tuple[DiskUsage, ...], DiskUsage]:
    """Return the log's disks and the consume queue's disk, with the broker's paths and levels.

    A level that the broker can't measure (-1) is unknown.
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
    # The level is a whole percent (UtilAll#getDiskPartitionSpaceUsedPercent), sent as a double such as 0.57.
    return DiskUsage(path=path, used_percent=math.ceil(round(percent, 6)))


def watch_store(settings: StoreSettings, live: LiveBroker, now_ms: int) -> Watch:
    """Ask the broker for the causes of a cleanup, on any host, within the connection's timeouts.

    :return: a look. It isn't ``known`` if the broker doesn't answer, or its answer can't be used.
    :raises BadInputError: the broker's settings are not usable, or it is a slave.
    """
    try:
        with reach(live) as admin:
            broker_settings, info, address = admin.config(), admin.runtime_info(), admin.address
    except (BrokerError, NotOnBrokerError) as error:
        return unknown(now_ms, f"the broker can't be asked, so nothing triggers: {error}")
    refuse_slave(broker_settings, address)
    here = local_settings(broker_settings, settings.root, settings.overrides)
    config = load_broker_config(None, here, root=settings.root)
    return watch(info, config, now_ms, time_zone(settings.time_zone))


def unknown(now_ms: int, notice: str) -> Watch:
    """Return a look without result: whether there is a cause isn't known."""
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


POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class LiveStore(BrokerStore):
    """A running broker's store."""

    parts: LiveParts

    def renewed(self, memory: HoldMemory) -> LiveStore:
        """Ask for the settings again. A new connection is made only if another broker is the master now."""
        self.parts.session.renew()
        return _open(self.parts.session, self.parts.opened_by, self.parts.live, memory)

    def close(self) -> None:
        self.parts.session.close()

    @property
    def is_live(self) -> bool:
        return True

    @property
    def data_paths(self) -> tuple[Path, ...]:
        return self.parts.files.data_paths

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """Return the store's snapshot.

        A segment counts as sealed if the files show this, and it doesn't end behind the broker's max offset.

        :raises BrokerError: the broker doesn't answer.
        :raises BadInputError: the directory isn't this broker's store, or the held broker is a slave now.
        """
        return _look(self.parts, lambda: self.parts.files.snapshot(now_ms))

    def glance(self, now_ms: int) -> StoreSnapshot:
        return _look(self.parts, lambda: self.parts.files.glance(now_ms))

    def archivable(self, snapshot: StoreSnapshot) -> Archivable:
        return self.parts.files.archivable(snapshot)

    @property
    def replicas(self) -> LogReplicas:
        return self.parts.files.replicas

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        """Plan as for a stopped broker, but keep every segment of a slave.

        A slave deletes by its own rules, and is never held.
        """
        if self.parts.settings.get(ROLE) == SLAVE:
            causes, notices = self.parts.files.causes.triggers(snapshot, now_ms, request)
            why = "a slave cleans by its own rules: nothing is deleted from here"
            return keep_all(snapshot, now_ms, causes, notices, why)
        return self.parts.files.plan(snapshot, now_ms, request)

    @property
    def course(self) -> LiveCourse:
        return LiveCourse(self.parts.layout, self.parts.files.config, self.parts.files.zone)

    @property
    def causes(self) -> LiveCauses:
        files = self.parts.files
        return LiveCauses(files.files.layout, files.config, files.zone, self.parts.admin, self.parts.settings)

    @property
    def process(self) -> LiveProcess:
        return LiveProcess(self.parts.layout, self.parts.admin)

    @property
    def shield(self) -> LiveShield:
        return LiveShield(self.parts)

    @property
    def dependents(self) -> LiveDependents:
        parts, files = self.parts, self.parts.files
        return LiveDependents(parts.layout, files.config, files.left_out, ATTEMPTS, admin=parts.admin)

    @property
    def consumers(self) -> LiveConsumers:
        return LiveConsumers(self.parts.layout, self.parts.admin, self.parts.settings, self.parts.live)

    @property
    def hold(self) -> LiveHold:
        return LiveHold(self.parts.root, self.parts)

    @contextmanager
    def lock(self) -> Iterator[LockedLive]:
        """Renew the hold, and lock it against other runs until the block ends. The hold outlives the block.

        :raises GateRefusedError: the store can't be held, or the hold's state can't be saved.
        """
        if self.parts.memory is None:
            raise GateRefusedError(
                f"{self.parts.root}: expected a journal that remembers its hold, found none."
            )
        with hold.locked(self.parts) as held:
            yield held

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        release.delete_segments(self.parts, segments, meanwhile)


def _look(parts: LiveParts, look: Callable[[], StoreSnapshot]) -> StoreSnapshot:
    def listed() -> tuple[StoreSnapshot, list[MappedFile]]:
        with as_who_may_read(parts.files.config.store_path_root_dir):
            snapshot = reread(look, ATTEMPTS)
        return snapshot, [file_of(segment) for log in snapshot.logs for segment in log.segments]

    before, snapshot, files = ask_and_look(parts.admin, listed)
    (log,) = snapshot.logs
    if load_state(parts.memory) is not None:
        refuse_slave(parts.settings, parts.admin.address)
    check_same_store(parts.admin, before, parts.layout, files)
    log = fence.with_original_times(as_the_broker_says(log, before), parts.memory, parts.root)
    if log.confirmed_offset is not None and (confirmed := parts.admin.confirmed_offset()) is not None:
        log = replace(log, confirmed_offset=confirmed)
    return replace(snapshot, crashed=False, logs=(log,))


class LiveCourse(FileCourse):
    """The course of a store whose running broker may delete a file before it is read."""

    __slots__ = ()

    def sealed_at_ms(self, snapshot: StoreSnapshot) -> Mapping[SegmentId, int]:
        return sealed_at_ms(snapshot, may_go=True)


@dataclass(frozen=True, slots=True)
class LiveCauses(FileCauses):
    """Causes of a cleanup. :meth:`watch` finds them by a running broker's own figures."""

    admin: BrokerAdmin
    settings: Mapping[str, str]

    def triggers(
        self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest
    ) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
        refuse_slave(self.settings, self.admin.address)
        return FileCauses.triggers(self, snapshot, now_ms, request)

    def watch(self, now_ms: int) -> Watch:
        return watch(self.admin.runtime_info(), self.config, now_ms, self.zone)


@dataclass(frozen=True, slots=True)
class LiveProcess(FileProcess):
    """The process of a running broker."""

    admin: BrokerAdmin

    def user(self) -> str:
        """Return "": no other process than the broker uses the store."""
        return ""

    def running_pid(self) -> int | None:
        with suppress(OSError):
            holder = store_lock.lock_holder(self.layout)
            return None if holder is None else holder.pid
        return None

    def progress(self, now_ms: int) -> BrokerProgress | None:
        checkpoint, info = self.checkpoint(), self.admin.runtime_info()
        newest_ms = newest_message_ms(self.layout, info.commitlog_max_offset)
        return status.progress(info, checkpoint, now_ms, newest_ms)


@dataclass(frozen=True, slots=True)
class LiveShield(StoreShield):
    """Shield of a store beside its running broker."""

    parts: LiveParts

    def need(self) -> ShieldNeed:
        parts = self.parts
        disk_bytes, used_percent = log_disks(parts.layout)
        refusal = ""
        try:
            if load_state(parts.memory) is None:
                refusal = "the store isn't held"
        except GateRefusedError as error:
            refusal = Text(error)
        return ShieldNeed(
            # A fence has one segment more than a pass can delete.
            batch_segments=fence.fence_count(parts.settings) - 1,
            pass_interval_ms=max(interval_ms(parts.files.config), 1),
            disk_bytes=disk_bytes,
            used_percent=used_percent,
            is_tended=is_shield_tended(parts.root),
            refusal=refusal,
        )

    def sealed_files(self) -> tuple[Segment, ...]:
        parts, before = self.parts, self.parts.admin.runtime_info()
        with as_who_may_read(parts.files.config.store_path_root_dir):
            log = parts.files.files.raw_log()
        return fence.with_original_times(as_the_broker_says(log, before), parts.memory, parts.root).sealed

    def end_force(self) -> Drift | None:
        """See :meth:`storage_engine.model.broker.broker_store.StoreShield.end_force`.

        Nothing is set while the disk is above the broker's warning level: a person may have allowed deletion
        by force because the disk was full. Nor is anything set if the level is unknown, or if we may not
        change settings. Another run may have the lock of :func:`marker.alone` meanwhile.
        """
        parts = self.parts
        memory, state = parts.memory, load_state(parts.memory)
        if memory is None or state is None:
            return None
        if (value := parts.admin.config().get(FORCIBLY)) == "false":
            return None
        reason = _explain_not_set(parts)
        if reason and parts.admin.runtime_info().boot_timestamp_ms == state.boot_timestamp_ms:
            return _set(parts, value, reason)
        # Slow requests come before the lock, since a run that needs the lock would wait for them, too.
        observed = ask_known_frame(parts.admin, state, observe(parts, clock_ms(), state))
        # Asked last: the request that sets the value may reach another process than the one observed.
        answers_ms = parts.admin.runtime_info().boot_timestamp_ms
        if drift := another_broker(state, observed, answers_ms):
            return drift
        if reason:
            return _set(parts, value, reason)
        with marker.changing(parts.root):
            now = load_state(memory)
            if now is None or _judged_part(now) != _judged_part(state):
                return None  # a run has changed the hold, and sets the value itself, or the next call does
            ended = fence.with_force_ended(now, value or "")
            if ended != now:
                save_state(memory, ended)
            parts.admin.update_config({FORCIBLY: "false"})
        return _set(parts, value, f". It was set back to false {time_text(clock_ms())}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDependents(QueuesAndIndex):
    """Consume queues and index, whose files a running broker deletes itself once its min offset has moved."""

    admin: BrokerAdmin

    def delete(
        self,
        files: Sequence[DependentFile],
        meanwhile: Callable[[], object],
        remove: Remove = durable.unlink_in,
    ) -> None:
        """Wait until the broker's own passes have deleted all files. Then fsync the directories.

        If for too long no file is deleted, the wait ends, and the remaining files stay.

        :raises BrokerError: the broker doesn't answer.
        """
        paths = {Path(file.facts.path) for file in files}
        remaining = {path for path in paths if path.exists()}
        if remaining:
            first = until_first_pass_seconds(self.admin.runtime_info().boot_timestamp_ms)
            patience = Patience(dependents_patience_seconds(self.config), first, meanwhile)
            while remaining and not patience.is_over:
                patience.pause(POLL_SECONDS)
                still = {path for path in remaining if path.exists()}
                if still != remaining:
                    patience.progressed()
                remaining = still
        for directory in {path.parent for path in paths}:
            if directory.is_dir():
                durable.fsync_path(directory)


@dataclass(frozen=True, slots=True)
class LiveConsumers(StoreConsumers):
    """Consumers, from a running broker, or from its files if it doesn't answer."""

    layout: StoreLayout
    admin: BrokerAdmin
    settings: Mapping[str, str]
    live: LiveBroker

    def pending(self, snapshot: StoreSnapshot) -> tuple[Pending, ...]:
        return pending(self.layout, attempts=ATTEMPTS)

    def unread(
        self, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int], *, deleted: bool = False
    ) -> Unread:
        from storage_engine.rocketmq.lag.consumer_offsets import group_positions
        from storage_engine.rocketmq.lag.lag import unread_messages

        (log,) = snapshot.logs
        try:
            consumers, source = live_consumers(self.admin, self.settings, self.live, self.layout)
        except BrokerError as error:
            consumers, source = consumers_written_down(self.layout, error)
        positions, end = group_positions(self.layout, consumers), new_min_offsets[LOG]
        result = unread_messages(self.layout, log.segments, positions, end, ATTEMPTS, deleted=deleted)
        return replace(result, notices=source.notices).with_errors(consumers.unknown)


@dataclass(frozen=True, slots=True)
class LiveHold(MarkedHold):
    """A hold beside a running broker."""

    parts: LiveParts

    def renew(self, now_ms: int) -> HoldStatus:
        return hold.renew(self.parts, now_ms)

    def status(self, now_ms: int) -> HoldStatus:
        return status.look(self.parts, now_ms)

    def unheld_segments(self, now_ms: int, until_ms: int) -> UnheldSegments:
        parts, files = self.parts, self.parts.files
        refuse_slave(parts.settings, parts.admin.address)
        snapshot = _look(parts, lambda: files.snapshot(now_ms))
        start = files.course.start(snapshot)
        return UnheldSegments(unheld_segments(snapshot, files.config, until_ms, files.zone, start))

    def end(self, now_ms: int) -> HoldStatus:
        return hold.end_hold(self.parts, now_ms)


def as_the_broker_says(log: LogSnapshot, info: RuntimeInfo) -> LogSnapshot:
    """Return a log as its files show it, cut at the end that the broker reported.

    :param info: the broker's answer from before the listing. Only segments below its max offset are sealed.
    """
    end = info.commitlog_max_offset
    # The broker counts ``dispatch_behind_bytes`` from a later max offset, so the result is never too high.
    return cut_log(log, min(log.max_offset, end), end - info.dispatch_behind_bytes)


def open_live(settings: StoreSettings, live: LiveBroker, memory: HoldMemory | None) -> LiveStore:
    """Open a store with the settings that its broker reports.

    :raises BadInputError: the settings are not usable, or the broker has another name.
    :raises StoreNotFoundError: a directory of the store is missing here.
    :raises BrokerError: the broker doesn't answer.
    """
    session = Session(live)
    try:
        return _open(session, settings, live, memory)
    except BaseException:
        session.close()
        raise


def _open(
    session: Session, settings: StoreSettings, live: LiveBroker, memory: HoldMemory | None
) -> LiveStore:
    root, admin = Path(settings.root), session.admin
    if memory is not None:
        memory = HoldMemories(memory, root)
    config = admin.config()
    refuse_other_broker(config, live.broker_name, admin.address)
    original = fence.with_original_settings(config, memory, root)
    here = local_settings(original, settings.root, settings.overrides)
    with as_who_may_read(settings.root):
        files = open_files(replace(settings, broker_conf=None, overrides=here))
    return LiveStore(LiveParts(session, admin, files, config, live, memory, settings))


def another_broker(state: HoldState, observed: Observed, answers_ms: int) -> Drift | None:
    """Return drift, or None if it is proven that this broker is the held one.

    The process of the last look is the held broker. Any other process must be proven to run on this store.

    :param answers_ms: boot timestamp of the process that answers after the look.
    """
    if ended := next((drift for drift in all_drift(state, observed) if drift.kind in ENDS_TRUST), None):
        return replace(ended, detail=Text(ended.detail, " Its settings were left as they are."))
    is_proven = observed.boot_timestamp_ms == state.boot_timestamp_ms or not observed.unproven
    if is_proven and answers_ms == observed.boot_timestamp_ms:
        return None
    why = observed.unproven.rstrip(".") or "another process answers there from one moment to the next"
    return Drift(
        DriftKind.BROKER_RESTARTED,
        Text(
            f"{observed.address}: expected the broker that is held, found another process with "
            f"{FORCIBLY}={observed.settings.get(FORCIBLY)}, which isn't provably the same broker ({why}). "
            "Its settings were left as they are. Run ",
            Command("hold"),
            ", which looks at it again.",
        ),
    )


def _judged_part(state: HoldState) -> HoldState:
    """Return a state without the fields that a watch changes. Only runs change the rest."""
    return replace(state, touched=(), fence=(), fence_offset=-1)


def _explain_not_set(parts: LiveParts) -> str:
    """Return why we may not end a broker's deletion by force, as the end of a sentence; "" if we may."""
    _, used_percent = log_disks(parts.layout)
    limit = parts.files.config.disk_space_warning_level_percent
    level = "unknown" if used_percent is None else f"{used_percent} %"
    if not parts.live.may_change_settings:
        return f"; its disk is at {level}. We may not set it (may_change_settings): set it to false yourself."
    if used_percent is None or used_percent > limit:
        return (
            f"; its disk is at {level}. The broker's warning level is {limit} %, so it was left as it is: "
            "free some space, and set it to false."
        )
    return ""


def _set(parts: LiveParts, value: str | None, what_was_done: str) -> Drift:
    return Drift(
        DriftKind.SETTING_CHANGED,
        f"{parts.admin.address}: expected {FORCIBLY}=false, found {value}: somebody changed it while the "
        f"store was held{what_was_done}",
    )


ASKED_FOR_SUBSCRIPTIONS = 2000
"""Largest number of groups without any offset whose subscriptions are requested, each in about 1 ms."""
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"

_OFFSET_FILES = ("consumerOffset.json", "lmqConsumerOffset.json")


@contextmanager
def _reach_positions(
    admin: BrokerAdmin, settings: Mapping[str, str], live: LiveBroker
) -> Iterator[tuple[BrokerAdmin, tuple[str, ...]]]:
    """Yield the broker that knows the groups' positions, and notices. For a slave, this is its master.

    A slave copies positions only once a minute.

    :raises BrokerUnavailableError: the broker is a slave, and its master doesn't answer.
    """
    if settings.get(ROLE) != SLAVE:
        yield admin, ()
        return
    try:
        master = reach_master(settings, live)
    except (BrokerError, BadInputError) as error:
        raise BrokerUnavailableError(
            f"{admin.address} is a slave, which only copies positions, and its master can't be asked: {error}"
        ) from error
    with master:
        notice = (
            f"groups' positions come from master {master.address}; messages that this slave has not "
            "received yet count in no lag"
        )
        yield master, (notice,)


def live_consumers(
    admin: BrokerAdmin, settings: Mapping[str, str], live: LiveBroker, layout: StoreLayout
) -> tuple[Consumers, LagSource]:
    """Return the groups that the broker, or a slave's master, knows. Light message queues are included.

    For a group without an offset, the subscriptions of its connected members count. Broadcasting members,
    each of which takes every message, don't count: they keep their positions themselves.

    :raises BrokerError: the broker, or a slave's master, doesn't answer.
    """
    with _reach_positions(admin, settings, live) as (master, notices):
        committed = master.consumer_offsets()
        groups = master.groups()
        silent = sorted(groups - frozenset(names_of(one_array(committed["group"]).dictionary)))
        subscribed = {
            (group, topic)
            for group in silent[:ASKED_FOR_SUBSCRIPTIONS]
            for topic in master.clustering_subscriptions(group)
        }
    filtered, unknown = read_filtered(layout, ATTEMPTS)
    if unasked := silent[ASKED_FOR_SUBSCRIPTIONS:]:
        text = f"subscriptions of {count_text(len(unasked), 'group')} without any offset were not asked for"
        notices = (*notices, text)
    consumers = Consumers(committed, groups, filtered | subscribed, unknown)
    return consumers, LagSource(PositionsFrom.BROKER, None, (*notices, *_pop_notice(layout)))


def consumers_written_down(layout: StoreLayout, error: BrokerError) -> tuple[Consumers, LagSource]:
    """Return the groups in the broker's files, and the files' time as their source.

    While the broker runs, the files are behind its memory by up to flushConsumerOffsetInterval.

    :param error: reason why the broker can't be asked.
    :raises BrokerError: ``error``, because the broker has never written its groups to files.
    """
    paths = [layout.config / name for name in _OFFSET_FILES]
    written_ms = max((path.stat().st_mtime_ns // 1_000_000 for path in paths if path.exists()), default=None)
    if written_ms is None:
        raise error
    consumers = consumers_in_files(layout, ATTEMPTS)
    age = duration_text(max(0, time.time_ns() // 1_000_000 - written_ms))
    notice = (
        f"the broker could not be asked, so groups' positions are those that it wrote down {age} ago: {error}"
    )
    return consumers, LagSource(PositionsFrom.FILES, written_ms, (notice, *_pop_notice(layout)))


def _pop_notice(layout: StoreLayout) -> tuple[str, ...]:
    if not any(queue.topic.startswith(REVIVE_TOPIC_PREFIX) for queue in iter_queues(layout.consumequeue)):
        return ()
    return (
        "a group takes messages by pop: messages that it took and has not acknowledged are below its "
        "position, and are not counted",
    )
