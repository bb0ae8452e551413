"""A chunk of batches → Arrow tables: decompresses, has the kernels fill the columns, wraps them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.arrow_memory import address_of
from storage_engine.kafka import batch_header as header
from storage_engine.kafka import batch_kernels, record_kernels
from storage_engine.kafka.compression import MAX_EXPANDED_BYTES, Decompressor, ExpansionError
from storage_engine.kafka.record_batch import BatchChunk, BatchKind, Longs, explained, field, merged
from storage_engine.kafka.record_schema import BATCH_COLUMNS, CONTROL_TYPES, FILE_SCHEMA, KINDS
from storage_engine.model.codec import Damage

_TIMESTAMP = FILE_SCHEMA.field("timestamp").type
_EXPANDED_CHUNK_BYTES = 64 << 20
"""A chunk ends once its batches have expanded to so much."""


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """Batches that become one table.

    :param payloads: where a batch's records begin among the expanded ones; -1: they lie in the segment.
    :param faults: of the walk, and of what can't be decompressed.
    """

    positions: Longs
    sizes: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    faults: npt.NDArray[np.uint8]
    payloads: Longs
    payload_sizes: Longs
    counts: Longs
    expanded: npt.NDArray[np.uint8]


def decode_chunk(
    data: npt.NDArray[np.uint8], origin: int, chunk: BatchChunk, decompressor: Decompressor
) -> Iterator[tuple[pa.Table, tuple[Damage, ...]]]:
    """Yield the rows of a chunk in the segment's order, in as many tables as their expanded size asks for.

    :param origin: position of the segment's first byte.
    """
    first = 0
    while first < len(chunk.positions):
        span, reasons = _expand(data, chunk, first, decompressor)
        first += len(span.positions)
        table = _decode_span(data, origin, span)
        yield table, merged(_damages(data, origin, span, reasons))


def _expand(
    data: npt.NDArray[np.uint8], chunk: BatchChunk, first: int, decompressor: Decompressor
) -> tuple[_Span, dict[int, tuple[str, str]]]:
    """Decompress the batches of a chunk from ``first`` on, until memory for them is full.

    :return: the batches, and why some of them can't be decompressed, by their place.
    """
    kinds, faults = chunk.kinds[first:].copy(), chunk.faults[first:].copy()
    positions, sizes = chunk.positions[first:], chunk.sizes[first:]
    is_batch = kinds == BatchKind.BATCH
    at = positions[is_batch]
    counts, payload_sizes = np.zeros(len(kinds), np.int64), np.zeros(len(kinds), np.int64)
    codecs = np.zeros(len(kinds), np.int64)
    counts[is_batch] = field(data, at, header.RECORD_COUNT_AT, 4)
    codecs[is_batch] = field(data, at, header.ATTRIBUTES_AT, 2) & header.CODEC_MASK
    payload_sizes[is_batch] = sizes[is_batch] - header.HEADER_BYTES
    payloads = np.full(len(kinds), -1, np.int64)
    compressed = np.flatnonzero(codecs).tolist()
    expanded = np.empty(_EXPANDED_CHUNK_BYTES + MAX_EXPANDED_BYTES if compressed else 0, np.uint8)
    out, segment = expanded.data, data.data
    used, end = 0, len(kinds)
    reasons: dict[int, tuple[str, str]] = {}
    for i in compressed:
        if used > _EXPANDED_CHUNK_BYTES:
            end = i
            break
        begin = int(positions[i]) + header.HEADER_BYTES
        payload = segment[begin : begin + int(payload_sizes[i])]
        try:
            size = decompressor.decompress(int(codecs[i]), payload, out[used : used + MAX_EXPANDED_BYTES])
            if counts[i] > size // header.MIN_RECORD_BYTES:
                raise ExpansionError(f"records that fit into {size} bytes", f"a count of {counts[i]}")
        except ExpansionError as error:
            kinds[i], faults[i] = BatchKind.UNDECODABLE, batch_kernels.FAULT_EXPANSION
            counts[i] = payload_sizes[i] = 0
            reasons[i] = (error.expected, error.found)
            continue
        payloads[i], payload_sizes[i] = used, size
        used += size
    span = _Span(
        positions[:end],
        sizes[:end],
        kinds[:end],
        faults[:end],
        payloads[:end],
        payload_sizes[:end],
        counts[:end],
        expanded[:used],
    )
    return span, reasons


class _Rows:
    """Memory that the kernel fills, a value a row or a header; only what is written becomes resident."""

    def __init__(self, rows: int, payload_bytes: int) -> None:
        headers = payload_bytes // 2 + 1
        self.positions = np.empty(rows, np.int64)
        self.sizes = np.empty(rows, np.int32)
        self.kinds = np.empty(rows, np.uint8)
        self.batches = np.empty(rows, np.int32)
        self.offsets = np.empty(rows, np.int64)
        self.timestamps = np.empty(rows, np.int64)
        self.has_timestamp = np.empty(rows, np.uint8)
        self.deltas = np.empty(rows, np.int64)
        self.has_delta = np.empty(rows, np.uint8)
        self.attributes = np.empty(rows, np.int32)
        self.control_types = np.empty(rows, np.int32)
        self.key_views = np.empty(2 * rows, np.int64)
        self.has_key = np.empty(rows, np.uint8)
        self.value_views = np.empty(2 * rows, np.int64)
        self.has_value = np.empty(rows, np.uint8)
        self.raw_views = np.empty(2 * rows, np.int64)
        self.has_raw = np.empty(rows, np.uint8)
        self.header_starts = np.empty(rows + 1, np.int32)
        self.name_offsets = np.empty(headers + 1, np.int32)
        self.names = np.empty(payload_bytes, np.uint8)
        self.header_value_offsets = np.empty(headers + 1, np.int32)
        self.header_values = np.empty(payload_bytes, np.uint8)
        self.has_header_value = np.empty(headers, np.uint8)


def _decode_span(data: npt.NDArray[np.uint8], origin: int, span: _Span) -> pa.Table:
    found = _Rows(int(span.counts.sum()) + len(span.counts), int(span.payload_sizes.sum()))
    begin = int(span.positions[0])
    end = int(span.positions[-1]) + int(span.sizes[-1])
    rows, headers = record_kernels.decode_batches(
        address_of(data),
        begin,
        origin,
        address_of(span.expanded),
        span.positions,
        span.sizes,
        span.kinds,
        span.payloads,
        span.payload_sizes,
        span.faults,
        found.positions,
        found.sizes,
        found.kinds,
        found.batches,
        found.offsets,
        found.timestamps,
        found.has_timestamp,
        found.deltas,
        found.has_delta,
        found.attributes,
        found.control_types,
        address_of(found.key_views),
        found.has_key,
        address_of(found.value_views),
        found.has_value,
        address_of(found.raw_views),
        found.has_raw,
        found.header_starts,
        found.name_offsets,
        address_of(found.names),
        found.header_value_offsets,
        address_of(found.header_values),
        found.has_header_value,
    )
    content = [pa.py_buffer(data[begin:end].data), pa.py_buffer(span.expanded.data)]
    columns = _batch_columns(data, span, found, rows)
    kinds = found.kinds[:rows]
    is_record = kinds >= record_kernels.ROW_MESSAGE
    columns |= {
        "physical_offset": pa.array(found.positions[:rows]),
        "size": pa.array(found.sizes[:rows]),
        "kind": pa.DictionaryArray.from_arrays(kinds.astype(np.int8), KINDS).cast(pa.string()),
        "offset": _fixed(found.offsets[:rows], kinds != batch_kernels.UNDECODABLE, pa.int64()),
        "timestamp": _fixed(found.timestamps[:rows], found.has_timestamp[:rows], _TIMESTAMP),
        "timestamp_delta": _fixed(found.deltas[:rows], found.has_delta[:rows], pa.int64()),
        "record_attributes": _fixed(found.attributes[:rows], is_record, pa.int32()),
        "control": _control(found.control_types[:rows]),
        "key": _views(found.key_views, found.has_key[:rows], content),
        "value": _views(found.value_views, found.has_value[:rows], content),
    }
    headers_of, spoiled = _headers(found, rows, headers, is_record)
    has_raw = found.has_raw[:rows]
    if spoiled is not None:
        record_kernels.view_whole(
            address_of(data), begin, origin, spoiled, found.positions, found.sizes, found.raw_views, has_raw
        )
    columns |= {"headers": headers_of, "raw": _views(found.raw_views, has_raw, content)}
    return pa.Table.from_arrays([columns[name] for name in FILE_SCHEMA.names], schema=FILE_SCHEMA)


def _batch_columns(
    data: npt.NDArray[np.uint8], span: _Span, found: _Rows, rows: int
) -> dict[str, pa.Array[Any]]:
    """Return what the headers of batches say: for all of their rows, or for the batch's own."""
    kinds, batches = found.kinds[:rows], found.batches[:rows].astype(np.intp)
    in_batch = (kinds == batch_kernels.BATCH) | (kinds >= record_kernels.ROW_MESSAGE)
    readable = np.flatnonzero(span.kinds == BatchKind.BATCH)
    at = span.positions[readable]

    def of_all(place: int, width: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
        values = np.zeros(len(span.kinds), dtype)
        values[readable] = field(data, at, place, width)
        return values

    attributes = of_all(header.ATTRIBUTES_AT, 2, np.int32)
    columns: dict[str, pa.Array[Any]] = {
        "transactional": _fixed((attributes & header.TRANSACTIONAL != 0)[batches], in_batch, pa.bool_()),
        "attributes": _fixed(attributes[batches], in_batch, pa.int32()),
    }
    for name, (place, width) in {
        "producer_id": (header.PRODUCER_ID_AT, 8),
        "producer_epoch": (header.PRODUCER_EPOCH_AT, 2),
        "leader_epoch": (header.LEADER_EPOCH_AT, 4),
        "base_offset": (header.BASE_OFFSET_AT, 8),
        "base_timestamp": (header.BASE_TIMESTAMP_AT, 8),
    }.items():
        values = of_all(place, width, np.int64 if width == 8 else np.int32)
        columns[name] = _fixed(values[batches], in_batch, FILE_SCHEMA.field(name).type)
    is_own = kinds == batch_kernels.BATCH
    own = batches[is_own]
    for name, values in zip(
        BATCH_COLUMNS,
        (
            of_all(header.LAST_OFFSET_DELTA_AT, 4, np.int32),
            of_all(header.MAX_TIMESTAMP_AT, 8, np.int64),
            of_all(header.BASE_SEQUENCE_AT, 4, np.int32),
            of_all(header.RECORD_COUNT_AT, 4, np.int32),
            span.sizes,
            of_all(header.CRC_AT, 4, np.int32),
        ),
        strict=True,
    ):
        spread = np.zeros(rows, values.dtype)
        spread[is_own] = values[own]
        columns[name] = _fixed(spread, is_own, FILE_SCHEMA.field(name).type)
    return columns


def _fixed(values: npt.NDArray[Any], valid: npt.NDArray[Any], kind: pa.DataType) -> pa.Array[Any]:
    bits = _bitmap(values) if pa.types.is_boolean(kind) else pa.py_buffer(np.ascontiguousarray(values).data)
    return pa.Array.from_buffers(kind, len(values), [_validity(valid), bits])


def _views(
    views: npt.NDArray[np.int64], valid: npt.NDArray[np.uint8], content: list[pa.Buffer]
) -> pa.Array[Any]:
    if not valid.any():
        return pa.nulls(len(valid), pa.binary_view())
    # What no kernel has written must not look like a view.
    pairs = views[: 2 * len(valid)].reshape(-1, 2)
    pairs[valid == 0] = 0
    buffers = [_validity(valid), pa.py_buffer(pairs.data), *content]
    return pa.Array.from_buffers(pa.binary_view(), len(valid), cast("Any", buffers))


def _control(types: npt.NDArray[np.int32]) -> pa.Array[Any]:
    if types.max(initial=-1) < 0:
        return pa.nulls(len(types), pa.string())
    known = np.minimum(types, len(CONTROL_TYPES) - 1)
    words: pa.Array[Any] = cast("Any", CONTROL_TYPES).take(pa.array(known, mask=types < 0))
    return words


def _headers(
    found: _Rows, rows: int, headers: int, is_record: npt.NDArray[np.bool_]
) -> tuple[pa.Array[Any], npt.NDArray[np.int64] | None]:
    """Return the records' headers, and the rows that have a name that is no UTF-8; None: no row has one."""
    kind = FILE_SCHEMA.field("headers").type
    names: Any = _texts(found.names, found.name_offsets, headers, pa.binary(), None)
    values = _texts(
        found.header_values,
        found.header_value_offsets,
        headers,
        pa.binary(),
        found.has_header_value[:headers],
    )
    starts, spoiled = found.header_starts[: rows + 1], None
    valid = is_record
    try:
        texts = names.cast(pa.string())
    except pa.ArrowInvalid:
        bad = _not_utf8(names)
        texts = pc.if_else(cast("Any", pa.array(bad)), pa.scalar(b"", pa.binary()), names).cast(pa.string())
        spoiled = np.unique(np.searchsorted(starts, np.flatnonzero(bad), side="right") - 1)
        valid = is_record.copy()
        valid[spoiled] = False
    entries = pa.StructArray.from_arrays([texts, values], fields=list(kind.value_type))
    buffers = [_validity(valid), pa.py_buffer(starts.data)]
    return pa.Array.from_buffers(kind, rows, cast("Any", buffers), children=[entries]), spoiled


def _not_utf8(names: Any) -> npt.NDArray[np.bool_]:
    """Return which names are no UTF-8; looks at each distinct one once."""
    coded = names.dictionary_encode()
    bad = np.array([not _is_utf8(name) for name in coded.dictionary.to_pylist()], np.bool_)
    flags: npt.NDArray[np.bool_] = bad[coded.indices.to_numpy()]
    return flags


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _texts(
    content: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int32],
    count: int,
    kind: pa.DataType,
    valid: npt.NDArray[np.uint8] | None,
) -> pa.Array[Any]:
    used = int(offsets[count])
    buffers = [
        None if valid is None else _validity(valid),
        pa.py_buffer(offsets[: count + 1].data),
        pa.py_buffer(content[:used].data),
    ]
    return pa.Array.from_buffers(kind, count, buffers)


def _validity(flags: npt.NDArray[Any]) -> pa.Buffer | None:
    return None if flags.all() else _bitmap(flags)


def _bitmap(flags: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little").data)


def _damages(
    data: npt.NDArray[np.uint8], origin: int, span: _Span, reasons: dict[int, tuple[str, str]]
) -> Iterator[Damage]:
    damaged = (span.kinds == BatchKind.UNDECODABLE) | (span.faults != batch_kernels.FAULT_NONE)
    for i in np.flatnonzero(damaged).tolist():
        at = int(span.positions[i])
        expected, found = reasons.get(i) or explained(data, at, int(span.faults[i]))
        yield Damage(origin + at, int(span.sizes[i]), expected, found)
