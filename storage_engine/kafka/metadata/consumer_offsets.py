"""Positions of consumer groups, read from the records of ``__consumer_offsets`` on a node's disk.

Each group's records are in one partition of that topic. So a node knows only its own partitions' groups.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.codec.transaction_states import UncommittedTransactions
from storage_engine.kafka.format.file_names import corrupt, read_stored
from storage_engine.kafka.format.layout import LogDirectory, PartitionLog
from storage_engine.kafka.metadata.log_faults import holes
from storage_engine.model.report.diagnosis import named_in_short, reason_of

# The stubs of pyarrow.compute accept no text beside a column.
pc: Any = pyarrow.compute

TOPIC = "__consumer_offsets"
_MAX_SEGMENT_BYTES = 1 << 31
_END: Final = 1 << 62
_OFFSET_KEYS = (0, 1)
_GROUP_KEYS = (2, 3)
"""Versions of keys: 0 and 1 for OffsetCommitKey, 2 for GroupMetadataKey (classic groups), 3 for
ConsumerGroupMetadataKey (groups of KIP-848)."""
_VALUE = struct.Struct(">hq")
"""Start of every version of OffsetCommitValue: its version and the offset."""
_MAX_VALUE_VERSION = 4
_PARTITION = struct.Struct(">i")
_REMEDY = "Start the broker, which reads the topic itself, and ask the broker: --broker HOST:PORT."


@dataclass(slots=True)
class CommittedOffsets:
    """The newest positions in the records.

    :param offsets: by group, topic and partition; None if a newer position may exist, because the group's
        records can't be read to their end.
    :param groups: existing groups, including groups that have committed no offset.
    :param unknown: partitions of the topic that can't be read to their end, and why.
    """

    offsets: dict[tuple[str, str, int], int | None] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)


def read_consumer_offsets(
    logs: Iterable[tuple[LogDirectory, PartitionLog]], *, may_be_torn: bool = False
) -> CommittedOffsets:
    """Read partitions of the topic.

    Unreadable bytes, missing records before the last segment, or a record of an unknown version may have been
    a newer position of any group in the partition. Then all positions in that partition are unknown. Records
    that the cleaner has removed don't count as missing.

    :param logs: partitions, each with its log directory.
    :param may_be_torn: a broker may be writing the ends of the logs, or didn't stop cleanly. Then an
        incomplete batch at the end is no fault: it was never acknowledged.
    """
    offsets = CommittedOffsets()
    for directory, log in logs:
        faults = [directory.fault] if directory.fault else []
        try:
            faults += holes(directory, log, log.segments)
            newest = _newest(log, faults, may_be_torn=may_be_torn)
        except (CorruptFileError, OSError) as error:
            newest = {}
            faults.append(reason_of(error))
        of_log, path = CommittedOffsets(), log.path
        for key, value in newest.items():
            try:
                _take(of_log, key, value, path)
            except CorruptFileError as error:
                faults.append(reason_of(error))
        if faults:
            of_log.offsets = dict.fromkeys(of_log.offsets)
            groups = named_in_short(sorted(of_log.groups)) if of_log.groups else "its groups"
            offsets.unknown.append(f"positions of {groups} in {log.name.log} aren't known: {faults[0]}")
        offsets.offsets |= of_log.offsets
        offsets.groups |= of_log.groups
    return offsets


def _newest(log: PartitionLog, faults: list[str], *, may_be_torn: bool) -> Mapping[bytes, bytes | None]:
    """Return each key's newest committed value in a log. The oldest of these values comes first.

    :param faults: receives ranges that are no whole batch.
    """
    keys, values = _records(log, faults, may_be_torn=may_be_torn)
    if not keys:
        return {}
    key, value = pa.concat_arrays(keys), pa.concat_arrays(values)
    coded = key.dictionary_encode()
    last = np.empty(len(coded.dictionary), np.int64)
    # Records are in their log's order, so each key gets the place of its last record.
    last[np.asarray(coded.indices)] = np.arange(len(coded))
    order = np.argsort(last)
    by_age: Any = pa.array(order)
    names: Any = coded.dictionary.take(by_age)
    places: Any = pa.array(last[order])
    return dict(zip(names.to_pylist(), value.take(places).to_pylist(), strict=True))


def _records(
    log: PartitionLog, faults: list[str], *, may_be_torn: bool
) -> tuple[list[pa.Array[Any]], list[pa.Array[Any]]]:
    segments = [read_stored(Path(segment.log.path), _MAX_SEGMENT_BYTES) for segment in log.segments]
    transactions = UncommittedTransactions.none(0)
    for data, (_, end) in zip(segments, log.with_ends(_END), strict=True):
        transactions = transactions.continued(data, end)
    keys: list[pa.Array[Any]] = []
    values: list[pa.Array[Any]] = []
    for number, (files, data) in enumerate(zip(log.segments, segments, strict=True), 1):
        for rows, damages in CODEC.decode(memoryview(data), 0):
            for damage in damages:
                is_end = number == len(segments) and damage.offset + damage.size_bytes == len(data)
                if not (is_end and may_be_torn):
                    faults.append(
                        f"{files.log.path}: at byte {damage.offset} expected {damage.expected}, found "
                        f"{damage.found}"
                    )
            kept = pc.and_(pc.equal(transactions.state_column(rows), "committed"), pc.is_valid(rows["key"]))
            mask = pa.array(np.asarray(pc.fill_null(kept, False)))
            keys.append(_bytes(rows["key"]).filter(mask))
            values.append(_bytes(rows["value"]).filter(mask))
    return keys, values


def _bytes(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    # A column of views can't be filtered.
    joined = column.cast(pa.binary()).combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def _take(offsets: CommittedOffsets, key: bytes, value: bytes | None, path: Path) -> None:
    version = int.from_bytes(key[:2], "big")
    if version not in (*_OFFSET_KEYS, *_GROUP_KEYS) or value is None:
        return
    group, at = _read_text(key, 2, path)
    offsets.groups.add(group)
    if version in _GROUP_KEYS:
        return
    topic, at = _read_text(key, at, path)
    if len(key) < at + _PARTITION.size:
        raise _bad_key(key, at, path)
    if len(value) < _VALUE.size or not 0 <= int.from_bytes(value[:2], "big") <= _MAX_VALUE_VERSION:
        expected = f"a committed offset of a version up to {_MAX_VALUE_VERSION}"
        raise corrupt(path, 0, expected, f"{len(value)} bytes that begin with {value[:2].hex()}", _REMEDY)
    offsets.offsets[group, topic, _PARTITION.unpack_from(key, at)[0]] = _VALUE.unpack_from(value)[1]


def _read_text(key: bytes, at: int, path: Path) -> tuple[str, int]:
    """Return a text in a key, and the position after it."""
    begin = at + 2
    end = begin + int.from_bytes(key[at:begin], "big", signed=True)
    if not begin <= end <= len(key):
        raise _bad_key(key, at, path)
    return _decode_name(key[begin:end]), end


@lru_cache(maxsize=1 << 12)
def _decode_name(name: bytes) -> str:
    """Return the name of a group or topic. It is cached, because each partition repeats it."""
    return name.decode("utf-8", "replace")


def _bad_key(key: bytes, at: int, path: Path) -> CorruptFileError:
    return corrupt(path, at, "the key of an offset or a group", f"{len(key)} bytes", _REMEDY)
