"""Reading of other programs' files in bounded memory, and decoding of text as in Java."""

from __future__ import annotations

import codecs
import errno
import os
import stat
import struct
import zlib
from pathlib import Path
from typing import Final

from storage_engine.exceptions import CorruptFileError

MALFORMED: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
    zlib.error,
)
"""Errors that a parser raises for unexpected content. They are caught where a file or an answer is read."""

MAX_FILE_BYTES: Final = 512 << 20
"""Default size limit of a file that is read as a whole. Only segments and queues are longer."""


def read_file(
    path: str | Path, max_bytes: int = MAX_FILE_BYTES, *, follow_links: bool = True, dir_fd: int | None = None
) -> bytes:
    """Read a whole file. It must be an ordinary file, because a pipe or a device may have no end.

    :param dir_fd: descriptor of the file's directory, which replaces the path's directory if given.
    :raises FileNotFoundError: the file doesn't exist.
    :raises CorruptFileError: the path has no ordinary file, or the file is longer than ``max_bytes``.
    :raises OSError: the file can't be read.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path if dir_fd is None else Path(path).name, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise CorruptFileError(
                f"{path}: expected an ordinary file, found {error.strerror}. Nothing was changed. Bring the "
                "file back from a backup."
            ) from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptFileError(
                f"{path}: expected an ordinary file, found {_kind(status.st_mode)}. Nothing was changed. "
                "Find out which program made it, and restore the file from a backup."
            )
        if status.st_size > max_bytes:
            raise CorruptFileError(
                f"{path}: expected at most {max_bytes} bytes, found {status.st_size}. Nothing was changed. "
                "Bring the file back from a backup."
            )
        return _read(descriptor, max_bytes)
    finally:
        os.close(descriptor)


def _read(descriptor: int, max_bytes: int) -> bytes:
    """Read to the file's end, but at most ``max_bytes``, since the file may grow."""
    parts = []
    left_bytes = max_bytes
    while left_bytes and (part := os.read(descriptor, min(left_bytes, 1 << 20))):
        parts.append(part)
        left_bytes -= len(part)
    return b"".join(parts)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFBLK: "a device",
        stat.S_IFCHR: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


_HANDLER = "storage-engine-java"


def java_text(data: bytes) -> str:
    """Decode like ``new String(bytes, UTF_8)``.

    Java replaces an encoded surrogate, also a truncated one, by one character (sun.nio.cs.UTF_8). Python
    would replace each of its bytes.
    """
    return data.decode(errors=_HANDLER)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    first, second, third = (*error.object[error.start : error.start + 3], 0, 0, 0)[:3]
    if first == 0xED and 0xA0 <= second <= 0xBF:
        return "\ufffd", error.start + (3 if 0x80 <= third <= 0xBF else 2)
    return "\ufffd", error.end


codecs.register_error(_HANDLER, _replace)
