"""Watch held stores where their disks are: what a hold rests on is mended within a look.

A thread a store, so that a disk that hangs keeps nobody else waiting; none of them waits for a broker or for
the journal. What was mended is recorded by :mod:`storage_engine.retention.watch_records`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from storage_engine.exceptions import StorageEngineError
from storage_engine.model.broker import FenceWatch, WatchFence, broker_module
from storage_engine.model.hold import Disturbance
from storage_engine.retention.brokers import settings_of
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.shield_watch import ShieldWatch
from storage_engine.retention.watch_records import Recorder

LOOK_SECONDS: Final = 0.5
"""Each look is some calls of stat: enough where a file system tells nobody of its changes."""
_STAND_BY_SECONDS: Final = 2.0


def look_once(fence: FenceWatch, shield: ShieldWatch, now_ms: int) -> tuple[Disturbance, ...]:
    """Do all that a watch does at one look; more duties of it belong here, each as a plain call.

    :raises StorageEngineError: something can't be mended; says why.
    :raises OSError: the store can't be read or written.
    """
    return (*fence.look(now_ms), *shield.look())


class StoreWatch(threading.Thread):
    """Looks at one store twice a second, and at once when it is woken.

    :param say: told what was mended, and what keeps the watch from its work.
    """

    def __init__(self, store: ManagedStore, recorder: Recorder, say: Callable[[str], None]) -> None:
        super().__init__(name=f"storage-engine-watch {store.name}", daemon=True)
        opener: WatchFence = broker_module(store.broker, "broker").watch_fence
        self.fence = opener(settings_of(store))
        self._shield = ShieldWatch(store, say)
        self._store = store
        self._recorder = recorder
        self._say = say
        self._said = ""
        self._wakes = threading.Event()
        self._ends = False

    def wake(self) -> None:
        self._wakes.set()

    def end(self) -> None:
        """Have it end after the look that it is at."""
        self._ends = True
        self.wake()

    def run(self) -> None:
        while not self._ends:
            try:
                self._watch()
            except (StorageEngineError, OSError) as error:
                self._say_once(str(error))
            self._pause(_STAND_BY_SECONDS)

    def _watch(self) -> None:
        """Look until the end, or an error; return when another process watches the store."""
        if not Path(self._store.root).is_dir():
            self._say_once(f"{self._store.root}: expected the store, found none: is it mounted?")
            return
        identity = _identity(self._store.root)
        with self.fence.watching() as own:
            if own is None:
                self._say_once("another process watches the store; this one takes over when that ends")
                return
            own.beat(tends_shield=self._shield.is_wanted)
            self._say_once("watching")
            # The lock and the sign of life are on the disk that was there: it may be unmounted.
            while not self._ends and _identity(self._store.root) == identity:
                own.beat(tends_shield=self._shield.is_wanted)
                self._wakes.clear()
                found = look_once(self.fence, self._shield, clock_ms())
                for one in found:
                    self._say(f"{self._store.name}: {one.kind.value}: {one.detail}")
                self._recorder.add(self._store, found)
                self._pause(LOOK_SECONDS)
            if self._ends:
                self._shield.end()

    def _pause(self, seconds: float) -> None:
        if not self._ends:
            self._wakes.wait(seconds)

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._say(f"{self._store.name}: {text}")
        self._said = text


class HostWatch:
    """Watches stores of this host, each once; inotify wakes it where the file system has that.

    :param say: called from its threads.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._recorder = Recorder(say)
        self._listener = threading.Thread(target=self._listen, name="storage-engine-inotify", daemon=True)
        self._watches: dict[str, tuple[StoreWatch, int]] = {}
        self._changing = threading.Lock()
        self._ends = threading.Event()

    def add(self, store: ManagedStore) -> None:
        """Watch a store until it was removed as often as it was added. Never waits for its disk."""
        with self._changing:
            if self._recorder.ident is None:
                self._recorder.start()
                self._listener.start()
            known = self._watches.get(store.root)
            if known is None:
                watch = StoreWatch(store, self._recorder, self._say)
                watch.start()
                known = (watch, 0)
            self._watches[store.root] = (known[0], known[1] + 1)

    def remove(self, store: ManagedStore) -> None:
        """Watch a store no more, once all who added it have removed it. Never waits."""
        with self._changing:
            watch, users = self._watches[store.root]
            if users > 1:
                self._watches[store.root] = (watch, users - 1)
            else:
                del self._watches[store.root]
                watch.end()

    def end(self, seconds: float = 5.0) -> None:
        """End all its threads; one that a disk or a database keeps for longer is left behind."""
        self._ends.set()
        deadline = time.monotonic() + seconds
        watches = self._now()
        for watch in watches:
            watch.end()
        if self._recorder.ident is None:
            return
        for thread in (*watches, self._listener):
            thread.join(max(deadline - time.monotonic(), 0))
        self._recorder.end(max(deadline - time.monotonic(), 0))

    def _now(self) -> list[StoreWatch]:
        with self._changing:
            return [watch for watch, _ in self._watches.values()]

    def _listen(self) -> None:
        """Wake the watches when something is touched or removed in a log's directory."""
        # Where inotify or its library is missing, or others use it up, looks go on twice a second.
        with suppress(OSError, ImportError, AttributeError):
            from asyncinotify import Inotify, Mask

            changes = Mask.ATTRIB | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO
            with Inotify(sync_timeout=LOOK_SECONDS) as inotify:
                while not self._ends.is_set():
                    known = {watch.path for watch in inotify.watches}
                    for directory in {path for one in self._now() for path in one.fence.directories}:
                        if directory not in known:
                            inotify.add_watch(directory, changes)
                    if inotify.sync_get() is not None:
                        for watch in self._now():
                            watch.wake()


def _identity(path: str) -> tuple[int, int]:
    stat = Path(path).stat()
    return stat.st_dev, stat.st_ino
