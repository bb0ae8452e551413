"""Triggers that wait for the cause of a cleanup: the deleteWhen window, a disk level, or either.

Nothing here blocks the triggerer's event loop. Connections are read through ``sync_to_async`` of asgiref.
Disks are measured and brokers are asked in separate threads.

An unknown level never fires. A running broker that doesn't answer is no failure: it is asked again. On a host
with a held store's disk, the fence is watched, too (:mod:`storage_engine.retention.monitor.store_watch`).

A trigger can be used in two ways. A task may defer to it, and takes its first event. An asset may watch it,
and takes one event each time that the cause begins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from storage_engine.hooks.configured_stores import DEFAULT_CONNECTION
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.model.broker.broker_store import Watch
from storage_engine.model.plan import Cause
from storage_engine.retention.monitor.store_watch import HostWatch
from storage_engine.retention.plan.watching import check_watcher, is_watched_here, watch
from storage_engine.retention.store.managed_store import ManagedStore

Answer = TypeVar("Answer")

DEFAULT_POLL_SECONDS = 10.0
"""Pause between two looks. The broker itself looks as often."""

_LONGEST_SLEEP_SECONDS = 300.0
"""Longest pause before the next look at a window. The clock or deleteWhen may change during the pause."""
_SHORTEST_SLEEP_SECONDS = 0.05

_LOOKS = ThreadPoolExecutor(1000, thread_name_prefix="storage-engine-look")
"""Threads for looks. A hanging disk or a silent broker blocks a thread until the look is given up. So looks
don't use the threads that the event loop shares, and each store has its own thread: a triggerer has fewer
stores than threads.
"""

_WATCH = HostWatch(logging.getLogger(__name__).warning)
"""Repairs the fences of held stores whose disks this triggerer sees, in its own threads."""


class _CauseTrigger(BaseEventTrigger):
    """Looks at a store repeatedly, and fires each time that a cause begins."""

    # A task's triggerer queue decides where a disk is looked at.
    supports_triggerer_queue = True

    def __init__(self, storage_engine_conn_id: str = DEFAULT_CONNECTION, **arguments: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storage_engine_conn_id = storage_engine_conn_id
        self._arguments = arguments
        self._is_watched = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {"storage_engine_conn_id": self.storage_engine_conn_id, **self._arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        store = await self._store()
        try:
            async for event in self._events(store):
                yield event
        finally:
            if self._is_watched:
                _WATCH.remove(store)

    async def _events(self, store: ManagedStore) -> AsyncIterator[TriggerEvent]:
        armed = is_known = True
        while True:
            # Checked each time, because a disk may be mounted later.
            if not self._is_watched and await _look(is_watched_here, store):
                self._is_watched = True
                _WATCH.add(store)
            state = await _look(watch, store)
            if state.known != is_known:
                is_known = state.known
                self._say(state)
            cause = self.cause(state)
            if armed and cause is not None:
                armed = False
                yield TriggerEvent(self._payload(state, cause))  # type: ignore[no-untyped-call]
            elif not armed and is_known and self.over(state):
                armed = True
            pause = self.pause_seconds(state, armed=armed)
            await asyncio.sleep(pause if is_known else min(pause, DEFAULT_POLL_SECONDS))

    @abstractmethod
    def cause(self, state: Watch) -> Cause | None:
        """Return the awaited cause if it is present; otherwise None."""

    @abstractmethod
    def over(self, state: Watch) -> bool:
        """Return whether the cause has certainly ended. Then its next beginning is a new event."""

    @abstractmethod
    def pause_seconds(self, state: Watch, *, armed: bool) -> float:
        """Return how long the next look can wait without missing a cause."""

    async def _store(self) -> ManagedStore:
        store: ManagedStore = await sync_to_async(StorageEngineHook(self.storage_engine_conn_id).get_conn)()
        await _look(check_watcher, store)
        return store

    def _say(self, state: Watch) -> None:
        if state.known:
            self.log.info("%s: the broker answers again", self.storage_engine_conn_id)
        for notice in () if state.known else state.notices:
            self.log.warning("%s: %s", self.storage_engine_conn_id, notice)

    def _payload(self, state: Watch, cause: Cause) -> dict[str, Any]:
        return {
            "storage_engine_conn_id": self.storage_engine_conn_id,
            "cause": cause.value,
            "at_ms": state.watched_at_ms,
            "details": [trigger.detail for trigger in state.triggers if trigger.cause is cause],
            "used_percent": state.deciding_percent,
        }


class DeleteWindowTrigger(_CauseTrigger):
    """Fires when the store's deleteWhen window opens, or at once while it is open.

    :param storage_engine_conn_id: connection of the store.
    """

    def __init__(self, storage_engine_conn_id: str = DEFAULT_CONNECTION) -> None:
        super().__init__(storage_engine_conn_id)

    def cause(self, state: Watch) -> Cause | None:
        return Cause.TIME_UP if _is_in_window(state) else None

    def over(self, state: Watch) -> bool:
        return not _is_in_window(state)

    def pause_seconds(self, state: Watch, *, armed: bool) -> float:
        return _until_window(state) if armed else _LONGEST_SLEEP_SECONDS


@dataclass(frozen=True, slots=True)
class _Level:
    """The level above which a disk counts as full.

    :param threshold_percent: level above which the disk is full, or None for the broker's own level.
    :param hysteresis_percent: how far the level has to fall below the threshold before the next event.
    """

    threshold_percent: int | None
    hysteresis_percent: int

    def exceeded(self, state: Watch) -> bool:
        above = self._above_threshold(state)
        return above is not None and above > 0

    def left(self, state: Watch) -> bool:
        above = self._above_threshold(state)
        return above is not None and above <= -self.hysteresis_percent

    def _above_threshold(self, state: Watch) -> int | None:
        """Return how far the level is above the threshold, in percent points, or None if unknown."""
        threshold = state.ordinary_percent if self.threshold_percent is None else self.threshold_percent
        if state.deciding_percent is None or threshold is None:
            return None
        return state.deciding_percent - threshold


class DiskLevelTrigger(_CauseTrigger):
    """Fires when a disk of the store rises above a level.

    The broker's rule decides which disk counts: the least used disk of the log, or the disk of the
    dependents. For a stopped broker's store, the trigger measures the disks, so its triggerer must run where
    they are mounted. For a running broker, it uses the level that the broker reports, in any triggerer.

    :param storage_engine_conn_id: connection of the store.
    :param threshold_percent: level above which it fires, or None for the level above which the broker cleans.
    :param hysteresis_percent: how far the level has to fall below the threshold before the next event.
    :param poll_seconds: pause between two samples.
    """

    def __init__(
        self,
        storage_engine_conn_id: str = DEFAULT_CONNECTION,
        threshold_percent: int | None = None,
        hysteresis_percent: int = 2,
        poll_seconds: float = DEFAULT_POLL_SECONDS,
    ) -> None:
        super().__init__(
            storage_engine_conn_id,
            threshold_percent=threshold_percent,
            hysteresis_percent=hysteresis_percent,
            poll_seconds=poll_seconds,
        )
        self._level = _Level(threshold_percent, hysteresis_percent)
        self._poll_seconds = poll_seconds

    def cause(self, state: Watch) -> Cause | None:
        return Cause.SPACE_FULL if self._level.exceeded(state) else None

    def over(self, state: Watch) -> bool:
        return self._level.left(state)

    def pause_seconds(self, state: Watch, *, armed: bool) -> float:
        return self._poll_seconds


class CleanupCauseTrigger(DiskLevelTrigger):
    """Fires when the deleteWhen window opens or a disk rises above a level, whichever comes first.

    :param storage_engine_conn_id: connection of the store.
    :param threshold_percent: as in DiskLevelTrigger.
    :param hysteresis_percent: as in DiskLevelTrigger.
    :param poll_seconds: longest pause between two samples. The beginning of a window is never missed.
    """

    def cause(self, state: Watch) -> Cause | None:
        if self._level.exceeded(state):
            return Cause.SPACE_FULL
        return Cause.TIME_UP if _is_in_window(state) else None

    def over(self, state: Watch) -> bool:
        return self._level.left(state) and not _is_in_window(state)

    def pause_seconds(self, state: Watch, *, armed: bool) -> float:
        return min(self._poll_seconds, _until_window(state)) if armed else self._poll_seconds


async def _look(look: Callable[[ManagedStore], Answer], store: ManagedStore) -> Answer:
    """Look at a store in one of this module's threads."""
    return await asyncio.get_running_loop().run_in_executor(_LOOKS, look, store)


def _is_in_window(state: Watch) -> bool:
    return any(trigger.cause is Cause.TIME_UP for trigger in state.triggers)


def _until_window(state: Watch) -> float:
    """Return the seconds until the next window opens, within the shortest and the longest sleep."""
    if state.next_window_ms is None:
        return _LONGEST_SLEEP_SECONDS
    seconds = state.next_window_ms / 1000 - time.time()
    return min(max(seconds, _SHORTEST_SLEEP_SECONDS), _LONGEST_SLEEP_SECONDS)
