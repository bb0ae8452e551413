"""The transactions of a log that nobody has ended, and below which offset none is: by snapshot and log.

A producer's snapshot says what was open where it was taken. The batches behind it say what became of that
(ProducerStateManager#loadFromSnapshot, #update, #completeTxn).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage_engine.kafka import batch_header as header
from storage_engine.kafka.layout import PartitionLog, SegmentFiles
from storage_engine.kafka.producer_snapshot import parse_producer_snapshot
from storage_engine.kafka.stored_files import corrupt, read_stored
from storage_engine.model.codec import Damage

_REMEDY = "Compare the log with a replica: which transactions are open behind it isn't known."
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without a marker.

    :param first_offset: of its first record.
    :param written_ms: time of its newest records, in milliseconds since the epoch; -1: they have none.
    """

    producer_id: int
    first_offset: int
    written_ms: int


def open_transactions(log: PartitionLog, end: int) -> tuple[OpenTransaction, ...]:
    """Return the transactions that are open at an offset, oldest first.

    Without a snapshot the whole log is read: one without a record there doesn't matter to it.

    :param end: what lies at or above it doesn't count, markers neither.
    :raises CorruptFileError: the newest snapshot can't be read, or bytes behind it that may have a marker.
    :raises OSError: a file can't be read.
    """
    found: dict[int, OpenTransaction] = {}
    begin = log.segments[0].base_offset if log.segments else end
    snapshots = [one for one in log.snapshots if begin <= _offset_of(one.path) <= end]
    if snapshots:
        newest = snapshots[-1].path
        begin = _offset_of(newest)
        for producer in parse_producer_snapshot(read_stored(Path(newest)), newest):
            if (first := producer.transaction_first_offset) is not None:
                found[producer.producer_id] = OpenTransaction(
                    producer.producer_id, first, producer.timestamp_ms
                )
    for segment in _between(log, begin, end):
        _follow(segment, begin, end, found, active=segment is log.segments[-1])
    return tuple(sorted(found.values(), key=lambda one: one.first_offset))


def last_stable_offset(transactions: tuple[OpenTransaction, ...], high_watermark: int) -> int:
    """Return below which offset every transaction has ended (UnifiedLog#fetchLastStableOffsetMetadata)."""
    return min([high_watermark, *(one.first_offset for one in transactions)])


def _offset_of(path: str) -> int:
    return int(Path(path).name.partition(".")[0])


def _between(log: PartitionLog, begin: int, end: int) -> Iterator[SegmentFiles]:
    """Yield the segments that may have records of the offsets [begin, end)."""
    following = [segment.base_offset for segment in log.segments[1:]]
    for segment, behind in zip(log.segments, [*following, end], strict=True):
        if begin < behind and segment.base_offset < end and segment.log.size_bytes:
            yield segment


def _follow(
    segment: SegmentFiles, begin: int, end: int, found: dict[int, OpenTransaction], *, active: bool
) -> None:
    """Bring what is open up to the end of a segment. Only batches of transactions are looked at one by one:
    the last marker of each producer, and the first batch behind it.
    """
    import numpy as np

    from storage_engine.kafka.record_batch import read_batches

    with mapped(segment.log.path) as data:
        batches = read_batches(data, check_crc=False)
        _check_whole(segment, batches.damages, len(data), active=active)
        chosen = (batches.attributes & header.TRANSACTIONAL != 0) & (batches.base_offsets >= begin)
        chosen &= batches.last_offsets < end
        producers, offsets = batches.producer_ids[chosen], batches.base_offsets[chosen]
        is_marker = batches.attributes[chosen] & header.CONTROL != 0
        times = batches.max_timestamps[chosen]
        del batches
    order = np.lexsort((offsets, producers))
    starts = np.flatnonzero(np.diff(producers[order], prepend=-1, append=-1))
    for first, behind in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        own = order[first:behind]
        producer = int(producers[own[0]])
        markers = np.flatnonzero(is_marker[own])
        rest = own[markers[-1] + 1 :] if len(markers) else own
        before = None if len(markers) else found.get(producer)
        if not len(rest):
            found.pop(producer, None)
            continue
        since = int(offsets[rest[0]]) if before is None else before.first_offset
        found[producer] = OpenTransaction(producer, since, int(times[rest[-1]]))


def _check_whole(segment: SegmentFiles, damages: Sequence[Damage], size_bytes: int, *, active: bool) -> None:
    """
    :raises CorruptFileError: of damage that may have a marker; a broker may just write an active one's end.
    """
    for damage in damages:
        if not (active and damage.offset + damage.size_bytes == size_bytes):
            raise corrupt(segment.log.path, damage.offset, damage.expected, damage.found, _REMEDY)


@contextmanager
def mapped(path: str) -> Iterator[memoryview]:
    """Map a file's bytes as they are now; what is appended meanwhile isn't seen."""
    descriptor = os.open(path, _OPEN)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if not size_bytes:
            yield memoryview(b"")
            return
        with mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            yield data
    finally:
        os.close(descriptor)
