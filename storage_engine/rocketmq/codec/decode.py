"""Decoding of a chunk of frames to Arrow tables. Kernels fill the columns, whose memory is allocated here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.arrow.memory import Arena, address_of
from storage_engine.rocketmq.codec import decode_kernels as kernels
from storage_engine.rocketmq.codec.commitlog import FrameChunk, FrameKind, QueueNames
from storage_engine.rocketmq.codec.frame_kernels import cluster
from storage_engine.rocketmq.codec.message_schema import KINDS, PAIR_COLUMNS, SCHEMA

_IPV4_TEXT_BYTES = 15
_IPV6_TEXT_BYTES = 39

_INT_COLUMNS = {
    "magic": kernels.MAGIC,
    "queue_id": kernels.QUEUE_ID,
    "queue_offset": kernels.QUEUE_OFFSET,
    "flag": kernels.FLAG,
    "sys_flag": kernels.SYS_FLAG,
    "body_crc": kernels.BODY_CRC,
    "born_port": kernels.BORN_PORT,
    "store_port": kernels.STORE_PORT,
    "reconsume_times": kernels.RECONSUME_TIMES,
    "prepared_transaction_offset": kernels.PREPARED_TRANSACTION_OFFSET,
}
"""Columns that every message has."""

_TIMESTAMP_COLUMNS = {
    "born_timestamp": (kernels.BORN_TIMESTAMP, kernels.HAS_BORN_TIMESTAMP),
    "store_timestamp": (kernels.STORE_TIMESTAMP, kernels.HAS_STORE_TIMESTAMP),
}

_TEXT_COLUMNS = {
    "topic": (kernels.TOPIC, kernels.TOPIC_OFFSETS, kernels.HAS_TOPIC),
    "born_host": (kernels.BORN_HOST, kernels.BORN_HOST_OFFSETS, None),
    "store_host": (kernels.STORE_HOST, kernels.STORE_HOST_OFFSETS, None),
    "keys": (kernels.KEYS, kernels.KEYS_OFFSETS, kernels.HAS_KEYS),
    "tags": (kernels.TAGS, kernels.TAGS_OFFSETS, kernels.HAS_TAGS),
    "unique_key": (kernels.UNIQUE_KEY, kernels.UNIQUE_KEY_OFFSETS, kernels.HAS_UNIQUE_KEY),
    "properties_text": (kernels.PROPERTIES, kernels.PROPERTIES_OFFSETS, kernels.HAS_PROPERTIES),
}
"""The kernels' columns of each text: its bytes, its offsets, and flags whether a row has the text. None in
place of the flags means that every row has the text.
"""


@dataclass(frozen=True, slots=True, eq=False)
class QueueRanking:
    """The order of a chunk's queues. The index is a queue's code.

    :param ranks: the queue's place, sorted by topic and queue id; topics that are no UTF-8 come last.
    :param topic_valid: 1 if the topic is UTF-8, else 0.
    """

    ranks: npt.NDArray[np.int32]
    topic_valid: npt.NDArray[np.uint8]


def rank_queues(data: npt.NDArray[np.uint8], queues: QueueNames) -> QueueRanking:
    """Sort a chunk's queues by topic and queue id, topics by their bytes."""
    count = len(queues.queue_ids)
    valid = np.empty(count, np.uint8)
    kernels.check_utf8(address_of(data), queues.topic_positions, queues.topic_lengths, count, valid)
    topics = [
        data[at : at + size].tobytes()
        for at, size in zip(queues.topic_positions.tolist(), queues.topic_lengths.tolist(), strict=True)
    ]
    table = pa.table(
        {
            "invalid": pa.array(1 - valid),
            "topic": pa.array(topics, pa.binary()),
            "queue_id": pa.array(queues.queue_ids),
        }
    )
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    ranks = np.empty(count, np.int32)
    ranks[order.to_numpy()] = np.arange(count, dtype=np.int32)
    return QueueRanking(ranks, valid)


class _Columns:
    """Memory of the columns that the kernels fill. Each text column has room for the largest content."""

    def __init__(self, arena: Arena, chunk: FrameChunk, rows: int, frame_bytes: int) -> None:
        extra = _IPV6_TEXT_BYTES - _IPV4_TEXT_BYTES
        sizes = dict.fromkeys(kernels.INT32_COLUMNS, 4 * rows)
        sizes |= dict.fromkeys(kernels.INT64_COLUMNS, 8 * rows)
        sizes |= dict.fromkeys(kernels.FLAG_COLUMNS, rows)
        sizes[kernels.BODY] = kernels.VIEW_BYTES * rows
        sizes |= dict.fromkeys(range(kernels.TOPIC_OFFSETS, kernels.TOPIC), 4 * (rows + 1))
        property_bytes = min(chunk.property_bytes, frame_bytes)
        sizes |= dict.fromkeys(range(kernels.KEYS, kernels.PROPERTIES + 1), property_bytes)
        sizes |= {
            kernels.TOPIC: min(chunk.topic_bytes, frame_bytes),
            kernels.BORN_HOST: rows * _IPV4_TEXT_BYTES + min(chunk.born_ipv6_rows, rows) * extra,
            kernels.STORE_HOST: rows * _IPV4_TEXT_BYTES + min(chunk.store_ipv6_rows, rows) * extra,
            kernels.TAIL: kernels.TAIL_BYTES,
            kernels.HOSTS: kernels.HOSTS_BYTES,
        }
        self.rows = rows
        self.buffers = [
            arena.buffer(column, sizes[column] + kernels.SLACK_BYTES) for column in range(kernels.COLUMNS)
        ]
        self.addresses = np.array([buffer.address for buffer in self.buffers], np.int64)

    def array(self, column: int, dtype: type[np.generic], count: int) -> npt.NDArray[Any]:
        return np.frombuffer(memoryview(self.buffers[column]), dtype, count)

    def flags(self, column: int) -> npt.NDArray[np.uint8]:
        return self.array(column, np.uint8, self.rows)

    def validity(self, column: int | None, otherwise: pa.Buffer | None) -> pa.Buffer | None:
        """Return a flag column as a bitmap, None if all flags are set; without a column, ``otherwise``."""
        if column is None:
            return otherwise
        flags = self.flags(column)
        return None if flags.all() else _bitmap(flags)

    def fixed(self, column: int, kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array[Any]:
        return pa.Array.from_buffers(kind, self.rows, [validity, self.buffers[column]])

    def text(
        self, column: int, offsets: int, kind: pa.DataType, validity: pa.Buffer | None, count: int
    ) -> pa.Array[Any]:
        used = int(self.array(offsets, np.int32, count + 1)[count])
        buffers = [
            validity,
            self.buffers[offsets].slice(0, 4 * (count + 1)),
            self.buffers[column].slice(0, used),
        ]
        return pa.Array.from_buffers(kind, count, buffers)


def decode_chunk(
    data: npt.NDArray[np.uint8],
    base_offset: int,
    chunk: FrameChunk,
    arena: Arena,
    cut: Callable[[npt.NDArray[np.int32], npt.NDArray[np.int32]], Iterable[tuple[int, int]]] | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of a chunk, sorted by (topic, queue id, physical offset).

    :param arena: gives memory that no earlier table needs any more.
    :param cut: takes the rows' sizes, and returns first row and end of each table; None for one table.
    """
    ranking = rank_queues(data, chunk.queues)
    rows = len(chunk.positions)
    order = np.empty(rows, np.int32)
    positions = np.empty(rows, np.int64)
    sizes = np.empty(rows, np.int32)
    codes = np.empty(rows, np.int32)
    messages = cluster(
        chunk.positions,
        chunk.sizes,
        chunk.codes,
        ranking.ranks,
        np.empty(len(ranking.ranks) + 1, np.int64),
        order,
        positions,
        sizes,
        codes,
    )
    del order
    for first, last in [(0, rows)] if cut is None else cut(sizes, sizes):
        # Blank and undecodable rows come last, sorted by position.
        others = np.flatnonzero(chunk.codes < 0)[max(first - messages, 0) : max(last - messages, 0)]
        part = _Part(
            positions[first:last],
            sizes[first:last],
            codes[first:last],
            min(max(messages - first, 0), last - first),
            chunk.is_blank_header[others],
            chunk.kinds[others],
        )
        yield _decode_part(data, base_offset, chunk, ranking, arena, part)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Rows of a chunk for one table, in the table's order.

    :param messages: number of messages among the rows. Blank and undecodable rows follow them.
    :param blank_header: for each of these other rows, whether a blank begins with it.
    :param other_kinds: kind of each of these other rows.
    """

    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int32]
    messages: int
    blank_header: npt.NDArray[np.bool_]
    other_kinds: npt.NDArray[np.uint8]


def _decode_part(
    data: npt.NDArray[np.uint8],
    base_offset: int,
    chunk: FrameChunk,
    ranking: QueueRanking,
    arena: Arena,
    part: _Part,
) -> pa.Table:
    rows, messages = len(part.positions), part.messages
    columns = _Columns(arena, chunk, rows, int(part.sizes.sum(dtype=np.int64)))
    ends = np.zeros(kernels.ENDS, np.int64)
    begin, end = int(chunk.positions[0]), int(chunk.positions[-1]) + int(chunk.sizes[-1])
    segment = pa.py_buffer(data[begin:end].data)
    kernels.decode_messages(
        address_of(data),
        len(data),
        begin,
        messages,
        part.positions,
        part.sizes,
        part.codes,
        ranking.topic_valid,
        chunk.queues.topic_lengths,
        address_of(ends),
        address_of(columns.addresses),
    )
    typed = magic_valid = None
    if messages < rows:
        kernels.decode_others(
            base_offset,
            messages,
            rows,
            part.positions,
            part.sizes,
            part.blank_header,
            address_of(columns.addresses),
        )
        typed = _bitmap(np.arange(rows) < messages)
        magic_valid = _bitmap(np.concatenate([np.ones(messages, bool), part.blank_header]))

    arrays: dict[str, pa.Array[Any]] = {
        "physical_offset": columns.fixed(kernels.PHYSICAL_OFFSET, pa.int64(), None),
        "size": columns.fixed(kernels.SIZE, pa.int32(), None),
        "kind": _kinds(part),
        **{name: pa.nulls(rows, SCHEMA.field(name).type) for name in PAIR_COLUMNS},
        "body": pa.Array.from_buffers(
            pa.binary_view(), rows, [typed, columns.buffers[kernels.BODY].slice(0, 16 * rows), segment]
        ),
        "raw": _raw(address_of(data), begin, base_offset, columns, segment),
    }
    for name, column in _INT_COLUMNS.items():
        validity = magic_valid if column == kernels.MAGIC else typed
        arrays[name] = columns.fixed(column, SCHEMA.field(name).type, validity)
    for name, (column, present) in _TIMESTAMP_COLUMNS.items():
        arrays[name] = columns.fixed(column, SCHEMA.field(name).type, columns.validity(present, None))
    for name, (column, offsets, flag) in _TEXT_COLUMNS.items():
        validity = columns.validity(flag, typed)
        arrays[name] = columns.text(column, offsets, SCHEMA.field(name).type, validity, rows)
    return pa.Table.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)


def _bitmap(flags: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little").data)


def _kinds(part: _Part) -> pa.Array[Any]:
    rows = len(part.positions)
    if part.messages == rows:
        name = KINDS[FrameKind.MESSAGE].as_py().encode()
        offsets = np.arange(0, (rows + 1) * len(name), len(name), dtype=np.int32)
        buffers: list[pa.Buffer | None] = [None, pa.py_buffer(offsets.data), pa.py_buffer(name * rows)]
        return pa.Array.from_buffers(pa.string(), rows, buffers)
    kinds = np.zeros(rows, np.int8)
    kinds[part.messages :] = part.other_kinds
    return pa.DictionaryArray.from_arrays(kinds, KINDS).cast(pa.string())


def _raw(address: int, begin: int, base_offset: int, columns: _Columns, segment: pa.Buffer) -> pa.Array[Any]:
    needed = columns.flags(kernels.NEEDS_RAW)
    if not needed.any():
        return pa.nulls(columns.rows, pa.binary_view())
    views = pa.allocate_buffer(kernels.VIEW_BYTES * columns.rows)
    kernels.view_raw(address, begin, base_offset, address_of(columns.addresses), columns.rows, views.address)
    return pa.Array.from_buffers(pa.binary_view(), columns.rows, [_bitmap(needed), views, segment])
