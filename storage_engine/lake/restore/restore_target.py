"""The directory that a restore writes into.

The directory has one writer at a time. No link in it is followed, and no file is replaced. The path of the
directory itself may be a symbolic link, which is resolved once. Paths below the directory are opened from its
descriptor, one component at a time, so that a link is an error and leads nowhere.
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
    """A directory that only this process restores into, if its file system has locks.

    Paths are relative to it.

    :param locked: the directory is locked, so incomplete files in it have no writer any more.
    """

    def __init__(self, name: Path, fd: int, locked: bool) -> None:
        self._name = name
        self._fd = fd
        self._locked = locked
        self._stale: list[Path] = []

    def look(self, expected: Set[Path], made_after: Set[str] = frozenset()) -> Set[Path]:
        """Return the expected files that exist.

        :param made_after: names directly below the target that are made only once all expected files exist.
        :raises RestoreError: an unexpected file or a symbolic link is there.
        """
        existing, unexpected, made = set(), [], []
        with target_errors(self._name):
            entries = list(self._entries())
        for path, mode in entries:
            if stat.S_ISLNK(mode):
                raise RestoreError(
                    f"{self._name / path}: expected no symbolic link in a directory to restore into, found "
                    "one. Nothing was written. Remove the link, or restore into a new directory."
                )
            if path.parts[0] in made_after:
                made.append(path)
            elif stat.S_ISREG(mode) and path in expected:
                existing.add(path)
            elif stat.S_ISREG(mode) and _final_path(path) in expected and self._locked:
                self._stale.append(path)
            elif path in expected or not stat.S_ISDIR(mode):
                unexpected.append(path)
        if existing != expected:
            unexpected += made
        if unexpected:
            more = f" and {len(unexpected) - 1} more" if len(unexpected) > 1 else ""
            raise RestoreError(
                f"{self._name}: expected an empty directory, or files of this restore after an interruption; "
                f"found {min(unexpected)}{more}. Nothing was written. Restore into a new directory."
            )
        return existing

    def sweep(self) -> None:
        """Remove the incomplete files of a killed restore that :meth:`look` has found."""
        for path in self._stale:
            with target_errors(self._name / path), self._directory(path.parent) as directory:
                os.unlink(path.name, dir_fd=directory)

    def sha256(self, paths: Sequence[Path]) -> list[str]:
        """Fsync existing files and their directories, and return the files' SHA-256, in hex.

        :param paths: at least one, and so few that they can be hashed side by side.
        """
        with ExitStack() as opened:
            files = []
            for path in paths:
                # The file may not be fsynced yet: a killed restore left it, or somebody copied it.
                with target_errors(self._name / path), self._directory(path.parent, make=True) as directory:
                    fd = os.open(path.name, _OPEN_FILE, dir_fd=directory)
                    files.append(opened.enter_context(io.FileIO(fd)))
                    os.fsync(fd)
                    os.fsync(directory)
            with target_errors(self._name / paths[0]), suppress(*[OSError] * (len(paths) > 1)):
                return sha256_of_files(files)
        # One can't be read. The error for it comes when each is read alone.
        return [digest for path in paths for digest in self.sha256([path])]

    @contextmanager
    def new_file(self, path: Path) -> Iterator[NewFile]:
        """Open a new file of the target. Its missing directories are made."""
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
        """Open a directory below the target without following a link in any component of its path."""
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
    """Make a directory if it is missing, and keep other restores out of it while the block runs.

    :raises RestoreError: the path is no directory, can't be written, or another process restores into it.
    """
    with target_errors(path):
        real = Path(os.path.realpath(path))
        if real.exists() and not real.is_dir():
            raise RestoreError(
                f"{path}: expected a directory to restore into, found a file. Name another path."
            )
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
            f"{path}: can't restore there: {error.strerror or error}. Files that were restored before are "
            "complete. Free space or fix permissions, and run the same restore again to continue."
        ) from error


def _lock(path: Path, fd: int) -> bool:
    """Lock a directory until its descriptor is closed. A kill closes it as well.

    :return: whether the file system can lock it.
    :raises RestoreError: another restore has locked it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RestoreError(
            f"{path}: expected no other process to restore into it, found that another restore does. Nothing "
            "was changed. Wait for its end and run the same restore again, or restore into another directory."
        ) from None
    except OSError:
        return False
    return True


def _final_path(path: Path) -> Path:
    """Return the final path of a restore's incomplete file, which an older release may have left."""
    name = path.name.removeprefix(".").removesuffix(_PARTIAL_SUFFIX)
    if f".{name}{_PARTIAL_SUFFIX}" != path.name:
        return path
    stem, _, token = name.rpartition(".")
    is_token = len(token) == 16 and set(token) <= set("0123456789abcdef")
    return path.with_name(stem if is_token else name)
