"""Whole batches out of an archived segment, without reading the rest of it.

A data file's windows are put together one by one, and what is served of one has been found to be batches with
the right CRC. An uncompressed batch may begin in one window and end in the next, so a piece goes from the
first batch that begins in a window to the first one that begins in a later window.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import Table

from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.codec.record_batch import BatchKind, CrcCheck, field, iterate_batches
from storage_engine.kafka.format import batch_header as header
from storage_engine.lake.catalog.names import data_file_of
from storage_engine.lake.durable_io import open_data_file
from storage_engine.lake.file.data_file import plan_windows, read_window
from storage_engine.lake.soundness.segment_reader import narrow_rows, origin_of, read_segment, untouched_files
from storage_engine.lake.storage.errors import parquet_errors
from storage_engine.model.proof.receipt import Receipt

Longs = npt.NDArray[np.int64]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEGINNINGS = ("batch", "legacy", "undecodable")
"""Kinds of rows that a record's isn't: at each of them something begins."""


class DamagedRangeError(StorageEngineError):
    """Archived bytes that are no batch with the right CRC, so nothing is served of them."""


class NoRoomError(StorageEngineError):
    """Decoded batches can't be kept in the directory of temporary files."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Batches that lie one behind the other, with what is no batch between them.

    :param data: mapped from a file without a name, so that the kernel keeps what is used.
    :param positions: of each batch in ``data``; ``ends`` behind it.
    :param last_offsets: of each batch's last record.
    """

    data: memoryview
    positions: Longs
    ends: Longs
    base_offsets: Longs
    last_offsets: Longs

    @classmethod
    def of(cls, data: memoryview) -> Piece:
        """Find the batches in bytes, whose CRC is compared."""
        array = np.frombuffer(data, np.uint8)
        chunks = list(iterate_batches(array, max(1, len(array)), CrcCheck.ALL))
        parts = [one.chosen(one.kinds != BatchKind.UNDECODABLE) for one in chunks]
        empty = np.empty(0, np.int64)
        positions = np.concatenate([empty, *(one.positions for one in parts)])
        sizes = np.concatenate([empty, *(one.sizes for one in parts)])
        legacy = np.concatenate([empty, *(one.kinds == BatchKind.LEGACY for one in parts)])
        bases = field(array, positions, header.BASE_OFFSET_AT, 8)
        # A message of formats 0 and 1 has one offset, its own or its last inner one's.
        deltas = np.where(legacy != 0, 0, field(array, positions, header.LAST_OFFSET_DELTA_AT, 4))
        return cls(data, positions, positions + sizes, bases, bases + deltas)

    def batches(self, offset: int, end: int, max_bytes: int) -> memoryview | None:
        """Return whole batches, at least one, from that on which has an offset, or the next one there is.

        :param end: only batches that begin below it.
        :param max_bytes: more are returned where the first batch is longer (KIP-74).
        :return: None: no batch of this piece has it or lies behind it.
        :raises DamagedRangeError: what is no batch lies where the offset may have been.
        """
        first = int(np.searchsorted(self.last_offsets, offset))
        if first == len(self.positions):
            if (int(self.ends[-1]) if len(self.ends) else 0) != len(self.data):
                raise DamagedRangeError("its last bytes are no batch with the right CRC")
            return None
        before = int(self.ends[first - 1]) if first else 0
        if before != self.positions[first] and self.base_offsets[first] > offset:
            raise DamagedRangeError(f"the bytes from {before} on are no batch with the right CRC")
        last = int(np.searchsorted(self.ends, self.positions[first] + max_bytes, side="right")) - 1
        last = max(first, min(last, int(np.searchsorted(self.base_offsets, end)) - 1))
        gaps = np.flatnonzero(self.positions[first + 1 : last + 1] != self.ends[first:last])
        if len(gaps):
            last = first + int(gaps[0])
        return self.data[int(self.positions[first]) : int(self.ends[last])]

    def last_batch(self, end: int) -> bytes:
        """Return the last batch that begins below an offset; nothing: none does.

        :raises DamagedRangeError: what is no batch lies behind it.
        """
        last = int(np.searchsorted(self.base_offsets, end)) - 1
        if last == len(self.positions) - 1 and len(self.data) != (
            int(self.ends[-1]) if len(self.ends) else 0
        ):
            raise DamagedRangeError("its last bytes are no batch with the right CRC")
        return bytes(self.data[int(self.positions[last]) : int(self.ends[last])]) if last >= 0 else b""


class SegmentInLake:
    """A segment in the lake, of which pieces are read in any order, by one thread at a time.

    :param table: that of rows, as loaded.
    """

    def __init__(self, table: Table, receipt: Receipt) -> None:
        self.receipt = receipt
        self._table = table
        self._location = data_file_of(table, receipt)
        self._untouched = untouched_files(table, [receipt])
        self._lock = threading.Lock()
        self._kept: tuple[int, npt.NDArray[np.uint8]] | None = None
        self._beginnings: dict[int, int | None] = {}
        self._metadata: pq.FileMetaData | None = None
        if self._location in self._untouched:
            with self._parquet() as parquet:
                self._metadata = parquet.metadata
            self._windows = plan_windows(
                self._metadata, origin_of(receipt), receipt.size_bytes, self._location
            )
            self._last_offsets = self._highest("offset")

    @property
    def count(self) -> int:
        """Return how many pieces there are; some may have no batch."""
        return len(self._windows) if self._metadata is not None else 1

    def number_of(self, offset: int) -> int:
        """Return the first piece that may have an offset."""
        if self._metadata is None or not len(self._last_offsets):
            return 0
        number = min(int(np.searchsorted(self._last_offsets, offset)), len(self._windows) - 1)
        # Its batch may have begun before it, however far.
        with self._lock:
            while number and self._begins_late(number, offset):
                number -= 1
        return number

    def piece(self, number: int) -> Piece:
        """Read a piece.

        :raises ProofError: the data file can't be turned back into its segment.
        :raises LakeUnavailableError: the lake can't be read.
        :raises NoRoomError: there is no place for it.
        """
        with self._lock:
            parts = list(self._parts(number))
        size_bytes = sum(len(part) for part in parts)
        if not size_bytes:
            return Piece.of(memoryview(b""))
        try:
            with tempfile.TemporaryFile(prefix="storage-engine-") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                data = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)
        except OSError as error:
            raise NoRoomError(
                f"{tempfile.gettempdir()}: expected room for {size_bytes} decoded bytes, found that none can "
                f"be written: {error.strerror}. Free space, or name another directory by TMPDIR"
            ) from error
        return Piece.of(memoryview(data))

    def offset_at(self, timestamp_ms: int, start: int) -> tuple[int, int] | None:
        """Return the first record from ``start`` on that has this timestamp or a later one, and its own.

        :raises ProofError: a data file is no Parquet file.
        :raises LakeUnavailableError: the lake can't be read.
        """
        at = _EPOCH + timedelta(milliseconds=timestamp_ms)
        # Any: the stubs know no scalar beside an array.
        compute: Any = pc
        columns = ("kind", "offset", "timestamp")
        for rows in narrow_rows(self._table, self.receipt, columns, self._untouched):
            wanted = compute.and_(
                compute.greater_equal(rows["timestamp"], at), compute.greater_equal(rows["offset"], start)
            )
            wanted = compute.and_(wanted, compute.not_equal(rows["kind"], "batch"))
            found = rows.filter(compute.fill_null(wanted, False))
            if found.num_rows:
                first = found.slice(int(np.argmin(found["offset"].to_numpy())), 1).to_pylist()[0]
                return first["offset"], (first["timestamp"] - _EPOCH) // timedelta(milliseconds=1)
        return None

    def _parts(self, number: int) -> Iterator[Any]:
        if self._metadata is None:
            for _, whole in read_segment(self._table, self.receipt, untouched=self._untouched):
                yield bytes(whole)
            return
        if (begin := self._beginning(number)) is None:
            return
        for following in range(number, len(self._windows)):
            window = self._windows[following]
            end = self._beginning(following) if following > number else None
            if end == window.start_position:
                return
            data = self._window(following)
            first = begin - window.start_position if following == number else 0
            yield data[first : len(data) if end is None else end - window.start_position]
            if end is not None:
                return

    def _window(self, number: int) -> npt.NDArray[np.uint8]:
        # A piece ends in the window that the next one begins with.
        if self._kept is None or self._kept[0] != number:
            window = self._windows[number]
            data = np.empty(window.end_position - window.start_position, np.uint8)
            with self._parquet() as parquet:
                read_window(parquet, CODEC, window, data.data, self._location)
            self._kept = (number, data)
        return self._kept[1]

    def _beginning(self, number: int) -> int | None:
        """Return the position at which the first batch begins in a window; None: none does."""
        if number not in self._beginnings:
            self._beginnings[number], window = None, self._windows[number]
            with self._parquet() as parquet:
                for group in range(window.first_row_group, window.end_row_group):
                    rows = parquet.read_row_group(
                        group, columns=["kind", "physical_offset"], use_threads=False
                    )
                    is_one = np.isin(np.asarray(rows["kind"]).astype(str), _BEGINNINGS)
                    if is_one.any():
                        self._beginnings[number] = int(rows["physical_offset"].to_numpy()[is_one].min())
                        break
        return self._beginnings[number]

    def _begins_late(self, number: int, offset: int) -> bool:
        """Return whether the batch of an offset in a window began before that."""
        window = self._windows[number]
        begin = self._beginning(number)
        if begin is None:
            return True
        if begin == window.start_position:
            return False
        data = self._window(number)[begin - window.start_position :]
        return int.from_bytes(data[:8].tobytes(), "big", signed=True) > offset

    def _highest(self, column: str) -> Longs:
        """Return the highest value of a column in each window and those before it."""
        assert self._metadata is not None
        at = self._metadata.schema.names.index(column)
        highest: list[int] = []
        for window in self._windows:
            statistics = [
                self._metadata.row_group(group).column(at).statistics
                for group in range(window.first_row_group, window.end_row_group)
            ]
            values = [int(cast("Any", one).max) for one in statistics if one is not None and one.has_min_max]
            highest.append(max([*values, *highest[-1:]], default=-1))
        return np.array(highest, np.int64)

    @contextmanager
    def _parquet(self) -> Iterator[pq.ParquetFile]:
        with (
            parquet_errors(self._location),
            open_data_file(self._table.io, self._location) as stored,
            pq.ParquetFile(stored, metadata=self._metadata) as parquet,
        ):
            yield parquet
