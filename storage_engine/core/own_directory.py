"""Our directory in a store's root: opened without following a symbolic link, whoever may write the store.

Its locks are short ones, that only who may write the store can take. Nobody waits for one without end: a
process that was stopped while it had one must not stop all others.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from storage_engine.core import durable

DIRECTORY = ".storage-engine"
PLAIN_STAMP = ".storage-engine-stamp.json"
"""A store's stamp, where its broker takes every directory among its own for one of its own kind."""
HOLD_MARKER = ".storage-engine-hold"
"""Name of a file in a store's root, while the store is held."""

WAIT_SECONDS: Final = 60.0
"""Whoever has one of our locks flushes some files at most."""
WATCH_WAIT_SECONDS: Final = 1.0
"""A watch waits no longer, since it has to show that it is alive; its next look tries again."""
_PAUSE_SECONDS: Final = 0.002

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def own_directory(root: str | os.PathLike[str], *, makes: bool = False) -> Iterator[int]:
    """Open it, for calls that take the descriptor of a directory.

    :param root: the store's.
    :param makes: a missing one is made, durably.
    :raises OSError: it is missing, can't be opened or made, or is a symbolic link.
    """
    path = Path(root) / DIRECTORY
    if makes:
        with suppress(FileExistsError):
            # Whoever may look at the store may read the stamp, or reports and checks would need its owner.
            durable.make_dir(path, shared=True)
            durable.fsync_path(root)
    with durable.opened(path, _FLAGS) as fd:
        yield fd


def writable_by_all(directories: Iterable[Path]) -> Iterator[Path]:
    """Yield our directories and files in a store's directories that everybody may write.

    Releases before that left it to the umask. What can't be looked at is left out.
    """
    for directory in directories:
        own = directory / DIRECTORY
        names: list[Path] = []
        with suppress(OSError):
            names += own.iterdir()
        # The directory comes last: as long as it is open to all, what is in it is looked at again.
        for path in (*sorted(names), own, directory / PLAIN_STAMP, directory / HOLD_MARKER):
            with suppress(OSError):
                mode = path.lstat().st_mode
                if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
                    yield path


def take_from_all(directories: Iterable[Path]) -> None:
    """Let others write nothing of :func:`writable_by_all` any more, where this user may say so."""
    for path in writable_by_all(directories):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                mode = os.fstat(descriptor).st_mode
                os.fchmod(descriptor, stat.S_IMODE(mode) & ~stat.S_IWOTH)
            finally:
                os.close(descriptor)


@contextmanager
def locked(root: str | os.PathLike[str], name: str, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[int]:
    """Keep other processes from what a lock file in our directory stands for, until the block ends.

    :return: the descriptor of our directory.
    :raises TimeoutError: another process, or another part of this one, has the lock for longer.
    :raises OSError: the directory can't be written.
    """
    with _opened(root, name) as (directory, descriptor):
        lock(descriptor, Path(root) / DIRECTORY / name, wait_seconds)
        yield directory


def lock(descriptor: int, path: Path, wait_seconds: float) -> None:
    """Lock an open file until its descriptor is closed.

    :param path: of the file, for the error.
    :raises TimeoutError: another one has the lock for longer.
    """
    deadline = time.monotonic() + wait_seconds
    while not try_lock(descriptor):
        if time.monotonic() >= deadline:
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"another process has the lock for more than {wait_seconds:g} s: find it with fuser, and "
                "end it",
                str(path),
            )
        time.sleep(_PAUSE_SECONDS)


@contextmanager
def try_locked(root: str | os.PathLike[str], name: str) -> Iterator[int | None]:
    """Do the same without waiting.

    :return: as :func:`locked`; None: another process, or another part of this one, has the lock.
    :raises OSError: the directory can't be written.
    """
    with _opened(root, name) as (directory, descriptor):
        yield directory if try_lock(descriptor) else None


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory until its descriptor is closed; False: another one has the lock.

    :raises OSError: it can't be locked.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _opened(root: str | os.PathLike[str], name: str) -> Iterator[tuple[int, int]]:
    with own_directory(root, makes=True) as directory:
        descriptor = durable.open_lock(name, dir_fd=directory)
        try:
            yield directory, descriptor
        finally:
            os.close(descriptor)
