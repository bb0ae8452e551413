"""``<offset>.snapshot``: the state of a log's producers below an offset (ProducerStateManager).

Once the first segments of a transaction are deleted, only this file tells that the transaction is open.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from storage_engine.crc import crc32c_of
from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.format.file_names import corrupt

VERSION = 1
_HEADER = struct.Struct(">hIi")
_CRC_END = 6
"""Position after the CRC. The CRC covers the bytes from here on."""
_ENTRY = struct.Struct(">qhiqiqiq")
_NONE = -1
_REMEDY = "Leave it where it is: the broker ignores it and reads the log. Compare the log with a replica."


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer's last write.

    :param last_sequence: sequence number of its last record; -1 if only its markers are left.
    :param offset_delta: distance from the first to the last record of its last batch.
    :param transaction_first_offset: first offset of its open transaction; None without one.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int | None


def parse_producer_snapshot(data: bytes, path: str) -> tuple[Producer, ...]:
    """Read a snapshot.

    :raises CorruptFileError: the version, CRC or size is wrong.
    """
    if len(data) < _HEADER.size:
        raise corrupt(path, 0, f"a header of {_HEADER.size} bytes", f"{len(data)} bytes", _REMEDY)
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise corrupt(path, 0, f"version {VERSION}", str(version), _REMEDY)
    computed = crc32c_of(data[_CRC_END:])
    if crc != computed:
        raise corrupt(path, 2, f"CRC-32C {computed:08x}", f"{crc:08x}", _REMEDY)
    if count < 0 or len(data) != _HEADER.size + count * _ENTRY.size:
        size = len(data) - _HEADER.size
        raise corrupt(path, _CRC_END, f"{count} entries of {_ENTRY.size} bytes", f"{size} bytes", _REMEDY)
    entries = _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :])
    return tuple(Producer(*(*words, None if first == _NONE else first)) for *words, first in entries)


def same_producers(left: bytes, right: bytes, path: str) -> bool:
    """Return whether two snapshots at the same offset of a log have the same producers.

    A broker that recovers writes snapshots again from the log (UnifiedLog#rebuildProducerState). The order of
    producers may differ, and expired producers are missing (ProducerStateManager#isProducerExpired). So a
    producer that is in only one snapshot makes no difference, unless its transaction is open.

    :return: False also if a snapshot can't be read.
    """
    try:
        producers = [
            {producer.producer_id: producer for producer in parse_producer_snapshot(data, path)}
            for data in (left, right)
        ]
    except CorruptFileError:
        return False
    first, second = producers
    return all(
        first[producer_id] == second[producer_id]
        if producer_id in first and producer_id in second
        else (first.get(producer_id) or second[producer_id]).transaction_first_offset is None
        for producer_id in first.keys() | second.keys()
    )
