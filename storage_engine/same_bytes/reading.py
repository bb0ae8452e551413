"""Reading a file once more for its hash, as slowly as whoever uses its disk needs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from io import FileIO
from typing import Final

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
