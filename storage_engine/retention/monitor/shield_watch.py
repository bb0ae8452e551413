"""Tend a shield beside a running broker: what a watch does for it at each look, and what takes longer.

A look is some calls of stat. What was deleted is followed at once by links of the next segments, and the
broker is kept from deleting more; asking it, and archiving, happen in threads of their own, so that a fence
is mended meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage_engine.core.clock import clock_ms
from storage_engine.core.own_directory import WATCH_WAIT_SECONDS
from storage_engine.core.wording import reason_text, unexpected
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.hold import Drift
from storage_engine.model.settings.policy import GENTLE_BYTES_PER_SECOND, ArchiveMode, ShieldMode
from storage_engine.retention.store.brokers import open_to_look
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import shield_path
from storage_engine.shield.links import drop_links, make_links, note_digest
from storage_engine.shield.seen import Place, digest_of, look_at_shield

if TYPE_CHECKING:
    from storage_engine.retention.shield import ShieldResult


def read_links(store: ManagedStore, is_urgent: Callable[[], bool], seconds: float = inf) -> int:
    """Read the links whose bytes nobody has read as they are now, and remember their digests.

    What was only touched is told from what was written to by that. It is gentle to a broker on the same disk.

    :param is_urgent: asked now and then; what is left waits for the next call then.
    :param seconds: after so long no further one is begun.
    :return: how many were read.
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
        for seen in look_at_shield(store.real_root).links:
            if seen.place is not Place.IN_LOG or (seen.is_same and seen.link.sha256):
                continue
            if time.monotonic() > ends:
                break
            sha256 = digest_of(store.real_root, seen, spend)
            if sha256 is not None:
                note_digest(store.real_root, seen, sha256)
                count += 1
    return count


class _UrgentError(Exception):
    """Something else has to be done first."""


TEND_SECONDS: Final = 30.0
"""From one whole look at log, lake and shield to the next, unless something is gone."""
FORCE_SECONDS: Final = 5.0
"""From one question to the broker to the next, likewise."""
_AFTER_ERROR_SECONDS: Final = 30.0
_END_SECONDS: Final = 2.0


class _Duty:
    """Work that takes a while, in a thread of its own, one at a time; the process may end meanwhile.

    :param failed: called with the reason, if it fails.
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
        """Begin it where it isn't on its way and its time has come, or at once where it is urgent.

        :return: whether it was begun.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        if not urgent and time.monotonic() < self._due_at:
            return False
        self._due_at = time.monotonic() + self._every_seconds
        self._thread = threading.Thread(name=self._name, target=self._run, daemon=True)
        self._thread.start()
        return True

    def join(self, seconds: float) -> None:
        """Wait for so long until it isn't on its way."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._work()
        except (StorageEngineError, OSError) as error:
            self._fail(reason_text(error))
        except Exception as error:
            # Whatever it is, it is said, and tried again.
            self._fail(unexpected(error))

    def _fail(self, why: str) -> None:
        self._due_at = time.monotonic() + _AFTER_ERROR_SECONDS
        self._failed(why)


class ShieldWatch:
    """A watch's duty for the shield of one store; its looks never wait.

    :param say: told once what a person should know.
    """

    def __init__(self, store: ManagedStore, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        self._said: set[str] = set()
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
        """When log, lake and shield were last looked at as a whole; 0: they weren't yet."""

    @property
    def is_tended(self) -> bool:
        """Return whether this watch tends the shield, as far as its last try tells.

        :raises OSError: nobody can look whether there is one.
        """
        return self.is_wanted and not self._has_failed

    @property
    def is_wanted(self) -> bool:
        """Return whether this watch tends the shield: it knows the broker, and there is one or may be one.

        :raises OSError: nobody can look whether there is one.
        """
        return self._store.is_live and (self._is_on or shield_path(self._store.real_root).exists())

    @property
    def _is_on(self) -> bool:
        policy = self._store.policy
        return policy.shield is not ShieldMode.OFF and policy.archive is not ArchiveMode.OFF

    def look(self) -> tuple[Drift, ...]:
        """Notice what is gone, and have done what is due.

        :return: what was found and done since the last look.
        """
        if not self.is_wanted or self._ends.is_set():
            return ()
        self._notice_gone()
        if self._tending.start_if_due(urgent=self._urgent.is_set()):
            self._urgent.clear()
        # Once for what is gone, and not at each look until it is tended: that would only slow the tending.
        if self._is_on and self._asking.start_if_due(urgent=self._asks_now):
            self._asks_now = False
        return tuple(self._found.popleft() for _ in range(len(self._found)))

    def end(self) -> None:
        """Tend it no more. Nobody acts on what is deleted then, so links go whose bytes the log has."""
        if self._ends.is_set() or not self.is_wanted:
            return
        self._ends.set()
        self._tending.join(_END_SECONDS)
        if self._store.policy.shield is not ShieldMode.ON:
            with suppress(StorageEngineError, OSError):
                root = self._store.real_root
                drop_links(root, [seen.link.name for seen in look_at_shield(root).links], in_log=True)

    def _notice_gone(self) -> None:
        """Link the next segments in the place of those that are gone from the log."""
        result = self._result
        if result is None:
            return
        gone = {path for path in result.linked_paths if path not in self._gone and not Path(path).exists()}
        if not gone:
            return
        self._gone |= gone
        self._urgent.set()
        self._asks_now = True
        following = result.following(len(self._gone))
        # Who has the shield's lock for longer is the tending, which links them itself.
        with suppress(StorageEngineError, OSError):
            for lineage, segments in result.lineages.grouped(following).items():
                make_links(self._store.real_root, segments, lineage, wait_seconds=WATCH_WAIT_SECONDS)

    def _tend(self) -> None:
        # The lake's libraries, which a triggerer that watches no store needs for nothing.
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
            found = broker.end_force()
        if found is not None and found.detail not in self._said:
            self._said.add(found.detail)
            self._found.append(found)

    def _cannot_tend(self, why: str) -> None:
        self._has_failed = True
        self._say_once(f"the shield can't be tended: {why}")

    def _cannot_ask(self, why: str) -> None:
        self._say_once(f"whether the broker deletes by force can't be asked, or ended: {why}")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(f"{self._store.root}: {text}")
