"""Files of an offset space as they are, whatever is wrong with them: for validation, which must not stop at
the first fault. What decides about deletion uses :mod:`.mapped_files`, which does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from storage_engine.rocketmq.mapped_files import NAME_DIGITS, MappedFile


def list_raw_files(directories: Sequence[Path]) -> tuple[tuple[Path, int], ...]:
    """(path, size) of every file, in the order of names; a missing directory has none.

    A last file without a byte doesn't count: the broker removes it when it opens the store
    (MappedFileQueue#doLoad).
    """
    found: list[tuple[Path, int]] = []
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                found += [(Path(e.path), e.stat().st_size) for e in entries if not e.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            continue
    found.sort(key=lambda item: (item[0].name, str(item[0])))
    if found and found[-1][1] == 0:
        found.pop()
    return tuple(found)


def is_offset(name: str) -> bool:
    """Whether a file's name is an offset (UtilAll#offset2FileName)."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdecimal()


def readable(files: Sequence[tuple[Path, int]], *, unit_bytes: int = 1) -> tuple[MappedFile, ...]:
    """Those whose name is an offset and that have at least one unit, by offset."""
    return tuple(
        MappedFile(path, int(path.name), size)
        for path, size in files
        if is_offset(path.name) and size >= unit_bytes
    )
