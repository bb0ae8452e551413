"""Locks that keep brokers away from a stopped node's log directories: the same locks that a broker takes.

A broker that starts takes a POSIX lock on the whole file ``.lock`` in each of its directories (FileLock).
When it stops, it first releases the lock and then removes the file. A lock on a removed file keeps no broker
away. So the file's name is checked after locking, and again before each deletion.

We take a lock of the open file description, which conflicts with a broker's lock. It isn't released if
another descriptor of the file is closed. The file stays when the block ends: a broker may have opened it
without locking it yet. If we removed the file, that broker would lock a removed file, which nobody sees.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.file_users import file_users, process_text
from storage_engine.core.turns import take_turn
from storage_engine.exceptions import ChangedUnderUsError, StoreBusyError, StoreNotFoundError, TurnTakenError
from storage_engine.kafka.format import meta_properties
from storage_engine.kafka.format.layout import Node
from storage_engine.model.broker.broker_store import LockedStore

_BROKER_CLASSES = ("kafka.Kafka", "kafka.docker.KafkaDockerWrapper")
_LOOKS = 5
_PAUSE_SECONDS = 0.05
"""Pause between attempts: a broker that stops removes the file a moment after it releases its lock."""
_guard = threading.Lock()
LOCK = ".lock"
_LOCKS = Path("/proc/locks")
_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of Linux with 64-bit offsets: type, whence, start, length, process."""

held_here: set[str] = set()
"""Real paths of the directories that this process itself has locked."""


@dataclass(frozen=True, slots=True)
class LockedDirectories(LockedStore):
    """Log directories that are locked until the block ends, with the lock files' open descriptors."""

    files: tuple[tuple[Path, int], ...] = field(kw_only=True)

    def check(self) -> None:
        """Make sure that brokers are still kept away.

        :raises ChangedUnderUsError: a lock file was removed or replaced. The error names it.
        """
        for path, descriptor in self.files:
            if not _has_name(path, descriptor):
                raise ChangedUnderUsError(
                    f"{path}: expected the lock that this process took, found that another program removed "
                    "the file, so that a broker may start. Nothing more was deleted or brought back; "
                    "other segments may have been. Find out who removes lock files, and run again while "
                    "the broker is stopped.",
                    path=str(path),
                )


@contextmanager
def lock(directories: Sequence[Path]) -> Iterator[LockedDirectories]:
    """Keep every broker and every other run away from log directories until the block ends.

    If another of our runs has such a lock, wait for that run.

    :raises StoreNotFoundError: a directory is missing; it isn't made.
    :raises StoreBusyError: a broker runs, another process has files of a directory open, or a lock file can't
        be opened.
    """
    with ExitStack() as locks:
        files = tuple((path / LOCK, locks.enter_context(_hold_lock(path))) for path in directories)
        notices = _check_nobody_else(directories)
        yield LockedDirectories(notices, 1, files=files)


@contextmanager
def _hold_lock(directory: Path) -> Iterator[int]:
    real = os.path.realpath(directory)
    with _guard:
        if real in held_here:
            raise StoreBusyError(
                f"{directory}: expected an unlocked directory, found it locked by another run of this "
                "process. Nothing was changed. Wait until that run is done."
            )
        held_here.add(real)
    try:
        descriptor = take_turn(lambda: _take(directory))
        try:
            yield descriptor
        finally:
            # A fork of this process shares the open file: closing it only here would not release the lock.
            whole_file(descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK)
            os.close(descriptor)
    finally:
        with _guard:
            held_here.discard(real)


def _take(directory: Path) -> int:
    path = directory / LOCK
    for _ in range(_LOOKS):
        descriptor = _open(directory)
        try:
            whole_file(descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
            if _has_name(path, descriptor):
                return descriptor
        except OSError as error:
            kind, pid = whole_file(descriptor, fcntl.F_GETLK, fcntl.F_WRLCK)
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise StoreBusyError(
                    f"{path}: expected a file that can be locked, found {error.strerror}. Nothing was "
                    "changed. Run on the host that has the disk."
                ) from error
            if path.exists() and is_locked_by_us(directory):
                raise TurnTakenError(
                    f"{path}: expected an unlocked file, found it locked by another run of storage-engine. "
                    "Nothing was changed. Wait until that run is done."
                ) from error
            holder = process_text(None if kind == fcntl.F_UNLCK else pid)
            raise StoreBusyError(
                f"{path}: expected an unlocked file, found it locked by {holder}: a broker runs on this "
                "directory, or another run works on it. Nothing was changed. Stop the broker, or wait for "
                "the run's end."
            ) from error
        os.close(descriptor)
        time.sleep(_PAUSE_SECONDS)
    raise StoreBusyError(
        f"{path}: expected a lock file that stays, found that it was removed in each of {_LOOKS} attempts. "
        "Nothing was changed. Wait until the broker has stopped."
    )


def _open(directory: Path) -> int:
    """Open a lock file. A new file gets the owner of the directory's own files."""
    path = directory / LOCK
    if not directory.is_dir():
        raise StoreNotFoundError(
            f"{directory}: expected a log directory, found none. Nothing was changed. "
            "Mount it, or correct log.dirs."
        )
    is_new = not os.path.lexists(path)
    try:
        descriptor = durable.open_lock(path, ours=False)
    except OSError as error:
        raise StoreBusyError(
            f"{path}: expected a file that can be opened for locking, found {error.strerror}. Nothing was "
            f"changed. {_remedy(error)}"
        ) from error
    if is_new:
        _settle(descriptor, directory)
    return descriptor


def _remedy(error: OSError) -> str:
    if error.errno == errno.EROFS:
        return (
            "Its disk is mounted read-only, as after a disk error: look into the kernel's log, check the "
            "file system, and mount it for writing (mount -o remount,rw). Then run this again."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            "Run this as the broker's user or as root on the broker's host, or make the broker's user the "
            "owner of the file."
        )
    if error.errno == errno.ELOOP:
        return (
            "It is a symbolic link: remove it while the broker is stopped. The broker creates its own file."
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "No room is left for a new file: free some in the directory. Then run this again."
    return "Find out what it is, and remove it while the broker is stopped. The broker creates its own file."


def _settle(descriptor: int, directory: Path) -> None:
    """If root created a lock file, give it to the broker's user, so that a broker can open it."""
    try:
        owner = (directory / meta_properties.NAME).lstat()
    except FileNotFoundError:
        return
    if os.geteuid() == 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _has_name(path: Path, descriptor: int) -> bool:
    here = os.fstat(descriptor)
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    return (here.st_dev, here.st_ino) == (named.st_dev, named.st_ino)


def _check_nobody_else(directories: Sequence[Path]) -> tuple[str, ...]:
    """Make sure that no other process uses the node's files.

    The lock doesn't show that: a broker continues to run after its lock file is removed.

    :return: notices about processes that can't be checked.
    :raises StoreBusyError: another process uses the files, or may use them.
    """
    unknown = []
    for process in file_users(directories, [path / LOCK for path in directories]):
        if process.path is not None:
            raise StoreBusyError(
                f"{directories[0]}: expected no other process to use the node's files, but {process} open or "
                "mapped. Nothing was changed. Stop it or wait for it."
            )
        if any(part in _BROKER_CLASSES for part in process.command):
            raise StoreBusyError(
                f"{directories[0]}: process {process.pid} ({process.name}) is a broker of another user, so "
                "it is unknown whether it uses this node's files. Nothing was changed. Run as that user "
                "or as root."
            )
        unknown.append(f"{process.pid} ({process.name})")
    if not unknown:
        return ()
    return (
        "other users' processes could not be checked for open files of the node (its locks are ours, none "
        f"is a broker): {', '.join(unknown[:5])}" + (", …" if len(unknown) > 5 else ""),
    )


def lock_holder(directory: Path) -> int | None:
    """Return the other process that has locked the directory; None if no process has. Takes no lock.

    0 stands for a process that can't be seen from here, for example on another host.

    :raises OSError: the file can't be opened, for example because of its permissions.
    """
    if os.path.realpath(directory) in held_here:
        return None
    try:
        with durable.opened(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC) as descriptor:
            kind, process = whole_file(descriptor, fcntl.F_GETLK, fcntl.F_WRLCK)
    except FileNotFoundError:
        return None
    return None if kind == fcntl.F_UNLCK else max(process, 0)


def holder_text(directory: Path) -> str:
    """Return a clause that names the other process that has locked the directory; "" if no process has."""
    if (holder := lock_holder(directory)) is None:
        return ""
    return f"{directory / LOCK} is locked by {process_text(holder)}"


def is_locked_by_us(directory: Path) -> bool:
    """Return whether one of our runs has locked a directory, in any container of this machine.

    Our lock belongs to the open file description. A broker's lock belongs to its process
    (FileChannel#tryLock).

    :raises OSError: the lock file is missing, or its facts can't be read.
    """
    inode = str((directory / LOCK).lstat().st_ino)
    try:
        locks = _LOCKS.read_text()
    except OSError:
        return False
    # "1: OFDLCK ADVISORY  WRITE -1 08:01:131074 0 EOF"; a waiting lock has "->" after the number.
    return any(
        fields[1] == "OFDLCK" and fields[5].rpartition(":")[2] == inode
        for fields in map(str.split, locks.splitlines())
    )


def whole_file(descriptor: int, operation: int, kind: int) -> tuple[int, int]:
    """Test or take a lock on a whole file, as a broker does.

    :param operation: F_GETLK or F_OFD_SETLK of fcntl.
    :param kind: type of the lock, such as F_WRLCK.
    :return: the kind of the conflicting lock, and the process that has it. A number below 1 means a process
        that can't be seen.
    """
    request = _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
    conflict, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(descriptor, operation, request))
    return int(conflict), int(process)


def runs(node: Node) -> bool:
    """Return whether a broker runs on a node's directories. Locks of our own runs don't count."""
    locked = [directory.path for directory in node.directories if lock_holder(directory.path) is not None]
    return node.live is not None or not all(map(is_locked_by_us, locked))
