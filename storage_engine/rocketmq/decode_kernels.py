"""Compiled frames → Arrow columns. Reads only frames that ``kernels.scan`` found to be whole."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_engine.rocketmq.decode_columns import (
    BODY,
    BODY_CRC,
    BODY_OFFSETS,
    BORN_HOST,
    BORN_HOST_OFFSETS,
    BORN_PORT,
    BORN_TIMESTAMP,
    ENDS,
    FLAG,
    FLAG_COLUMNS,
    HAS_BORN_TIMESTAMP,
    HAS_STORE_TIMESTAMP,
    HAS_TOPIC,
    INT32_COLUMNS,
    INT64_COLUMNS,
    MAGIC,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    NAME_OFFSETS,
    NEEDS_RAW,
    PAIR_OFFSETS,
    PAIRS_END,
    PHYSICAL_OFFSET,
    PREPARED_TRANSACTION_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    SIZE,
    SLACK_BYTES,
    STORE_HOST,
    STORE_HOST_OFFSETS,
    STORE_PORT,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TAIL,
    TOPIC,
    TOPIC_OFFSETS,
    VALUE_OFFSETS,
)
from storage_engine.rocketmq.frame import (
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_HOST_IPV6,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    PHYSICAL_OFFSET_AT,
    PREPARED_TRANSACTION_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_TIMES_AT,
    STORE_HOST_AT,
    STORE_HOST_IPV6,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from storage_engine.rocketmq.frame_kernels import (
    Bytes,
    Ints32,
    Ints64,
    body_position,
    same_bytes,
)
from storage_engine.rocketmq.native import (
    copy_bytes,
    inlined,
    int64,
    kernel,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
    stream_32,
)
from storage_engine.rocketmq.property_kernels import decode_properties
from storage_engine.rocketmq.text_kernels import (
    copy_words,
    is_utf8,
    write_host,
)

_AHEAD = 2
"""Frames that lie far apart are fetched while the ones before them are decoded."""
_TAIL_LINES = 4
_STREAMED_BYTES = 256

# Of a host column: end of its texts, and the previous row's text length, address and width.
HOST_END: Final = 0
HOST_TEXT: Final = 1
HOST_SOURCE: Final = 2
HOST_WIDTH: Final = 3
HOST_STATE: Final = 4


@inlined
def decode_timestamp(source: int, values: int, valid: int, i: int) -> bool:
    """Write a timestamp in microseconds. :return: whether it can be represented."""
    value_ms = load_be_i64(source)
    fits = MIN_TIMESTAMP_MS <= value_ms <= MAX_TIMESTAMP_MS
    store_u8(valid + i, int64(fits))
    store_i64(values + 8 * i, value_ms * 1000 if fits else 0)
    return fits


@inlined
def decode_host(source: int, ipv6: bool, texts: int, offsets: int, ports: int, i: int, host: Ints64) -> int:
    """Write an address as text, and its port. :return: how many bytes the address has.

    Most rows have the address of the row before: its text is copied.
    """
    width = 16 if ipv6 else 4
    end = host[HOST_END]
    if host[HOST_WIDTH] == width and same_bytes(source, host[HOST_SOURCE], width):
        size = host[HOST_TEXT]
        copy_words(texts + end, texts + end - size, size)
    else:
        size = write_host(texts + end, source, ipv6)
        host[HOST_TEXT] = size
        host[HOST_SOURCE] = source
        host[HOST_WIDTH] = width
    host[HOST_END] = end + size
    store_i32(offsets + 4 * (i + 1), end + size)
    store_i32(ports + 4 * i, load_be_i32(source + width))
    return width


@inlined
def decode_header(at: int, i: int, columns: Ints64, born: Ints64, store: Ints64) -> int:
    """Write what lies before the body of the frame at address ``at``.

    :return: how much further than with IPv4 hosts the body lies.
    """
    at_32 = 4 * i
    at_64 = 8 * i
    sys_flag = load_be_i32(at + SYS_FLAG_AT)
    store_i32(columns[SIZE] + at_32, load_be_i32(at))
    store_i32(columns[MAGIC] + at_32, load_be_i32(at + MAGIC_AT))
    store_i32(columns[QUEUE_ID] + at_32, load_be_i32(at + QUEUE_ID_AT))
    store_i32(columns[FLAG] + at_32, load_be_i32(at + FLAG_AT))
    store_i32(columns[SYS_FLAG] + at_32, sys_flag)
    store_i32(columns[BODY_CRC] + at_32, load_be_i32(at + BODY_CRC_AT))
    store_i64(columns[PHYSICAL_OFFSET] + at_64, load_be_i64(at + PHYSICAL_OFFSET_AT))
    store_i64(columns[QUEUE_OFFSET] + at_64, load_be_i64(at + QUEUE_OFFSET_AT))
    fits = decode_timestamp(at + BORN_TIMESTAMP_AT, columns[BORN_TIMESTAMP], columns[HAS_BORN_TIMESTAMP], i)
    width = decode_host(
        at + BORN_HOST_AT,
        sys_flag & BORN_HOST_IPV6 != 0,
        columns[BORN_HOST],
        columns[BORN_HOST_OFFSETS],
        columns[BORN_PORT],
        i,
        born,
    )
    extra = width - 4
    fits &= decode_timestamp(
        at + extra + STORE_TIMESTAMP_AT, columns[STORE_TIMESTAMP], columns[HAS_STORE_TIMESTAMP], i
    )
    width = decode_host(
        at + extra + STORE_HOST_AT,
        sys_flag & STORE_HOST_IPV6 != 0,
        columns[STORE_HOST],
        columns[STORE_HOST_OFFSETS],
        columns[STORE_PORT],
        i,
        store,
    )
    extra += width - 4
    store_i32(columns[RECONSUME_TIMES] + at_32, load_be_i32(at + extra + RECONSUME_TIMES_AT))
    store_i64(
        columns[PREPARED_TRANSACTION_OFFSET] + at_64,
        load_be_i64(at + extra + PREPARED_TRANSACTION_OFFSET_AT),
    )
    store_u8(columns[NEEDS_RAW] + i, int64(not fits))
    return extra


@kernel
def decode_messages(
    address: int,
    length: int,
    messages: int,
    positions: Ints64,
    sizes: Ints32,
    codes: Ints32,
    topic_valid: Bytes,
    topic_lengths: Ints32,
    seed: np.uint64,
    name_table: Ints64,
    columns: Ints64,
) -> int:
    """Fill the columns of the first ``messages`` rows, which are in the order to write them in.

    :param name_table: NAME_TABLE_SLOTS zeros.
    :param columns: addresses of the columns' memory.
    :return: number of property pairs.
    """
    ends = np.zeros(ENDS, np.int64)
    born = np.zeros(HOST_STATE, np.int64)
    store = np.zeros(HOST_STATE, np.int64)
    topic_end = 0
    body_end = 0
    for column in range(TOPIC_OFFSETS, VALUE_OFFSETS + 1):
        store_i32(columns[column], 0)
    store_i32(columns[PAIR_OFFSETS], 0)
    for i in range(messages):
        if i + _AHEAD < messages:
            ahead = address + positions[i + _AHEAD]
            prefetch(ahead)
            prefetch(ahead + 64)
            ahead += sizes[i + _AHEAD]
            for line in range(1, _TAIL_LINES + 1):
                prefetch(ahead - 64 * line)
        at = address + positions[i]
        size = int64(sizes[i])
        body = at + decode_header(at, i, columns, born, store) + BODY_AT
        body_length = load_be_i32(body - 4)
        exact = body_length >= 0
        body_length = max(body_length, 0)
        body_end += body_length
        store_i32(columns[BODY_OFFSETS] + 4 * (i + 1), body_end)

        tail = body + body_length
        if address + length - (at + size) < SLACK_BYTES:
            # Whole words are read from the topic and the properties: not beyond the segment's end.
            copy_bytes(columns[TAIL], tail, at + size - tail)
            tail = columns[TAIL]
        tail += 1 if load_be_u32(at + MAGIC_AT) == MAGIC_V1 else 2
        code = codes[i]
        topic_length = int64(topic_lengths[code])
        if topic_valid[code]:
            copy_words(columns[TOPIC] + topic_end, tail, topic_length)
            topic_end += topic_length
        else:
            exact = False
        store_u8(columns[HAS_TOPIC] + i, int64(topic_valid[code]))
        store_i32(columns[TOPIC_OFFSETS] + 4 * (i + 1), topic_end)

        block = tail + topic_length + 2
        block_size = load_be_i16(block - 2)
        exact &= block_size >= 0
        exact &= decode_properties(block, max(block_size, 0), i, columns, ends, seed, name_table)
        if not exact:
            store_u8(columns[NEEDS_RAW] + i, 1)
    return int64(ends[PAIRS_END])


@kernel
def copy_bodies(address: int, messages: int, order: Ints32, positions: Ints64, columns: Ints64) -> None:
    """Copy the bodies to where ``decode_messages`` laid them out.

    In the order in which they lie in the segment: memory is read and written in long runs.

    :param order: for each row of the segment its place among the columns' rows.
    """
    for row in range(len(order)):
        place = int64(order[row])
        if place >= messages:
            continue
        at = address + positions[row]
        begin = load_i32(columns[BODY_OFFSETS] + 4 * place)
        size = load_i32(columns[BODY_OFFSETS] + 4 * (place + 1)) - begin
        target = columns[BODY] + begin
        source = at + body_position(at)
        if size < _STREAMED_BYTES:
            copy_bytes(target, source, size)
            continue
        done = -target % 64
        copy_bytes(target, source, done)
        while size - done >= 64:
            stream_32(target + done, source + done)
            stream_32(target + done + 32, source + done + 32)
            done += 64
        copy_bytes(target + done, source + done, size - done)


@kernel
def decode_others(
    base_offset: int,
    messages: int,
    rows: int,
    positions: Ints64,
    sizes: Ints32,
    blank_header: npt.NDArray[np.bool_],
    columns: Ints64,
) -> None:
    """Fill the rows behind the messages: blank and undecodable bytes, which are kept raw.

    :param blank_header: for each of these rows whether it begins a blank: that one has a magic.
    """
    for i in range(messages, rows):
        for column in INT32_COLUMNS:
            store_i32(columns[column] + 4 * i, 0)
        for column in INT64_COLUMNS:
            store_i64(columns[column] + 8 * i, 0)
        for column in FLAG_COLUMNS:
            store_u8(columns[column] + i, 0)
        for column in range(TOPIC_OFFSETS, NAME_OFFSETS):
            store_i32(columns[column] + 4 * (i + 1), load_i32(columns[column] + 4 * i))
        store_i32(columns[PAIR_OFFSETS] + 4 * (i + 1), load_i32(columns[PAIR_OFFSETS] + 4 * i))
        store_i32(columns[SIZE] + 4 * i, int64(sizes[i]))
        if blank_header[i - messages]:
            store_i32(columns[MAGIC] + 4 * i, MAGIC_BLANK)
        store_i64(columns[PHYSICAL_OFFSET] + 8 * i, base_offset + positions[i])
        store_u8(columns[NEEDS_RAW] + i, 1)


@kernel
def copy_raw(
    address: int, base_offset: int, columns: Ints64, rows: int, raw_offsets: Ints32, raw: int
) -> None:
    """Copy the exact bytes of every row that needs them."""
    end = 0
    raw_offsets[0] = 0
    for i in range(rows):
        if load_u8(columns[NEEDS_RAW] + i):
            size = load_i32(columns[SIZE] + 4 * i)
            copy_bytes(raw + end, address + load_i64(columns[PHYSICAL_OFFSET] + 8 * i) - base_offset, size)
            end += size
        raw_offsets[i + 1] = end


@kernel
def check_utf8(address: int, positions: Ints64, lengths: Ints32, count: int, valid: Bytes) -> None:
    """For each of ``count`` texts whether it is well-formed UTF-8."""
    for i in range(count):
        valid[i] = is_utf8(address + positions[i], int64(lengths[i]))
