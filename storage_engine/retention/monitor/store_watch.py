"""Watches of held stores on the hosts of their disks. A change that endangers a hold is mended in one look.

Each store has a thread of its own, so a hanging disk delays no other store. No thread waits for a broker or
for the journal, and none ends without a notice. Mends are recorded when the journal can be reached.

A shield is tended at each look: if a segment was deleted, the next segments are linked at once. Further
threads ask the broker and archive segments, so that a fence is mended meanwhile.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage_engine.brokers import find_broker
from storage_engine.commands import Text, join_texts
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import WATCH_WAIT_SECONDS
from storage_engine.core.wording import reason_text, unexpected_text
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.journal.journal import Journal, record_under_watch
from storage_engine.journal.tables.database import missing_sqlite_file
from storage_engine.model.broker.broker_store import Beating, FenceWatch
from storage_engine.model.hold import Drift
from storage_engine.model.settings.policy import GENTLE_BYTES_PER_SECOND, ArchiveMode, ShieldMode
from storage_engine.retention.hold.hold_text import watching_text
from storage_engine.retention.store.brokers import fence_watch, open_to_look
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import Place, digest_of, look_at_shield, shield_path
from storage_engine.shield.links import drop_links, make_links, note_digest

if TYPE_CHECKING:
    from asyncinotify import Inotify, Watch

    from storage_engine.retention.shield import ShieldResult


def read_links(store: ManagedStore, is_urgent: Callable[[], bool], seconds: float = inf) -> int:
    """Read the links whose present bytes have no digest yet, and remember their digests.

    The digests tell touched segments from changed ones. Reading is slow, to spare a broker on the same disk.

    :param is_urgent: called now and then. If it returns true, the other links wait for the next call.
    :param seconds: after this time no further link is begun.
    :return: number of links that were read.
    :raises ShieldError: the shield can't be read or written.
    """
    from storage_engine.lake.storage.pace import pace_at

    count = 0
    ends = time.monotonic() + seconds
    pace = pace_at(GENTLE_BYTES_PER_SECOND)

    def spend(size_bytes: int) -> None:
        if is_urgent():
            raise _UrgentError
        pace.spend(size_bytes)

    with suppress(_UrgentError):
        for entry in look_at_shield(store.real_root).links:
            if entry.place is not Place.IN_LOG or (entry.is_same and entry.link.sha256):
                continue
            if time.monotonic() > ends:
                break
            sha256 = digest_of(store.real_root, entry, spend)
            if sha256 is not None:
                note_digest(store.real_root, entry, sha256)
                count += 1
    return count


class _UrgentError(Exception):
    """Ends the reading of links, because other work has to be done first."""


TEND_SECONDS: Final = 30.0
"""Seconds between two full looks at log, lake and shield. A deleted segment starts a look at once."""
FORCE_SECONDS: Final = 5.0
"""Seconds between two questions to the broker. A deleted segment starts a question at once."""
_AFTER_ERROR_SECONDS: Final = 30.0
_END_SECONDS: Final = 2.0


class _Duty:
    """Long work in a thread of its own, which never runs twice at once. The process may end during the work.

    :param failed: called with the reason if the work fails.
    """

    def __init__(
        self, name: str, work: Callable[[], None], every_seconds: float, failed: Callable[[str], None]
    ) -> None:
        self._name = name
        self._work = work
        self._every_seconds = every_seconds
        self._failed = failed
        self._due_at = 0.0
        self._thread: threading.Thread | None = None

    def start_if_due(self, *, urgent: bool) -> bool:
        """Begin the work if it isn't running, and is due or urgent. Return whether it was begun."""
        is_running = self._thread is not None and self._thread.is_alive()
        if is_running or (not urgent and time.monotonic() < self._due_at):
            return False
        self._due_at = time.monotonic() + self._every_seconds
        self._thread = threading.Thread(name=self._name, target=self._run, daemon=True)
        self._thread.start()
        return True

    def join(self, seconds: float) -> None:
        """Wait until the work has ended, but no longer than so many seconds."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._work()
        except (StorageEngineError, OSError) as error:
            self._fail(reason_text(error))
        except Exception as error:
            # Any error is reported, and the work is tried again.
            self._fail(unexpected_text(error))

    def _fail(self, reason: str) -> None:
        self._due_at = time.monotonic() + _AFTER_ERROR_SECONDS
        self._failed(reason)


class ShieldWatch:
    """A watch's duty for the shield of one store; its looks never wait.

    :param say: called once with each notice for a person.
    """

    def __init__(self, store: ManagedStore, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        self._reported: set[str] = set()
        name = f"storage-engine-shield {store.root}"
        self._tending = _Duty(name, self._tend, TEND_SECONDS, self._cannot_tend)
        self._asking = _Duty(f"{name} force", self._end_force, FORCE_SECONDS, self._cannot_ask)
        self._urgent = threading.Event()
        self._asks_now = False
        self._ends = threading.Event()
        self._found: deque[Drift] = deque()
        self._result: ShieldResult | None = None
        self._gone: set[str] = set()
        self._has_failed = False
        self.tended_at_ms = 0
        """Time of the last full look at log, lake and shield, in milliseconds since the epoch; 0 if never."""

    @property
    def is_tended(self) -> bool:
        """Return whether this watch tends the shield and its last try succeeded.

        :raises OSError: it can't be found out whether there is a shield.
        """
        return self.is_wanted and not self._has_failed

    @property
    def is_wanted(self) -> bool:
        """Return whether to tend the shield: this watch knows the broker, and a shield exists or is allowed.

        :raises OSError: it can't be found out whether there is a shield.
        """
        return self._store.is_live and (self._is_on or shield_path(self._store.real_root).exists())

    @property
    def _is_on(self) -> bool:
        policy = self._store.policy
        return policy.shield is not ShieldMode.OFF and policy.archive is not ArchiveMode.OFF

    def look(self) -> tuple[Drift, ...]:
        """Notice deleted segments, and start the duties that are due.

        :return: findings and mends since the last look.
        """
        if not self.is_wanted or self._ends.is_set():
            return ()
        self._notice_gone()
        if self._tending.start_if_due(urgent=self._urgent.is_set()):
            self._urgent.clear()
        # The broker is asked once after a deletion. Asking at each look would slow the tending.
        if self._is_on and self._asking.start_if_due(urgent=self._asks_now):
            self._asks_now = False
        return tuple(self._found.popleft() for _ in range(len(self._found)))

    def end(self) -> None:
        """Stop tending the shield. Unless the policy is ON, remove links whose bytes the log still has."""
        if self._ends.is_set() or not self.is_wanted:
            return
        self._ends.set()
        self._tending.join(_END_SECONDS)
        if self._store.policy.shield is not ShieldMode.ON:
            with suppress(StorageEngineError, OSError):
                root = self._store.real_root
                drop_links(root, [entry.link.name for entry in look_at_shield(root).links], in_log=True)

    def _notice_gone(self) -> None:
        """Link the next segments if linked ones are gone from the log."""
        result = self._result
        linked_paths = () if result is None else result.linked_paths
        paths = {path for path in linked_paths if path not in self._gone and not Path(path).exists()}
        if result is None or not paths:
            return
        self._gone |= paths
        self._urgent.set()
        self._asks_now = True
        following = result.following(len(self._gone))
        # If another thread has the shield's lock for longer, it is the tending, which links them itself.
        with suppress(StorageEngineError, OSError):
            for lineage, segments in result.lineages.grouped(following).items():
                make_links(self._store.real_root, segments, lineage, wait_seconds=WATCH_WAIT_SECONDS)

    def _tend(self) -> None:
        # Imported here, because a triggerer that watches no store doesn't need the lake's libraries.
        from storage_engine.retention.shield import tend_shield
        from storage_engine.retention.store.context import opened

        with opened(self._store) as store:
            result = tend_shield(store, tends=True)
        self._result, self._gone = result, set()
        self._has_failed = not result.is_log_known
        if result.is_log_known:
            self.tended_at_ms = clock_ms()
        for notice in result.notices:
            self._say_once(notice)
        if result.archived:
            offsets = ", ".join(map(str, result.archived))
            self._say(f"{self._store.root}: archived from the shield: offset {offsets}")
        if not self._ends.is_set():
            urgent = self._urgent.is_set
            read_links(self._store, lambda: urgent() or self._ends.is_set(), TEND_SECONDS)

    def _end_force(self) -> None:
        with closing(open_to_look(self._store)) as broker:
            drift = None if broker.shield is None else broker.shield.end_force()
        if drift is not None and drift.detail not in self._reported:
            self._reported.add(drift.detail)
            self._found.append(drift)

    def _cannot_tend(self, reason: str) -> None:
        self._has_failed = True
        self._say_once(Text("the shield can't be tended: ", reason))

    def _cannot_ask(self, reason: str) -> None:
        self._say_once(Text("the broker's deletion by force can't be read or switched off: ", reason))

    def _say_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._say(Text(f"{self._store.root}: ", text))


RETRY_SECONDS: Final = 60.0
"""Seconds until inotify is tried again after a failure."""
_MOST_EVENTS: Final = 1000
"""Greatest number of events that are read after one wake-up. Later ones are read after the next."""


class FileChanges:
    """Reports changes of files. It is for one thread; only :meth:`wake` may be called by others.

    :param say: called with the reason why changes aren't seen. It is called again only if a directory was
        watched in between.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._is_said = False
        self._retries_at = 0.0
        self._inotify: Inotify | None = None
        self._watches: dict[Path, tuple[tuple[int, int], Watch]] = {}
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def follow(self, directories: Iterable[Path]) -> None:
        """Watch these directories for changes. A missing directory is tried again at the next call."""
        for directory in directories:
            try:
                self._follow(directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._fail(error)

    def wait(self, seconds: float) -> None:
        """Wait until a file has changed or :meth:`wake` is called, but no longer than so many seconds."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._inotify is not None:
            poll.register(self._inotify.fd, select.POLLIN)
        poll.poll(seconds * 1000)
        with suppress(BlockingIOError):
            self._woken.recv(_MOST_EVENTS)
        try:
            for _ in range(_MOST_EVENTS):
                if self._inotify is None or self._inotify.sync_get() is None:
                    break
        except OSError as error:
            self._fail(error)

    def wake(self) -> None:
        """End :meth:`wait` in the other thread. If that thread isn't waiting, its next wait ends at once."""
        # The socket is full of earlier calls, or closed.
        with suppress(OSError):
            self._waker.send(b".")

    def close(self) -> None:
        self._forget()
        self._waker.close()
        self._woken.close()

    def _follow(self, directory: Path) -> None:
        """Watch a directory for changes, unless it is watched already.

        :raises FileNotFoundError: there is no such directory.
        """
        stat = directory.stat()
        identity = (stat.st_dev, stat.st_ino)
        watched, watch = self._watches.get(directory, (None, None))
        is_alive = self._inotify is not None and watch in self._inotify.watches
        if (watched == identity and is_alive) or time.monotonic() < self._retries_at:
            return
        try:
            from asyncinotify import Inotify, Mask

            if self._inotify is None:
                self._inotify = Inotify(sync_timeout=0)
            if watch is not None and is_alive:
                self._inotify.rm_watch(watch)
            changes = Mask.ATTRIB | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO
            self._watches[directory] = (identity, self._inotify.add_watch(directory, changes))
            self._is_said = False
        except FileNotFoundError:
            raise
        # The Python library or the C library may lack inotify.
        except (OSError, ImportError, AttributeError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._forget()
        self._retries_at = time.monotonic() + RETRY_SECONDS
        if not self._is_said:
            self._is_said = True
            self._say(
                f"changes aren't seen at once (inotify: {error}): the files are still looked at twice a "
                "second"
            )

    def _forget(self) -> None:
        self._watches = {}
        if self._inotify is not None:
            self._inotify.close()
        self._inotify = None


MOST: Final = 1000
"""Greatest number of mends kept while the journal can't be reached: the oldest and the newest ones."""
_AGAIN_SECONDS: Final = 10.0


class Recorder(threading.Thread):
    """Writes to the journals of all stores that a process watches.

    :param say: called once when a journal can't be reached.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(name="storage-engine-watch-records", daemon=True)
        self._say = say
        self._reported = ""
        self._waiting: deque[tuple[ManagedStore, Drift]] = deque()
        self._changed = threading.Condition()
        self._ends = False

    def add(self, store: ManagedStore, mends: Sequence[Drift]) -> None:
        """Add mends to record as soon as possible. Never waits."""
        if not mends:
            return
        with self._changed:
            self._waiting += ((store, drift) for drift in mends)
            while len(self._waiting) > MOST:
                del self._waiting[MOST // 2]
            self._changed.notify()

    def end(self, seconds: float) -> None:
        """End the thread after it has recorded everything, or leave it after so many seconds."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self.join(seconds)

    def run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._ends:
                        return
                    self._changed.wait()
                store = self._waiting[0][0]
                drifts = [drift for owner, drift in self._waiting if owner is store]
            try:
                record_mends(store, drifts)
            except Exception as error:
                # No error may end this thread, because only it records the mends of the watches.
                is_expected = isinstance(error, StorageEngineError | OSError)
                reason = Text(error) if is_expected else unexpected_text(error)
                self._say_once(Text(f"{store.root}: the mends can't be recorded yet: ", reason))
                with self._changed:
                    # Another store's journal may be reachable.
                    self._waiting.rotate(-len(drifts))
                    if self._ends:
                        return
                    self._changed.wait(_AGAIN_SECONDS)
            else:
                with self._changed:
                    recorded = set(map(id, drifts))
                    self._waiting = deque(row for row in self._waiting if id(row[1]) not in recorded)

    def _say_once(self, text: str) -> None:
        if text != self._reported:
            self._say(text)
        self._reported = text


def record_mends(store: ManagedStore, mends: Sequence[Drift]) -> None:
    """Record a watch's mends. Nothing is recorded for a store that no journal knows.

    :raises StorageEngineError: the journal can't be reached.
    """
    if not store.journal_url or missing_sqlite_file(store.journal_url):
        return
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root, store.host)
    if record is not None:
        record_under_watch(journal, record, mends)


Alarmed = Callable[[ManagedStore, Sequence[str] | None, Sequence[str]], None]
"""Called with a store's present faults and its mends. Faults are None if another process reports them."""
LOOK_SECONDS: Final = 0.5
"""Seconds between two looks, for file systems that report no changes. A look is a few calls of stat."""
_STAND_BY_SECONDS: Final = 2.0


def _fence_watch(store: ManagedStore) -> FenceWatch:
    """Return the watch of a store's fence.

    :raises BadInputError: holds of this kind of broker have nothing that can be watched.
    """
    if (fence := fence_watch(store)) is None:
        title = find_broker(store.broker).words.title
        raise BadInputError(
            f"{store.root}: expected a store whose hold can be watched, found a store of {title}. Nothing "
            "was changed. Leave it out of the watch."
        )
    return fence


class StoreWatch(threading.Thread):
    """Looks at one store twice a second, and at once when a file of its log has changed or it is woken.

    :param say: called with mends, and with reasons why the watch can't work.
    :param alarmed: called at each look, with the store's faults and mends.
    """

    def __init__(
        self, store: ManagedStore, recorder: Recorder, say: Callable[[str], None], alarmed: Alarmed
    ) -> None:
        super().__init__(name=f"storage-engine-watch {store.root}", daemon=True)
        self._alarmed = alarmed
        self._mended: list[str] = []
        self._fence = _fence_watch(store)
        self._shield = ShieldWatch(store, say)
        self._store = store
        self._recorder = recorder
        self._say = say
        self._reported = ""
        self._silent = ""
        self._changes = FileChanges(lambda text: say(Text(f"{store.root}: ", text)))
        self._ends = False

    def end(self) -> None:
        """End the thread after its present look."""
        self._ends = True
        self._changes.wake()

    def run(self) -> None:
        try:
            while not self._ends:
                try:
                    self._watch()
                except (StorageEngineError, OSError) as error:
                    self._alarm(reason_text(error))
                except Exception as error:
                    # No error may end the watch, because nobody would notice.
                    self._alarm(Text("the watch has failed and begins again: ", unexpected_text(error)))
                self._pause(_STAND_BY_SECONDS)
        finally:
            self._changes.close()

    def _watch(self) -> None:
        """Look at the store until the watch ends, the store's directory changes, or an error is raised.

        If another process watches the store, stand by once and return.
        """
        root = Path(self._store.root)
        # An empty root is the mount point of a disk that isn't mounted.
        if not (root.is_dir() and any(root.iterdir())):
            self._alarm(f"{root}: expected the store, found none: is it mounted?")
            return
        identity = _identity(self._store.root)
        with self._fence.watching() as beating:
            if beating is None:
                self._stand_by()
                return
            self._silent = ""
            # The lock and the sign of life are on the disk of that root, which may be unmounted meanwhile.
            while not self._ends and _identity(self._store.root) == identity:
                problems = [
                    *self._do(lambda: self._fence.look(clock_ms())),
                    *self._do(self._shield.look),
                    *self._do(lambda: self._beat(beating)),
                ]
                self._tell(self._fence.left_over())
                self._alarm(*problems, well=watching_text(self._fence.last_look))
                self._changes.follow(self._fence.directories)
                self._pause(LOOK_SECONDS)
            if self._ends:
                self._shield.end()

    def _stand_by(self) -> None:
        """Mend the fence if the process that watches the store hangs. Two mending processes do no harm."""
        before, self._silent = self._silent, self._fence.silent()
        # A process that has just begun is silent for a moment, too.
        if not self._silent or self._silent != before:
            with suppress(Exception):
                self._alarmed(self._store, None, ())
            self._say_once("another process watches the store; this process takes over when the other ends")
            return
        problems = [*self._do(lambda: self._fence.look(clock_ms()))]
        self._tell(self._fence.left_over())
        text = f"{self._silent}: end it. Until then this one mends the fence, and doesn't tend the shield"
        self._alarm(text, *problems)

    def _beat(self, beating: Beating) -> tuple[Drift, ...]:
        """Show that the watch is alive, and when it looked."""
        shield = self._shield
        beating.beat(self._fence.last_look, tends_shield=shield.is_tended, tended_at_ms=shield.tended_at_ms)
        return ()

    def _do(self, duty: Callable[[], tuple[Drift, ...]]) -> Iterator[str]:
        """Perform one duty of a look. If it fails, yield the reason, and continue with the other duties."""
        try:
            drifts = duty()
        except (StorageEngineError, OSError) as error:
            yield reason_text(error)
        except Exception as error:
            # No error may keep the other duties of the same look from being done.
            yield Text("a part of the watch has failed, and is tried again: ", unexpected_text(error))
        else:
            self._tell(drifts)

    def _tell(self, drifts: tuple[Drift, ...]) -> None:
        self._recorder.add(self._store, drifts)
        for drift in drifts:
            self._mended.append(Text(f"{drift.kind.value}: ", drift.detail))
            self._say(Text(f"{self._store.root}: ", self._mended[-1]))

    def _alarm(self, *problems: str, well: str = "") -> None:
        mended, self._mended = self._mended, []
        # A receiver's error must not stop the mending.
        with suppress(Exception):
            self._alarmed(self._store, problems, mended)
        self._say_once(join_texts("; ", problems) or well)

    def _pause(self, seconds: float) -> None:
        if not self._ends:
            self._changes.wait(seconds)

    def _say_once(self, text: str) -> None:
        if text != self._reported:
            self._say(Text(f"{self._store.root}: ", text))
        self._reported = text


class HostWatch:
    """Watches stores of this host, each store once.

    :param say: called from its threads. Its errors are ignored, so that mending continues.
    :param alarmed: called from its threads, with a store's present faults and mends. It must not wait.
    """

    def __init__(self, say: Callable[[str], None], alarmed: Alarmed | None = None) -> None:
        self._alarmed: Alarmed = alarmed or (lambda store, problems, mended: None)
        self._say = _ignore_errors(say)
        self._recorder = Recorder(self._say)
        self._watches: dict[str, tuple[StoreWatch, int]] = {}
        self._leaving: list[StoreWatch] = []
        self._changing = threading.Lock()

    def add(self, store: ManagedStore) -> None:
        """Watch a store until it was removed as often as it was added. Never waits for the store's disk."""
        with self._changing:
            if self._recorder.ident is None:
                self._recorder.start()
            entry = self._watches.get(store.root)
            if entry is None:
                watch = StoreWatch(store, self._recorder, self._say, self._alarmed)
                watch.start()
                entry = (watch, 0)
            self._watches[store.root] = (entry[0], entry[1] + 1)

    def remove(self, store: ManagedStore) -> None:
        """End the watch of a store when everyone who added it has removed it. Never waits."""
        with self._changing:
            watch, users = self._watches[store.root]
            if users > 1:
                self._watches[store.root] = (watch, users - 1)
            else:
                del self._watches[store.root]
                watch.end()
                self._leaving = [thread for thread in (*self._leaving, watch) if thread.is_alive()]

    @property
    def dead(self) -> tuple[str, ...]:
        """Return the names of threads that should be running and have died."""
        with self._changing:
            threads = [self._recorder, *(watch for watch, _ in self._watches.values())]
        return tuple(thread.name for thread in threads if thread.ident is not None and not thread.is_alive())

    def end(self, seconds: float = 5.0) -> None:
        """End all its threads. A thread that a disk or a database delays for longer is left behind."""
        deadline = time.monotonic() + seconds
        with self._changing:
            watches = [*(watch for watch, _ in self._watches.values()), *self._leaving]
        for watch in watches:
            watch.end()
        if self._recorder.ident is None:
            return
        for thread in watches:
            thread.join(max(deadline - time.monotonic(), 0))
        self._recorder.end(max(deadline - time.monotonic(), 0))


def _ignore_errors(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return ``say`` without its errors: a full disk or a closed pipe must not end a thread."""

    def try_to_say(text: str) -> None:
        with suppress(Exception):
            say(text)

    return try_to_say


def _identity(path: str) -> tuple[int, int]:
    stat = Path(path).stat()
    return stat.st_dev, stat.st_ino
