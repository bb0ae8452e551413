"""A store as retention sees it while this process writes to it: its files go through who has them mapped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from storage_engine import durable
from storage_engine.clock import clock_ms
from storage_engine.model.broker_store import Remove, StoreSettings
from storage_engine.model.hold import HoldMemory
from storage_engine.model.plan import DependentFile
from storage_engine.model.store import Segment, StoreSnapshot
from storage_engine.rocketmq import dependents
from storage_engine.rocketmq.broker import RocketMQBrokerStore, open_files
from storage_engine.rocketmq.engine.mapped_file import WritableFile
from storage_engine.rocketmq.engine.message_store import MessageStore
from storage_engine.rocketmq.store_lock import LockedStore
from storage_engine.same_bytes.removal import remove_unchanged


@dataclass(frozen=True, slots=True)
class EngineStore(RocketMQBrokerStore):
    """A store that is open for writing in this process, which has its lock."""

    engine: MessageStore

    def renewed(self, memory: HoldMemory) -> EngineStore:
        return self

    def running_pid(self) -> int | None:
        return os.getpid()

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        return self._running(super(EngineStore, self).snapshot(now_ms))

    def glance(self, now_ms: int) -> StoreSnapshot:
        return self._running(super(EngineStore, self).glance(now_ms))

    def _running(self, seen: StoreSnapshot) -> StoreSnapshot:
        """Return the store as one that runs: its ``abort`` is of no crash, and what isn't flushed stays."""
        flushed = self.engine.files.flushed_where
        logs = tuple(replace(log, dispatched_offset=min(log.dispatched_offset, flushed)) for log in seen.logs)
        return replace(seen, logs=logs, crashed=False)

    @contextmanager
    def lock(self) -> Iterator[LockedStore]:
        yield LockedStore(self.files.layout.root, ())

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        """Delete them whoever reads them: the memory of readers stays theirs."""
        files = self.engine.files
        for segment in segments:
            file = files.find(segment.base_offset)
            if file is None:
                remove_unchanged(segment, self.files.layout.root, remove)
            else:
                remove_unchanged(segment, self.files.layout.root, _unmapping(file, remove))
                files.forget([file])

    def delete_dependents(
        self,
        files: Sequence[DependentFile],
        meanwhile: Callable[[], object],
        remove: Remove = durable.unlink_in,
    ) -> None:
        queues = {entries.directory: entries for entries in self.engine.queues.entry_files()}
        index = self.engine.index

        def forget_and_remove(path: Path, directory: int) -> bool:
            if path.parent in queues:
                queues[path.parent].forget(int(path.name))
            elif index is not None:
                index.forget(path)
            return remove(path, directory)

        dependents.delete_dependents(self.files.layout, files, forget_and_remove)


def _unmapping(file: WritableFile, remove: Remove) -> Remove:
    """Return what removes a file of the log once it is unmapped."""

    def unmap_and_remove(path: Path, directory: int) -> bool:
        now_ms = clock_ms()
        file.shutdown(0, now_ms)
        return file.destroy(0, now_ms, lambda path: remove(path, directory))

    return unmap_and_remove


def open_engine(settings: StoreSettings, engine: MessageStore) -> EngineStore:
    """Return the store that is open for writing in this process, by its broker's settings."""
    opened = open_files(settings)
    return EngineStore(opened.files, opened.config, opened.zone, opened.opened_by, engine)
