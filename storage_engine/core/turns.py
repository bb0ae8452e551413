"""Locks between our processes on one store or lake: several processes may read, only one may write.

A reader of a store has a shared lock (flock) on the store's directories. If a writer locks a whole directory
exclusively, the reader locks a file in it instead. It opens directory or file only for reading, so that it
needs no permission to write. The shared lock blocks no process and waits for no process. It only shows a
deleting process that the reader is one of our processes and only reads. The lock ends with the reader's
process. With NFS only processes of the same host see a flock, and ``/proc`` shows only one host's processes.

A writer has the broker's lock and a lease in the journal. Our other writers wait for both.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from storage_engine.core.wording import duration_text
from storage_engine.exceptions import TurnTakenError

WAIT_SECONDS: Final = 600.0
"""Default number of seconds that a process waits for its turn."""
_PAUSE_SECONDS: Final = 0.25
_LONGEST_TEXT: Final = 60
_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

_LOCKS: Final = Path("/proc/locks")

_wait_seconds = WAIT_SECONDS
T = TypeVar("T")


def turn_wait_seconds() -> float:
    """Return how many seconds this process waits for its turn."""
    return _wait_seconds


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Set how long this process waits for its turn, until the block ends."""
    global _wait_seconds  # one value for all threads of the process
    before, _wait_seconds = _wait_seconds, seconds
    try:
        yield
    finally:
        _wait_seconds = before


def take_turn(attempt: Callable[[], T]) -> T:
    """Repeat an attempt until none of our other processes blocks it. Return its result.

    :raises TurnTakenError: a process still blocks it after :func:`turn_wait_seconds`.
    """
    deadline = time.monotonic() + _wait_seconds
    while True:
        try:
            return attempt()
        except TurnTakenError as error:
            if time.monotonic() >= deadline:
                wait = duration_text(int(_wait_seconds * 1000))
                raise TurnTakenError(f"{error} This run waited {wait}; --wait sets how long.") from error
        time.sleep(min(_PAUSE_SECONDS, max(deadline - time.monotonic(), 0)))


class SharedLock:
    """Our shared lock on directories, or on files in them, as long as the object exists.

    A copy of an object with a lock in a field shares the lock. An unpickled object has no lock.

    :param directories: a path that can't be opened or locked is left out.
    """

    __slots__ = ("_descriptors",)

    def __init__(self, directories: Iterable[str | os.PathLike[str]] = ()) -> None:
        self._descriptors: list[int] = []
        for path in directories:
            with suppress(OSError):
                descriptor = os.open(path, _OPEN)
                self._descriptors.append(descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def __enter__(self) -> SharedLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[SharedLock], tuple[Any, ...]]:
        return SharedLock, ()

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def has_shared_lock(pid: int, directories: Collection[str]) -> bool:
    """Return whether a process has our shared lock on one of the directories, or on a file in one.

    The kernel's record of the process's descriptors decides, rather than its number or name. Return False if
    this system or user can't see that record.
    """
    try:
        for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with suppress(FileNotFoundError):
                path = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115
                is_in = os.path.dirname(path) in directories and os.path.isfile(path)  # noqa: PTH113,PTH120
                if (is_in or path in directories) and any(
                    line.startswith("lock:") and " FLOCK " in line and " READ " in line
                    for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
                ):
                    return True
    except OSError:
        return False
    return False


def flock_holders(descriptor: int) -> tuple[int, ...]:
    """Return the processes with a lock (flock) on an open file, as far as visible in this container."""
    status = os.fstat(descriptor)
    of_file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return ()
    # "1: FLOCK  ADVISORY  READ 4711 08:01:131074 0 EOF"; the line of a waiting process has "->" in it
    fields = (line.split() for line in lines)
    return tuple(dict.fromkeys(int(line[4]) for line in fields if (line[1], line[5]) == ("FLOCK", of_file)))


def command_text(words: Sequence[str]) -> str:
    """Return a command without options and paths, such as ``storage-engine clean``; "" without words."""
    parts = list(words)
    if parts and os.path.basename(parts[0]).startswith("python"):  # noqa: PTH119
        parts = [word for word in parts[1:] if not word.startswith("-")] or parts[:1]
    names = [os.path.basename(word) for word in parts[:1]]  # noqa: PTH119
    for word in parts[1:]:
        if word.startswith("-") or os.sep in word:
            break
        names.append(word)
    return " ".join(names)[:_LONGEST_TEXT].strip()
