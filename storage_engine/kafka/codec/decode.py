"""A chunk of batches → Arrow tables: decompresses, and has the kernels write the columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.arrow.memory import Arena, address_of
from storage_engine.crc import crc32c_engine
from storage_engine.kafka.codec import batch_kernels, record_kernels
from storage_engine.kafka.codec.compression import MAX_EXPANDED_BYTES, Decompressor, Payloads
from storage_engine.kafka.codec.expansion import ExpansionError
from storage_engine.kafka.codec.record_batch import BatchChunk, BatchKind, explained, merged
from storage_engine.kafka.codec.row_columns import ARENA_EXPANDED, RowColumns
from storage_engine.kafka.codec.row_table import Content, table_of
from storage_engine.kafka.format import batch_header as header
from storage_engine.model.broker.codec import Damage

_EXPANDED_CHUNK_BYTES = 64 << 20
"""A table ends once its batches have expanded to so much."""
_MAX_EXPANDED_ROWS = 1 << 22
"""A table ends before a compressed batch that would give it more rows, unless that is its first."""
_GROUP_BYTES: Final = 1 << 20
"""So much is decompressed before its records are read: a processor's cache still has it then."""


def decode_chunk(
    data: npt.NDArray[np.uint8], origin: int, chunk: BatchChunk, decompressor: Decompressor, arena: Arena
) -> Iterator[tuple[pa.Table, tuple[Damage, ...]]]:
    """Yield the rows of a chunk in the segment's order, in as many tables as their expanded size asks for.

    :param origin: position of the segment's first byte.
    :param chunk: the CRCs of its compressed batches were checked; those of others are here.
    :param arena: what a table no longer needs serves the next one.
    """
    rest = chunk
    while len(rest.positions):
        filling = _Filling(data, origin, rest, arena)
        filling.fill(decompressor)
        rest = rest.chosen(slice(filling.batches, None))
        found = [(filling.table(), merged(filling.damages()))]
        # Neither is held on to here: their memory serves the next table.
        del filling
        yield found.pop()


class _Filling:
    """Batches on their way into one table.

    :ivar batches: how many have been written.
    """

    def __init__(self, data: npt.NDArray[np.uint8], origin: int, chunk: BatchChunk, arena: Arena) -> None:
        self.batches = 0
        self._arena = arena
        self._data = data
        self._origin = origin
        self._chunk = chunk
        self._kinds, self._faults, self._counts = chunk.kinds.copy(), chunk.faults.copy(), chunk.counts.copy()
        self._payloads = np.full(len(chunk.positions), -1, np.int64)
        self._payload_sizes = chunk.sizes.astype(np.int64) - header.HEADER_BYTES
        self._expanded: Any = pa.py_buffer(b"")
        self._columns: RowColumns | None = None
        self._state = np.zeros(record_kernels.STATE_SIZE, np.int64)
        self._reasons: dict[int, tuple[str, str]] = {}

    def fill(self, decompressor: Decompressor) -> None:
        """Write rows, until there is no room for more that expands."""
        # Kafka doesn't look into a batch that says that it has no records.
        compressed = np.flatnonzero((self._chunk.codecs != 0) & (self._counts != 0))
        batches = self._chunk.chosen(compressed)
        totals = np.concatenate([[0], np.cumsum(batches.counts, dtype=np.int64)])
        room = min(int(totals[-1]), _MAX_EXPANDED_ROWS)
        # Batches that aren't compressed have as many records as they say.
        others = int(self._counts.sum(dtype=np.int64) - totals[-1]) + len(self._counts)
        if not len(compressed):
            self._write(len(self._kinds), others)
            return
        self._expanded = self._arena.buffer(ARENA_EXPANDED, _EXPANDED_CHUNK_BYTES + MAX_EXPANDED_BYTES)
        payloads = Payloads(
            self._data,
            batches.positions + header.HEADER_BYTES,
            batches.positions + batches.sizes,
            np.frombuffer(self._expanded, np.uint8),
            MAX_EXPANDED_BYTES,
        )
        codec_ends = np.append(np.flatnonzero(np.diff(batches.codecs)) + 1, len(compressed))
        # A first batch with more rows than a table should have is alone in its own.
        with_rows = max(int(np.searchsorted(totals, room, "right")) - 1, 1)
        first = used = 0
        while first < with_rows and used <= _EXPANDED_CHUNK_BYTES:
            last = min(int(codec_ends[np.searchsorted(codec_ends, first, "right")]), with_rows)
            stop = min(used + _GROUP_BYTES, _EXPANDED_CHUNK_BYTES)
            sizes, error = decompressor.expand(int(batches.codecs[first]), payloads, first, last, used, stop)
            self._place(compressed[first : first + len(sizes)], used, np.array(sizes, np.int64))
            first, used = first + len(sizes), used + sum(sizes)
            if error is not None:
                self._refuse(int(compressed[first]), error)
                first += 1
            end = int(compressed[first]) if first < len(compressed) else len(self._kinds)
            self._write(end, others + max(room, int(self._counts[compressed[:first]].sum(dtype=np.int64))))

    def _place(self, batches: npt.NDArray[np.int64], used: int, sizes: npt.NDArray[np.int64]) -> None:
        """Note where the records of batches lie that were decompressed one behind the other."""
        self._payloads[batches] = used + np.cumsum(sizes) - sizes
        self._payload_sizes[batches] = sizes
        counts = self._counts[batches]
        for i in np.flatnonzero(counts > sizes // header.MIN_RECORD_BYTES).tolist():
            expected, found = f"records that fit into {sizes[i]} bytes", f"a count of {counts[i]}"
            self._refuse(int(batches[i]), ExpansionError(expected, found))

    def _refuse(self, batch: int, error: ExpansionError) -> None:
        """Note why a batch's records can't be read."""
        self._kinds[batch], self._faults[batch] = BatchKind.UNDECODABLE, batch_kernels.FAULT_EXPANSION
        self._counts[batch], self._payloads[batch] = 0, -1
        self._reasons[batch] = (error.expected, error.found)

    def _write(self, last: int, rows: int) -> None:
        """Write the rows of the batches before ``last``.

        :param rows: room for so many is made at the first call.
        """
        if self._columns is None:
            self._columns = RowColumns(rows, self._arena)
        engine, address = crc32c_engine(), address_of(self._data)
        record_kernels.decode_batches(
            address,
            address + len(self._data),
            int(self._chunk.positions[0]),
            self._origin,
            self._expanded.address,
            self._expanded.address + self._expanded.size,
            engine.function,
            engine.table,
            self.batches,
            last,
            self._chunk.positions,
            self._chunk.sizes,
            self._kinds,
            self._faults,
            self._counts,
            self._payloads,
            self._payload_sizes,
            address_of(self._columns.addresses),
            self._state,
        )
        self.batches = last

    def table(self) -> pa.Table:
        """Return what has been written."""
        if self._columns is None:
            raise ValueError("expected rows, found none written")
        begin = int(self._chunk.positions[0])
        end = int(self._chunk.positions[self.batches - 1]) + int(self._chunk.sizes[self.batches - 1])
        content = Content(self._data, begin, end, self._origin, self._expanded)
        return table_of(self._columns, self._state, content)

    def damages(self) -> Iterator[Damage]:
        """Yield what was found to be no batch, or one that can't be read."""
        kinds, faults = self._kinds[: self.batches], self._faults[: self.batches]
        damaged = (kinds == BatchKind.UNDECODABLE) | (faults != batch_kernels.FAULT_NONE)
        for i in np.flatnonzero(damaged).tolist():
            at = int(self._chunk.positions[i])
            expected, found = self._reasons.get(i) or explained(self._data, at, int(faults[i]))
            # The CRC is checked before anything else that may be wrong with these.
            as_written = int(faults[i]) in batch_kernels.FAULTS_AS_WRITTEN
            yield Damage(self._origin + at, int(self._chunk.sizes[i]), expected, found, as_written)
