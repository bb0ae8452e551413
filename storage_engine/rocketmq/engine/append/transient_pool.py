"""Buffers outside the page cache that new messages are written to first (TransientStorePool).

They are locked into memory where the system allows it. A commit writes them into the file, a flush takes the
file to disk.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import deque

import numpy as np

from storage_engine.arrow.memory import address_of


class TransientPool:
    """A fixed number of buffers, each as long as a file of the commitlog."""

    def __init__(self, buffers: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._guard = threading.Lock()
        self._free = deque(_locked_buffer(size_bytes) for _ in range(buffers))

    @property
    def free_buffers(self) -> int:
        return len(self._free)

    def borrow(self) -> mmap.mmap | None:
        """Take a buffer; None when all are in use: the file is then written to directly."""
        with self._guard:
            return self._free.popleft() if self._free else None

    def give_back(self, buffer: mmap.mmap) -> None:
        with self._guard:
            self._free.appendleft(buffer)


def _locked_buffer(size_bytes: int) -> mmap.mmap:
    buffer = mmap.mmap(-1, size_bytes)
    address = address_of(np.frombuffer(buffer, np.uint8))
    # As the broker, go on where the limit of locked memory is too low.
    ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes))
    return buffer
