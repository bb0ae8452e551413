"""The batches in a segment's bytes: positions, headers, and damage. The bytes must not change meanwhile."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_engine.arrow.memory import address_of
from storage_engine.crc import crc32c_engine, crc32c_of, crc_engine
from storage_engine.kafka.codec import batch_kernels as kernels
from storage_engine.kafka.format import batch_headers as header
from storage_engine.model.broker.codec import Damage

SegmentBytes = memoryview | bytes | bytearray | npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

MAX_DAMAGES = 1000
_MAX_CHUNK_BATCHES = 1 << 18
_MAX_SEGMENT_BYTES = (1 << 31) - 1


class BatchKind(IntEnum):
    """The kind of a range of a segment. The kernels use the same values."""

    BATCH = kernels.BATCH
    LEGACY = kernels.LEGACY
    UNDECODABLE = kernels.UNDECODABLE


@dataclass(frozen=True, slots=True, eq=False)
class BatchChunk:
    """Consecutive ranges of a segment, without gaps between them.

    :param positions: position in the segment of each range's first byte.
    :param kinds: a BatchKind for each range.
    :param faults: for each range, the fault that the kernels found, as a number (``FAULT_*``). Of consecutive
        undecodable ranges only the first has such a number.
    :param counts: number of records that a batch's header states; 0 for other ranges.
    :param codecs: compression type of a batch's records; 0 if not compressed.
    """

    positions: Longs
    sizes: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    faults: npt.NDArray[np.uint8]
    counts: npt.NDArray[np.int32]
    codecs: npt.NDArray[np.uint8]

    def chosen(self, which: slice | npt.NDArray[Any]) -> BatchChunk:
        """Return some of the ranges. All other ranges become gaps in whatever is made from the result."""
        return BatchChunk(
            self.positions[which],
            self.sizes[which],
            self.kinds[which],
            self.faults[which],
            self.counts[which],
            self.codecs[which],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The batches of format 2 in a segment, and the ranges that are no batch.

    Each array has one element for each batch.

    :param last_offsets: the offset of a batch's last record, even if the cleaner has removed that record.
    :param legacy: number of messages of formats 0 and 1.
    """

    positions: Longs
    sizes: Longs
    base_offsets: Longs
    last_offsets: Longs
    leader_epochs: Longs
    attributes: Longs
    base_timestamps: Longs
    max_timestamps: Longs
    producer_ids: Longs
    producer_epochs: Longs
    base_sequences: Longs
    record_counts: Longs
    legacy: int
    damages: tuple[Damage, ...]

    @property
    def gaps_are_losses(self) -> bool:
        """Return whether missing offsets are lost records.

        They aren't if the cleaner has removed records, or if some bytes are no batches of format 2. Then gaps
        have other reasons.
        """
        was_cleaned = (self.record_counts <= self.last_offsets - self.base_offsets).any()
        return not (was_cleaned or self.legacy or self.damages)


def as_array(data: SegmentBytes) -> npt.NDArray[np.uint8]:
    """Return the bytes as an array, without a copy.

    :raises ValueError: the bytes aren't contiguous single bytes, or are more than a segment can have.
    """
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError("segment bytes must be one contiguous run of uint8")
    if len(array) > _MAX_SEGMENT_BYTES:
        raise ValueError(f"expected a segment of at most {_MAX_SEGMENT_BYTES} bytes, found {len(array)}")
    return array


class CrcCheck(IntEnum):
    """The batches whose CRC the walk checks. The kernels use the same values."""

    NONE = kernels.CHECK_NONE
    ALL = kernels.CHECK_ALL
    COMPRESSED = kernels.CHECK_COMPRESSED


def iterate_batches(
    data: SegmentBytes, chunk_bytes: int, check: CrcCheck = CrcCheck.ALL
) -> Iterator[BatchChunk]:
    """Walk over a segment in chunks of about ``chunk_bytes``. A longer batch is a chunk by itself."""
    array = as_array(data)
    capacity = min(_MAX_CHUNK_BATCHES, min(chunk_bytes, len(array)) // header.MIN_LEGACY_BYTES + 1)
    engine, legacy = crc32c_engine(), crc_engine()
    state = np.zeros(kernels.STATE_SIZE, np.int64)
    # A BatchChunk's columns, with room for the largest chunk: allocated once, and results are copied.
    types = (np.int64, np.int32, np.uint8, np.uint8, np.int32, np.uint8)
    columns: list[npt.NDArray[Any]] = [np.empty(capacity, dtype) for dtype in types]
    while state[kernels.POSITION] < len(array):
        kernels.scan(
            address_of(array),
            len(array),
            max(1, chunk_bytes),
            engine.function,
            engine.table,
            legacy.function,
            legacy.table,
            int(check),
            state,
            *columns,
        )
        yield BatchChunk(*(column[: state[kernels.ROWS]].copy() for column in columns))


def read_batches(data: SegmentBytes, *, check_crc: bool = True) -> Batches:
    """Read the headers of all batches in a segment.

    :param check_crc: False for a caller that only counts, and trusts the bytes.
    """
    array = as_array(data)
    check = CrcCheck.ALL if check_crc else CrcCheck.NONE
    chunks = list(iterate_batches(array, max(1, len(array)), check))
    damages = merge_damages(damage for chunk in chunks for damage in scan_damages(array, 0, chunk))
    parts = [chunk.positions[chunk.kinds == BatchKind.BATCH] for chunk in chunks]
    positions = np.concatenate(parts) if parts else np.empty(0, np.int64)
    base_offsets = field(array, positions, header.BASE_OFFSET_AT, 8)
    return Batches(
        positions=positions,
        sizes=field(array, positions, header.LENGTH_AT, 4) + header.LENGTH_OVERHEAD,
        base_offsets=base_offsets,
        last_offsets=base_offsets + field(array, positions, header.LAST_OFFSET_DELTA_AT, 4),
        leader_epochs=field(array, positions, header.LEADER_EPOCH_AT, 4),
        attributes=field(array, positions, header.ATTRIBUTES_AT, 2),
        base_timestamps=field(array, positions, header.BASE_TIMESTAMP_AT, 8),
        max_timestamps=field(array, positions, header.MAX_TIMESTAMP_AT, 8),
        producer_ids=field(array, positions, header.PRODUCER_ID_AT, 8),
        producer_epochs=field(array, positions, header.PRODUCER_EPOCH_AT, 2),
        base_sequences=field(array, positions, header.BASE_SEQUENCE_AT, 4),
        record_counts=field(array, positions, header.RECORD_COUNT_AT, 4),
        legacy=sum(int(np.count_nonzero(chunk.kinds == BatchKind.LEGACY)) for chunk in chunks),
        damages=damages,
    )


def field(data: npt.NDArray[np.uint8], positions: Longs, at: int, width: int) -> Longs:
    """Return the field of ``width`` bytes (2, 4 or 8) at position ``at`` in each batch."""
    values = np.empty(len(positions), np.int64)
    kernels.read_words(address_of(data), positions, at, width, values)
    return values


def scan_damages(data: npt.NDArray[np.uint8], origin: int, chunk: BatchChunk) -> Iterator[Damage]:
    """Yield a damage for each range that is no batch. ``origin`` is the segment's first position."""
    for i in np.flatnonzero(chunk.kinds == BatchKind.UNDECODABLE).tolist():
        at, size = int(chunk.positions[i]), int(chunk.sizes[i])
        yield Damage(origin + at, size, *explain_fault(data, at, int(chunk.faults[i])))


def merge_damages(damages: Iterator[Damage]) -> tuple[Damage, ...]:
    """Join a range without its own fault to the range before.

    If there are more than ``MAX_DAMAGES``, keep the first ones. If the last of them needs no acceptance, also
    keep the next one that needs it.
    """
    joined: list[Damage] = []
    for damage in damages:
        last = joined[-1] if joined else None
        adjacent = last is not None and last.offset + last.size_bytes == damage.offset
        # Damage that a producer sent needs no acceptance. It must not displace damage that needs one.
        counts = len(joined) < MAX_DAMAGES or (joined[-1].as_written and not damage.as_written)
        if last is not None and adjacent and (not damage.expected or not counts):
            joined[-1] = replace(last, size_bytes=last.size_bytes + damage.size_bytes)
        elif counts:
            # A run that began in an earlier part of the segment has no fault of its own here.
            expected, found = damage.expected or "a batch", damage.found or "more of the bytes before it"
            joined.append(replace(damage, expected=expected, found=found))
    return tuple(joined)


def explain_fault(data: npt.NDArray[np.uint8], at: int, fault: int) -> tuple[str, str]:
    """Return what was expected and found at a position; each is "" where earlier damage continues."""
    left_bytes = len(data) - at
    if fault == kernels.FAULT_NONE:
        return "", ""
    if fault == kernels.FAULT_TORN and left_bytes <= header.MAGIC_AT:
        return (
            f"a batch, of at least {header.HEADER_BYTES} bytes",
            f"{left_bytes} bytes up to the end of the file",
        )
    size = _signed(data, at + header.LENGTH_AT, 4) + header.LENGTH_OVERHEAD
    magic = _signed(data, at + header.MAGIC_AT, 1)
    if fault == kernels.FAULT_TORN:
        return f"a batch of {size} bytes", f"{left_bytes} bytes up to the end of the file"
    if fault == kernels.FAULT_SIZE:
        least = header.HEADER_BYTES if magic == header.MAGIC else header.MIN_LEGACY_BYTES
        return f"a batch of at least {least} bytes", f"a length field that says {size}"
    if fault == kernels.FAULT_MAGIC:
        return f"magic 0, 1 or {header.MAGIC}", f"magic {magic}"
    if fault == kernels.FAULT_CRC:
        if magic == header.MAGIC:
            crc_at, kind = header.CRC_AT, "CRC-32C"
            crc = crc32c_of(data[at + header.ATTRIBUTES_AT : at + size].tobytes())
        else:
            crc_at, kind = header.LEGACY_CRC_AT, "CRC-32"
            crc = zlib.crc32(data[at + crc_at + 4 : at + size].tobytes())
        expected = data[at + crc_at : at + crc_at + 4].tobytes().hex()
        return f"{kind} {expected} of the bytes behind it", f"{crc:08x}"
    count = _signed(data, at + header.RECORD_COUNT_AT, 4)
    if fault == kernels.FAULT_COUNT:
        return f"records that fit into {size} bytes", f"a count of {count}"
    if fault == kernels.FAULT_MORE:
        return f"{count} records that fill the batch", "bytes behind the last one"
    return f"{count} whole records", "one that isn't"


def _signed(data: npt.NDArray[np.uint8], at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width].tobytes(), "big", signed=True)
