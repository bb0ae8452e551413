"""A watch's heartbeat, ``.storage-engine/watch``, which tells other processes whether the fence is checked.

A watch may be alive without checking the fence. So other processes rely on the time of its last look.
"""

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
from typing import Any, Final

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
"""A watch without a heartbeat for this time counts as dead; a watch without a look, as not watching."""
TENDED_SECONDS: Final = 600.0
"""Time from a watch's last look at the shield until the shield is untended. Each look archives segments."""
_BYTES: Final = 512
_MAX_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Record that a watch writes in a store's directory.

    :param host: name of the watch's machine.
    :param process_id: id of the watch's process on that machine.
    :param has_ended: whether the watch has ended. Then this is its last record.
    :param tends_shield: whether the watch archives deleted segments, and its last attempt didn't fail. A
        watch without access to the broker only mends the fence.
    :param looked_at_ms: see :class:`storage_engine.model.hold.WatchLook`, also for ``fenced``, ``mended`` and
        ``runs_out_at_ms``. Older releases don't write these fields.
    :param tended_at_ms: time of its last complete look at the shield; 0 before the first one.
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

    :param directory: descriptor of ``.storage-engine`` in the store's root.
    """

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._began_at_ms = clock_ms()
        self._beat_at: float | None = None

    def beat(self, look: WatchLook, *, tends_shield: bool = False, tended_at_ms: int = 0) -> None:
        """Write that the watch is alive, with the result of its last look, at most once a second.

        The file isn't flushed, since a crash of the machine ends the watch anyway. On a full disk the first
        heartbeat can't be written. See :meth:`storage_engine.model.broker.broker_store.Beating.beat`.

        :raises OSError: the file can't be written.
        """
        now = time.monotonic()
        if self._beat_at is not None and now - self._beat_at < BEAT_SECONDS:
            return
        record = self._encode_beat(
            tends_shield=tends_shield,
            looked_at_ms=look.looked_at_ms,
            fenced=look.fenced,
            mended=look.mended,
            tended_at_ms=tended_at_ms,
            runs_out_at_ms=look.runs_out_at_ms,
        )
        try:
            try:
                self._write_over(record)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENXIO):  # No file, or a pipe in its place.
                    raise
                durable.write_file(NAME, record, dir_fd=self._directory, shared=True)
        except FileNotFoundError as error:
            reason = f"its directory was removed: run {Command('hold')} to make it, and start a new watch"
            raise FileNotFoundError(errno.ENOENT, reason, f"{DIRECTORY}/{NAME}") from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        self._beat_at = now

    def end(self) -> None:
        """Write that the watch has ended. The file stays: on a full disk it couldn't be created again."""
        with suppress(OSError):
            self._write_over(self._encode_beat(has_ended=True))

    def _encode_beat(self, **fields: Any) -> bytes:
        beat = Heartbeat(socket.gethostname(), os.getpid(), self._began_at_ms, clock_ms(), **fields)
        return json.dumps(to_jsonable(beat)).encode().ljust(_BYTES)

    def _write_over(self, record: bytes) -> None:
        """Overwrite the existing file.

        :raises FileNotFoundError: the file doesn't exist.
        """
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with durable.opened(NAME, flags, dir_fd=self._directory) as descriptor:
            os.pwrite(descriptor, record, 0)


@contextmanager
def watching(root: Path) -> Iterator[Watching | None]:
    """Yield the right to watch a store until the block ends; None if another process has it.

    :raises OSError: ``.storage-engine`` can't be written.
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
    """Return the reason why no watch is known to check a store's fence; "" if a watch checks it."""
    beat = _read(root)
    return beat if isinstance(beat, str) else _explain_dead(beat) or _explain_blind(beat)


def last_look(root: Path) -> WatchLook | None:
    """Return the last look of a store's watch; None if no watch is known to check the fence."""
    beat = _read(root)
    if isinstance(beat, str) or _explain_dead(beat) or _explain_blind(beat):
        return None
    return WatchLook(beat.looked_at_ms, beat.fenced, beat.mended, beat.runs_out_at_ms)


def silent_watch(root: Path) -> str:
    """Return why a watch without a recorded end doesn't check the fence.

    Return "" if there is no such watch, or if it checks the fence.
    """
    beat = _read(root)
    if isinstance(beat, str) or beat.has_ended:
        return ""
    return _explain_dead(beat) or _explain_blind(beat)


def is_shield_tended(root: Path) -> bool:
    """Return whether a store has a live watch that archives deleted segments and has lately done so.

    A watch that has just begun counts as well. Otherwise a run would remove the links that the watch makes.
    """
    beat = _read(root)
    if not isinstance(beat, Heartbeat) or not beat.tends_shield or _explain_dead(beat):
        return False
    return _is_within(beat.tended_at_ms or beat.began_at_ms, TENDED_SECONDS)


def _read(root: Path) -> Heartbeat | str:
    """Return the last heartbeat, or the reason why no heartbeat can be read."""
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
    """Return the reason why the watch with this heartbeat isn't alive; "" if it is alive."""
    if beat.has_ended:
        return "no watch is alive"
    if _is_within(beat.at_ms, SILENT_SECONDS):
        return ""
    return (
        f"the watch (process {beat.process_id} on {beat.host}) was killed or hangs, it was last alive "
        f"{time_text(beat.at_ms)}"
    )


def _explain_blind(beat: Heartbeat) -> str:
    """Return the reason why a live watch isn't known to check the fence; "" if it checks it."""
    if _is_within(beat.looked_at_ms, SILENT_SECONDS):
        return ""
    when = f"since {time_text(beat.looked_at_ms)}" if beat.looked_at_ms else "yet, or is of an older release"
    return (
        f"the watch (process {beat.process_id} on {beat.host}) is alive, but hasn't seen the whole fence "
        f"{when} (it prints what keeps it from that)"
    )


def _is_within(at_ms: int, seconds: float) -> bool:
    """Return whether a time differs from now by at most this span.

    It may be later than now if the clock was set back, or the watch runs on another machine.
    """
    return abs(clock_ms() - at_ms) <= seconds * 1000
