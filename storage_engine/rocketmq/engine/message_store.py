"""A store that takes messages: load, recover, append, dispatch, flush, stop (DefaultMessageStore)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.model.report.inspection import unindexed_text
from storage_engine.rocketmq.engine.append.append import Appender, NewBatch, NewMessage, PutResult, PutStatus
from storage_engine.rocketmq.engine.append.flush import LogFlusher, QueueFlusher, Service, StoreCheckpoint
from storage_engine.rocketmq.engine.append.mapped_file_queue import FileQueue, TransientPool
from storage_engine.rocketmq.engine.dispatch import dispatch_kernels as kernels
from storage_engine.rocketmq.engine.dispatch.index_writer import IndexWriter
from storage_engine.rocketmq.engine.dispatch.queue_writer import QueueTable
from storage_engine.rocketmq.engine.dispatch.reput import Dispatcher, FrameReader
from storage_engine.rocketmq.engine.engine_settings import (
    EngineSettings,
    FlushMode,
    check_writable,
    settings_for,
)
from storage_engine.rocketmq.engine.recovery import RecoveredEnd, first_to_index, index_again, recover
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.checkpoint import Checkpoint
from storage_engine.rocketmq.format.config_files import batch_topics
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.store import store_lock

_log = logging.getLogger(__name__)

_DISPATCH_INTERVAL_SECONDS = 0.001
_MAP_AHEAD_INTERVAL_SECONDS = 0.02
_LONGEST_DISPATCH_SECONDS = 60.0
_PAUSE_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Positions:
    """Progress of a store: offsets of the log, and the checkpoint's values."""

    wrote: int
    committed: int
    flushed: int
    dispatched: int
    checkpoint: Checkpoint


class MessageStore:
    """An open store. :func:`open_store` opens and stops it."""

    def __init__(
        self,
        layout: StoreLayout,
        settings: EngineSettings,
        clock: Callable[[], int] = clock_ms,
        batches: frozenset[str] = frozenset(),
    ) -> None:
        """Load and recover a store whose lock the caller has.

        :param clock: returns the store time in ms since the epoch.
        :param batches: topics with batch consume queues, besides those that the store's files name.
        :raises StoreLayoutError: the files don't match the settings.
        """
        self.layout, self.settings, self._clock = layout, settings, clock
        self.was_clean = clean = not layout.abort.exists()
        pool = None
        if settings.transient_pool_enable:
            pool = TransientPool(settings.transient_pool_size, settings.commitlog_file_bytes)
        self.files = FileQueue(
            layout.commitlog_paths,
            settings.commitlog_file_bytes,
            read_only_paths=layout.read_only_paths,
            pool=pool,
        )
        self.files.load()
        self.queues = QueueTable(layout, settings, batches | batch_topics(layout))
        self.queues.load()
        self.checkpoint = StoreCheckpoint(layout.checkpoint)
        self.index = None
        self.dropped_index_files: tuple[Path, ...] = ()
        if settings.index_enable:
            self.index = IndexWriter(
                layout.index, settings.hash_slots, settings.index_entries, self.checkpoint
            )
            self.dropped_index_files = self.index.load(clean=clean)
        self._dispatcher = Dispatcher(settings, self.queues, self.index, clock)
        self.recovered: RecoveredEnd = recover(
            self.files, self.queues, self._dispatcher, self.checkpoint, settings, clean=clean
        )
        self.queues.correct_min(self.files.min_offset)
        self.unindexed: tuple[int, int] | None = None
        """Range of offsets whose messages a crash has left without index entries."""
        self.failure: OSError | None = None
        """An error of the disk, after which no message is accepted."""
        self.disk_full = False
        """Whether a cleanup found the disk full. No message is accepted as long as it is set."""
        self.dispatched_offset = self.files.max_offset
        self._closed = True
        self._sync = settings.flush_mode is FlushMode.SYNC
        self._reader = FrameReader(settings)
        self._appender = Appender(self.files, self.queues, settings, clock)
        self._flusher = LogFlusher(self.files, settings, self.checkpoint, self._fail)
        self._queue_flusher = QueueFlusher(
            self.queues, settings, self.checkpoint, lambda: self._dispatcher.timestamp_ms, self._fail
        )
        self._reput = Service("dispatch", self.dispatch, _DISPATCH_INTERVAL_SECONDS, self._fail)
        self._map_ahead = Service("map-ahead", self.files.map_ahead, _MAP_AHEAD_INTERVAL_SECONDS, self._fail)
        self._services = False

    def start(self, *, services: bool = True) -> None:
        """Start to accept messages.

        :param services: if False, no background thread flushes or dispatches messages. :meth:`stop` does
            both, and :meth:`dispatch` dispatches. Then the written bytes depend on the messages alone.
        """
        if not self.was_clean:
            self.drop_what_was_cut()
        durable.write_file(self.layout.abort, str(os.getpid()).encode())
        self._closed, self._services = False, services
        self._map_ahead.start()
        if services:
            self._reput.start()
            self._flusher.start()
            self._queue_flusher.start()

    def put(self, message: NewMessage) -> PutResult:
        """Store one message or one inner batch. With SYNC_FLUSH, return when it is on disk."""
        if self._closed or self.disk_full or self.failure:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
        result = self._appender.put(message)
        return self._wait_for_flush(result) if self._sync else result

    def put_batch(self, batch: NewBatch) -> PutResult:
        """Store the messages of a batch, all or none. With SYNC_FLUSH, return when they are on disk."""
        if self._closed or self.disk_full or self.failure:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
        result = self._appender.put_batch(batch)
        return self._wait_for_flush(result) if self._sync else result

    def positions(self) -> Positions:
        files = self.files
        committed = files.committed_where if self.settings.transient_pool_enable else files.wrote_offset
        return Positions(
            files.wrote_offset, committed, files.flushed_where, self.dispatched_offset, self.checkpoint.values
        )

    def wait_until_dispatched(self) -> bool:
        """Wait until each message stored so far has its entries. Return False after 60 s or a disk error."""
        deadline = time.monotonic() + _LONGEST_DISPATCH_SECONDS
        end = self._dispatchable_end()
        while self.dispatched_offset < end and not self.failure:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_SECONDS)
        return not self.failure

    def flush(self) -> None:
        """Flush log, queues and checkpoint to disk.

        :raises OSError: the disk refuses, or has refused before.
        """
        if self.failure:
            raise self.failure
        self._flusher.flush()
        self.wait_until_dispatched()
        self._queue_flusher.flush()

    def drop_what_was_cut(self, *, whole_index: bool = False) -> None:
        """Erase the bytes behind the ends of log and queues durably, and rebuild a damaged part of the index.

        Otherwise a later recovery could read these bytes as valid.

        :param whole_index: rebuild that part completely, even if many files of the log have to be read.
        """
        self.files.erase_rest()
        self.queues.drop_behind(self.recovered.offset)
        if self.index is None:
            return
        began_at = self.recovered.began_at
        begin = self.index.drop_unsure(self.files.min_offset, self.recovered.offset, began_at)
        if begin is None:
            return
        bases = [file.base_offset for file in self.files.files]
        first = first_to_index(begin, began_at, bases, everything=whole_index)
        index_again(self.files, self._reader, self.index, first, self._clock())
        if first > begin:
            self.unindexed = (begin, first)
            _log.warning("%s: %s", self.layout.root, unindexed_text(begin, first))

    def stop(self) -> None:
        """Accept no more messages, dispatch and flush the existing ones, and unmap the files.

        After a disk error, or with messages that aren't dispatched, the store counts as crashed.
        """
        started, self._closed = not self._closed, True
        self._appender.close()
        self._map_ahead.stop()
        if started:
            self._flusher.stop()
            if not self._services and not self.failure:
                self.dispatch()
            self.wait_until_dispatched()
            self._reput.stop()
            self._queue_flusher.stop()
        clean = not self.failure and self.dispatched_offset >= self.files.max_offset
        if not self.failure:
            self._queue_flusher.flush()
        if self.index is not None:
            self.index.close()
        self.files.close()
        if clean and durable.unlink(self.layout.abort):
            durable.fsync_path(self.layout.root)

    def _wait_for_flush(self, result: PutResult) -> PutResult:
        if result.status is PutStatus.PUT_OK and not self._flusher.wait_for(
            result.physical_offset + result.size_bytes
        ):
            return result._replace(status=PutStatus.FLUSH_DISK_TIMEOUT)
        return result

    def _dispatchable_end(self) -> int:
        """Return the end of the messages that may be dispatched (CommitLog#getConfirmOffset)."""
        return self.files.flushed_where if self._sync else self.files.max_offset

    def dispatch(self) -> None:
        """Dispatch new messages (ReputMessageService#doReput); called by one thread at a time."""
        self.dispatched_offset = max(self.dispatched_offset, self.files.min_offset)
        while self.dispatched_offset < (end := self._dispatchable_end()):
            file = self.files.find(self.dispatched_offset)
            if file is None or not file.pin():
                return
            try:
                data, base, readable = file.array, file.base_offset, file.read_position
                walk = self._reader.read(
                    data, self.dispatched_offset - base, readable, min(readable, end - base), check_crc=False
                )
                self._dispatcher.dispatch(data, walk.rows)
            finally:
                file.unpin()
            self.dispatched_offset = base + walk.position
            if walk.reason == kernels.BLANK:
                self.dispatched_offset = file.end_offset
            elif walk.reason in (kernels.BAD, kernels.BAD_LENGTHS):
                # As the broker, skip bytes that can't be read. Messages among them get no entries.
                self.dispatched_offset = base + readable
            elif walk.reason == kernels.LIMIT and not len(walk.rows):
                return

    def _fail(self, error: OSError) -> None:
        self.failure = error


@contextmanager
def open_store(
    config: BrokerConfig,
    settings: EngineSettings | None = None,
    *,
    clock: Callable[[], int] = clock_ms,
    batches: frozenset[str] = frozenset(),
    check: Callable[[StoreLayout, EngineSettings], object] | None = None,
) -> Iterator[MessageStore]:
    """Open a store for writing, with the broker's own lock, and stop it when the block ends.

    Missing directories are created.

    :param settings: None for the broker's settings, with sizes taken from the store's files.
    :param check: called when the store is locked and not yet changed. It may raise to refuse the store.
    :raises BrokerConfigError: see :func:`check_writable` and :func:`settings_for`.
    :raises StoreBusyError: another process uses the store.
    :raises StoreLayoutError: the files don't match the settings.
    """
    check_writable(config)
    for directory in (config.store_path_root_dir, *config.store_path_commit_log):
        durable.make_dirs(directory)
    layout = resolve_layout(config)
    with store_lock.lock(layout):
        chosen = settings or settings_for(config, layout)
        if check is not None:
            check(layout, chosen)
        store = MessageStore(layout, chosen, clock, batches)
        store.start()
        try:
            yield store
        finally:
            store.stop()
