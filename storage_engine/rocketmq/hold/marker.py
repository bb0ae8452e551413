"""One manager for each store: locks between processes of this machine, and a marker for the hold's time.

A run locks the store's hold until it ends (:func:`alone`). A watch mends the fence meanwhile. So the hold's
state and the broker's settings are changed under a second, short lock (:func:`changing`).

The marker is in the store's root and has the end of the hold. Until then a manager with another journal
doesn't touch the store. The marker is overwritten in place, which works on a full disk, too.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY, HOLD_MARKER, WAIT_SECONDS, locked, try_lock
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.core.wording import reason_text, time_text
from storage_engine.exceptions import BadInputError, GateRefusedError, StoreBusyError

NAME: Final = HOLD_MARKER
_BYTES: Final = 512
"""Size of a sector, which a disk writes completely or not at all."""
_MAX_BYTES: Final = 64 << 10
_WAIT_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.05
_LOCK: Final = "hold.lock"
_CHANGES_LOCK: Final = "hold-changes.lock"
_LOCKS: Final = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class Marker:
    """A file in a store's root that tells other managers until when the store is held.

    :param manager: id of the hold's manager (``HoldState.manager``).
    :param host: name of the machine that last renewed the hold.
    """

    manager: str
    host: str
    ends_at_ms: int


@contextmanager
def alone(root: Path, wait_seconds: float = _WAIT_SECONDS) -> Iterator[None]:
    """Lock the store's hold against other processes of this machine. The lock also ends with the process.

    Only the store's owner and the superuser can open the lock's file. Earlier releases lock the store's
    directory instead, which any user who may read the directory can lock. So a lock of the directory counts
    only if a process of the owner or of the superuser has it.

    :raises StoreBusyError: another process has the lock for longer than ``wait_seconds``.
    :raises GateRefusedError: the lock can't be taken.
    """
    deadline = time.monotonic() + wait_seconds
    with ExitStack() as opened:
        with _lock_errors(root, _LOCK):
            root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, root_fd)
            # If a full disk prevents the lock's file, only the lock of the directory counts.
            opened.enter_context(_lock_if_room(root, _LOCK, wait_seconds))
            while not try_lock(root_fd) and _is_locked_by_manager(root_fd):
                if time.monotonic() >= deadline:
                    raise _busy(root)
                time.sleep(_PAUSE_SECONDS)
        yield


@contextmanager
def changing(root: Path, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Lock the hold's state for one change: from the read of the state until the new state is written.

    A process with the lock of :func:`alone` takes this lock for each change, so that a watch can mend the
    fence between two changes. A change lasts as long as a broker takes to answer.

    :raises StoreBusyError: another process has the lock for longer than ``wait_seconds``.
    :raises GateRefusedError: the lock can't be taken.
    """
    with ExitStack() as opened:
        with _lock_errors(root, _CHANGES_LOCK):
            opened.enter_context(_lock_if_room(root, _CHANGES_LOCK, wait_seconds))
        yield


@contextmanager
def _lock_errors(root: Path, name: str) -> Iterator[None]:
    """Translate the errors of taking a lock.

    :raises StoreBusyError: in place of a TimeoutError.
    :raises GateRefusedError: in place of another OSError.
    """
    try:
        yield
    except TimeoutError as error:
        raise _busy(root) from error
    except OSError as error:
        raise GateRefusedError(
            f"{root / DIRECTORY / name}: expected a file that can be locked (flock), found {error.strerror}. "
            "Without the lock, two processes could change one hold. Nothing was changed. Run as the broker's "
            "user, on a machine where the store's file system is a local one."
        ) from error


@contextmanager
def _lock_if_room(root: Path, name: str, wait_seconds: float) -> Iterator[None]:
    """Lock a file in ``.storage-engine``. If a full disk prevents its creation, continue without the lock."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(root, name, wait_seconds=wait_seconds))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        yield


def _busy(root: Path) -> StoreBusyError:
    return StoreBusyError(
        f"{root}: expected no other process that changes the store's hold, found another process of this "
        "machine. Nothing was changed. Run again when it has ended."
    )


def _is_locked_by_manager(fd: int) -> bool:
    """Return whether a visible process of the directory's owner or of root has locked the directory (flock).

    Without ``/proc/locks`` that is unknown, and the result is True.
    """
    status = os.fstat(fd)
    managers = {0, status.st_uid}
    if not _LOCKS.exists():
        return True
    for line in _LOCKS.read_text().splitlines():
        # "1: FLOCK  ADVISORY  WRITE 4711 08:01:131074 0 EOF"; a waiting lock has "->" as the second field.
        fields = line.split()
        if fields[1] != "FLOCK" or fields[5].rpartition(":")[2] != str(status.st_ino):
            continue
        with suppress(FileNotFoundError):
            if Path(f"/proc/{fields[4]}").stat().st_uid in managers:
                return True
    return False


def read_marker(root: Path) -> Marker | None:
    """Read the marker of a store's hold; None if there is no marker.

    :raises GateRefusedError: the marker can't be read, so its manager is unknown.
    """
    path = root / NAME
    try:
        data = json.loads(read_file(path, _MAX_BYTES, follow_links=False))
        return from_jsonable(Marker, data, str(path))
    except FileNotFoundError:
        return None
    except (OSError, BadInputError, *MALFORMED) as error:
        raise GateRefusedError(
            f"{path}: expected the marker of a hold, found an unreadable file ({reason_text(error)}). "
            "Nothing was changed. Find out who manages this store. If there is no other manager, remove the "
            "file."
        ) from error


def refuse_foreign(root: Path, manager: str | None, now_ms: int) -> None:
    """Make sure that no other manager holds a store.

    :param manager: id of this manager; None if it has no hold yet.
    :raises GateRefusedError: another manager's hold hasn't ended, or the marker can't be read.
    """
    marker = read_marker(root)
    if marker is None or marker.manager == manager or marker.ends_at_ms <= now_ms:
        return
    until = f"{marker.ends_at_ms} ms after 1970"
    with suppress(ValueError, OverflowError, OSError):  # The time may be beyond the calendar.
        until = time_text(marker.ends_at_ms)
    raise GateRefusedError(
        f"{root / NAME}: expected no other manager, found that one on host {marker.host} holds the store "
        f"until {until}, with another journal. Nothing was changed. Run unmanage there. If that manager no "
        "longer exists, wait until then or remove the file."
    )


def write_marker(root: Path, manager: str, ends_at_ms: int) -> str:
    """Write the marker durably.

    :return: a notice if the disk has no space for the marker; otherwise "".
    :raises GateRefusedError: the marker can't be written.
    """
    path = root / NAME
    data = json.dumps(to_jsonable(Marker(manager, socket.gethostname(), ends_at_ms))).encode().ljust(_BYTES)
    try:
        try:
            with durable.opened(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC) as fd:
                os.pwrite(fd, data, 0)
                os.ftruncate(fd, len(data))
                os.fsync(fd)
        except FileNotFoundError:
            durable.write_file(path, data, shared=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{path}: no space for the marker of the hold, so that another manager can't see the hold"
        raise GateRefusedError(
            f"{path}: expected to write the marker of the hold, found {error.strerror}. Nothing was changed. "
            "Run as the broker's user, with its file system mounted writable."
        ) from error
    return ""


def remove_marker(root: Path, manager: str) -> None:
    """Remove the marker durably if it is this manager's."""
    marker = read_marker(root)
    if marker is not None and marker.manager == manager:
        durable.unlink(root / NAME)
        durable.fsync_path(root)
