"""A watch's heartbeat, ``.storage-engine/watch``, tells other processes whether a watch checks the fence.

A live process may still not check the fence. So other processes rely on the time of its last look.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from storage_engine.commands import Command
from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import DIRECTORY, own_directory, try_locked
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.core.wording import reason_text, time_text
from storage_engine.exceptions import BadInputError
from storage_engine.model.hold import WatchLook

NAME: Final = "watch"
_LOCK: Final = "watch.lock"
BEAT_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 5.0
"""After this time without a heartbeat a watch counts as dead: its disk hangs, or it was killed. After this
time without a look it counts as not watching.
"""
TENDED_SECONDS: Final = 600.0
"""After this time without tending a shield counts as untended. Tending archives what only it still has."""
_BYTES: Final = 512
_MAX_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Record that a watch writes in a store's directory, so that other processes see that it runs.

    :param host: name of the watch's machine.
    :param process_id: number of the process on that machine.
    :param has_ended: the watch ended, and this record is its last one.
    :param tends_shield: the watch archives deleted segments, and its last attempt didn't fail. A watch that
        knows no broker only mends the fence.
    :param looked_at_ms: see :class:`storage_engine.model.hold.WatchLook`, also for ``fenced``, ``mended`` and
        ``runs_out_at_ms``. Releases before these fields don't report their looks.
    :param tended_at_ms: time of its last complete look at the shield; 0: there was none yet.
    """

    host: str
    process_id: int
    began_at_ms: int
    at_ms: int
    has_ended: bool = False
    tends_shield: bool = False
    looked_at_ms: int = 0
    fenced: int = 0
    mended: int = 0
    tended_at_ms: int = 0
    runs_out_at_ms: int = 0


class Watching:
    """The right to watch a store, which only one process can have at a time.

    :param directory: descriptor of our directory in the store's root.
    """

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._began_at_ms = clock_ms()
        self._beat_at: float | None = None

    def beat(self, look: WatchLook, *, tends_shield: bool = False, tended_at_ms: int = 0) -> None:
        """Write that the watch is alive, with the result of its last look, at most once a second.

        The file isn't flushed, since a crash of the machine ends the watch anyway. If the disk was full
        before the first heartbeat, no process sees it until there is space.

        See :meth:`storage_engine.model.broker.broker_store.Beating.beat`.

        :raises OSError: the file can't be written.
        """
        now = time.monotonic()
        if self._beat_at is not None and now - self._beat_at < BEAT_SECONDS:
            return
        sign = _sign(
            replace(
                self._make_beat(),
                tends_shield=tends_shield,
                looked_at_ms=look.looked_at_ms,
                fenced=look.fenced,
                mended=look.mended,
                tended_at_ms=tended_at_ms,
                runs_out_at_ms=look.runs_out_at_ms,
            )
        )
        try:
            try:
                self._write_over(sign)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENXIO):  # none, or a pipe in its place
                    raise
                durable.write_file(NAME, sign, dir_fd=self._directory, shared=True)
        except FileNotFoundError as error:
            reason = f"its directory was removed: run {Command('hold')} to make it, and start a new watch"
            raise FileNotFoundError(errno.ENOENT, reason, f"{DIRECTORY}/{NAME}") from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        self._beat_at = now

    def end(self) -> None:
        """Write that the watch has ended. The file stays, as a watch couldn't create it on a full disk."""
        with suppress(OSError):
            self._write_over(_sign(replace(self._make_beat(), has_ended=True)))

    def _make_beat(self) -> Heartbeat:
        return Heartbeat(socket.gethostname(), os.getpid(), self._began_at_ms, clock_ms())

    def _write_over(self, sign: bytes) -> None:
        """Write a heartbeat into the existing file.

        :raises FileNotFoundError: there is no file yet.
        :raises OSError: the file can't be written.
        """
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with durable.opened(NAME, flags, dir_fd=self._directory) as descriptor:
            os.pwrite(descriptor, sign, 0)


@contextmanager
def watching(root: Path) -> Iterator[Watching | None]:
    """Give the right to watch a store until the block ends; None: another process has it.

    :raises OSError: our directory can't be written.
    """
    with try_locked(root, _LOCK) as directory:
        if directory is None:
            yield None
            return
        watch = Watching(directory)
        try:
            yield watch
        finally:
            watch.end()


def no_watch(root: Path) -> str:
    """Return the reason why no watch is known to check a store's fence; empty: a watch does."""
    beat = _read(root)
    return beat if isinstance(beat, str) else _explain_dead(beat) or _explain_blind(beat)


def last_look(root: Path) -> WatchLook | None:
    """Return the last look of a store's watch; None: no watch is known to check the fence."""
    beat = _read(root)
    if isinstance(beat, str) or _explain_dead(beat) or _explain_blind(beat):
        return None
    return WatchLook(beat.looked_at_ms, beat.fenced, beat.mended, beat.runs_out_at_ms)


def silent_watch(root: Path) -> str:
    """Return a text on a watch that doesn't check the fence, although it hasn't recorded its end; empty: no
    such watch is known.
    """
    beat = _read(root)
    if isinstance(beat, str) or beat.has_ended:
        return ""
    return _explain_dead(beat) or _explain_blind(beat)


def is_shield_tended(root: Path) -> bool:
    """Return whether a store has a live watch that archives deleted segments and has lately done so.

    A watch that has just begun counts as well, as it is at its first look. Otherwise a run would remove the
    links that the watch makes.
    """
    beat = _read(root)
    if not isinstance(beat, Heartbeat) or not beat.tends_shield or _explain_dead(beat):
        return False
    return _is_within(beat.tended_at_ms or beat.began_at_ms, TENDED_SECONDS)


def _read(root: Path) -> Heartbeat | str:
    """Return the last heartbeat, or the reason why there is none or it can't be read."""
    path = root / DIRECTORY / NAME
    try:
        with own_directory(root) as directory:
            content = read_file(path, _MAX_BYTES, follow_links=False, dir_fd=directory)
        return from_jsonable(Heartbeat, json.loads(content), str(path))
    except FileNotFoundError:
        return "no watch is alive"
    except (OSError, BadInputError, *MALFORMED) as error:
        return f"no watch is known to be alive ({path}: {reason_text(error)})"


def _explain_dead(beat: Heartbeat) -> str:
    """Return the reason why the watch with this heartbeat isn't alive; empty: it is alive."""
    if beat.has_ended:
        return "no watch is alive"
    if _is_within(beat.at_ms, SILENT_SECONDS):
        return ""
    return (
        f"the watch (process {beat.process_id} on {beat.host}) was killed or hangs, it was last alive "
        f"{time_text(beat.at_ms)}"
    )


def _explain_blind(beat: Heartbeat) -> str:
    """Return the reason why a live watch isn't known to check the fence; empty: it does."""
    if _is_within(beat.looked_at_ms, SILENT_SECONDS):
        return ""
    when = f"since {time_text(beat.looked_at_ms)}" if beat.looked_at_ms else "yet, or is of an older release"
    return (
        f"the watch (process {beat.process_id} on {beat.host}) is alive, but hasn't seen the whole fence "
        f"{when} (it prints what keeps it from that)"
    )


def _is_within(at_ms: int, seconds: float) -> bool:
    """Return whether a time is within a span before or after now.

    A time after now means that the clock was set back, or that the watch is on another machine.
    """
    return abs(clock_ms() - at_ms) <= seconds * 1000


def _sign(beat: Heartbeat) -> bytes:
    return json.dumps(to_jsonable(beat)).encode().ljust(_BYTES)
