"""Timed flushes of log and queues, commits of a buffer pool, and group commits of puts (FlushManager)."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.rocketmq.engine.append.mapped_file_queue import FileQueue, FlushGuard
from storage_engine.rocketmq.engine.dispatch.queue_writer import QueueTable
from storage_engine.rocketmq.engine.engine_settings import EngineSettings, FlushMode
from storage_engine.rocketmq.format.checkpoint import FILE_BYTES, Checkpoint, read_checkpoint

_FORMAT = struct.Struct(">5q")
_MARGIN_MS = 3000
"""Margin before the flushed time: messages of the same time may lie on both sides of the flushed end."""


class StoreCheckpoint:
    """The checkpoint file, and the values that :meth:`flush` will write into it."""

    def __init__(self, path: Path) -> None:
        """Read the file. The first :meth:`flush` creates it if it is missing."""
        self._path = path
        self._guard = threading.Lock()
        self.values = read_checkpoint(path) or Checkpoint(0, 0, 0, 0, 0)

    def set(self, **values: int) -> None:
        """Set values that the next :meth:`flush` writes, under the names of :class:`Checkpoint`."""
        with self._guard:
            self.values = replace(self.values, **values)

    def recovery_time_ms(self, *, with_index: bool) -> int:
        """Return the store time from which a recovery may begin (StoreCheckpoint#getMinTimestamp).

        :param with_index: consider also the index's time, to complete the index (#getMinTimestampIndex).
        """
        values = self.values
        earliest = max(0, min(values.physic_msg_timestamp_ms, values.logics_msg_timestamp_ms) - _MARGIN_MS)
        # A full index file may lack some messages of its end time, and the broker would skip these.
        return min(earliest, values.index_msg_timestamp_ms - 1) if with_index else earliest

    def flush(self) -> None:
        """Write the file and flush it to disk."""
        with self._guard:
            values = self.values
            content = _FORMAT.pack(
                values.physic_msg_timestamp_ms,
                values.logics_msg_timestamp_ms,
                values.index_msg_timestamp_ms,
                values.master_flushed_offset,
                values.confirm_phy_offset,
            )
            try:
                with durable.opened(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC) as fd:
                    os.pwrite(fd, content, 0)
                    if os.fstat(fd).st_size < FILE_BYTES:
                        os.ftruncate(fd, FILE_BYTES)
                    os.fdatasync(fd)
            except FileNotFoundError:
                durable.write_file(self._path, content.ljust(FILE_BYTES, b"\0"))


GATHERING_SECONDS = 0.0002
"""Time that a put waits for other puts to join, which is far less than a flush takes."""


class _Waiting:
    """A put that waits for its bytes to be on disk."""

    __slots__ = ("gathers", "is_flushed", "offset", "woken")

    def __init__(self, offset: int, *, gathers: bool) -> None:
        self.offset = offset
        self.gathers = gathers
        """Whether this put flushes when no more puts join."""
        self.is_flushed = False
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        if self.woken.locked():
            self.woken.release()


class GroupCommit:
    """Flushes once for all waiting puts, when as many wait as at the end of the last flush.

    If fewer join, the first of them flushes after :data:`GATHERING_SECONDS`. After a flush, the threads soon
    make their next puts. The last thread to join flushes for all: no other thread has to be woken for that.
    """

    def __init__(self, flush: Callable[[], object], flushed: Callable[[], int]) -> None:
        """
        :param flush: flushes all written bytes to disk; raises OSError if the disk refuses.
        :param flushed: returns the offset up to which all bytes are on disk.
        """
        self._flush, self._flushed = flush, flushed
        self._guard = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._flushing = False
        self._together = 0
        """Number of puts that waited when the last flush ended."""

    def wait_for(self, offset: int, timeout_seconds: float) -> bool:
        """Wait until all bytes up to an offset are on disk. Return False if that failed or took too long."""
        deadline = time.monotonic() + timeout_seconds
        with self._guard:
            if self._flushed() >= offset:
                return True
            put = _Waiting(offset, gathers=not self._flushing and not self._waiting)
            self._waiting.append(put)
            leads = not self._flushing and len(self._waiting) >= self._together
            self._flushing |= leads
        while not leads:
            seconds = GATHERING_SECONDS if put.gathers else max(0.0, deadline - time.monotonic())
            if not put.woken.acquire(timeout=seconds):
                with self._guard:
                    if not put.woken.acquire(blocking=False):
                        if not put.gathers:
                            self._waiting.remove(put)
                            return False
                        put.gathers = False
                        leads, self._flushing = not self._flushing, True
                        continue
            if not put.gathers:
                return put.is_flushed
        self._flush_for_all(put)
        return put.is_flushed and time.monotonic() <= deadline

    def _flush_for_all(self, leader: _Waiting) -> None:
        """Flush, and wake the puts whose bytes are on disk. If the disk refuses, wake all puts.

        :param leader: the put that flushes. It stops waiting even if its bytes aren't on disk.
        """
        refused = True
        try:
            with suppress(OSError):
                self._flush()
                refused = False
        finally:
            with self._guard:
                flushed, self._together = self._flushed(), len(self._waiting)
                puts, self._waiting = self._waiting, []
                for put in puts:
                    put.is_flushed = put.offset <= flushed
                    if not put.is_flushed and not refused and put is not leader:
                        self._waiting.append(put)
                        continue
                    put.gathers = False
                    put.wake()
                self._flushing = False
                if self._waiting:
                    self._waiting[0].gathers = True
                    self._waiting[0].wake()


OnFailure = Callable[[OSError], None]


class Service:
    """A thread that repeats its work at intervals, or at once when it is woken (ServiceThread)."""

    def __init__(
        self, name: str, work: Callable[[], None], interval_seconds: float, on_failure: OnFailure
    ) -> None:
        """:param on_failure: called with the work's OSError, after which the thread ends."""
        self._work, self._interval_seconds, self._on_failure = work, interval_seconds, on_failure
        self._wake, self._stop = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread after its present work, and wait for its end."""
        self._stop = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop:
                self._wake.wait(self._interval_seconds)
                self._wake.clear()
                self._work()
        except OSError as error:
            self._on_failure(error)


class LogFlusher:
    """Flushes the commitlog, and wakes the puts that wait for a flush."""

    def __init__(
        self, files: FileQueue, settings: EngineSettings, checkpoint: StoreCheckpoint, on_failure: OnFailure
    ) -> None:
        self._files, self._settings, self._checkpoint = files, settings, checkpoint
        self._failed = False
        self._on_failure = on_failure
        self._sync = settings.flush_mode is FlushMode.SYNC
        self._commits = GroupCommit(self.flush, lambda: files.flushed_where)
        self._last_flush_ms = self._last_commit_ms = 0
        seconds = settings.flush_interval_ms / 1000
        self._services = [Service("flush-commitlog", self._flush_by_time, seconds, self._fail)]
        if settings.transient_pool_enable:
            seconds = settings.commit_interval_ms / 1000
            self._services.append(Service("commit-commitlog", self._commit_by_time, seconds, self._fail))

    def start(self) -> None:
        for service in self._services:
            service.start()

    def wait_for(self, offset: int) -> bool:
        """Wait until the log is on disk up to an offset. Return False if that failed or took too long.

        Without SYNC_FLUSH, return True at once.
        """
        return not self._sync or self._commits.wait_for(offset, self._settings.sync_flush_timeout_ms / 1000)

    def flush(self) -> None:
        """Commit and flush all written bytes.

        :raises OSError: the disk refuses, or has refused before.
        """
        wrote = self._files.wrote_offset
        try:
            while self._files.committed_where < wrote and not self._files.commit(0):
                pass
            while self._files.flushed_where < wrote and not self._files.flush(0):
                pass
        except OSError as error:
            self._fail(error)
            raise
        self._note_time()

    def stop(self) -> None:
        """Stop the threads and flush the rest."""
        for service in reversed(self._services):
            service.stop()
        if not self._failed:
            self.flush()

    def _flush_by_time(self) -> None:
        """Flush whole pages, and from time to time all bytes (FlushRealTimeService)."""
        now_ms, least_pages = clock_ms(), self._settings.flush_least_pages
        if now_ms >= self._last_flush_ms + self._settings.flush_thorough_interval_ms:
            self._last_flush_ms, least_pages = now_ms, 0
        self._files.flush(least_pages)
        self._note_time()

    def _commit_by_time(self) -> None:
        """Write the pool's buffers into their files (CommitRealTimeService)."""
        now_ms, least_pages = clock_ms(), self._settings.commit_least_pages
        if now_ms >= self._last_commit_ms + self._settings.commit_thorough_interval_ms:
            self._last_commit_ms, least_pages = now_ms, 0
        if not self._files.commit(least_pages):
            self._last_commit_ms = clock_ms()
            self._services[0].wake()

    def _note_time(self) -> None:
        if self._files.store_timestamp_ms > 0:
            self._checkpoint.set(physic_msg_timestamp_ms=self._files.store_timestamp_ms)

    def _fail(self, error: OSError) -> None:
        self._failed = True
        self._on_failure(error)


class QueueFlusher:
    """Flushes queues, and writes the checkpoint (FlushConsumeQueueService)."""

    def __init__(
        self,
        queues: QueueTable,
        settings: EngineSettings,
        checkpoint: StoreCheckpoint,
        dispatched_ms: Callable[[], int],
        on_failure: OnFailure,
    ) -> None:
        """:param dispatched_ms: store time of the newest message that has an entry."""
        self._queues, self._settings = queues, settings
        self._checkpoint, self._dispatched_ms = checkpoint, dispatched_ms
        self._guard = FlushGuard(on_failure)
        self._last_ms = 0
        seconds = settings.flush_queue_interval_ms / 1000
        self._service = Service("flush-queues", self._flush_by_time, seconds, on_failure)

    def start(self) -> None:
        self._service.start()

    def stop(self) -> None:
        self._service.stop()

    def flush(self) -> None:
        """Flush all queues, then note in the checkpoint the store time up to which they are flushed.

        :raises OSError: the disk refuses, or has refused before.
        """
        with self._guard.flushing():
            dispatched_ms = self._dispatched_ms()
            self._queues.flush(0)
            if dispatched_ms > 0:
                self._checkpoint.set(logics_msg_timestamp_ms=dispatched_ms)
            self._checkpoint.flush()

    def _flush_by_time(self) -> None:
        now_ms = clock_ms()
        if now_ms >= self._last_ms + self._settings.flush_queue_thorough_interval_ms:
            self._last_ms = now_ms
            self.flush()
        else:
            with self._guard.flushing():
                self._queues.flush(self._settings.flush_queue_least_pages)
