"""Reading archived batches and transactions for many consumers.

Batches are decoded once, and kept while there is space.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pyiceberg.table import Table

from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.codec.transaction_states import UncommittedTransactions
from storage_engine.kafka.format.producer_snapshot import parse_producer_snapshot
from storage_engine.kafka.format.transaction_index import AbortedTransaction, parse_transaction_index
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.soundness.segment_reader import untouched_files
from storage_engine.lake_server.archived_partitions import (
    Archive,
    ArchivedPartition,
    ArchivedRange,
    read_archive,
)
from storage_engine.lake_server.segment_batches import Batches, DamagedRangeError, Piece, SegmentInLake
from storage_engine.model.proof.receipt import Receipt

Pieces = Callable[[Receipt], Iterator[Piece]]
"""Yields the pieces of a segment, in order."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """A partition's transactions, for readers of committed records.

    :param aborted: the aborted transactions, sorted by their last offset.
    :param sections: end and last stable offset of each contiguous range. Every transaction below the last
        stable offset has ended.
    """

    aborted: tuple[AbortedTransaction, ...]
    sections: tuple[tuple[int, int], ...]

    def stable_at(self, offset: int) -> int:
        """Return the last stable offset of the section that has an offset, or of the next section.

        After all sections, this is the last section's. Without sections, it is the offset itself.
        """
        last = self.sections[-1][1] if self.sections else offset
        return next((stable for end, stable in self.sections if offset < end), last)

    def within(self, first: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that may have records in [first, end)."""
        return [entry for entry in self.aborted if entry.last_offset >= first and entry.first_offset < end]


def read_transactions(partition: ArchivedPartition, pieces: Pieces) -> Transactions:
    """Return a partition's transactions.

    Aborted transactions are read from the broker's own indexes (TransactionIndex). At a section's end, there
    may be open transactions. They are found by the section's last producer snapshot and the batches from its
    segment on (ProducerStateManager). Without a snapshot, all batches of the section are read.

    :raises CorruptFileError: an index or a snapshot can't be read.
    :raises LakeUnavailableError: the lake can't be read.
    """
    aborted: list[AbortedTransaction] = []
    for part in partition.ranges:
        for companion in () if part.refused else part.receipt.companions:
            if companion.name.endswith(".txnindex"):
                index = parse_transaction_index(companion.content, f"{companion.name} of {part.receipt.log}")
                # Offsets of two receipts count only in one of them.
                aborted += (entry for entry in index if entry.last_offset >= part.first)
    return Transactions(
        tuple(sorted(aborted, key=lambda entry: entry.last_offset)),
        tuple(
            (section[-1].end, _last_stable_offset(section, pieces)) for section in _sections(partition.ranges)
        ),
    )


def _sections(ranges: Sequence[ArchivedRange]) -> list[list[ArchivedRange]]:
    """Divide ranges at each hole and each refused range, in which transactions may have ended."""
    sections: list[list[ArchivedRange]] = []
    for archived in ranges:
        last = sections[-1][-1] if sections else None
        if last is None or last.end < archived.first or last.refused or archived.refused:
            sections.append([])
        sections[-1].append(archived)
    return sections


def _last_stable_offset(section: Sequence[ArchivedRange], pieces: Pieces) -> int:
    if section[-1].refused:
        return section[-1].end
    last, snapshot = 0, b""
    for number, archived in enumerate(section):
        for companion in archived.receipt.companions:
            if companion.name.endswith(".snapshot"):
                last, snapshot = number, companion.content
    receipt = section[last].receipt
    producers = parse_producer_snapshot(snapshot, f"snapshot of {receipt.log}") if snapshot else ()
    state = UncommittedTransactions.of_files((), producers, receipt.base_offset)
    for archived in section[last:]:
        for piece in pieces(archived.receipt):
            if len(piece.last_offsets):
                state = state.continued(
                    memoryview(bytes(piece.read(0, piece.size_bytes))), int(piece.last_offsets[-1]) + 1
                )
    first_open = state.first_open_offset
    return section[-1].end if first_open is None else first_open


T = TypeVar("T")

_THREADS = 1
"""Number of decoding threads for a lake on local disks. One thread decodes faster than consumers read. A
thread has one row group in memory, as bytes and as columns, and consumers get their bytes from files. So the
number of threads limits the memory for all consumers."""
_THREADS_FAR = 4
"""Number of decoding threads for a lake in an object store. They spend most of their time waiting."""
_MOST_SEGMENTS = 256
"""Maximum number of segments that are kept decoded. Each has an open file."""
_AHEAD = 2
"""Number of pieces that are decoded in advance, because decoding a piece takes longer than sending it."""


class LakeReader:
    """A reader of a lake's batches. It is used in one event loop. Slow work runs in other threads.

    :param cluster: the id of the cluster to read; None if the lake has only one.
    :param cache_bytes: how many bytes of decoded batches are kept for the next consumer.
    :param skip_holes: whether readers continue after offsets that no receipt has.
    :raises BadInputError: the lake is of another kind of broker, or doesn't have the cluster.
    :raises LakeUnavailableError: the lake can't be read.
    """

    def __init__(self, lake: Lake, cluster: str | None, *, cache_bytes: int, skip_holes: bool) -> None:
        self._lake = lake
        self._cache_bytes, self.skip_holes = cache_bytes, skip_holes
        self._threads = _THREADS_FAR if local_path(lake.messages().location()) is None else _THREADS
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="lake-reader")
        # It reads whole segments, and so must not take the pool's threads from consumers for long.
        self._walker = ThreadPoolExecutor(1, thread_name_prefix="lake-walker")
        # Consumers wait for its results, which therefore must not wait for the walker.
        self._finder = ThreadPoolExecutor(1, thread_name_prefix="lake-finder")
        self._segments: OrderedDict[str, SegmentInLake] = OrderedDict()
        self._segments_lock = threading.Lock()
        self._opening: dict[str, asyncio.Future[SegmentInLake]] = {}
        self._waiting = 0
        self._transactions: dict[tuple[str, int], asyncio.Future[Transactions]] = {}
        self._table: Table = lake.messages()
        self._snapshots = self._current(self._table)
        self.archive: Archive = read_archive(lake, cluster)
        self.changed = asyncio.Event()

    async def warm_up(self) -> None:
        """Load compiled code by reading some transactions, so that the first consumer needn't wait for it."""
        first = next((part for topic in self.archive.topics.values() for part in topic.values()), None)
        if first is not None:
            with suppress(StorageEngineError):
                await self.transactions(first)

    async def renew(self) -> None:
        """Read the receipts again if the lake has new commits.

        :raises LakeUnavailableError: the lake can't be read. The earlier state stays.
        """

        def read_changes() -> tuple[tuple[int | None, int | None], Table, Archive, frozenset[str]] | None:
            table = self._lake.messages()
            snapshots = self._current(table)
            if snapshots == self._snapshots:
                return None
            with self._segments_lock:
                receipts = [segment.receipt for segment in self._segments.values()]
            untouched = untouched_files(table, receipts)
            return snapshots, table, read_archive(self._lake, self.archive.cluster), untouched

        # It may take long, and so doesn't run in the threads for which consumers wait.
        result = await asyncio.to_thread(read_changes)
        if result is not None:
            self._snapshots, self._table, self.archive, untouched = result
            self._transactions.clear()
            with self._segments_lock:
                for row_hash, segment in list(self._segments.items()):
                    if not segment.lies_in(self._table, untouched):
                        del self._segments[row_hash]
            self.changed.set()
            self.changed = asyncio.Event()

    def _current(self, table: Table) -> tuple[int | None, int | None]:
        """Return both tables' current snapshots: rows can be moved without a new receipt."""
        return self._lake.segments().metadata.current_snapshot_id, table.metadata.current_snapshot_id

    async def batches(self, partition: ArchivedPartition, offset: int, end: int, max_bytes: int) -> Batches:
        """Return whole batches from an offset on, or none if no batch begins below ``end``.

        :param end: only batches that begin below this offset are returned.
        :raises StorageEngineError: no receipt has the offset, or its range isn't served.
        :raises DamagedRangeError: the archived bytes at the offset are no batch.
        :raises ProofError: the data file can't be turned back into its segment.
        :raises LakeUnavailableError: the lake can't be read.
        """
        while offset < min(end, partition.end):
            archived = partition.range_at(offset)
            self._check_served(partition, archived, offset)
            offset = max(offset, archived.first)
            # Batches that are decoded already are returned without waiting for a thread.
            segment = self._find_segment(archived.receipt)
            if segment is None:
                segment = await self._run_in_thread(self._segment, archived.receipt)
            ready = segment.ready_number_of(offset)
            first = await self._run_in_thread(segment.number_of, offset) if ready is None else ready
            for number in range(first, segment.count):
                piece = await self._piece(segment, number)
                self._read_ahead(partition, archived, segment, number)
                batches = piece.batches(offset, end, max_bytes)
                if batches is not None and not batches and end >= archived.end:
                    raise DamagedRangeError("a batch begins after the end of its segment")
                if batches is not None:
                    return batches
            # A log cleaner removed the last records of this segment.
            offset = archived.end
        return b""

    async def offset_at(self, partition: ArchivedPartition, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the offset and timestamp of the first record with this timestamp or a later one, or None."""

        def find_offset() -> tuple[int, int] | None:
            for archived in partition.ranges:
                last = archived.receipt.last_store_timestamp_ms
                if last is not None and last >= timestamp_ms and archived.end > partition.start:
                    first = max(archived.first, partition.start)
                    position = self._segment(archived.receipt).offset_at(timestamp_ms, first)
                    if position is not None:
                        return position
            return None

        return await asyncio.get_running_loop().run_in_executor(self._finder, find_offset)

    async def last_batch(self, partition: ArchivedPartition) -> bytes:
        """Return the last archived batch that is served, or no bytes if there is none."""

        def find_batch() -> bytes:
            for archived in reversed(partition.ranges):
                segment = None if archived.refused else self._segment(archived.receipt)
                for number in reversed(range(segment.count if segment else 0)):
                    assert segment is not None
                    if batch := self._pool.submit(segment.piece, number).result().last_batch(archived.end):
                        return batch
            return b""

        return await asyncio.get_running_loop().run_in_executor(self._finder, find_batch)

    async def transactions(self, partition: ArchivedPartition) -> Transactions:
        """Return a partition's transactions. They are read once for each state of the lake."""
        key = (partition.topic, partition.number)
        if key not in self._transactions:
            self._transactions[key] = asyncio.get_running_loop().run_in_executor(
                self._walker, read_transactions, partition, self._all_pieces
            )
        try:
            return await asyncio.shield(self._transactions[key])
        except Exception:
            self._transactions.pop(key, None)
            raise

    def close(self) -> None:
        for threads in (self._walker, self._finder, self._pool):
            threads.shutdown(wait=False, cancel_futures=True)

    def _check_served(self, partition: ArchivedPartition, part: ArchivedRange, offset: int) -> None:
        where = f"{partition.topic}-{partition.number}, offsets"
        hole = next(((max(a, offset), b) for a, b in partition.holes() if offset < b <= part.first), None)
        if hole is not None and not self.skip_holes:
            raise StorageEngineError(
                f"{where} [{hole[0]}, {hole[1]}): no receipt has these offsets, so consumers stop before "
                "them. Run verify to find out why they are missing. With --holes skip, consumers continue "
                "after these offsets."
            )
        if part.refused:
            raise StorageEngineError(
                f"{where} [{part.first}, {part.end}): these offsets aren't served: {part.refused}."
            )

    async def _piece(self, segment: SegmentInLake, number: int) -> Piece:
        try:
            piece = await asyncio.shield(self._begin_piece(segment, number))
        except Exception:
            segment.pieces.pop(number, None)
            raise
        with self._segments_lock:
            total = sum(segment.decoded_bytes for segment in self._segments.values())
            while total > self._cache_bytes and len(self._segments) > 1:
                # Its scratch file is closed when the last reader has finished.
                total -= self._segments.popitem(last=False)[1].decoded_bytes
        return piece

    def _read_ahead(
        self, partition: ArchivedPartition, archived: ArchivedRange, segment: SegmentInLake, number: int
    ) -> None:
        """Start decoding the pieces that most consumers need next. No request waits for them."""
        for following in range(number + 1, number + 1 + _AHEAD):
            if self._waiting > self._threads:
                return
            if following < segment.count:
                self._begin_piece(segment, following)
        later = partition.ranges_from(archived.end)[:1]
        if number + 1 + _AHEAD > segment.count and later and not later[0].refused:
            receipt = later[0].receipt
            if (opened := self._find_segment(receipt)) is not None:
                self._begin_piece(opened, 0)
            elif receipt.row_hash not in self._opening:
                self._opening[receipt.row_hash] = asyncio.ensure_future(
                    self._run_in_thread(self._segment, receipt)
                )
                self._opening[receipt.row_hash].add_done_callback(partial(self._begin_new, receipt.row_hash))

    def _begin_new(self, row_hash: str, opened: asyncio.Future[SegmentInLake]) -> None:
        """Start decoding an opened segment. An error isn't logged, because no consumer asked for it."""
        del self._opening[row_hash]
        if not opened.cancelled() and opened.exception() is None and self._waiting <= self._threads:
            self._begin_piece(opened.result(), 0)

    def _begin_piece(self, segment: SegmentInLake, number: int) -> asyncio.Future[Piece]:
        if number not in segment.pieces:

            def end(reading: asyncio.Future[Piece]) -> None:
                self._waiting -= 1
                # Otherwise asyncio would log the exception of a piece that no consumer needs.
                if not reading.cancelled():
                    reading.exception()

            self._waiting += 1
            segment.pieces[number] = asyncio.ensure_future(self._run_in_thread(segment.piece, number))
            segment.pieces[number].add_done_callback(end)
        return segment.pieces[number]

    def _find_segment(self, receipt: Receipt) -> SegmentInLake | None:
        with self._segments_lock:
            if (segment := self._segments.get(receipt.row_hash)) is not None:
                self._segments.move_to_end(receipt.row_hash)
            return segment

    def _segment(self, receipt: Receipt) -> SegmentInLake:
        if (segment := self._find_segment(receipt)) is not None:
            return segment
        table = self._table
        segment = SegmentInLake(table, receipt)
        with self._segments_lock:
            if table is not self._table:
                # The renewal didn't check this segment, whose file may be removed at any time.
                return segment
            segment = self._segments.setdefault(receipt.row_hash, segment)
            while len(self._segments) > _MOST_SEGMENTS:
                self._segments.popitem(last=False)
        return segment

    def _all_pieces(self, receipt: Receipt) -> Iterator[Piece]:
        segment = self._segment(receipt)
        return (self._pool.submit(segment.piece, number).result() for number in range(segment.count))

    async def _run_in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
