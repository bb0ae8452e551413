"""Opening of a store's files, never through a symbolic link below the store.

Otherwise anyone who can write to a store's directory could make us read, touch or delete other files, with
our rights. Links on the path to a store, or to one of its configured directories, are its owner's decision.
They are resolved once (:mod:`storage_engine.rocketmq.format.layout`).
"""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from storage_engine.core.untrusted import read_file
from storage_engine.exceptions import BadInputError, StoreBusyError, StoreLayoutError
from storage_engine.model.report.diagnosis import reason_of

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_stored(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file for reading, unbuffered.

    :raises StoreLayoutError: the path is a symbolic link.
    :raises OSError: the file can't be opened.
    """
    try:
        return io.FileIO(os.open(path, _FILE), "rb")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise symbolic_link(path) from error
        raise


def read_stored(path: Path) -> bytes:
    """Read a whole ordinary file.

    :raises StoreLayoutError: the path is a symbolic link.
    :raises CorruptFileError: the file is of another kind, or too long.
    :raises OSError: the file can't be read.
    """
    refuse_link(path)
    return read_file(path, follow_links=False)


def open_directory_below(root: Path, directory: Path) -> int:
    """Open a directory below a root directory. The caller closes the descriptor.

    :param root: path whose symbolic links are followed.
    :param directory: path below the root, in which no link is followed.
    :raises StoreLayoutError: a part of the path below the root is a symbolic link.
    :raises OSError: the directory can't be opened.
    """
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in directory.relative_to(root).parts:
        try:
            below = os.open(part, _DIRECTORY, dir_fd=fd)
        except OSError as error:
            # For a link, O_DIRECTORY fails with ENOTDIR.
            if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and _is_link(part, fd)):
                raise symbolic_link(directory) from error
            raise
        finally:
            os.close(fd)
        fd = below
    return fd


def _is_link(name: str, dir_fd: int) -> bool:
    try:
        os.readlink(name, dir_fd=dir_fd)
    except OSError:
        return False
    return True


def refuse_link(path: str | os.PathLike[str]) -> None:
    """:raises StoreLayoutError: a path below a store is a symbolic link."""
    if Path(path).is_symlink():
        raise symbolic_link(path)


def symbolic_link(path: str | os.PathLike[str]) -> StoreLayoutError:
    try:
        target = f" to {Path(path).readlink()}"
    except OSError:
        target = ""
    return StoreLayoutError(
        f"{path}: expected a file or directory of the store's own, found a symbolic link{target}, which is "
        "not followed below a store. Nothing was changed. Replace the link by its target, or mount the "
        "target there."
    )


ATTEMPTS = 5
"""Attempts to read beside a running broker. It writes a config file every 5 to 10 s, within milliseconds."""
PAUSE_SECONDS = 0.1

Found = TypeVar("Found")
Nothing = TypeVar("Nothing")
Log = TypeVar("Log")
Row = TypeVar("Row")

_POLL_SECONDS = 0.5


def reread(read: Callable[[], Found], attempts: int) -> Found:
    """Return the result of ``read``, with a limited number of attempts.

    :param read: reads everything from the start, with new lists of files.
    :param attempts: number of attempts; 1 for the store of a stopped broker, where nothing changes.
    :raises BadInputError, StoreBusyError, FileNotFoundError: the error of the last attempt.
    """
    for _ in range(attempts - 1):
        try:
            return read()
        except (BadInputError, StoreBusyError, FileNotFoundError):
            time.sleep(PAUSE_SECONDS)
    return read()


def read_or_tell(
    read: Callable[[], Found], nothing: Nothing, what: str, attempts: int = 1
) -> tuple[Found | Nothing, tuple[str, ...]]:
    """Return a part of a store and (), or ``nothing`` and the reason why the part can't be read.

    :param attempts: see :func:`reread`.
    """
    try:
        return reread(read, attempts), ()
    except (BadInputError, OSError) as error:
        return nothing, (f"{what} can't be read: {reason_of(error)}",)


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long to read a store's files again while a running broker changes them.

    The defaults are for a stopped broker.

    :param attempts: number of attempts to read data that contradict each other.
    :param cleaning_ms: time in which the broker deletes files that point only below the log's min offset.
    """

    attempts: int = 1
    cleaning_ms: int = 0

    @classmethod
    def with_broker(cls, cleaning_ms: int) -> Patience:
        return cls(ATTEMPTS, cleaning_ms)

    def settled(
        self, read: Callable[[Log], Row], log: Log, look: Callable[[], Log], is_sound: Callable[[Row], bool]
    ) -> Row:
        """Return the result of ``read``. If it is unsound, or ``read`` fails, read again with a new log.

        The last attempt's result is returned even if it is unsound.

        :raises StorageEngineError, OSError: the error of the last attempt.
        """
        if self.attempts == 1:
            return read(log)
        try:
            row = read(log)
            if is_sound(row):
                return row
        except (BadInputError, StoreBusyError, FileNotFoundError):
            pass
        for _ in range(self.attempts - 1):
            time.sleep(PAUSE_SECONDS)
            row = reread(lambda: read(look()), self.attempts)
            if is_sound(row):
                break
        return row

    def again(self, read: Callable[[], Row]) -> Row:
        """Return the result of ``read``. If it fails because files change, try again."""
        return reread(read, self.attempts)

    def until_none(self, recounts: Sequence[Callable[[], int]], counts: Sequence[int]) -> list[int]:
        """Wait up to ``cleaning_ms`` until each count of left-over files is 0. Return the last counts."""
        left = list(counts)
        deadline = time.monotonic() + self.cleaning_ms / 1000
        while any(left) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            left = [self.again(recount) if n else 0 for recount, n in zip(recounts, left, strict=True)]
        return left
