"""Directories of running jobs' files below the reports: one a job, gone with it or swept after its death."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_engine.core.durable import make_dirs

_PREFIX = ".spark-job-"


@contextmanager
def job_directory(parent: Path) -> Iterator[Path]:
    """Make a directory that only this user can read, and remove it at the end.

    It is locked until then, so that :func:`sweep_job_files` tells it from those of killed processes. These
    are removed first.
    """
    make_dirs(parent)
    sweep_job_files(parent)
    directory, lock = _locked_directory(parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def sweep_job_files(parent: Path, *, dry_run: bool = False) -> tuple[Path, ...]:
    """Remove the directories of jobs whose process is dead.

    :param dry_run: only find them.
    :return: those that were removed, or would be.
    """
    dead = []
    for directory in sorted(parent.glob(f"{_PREFIX}*")):
        lock = _try_lock(directory)
        if lock is None:
            continue
        try:
            dead.append(directory)
            if not dry_run:
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)
    return tuple(dead)


def _locked_directory(parent: Path) -> tuple[Path, int]:
    """A new directory and the descriptor that locks it; a sweep may come between the two."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = _try_lock(directory)
        if lock is None:
            continue
        if directory.exists():
            return directory, lock
        os.close(lock)


def _try_lock(directory: Path) -> int | None:
    """The descriptor of a lock on a directory; None where another process has it, or it isn't our lock."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
