"""A store that this package's own engine writes, as retention sees it.

While a process serves the store, its files are read directly and changed through that process. Otherwise it
is handled as a stopped broker's store, and opened for a flush. Name, identity and receipts stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from storage_engine.core import durable
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.model.broker.broker_store import (
    FlushedStore,
    LockedStore,
    Remove,
    StoreSettings,
)
from storage_engine.model.hold import BrokerProgress, HoldMemory
from storage_engine.model.plan import DependentFile
from storage_engine.model.store import Segment, StoreSnapshot
from storage_engine.rocketmq.codec.stored_messages import newest_message_ms
from storage_engine.rocketmq.engine.message_store import open_store
from storage_engine.rocketmq.engine.recover_on_demand import check_nothing_cut
from storage_engine.rocketmq.engine.serving import EngineSession, ask_who_serves, positions_of
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.stored_files import ATTEMPTS, reread
from storage_engine.rocketmq.live.status import checkpoint_behind_ms
from storage_engine.rocketmq.store.broker import (
    FileProcess,
    QueuesAndIndex,
    RocketMQBrokerStore,
    cut_log,
    open_files,
)
from storage_engine.rocketmq.store.store import RocketMQStore


@dataclass(frozen=True, slots=True)
class ServedStore(RocketMQBrokerStore):
    """A store of the engine.

    :param session: connection with the process that serves the store; None if no process does.
    """

    session: EngineSession | None = None

    def renewed(self, memory: HoldMemory) -> ServedStore:
        return open_served(self.opened_by)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """Return the store's snapshot. While a process serves the store, only flushed segments are sealed.

        :raises BrokerError: the serving process doesn't answer.
        """
        return self._look(lambda: RocketMQBrokerStore.snapshot(self, now_ms))

    def glance(self, now_ms: int) -> StoreSnapshot:
        return self._look(lambda: RocketMQBrokerStore.glance(self, now_ms))

    def _look(self, look: Callable[[], StoreSnapshot]) -> StoreSnapshot:
        if self.session is None:
            return look()
        before = self.session.positions()
        snapshot = reread(look, ATTEMPTS)
        logs = tuple(
            cut_log(log, min(log.max_offset, before.flushed or 0), before.dispatched) for log in snapshot.logs
        )
        return replace(snapshot, crashed=False, logs=logs)

    @contextmanager
    def lock(self) -> Iterator[LockedStore]:
        if self.session is None:
            with RocketMQBrokerStore.lock(self) as locked_store:
                yield locked_store
            return
        with self.session.locked():
            yield self.locked(())

    @property
    def process(self) -> ServedProcess:
        return ServedProcess(self.files.layout, self.files, self.config, self.session)

    @property
    def dependents(self) -> ServedDependents:
        layout = self.files.layout
        return ServedDependents(layout, self.config, self.left_out, ATTEMPTS, session=self.session)

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        if self.session is None:
            RocketMQBrokerStore.delete_segments(self, segments, meanwhile, remove)
            return
        self.session.ask("delete", segments=[to_jsonable(segment) for segment in segments])


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDependents(QueuesAndIndex):
    """Consume queues and index. A process that serves the store deletes them."""

    session: EngineSession | None

    def delete(
        self,
        files: Sequence[DependentFile],
        meanwhile: Callable[[], object],
        remove: Remove = durable.unlink_in,
    ) -> None:
        if self.session is None:
            QueuesAndIndex.delete(self, files, meanwhile, remove)
            return
        self.session.ask("delete-dependents", files=[to_jsonable(file) for file in files])


@dataclass(frozen=True, slots=True)
class ServedProcess(FileProcess):
    """The process that serves a store, if one does."""

    files: RocketMQStore
    config: BrokerConfig
    session: EngineSession | None

    def user(self) -> str:
        """Return a clause on the process that has the broker's lock; "" if no process has it.

        Return "" also while a process serves the store, since each change is requested from that process.
        """
        return "" if self.session is not None else FileProcess.user(self)

    def running_pid(self) -> int | None:
        return None if self.session is None else self.session.pid

    def progress(self, now_ms: int) -> BrokerProgress | None:
        if self.session is None:
            return None
        positions = self.session.positions()
        newest_ms = newest_message_ms(self.layout, positions.committed)
        return BrokerProgress(
            sampled_at_ms=now_ms,
            min_offset=min((segment.base_offset for segment in self.files.raw_log().segments), default=0),
            max_offset=positions.wrote,
            earliest_message_timestamp_ms=None,
            flush_behind_bytes=positions.wrote - (positions.flushed or 0),
            dispatch_behind_bytes=max(0, positions.wrote - positions.dispatched),
            checkpoint_behind_ms=checkpoint_behind_ms(positions.checkpoint, newest_ms, None),
            timer_behind_messages=None,
        )

    def flush_now(self) -> FlushedStore:
        """Flush log, queues and checkpoint. If no process serves the store, open it for the flush.

        :raises StoreBusyError: a broker or another program uses the store.
        """
        if self.session is not None:
            return from_jsonable(FlushedStore, self.session.ask("flush"), "answer of the engine")
        with open_store(self.config, check=check_nothing_cut) as store:
            before = positions_of(store)
            store.flush()
            return FlushedStore(before, positions_of(store))


def open_served(settings: StoreSettings) -> ServedStore:
    """Open a store of the engine, and connect to the process that serves it if there is one.

    :raises StoreNotFoundError: a directory of the store is missing.
    :raises BrokerError: a process serves the store, and no connection is possible.
    """
    store = open_files(settings)
    session = ask_who_serves(store.files.layout.root)
    return ServedStore(**{field.name: getattr(store, field.name) for field in fields(store)}, session=session)
