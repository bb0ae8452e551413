"""Who changes a lake on a file system, and who removes files from it, never at the same time.

A commit names files in the catalog that nothing referred to before. Whoever removes what nothing refers
to must not do so between a commit's last look at its files and the catalog's answer. Any number of
commits share the lock; removing has it alone. Only who may write the lake can take it. The kernel gives
it back when its holder dies. On object stores there is none: there every attempt writes files of its own,
and only their age protects them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from storage_engine.core.clock import DAY_MS
from storage_engine.core.durable import make_dirs, open_lock
from storage_engine.core.turns import flock_holders, turn_wait_seconds
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.lake.storage.small_files import HIDDEN_PREFIX

LOCK_NAME = f"{HIDDEN_PREFIX}commit.lock"

_ACTS_LOCK_NAME = f"{HIDDEN_PREFIX}acts.lock"

UNLOCKED_GRACE_MS = DAY_MS
"""How long a file that nothing refers to is left alone, at least, in a lake that has no lock."""

UNLOCKED_PROOF_MS = UNLOCKED_GRACE_MS // 2
"""How old a proof may be that is committed to such a lake: its file must outlast the commit."""

_OTHERS = {
    (LOCK_NAME, fcntl.LOCK_EX): "commits to it",
    (LOCK_NAME, fcntl.LOCK_SH): "removes files from it",
    (_ACTS_LOCK_NAME, fcntl.LOCK_EX): "records an act in it",
}


@contextmanager
def committing(lake: Lake) -> Iterator[None]:
    """Hold off whoever removes files, from looking at the tables until the catalog has answered.

    :raises LakeUnavailableError: somebody removes files for longer than is waited, or the lock can't be had.
    """
    with _held(lake.messages().location(), fcntl.LOCK_SH):
        yield


@contextmanager
def nobody_commits(lake: Lake) -> Iterator[None]:
    """Hold off commits.

    :raises LakeUnavailableError: somebody commits for longer than is waited, or the lock can't be had;
        nothing was removed.
    """
    with nobody_commits_at(lake.messages().location()):
        yield


@contextmanager
def nobody_commits_at(location: str) -> Iterator[None]:
    """Hold off commits to a lake that may not be openable yet.

    :param location: where the files of the table of rows lie.
    :raises LakeUnavailableError: as :func:`nobody_commits` does.
    """
    with _held(location, fcntl.LOCK_EX):
        yield


@contextmanager
def recording_acts(lake: Lake) -> Iterator[None]:
    """Hold off whoever removes files and whoever records an act, while others may commit.

    :raises LakeUnavailableError: somebody does either for longer than is waited, or a lock can't be had.
    """
    with committing(lake), _held(lake.segments().location(), fcntl.LOCK_EX, _ACTS_LOCK_NAME):
        yield


@contextmanager
def _held(location: str, operation: int, name: str = LOCK_NAME) -> Iterator[None]:
    root = local_path(location)
    if root is None:
        yield
        return
    path = root / name
    with lake_errors(str(path), "lock the lake"):
        make_dirs(root)
        descriptor = open_lock(path)
    try:
        seconds = turn_wait_seconds()
        deadline = time.monotonic() + seconds
        while not _lock(descriptor, operation, str(path)):
            if time.monotonic() > deadline:
                # psutil, which a lake needs for nothing else.
                from storage_engine.core.file_users import run_text

                holders = ", ".join(map(run_text, flock_holders(descriptor))) or "somebody"
                others = f"{holders} {_OTHERS[name, operation]}"
                raise LakeUnavailableError(
                    f"{path}: expected that nobody else holds the lake, but for {seconds:g} s "
                    f"{others}, or keeps the file locked; only who may write there can. Nothing was changed. "
                    "Run again when that has ended; --wait says how long to wait for it."
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, operation: int, path: str) -> bool:
    with lake_errors(path, "lock the lake"):
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
