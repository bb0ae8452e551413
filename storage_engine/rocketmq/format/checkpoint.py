"""The ``checkpoint`` file: up to which store time each part was on disk. Read only; a recovery trusts it,
so nothing here can raise a value."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from storage_engine.rocketmq.format.stored_files import read_stored

FILE_BYTES = 4096
_FORMAT = struct.Struct(">5q")
_VALUE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store times in milliseconds since the epoch, offsets in bytes (StoreCheckpoint)."""

    physic_msg_timestamp_ms: int
    logics_msg_timestamp_ms: int
    index_msg_timestamp_ms: int
    master_flushed_offset: int
    confirm_phy_offset: int


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read a store's checkpoint; None when there is none (the broker makes one when it opens a store).

    Of a file of any size the first page counts, and what it lacks is zeros, as the broker maps and extends it
    (StoreCheckpoint). A value that is cut off is then too low, so that a recovery begins earlier.

    :raises CorruptFileError: it is no ordinary file.
    :raises StoreLayoutError: it is a symbolic link.
    :raises OSError: it can't be read.
    """
    data = _read(path)
    return None if data is None else _parse(data)


def read_known_values(path: Path) -> Mapping[str, int] | None:
    """Return the values that a store's checkpoint has to their last byte, by name; None: there is none.

    Of a value that is cut off, or that the file ends before, nothing is known.

    :raises CorruptFileError: it is no ordinary file.
    :raises StoreLayoutError: it is a symbolic link.
    :raises OSError: it can't be read.
    """
    data = _read(path)
    if data is None:
        return None
    names = [field.name for field in fields(Checkpoint)][: len(data) // _VALUE_BYTES]
    found = _parse(data)
    return {name: getattr(found, name) for name in names}


def _read(path: Path) -> bytes | None:
    try:
        return read_stored(path)
    except FileNotFoundError:
        return None


def _parse(data: bytes) -> Checkpoint:
    return Checkpoint(*_FORMAT.unpack_from(data.ljust(_FORMAT.size, b"\0")))
