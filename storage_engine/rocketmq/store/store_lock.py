"""The broker's own lock on a store, and a check for other processes that have the store's files open.

A broker takes a POSIX write lock on byte 0 of ``lock`` at the end of its start (DefaultMessageStore#start),
and keeps it until it stops. The kernel drops a process's POSIX lock when the process closes *any* descriptor
of the file. So only this module may ever open ``lock``.

A broker loads the store before it takes the lock. So the lock alone doesn't keep a starting broker away, and
processes that have the store's files open or mapped are searched for, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from storage_engine.commands import Command, Text
from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY
from storage_engine.core.file_users import (
    DELETED,
    FileUser,
    file_users,
    mapped_paths,
    process_name,
    process_text,
    run_text,
)
from storage_engine.core.turns import has_shared_lock, take_turn
from storage_engine.core.wording import count_text
from storage_engine.exceptions import StoreBusyError, TurnTakenError
from storage_engine.model.broker.broker_store import LockedStore
from storage_engine.rocketmq.format.layout import StoreLayout

_BROKER_CLASSES = ("BrokerStartup", "BrokerContainerStartup", "ProxyStartup")
T = TypeVar("T")

ENGINE_SOCKET = "engine.sock"
"""Socket in ``.storage-engine`` of a store that this package's engine serves."""

_held: set[Path] = set()
_held_guard = threading.Lock()


@contextmanager
def lock(layout: StoreLayout) -> Iterator[LockedStore]:
    """Keep brokers and other managers away from the store until the block ends.

    If another run of this package has the lock, wait for it. A missing lock file is created for the broker's
    user, who must be able to open it afterwards.

    :raises StoreBusyError: the lock is taken, the lock file can't be opened, or another process has files of
        the store open. Also if a broker runs whose files this process may not see.
    :raises UnsupportedLayoutError: the store's layout doesn't permit deletions.
    """
    layout.check_cleanable()
    path = layout.lock
    with _held_guard:
        if path in _held:
            raise StoreBusyError(
                f"{path}: expected the lock to be free, found that another run in this process has it. "
                "Nothing was changed. Run again when that run has ended."
            )
        _held.add(path)
    try:
        fd = take_turn(lambda: _open_locked(layout))
        try:
            notices = _check_nobody_else(layout)
            yield LockedStore(notices, max_delete_batch=1)
        finally:
            os.close(fd)
    finally:
        with _held_guard:
            _held.discard(path)


def lock_holder(layout: StoreLayout) -> FileUser | None:
    """Return the other process that has the broker's lock; None if the lock is free or the process unknown.

    The lock file is never opened while this process has the lock.
    """
    pid = locking_pid(layout.lock)
    return None if pid is None else FileUser(pid, process_name(pid), str(layout.lock))


def locking_pid(lock: Path) -> int | None:
    """Return the id of the process that has a broker's lock; see :func:`lock_holder`."""
    try:
        return _look_at_lock(lock, _locking_pid)
    except OSError:
        return None


def holder_text(layout: StoreLayout) -> str:
    """Return the broker's lock and the other process that has it, as a clause; "" if none is known.

    The lock file is never opened while this process has the lock.
    """
    try:
        if not is_locked(layout):
            return ""
    except OSError:
        return ""
    holder = lock_holder(layout)
    return f"{layout.lock} is locked by {process_text(None if holder is None else holder.pid)}"


def is_locked(layout: StoreLayout) -> bool | None:
    """Return whether another process in any container has the broker's lock; None if not on Linux.

    The lock file is never opened while this process has the lock.

    :raises OSError: the lock file can't be opened.
    """
    if not sys.platform.startswith("linux"):
        return None
    holder = _look_at_lock(layout.lock, _read_lock)
    return holder is not None and holder[0] != fcntl.F_UNLCK


def _look_at_lock(path: Path, look: Callable[[int], T]) -> T | None:
    """Call ``look`` with the lock file's descriptor. Return None if there is no file, or we hold its lock."""
    with _held_guard:
        if path in _held:
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with durable.opened(path, flags) as fd:
                return look(fd)
        except FileNotFoundError:
            return None


def is_locked_by_us(layout: StoreLayout) -> bool:
    """Return whether another run of this package has the broker's lock. A run releases the lock by itself.

    An engine that serves the store counts as a broker.
    """
    holder = lock_holder(layout)
    return holder is not None and _is_run(layout, holder.pid)


def _is_run(layout: StoreLayout, pid: int) -> bool:
    return not _engine_text(layout) and has_shared_lock(pid, {str(path) for path in layout.log_paths})


def _open_locked(layout: StoreLayout) -> int:
    """Open the lock file, lock it, and return its descriptor. After an error the file is closed."""
    fd = _open(layout.lock)
    try:
        _take(fd, layout)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open(path: Path) -> int:
    try:
        return durable.open_lock(path, ours=False)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StoreBusyError(
                f"{path}: expected the broker's lock, found a symbolic link. Nothing was changed. Remove it: "
                "a broker creates the file when it starts."
            ) from error
        raise StoreBusyError(
            f"{path}: expected a lock file that this process can open, found {error.strerror}. Nothing was "
            "changed. Run as the broker's user, on its host."
        ) from error


def _take(fd: int, layout: StoreLayout) -> None:
    path = layout.lock
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise StoreBusyError(
                f"{path}: expected a file that can be locked, found {error.strerror}. Nothing was changed. "
                "Run on the host that has the disk."
            ) from error
        pid = _locking_pid(fd)
        if pid is not None and _is_run(layout, pid):
            raise TurnTakenError(
                f"{path}: expected byte 0 to be unlocked, found it locked by {run_text(pid)}, another run of "
                "storage-engine. Nothing was changed. Run again when it has ended."
            ) from error
        raise StoreBusyError(
            f"{path}: expected byte 0 to be unlocked, found it locked by {process_text(pid)}: a broker runs "
            "on this store, or another run uses it. Nothing was changed. Stop it or wait for its end."
            + _engine_text(layout)
            + ("" if pid is None else _deleted_segments_text(layout, pid))
        ) from error
    opened, on_disk = os.fstat(fd), path.lstat()
    if (opened.st_dev, opened.st_ino) != (on_disk.st_dev, on_disk.st_ino):
        raise StoreBusyError(
            f"{path}: expected the file that was locked, found another one. Nothing was changed. Run again."
        )


def _engine_text(layout: StoreLayout) -> str:
    if not (layout.root / DIRECTORY / ENGINE_SOCKET).exists():
        return ""
    return Text(" If ", Command("serve"), " serves the store, use mode engine (--engine).")


def _locking_pid(fd: int) -> int | None:
    """Return the process with a lock on byte 0 that conflicts with a write lock; None if none is known."""
    if not sys.platform.startswith("linux"):
        return None
    kind, pid = _read_lock(fd)
    return None if kind == fcntl.F_UNLCK or pid <= 0 else pid


def _read_lock(fd: int) -> tuple[int, int]:
    """Return the kind of lock on byte 0 that conflicts with a write lock, and its process.

    The process is 0 if it is of another PID namespace.
    """
    layout = "hhqqi"  # struct flock: type, whence, start, length, pid
    request = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = struct.unpack(layout, fcntl.fcntl(fd, fcntl.F_GETLK, request)[: len(request)])
    return int(kind), int(pid)


def _check_nobody_else(layout: StoreLayout) -> tuple[str, ...]:
    """Check the open files of all processes that this process may inspect, and return a notice on the others.

    The files of a process that can't be inspected are unknown. It can't be a broker that runs on this store,
    since this process has the store's lock. But a broker may be loading the store, so an uninspected broker
    is an error. Other processes can only be readers, which keep the files that they have open. Files are
    compared by path. So a process in a container with another path to the store is found only if it has the
    lock.

    :raises StoreBusyError: a process uses the store's files, or is another user's broker.
    """
    unknown = []
    for process in file_users(layout.directories, [layout.lock, layout.root / DIRECTORY]):
        if process.path is not None:
            raise StoreBusyError(
                f"{layout.root}: expected no other process to use the store's files, but {process} open or "
                "mapped. Nothing was changed. Stop it or wait for its end."
            )
        if any(part.endswith(_BROKER_CLASSES) for part in process.command):
            raise StoreBusyError(
                f"{layout.root}: expected to see the open files of process {process.pid} ({process.name}), "
                "found a broker of another user, which may be loading this store. Nothing was changed. Run "
                "as that user or as root."
            )
        unknown.append(f"{process.pid} ({process.name})")
    if not unknown:
        return ()
    processes = "process" if len(unknown) == 1 else "processes"
    return (
        f"{len(unknown)} {processes} of other users could not be checked for open files of the store "
        f"(none is a broker, and this run has the broker's lock): {', '.join(unknown[:5])}"
        + (", …" if len(unknown) > 5 else ""),
    )


def _deleted_segments_text(layout: StoreLayout, pid: int) -> str:
    """Return a notice on a broker that still maps deleted segments; "" if it maps none.

    The broker loaded these segments before it took the lock, while a run that couldn't see it deleted them.
    """
    directories = tuple(f"{path}{os.sep}" for path in layout.log_paths)
    with suppress(OSError):
        count = sum(path.startswith(directories) and path.endswith(DELETED) for path in mapped_paths(pid))
        if count:
            return (
                f" Process {pid} still maps {count_text(count, 'segment file')} that were deleted before it "
                "locked the store: it serves them from memory, and its min offset is too low. Restart it."
            )
    return ""
