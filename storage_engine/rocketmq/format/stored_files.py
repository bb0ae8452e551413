"""How files of a store are opened: never through a symbolic link below it.

Whoever can write to a store's directory could otherwise have us read, touch or delete what is elsewhere, with
our rights. Links above it, on the way to a store or to one of its configured directories, are its owner's
decision: they are resolved once (:mod:`storage_engine.rocketmq.format.layout`).
"""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

from storage_engine.core.untrusted import read_file
from storage_engine.exceptions import StoreLayoutError

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_stored(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file for reading, unbuffered.

    :raises StoreLayoutError: it is a symbolic link.
    :raises OSError: it can't be opened.
    """
    try:
        return io.FileIO(os.open(path, _FILE), "rb")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise symbolic_link(path) from error
        raise


def read_stored(path: Path) -> bytes:
    """Read a whole file, which must be an ordinary one.

    :raises StoreLayoutError: it is a symbolic link.
    :raises CorruptFileError: it is of another kind, or too long.
    :raises OSError: it can't be read.
    """
    refuse_link(path)
    return read_file(path, follow_links=False)


def open_directory_below(root: Path, directory: Path) -> int:
    """Open a directory below another one; the caller closes the descriptor.

    :param root: followed, whatever it is.
    :param directory: not followed from there on.
    :raises StoreLayoutError: a symbolic link is on the way.
    :raises OSError: it can't be opened.
    """
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in directory.relative_to(root).parts:
        try:
            below = os.open(part, _DIRECTORY, dir_fd=fd)
        except OSError as error:
            # A link is ENOTDIR to an open that wants a directory.
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
    """
    :raises StoreLayoutError: it is a symbolic link.
    """
    if Path(path).is_symlink():
        raise symbolic_link(path)


def symbolic_link(path: str | os.PathLike[str]) -> StoreLayoutError:
    """Make the error of a symbolic link below a store."""
    try:
        target = f" to {Path(path).readlink()}"
    except OSError:
        target = ""
    return StoreLayoutError(
        f"{path}: expected a file or directory of the store's own, found a symbolic link{target}, which is "
        "not followed below a store. Nothing was changed. Put there what it leads to, or mount it there."
    )
