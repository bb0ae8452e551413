"""A watch's heartbeat, ``.storage-engine/watch``: it tells others whether somebody looks at the fence.

That a process is alive says nothing of the fence: others go by its last look.
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
"""A watch that was not seen for so long isn't alive: its disk hangs, or it was killed. One that hasn't looked
for so long doesn't watch."""
TENDED_SECONDS: Final = 600.0
"""A shield that was last tended before that isn't any more. Tending archives what only the shield has."""
_BYTES: Final = 512
_MAX_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a watch leaves in a store's directory, so that others see that it runs.

    :param host: name of the machine.
    :param process_id: there.
    :param has_ended: it ended, and left this.
    :param tends_shield: it acts on what is deleted, and its last try didn't fail; one that knows no broker
        only mends the fence.
    :param looked_at_ms: as ``fenced``, ``mended`` and ``runs_out_at_ms``, see
        :class:`storage_engine.model.hold.WatchLook`; releases before these fields don't say that they
        looked.
    :param tended_at_ms: when it last looked at all of the shield; 0: it hasn't yet.
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
    """The right to watch a store, which one process has at a time.

    :param directory: ours in the store's root, by its descriptor.
    """

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._began_at_ms = clock_ms()
        self._beat_at: float | None = None

    def beat(self, look: WatchLook, *, tends_shield: bool = False, tended_at_ms: int = 0) -> None:
        """Show that the watch is alive, and what it saw last, once a second at most.

        It isn't flushed: no watch outlives a crash of its machine. On a disk that was full before the first
        one, nobody sees it until there is room.

        See :meth:`storage_engine.model.broker.broker_store.Beating.beat`.

        :raises OSError: the file can't be written.
        """
        now = time.monotonic()
        if self._beat_at is not None and now - self._beat_at < BEAT_SECONDS:
            return
        sign = _sign(
            replace(
                self._mine(),
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
            gone = f"its directory was removed: {Command('hold')} makes one, for a new watch"
            raise FileNotFoundError(errno.ENOENT, gone, f"{DIRECTORY}/{NAME}") from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        self._beat_at = now

    def end(self) -> None:
        """Leave no sign of life. The file stays: on a full disk the next watch could make none."""
        with suppress(OSError):
            self._write_over(_sign(replace(self._mine(), has_ended=True)))

    def _mine(self) -> Heartbeat:
        return Heartbeat(socket.gethostname(), os.getpid(), self._began_at_ms, clock_ms())

    def _write_over(self, sign: bytes) -> None:
        """
        :raises FileNotFoundError: there is no file yet.
        :raises OSError: it can't be written.
        """
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with durable.opened(NAME, flags, dir_fd=self._directory) as descriptor:
            os.pwrite(descriptor, sign, 0)


@contextmanager
def watching(root: Path) -> Iterator[Watching | None]:
    """Watch a store until the block ends; None: another process does.

    :raises OSError: our directory can't be written.
    """
    with try_locked(root, _LOCK) as directory:
        if directory is None:
            yield None
            return
        own = Watching(directory)
        try:
            yield own
        finally:
            own.end()


def no_watch(root: Path) -> str:
    """Return why no watch is known to look at a store's fence; empty: one does."""
    beat = _read(root)
    return beat if isinstance(beat, str) else _why_dead(beat) or _why_blind(beat)


def last_look(root: Path) -> WatchLook | None:
    """Return the last look of a store's watch; None: none is known to look."""
    beat = _read(root)
    if isinstance(beat, str) or _why_dead(beat) or _why_blind(beat):
        return None
    return WatchLook(beat.looked_at_ms, beat.fenced, beat.mended, beat.runs_out_at_ms)


def silent_watch(root: Path) -> str:
    """Return the watch that left no sign of its end, and doesn't look; empty: none is known."""
    beat = _read(root)
    if isinstance(beat, str) or beat.has_ended:
        return ""
    return _why_dead(beat) or _why_blind(beat)


def is_shield_tended(root: Path) -> bool:
    """Return whether a watch is alive on a store that acts on deleted segments, and lately did.

    One that has just begun is at its first look: who took it for none would drop the links that it makes.
    """
    beat = _read(root)
    if not isinstance(beat, Heartbeat) or not beat.tends_shield or _why_dead(beat):
        return False
    return _is_within(beat.tended_at_ms or beat.began_at_ms, TENDED_SECONDS)


def _read(root: Path) -> Heartbeat | str:
    """Return the last sign of life, or why there is none that can be read."""
    path = root / DIRECTORY / NAME
    try:
        with own_directory(root) as directory:
            content = read_file(path, _MAX_BYTES, follow_links=False, dir_fd=directory)
        return from_jsonable(Heartbeat, json.loads(content), str(path))
    except FileNotFoundError:
        return "no watch is alive"
    except (OSError, BadInputError, *MALFORMED) as error:
        return f"no watch is known to be alive ({path}: {reason_text(error)})"


def _why_dead(beat: Heartbeat) -> str:
    """Return why the watch of a sign of life isn't alive; empty: it is."""
    if beat.has_ended:
        return "no watch is alive"
    if _is_within(beat.at_ms, SILENT_SECONDS):
        return ""
    return (
        f"the watch (process {beat.process_id} on {beat.host}) was killed or hangs, it was last alive "
        f"{time_text(beat.at_ms)}"
    )


def _why_blind(beat: Heartbeat) -> str:
    """Return why a watch that is alive isn't known to look; empty: it does."""
    if _is_within(beat.looked_at_ms, SILENT_SECONDS):
        return ""
    when = f"since {time_text(beat.looked_at_ms)}" if beat.looked_at_ms else "yet, or is of an older release"
    return (
        f"the watch (process {beat.process_id} on {beat.host}) is alive, but hasn't seen the whole fence "
        f"{when} (it prints what keeps it from that)"
    )


def _is_within(at_ms: int, seconds: float) -> bool:
    """Return whether a moment lies within a span from now.

    One after now: the clock was set back, or the watch is on another machine.
    """
    return abs(clock_ms() - at_ms) <= seconds * 1000


def _sign(beat: Heartbeat) -> bytes:
    return json.dumps(to_jsonable(beat)).encode().ljust(_BYTES)
