"""File operations that are on disk when they return. Everything that counts goes through here."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def fsync_path(path: str | os.PathLike[str]) -> None:
    """Flush a file's bytes, or a directory's entries, to disk.

    :param path: file or directory.
    :raises OSError: when the path can't be opened or the device refuses.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(path: str | os.PathLike[str]) -> None:
    """Create a directory and its missing parents; each entry is fsynced in its parent.

    So is that of the first directory that is there already: a process that was killed may have made it
    and not come to that.
    """
    path = Path(path)
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    # Whoever may not read the parent did not make the directory.
    with suppress(PermissionError):
        fsync_path(path.parent)
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        fsync_path(directory.parent)


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace a file's content atomically: temporary file, fsync, rename, directory fsync."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


def unlink(path: str | os.PathLike[str]) -> bool:
    """Remove a file if it is there. The caller fsyncs the directory once for a batch.

    :return: whether this call removed it.
    """
    try:
        Path(path).unlink()
    except FileNotFoundError:
        return False
    return True
