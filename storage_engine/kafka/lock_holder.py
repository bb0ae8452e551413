"""Which process has a log directory's ``.lock``: a broker that runs has it, and removes it when it stops."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

LOCK = ".lock"
_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of Linux with 64-bit offsets: type, whence, start, length, process."""


def lock_holder(directory: Path) -> int | None:
    """Return the process that has the directory's lock; None: none has. Asks, and takes no lock.

    0 is a process that can't be seen from here, as on another host.

    :raises OSError: the file can't be opened, as where its permissions forbid it.
    """
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else max(int(process), 0)
