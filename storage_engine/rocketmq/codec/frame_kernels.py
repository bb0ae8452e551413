"""Compiled parser of commitlog frames: their positions in a segment, whether each is whole, and its CRCs.

Must never read outside the buffer, whatever its bytes say, and never look at a byte more than a few times:
segments may be hostile.
Python calls these through ``commitlog.py``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from storage_engine.crc import crc32
from storage_engine.native import (
    copy_16,
    copy_32,
    inlined,
    int64,
    kernel,
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_i8,
    load_i32,
    load_i64,
    load_le_u64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
)
from storage_engine.rocketmq.codec.frame_layout import (
    BLANK_HEADER_BYTES,
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_IPV6,
    CRC_MASK,
    IPV6_EXTRA_BYTES,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_MESSAGE_BYTES,
    NAME_VALUE_SEPARATOR,
    PHYSICAL_OFFSET_AT,
    PROPERTY_CRC,
    PROPERTY_CRC_BYTES,
    PROPERTY_SEPARATOR,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_IPV6,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NOT,
)

_HIGH_BITS = 0x8080808080808080


@inlined
def copy_words(target: int, source: int, size: int) -> None:
    """Copy a short text, 16 bytes at a time. Up to 16 bytes behind both ranges are read and overwritten."""
    copy_16(target, source)
    done = 16
    while done < size:
        copy_16(target + done, source + done)
        done += 16


@inlined
def copy_long_words(target: int, source: int, size: int) -> None:
    """Copy a text, 32 bytes at a time. Up to 32 bytes behind both ranges are read and overwritten."""
    copy_32(target, source)
    done = 32
    while done < size:
        copy_32(target + done, source + done)
        done += 32


@inlined
def is_utf8(address: int, size: int) -> bool:
    """Return whether the bytes are well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates)."""
    at = address
    end = address + size
    while at < end:
        while end - at >= 8 and load_le_u64(at) & np.uint64(_HIGH_BITS) == np.uint64(0):
            at += 8
        if at >= end:
            break
        lead = load_u8(at)
        at += 1
        if lead < 0x80:
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - at < more:
            return False
        for _ in range(more):
            byte = load_u8(at)
            if byte < low or byte > high:
                return False
            low = 0x80
            high = 0xBF
            at += 1
    return True


@inlined
def write_ipv4(target: int, source: int) -> int:
    """Write four bytes as dotted decimals. :return: length of the text, at most 15."""
    at = target
    for i in range(4):
        value = load_u8(source + i)
        if i > 0:
            store_u8(at, 46)
            at += 1
        if value >= 100:
            store_u8(at, 48 + value // 100)
            at += 1
        if value >= 10:
            store_u8(at, 48 + value // 10 % 10)
            at += 1
        store_u8(at, 48 + value % 10)
        at += 1
    return at - target


@inlined
def write_hex(target: int, value: int) -> int:
    """Write up to 16 bits in lower-case hexadecimal without leading zeros. :return: digits."""
    digits = 1
    while digits < 4 and value >> (4 * digits):
        digits += 1
    for i in range(digits):
        digit = (value >> (4 * (digits - 1 - i))) & 15
        store_u8(target + i, digit + 48 if digit < 10 else digit + 87)
    return digits


@inlined
def write_host(target: int, source: int, ipv6: bool) -> int:
    """Write an address as InetAddress#getHostAddress does; an IPv4-mapped IPv6 address is written as IPv4.

    :return: length of the text, at most 39.
    """
    if not ipv6:
        return write_ipv4(target, source)
    if load_be_i64(source) == 0 and load_be_u32(source + 8) == 0xFFFF:
        return write_ipv4(target, source + 12)
    at = target
    for i in range(8):
        if i > 0:
            store_u8(at, 58)
            at += 1
        at += write_hex(at, load_u8(source + 2 * i) * 256 + load_u8(source + 2 * i + 1))
    return at - target


@inlined
def read_ipv4(target: int, source: int, size: int) -> bool:
    """Read a text of write_ipv4: its inverse. :return: whether it is exactly what write_ipv4 writes."""
    at = source
    end = source + size
    for i in range(4):
        if i > 0:
            if at >= end or load_u8(at) != 46:
                return False
            at += 1
        begin = at
        value = 0
        while at < end and at - begin < 3 and 48 <= load_u8(at) <= 57:
            value = value * 10 + load_u8(at) - 48
            at += 1
        if at == begin or value > 255 or (at - begin > 1 and load_u8(begin) == 48):
            return False
        store_u8(target + i, value)
    return at == end


@inlined
def read_host(target: int, source: int, size: int, ipv6: bool) -> bool:
    """Read a text of write_host: its inverse. :return: whether it is exactly what write_host writes."""
    if not ipv6:
        return read_ipv4(target, source, size)
    at = source
    end = source + size
    for i in range(8):
        if i > 0:
            if at >= end or load_u8(at) != 58:
                return i == 1 and _read_mapped(target, source, size)
            at += 1
        begin = at
        value = 0
        while at < end and at - begin < 4:
            byte = load_u8(at)
            if 48 <= byte <= 57:
                value = value * 16 + byte - 48
            elif 97 <= byte <= 102:
                value = value * 16 + byte - 87
            else:
                break
            at += 1
        if at == begin or (at - begin > 1 and load_u8(begin) == 48):
            return False
        store_u8(target + 2 * i, value >> 8)
        store_u8(target + 2 * i + 1, value & 255)
    return at == end


@inlined
def _read_mapped(target: int, source: int, size: int) -> bool:
    for i in range(10):
        store_u8(target + i, 0)
    store_u8(target + 10, 255)
    store_u8(target + 11, 255)
    return read_ipv4(target + 12, source, size)


MESSAGE: Final = 0
BLANK: Final = 1
FAULT_TRUNCATED: Final = 2
FAULT_MAGIC: Final = 3
FAULT_SIZE: Final = 4
FAULT_PHYSICAL_OFFSET: Final = 5
FAULT_LENGTHS: Final = 6
FAULT_BLANK_SIZE: Final = 7
FAULT_BODY_CRC: Final = 8
FAULT_PROPERTY_CRC: Final = 9

_CRC_NAME = int.from_bytes(PROPERTY_CRC, "little")
_CRC_DIGITS = 10

Ints32 = npt.NDArray[np.int32]
Ints64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
KIND_MESSAGE: Final = 0
KIND_BLANK: Final = 1
KIND_UNDECODABLE: Final = 2

RUN_PIECE_BYTES: Final = 1 << 20
"""Most bytes of a row of a blank or undecodable run; longer runs are split."""

LOOK_BYTES: Final = RUN_PIECE_BYTES + 64
"""Bytes that the walk examines, from a position at which no message begins, before it writes a row."""

# Where a walk stands, between calls: indexes into its state array.
POSITION: Final = 0
RUN_START: Final = 1
RUN_KIND: Final = 2
RUN_CLOSED: Final = 3
RUN_ORIGIN: Final = 4
RUN_FAULT: Final = 5
ROWS: Final = 6
TOPIC_BYTES: Final = 7
PROPERTY_BYTES: Final = 8
BORN_IPV6_ROWS: Final = 9
STORE_IPV6_ROWS: Final = 10
QUEUES: Final = 11
WANTED: Final = 12
"""Position up to which the walk needs the segment in memory; 0: nothing more is needed."""
STATE_SIZE: Final = 13

# The table of the queues met: a hash table of their numbers plus one, then by number the positions of
# their topics, the topics' lengths, the queue ids.
MOST_QUEUES: Final = 1 << 16
QUEUE_SLOTS: Final = 4 * MOST_QUEUES
QUEUE_TOPIC_AT_AT: Final = 4 * QUEUE_SLOTS
QUEUE_TOPIC_LENGTHS_AT: Final = QUEUE_TOPIC_AT_AT + 8 * MOST_QUEUES
QUEUE_IDS_AT: Final = QUEUE_TOPIC_LENGTHS_AT + 4 * MOST_QUEUES
QUEUE_TABLE_BYTES: Final = QUEUE_IDS_AT + 4 * MOST_QUEUES


@inlined
def classify(address: int, length: int, position: int, base_offset: int) -> int:
    """Check the structure of the frame at ``position`` of a segment, and return MESSAGE, BLANK or a fault.

    The checks are those of CommitLog#checkMessageAndReturnSize, and two more: the header must name its own
    physical offset (old bytes may look like frames), and a blank frame must fill the segment to its end.
    """
    remaining = length - position
    if remaining < BLANK_HEADER_BYTES:
        return FAULT_TRUNCATED
    at = address + position
    size = load_be_i32(at)
    magic = load_be_u32(at + MAGIC_AT)
    if magic == MAGIC_BLANK:
        return BLANK if size == remaining else FAULT_BLANK_SIZE
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return FAULT_MAGIC
    if size < MIN_MESSAGE_BYTES or size > remaining:
        return FAULT_SIZE
    if load_be_i64(at + PHYSICAL_OFFSET_AT) != base_offset + position:
        return FAULT_PHYSICAL_OFFSET
    length_bytes = 1 if magic == MAGIC_V1 else 2
    body_at = body_position(at)
    if body_at + length_bytes + 2 > size:
        return FAULT_LENGTHS
    topic_at = body_at + max(load_be_i32(at + body_at - 4), 0)
    if topic_at + length_bytes + 2 > size:
        return FAULT_LENGTHS
    topic_length = load_i8(at + topic_at) if length_bytes == 1 else load_be_i16(at + topic_at)
    if topic_length < 0:
        return FAULT_LENGTHS
    properties_at = topic_at + length_bytes + topic_length
    if properties_at + 2 > size:
        return FAULT_LENGTHS
    if properties_at + 2 + max(load_be_i16(at + properties_at), 0) != size:
        return FAULT_LENGTHS
    return MESSAGE


@inlined
def body_position(at: int) -> int:
    """Return the position of the body in the frame at address ``at``. IPv6 hosts move it towards the end."""
    sys_flag = load_be_i32(at + SYS_FLAG_AT)
    position = BODY_AT
    if sys_flag & BORN_HOST_IPV6:
        position += IPV6_EXTRA_BYTES
    if sys_flag & STORE_HOST_IPV6:
        position += IPV6_EXTRA_BYTES
    return position


@inlined
def crc_fault(at: int, size: int, crc_function: int, crc_table: int) -> int:
    """Check the CRCs of the well-formed frame at address ``at``: return MESSAGE, or the wrong CRC's fault.

    The body's CRC is checked if there is a body (CommitLog#checkMessageAndReturnSize). The CRC of the whole
    frame is checked if the property block ends with one (MessageDecoder#createCrc32).
    """
    body_at = body_position(at)
    body_length = max(load_be_i32(at + body_at - 4), 0)
    if body_length > 0:
        crc = crc32(crc_function, crc_table, at + body_at, body_length) & CRC_MASK
        if crc != load_be_i32(at + BODY_CRC_AT):
            return FAULT_BODY_CRC
    topic_at = body_at + body_length
    if load_be_u32(at + MAGIC_AT) == MAGIC_V1:
        properties_at = topic_at + 1 + load_i8(at + topic_at) + 2
    else:
        properties_at = topic_at + 2 + load_be_i16(at + topic_at) + 2
    begin = size - PROPERTY_CRC_BYTES
    if begin < properties_at or load_le_u64(at + begin) != np.uint64(_CRC_NAME):
        return MESSAGE
    if begin > properties_at and load_u8(at + begin - 1) != PROPERTY_SEPARATOR:
        return MESSAGE
    if load_u8(at + begin + 8) != NAME_VALUE_SEPARATOR:
        return MESSAGE
    expected = 0
    for i in range(_CRC_DIGITS - 1, -1, -1):
        digit = load_u8(at + begin + 9 + i) - 48
        if digit < 0 or digit > 9:
            return FAULT_PROPERTY_CRC
        expected = expected * 10 + digit
    if load_u8(at + size - 1) != PROPERTY_SEPARATOR:
        return FAULT_PROPERTY_CRC
    if crc32(crc_function, crc_table, at, begin) & CRC_MASK != expected:
        return FAULT_PROPERTY_CRC
    return MESSAGE


@inlined
def next_magic(address: int, position: int, stop: int, length: int) -> int:
    """Return the first position in [position, stop) with a frame's magic; ``stop`` if there is none."""
    last = min(stop, length - BLANK_HEADER_BYTES + 1)
    while position < last:
        magic = load_be_u32(address + position + MAGIC_AT)
        if magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
            return position
        position += 1
    return stop


@inlined
def hash_bytes(address: int, size: int, seed: np.uint64) -> np.uint64:
    """Compute a keyed hash, so that nobody can choose names that collide."""
    value = seed ^ np.uint64(size)
    factor = (seed | np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    at = address
    end = address + size
    while end - at >= 8:
        value = (value ^ load_le_u64(at)) * factor
        value ^= value >> np.uint64(29)
        at += 8
    word = np.uint64(0)
    shift = np.uint64(0)
    while at < end:
        word |= np.uint64(load_u8(at)) << shift
        shift += np.uint64(8)
        at += 1
    value = (value ^ word) * factor
    value ^= value >> np.uint64(32)
    value *= np.uint64(0xD6E8FEB86659FD93)
    return value ^ (value >> np.uint64(32))


@inlined
def same_bytes(left: int, right: int, size: int) -> bool:
    at = 0
    while size - at >= 8:
        if load_le_u64(left + at) != load_le_u64(right + at):
            return False
        at += 8
    while at < size:
        if load_u8(left + at) != load_u8(right + at):
            return False
        at += 1
    return True


@inlined
def queue_code(
    address: int,
    topic_at: int,
    topic_length: int,
    queue_id: int,
    seed: np.uint64,
    queues: int,
    queue_table: int,
) -> int:
    """Return the number of the queue (topic, queue id), in order of first appearance; -1: the table is full.

    :param queues: number of known queues, which is also the number that a new queue gets.
    :param queue_table: address of QUEUE_TABLE_BYTES.
    """
    ids = queue_table + QUEUE_IDS_AT
    topics_at = queue_table + QUEUE_TOPIC_AT_AT
    topic_lengths = queue_table + QUEUE_TOPIC_LENGTHS_AT
    hashed = hash_bytes(address + topic_at, topic_length, seed ^ np.uint64(queue_id & 0xFFFFFFFF))
    slot = int64(hashed) & (QUEUE_SLOTS - 1)
    while True:
        code = load_i32(queue_table + 4 * slot) - 1
        if code < 0:
            if queues >= MOST_QUEUES:
                return -1
            store_i32(queue_table + 4 * slot, queues + 1)
            store_i64(topics_at + 8 * queues, topic_at)
            store_i32(topic_lengths + 4 * queues, topic_length)
            store_i32(ids + 4 * queues, queue_id)
            return queues
        if (
            load_i32(ids + 4 * code) == queue_id
            and load_i32(topic_lengths + 4 * code) == topic_length
            and same_bytes(address + load_i64(topics_at + 8 * code), address + topic_at, topic_length)
        ):
            return code
        slot = (slot + 1) & (QUEUE_SLOTS - 1)


@inlined
def seen_end(address: int, length: int, loaded: int, position: int, base_offset: int) -> int:
    """Return the end of the bytes that the walk examines from ``position`` on. A value behind ``loaded``
    means that more bytes have to be loaded.
    """
    end = min(length, position + LOOK_BYTES)
    if end > loaded or end - position < MIN_MESSAGE_BYTES:
        return end
    at = address + position
    magic = load_be_u32(at + MAGIC_AT)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return end
    if load_be_i64(at + PHYSICAL_OFFSET_AT) != base_offset + position:
        return end
    return max(end, min(length, position + load_be_i32(at)))


@kernel
def scan(
    address: int,
    length: int,
    loaded: int,
    base_offset: int,
    limit: int,
    crc_function: int,
    crc_table: int,
    check_crc: bool,
    seed: np.uint64,
    state: Ints64,
    positions: Ints64,
    sizes: Ints32,
    kinds: Bytes,
    faults: Bytes,
    origins: Ints64,
    codes: Ints32,
    queue_table: int,
) -> None:
    """Walk on from ``state`` until ``limit`` bytes are covered, the arrays are full, or the segment ends.

    Every byte that the walk has passed belongs to exactly one row. After a bad frame the walk searches for
    the next good one. A well-formed frame with a wrong CRC is passed over as a whole: most likely it is one
    frame, and so the walk stays linear.

    :param loaded: number of bytes in memory. If the walk needs more, ``state`` says so, and all else is void.
    """
    capacity = len(positions)
    chunk_start = state[RUN_START]
    position = state[POSITION]
    run_start = state[RUN_START]
    rows = 0
    topic_bytes = 0
    property_bytes = 0
    born_ipv6_rows = 0
    store_ipv6_rows = 0
    queues = state[QUEUES]
    while rows < capacity:
        pending = position - run_start
        if pending >= RUN_PIECE_BYTES or (pending > 0 and (state[RUN_CLOSED] or position >= length)):
            piece = min(pending, RUN_PIECE_BYTES)
            if rows > 0 and run_start + piece - chunk_start > limit:
                break
            positions[rows] = run_start
            sizes[rows] = piece
            kinds[rows] = state[RUN_KIND]
            faults[rows] = state[RUN_FAULT]
            origins[rows] = state[RUN_ORIGIN]
            codes[rows] = -1
            rows += 1
            run_start += piece
            continue
        if position >= length:
            break
        if loaded < length:
            needed_end = seen_end(address, length, loaded, position, base_offset)
            if needed_end > loaded:
                state[WANTED] = needed_end
                return
        if pending == 0:
            state[RUN_CLOSED] = 0
        fault = classify(address, length, position, base_offset)
        if fault > BLANK:
            if pending == 0:
                state[RUN_KIND] = KIND_UNDECODABLE
                state[RUN_FAULT] = fault
                state[RUN_ORIGIN] = position
            stop = min(run_start + RUN_PIECE_BYTES, length)
            position = next_magic(address, position + 1, stop, length)
            continue
        if pending > 0:
            state[RUN_CLOSED] = 1
            continue
        if fault == BLANK:
            state[RUN_KIND] = KIND_BLANK
            state[RUN_FAULT] = fault
            state[RUN_ORIGIN] = position
            position = length
            continue
        at = address + position
        size = load_be_i32(at)
        # Checking this one takes longer than fetching the next one's header.
        prefetch(at + size)
        prefetch(at + size + 64)
        if rows > 0 and position + size - chunk_start > limit:
            break
        if check_crc:
            fault = crc_fault(at, size, crc_function, crc_table)
            if fault != MESSAGE:
                state[RUN_KIND] = KIND_UNDECODABLE
                state[RUN_FAULT] = fault
                state[RUN_ORIGIN] = position
                state[RUN_CLOSED] = 1
                position += size
                continue
        body_at = body_position(at)
        body_length = max(load_be_i32(at + body_at - 4), 0)
        topic_at = body_at + body_length
        if load_be_u32(at + MAGIC_AT) == MAGIC_V1:
            topic_length = load_i8(at + topic_at)
            topic_at += 1
        else:
            topic_length = load_be_i16(at + topic_at)
            topic_at += 2
        code = queue_code(
            address,
            position + topic_at,
            topic_length,
            load_be_i32(at + QUEUE_ID_AT),
            seed,
            queues,
            queue_table,
        )
        if code < 0:
            break
        queues = max(queues, code + 1)
        positions[rows] = position
        sizes[rows] = size
        kinds[rows] = KIND_MESSAGE
        faults[rows] = MESSAGE
        origins[rows] = position
        codes[rows] = code
        rows += 1
        topic_bytes += topic_length
        property_bytes += size - (topic_at + topic_length + 2)
        sys_flag = load_be_i32(at + SYS_FLAG_AT)
        if sys_flag & BORN_HOST_IPV6:
            born_ipv6_rows += 1
        if sys_flag & STORE_HOST_IPV6:
            store_ipv6_rows += 1
        position += size
        run_start = position
    state[POSITION] = position
    state[RUN_START] = run_start
    state[ROWS] = rows
    state[QUEUES] = queues
    state[TOPIC_BYTES] = topic_bytes
    state[PROPERTY_BYTES] = property_bytes
    state[BORN_IPV6_ROWS] = born_ipv6_rows
    state[STORE_IPV6_ROWS] = store_ipv6_rows


@kernel
def walk_to_end(
    address: int,
    length: int,
    base_offset: int,
    start: int,
    crc_function: int,
    crc_table: int,
    check_crc: bool,
) -> int:
    """Return the end of the consecutive frames from ``start`` on; ``length`` behind a blank frame."""
    position = start
    while position < length:
        fault = classify(address, length, position, base_offset)
        if fault == BLANK:
            return length
        if fault != MESSAGE:
            return position
        size = load_be_i32(address + position)
        if check_crc and crc_fault(address + position, size, crc_function, crc_table) != MESSAGE:
            return position
        position += size
    return position


@kernel
def cluster(
    positions: Ints64,
    sizes: Ints32,
    codes: Ints32,
    ranks: Ints32,
    starts: Ints64,
    order: Ints32,
    sorted_positions: Ints64,
    sorted_sizes: Ints32,
    sorted_codes: Ints32,
) -> int:
    """Sort rows by their queue's rank. Rows of one queue keep their order; rows without a queue come last.

    :param starts: working memory with one element more than there are ranks.
    :param order: output: each row's new place.
    :return: number of rows that have a queue.
    """
    starts[:] = 0
    messages = 0
    for row in range(len(codes)):
        code = codes[row]
        if code >= 0:
            starts[ranks[code] + 1] += 1
            messages += 1
    for queue in range(len(ranks)):
        starts[queue + 1] += starts[queue]
    others = messages
    for row in range(len(codes)):
        code = codes[row]
        if code >= 0:
            place = starts[ranks[code]]
            starts[ranks[code]] = place + 1
        else:
            place = others
            others += 1
        order[row] = place
        sorted_positions[place] = positions[row]
        sorted_sizes[place] = sizes[row]
        sorted_codes[place] = code
    return messages


@kernel
def read_headers(
    address: int,
    positions: Ints64,
    kinds: Bytes,
    queue_offset: Ints64,
    sys_flags: Ints32,
    store_timestamp_ms: Ints64,
) -> None:
    """Read some header fields of the frames that ``scan`` found; 0 for rows that are no message."""
    for row in range(len(positions)):
        if kinds[row] != KIND_MESSAGE:
            queue_offset[row] = 0
            sys_flags[row] = 0
            store_timestamp_ms[row] = 0
            continue
        at = address + positions[row]
        sys_flag = load_be_i32(at + SYS_FLAG_AT)
        extra = IPV6_EXTRA_BYTES if sys_flag & BORN_HOST_IPV6 else 0
        queue_offset[row] = load_be_i64(at + QUEUE_OFFSET_AT)
        sys_flags[row] = sys_flag
        store_timestamp_ms[row] = load_be_i64(at + STORE_TIMESTAMP_AT + extra)


@kernel
def any_dispatchable(address: int, length: int, base_offset: int, start: int) -> bool:
    """Return whether a frame at or behind ``start`` is neither prepared nor rolled back."""
    position = start
    while position < length:
        fault = classify(address, length, position, base_offset)
        if fault == BLANK:
            return False
        if fault != MESSAGE:
            position = next_magic(address, position + 1, length, length)
            continue
        transaction = load_be_i32(address + position + SYS_FLAG_AT) & TRANSACTION_MASK
        if transaction in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            return True
        position += load_be_i32(address + position)
    return False
