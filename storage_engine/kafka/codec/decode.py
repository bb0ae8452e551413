"""Batches → Arrow tables: decompresses batches, and calls the kernels that write the columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.arrow.memory import Arena, address_of
from storage_engine.core.untrusted import java_text
from storage_engine.crc import crc32c_engine
from storage_engine.kafka.codec import batch_kernels
from storage_engine.kafka.codec import record_kernels as kernels
from storage_engine.kafka.codec.compression import MAX_EXPANDED_BYTES, Decompressor, ExpansionError, Payloads
from storage_engine.kafka.codec.record_batch import BatchChunk, BatchKind, explain_fault, merge_damages
from storage_engine.kafka.codec.record_kernels import ARENA_EXPANDED, RowColumns
from storage_engine.kafka.codec.record_schema import CONTROL_TYPES, FILE_SCHEMA
from storage_engine.kafka.format import batch_headers as header
from storage_engine.model.broker.codec import Damage

_EXPANDED_CHUNK_BYTES = 64 << 20
"""A table ends when its batches have expanded to this many bytes."""
_MAX_EXPANDED_ROWS = 1 << 22
"""Maximum of a table's rows from compressed batches. A larger batch is its table's only compressed batch."""
_GROUP_BYTES: Final = 1 << 20
"""Bytes that are decompressed before their records are read: few enough for the processor's cache."""
_SHARED = {
    "producer_id": kernels.PRODUCER_ID,
    "producer_epoch": kernels.PRODUCER_EPOCH,
    "leader_epoch": kernels.LEADER_EPOCH,
    "base_offset": kernels.BASE_OFFSET,
    "base_timestamp": kernels.BASE_TIMESTAMP,
    "attributes": kernels.ATTRIBUTES,
}
"""Columns that all rows of a batch share."""
_OWN = {
    "last_offset_delta": kernels.LAST_OFFSET_DELTA,
    "max_timestamp": kernels.MAX_TIMESTAMP,
    "base_sequence": kernels.BASE_SEQUENCE,
    "record_count": kernels.RECORD_COUNT,
    "batch_size": kernels.BATCH_SIZE,
    "crc": kernels.CRC,
}
"""Columns that only a batch's own row has, not its records."""


def decode_chunk(
    data: npt.NDArray[np.uint8], origin: int, chunk: BatchChunk, decompressor: Decompressor, arena: Arena
) -> Iterator[tuple[pa.Table, tuple[Damage, ...]]]:
    """Yield the rows of a chunk in the segment's order, in as many tables as their expanded size needs.

    :param origin: position of the segment's first byte.
    :param chunk: the CRCs of its compressed batches are already checked. The other CRCs are checked here.
    :param arena: memory that an earlier table no longer needs.
    """
    rest = chunk
    while len(rest.positions):
        filling = _Filling(data, origin, rest, arena)
        filling.fill(decompressor)
        rest = rest.chosen(slice(filling.batches, None))
        results = [(filling.table(), merge_damages(filling.damages()))]
        # No name keeps a reference to the table or the filling: the next table reuses their memory.
        del filling
        yield results.pop()


class _Filling:
    """One table that is being filled. ``batches`` is the number of batches that are already written."""

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
        self._state = np.zeros(kernels.STATE_SIZE, np.int64)
        self._reasons: dict[int, tuple[str, str]] = {}

    def fill(self, decompressor: Decompressor) -> None:
        """Write rows until the table has no more room for compressed batches."""
        # Kafka doesn't decompress a batch whose header says that it has no records.
        compressed = np.flatnonzero((self._chunk.codecs != 0) & (self._counts != 0))
        batches = self._chunk.chosen(compressed)
        totals = np.concatenate([[0], np.cumsum(batches.counts, dtype=np.int64)])
        room = min(int(totals[-1]), _MAX_EXPANDED_ROWS)
        # The record counts of uncompressed batches are already checked.
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
        # A first batch with more rows than a table should have gets a table of its own.
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
        """Note where decompressed records lie. Refuse batches with an impossible count of records."""
        self._payloads[batches] = used + np.cumsum(sizes) - sizes
        self._payload_sizes[batches] = sizes
        counts = self._counts[batches]
        for i in np.flatnonzero(counts > sizes // header.MIN_RECORD_BYTES).tolist():
            expected, found = f"records that fit into {sizes[i]} bytes", f"a count of {counts[i]}"
            self._refuse(int(batches[i]), ExpansionError(expected, found))

    def _refuse(self, batch: int, error: ExpansionError) -> None:
        """Mark a batch as undecodable, and note why its records can't be read."""
        self._kinds[batch], self._faults[batch] = BatchKind.UNDECODABLE, batch_kernels.FAULT_EXPANSION
        self._counts[batch], self._payloads[batch] = 0, -1
        self._reasons[batch] = (error.expected, error.found)

    def _write(self, last: int, rows: int) -> None:
        """Write the rows of the batches before ``last``. The first call makes room for ``rows`` rows."""
        if self._columns is None:
            self._columns = RowColumns(rows, self._arena)
        engine, address = crc32c_engine(), address_of(self._data)
        kernels.decode_batches(
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
        if self._columns is None:
            raise ValueError("expected rows, found none written")
        begin = int(self._chunk.positions[0])
        end = int(self._chunk.positions[self.batches - 1]) + int(self._chunk.sizes[self.batches - 1])
        content = Content(self._data, begin, end, self._origin, self._expanded)
        return table_of(self._columns, self._state, content)

    def damages(self) -> Iterator[Damage]:
        """Yield the damages: ranges that are no batch, and batches that can't be read."""
        kinds, faults = self._kinds[: self.batches], self._faults[: self.batches]
        damaged = (kinds == BatchKind.UNDECODABLE) | (faults != batch_kernels.FAULT_NONE)
        for i in np.flatnonzero(damaged).tolist():
            at = int(self._chunk.positions[i])
            expected, found = self._reasons.get(i) or explain_fault(self._data, at, int(faults[i]))
            # These faults are found only after the CRC was right.
            as_written = int(faults[i]) in batch_kernels.FAULTS_AS_WRITTEN
            yield Damage(self._origin + at, int(self._chunk.sizes[i]), expected, found, as_written)


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The memory that contains keys, values and raw bytes.

    :param begin: position where the table's part of the segment begins.
    :param origin: position of the segment's first byte.
    """

    segment: npt.NDArray[np.uint8]
    begin: int
    end: int
    origin: int
    expanded: pa.Buffer

    @property
    def buffers(self) -> list[pa.Buffer]:
        return [pa.py_buffer(self.segment[self.begin : self.end].data), self.expanded]


def table_of(memory: RowColumns, state: npt.NDArray[np.int64], content: Content) -> pa.Table:
    """Return a table of the rows that the kernel has written to ``memory``. ``state`` has their counts."""
    rows = int(state[kernels.ROWS])
    buffers = content.buffers

    def fixed(name: str, column: int, valid: int | None) -> pa.Array[Any]:
        kind = FILE_SCHEMA.field(name).type
        bits = None if valid is None else memory.bits(valid, rows)
        values = memory.buffer(column, rows * kind.bit_width // 8)
        return pa.Array.from_buffers(kind, rows, [bits, values])

    def views(column: int, valid: int) -> pa.Array[Any]:
        parts: Any = [memory.bits(valid, rows), memory.buffer(column, rows * kernels.VIEW_BYTES), *buffers]
        return pa.Array.from_buffers(pa.binary_view(), rows, parts)

    in_batch = kernels.IN_BATCH if state[kernels.OTHERS] else None
    headers, spoiled = _headers(memory, state)
    if spoiled is not None:
        address = address_of(content.segment)
        kernels.view_whole(
            address,
            address + len(content.segment),
            content.begin,
            content.origin,
            spoiled,
            address_of(memory.addresses),
        )
    has_raw = spoiled is not None or state[kernels.RAWS] > 0
    if has_raw:
        kernels.clear_views(rows, address_of(memory.addresses))
    transactional = [
        None if in_batch is None else memory.bits(in_batch, rows),
        memory.bits(kernels.IS_TRANSACTIONAL, rows),
    ]
    columns: dict[str, pa.Array[Any]] = {
        "physical_offset": fixed("physical_offset", kernels.PHYSICAL_OFFSET, None),
        "size": fixed("size", kernels.SIZE, None),
        "kind": _kinds(memory, rows),
        "offset": fixed("offset", kernels.OFFSET, None if in_batch is None else kernels.HAS_OFFSET),
        "timestamp": fixed("timestamp", kernels.TIMESTAMP, kernels.HAS_TIMESTAMP),
        "timestamp_delta": fixed("timestamp_delta", kernels.TIMESTAMP_DELTA, kernels.HAS_DELTA)
        if state[kernels.DELTAS]
        else _nulls("timestamp_delta", rows),
        "record_attributes": fixed("record_attributes", kernels.RECORD_ATTRIBUTES, kernels.IS_RECORD),
        "control": _control(memory, rows) if state[kernels.MARKERS] else _nulls("control", rows),
        "key": views(kernels.KEY, kernels.HAS_KEY),
        "value": views(kernels.VALUE, kernels.HAS_VALUE),
        "headers": headers,
        "transactional": pa.Array.from_buffers(pa.bool_(), rows, transactional),
        "raw": views(kernels.RAW, kernels.HAS_RAW) if has_raw else _nulls("raw", rows),
    }
    columns |= {name: fixed(name, column, in_batch) for name, column in _SHARED.items()}
    columns |= {name: fixed(name, column, kernels.IS_OWN) for name, column in _OWN.items()}
    return pa.Table.from_arrays([columns[name] for name in FILE_SCHEMA.names], schema=FILE_SCHEMA)


def _kinds(memory: RowColumns, rows: int) -> pa.Array[Any]:
    ends = memory.array(kernels.KIND_END, rows + 1, np.int32)
    texts = memory.buffer(kernels.KIND_TEXT, int(ends[rows]))
    offsets = memory.buffer(kernels.KIND_END, 4 * (rows + 1))
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, texts])


def _control(memory: RowColumns, rows: int) -> pa.Array[Any]:
    types = memory.array(kernels.CONTROL_TYPE, rows, np.int8)
    capped = np.minimum(types, len(CONTROL_TYPES) - 1)
    bits = np.packbits(types >= 0, bitorder="little")
    numbers = pa.Array.from_buffers(pa.int8(), rows, [pa.py_buffer(bits.data), pa.py_buffer(capped.data)])
    words: pa.Array[Any] = cast("Any", CONTROL_TYPES).take(numbers)
    return words


def _nulls(name: str, rows: int) -> pa.Array[Any]:
    return without_values(FILE_SCHEMA.field(name).type, rows)


def without_values(kind: pa.DataType, rows: int) -> pa.Array[Any]:
    """Return a column without values. All such columns share the same memory, which is all zero."""
    zeros = kernels.zeros(kernels.VIEW_BYTES * (rows + 1))
    return pa.Array.from_buffers(kind, rows, [zeros] * kind.num_buffers, null_count=rows)


def _headers(
    memory: RowColumns, state: npt.NDArray[np.int64]
) -> tuple[pa.Array[Any], npt.NDArray[np.int64] | None]:
    """Return the records' headers, and the rows with a name that isn't UTF-8; None without such rows."""
    rows, headers = int(state[kernels.ROWS]), int(state[kernels.HEADERS])
    kind = FILE_SCHEMA.field("headers").type
    starts: Any = memory.buffer(kernels.HEADER_START, 4 * (rows + 1))
    valid: Any = memory.bits(kernels.IS_RECORD, rows)
    spoiled = None
    if not headers:
        entries: Any = kind.value_type
        return pa.Array.from_buffers(kind, rows, [valid, starts], children=[pa.nulls(0, entries)]), None
    names, values = _header_texts(memory, state)
    try:
        texts = names.cast(pa.string())
    except pa.ArrowInvalid:
        # Kafka's clients show such a name with U+FFFD; the row's raw bytes contain the name itself.
        coded = names.dictionary_encode()
        words = [java_text(name) for name in coded.dictionary.to_pylist()]
        texts = pa.array(words, pa.string()).take(coded.indices)
        bad = pc.not_equal(texts.cast(pa.binary()), names).to_numpy(zero_copy_only=False)
        places = memory.array(kernels.HEADER_START, rows + 1, np.int32)
        spoiled = np.unique(np.searchsorted(places, np.flatnonzero(bad), side="right") - 1)
    entries = pa.StructArray.from_arrays([texts, values], fields=list(kind.value_type))
    return pa.Array.from_buffers(kind, rows, [valid, starts], children=[entries]), spoiled


def _header_texts(memory: RowColumns, state: npt.NDArray[np.int64]) -> tuple[Any, pa.Array[Any]]:
    """Return the names and values of all headers, as bytes.

    :raises ValueError: another process has changed the segment meanwhile.
    """
    rows, headers = int(state[kernels.ROWS]), int(state[kernels.HEADERS])
    name_bytes, value_bytes = (
        int(state[place]) for place in (kernels.NAME_BYTES, kernels.HEADER_VALUE_BYTES)
    )
    name_ends, value_ends = np.empty(headers + 1, np.int32), np.empty(headers + 1, np.int32)
    names, values = np.empty(name_bytes, np.uint8), np.empty(value_bytes, np.uint8)
    has_value = np.empty(headers, np.uint8)
    same = kernels.copy_headers(
        rows,
        address_of(memory.addresses),
        name_ends,
        address_of(names),
        name_bytes,
        value_ends,
        address_of(values),
        value_bytes,
        has_value,
    )
    if not same:
        raise ValueError(
            "expected a segment that no process writes to, found that its headers have changed meanwhile"
        )
    bits = None if has_value.all() else pa.py_buffer(np.packbits(has_value, bitorder="little").data)
    buffers = [bits, pa.py_buffer(value_ends.data), pa.py_buffer(values.data)]
    of_names = [None, pa.py_buffer(name_ends.data), pa.py_buffer(names.data)]
    return (
        pa.Array.from_buffers(pa.binary(), headers, of_names),
        pa.Array.from_buffers(pa.binary(), headers, buffers),
    )
