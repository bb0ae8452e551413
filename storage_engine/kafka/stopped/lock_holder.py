"""Which process has a log directory's ``.lock``: a broker that runs has it, and removes it when it stops."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from storage_engine.kafka.format.layout import Node

LOCK = ".lock"
_LOCKS = Path("/proc/locks")
_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of Linux with 64-bit offsets: type, whence, start, length, process."""

held_here: set[str] = set()
"""Real paths of the directories that this process itself has locked (``store_lock``)."""


def lock_holder(directory: Path) -> int | None:
    """Return the other process that has the directory's lock; None: none has. Asks, and takes no lock.

    0 is a process that can't be seen from here, as on another host.

    :raises OSError: the file can't be opened, as where its permissions forbid it.
    """
    if os.path.realpath(directory) in held_here:
        return None
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        kind, process = whole_file(descriptor, fcntl.F_GETLK, fcntl.F_WRLCK)
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else max(process, 0)


def holder_text(directory: Path) -> str:
    """Return the directory's lock and the other process that has it, as a clause; "": none has."""
    if (holder := lock_holder(directory)) is None:
        return ""
    # psutil, which looking at a node needs for nothing.
    from storage_engine.core.file_users import process_text

    return f"{directory / LOCK} is locked by {process_text(holder)}"


def is_locked_by_us(directory: Path) -> bool:
    """Return whether one of our runs has a directory's lock, in whatever container of this machine.

    Ours is of the open file description (``store_lock``). A broker's is of its process (FileChannel#tryLock).

    :raises OSError: the file can't be looked at.
    """
    inode = str((directory / LOCK).lstat().st_ino)
    try:
        locks = _LOCKS.read_text()
    except OSError:
        return False
    # "1: OFDLCK ADVISORY  WRITE -1 08:01:131074 0 EOF"; one that waits has "->" in it
    return any(
        fields[1] == "OFDLCK" and fields[5].rpartition(":")[2] == inode
        for fields in map(str.split, locks.splitlines())
    )


def whole_file(descriptor: int, operation: int, kind: int) -> tuple[int, int]:
    """Ask for or take a lock on a whole file, as the broker does.

    :param operation: of fcntl.
    :param kind: of the lock.
    :return: kind of the lock that is in the way, and whose it is; below 1: a process that can't be seen.
    """
    asked = _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
    found, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(descriptor, operation, asked))
    return int(found), int(process)


def runs(node: Node) -> bool:
    """Return whether a broker has a node's directories; locks of our runs on them don't count."""
    locked = [one.path for one in node.directories if lock_holder(one.path) is not None]
    return node.live is not None or not all(map(is_locked_by_us, locked))
