"""The ``checkpoint`` file: up to which store time each part was on disk. Read only; a recovery trusts it,
so nothing here can raise a value."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from storage_engine.rocketmq.format.broker_config import CONTROLLER_MODE, BrokerConfig
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.stored_files import read_stored

FILE_BYTES = 4096
_FORMAT = struct.Struct(">5q")
_VALUE_BYTES = 8
_EPOCHS = "epochFileCheckpoint"
"""Beside the log of a broker that a controller gives its role (MessageStoreConfig#getStorePathEpochFile)."""


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


def confirmed_offset(config: BrokerConfig, layout: StoreLayout) -> int | None:
    """Return up to where all replicas in sync had a log when its broker flushed the checkpoint last.

    A broker that a controller makes a slave cuts off what its new master doesn't have, and that is above
    this offset (AutoSwitchHAService#computeConfirmOffset, AutoSwitchHAClient#doTruncate). The others set
    the value when they recover, and never again (CommitLog#recoverNormally).

    :return: 0 where the checkpoint doesn't say; None: no controller decides on the broker's role. Where no
        settings are known, what such a broker keeps beside its log tells.
    """
    says = config.raw.get(CONTROLLER_MODE)
    is_unknown = says is None and config.source is None
    if not ((layout.root / _EPOCHS).exists() if is_unknown else (says or "").strip().lower() == "true"):
        return None
    return (read_known_values(layout.checkpoint) or {}).get("confirm_phy_offset", 0)


def _read(path: Path) -> bytes | None:
    try:
        return read_stored(path)
    except FileNotFoundError:
        return None


def _parse(data: bytes) -> Checkpoint:
    return Checkpoint(*_FORMAT.unpack_from(data.ljust(_FORMAT.size, b"\0")))
