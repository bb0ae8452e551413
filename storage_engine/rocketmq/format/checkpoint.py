"""The ``checkpoint`` file, with the store time up to which each part of a store is on disk. It is only read.

A recovery trusts it, so no value may be raised here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
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
    """Read a store's checkpoint; None if there is no file (the broker makes it when it opens a store).

    Only the first page counts, and missing bytes are read as zeros, since the broker maps and extends the
    file (StoreCheckpoint). A truncated value is then too low, so that a recovery begins earlier.

    :raises CorruptFileError: the checkpoint is no ordinary file.
    :raises StoreLayoutError: the file is a symbolic link.
    :raises OSError: the file can't be read.
    """
    data = _read(path)
    return None if data is None else _parse(data)


def read_known_values(path: Path) -> Mapping[str, int] | None:
    """Return the complete values in a store's checkpoint, by name; None if there is no checkpoint.

    A value that is truncated or missing at the file's end is unknown, and left out.

    :raises CorruptFileError, StoreLayoutError, OSError: see :func:`read_checkpoint`.
    """
    data = _read(path)
    return None if data is None else dict(islice(asdict(_parse(data)).items(), len(data) // _VALUE_BYTES))


def _read(path: Path) -> bytes | None:
    try:
        return read_stored(path)
    except FileNotFoundError:
        return None


def _parse(data: bytes) -> Checkpoint:
    return Checkpoint(*_FORMAT.unpack_from(data.ljust(_FORMAT.size, b"\0")))
