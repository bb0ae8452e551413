"""A chunk of frames → an Arrow table: allocates the columns, has the kernels fill them, wraps them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.rocketmq import decode_kernels as columns
from storage_engine.rocketmq.commitlog import FrameChunk, QueueNames, address_of
from storage_engine.rocketmq.frame import MAGIC_BLANK
from storage_engine.rocketmq.kernels import cluster
from storage_engine.rocketmq.message_schema import KINDS, SCHEMA

_IPV4_TEXT_BYTES = 15
_IPV6_TEXT_BYTES = 39
_SEED = np.uint64(secrets.randbits(64))
_BLANK_MAGIC = np.uint32(MAGIC_BLANK).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class QueueRanking:
    """The queues of a walk in the order in which their rows are written.

    :param ranks: by code, place in the order of (topic, queue id); topics that are no UTF-8 come last.
    :param topic_valid: by code, 1 where the topic is UTF-8.
    :param generation: of the queues that were ranked.
    """

    ranks: npt.NDArray[np.int32]
    topic_valid: npt.NDArray[np.uint8]
    generation: tuple[int, int]


def rank_queues(data: npt.NDArray[np.uint8], queues: QueueNames) -> QueueRanking:
    """Sort a walk's queues by (topic, queue id), topics by their bytes."""
    count = len(queues.queue_ids)
    valid = np.empty(count, np.uint8)
    columns.check_utf8(address_of(data), queues.topic_positions, queues.topic_lengths, count, valid)
    topics = [
        data[at : at + size].tobytes()
        for at, size in zip(queues.topic_positions.tolist(), queues.topic_lengths.tolist(), strict=True)
    ]
    table = pa.table(
        {"invalid": 1 - valid, "topic": pa.array(topics, pa.binary()), "queue_id": queues.queue_ids}
    )
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names]).to_numpy()
    ranks = np.empty(count, np.int32)
    ranks[order] = np.arange(count, dtype=np.int32)
    return QueueRanking(ranks, valid, queues.generation)


class _Text:
    """Memory for a text column's bytes; only the pages that are written to become resident."""

    __slots__ = ("address", "buffer")

    def __init__(self, capacity: int) -> None:
        self.buffer = pa.allocate_buffer(capacity + columns.SLACK_BYTES)
        self.address = self.buffer.address


def decode_chunk(
    data: npt.NDArray[np.uint8], base_offset: int, chunk: FrameChunk, ranking: QueueRanking
) -> pa.Table:
    """The rows of a chunk, sorted by (topic, queue id, physical offset)."""
    rows = len(chunk.positions)
    order = np.empty(rows, np.int32)
    queues = len(ranking.ranks)
    messages = cluster(rows, chunk.codes, ranking.ranks, queues, np.empty(queues + 1, np.int64), order)

    ints32_buffer, ints32 = _matrix(np.int32, columns.INT32_COLUMNS, rows)
    ints64_buffer, ints64 = _matrix(np.int64, columns.INT64_COLUMNS, rows)
    offsets_buffer, offsets = _matrix(np.int32, columns.TEXT_COLUMNS, rows + 1)
    flags = np.empty((columns.FLAG_COLUMNS, rows), np.uint8)
    texts = [_Text(size) for size in _text_capacities(chunk, rows)]
    pairs_capacity = (chunk.property_bytes + rows) // 4 + 2
    pair_offsets_buffer, pair_offsets = _matrix(np.int32, 1, rows + 1)
    name_offsets_buffer, name_offsets = _matrix(np.int32, 1, pairs_capacity)
    value_offsets_buffer, value_offsets = _matrix(np.int32, 1, pairs_capacity)

    pairs = columns.decode_messages(
        address_of(data),
        len(data),
        messages,
        order,
        chunk.positions,
        chunk.codes,
        ranking.topic_valid,
        chunk.queues.topic_lengths,
        _SEED,
        np.zeros(columns.NAME_TABLE_SLOTS, np.int64),
        ints32,
        ints64,
        flags,
        offsets,
        np.array([text.address for text in texts], np.int64),
        pair_offsets[0],
        name_offsets[0],
        value_offsets[0],
    )
    if messages < rows:
        columns.decode_others(
            base_offset,
            messages,
            rows,
            order,
            chunk.positions,
            chunk.sizes,
            ints32,
            ints64,
            flags,
            offsets,
            pair_offsets[0],
        )
    typed = None if messages == rows else _bitmap(np.arange(rows) < messages)
    row_magic = None if messages == rows else _mark_blank_headers(chunk, order, ints32, messages)

    def int32(column: int, validity: pa.Buffer | None = typed) -> pa.Array:
        return _fixed(pa.int32(), rows, validity, ints32_buffer, column)

    def int64(column: int, validity: pa.Buffer | None = typed) -> pa.Array:
        return _fixed(pa.int64(), rows, validity, ints64_buffer, column)

    def timestamp(column: int, flag: int) -> pa.Array:
        return _fixed(
            SCHEMA.field("born_timestamp").type, rows, _validity(flags[flag]), ints64_buffer, column
        )

    def text(column: int, validity: pa.Buffer | None, kind: pa.DataType | None = None) -> pa.Array:
        begin = column * (rows + 1) * 4
        return pa.Array.from_buffers(
            kind or pa.string(),
            rows,
            [
                validity,
                offsets_buffer.slice(begin, (rows + 1) * 4),
                texts[column].buffer.slice(0, int(offsets[column, rows])),
            ],
        )

    has_properties = _validity(flags[columns.HAS_PROPERTIES])
    arrays = {
        "physical_offset": int64(columns.PHYSICAL_OFFSET, None),
        "size": int32(columns.SIZE, None),
        "kind": _kinds(chunk, order, messages),
        "magic": int32(columns.MAGIC, row_magic),
        "topic": text(columns.TOPIC, _validity(flags[columns.HAS_TOPIC])),
        "queue_id": int32(columns.QUEUE_ID),
        "queue_offset": int64(columns.QUEUE_OFFSET),
        "flag": int32(columns.FLAG),
        "sys_flag": int32(columns.SYS_FLAG),
        "body_crc": int32(columns.BODY_CRC),
        "born_timestamp": timestamp(columns.BORN_TIMESTAMP, columns.HAS_BORN_TIMESTAMP),
        "store_timestamp": timestamp(columns.STORE_TIMESTAMP, columns.HAS_STORE_TIMESTAMP),
        "born_host": text(columns.BORN_HOST, typed),
        "born_port": int32(columns.BORN_PORT),
        "store_host": text(columns.STORE_HOST, typed),
        "store_port": int32(columns.STORE_PORT),
        "reconsume_times": int32(columns.RECONSUME_TIMES),
        "prepared_transaction_offset": int64(columns.PREPARED_TRANSACTION_OFFSET),
        "keys": text(columns.KEYS, _validity(flags[columns.HAS_KEYS])),
        "tags": text(columns.TAGS, _validity(flags[columns.HAS_TAGS])),
        "unique_key": text(columns.UNIQUE_KEY, _validity(flags[columns.HAS_UNIQUE_KEY])),
        "properties": _map(
            rows,
            has_properties,
            pair_offsets_buffer,
            _pairs_text(pairs, name_offsets_buffer, name_offsets[0], texts[columns.NAMES]),
            _pairs_text(pairs, value_offsets_buffer, value_offsets[0], texts[columns.VALUES]),
        ),
        "properties_terminated": pa.Array.from_buffers(
            pa.bool_(), rows, [has_properties, _bitmap(flags[columns.TERMINATED])]
        ),
        "body": text(columns.BODY, typed, pa.binary()),
        "raw": _raw(data, base_offset, rows, ints64, ints32, flags),
    }
    return pa.Table.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)


def _text_capacities(chunk: FrameChunk, rows: int) -> list[int]:
    """Upper bounds, in the order of the kernel's text addresses."""
    extra = _IPV6_TEXT_BYTES - _IPV4_TEXT_BYTES
    return [
        chunk.topic_bytes,
        rows * _IPV4_TEXT_BYTES + chunk.born_ipv6_rows * extra,
        rows * _IPV4_TEXT_BYTES + chunk.store_ipv6_rows * extra,
        chunk.property_bytes,
        chunk.property_bytes,
        chunk.property_bytes,
        chunk.body_bytes,
        chunk.property_bytes,
        chunk.property_bytes,
    ]


def _matrix(
    dtype: type[np.generic], columns_count: int, rows: int
) -> tuple[pa.Buffer, npt.NDArray[np.generic]]:
    """Uninitialised memory from Arrow's pool, which keeps it for the next chunk."""
    buffer = pa.allocate_buffer(columns_count * rows * np.dtype(dtype).itemsize)
    return buffer, np.frombuffer(buffer, dtype).reshape(columns_count, rows)


def _bitmap(flags: npt.NDArray[np.generic]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _validity(flags: npt.NDArray[np.uint8]) -> pa.Buffer | None:
    return None if flags.all() else _bitmap(flags)


def _fixed(
    kind: pa.DataType, rows: int, validity: pa.Buffer | None, matrix: pa.Buffer, column: int
) -> pa.Array:
    width = kind.bit_width // 8
    return pa.Array.from_buffers(kind, rows, [validity, matrix.slice(column * rows * width, rows * width)])


def _kinds(chunk: FrameChunk, order: npt.NDArray[np.int32], messages: int) -> pa.Array:
    kinds = np.zeros(len(order), np.int8)
    kinds[messages:] = chunk.kinds[order[messages:]]
    return pa.DictionaryArray.from_arrays(pa.array(kinds), KINDS).cast(pa.string())


def _mark_blank_headers(
    chunk: FrameChunk, order: npt.NDArray[np.int32], ints32: npt.NDArray[np.generic], messages: int
) -> pa.Buffer:
    """Give the row that begins a blank its magic; returns the magic column's validity."""
    others = order[messages:]
    header = chunk.is_blank_header[others]
    ints32[columns.MAGIC, messages:][header] = _BLANK_MAGIC
    return _bitmap(np.concatenate([np.ones(messages, bool), header]))


def _pairs_text(pairs: int, buffer: pa.Buffer, offsets: npt.NDArray[np.generic], text: _Text) -> pa.Array:
    return pa.Array.from_buffers(
        pa.string(),
        pairs,
        [None, buffer.slice(0, (pairs + 1) * 4), text.buffer.slice(0, int(offsets[pairs]))],
    )


def _map(
    rows: int, validity: pa.Buffer | None, offsets: pa.Buffer, names: pa.Array, values: pa.Array
) -> pa.Array:
    kind = SCHEMA.field("properties").type
    entries = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, rows, [validity, offsets], children=[entries])


def _raw(
    data: npt.NDArray[np.uint8],
    base_offset: int,
    rows: int,
    ints64: npt.NDArray[np.generic],
    ints32: npt.NDArray[np.generic],
    flags: npt.NDArray[np.uint8],
) -> pa.Array:
    needed = flags[columns.NEEDS_RAW]
    if not needed.any():
        return pa.nulls(rows, pa.binary())
    offsets = np.empty(rows + 1, np.int32)
    raw = _Text(int(ints32[columns.SIZE].sum(where=needed.astype(bool), dtype=np.int64)))
    columns.copy_raw(address_of(data), base_offset, ints64, ints32, flags, rows, offsets, raw.address)
    return pa.Array.from_buffers(
        pa.binary(), rows, [_bitmap(needed), pa.py_buffer(offsets), raw.buffer.slice(0, int(offsets[rows]))]
    )
