"""A watch's sign of life, ``.storage-engine/watch``: it tells others whether somebody mends the fence."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_engine import durable
from storage_engine.exceptions import BadInputError
from storage_engine.model.jsonable import from_jsonable, to_jsonable
from storage_engine.own_directory import DIRECTORY, own_directory, try_locked
from storage_engine.untrusted import MALFORMED, read_file
from storage_engine.wording import time_text

NAME: Final = "watch"
_LOCK: Final = "watch.lock"
BEAT_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 5.0
"""A watch that was not seen for so long isn't alive: its disk hangs, or it was killed."""
_BYTES: Final = 512
_MAX_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """
    :param host: name of the machine.
    :param process_id: there.
    :param has_ended: it ended, and left this.
    :param tends_shield: it acts on what is deleted; one that knows no broker only mends the fence.
    """

    host: str
    process_id: int
    began_at_ms: int
    at_ms: int
    has_ended: bool = False
    tends_shield: bool = False


class Watching:
    """The right to watch a store, which one process has at a time.

    :param directory: ours in the store's root, by its descriptor.
    """

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._began_at_ms = _now_ms()
        self._beat_at: float | None = None

    def beat(self, *, tends_shield: bool = False) -> None:
        """Show that the watch is alive, once a second at most.

        It isn't flushed: no watch outlives a crash of its machine. On a disk that was full before the first
        one, nobody sees it until there is room.

        :param tends_shield: the watch acts on what is deleted, so that nobody else has to.
        :raises OSError: the file can't be written.
        """
        now = time.monotonic()
        if self._beat_at is not None and now - self._beat_at < BEAT_SECONDS:
            return
        sign = self._sign(tends_shield=tends_shield)
        try:
            try:
                self._write_over(sign)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENXIO):  # none, or a pipe in its place
                    raise
                durable.write_file(NAME, sign, dir_fd=self._directory, shared=True)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        self._beat_at = now

    def end(self) -> None:
        """Leave no sign of life. The file stays: on a full disk the next watch could make none."""
        with suppress(OSError):
            self._write_over(self._sign(has_ended=True))

    def _sign(self, *, has_ended: bool = False, tends_shield: bool = False) -> bytes:
        beat = Heartbeat(
            socket.gethostname(), os.getpid(), self._began_at_ms, _now_ms(), has_ended, tends_shield
        )
        return json.dumps(to_jsonable(beat)).encode().ljust(_BYTES)

    def _write_over(self, sign: bytes) -> None:
        """
        :raises FileNotFoundError: there is no file yet.
        :raises OSError: it can't be written.
        """
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(NAME, flags, dir_fd=self._directory)
        try:
            os.pwrite(descriptor, sign, 0)
        finally:
            os.close(descriptor)


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
    """Return why no watch is known to be alive on a store; empty: one is."""
    beat = _read(root)
    return beat if isinstance(beat, str) else _why_dead(beat)


def silent_watch(root: Path) -> str:
    """Return which watch left no sign that it ended, and gives none of life; empty: none is known."""
    beat = _read(root)
    return _why_dead(beat) if isinstance(beat, Heartbeat) and not beat.has_ended else ""


def is_shield_tended(root: Path) -> bool:
    """Return whether a watch is alive on a store that acts on what is deleted."""
    beat = _read(root)
    return isinstance(beat, Heartbeat) and beat.tends_shield and not _why_dead(beat)


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
        return f"no watch is known to be alive ({path}: {error})"


def _why_dead(beat: Heartbeat) -> str:
    """Return why the watch of a sign of life isn't alive; empty: it is."""
    if beat.has_ended:
        return "no watch is alive"
    # Younger than now: the clock was set back, or the watch is on another machine.
    if abs(_now_ms() - beat.at_ms) <= SILENT_SECONDS * 1000:
        return ""
    return (
        f"the watch (process {beat.process_id} on {beat.host}) was killed or hangs, it was last alive "
        f"{time_text(beat.at_ms)}"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
