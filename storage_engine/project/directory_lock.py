"""Keeps two commands from working in the same project directory at once."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_engine.core.durable import make_dirs
from storage_engine.exceptions import BadInputError

LOCK_FILE = ".storage-engine.lock"


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Hold ``directory``, creating it when missing; the lock ends with the process at the latest.

    :raises BadInputError: when another process holds it.
    """
    make_dirs(directory)
    with (directory / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInputError(
                f"{directory}: expected an idle project, found another demo or up running in it. End that "
                "one first, or name another directory."
            ) from None
        yield
