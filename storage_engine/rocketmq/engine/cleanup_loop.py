"""Cleaning up while messages are taken: log, consume queues, index (CleanCommitLogService and its like).

A pass each cleanResourceInterval, the first a minute after the start. Why it cleans and which file goes, say
the same rules as our other cleanups. Beyond them no file goes that isn't flushed and dispatched.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from storage_engine.core.clock import clock_ms
from storage_engine.model.plan.plan import PlanRequest, Reason, Trigger, Urgency
from storage_engine.model.store.store import DiskUsage, StoreSnapshot
from storage_engine.rocketmq.engine.message_store import MessageStore
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.rules.cleanup_schedule import FIRST_PASS_MS, MANUAL_PASSES, interval_ms
from storage_engine.rocketmq.rules.disk import disk_usage
from storage_engine.rocketmq.rules.rules import (
    accepts_writes_by,
    age_reason,
    delete_hours,
    full_log_disks,
    triggers,
)
from storage_engine.rocketmq.store.store import BROKER, dependents_bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogPass:
    """What one pass over the log came to.

    :param deleted: first offsets of the files that went.
    """

    triggers: tuple[Trigger, ...]
    deleted: tuple[int, ...]


class CleanupLoop:
    """The passes over one open store. :func:`cleaning` runs them by time."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        zone: ZoneInfo,
        *,
        release: Callable[[PlanRequest], object] | None = None,
        clock: Callable[[], int] = clock_ms,
        measure: Callable[[Path], DiskUsage] = disk_usage,
        pause: Callable[[int], object] | None = None,
    ) -> None:
        """Make a loop that cleans a store up as its broker does; :meth:`start` begins it.

        :param zone: in which deleteWhen is meant.
        :param release: deletes in place of this loop; None: it deletes all that the rules let it.
        :param clock: in ms since the epoch.
        :param pause: waits so many ms; None: until the loop is stopped at most.
        :raises BrokerConfigError: a deleteWhen that the broker can't parse.
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
        """Let the pass end at its next file, wait for it, and end a deletion that a reader holds up.

        What pointed into that file may be gone already. Its memory stays the reader's.
        """
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._release is None:
            self._store.files.retry_first(0, self._clock())

    def delete_manually(self) -> None:
        """Let the next passes delete what has expired at any hour (#executeDeleteFilesManually)."""
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
            self._retry_first()
        return LogPass(causes, deleted)

    def clean_queues(self) -> None:
        """Do one pass over consume queues and index (CleanConsumeQueueService#run)."""
        min_offset = self._store.files.min_offset
        if min_offset <= self._cleaned_below:
            return
        self._cleaned_below = min_offset
        if self._release is not None:
            # The files go by what its journal says.
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
                    # As the broker: the next pass may find it put right, and says if the disk is full.
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
            # Durably, before a younger one goes: a power loss must never leave a hole.
            files.forget([file])
            yield file.base_offset
            if number == config.delete_file_batch_max:
                return
            if number < len(candidates) and config.delete_commit_log_files_interval_ms:
                self._pause(config.delete_commit_log_files_interval_ms)

    def _retry_first(self) -> None:
        """Delete a first file that a reader held, from time to time (#reDeleteHangedFile)."""
        now_ms = self._clock()
        if now_ms - self._retried_ms > self._config.redelete_hanged_file_interval_ms:
            self._retried_ms = now_ms
            self._store.files.retry_first(self._config.destroy_mapped_file_interval_forcibly_ms, now_ms)


@contextmanager
def cleaning(
    store: MessageStore,
    config: BrokerConfig,
    zone: ZoneInfo,
    *,
    release: Callable[[PlanRequest], object] | None = None,
) -> Iterator[CleanupLoop]:
    """Clean a store up by time while the block runs.

    :param release: as for :class:`CleanupLoop`.
    """
    loop = CleanupLoop(store, config, zone, release=release)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()
