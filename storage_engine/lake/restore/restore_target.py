"""The directory that a restore writes into: one writer at a time; nothing in it is followed or replaced.

The directory itself may be named by a symbolic link, which is resolved once. Everything below it is reached
from its descriptor, a component at a time, so that a link planted there is an error and leads nowhere.
"""

from __future__ import annotations

import fcntl
import io
import os
import stat
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from storage_engine.core.durable import NewFile, make_dir, make_dirs, new_file
from storage_engine.exceptions import RestoreError
from storage_engine.lake.file.sha256_kernels import sha256_of_files

_PARTIAL_SUFFIX = ".restoring"
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RestoreTarget:
    """A target that this process alone restores into, as far as it can know; paths are relative to it.

    :param locked: the file system could lock it: what is half-way in it is of nobody who still writes.
    """

    def __init__(self, name: Path, fd: int, locked: bool) -> None:
        self._name = name
        self._fd = fd
        self._locked = locked
        self._stale: list[Path] = []

    def look(self, expected: Set[Path], made_after: Set[str] = frozenset()) -> Set[Path]:
        """Return those of the expected files that are there.

        :param made_after: names, right below the target, of files made once all of these are there.
        :raises RestoreError: something else is there, or a symbolic link.
        """
        existing, strange, made = set(), [], []
        with target_errors(self._name):
            entries = list(self._entries())
        for path, mode in entries:
            if stat.S_ISLNK(mode):
                raise RestoreError(
                    f"{self._name / path}: expected no symbolic link in a directory to restore into, found "
                    "one. Nothing was written. Remove it, or restore into a new directory."
                )
            if path.parts[0] in made_after:
                made.append(path)
            elif stat.S_ISREG(mode) and path in expected:
                existing.add(path)
            elif stat.S_ISREG(mode) and _whole(path) in expected and self._locked:
                self._stale.append(path)
            elif path in expected or not stat.S_ISDIR(mode):
                strange.append(path)
        if existing != expected:
            strange += made
        if strange:
            more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
            raise RestoreError(
                f"{self._name}: expected an empty directory, or one that this restore was interrupted in; "
                f"found {min(strange)}{more}. Nothing was written. Restore into a new directory."
            )
        return existing

    def sweep(self) -> None:
        """Remove files that :meth:`look` saw and a killed restore left half-written."""
        for path in self._stale:
            with target_errors(self._name / path), self._directory(path.parent) as directory:
                os.unlink(path.name, dir_fd=directory)

    def sha256(self, paths: Sequence[Path]) -> list[str]:
        """Flush files that are there to disk, with their names, and return their SHA-256, in hex.

        :param paths: at least one, and so few that they can be hashed side by side.
        """
        with ExitStack() as opened:
            files = []
            for path in paths:
                # A restore that was killed, or whoever copied it, may not have come to that.
                with target_errors(self._name / path), self._directory(path.parent, make=True) as directory:
                    fd = os.open(path.name, _OPEN_FILE, dir_fd=directory)
                    files.append(opened.enter_context(io.FileIO(fd)))
                    os.fsync(fd)
                    os.fsync(directory)
            with target_errors(self._name / paths[0]), suppress(*[OSError] * (len(paths) > 1)):
                return sha256_of_files(files)
        # Which of them can't be read shows where each is read alone.
        return [found for path in paths for found in self.sha256([path])]

    @contextmanager
    def new_file(self, path: Path) -> Iterator[NewFile]:
        """A file of the target; its missing directories are made."""
        with (
            target_errors(self._name / path),
            self._directory(path.parent, make=True) as directory,
            new_file(path.name, _PARTIAL_SUFFIX, dir_fd=directory) as file,
        ):
            yield file

    def _entries(self) -> Iterator[tuple[Path, int]]:
        def fail(error: OSError) -> None:
            raise error

        for current, directories, files, fd in os.fwalk(".", dir_fd=self._fd, onerror=fail):
            for name in (*directories, *files):
                yield Path(current, name), os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode

    @contextmanager
    def _directory(self, path: Path, *, make: bool = False) -> Iterator[int]:
        """The descriptor of a directory, each component of whose path is opened without following a link."""
        fd = os.dup(self._fd)
        try:
            for part in path.parts:
                if make:
                    with suppress(FileExistsError):
                        make_dir(part, dir_fd=fd)
                    os.fsync(fd)
                above, fd = fd, os.open(part, _OPEN_DIRECTORY, dir_fd=fd)
                os.close(above)
            yield fd
        finally:
            os.close(fd)


@contextmanager
def restore_target(path: Path) -> Iterator[RestoreTarget]:
    """Make a directory if it is missing, and have it alone while the block runs.

    :raises RestoreError: it is no directory, can't be written, or another process restores into it.
    """
    with target_errors(path):
        real = Path(os.path.realpath(path))
        if real.exists() and not real.is_dir():
            raise RestoreError(f"{path}: expected a directory to restore into, found a file. Name another.")
        make_dirs(real)
        fd = os.open(real, _OPEN_DIRECTORY)
    try:
        yield RestoreTarget(path, fd, _lock(path, fd))
    finally:
        os.close(fd)


@contextmanager
def target_errors(path: Path) -> Iterator[None]:
    """Turn errors of the target's own file system into one of our errors."""
    try:
        yield
    except OSError as error:
        raise RestoreError(
            f"{path}: can't restore there: {error.strerror or error}. Files that were restored before it are "
            "whole; free space or fix permissions, and run the same restore again to go on."
        ) from error


def _lock(path: Path, fd: int) -> bool:
    """Lock the directory until its descriptor is closed, which a killed process's is.

    :return: whether its file system can do that.
    :raises RestoreError: another restore has it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RestoreError(
            f"{path}: expected no other process to restore into it, found that another restore does. "
            "Nothing was "
            "changed. Wait for its end and run the same restore again, or restore into another directory."
        ) from None
    except OSError:
        return False
    return True


def _whole(path: Path) -> Path:
    """The final path of what a restore left half-way, whichever release it was of."""
    name = path.name.removeprefix(".").removesuffix(_PARTIAL_SUFFIX)
    if f".{name}{_PARTIAL_SUFFIX}" != path.name:
        return path
    stem, _, token = name.rpartition(".")
    is_token = len(token) == 16 and set(token) <= set("0123456789abcdef")
    return path.with_name(stem if is_token else name)
