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

from storage_engine.kafka.format.layout import PartitionLog, SegmentFiles
from storage_engine.kafka.format.producer_snapshot import Producer, parse_producer_snapshot
from storage_engine.kafka.format.stored_files import corrupt, read_stored
from storage_engine.model.broker.codec import Damage
from storage_engine.model.store.store import FileFacts

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
    begin = log.segments[0].base_offset if log.segments else end
    snapshots = _snapshots(log, end)
    producers: tuple[Producer, ...] = ()
    if snapshots:
        newest = snapshots[-1].path
        begin = _offset_of(newest)
        producers = parse_producer_snapshot(read_stored(newest), newest)
    between = list(_between(log, begin, end))
    if not between:
        firsts = ((one, one.transaction_first_offset) for one in producers)
        found = [
            OpenTransaction(one.producer_id, at, one.timestamp_ms) for one, at in firsts if at is not None
        ]
        return tuple(sorted(found, key=lambda one: one.first_offset))
    # NumPy and the kernels, which a log that a snapshot tells all of needs for nothing.
    from storage_engine.kafka.codec.transaction_states import UncommittedTransactions

    known = UncommittedTransactions.of_files((), producers, begin)
    for place, segment in enumerate(between, 1):
        damages: list[Damage] = []
        with mapped(segment.log.path) as data:
            behind = between[place].base_offset if place < len(between) else end
            known = known.continued(data, min(behind, end), damages)
            _check_whole(segment, damages, len(data), active=segment is log.segments[-1])
    return tuple(OpenTransaction(*one) for one in known.open)


def last_stable_offset(transactions: tuple[OpenTransaction, ...], high_watermark: int) -> int:
    """Return below which offset every transaction has ended (UnifiedLog#fetchLastStableOffsetMetadata)."""
    return min([high_watermark, *(one.first_offset for one in transactions)])


def forgotten_below(log: PartitionLog, end: int) -> int:
    """Return below which offset nothing tells of transactions that are open at another one; 0: all is told.

    Segments before the log's first one were deleted. A broker that starts on the others removes the first
    one's snapshot, too (ProducerStateManager#truncateAndReload).
    """
    return 0 if _snapshots(log, end) or not log.segments else log.segments[0].base_offset


def _snapshots(log: PartitionLog, end: int) -> list[FileFacts]:
    """Return the snapshots that tell something of what is open at an offset, oldest first."""
    begin = log.segments[0].base_offset if log.segments else end
    return [one for one in log.snapshots if begin <= _offset_of(one.path) <= end]


def _offset_of(path: str) -> int:
    return int(path.rpartition("/")[2].partition(".")[0])


def _between(log: PartitionLog, begin: int, end: int) -> Iterator[SegmentFiles]:
    """Yield the segments that may have records of the offsets [begin, end)."""
    for segment, behind in log.with_ends(end):
        if begin < behind and segment.base_offset < end and segment.log.size_bytes:
            yield segment


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
