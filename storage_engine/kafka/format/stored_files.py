"""How files of log directories are read, and what is said of one that can't be what its name says."""

from __future__ import annotations

from pathlib import Path

from storage_engine.core.untrusted import read_file
from storage_engine.exceptions import CorruptFileError

MAX_TEXT_BYTES = 64 << 20
"""Longest checkpoint or properties file that is read: of a million partitions and more."""


def read_stored(path: str | Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read a whole file, which must be an ordinary one and no symbolic link.

    :raises CorruptFileError: it is of another kind, or too long.
    :raises OSError: it can't be read.
    """
    return read_file(path, max_bytes, follow_links=False)


def check_entries(size_bytes: int, entry_bytes: int, path: str, remedy: str) -> None:
    """:raises CorruptFileError: a file of so many bytes has no whole entries."""
    rest = size_bytes % entry_bytes
    if rest:
        raise corrupt(path, size_bytes - rest, f"entries of {entry_bytes} bytes", f"{rest} bytes", remedy)


def corrupt(path: str | Path, at: int, expected: str, found: str, remedy: str) -> CorruptFileError:
    """Make the error of a file.

    :param at: position of the first byte that isn't as it should be.
    """
    return CorruptFileError(
        f"{path}: at byte {at} expected {expected}, found {found}. Nothing was changed. {remedy}"
    )
