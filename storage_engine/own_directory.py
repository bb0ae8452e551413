"""Our directory in a store's root: opened without following a symbolic link, whoever may write the store.

Its locks are short ones, that only who may write the store can take.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage_engine import durable

DIRECTORY = ".storage-engine"

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
    fd = os.open(path, _FLAGS)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def locked(root: str | os.PathLike[str], name: str) -> Iterator[int]:
    """Keep other processes from what a lock file in our directory stands for, until the block ends.

    :return: the descriptor of our directory.
    :raises OSError: the directory can't be written.
    """
    with _opened(root, name) as (directory, descriptor):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield directory


@contextmanager
def try_locked(root: str | os.PathLike[str], name: str) -> Iterator[int | None]:
    """Do the same without waiting.

    :return: as :func:`locked`; None: another process, or another part of this one, has the lock.
    :raises OSError: the directory can't be written.
    """
    with _opened(root, name) as (directory, descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield directory


@contextmanager
def _opened(root: str | os.PathLike[str], name: str) -> Iterator[tuple[int, int]]:
    with own_directory(root, makes=True) as directory:
        descriptor = durable.open_lock(name, dir_fd=directory)
        try:
            yield directory, descriptor
        finally:
            os.close(descriptor)
