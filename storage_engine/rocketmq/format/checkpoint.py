"""The ``checkpoint`` file, which has the store time up to which each part is on disk. It is only read here. A
recovery trusts it, so nothing here may raise a value.
"""

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
    """Values of a checkpoint (StoreCheckpoint): store times in ms since the epoch, and offsets in bytes."""

    physic_msg_timestamp_ms: int
    logics_msg_timestamp_ms: int
    index_msg_timestamp_ms: int
    master_flushed_offset: int
    confirm_phy_offset: int


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read a store's checkpoint; None: it has none (the broker makes the file when it opens a store).

    Only the first page counts, and missing bytes are read as zeros, since the broker maps and extends the
    file (StoreCheckpoint). A value that is cut off is then too low, so that a recovery begins earlier.

    :raises CorruptFileError: the checkpoint is no ordinary file.
    :raises StoreLayoutError: it is a symbolic link.
    :raises OSError: it can't be read.
    """
    data = _read(path)
    return None if data is None else _parse(data)


def read_known_values(path: Path) -> Mapping[str, int] | None:
    """Return the values that are complete in a store's checkpoint, by name; None: there is no checkpoint.

    A value that is cut off or missing at the file's end is unknown, and left out.

    :raises CorruptFileError: the checkpoint is no ordinary file.
    :raises StoreLayoutError: it is a symbolic link.
    :raises OSError: it can't be read.
    """
    data = _read(path)
    if data is None:
        return None
    names = [field.name for field in fields(Checkpoint)][: len(data) // _VALUE_BYTES]
    checkpoint = _parse(data)
    return {name: getattr(checkpoint, name) for name in names}


def _read(path: Path) -> bytes | None:
    try:
        return read_stored(path)
    except FileNotFoundError:
        return None


def _parse(data: bytes) -> Checkpoint:
    return Checkpoint(*_FORMAT.unpack_from(data.ljust(_FORMAT.size, b"\0")))
