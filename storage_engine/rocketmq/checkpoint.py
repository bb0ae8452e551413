"""The ``checkpoint`` file: up to which store time each part was on disk. Read only; a recovery trusts it,
so nothing here can raise a value."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.stored_files import read_stored

FILE_BYTES = 4096
_FORMAT = struct.Struct(">5q")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store times in milliseconds since the epoch, offsets in bytes (StoreCheckpoint)."""

    physic_msg_timestamp_ms: int
    logics_msg_timestamp_ms: int
    index_msg_timestamp_ms: int
    master_flushed_offset: int
    confirm_phy_offset: int


def read_checkpoint(path: Path, *, any_size: bool = False) -> Checkpoint | None:
    """Read a store's checkpoint; None when there is none (the broker makes one when it opens a store).

    :param any_size: of a file of another size the first page counts, and what it lacks is zeros, as the
        broker maps it (StoreCheckpoint). A value that is cut off is then too low, so that a recovery begins
        earlier.
    :raises CorruptFileError: it has another size than the one page that the broker maps.
    """
    try:
        data = read_stored(path)
    except FileNotFoundError:
        return None
    if len(data) != FILE_BYTES and not any_size:
        raise CorruptFileError(
            f"{path}: expected {FILE_BYTES} bytes, found {len(data)}. Bring it back from a replica, or let "
            "storage-engine recover make it again."
        )
    return Checkpoint(*_FORMAT.unpack_from(data.ljust(_FORMAT.size, b"\0")))
