"""Locks of ours beside a store: short ones, that only who may write the store can take."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_engine import durable
from storage_engine.own_directory import own_directory


@contextmanager
def locked(root: Path, name: str) -> Iterator[int]:
    """Keep other processes from what a lock file in our directory stands for, until the block ends.

    :return: the descriptor of our directory.
    :raises OSError: the directory can't be written.
    """
    with _opened(root, name) as (directory, descriptor):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield directory


@contextmanager
def try_locked(root: Path, name: str) -> Iterator[int | None]:
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
def _opened(root: Path, name: str) -> Iterator[tuple[int, int]]:
    with own_directory(root, makes=True) as directory:
        descriptor = durable.open_lock(name, dir_fd=directory)
        try:
            yield directory, descriptor
        finally:
            os.close(descriptor)
