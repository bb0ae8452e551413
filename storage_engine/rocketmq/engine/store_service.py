"""A store of the engine in its own process, which writes, answers requests, and deletes proven files.

Runs that archive and delete may take long. Meanwhile the cleanup's passes continue in another thread, and
decide whether a full disk stops writing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import StoreBusyError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import PlanRequest, Reason, Release, Trigger, Urgency
from storage_engine.model.store import StoreSnapshot
from storage_engine.rocketmq.cleanup_rules import (
    FIRST_PASS_MS,
    MANUAL_PASSES,
    accepts_writes_by,
    age_reason,
    delete_hours,
    full_log_disks,
    interval_ms,
    time_zone,
    triggers,
)
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.engine.recover_on_demand import check_nothing_cut
from storage_engine.rocketmq.engine.serving import serving
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.store.store import BROKER, dependents_bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogPass:
    """Result of one pass over the log.

    :param deleted: first offsets of the deleted files.
    """

    triggers: tuple[Trigger, ...]
    deleted: tuple[int, ...]


class CleanupLoop:
    """Cleanup passes over one open store. :func:`cleaning` runs them at intervals."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        zone: ZoneInfo,
        *,
        release: Callable[[PlanRequest], object] | None = None,
        clock: Callable[[], int] = clock_ms,
        measure: Callable[[Path], DiskUsage] = DiskUsage.of,
        pause: Callable[[int], object] | None = None,
    ) -> None:
        """Prepare to clean a store as its broker would. :meth:`start` starts the passes.

        :param zone: time zone of deleteWhen.
        :param release: deletes in place of this loop; None if the loop itself deletes what the rules allow.
        :param clock: returns ms since the epoch.
        :param pause: waits a number of ms; None for a wait that ends early when the loop is stopped.
        :raises BrokerConfigError: the broker can't parse deleteWhen.
        """
        delete_hours(config)
        self._store, self._config, self._zone = store, config, zone
        self._release, self._clock, self._measure = release, clock, measure
        self._stopped = threading.Event()
        self._pause = pause or (lambda pause_ms: self._stopped.wait(pause_ms / 1000))
        self._manual = 0
        self._retried_ms = 0
        self._cleaned_below = 0
        self._thread = threading.Thread(target=self._run, name="cleanup", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the pass at its next file, wait for its end, and finish a deletion that a reader delays.

        Queue files that point into that log file may be gone already. The reader keeps the log file's memory.
        """
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._release is None:
            self._store.files.retry_first(0, self._clock())

    def delete_manually(self) -> None:
        """Make the next passes delete expired files at any hour (#executeDeleteFilesManually)."""
        self._manual = MANUAL_PASSES

    def clean_log(self) -> LogPass:
        """Do one pass over the log (CleanCommitLogService#run)."""
        snapshot = self._disks()
        self._store.disk_full = not accepts_writes_by(snapshot, not self._store.disk_full, self._config)
        self._store.files.full_paths = frozenset(map(Path, full_log_disks(snapshot, self._config)))
        request = PlanRequest(manual=self._manual > 0)
        causes, _ = triggers(snapshot, self._config, snapshot.taken_at_ms, self._zone, request)
        deleted: tuple[int, ...] = ()
        if causes:
            self._manual -= request.manual
            if self._release is None:
                forced = any(cause.urgency is Urgency.FORCED for cause in causes)
                deleted = tuple(self._delete_expired(forced=forced))
            else:
                self._release(request)
        if self._release is None:
            now_ms = self._clock()
            if now_ms - self._retried_ms > self._config.redelete_hanged_file_interval_ms:
                # Retry to delete a first file that a reader used (#reDeleteHangedFile).
                self._retried_ms = now_ms
                self._store.files.retry_first(self._config.destroy_mapped_file_interval_forcibly_ms, now_ms)
        return LogPass(causes, deleted)

    def clean_queues(self) -> None:
        """Do one pass over consume queues and index (CleanConsumeQueueService#run)."""
        min_offset = self._store.files.min_offset
        if min_offset <= self._cleaned_below:
            return
        self._cleaned_below = min_offset
        if self._release is not None:
            # Runs delete the files, and record that in the journal.
            self._store.queues.correct_min(min_offset)
            return
        for writer in self._store.queues:
            if writer.clean_below(min_offset) and self._config.delete_consume_queue_files_interval_ms:
                self._pause(self._config.delete_consume_queue_files_interval_ms)
        if self._store.index is not None:
            self._store.index.delete_below(min_offset)

    def _run(self) -> None:
        wait_ms = FIRST_PASS_MS
        while not self._stopped.wait(wait_ms / 1000):
            began = time.monotonic()
            for work in (self.clean_log, self.clean_queues):
                try:
                    work()
                except Exception:
                    # As the broker, continue: the next pass may succeed, and checks the disk again.
                    _log.warning("%s: a cleanup pass failed.", self._store.layout.root, exc_info=True)
            wait_ms = max(0, interval_ms(self._config) - int((time.monotonic() - began) * 1000))

    def _disks(self) -> StoreSnapshot:
        layout = self._store.layout
        used_bytes = None
        if self._config.replicas_per_disk_partition > 1:
            files = self._store.files
            used_bytes = len(files.files) * files.file_bytes + dependents_bytes(layout)
        return StoreSnapshot(
            broker=BROKER,
            root=str(layout.root),
            taken_at_ms=self._clock(),
            logs=(),
            log_disks=tuple(self._measure(path) for path in layout.commitlog_paths),
            dependents_disk=self._measure(layout.consumequeue),
            crashed=False,
            used_bytes=used_bytes,
        )

    def _delete_expired(self, *, forced: bool) -> Iterator[int]:
        """Delete the oldest files, never the last (MappedFileQueue#deleteExpiredFileByTime)."""
        config, files = self._config, self._store.files
        candidates = files.files[:-1]
        for number, file in enumerate(candidates, start=1):
            on_disk_to = min(files.flushed_where, self._store.dispatched_offset)
            reason = age_reason(file.last_modified_ms(), self._clock(), config, forced=forced)
            if reason is Reason.NOT_EXPIRED or file.end_offset > on_disk_to or self._stopped.is_set():
                return
            if not file.destroy(config.destroy_mapped_file_interval_forcibly_ms, self._clock()):
                return
            # Make it durable before a younger file is deleted: a power loss must never leave a gap.
            files.forget([file])
            yield file.base_offset
            if number == config.delete_file_batch_max:
                return
            if number < len(candidates) and config.delete_commit_log_files_interval_ms:
                self._pause(config.delete_commit_log_files_interval_ms)


@contextmanager
def cleaning(
    store: MessageStore,
    config: BrokerConfig,
    zone: ZoneInfo,
    *,
    release: Callable[[PlanRequest], object] | None = None,
) -> Iterator[CleanupLoop]:
    """Clean a store at intervals while the block runs; see :class:`CleanupLoop`."""
    loop = CleanupLoop(store, config, zone, release=release)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


STOP_SECONDS = 20.0
"""Longest time that a stop waits for a run's current step. The next run completes a longer step."""


class ReleaseBeside:
    """Starts runs that delete, one at a time, in a thread of their own."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._thread: threading.Thread | None = None

    def __call__(self, request: PlanRequest) -> None:
        """Start a run unless one is running."""
        if self._thread is not None and self._thread.is_alive():
            return
        # As a daemon, it doesn't keep this process from ending.
        self._thread = threading.Thread(target=self._run, args=(request,), name="release", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the run at its next step, and wait up to :data:`STOP_SECONDS` for its end."""
        self._release.stop()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self, request: PlanRequest) -> None:
        try:
            self._release(request)
        except Exception:
            # A later pass starts another run. Until then messages are accepted.
            _log.warning("A run that deletes proven files failed.", exc_info=True)


@contextmanager
def releasing_beside(release: Release) -> Iterator[ReleaseBeside]:
    """Yield a :class:`ReleaseBeside`, and stop its run when the block ends."""
    beside = ReleaseBeside(release)
    try:
        yield beside
    finally:
        beside.stop()


_PAUSE_SECONDS = 1.0


def serve_store(
    settings: StoreSettings,
    topic: str | None,
    lines: Iterable[bytes],
    ends: threading.Event,
    release: Release | None,
) -> None:
    """Keep a store open and serve it, until the lines end or, without lines, ``ends`` is set.

    The cleanup's passes decide whether a full disk stops writing. They delete no files themselves: files are
    deleted by ``release``, or by a run in another process that has proven them.

    :param topic: topic whose messages the lines become; None if no lines are read.
    :param lines: lines without their line ends. They stop when ``ends`` is set.
    :param release: called when the rules allow a deletion; None if this process deletes no files by itself.
    :raises StoreBusyError: another process uses the store, or the store accepts no more messages.
    :raises CorruptFrameError: a recovery of the store would cut off undamaged messages.
    """
    config = load_broker_config(settings.broker_conf, settings.overrides, root=settings.root)
    with (
        open_store(config, check=check_nothing_cut) as store,
        serving(store),
        nullcontext(_keep_all) if release is None else releasing_beside(release) as runs,
        cleaning(store, config, time_zone(settings.time_zone), release=runs),
    ):
        if topic is not None:
            for line in lines:
                _put(store, NewMessage(topic, line), ends)
        else:
            ends.wait()
        if store.failure:
            raise StoreBusyError(
                f"{store.layout.root}: expected to stop the store cleanly, found {store.failure}. Repair the "
                "disk. The next start recovers the store."
            )


def _keep_all(request: PlanRequest) -> None:
    """Delete nothing."""


def _put(store: MessageStore, message: NewMessage, ends: threading.Event) -> None:
    while (status := store.put(message).status) is not PutStatus.PUT_OK:
        if status is not PutStatus.SERVICE_NOT_AVAILABLE or store.failure or not store.disk_full:
            raise StoreBusyError(
                f"{store.layout.root}: expected the store to accept a message of {len(message.body)} bytes, "
                f"found {store.failure or status}. The messages before it are stored."
            )
        # Wait for a cleanup to free space.
        if ends.is_set():
            return
        time.sleep(_PAUSE_SECONDS)
