"""Ask a file system whether a write through a mapping moves a clean file's times. This is a script that
imports only the standard library. It runs in its own process, because a full file system may answer a write
through a mapping with SIGBUS.

Usage: probe.py DESCRIPTOR, of an empty file that is open for reading and writing.
"""

from __future__ import annotations

import mmap
import os
import sys
import time

MOVED, NOT_MOVED = 0, 3
_FINE_SECONDS, _COARSE_SECONDS = 0.03, 2.1


def main(fd: int) -> int:
    """Return the exit status: :data:`MOVED`, :data:`NOT_MOVED`, or another value if the answer is unknown."""
    os.pwrite(fd, bytes(mmap.PAGESIZE), 0)
    with mmap.mmap(fd, mmap.PAGESIZE) as mapping:
        mapping[0] = 1
        os.fsync(fd)
        before = os.fstat(fd)
        # What settling waits for as well: times that a later write can't have.
        time.sleep(_FINE_SECONDS if before.st_ctime_ns % 1_000_000_000 else _COARSE_SECONDS)
        mapping[0] = 2
        after = os.fstat(fd)
    moved = after.st_mtime_ns != before.st_mtime_ns and after.st_ctime_ns != before.st_ctime_ns
    return MOVED if moved else NOT_MOVED


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
