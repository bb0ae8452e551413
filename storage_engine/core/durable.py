"""Durable file operations, permissions of new files, and our directory in a store.

All files that matter are written here. Only the owner may read a new file or directory (0600, 0700), whatever
the umask. In a directory with the setgid bit the group may also read (0640, 2750). It may also write if it
may write the directory (0660, 2770). Others may also read *shared* files, as far as the umask permits, but
never write them. Files that root makes belong to the owner of their directory. Existing files keep their mode
and owner. A new file never replaces another one, and no symbolic link under its name is followed.

Our directory in a store's root is opened without following a symbolic link, because others may write to the
store. Its locks are held for short times, and only users who may write to the store can take them. No process
waits for a lock for ever: a suspended process with a lock must not stop all others.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

_TOKEN_BYTES = 8
_YOUNG_SECONDS = 10
"""Age up to which an unlocked file is kept: its writer may not have locked it yet."""

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANY_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


@contextmanager
def opened(path: str | os.PathLike[str], flags: int, *, dir_fd: int | None = None) -> Iterator[int]:
    """Open a file or directory and yield its descriptor. It is closed when the block ends."""
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def fsync_path(path: str | os.PathLike[str]) -> None:
    """Flush a file's bytes, or a directory's entries, to disk.

    :raises OSError: the path can't be opened or flushed.
    """
    # With O_NONBLOCK, opening a pipe doesn't wait. Flushing it then fails.
    with opened(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) as fd, _name_errors(path):
        os.fsync(fd)


@contextmanager
def _name_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the file's name to an OSError that has none, because a write or flush only has a descriptor."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = os.fspath(path)
        raise


def make_dirs(path: str | os.PathLike[str]) -> None:
    """Create a directory and its missing parents, and fsync each new entry in its parent.

    The entry of the deepest existing directory is fsynced, too: a killed process may have left it unflushed.
    """
    path = Path(path)
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    # A user who may not read the parent can't have made the directory.
    with suppress(PermissionError):
        fsync_path(path.parent)
    for directory in reversed(missing):
        with suppress(FileExistsError):
            make_dir(directory)
        if not directory.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))
        fsync_path(directory.parent)


def make_dir(path: str | os.PathLike[str], *, dir_fd: int | None = None, shared: bool = False) -> None:
    """Create one directory. The caller fsyncs its parent.

    :param dir_fd: descriptor of the directory of a relative path; None for the working directory.
    :param shared: as for :func:`create`.
    :raises FileExistsError: something has that name.
    """
    parent = _parent(path, dir_fd)
    mode = None if shared else _private_modes(parent)[0]
    os.mkdir(path, 0o755 | _group_writes(parent) if mode is None else mode & 0o777, dir_fd=dir_fd)
    with opened(path, _DIRECTORY, dir_fd=dir_fd) as fd:
        _settle(fd, mode, parent)


def create(path: str | os.PathLike[str], *, dir_fd: int | None = None, shared: bool = False) -> io.FileIO:
    """Create a file and open it, unbuffered, for reading and writing.

    :param dir_fd: as for :func:`make_dir`.
    :param shared: the file has neither messages nor secrets. The umask decides who may read it. The owner may
        write it, and so may the group if it may write the directory and the umask permits it.
    :raises FileExistsError: a file, directory or link has that name.
    """
    parent = _parent(path, dir_fd)
    mode = None if shared else _private_modes(parent)[1]
    fd = os.open(path, _NEW_FILE, 0o644 | _group_writes(parent) if mode is None else mode, dir_fd=dir_fd)
    _settle(fd, mode, parent)
    return io.FileIO(fd, "r+b")


def create_empty(path: str | os.PathLike[str]) -> None:
    """Create an empty file durably, for a library that then opens it. An existing file isn't changed."""
    with suppress(FileExistsError):
        create(path).close()
        fsync_path(Path(path).parent)


def open_lock(path: str | os.PathLike[str], *, dir_fd: int | None = None, ours: bool = True) -> int:
    """Open a lock file for reading and writing. A missing file is created.

    Every process that can open a file can lock it. So only the file's owner can open it, and the group if it
    may write to the directory, whatever the umask.

    :param dir_fd: as for :func:`make_dir`.
    :param ours: whether only we make this file. Then an existing file also gets the right mode and owner.
    :raises OSError: the file can't be opened, is a symbolic link, or is no regular file.
    """
    parent = _parent(path, dir_fd)
    try:
        fd, settles = os.open(path, _NEW_FILE, 0o600, dir_fd=dir_fd), True
    except FileExistsError:
        fd, settles = os.open(path, _LOCK_FILE, dir_fd=dir_fd), ours
    opened = os.fstat(fd)
    if not stat.S_ISREG(opened.st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    # A file with a second name may be another user's, and root would give it to the directory's owner.
    if settles and opened.st_nlink == 1:
        writers = _group_writes(parent)
        _settle(fd, 0o600 | writers | writers << 1, parent)
    return fd


def _group_writes(parent: os.stat_result) -> int:
    """Return the mode bit for writing by the group if the group may write to the directory, else 0."""
    return parent.st_mode & stat.S_IWGRP


def _private_modes(parent: os.stat_result) -> tuple[int, int]:
    """Return the modes of a new directory and of a new file that aren't shared."""
    if not parent.st_mode & stat.S_ISGID:
        return 0o700, 0o600
    # In a sticky directory the group may not remove others' files, so it may not write them either.
    writers = 0 if parent.st_mode & stat.S_ISVTX else _group_writes(parent)
    return 0o2750 | writers, 0o640 | writers


def temporary_name(name: str, suffix: str = ".tmp") -> str:
    """Return a hidden file name that contains ``name`` and can't be guessed."""
    return f".{name}.{secrets.token_hex(_TOKEN_BYTES)}{suffix}"


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, dir_fd: int | None = None, shared: bool = False
) -> Iterator[BinaryIO]:
    """Yield a new file that replaces ``path`` atomically and durably if the block ends without an error.

    :param dir_fd: descriptor of the directory. Then ``path`` is a file's name in it.
    :param shared: as for :func:`create`.
    """
    path = Path(path)
    temporary = path.with_name(temporary_name(path.name))
    try:
        # Buffered, since one write to an unbuffered file may write only a part.
        with (
            _name_errors(path),
            create(temporary, dir_fd=dir_fd, shared=shared) as raw,
            io.BufferedWriter(raw) as file,
        ):
            yield file
            file.flush()
            os.fsync(raw.fileno())
        os.replace(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)  # no dir_fd there
    except BaseException as error:
        if isinstance(error, OSError) and str(error.filename) == str(temporary):
            # The temporary name is random, so the error names the file itself.
            error.filename = str(path)
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=dir_fd)
        raise
    if dir_fd is None:
        fsync_path(path.parent)
    else:
        os.fsync(dir_fd)


def write_file(
    path: str | os.PathLike[str], data: bytes, *, dir_fd: int | None = None, shared: bool = False
) -> None:
    """Replace a file's content atomically: temporary file, fsync, rename, directory fsync.

    :param dir_fd: as for :func:`replacing`.
    :param shared: as for :func:`create`.
    """
    with replacing(path, dir_fd=dir_fd, shared=shared) as file:
        file.write(data)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file under a temporary name that can't be guessed. :meth:`publish` gives it its final name.

    :param file: the file, open for reading and writing, unbuffered.
    """

    file: io.FileIO
    _temporary: str
    _name: str
    _dir_fd: int

    def sha256(self) -> str:
        """Flush the file to disk, read it again, and return the SHA-256 of the bytes read, in hex."""
        os.fsync(self.file.fileno())
        self.file.seek(0)
        return hashlib.file_digest(self.file, "sha256").hexdigest()

    def publish(self) -> None:
        """Give the file its final name, durably. It never replaces another file.

        :raises FileExistsError: a file, directory or link has that name.
        """
        at = {"src_dir_fd": self._dir_fd, "dst_dir_fd": self._dir_fd}
        try:
            os.link(self._temporary, self._name, **at, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            if _is_there(self._name, self._dir_fd):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._name) from None
            os.rename(self._temporary, self._name, **at)  # noqa: PTH104  # pathlib knows no dir_fd
        else:
            os.unlink(self._temporary, dir_fd=self._dir_fd)
        os.fsync(self._dir_fd)


@contextmanager
def new_file(name: str, suffix: str, *, dir_fd: int) -> Iterator[NewFile]:
    """Create a file. It is removed when the block ends, unless :meth:`NewFile.publish` was called."""
    temporary = temporary_name(name, suffix)
    _unfinished.add((temporary, dir_fd))
    try:
        with create(temporary, dir_fd=dir_fd) as file:
            # Shows other processes that this one still writes the file. Some file systems have no locks.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield NewFile(file, temporary, name, dir_fd)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=dir_fd)
        _unfinished.discard((temporary, dir_fd))


_unfinished: set[tuple[str, int]] = set()
"""Temporary name and directory of each file that this process is writing with :func:`new_file`."""


def remove_unfinished() -> None:
    """Remove the files that this process writes with :func:`new_file`, since it ends before its threads."""
    for temporary, directory in tuple(_unfinished):
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)


def remove_abandoned(name: str, suffix: str = ".tmp", *, dir_fd: int, alone: bool = False) -> None:
    """Remove temporary files of killed processes. Files that a process is writing now are kept.

    :param name: final name of the files.
    :param alone: whether the caller has the lock that every writer of this directory takes. Then no process
        is writing, and young files are removed, too.
    """
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{{2 * _TOKEN_BYTES}}}{re.escape(suffix)}")
    for entry in filter(pattern.fullmatch, os.listdir(dir_fd)):  # pathlib knows no dir_fd
        # A file that vanishes, is locked, or can't be locked is left to its writer.
        with suppress(OSError), io.FileIO(os.open(entry, _ANY_FILE, dir_fd=dir_fd)) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if alone or time.time() - os.fstat(file.fileno()).st_mtime > _YOUNG_SECONDS:
                os.unlink(entry, dir_fd=dir_fd)


def settle_modes(directory: str | os.PathLike[str]) -> None:
    """Give files and directories that a library made below our directory the modes of this module."""
    for _, directories, files, fd in os.fwalk(directory):
        parent = os.fstat(fd)
        of_directories, of_files = _private_modes(parent)
        for names, mode, flags in ((directories, of_directories, _DIRECTORY), (files, of_files, _ANY_FILE)):
            for name in names:
                if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    continue
                new_fd = os.open(name, flags, dir_fd=fd)
                try:
                    _settle(new_fd, mode, parent)
                finally:
                    os.close(new_fd)


def unlink(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> bool:
    """Remove a file; return False if it doesn't exist. The caller fsyncs the directory once for a batch.

    :param dir_fd: as for :func:`make_dir`.
    """
    try:
        os.unlink(path, dir_fd=dir_fd)  # pathlib knows no dir_fd
    except FileNotFoundError:
        return False
    return True


def unlink_in(path: Path, directory: int) -> bool:
    """Unlink a file of a directory, as :func:`unlink` does.

    :param directory: the directory's descriptor. The file is removed there, even if the path now leads to
        another directory.
    :raises OSError: the file can't be removed; the error names the path.
    """
    try:
        return unlink(path.name, dir_fd=directory)
    except OSError as error:
        error.filename = str(path)
        raise


def _parent(path: str | os.PathLike[str], dir_fd: int | None) -> os.stat_result:
    return os.stat(Path(path).parent, dir_fd=dir_fd)


def _is_there(name: str, dir_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _settle(fd: int, mode: int | None, parent: os.stat_result) -> None:
    """Give a new file or directory its owner and its mode, if the file system supports them.

    :param mode: None if the umask decides.
    """
    with suppress(OSError):
        if os.geteuid() == 0 and parent.st_uid != 0:
            os.fchown(fd, parent.st_uid, parent.st_gid)
        # Only if the mode differs: for a user outside the directory's group, chmod clears the setgid bit.
        if mode is not None and stat.S_IMODE(os.fstat(fd).st_mode) != mode:
            os.fchmod(fd, mode)


DIRECTORY = ".storage-engine"
PLAIN_STAMP = ".storage-engine-stamp.json"
"""Name of a store's stamp file, for a broker that takes every directory among its data for its own data."""
HOLD_MARKER = ".storage-engine-hold"
"""Name of the file in a store's root that marks a held store."""

WAIT_SECONDS: Final = 60.0
"""Default time to wait for one of our locks. A process has such a lock only while it flushes a few files."""
WATCH_WAIT_SECONDS: Final = 1.0
"""Time that a watch waits for a lock, since it must show that it is alive. Its next look tries again."""
_PAUSE_SECONDS: Final = 0.002

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def own_directory(root: str | os.PathLike[str], *, makes: bool = False) -> Iterator[int]:
    """Open our directory in a store, and yield its descriptor.

    :param makes: whether to make a missing directory, durably.
    :raises OSError: the directory is missing, can't be opened or made, or is a symbolic link.
    """
    path = Path(root) / DIRECTORY
    if makes:
        with suppress(FileExistsError):
            # Shared, so that every user who may read the store can read its stamp for reports and checks.
            make_dir(path, shared=True)
            fsync_path(root)
    with opened(path, _FLAGS) as fd:
        yield fd


def writable_by_all(directories: Iterable[Path]) -> Iterator[Path]:
    """Yield our directories and files in a store's directories that every user may write.

    Older releases left the modes to the umask. Files that can't be inspected are left out.
    """
    for directory in directories:
        own_path = directory / DIRECTORY
        names: list[Path] = []
        with suppress(OSError):
            names += own_path.iterdir()
        # The directory comes last, so that after an interruption the next call finds it and its files again.
        for path in (*sorted(names), own_path, directory / PLAIN_STAMP, directory / HOLD_MARKER):
            with suppress(OSError):
                mode = path.lstat().st_mode
                if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
                    yield path


def take_from_all(directories: Iterable[Path]) -> None:
    """Remove other users' write permission from the paths of :func:`writable_by_all`, if this user may."""
    for path in writable_by_all(directories):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                mode = os.fstat(descriptor).st_mode
                os.fchmod(descriptor, stat.S_IMODE(mode) & ~stat.S_IWOTH)
            finally:
                os.close(descriptor)


@contextmanager
def locked(root: str | os.PathLike[str], name: str, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[int]:
    """Hold a lock file in our directory until the block ends.

    :return: the descriptor of our directory.
    :raises TimeoutError: another process, or part of this one, keeps the lock beyond ``wait_seconds``.
    :raises OSError: the directory can't be written.
    """
    with _open_lock_file(root, name) as (directory, descriptor):
        lock(descriptor, Path(root) / DIRECTORY / name, wait_seconds)
        yield directory


def lock(descriptor: int, path: Path, wait_seconds: float) -> None:
    """Lock an open file until its descriptor is closed.

    :param path: the file's path, for the error.
    :raises TimeoutError: another process keeps the lock for longer than ``wait_seconds``.
    """
    deadline = time.monotonic() + wait_seconds
    while not try_lock(descriptor):
        if time.monotonic() >= deadline:
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"another process has the lock for more than {wait_seconds:g} s: find it with fuser, and "
                "end it",
                str(path),
            )
        time.sleep(_PAUSE_SECONDS)


@contextmanager
def try_locked(root: str | os.PathLike[str], name: str) -> Iterator[int | None]:
    """Hold a lock file like :func:`locked`, without waiting.

    :return: the descriptor of our directory; None if another process, or part of this one, has the lock.
    :raises OSError: the directory can't be written.
    """
    with _open_lock_file(root, name) as (directory, descriptor):
        yield directory if try_lock(descriptor) else None


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory until its descriptor is closed. Return False if another process has it.

    :raises OSError: the file can't be locked.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _open_lock_file(root: str | os.PathLike[str], name: str) -> Iterator[tuple[int, int]]:
    with own_directory(root, makes=True) as directory:
        descriptor = open_lock(name, dir_fd=directory)
        try:
            yield directory, descriptor
        finally:
            os.close(descriptor)
