"""Triggers that wait for a cleanup's cause: the deleteWhen window, a disk level, or either.

Nothing here blocks the triggerer's event loop: connections are read through its own bridge, disks are
measured in a thread. A level that is unknown never fires. Each may be deferred to by a task, which takes
the first event, or watched by an asset, which takes one event each time that the cause begins.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from storage_engine.hooks.storage_engine import DEFAULT_CONNECTION, StorageEngineHook
from storage_engine.model.plan import Cause
from storage_engine.model.watch import Watch
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.watching import check_watcher, watch

DEFAULT_POLL_SECONDS = 10.0
"""As often as the broker itself looks."""

_LONGEST_SLEEP_SECONDS = 300.0
"""A window is looked at anew at least so often: the clock may be set, and deleteWhen changed."""
_SHORTEST_SLEEP_SECONDS = 0.05


class _CauseTrigger(BaseEventTrigger):
    """Looks at a store again and again, and fires each time that a cause begins to hold."""

    # A task's triggerer queue decides where a disk is looked at.
    supports_triggerer_queue = True

    def __init__(self, storage_engine_conn_id: str = DEFAULT_CONNECTION, **arguments: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storage_engine_conn_id = storage_engine_conn_id
        self._arguments = arguments

    def serialize(self) -> tuple[str, dict[str, Any]]:
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {"storage_engine_conn_id": self.storage_engine_conn_id, **self._arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        store = await self._store()
        armed = True
        while True:
            seen = await asyncio.to_thread(watch, store)
            cause = self.cause(seen)
            if armed and cause is not None:
                armed = False
                yield TriggerEvent(self._payload(seen, cause))  # type: ignore[no-untyped-call]
            elif not armed and self.over(seen):
                armed = True
            await asyncio.sleep(self.pause_seconds(seen, armed=armed))

    @abstractmethod
    def cause(self, seen: Watch) -> Cause | None:
        """The cause that is waited for, if it holds."""

    @abstractmethod
    def over(self, seen: Watch) -> bool:
        """Whether the cause has certainly ended, so that its next beginning is news."""

    @abstractmethod
    def pause_seconds(self, seen: Watch, *, armed: bool) -> float:
        """How long nothing can be missed."""

    async def _store(self) -> ManagedStore:
        hook = StorageEngineHook(self.storage_engine_conn_id)
        store: ManagedStore = await sync_to_async(hook.get_conn)()
        await asyncio.to_thread(check_watcher, store)
        return store

    def _payload(self, seen: Watch, cause: Cause) -> dict[str, Any]:
        return {
            "storage_engine_conn_id": self.storage_engine_conn_id,
            "cause": cause.value,
            "at_ms": seen.watched_at_ms,
            "details": [trigger.detail for trigger in seen.triggers if trigger.cause is cause],
            "used_percent": seen.deciding_percent,
        }


class DeleteWindowTrigger(_CauseTrigger):
    """Fires when the store's deleteWhen window opens, or at once while it is open.

    :param storage_engine_conn_id: connection of the store.
    """

    def __init__(self, storage_engine_conn_id: str = DEFAULT_CONNECTION) -> None:
        super().__init__(storage_engine_conn_id)

    def cause(self, seen: Watch) -> Cause | None:
        return Cause.TIME_UP if _in_window(seen) else None

    def over(self, seen: Watch) -> bool:
        return not _in_window(seen)

    def pause_seconds(self, seen: Watch, *, armed: bool) -> float:
        return _until_window(seen) if armed else _LONGEST_SLEEP_SECONDS


@dataclass(frozen=True, slots=True)
class _Level:
    """When a disk counts as full.

    :param threshold_percent: above it; None: the level above which the broker itself cleans.
    :param hysteresis_percent: how far below the threshold it has to fall before full is news again.
    """

    threshold_percent: int | None
    hysteresis_percent: int

    def exceeded(self, seen: Watch) -> bool:
        return seen.deciding_percent is not None and seen.deciding_percent > self._threshold(seen)

    def left(self, seen: Watch) -> bool:
        lowest = self._threshold(seen) - self.hysteresis_percent
        return seen.deciding_percent is not None and seen.deciding_percent <= lowest

    def _threshold(self, seen: Watch) -> int:
        return seen.ordinary_percent if self.threshold_percent is None else self.threshold_percent


class DiskLevelTrigger(_CauseTrigger):
    """Fires when a disk of the store rises above a level.

    Which disk decides is the broker's rule: the least used one of the log, or the dependents' one. It
    samples the disks that this triggerer sees: run it where the store's disks are mounted.

    :param storage_engine_conn_id: connection of the store.
    :param threshold_percent: fires above it; None: the level above which the broker itself cleans.
    :param hysteresis_percent: after an event, the level has to fall so far below the threshold before
        it can fire again.
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

    def cause(self, seen: Watch) -> Cause | None:
        return Cause.SPACE_FULL if self._level.exceeded(seen) else None

    def over(self, seen: Watch) -> bool:
        return self._level.left(seen)

    def pause_seconds(self, seen: Watch, *, armed: bool) -> float:
        return self._poll_seconds


class CleanupCauseTrigger(_CauseTrigger):
    """Fires when the deleteWhen window opens or a disk rises above a level, whichever comes first.

    :param storage_engine_conn_id: connection of the store.
    :param threshold_percent: as in DiskLevelTrigger.
    :param hysteresis_percent: as in DiskLevelTrigger.
    :param poll_seconds: longest pause between two samples; a window is never slept through.
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

    def cause(self, seen: Watch) -> Cause | None:
        if self._level.exceeded(seen):
            return Cause.SPACE_FULL
        return Cause.TIME_UP if _in_window(seen) else None

    def over(self, seen: Watch) -> bool:
        return self._level.left(seen) and not _in_window(seen)

    def pause_seconds(self, seen: Watch, *, armed: bool) -> float:
        return min(self._poll_seconds, _until_window(seen)) if armed else self._poll_seconds


def _in_window(seen: Watch) -> bool:
    return any(trigger.cause is Cause.TIME_UP for trigger in seen.triggers)


def _until_window(seen: Watch) -> float:
    """Seconds until the next window opens, by the clock as it is now."""
    if seen.next_window_ms is None:
        return _LONGEST_SLEEP_SECONDS
    seconds = seen.next_window_ms / 1000 - time.time()
    return min(max(seconds, _SHORTEST_SLEEP_SECONDS), _LONGEST_SLEEP_SECONDS)
