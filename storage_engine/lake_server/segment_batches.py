"""Reading whole batches of an archived segment, without reading the rest of it.

The windows of a data file are decoded one by one, each once. Only batches with the right CRC are served.
Decoded bytes are kept at their positions in a file without a name, so that slow readers take no memory.

An uncompressed batch may begin in one window and end in the next one. So a piece begins with the first batch
that begins in a window, and ends before the first batch that begins in a later window.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import Table

from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.codec.compression import CODEC_NAMES
from storage_engine.kafka.codec.record_batch import BatchKind, CrcCheck, field, iterate_batches
from storage_engine.kafka.format import batch_headers as header
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.file.data_file import (
    SegmentRows,
    column_statistics,
    opened_rows,
    plan_windows,
    read_window,
    rows_of_segment,
    window_memory,
)
from storage_engine.lake.soundness.segment_reader import narrow_rows, origin_of, read_segment, untouched_files
from storage_engine.model.proof.receipt import Receipt

Longs = npt.NDArray[np.int64]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_OFFSET = (1 << 63) - 1
_ZSTD = CODEC_NAMES.index("zstd")
_BEGINNINGS = pa.array(["batch", "legacy", "undecodable"])
"""Kinds of rows that begin a batch, a legacy message or undecodable bytes. Records have other kinds."""


class DamagedRangeError(StorageEngineError):
    """Archived bytes are no batch with the right CRC, and aren't served."""


class ScratchFile:
    """A file without a name for a segment's decoded bytes. Positions that weren't written take no space."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Return how many bytes were written."""
        with self._lock:
            return self._size_bytes

    def write(self, position: int, data: memoryview) -> None:
        """Write bytes at a position. Several threads may write at different positions at the same time.

        :raises StorageEngineError: there is no space for them.
        """
        try:
            descriptor, written = self._open(), 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], position + written)
        except OSError as error:
            raise StorageEngineError(
                f"{tempfile.gettempdir()}: expected room for {len(data)} decoded bytes, found that they "
                f"can't be written: {error.strerror}. Free space, or name another directory by TMPDIR"
            ) from error
        with self._lock:
            self._size_bytes += len(data)

    def kept(self, first: int, end: int) -> KeptBytes:
        """Return the place of written bytes, without reading them."""
        return KeptBytes(self, first, end - first)

    def read_into(self, data: memoryview, first: int) -> None:
        """Fill memory with written bytes.

        :raises DamagedRangeError: the bytes are behind the end of the file.
        """
        read = 0
        while read < len(data):
            descriptor, at = self._descriptor, first + read
            count = 0 if descriptor is None else os.preadv(descriptor, [data[read:]], at)
            if not count:
                # The memory still has bytes of another window.
                raise DamagedRangeError(f"expected decoded bytes at {at} of their file, found its end")
            read += count

    def forget(self) -> None:
        """Set the number of written bytes to 0, because all bytes are written again."""
        with self._lock:
            self._size_bytes = 0

    def _open(self) -> int:
        with self._lock:
            if self._descriptor is None:
                with tempfile.TemporaryFile(prefix="storage-engine-") as file:
                    self._descriptor = os.dup(file.fileno())
                # It is closed once no reader refers to this object any more.
                weakref.finalize(self, os.close, self._descriptor)
            return self._descriptor


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """The place of bytes in a scratch file. An answer to a slow reader has this instead of the bytes."""

    file: ScratchFile
    first: int
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.parts(max(1, self.size_bytes)))

    def parts(self, most_bytes: int) -> Iterator[bytearray]:
        """Read the bytes in parts of at most ``most_bytes``.

        :raises DamagedRangeError: the bytes are behind the end of the file.
        """
        for at in range(0, self.size_bytes, most_bytes):
            part = bytearray(min(most_bytes, self.size_bytes - at))
            self.file.read_into(memoryview(part), self.first + at)
            yield part


Batches = bytes | KeptBytes
"""Whole batches, in memory or in a file."""


def has_zstd(batches: Batches) -> bool:
    """Return whether one of the batches is compressed with zstd."""
    at, head = 0, bytearray(header.LAST_OFFSET_DELTA_AT)
    while at + len(head) <= len(batches):
        if isinstance(batches, KeptBytes):
            batches.file.read_into(memoryview(head), batches.first + at)
        else:
            head[:] = batches[at : at + len(head)]
        if head[header.MAGIC_AT] == header.MAGIC and head[-1] & header.CODEC_MASK == _ZSTD:
            return True
        at += header.LENGTH_OVERHEAD + int.from_bytes(head[header.LENGTH_AT : header.LEADER_EPOCH_AT], "big")
    return False


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive batches of a segment. Bytes that are no batch may be between them.

    :param read: returns the bytes from one position to another, both at most ``size_bytes``.
    :param positions: position of each batch's first byte.
    :param ends: position after each batch's last byte.
    :param last_offsets: offset of each batch's last record.
    """

    read: Callable[[int, int], Batches]
    size_bytes: int
    positions: Longs
    ends: Longs
    base_offsets: Longs
    last_offsets: Longs
    name: str

    @classmethod
    def of(
        cls,
        read: Callable[[int, int], Batches],
        data: bytes | memoryview,
        name: str,
        offsets: tuple[int, int] = (0, _LAST_OFFSET),
    ) -> Piece:
        """Find the batches with the right CRC in bytes.

        A CRC doesn't cover the batch's first offset. So first offsets must rise, and be within ``offsets``.
        If a first offset breaks this rule, its batch, the batch before and all later batches are left out.

        :param data: all bytes that ``read`` can return.
        :param offsets: lowest and highest allowed first offset of a batch.
        """
        array = np.frombuffer(data, np.uint8)
        chunks = list(iterate_batches(array, max(1, len(array)), CrcCheck.ALL))
        parts = [chunk.chosen(chunk.kinds != BatchKind.UNDECODABLE) for chunk in chunks]
        empty = np.empty(0, np.int64)
        positions = np.concatenate([empty, *(part.positions for part in parts)])
        sizes = np.concatenate([empty, *(part.sizes for part in parts)])
        legacy = np.concatenate([empty, *(part.kinds == BatchKind.LEGACY for part in parts)])
        bases = field(array, positions, header.BASE_OFFSET_AT, 8)
        # A message of formats 0 and 1 has one offset. It is that of its last inner message, if it has any.
        deltas = np.where(legacy != 0, 0, field(array, positions, header.LAST_OFFSET_DELTA_AT, 4))
        lasts = bases + deltas
        wrong = np.flatnonzero((bases <= np.append(offsets[0] - 1, lasts[:-1])) | (bases > offsets[1]))
        # The offset of this batch, or of the batch before it, isn't the original one.
        sound = slice(max(0, int(wrong[0]) - 1) if len(wrong) else None)
        ends = positions + sizes
        return cls(read, len(data), positions[sound], ends[sound], bases[sound], lasts[sound], name)

    def batches(self, offset: int, end: int, max_bytes: int) -> Batches | None:
        """Return whole batches, from the batch with an offset on, or else from the next batch on.

        :param end: only batches that begin below this offset are returned.
        :param max_bytes: the most bytes to return. The first batch is returned even if it is longer (KIP-74).
        :return: the batches. They are empty if the first one doesn't begin below ``end``. The result is None
            if all batches of this piece are before the offset.
        :raises DamagedRangeError: the offset may have been in bytes that are no batch.
        """
        first = int(np.searchsorted(self.last_offsets, offset))
        if first == len(self.positions):
            self._check_end()
            return None
        before = int(self.ends[first - 1]) if first else 0
        if before != self.positions[first] and self.base_offsets[first] > offset:
            raise self._damage_error(before)
        if self.base_offsets[first] >= end:
            return b""
        last = int(np.searchsorted(self.ends, self.positions[first] + max_bytes, side="right")) - 1
        last = max(first, min(last, int(np.searchsorted(self.base_offsets, end)) - 1))
        gaps = np.flatnonzero(self.positions[first + 1 : last + 1] != self.ends[first:last])
        if len(gaps):
            last = first + int(gaps[0])
        return self.read(int(self.positions[first]), int(self.ends[last]))

    def last_batch(self, end: int) -> bytes:
        """Return the last batch that begins below an offset, or no bytes if there is none.

        :raises DamagedRangeError: the batch is the piece's last one, and other bytes follow it.
        """
        last = int(np.searchsorted(self.base_offsets, end)) - 1
        if last == len(self.positions) - 1:
            self._check_end()
        return bytes(self.read(int(self.positions[last]), int(self.ends[last]))) if last >= 0 else b""

    def _check_end(self) -> None:
        """Check that no bytes follow the piece's last batch."""
        end = int(self.ends[-1]) if len(self.ends) else 0
        if end != self.size_bytes:
            raise self._damage_error(end)

    def _damage_error(self, position: int) -> DamagedRangeError:
        return DamagedRangeError(
            f"{self.name}: expected batches with the right CRC and rising offsets, found none at byte "
            f"{position} of the piece. These bytes aren't served. Run verify to find out whether the lake is "
            "at fault"
        )


class SegmentInLake:
    """A segment in the lake, whose pieces are read in any order. Several threads may use it."""

    def __init__(self, table: Table, receipt: Receipt) -> None:
        self.receipt = receipt
        self._table = table
        self._location = data_file_of(table, receipt)
        self._untouched = untouched_files(table, [receipt])
        self._lock = threading.Lock()
        self._scratch = ScratchFile()
        self._decodings: dict[int, threading.Lock] = {}
        self._decoded: set[int] = set()
        self.pieces: dict[int, asyncio.Future[Piece]] = {}
        self._beginnings: dict[int, int | None] = {}
        self._metadata: pq.FileMetaData | None = None
        if self._location in self._untouched:
            with opened_rows(table.io, self._location) as parquet:
                self._metadata = parquet.metadata
                rows = rows_of_segment(parquet, receipt, self._location)
                self._windows = plan_windows(rows, origin_of(receipt), receipt.size_bytes, self._location)
                self._last_offsets = self._highest_values(column_statistics(rows, "offset", self._location))

    @property
    def count(self) -> int:
        """Return the number of pieces. A piece may have no batch."""
        return len(self._windows) if self._metadata is not None else 1

    @property
    def decoded_bytes(self) -> int:
        """Return how many decoded bytes of the segment the scratch file has."""
        return self._scratch.size_bytes

    def lies_in(self, table: Table, untouched: Set[str]) -> bool:
        """Return whether a newer table has the segment unchanged.

        If its data file is at the same place, the segment is read by the newer table from then on.

        :param untouched: the table's data files that are as they were written.
        """
        if self._metadata is None or data_file_of(table, self.receipt) != self._location:
            return False
        self._table = table
        return self._location in untouched

    def ready_number_of(self, offset: int) -> int | None:
        """Return the number of the piece with an offset, or None if no piece that was read has it."""
        for number, reading in self.pieces.items():
            if reading.done() and not reading.cancelled() and reading.exception() is None:
                piece = reading.result()
                if len(piece.positions) and piece.base_offsets[0] <= offset <= piece.last_offsets[-1]:
                    return number
        return None

    def number_of(self, offset: int) -> int:
        """Return the number of the first piece that may have an offset."""
        if self._metadata is None or not len(self._last_offsets):
            return 0
        number = min(int(np.searchsorted(self._last_offsets, offset)), len(self._windows) - 1)
        # The offset's batch may have begun any number of windows earlier.
        while number and self._begins_late(number, offset):
            number -= 1
        return number

    def piece(self, number: int) -> Piece:
        """Read a piece.

        :raises ProofError: the data file can't be turned back into its segment.
        :raises DamagedRangeError: another engine has changed its rows.
        :raises LakeUnavailableError: the lake can't be read.
        :raises StorageEngineError: there is no space for the decoded bytes.
        """
        name, (lowest, highest) = self._location, (self.receipt.base_offset, _LAST_OFFSET)
        if self._metadata is None:
            self._decode_rows()
            first, end = 0, self._scratch.size_bytes
        else:
            first, end = self._decode_span(number)
            name += f", row group {self._windows[number].first_row_group}"
            highest = int(self._last_offsets[number])
            if number and (before := int(self._last_offsets[number - 1])) != _LAST_OFFSET:
                lowest = max(lowest, before + 1)
        data = window_memory().take(end - first)
        self._scratch.read_into(data, first)
        return Piece.of(
            lambda begin, stop: self._scratch.kept(first + begin, first + stop),
            data,
            name,
            (lowest, highest),
        )

    def offset_at(self, timestamp_ms: int, start: int) -> tuple[int, int] | None:
        """Return the offset and timestamp of the first record with this timestamp or a later one, or None.

        :param start: only records with this offset or a higher one count.
        :raises ProofError: a data file is no Parquet file.
        :raises LakeUnavailableError: the lake can't be read.
        """
        at = pa.scalar(_EPOCH + timedelta(milliseconds=timestamp_ms))
        # Any: the stubs lack expressions.
        named: Any = pc.field
        keeps = (named("timestamp") >= at) & (named("offset") >= start) & (named("kind") != "batch")
        columns = ("kind", "offset", "timestamp")
        offers: list[tuple[int, datetime]] = []
        for rows in narrow_rows(self._table, self.receipt, columns, self._untouched, keeps):
            if rows.num_rows:
                first = rows.slice(int(np.argmin(rows["offset"].to_numpy())), 1).to_pylist()[0]
                offers.append((first["offset"], first["timestamp"]))
                # Only in another engine's files may a later record come first.
                if self._metadata is not None:
                    break
        if not offers:
            return None
        offset, time = min(offers)
        return offset, (time - _EPOCH) // timedelta(milliseconds=1)

    def _decode_span(self, number: int) -> tuple[int, int]:
        """Decode a piece's windows, and return the positions of its begin and end in the scratch file."""
        origin = self._windows[0].start_position
        if (begin := self._find_beginning(number)) is None:
            return 0, 0
        end = self._windows[number].end_position
        self._decode(number)
        for following in range(number + 1, len(self._windows)):
            window, behind = self._windows[following], self._find_beginning(following)
            if behind != window.start_position:
                self._decode(following)
            end = window.end_position if behind is None else behind
            if behind is not None:
                break
        return begin - origin, end - origin

    def _decode(self, number: int) -> None:
        with self._lock:
            lock = self._decodings.setdefault(number, threading.Lock())
        with lock:
            if number in self._decoded:
                return
            window = self._windows[number]
            data = window_memory().take(window.end_position - window.start_position)
            with self._open_rows() as rows:
                read_window(rows, CODEC, window, data, self._location)
            self._scratch.write(window.start_position - self._windows[0].start_position, data)
            self._decoded.add(number)

    def _decode_rows(self) -> None:
        """Decode a whole rewritten segment. Raise DamagedRangeError if its bytes aren't the archived ones."""
        with self._lock:
            if 0 in self._decoded:
                return
            self._scratch.forget()
            digest = hashlib.sha256()
            for position, part in read_segment(self._table, self.receipt, untouched=self._untouched):
                digest.update(part)
                self._scratch.write(position - origin_of(self.receipt), part)
            if digest.hexdigest() != self.receipt.sha256:
                raise DamagedRangeError(
                    f"{self._table.location()}: expected rows of "
                    f"{self.receipt.log}/{self.receipt.base_offset:020d} with the SHA-256 "
                    f"{self.receipt.sha256}, found {digest.hexdigest()}. Another engine changed them. "
                    "They aren't served. Run verify"
                )
            self._decoded.add(0)

    def _find_beginning(self, number: int) -> int | None:
        """Return the position of the first batch that begins in a window, or None if none does.

        For the first window, return its start without reading rows, so that no bytes are skipped.
        """
        if not number:
            return self._windows[0].start_position
        if number not in self._beginnings:
            beginning, window = None, self._windows[number]
            # Any: the stubs lack the parameter value_set.
            compute: Any = pc
            with self._open_rows() as segment:
                for group in range(window.first_row_group, window.end_row_group):
                    rows = segment.read_row_group(
                        group, columns=["kind", "physical_offset"], use_threads=False
                    )
                    begins = compute.is_in(rows["kind"], value_set=_BEGINNINGS).to_numpy()
                    if begins.any():
                        beginning = int(rows["physical_offset"].to_numpy()[begins].min())
                        break
            self._beginnings[number] = beginning
        return self._beginnings[number]

    def _begins_late(self, number: int, offset: int) -> bool:
        """Return whether the batch with an offset begins before the window ``number``."""
        window = self._windows[number]
        begin = self._find_beginning(number)
        if begin is None:
            return True
        if begin == window.start_position:
            return False
        self._decode(number)
        at = begin - self._windows[0].start_position
        return int.from_bytes(bytes(self._scratch.kept(at, at + 8)), "big", signed=True) > offset

    def _highest_values(self, column: Sequence[pq.Statistics | None]) -> Longs:
        """Return for each window the highest value of a column in this window and all windows before.

        For row groups without statistics the highest possible value is assumed.
        """
        highest: list[int] = []
        for window in self._windows:
            statistics: Any = column[window.first_row_group : window.end_row_group]
            values = [
                _LAST_OFFSET if item is None else int(item.max)
                for item in statistics
                if item is None or item.has_min_max
            ]
            highest.append(max([*values, *highest[-1:]], default=-1))
        return np.array(highest, np.int64)

    @contextmanager
    def _open_rows(self) -> Iterator[SegmentRows]:
        with opened_rows(self._table.io, self._location, self._metadata) as parquet:
            yield rows_of_segment(parquet, self.receipt, self._location)
