"""Look at a file so that each later write to it is seen: until its times say all that was written before.

A broker writes its log through a mapping. The kernel moves a file's times when a page of it is first written
to, and not again before that page is clean. So a file is flushed until nothing of it was written meanwhile,
and until its times are so old that a later write can't have the same.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from io import FileIO
from typing import Final

from storage_engine.core.durable import opened
from storage_engine.exceptions import ChangedUnderUsError
from storage_engine.model.store import FileFacts

_ROUNDS: Final = 10
_FINE_SECONDS: Final = 0.02
"""More than the kernel's clock for files takes from one value to the next, 10 ms at most."""
_COARSE_SECONDS: Final = 2.0
"""Margin where times have no fraction of a second: the coarsest file systems count by two seconds."""
_SECOND_NS: Final = 1_000_000_000


def settle(path: str | os.PathLike[str]) -> FileFacts:
    """Flush a file until its facts stay as they are, and return them.

    A file that nobody writes to and whose pages are clean costs one fsync that has nothing to do.

    :raises ChangedUnderUsError: another process keeps writing to it.
    :raises OSError: it can't be opened or flushed.
    """
    with opened(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) as fd:
        for _ in range(_ROUNDS):
            before = FileFacts.of_stat(path, os.fstat(fd))
            # Before the flush: a page that it has cleaned may be written to while it goes on with others.
            if (wait_seconds := until_distinct_seconds(before, time.time_ns())) > 0:
                time.sleep(wait_seconds)
            os.fsync(fd)
            if FileFacts.of_stat(path, os.fstat(fd)) == before:
                return before
    raise ChangedUnderUsError(
        f"{os.fspath(path)}: expected a file that no process writes to any more, found that it was "
        "written to in "
        f"each of {_ROUNDS} looks at it. Nothing was committed or deleted. Find out which process writes to "
        "a sealed segment and stop it, then run the same again."
    )


def until_distinct_seconds(facts: FileFacts, now_ns: int) -> float:
    """Return how long it takes until a write can't have the times that the file has already; 0 or less: none.

    A time that lies ahead, as one that a hold has set, is as distinct as one that is past.
    """
    coarse = facts.ctime_ns % _SECOND_NS == 0
    distance_ns = min(abs(now_ns - facts.ctime_ns), abs(now_ns - facts.mtime_ns))
    return (_COARSE_SECONDS if coarse else _FINE_SECONDS) - distance_ns / _SECOND_NS


_BLOCK_BYTES: Final = 1 << 20

Spend = Callable[[int], None]
"""Waits until so many bytes more may be read."""


def paced_sha256(file: FileIO, spend: Spend) -> str:
    """Return the SHA-256 of an open file from where it is to its end, and drop its pages from the cache.

    :param spend: called after each block that was read.
    :raises OSError: it can't be read.
    """
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
        spend(len(block))
    # A broker reads its own pages through its mapping, which keeps them.
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()
