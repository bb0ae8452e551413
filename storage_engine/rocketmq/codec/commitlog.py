"""Frames in a commitlog segment's bytes, their end, and damaged ranges.

The functions work on bytes that the caller has read; only ``read_store_timestamp`` opens a file. The kernels
check each byte only once, so the bytes must not change. Copy bytes to which a broker still writes.

:func:`near_logical_end` is a quick search for the end of a segment's messages, for callers that only read.
Deletions walk every frame. A file is created full of zeros and written from its beginning on, so a bisection
finds the approximate end. The last message before it is recognised by its magic and by its own offset in its
header. From there on, each frame's size leads to the next frame. Neither checksums nor frames before that
message are checked, and a torn message counts as whole.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from storage_engine.arrow.memory import address_of
from storage_engine.exceptions import CorruptFrameError
from storage_engine.model.broker.codec import Damage, LoadBytes
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.format.stored_files import open_stored

if TYPE_CHECKING:
    from storage_engine.crc import CrcEngine


SegmentBytes = memoryview | bytes | bytearray | npt.NDArray[np.uint8]

MAX_CHUNK_BYTES = 1 << 30
"""Most bytes of a chunk: Arrow's 32-bit offsets must address all of its texts and bodies."""

_MAX_DAMAGES = 1000
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_BLOCK: Final = 4096
_WINDOWS_BYTES: Final = (1 << 16, 1 << 20, 1 << 24)
"""Lengths of the ranges that are searched backwards from a position for a message, one after the other. In
the broker's default, a message has at most 4 MiB.
"""
_MAGICS: Final = tuple(map(_UINT32.pack, frame.MESSAGE_MAGICS))
_SIZE_AND_MAGIC: Final = struct.Struct(">iI")


class FrameKind(IntEnum):
    """Kind of a row, with the same numbers as in the kernels."""

    MESSAGE = 0
    BLANK = 1
    UNDECODABLE = 2


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """Frames of a segment, sorted by their offsets, one array element each.

    Blank and undecodable ranges are split into rows of at most 1 MiB, in which a message's fields are 0.

    :param topic: index into ``topics``; -1 for a row that is no message.
    :param topics: topic names; bytes that are no UTF-8 become U+FFFD.
    :param damages: ranges that are no frame, with the reason.
    """

    physical_offset: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    topic: npt.NDArray[np.int32]
    queue_id: npt.NDArray[np.int32]
    queue_offset: npt.NDArray[np.int64]
    sys_flag: npt.NDArray[np.int32]
    store_timestamp_ms: npt.NDArray[np.int64]
    topics: tuple[str, ...]
    damages: tuple[Damage, ...]


@dataclass(frozen=True, slots=True, eq=False)
class QueueNames:
    """Topics and queue ids of a chunk's queues. The index is a queue's code."""

    topic_positions: npt.NDArray[np.int64]
    topic_lengths: npt.NDArray[np.int32]
    queue_ids: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class FrameChunk:
    """Consecutive rows of a walk. The arrays are valid only until the walk's next step.

    The four totals, from ``topic_bytes`` on, limit the memory that decoding needs.
    """

    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    codes: npt.NDArray[np.int32]
    is_blank_header: npt.NDArray[np.bool_]
    queues: QueueNames
    topic_bytes: int
    property_bytes: int
    born_ipv6_rows: int
    store_ipv6_rows: int
    damages: tuple[Damage, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Fields that the kernel writes for each row of a chunk.

    :param faults: reason why a row is no frame.
    :param origins: start position of the undecodable run that contains the row.
    """

    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    faults: npt.NDArray[np.uint8]
    origins: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int32]

    @classmethod
    def room_for(cls, count: int) -> _Rows:
        """Return uninitialised arrays for this number of rows."""
        types = (np.int64, np.int32, np.uint8, np.uint8, np.int64, np.int32)
        arrays: list[Any] = [np.empty(count, dtype) for dtype in types]
        return cls(*arrays)

    def first(self, count: int) -> _Rows:
        """Return views of the first ``count`` rows."""
        return _Rows(*(getattr(self, field.name)[:count] for field in fields(self)))


def as_array(data: SegmentBytes) -> npt.NDArray[np.uint8]:
    """Return the bytes as an array, without a copy.

    :raises ValueError: the buffer isn't one contiguous run of single bytes.
    """
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError("segment bytes must be one contiguous run of uint8")
    return array


def iterate_frames(
    data: SegmentBytes,
    base_offset: int,
    chunk_bytes: int,
    *,
    start: int = 0,
    check_crc: bool = True,
    load: LoadBytes | None = None,
) -> Iterator[FrameChunk]:
    """Walk over a segment in chunks of about ``chunk_bytes``; a longer frame is a chunk of its own.

    :param data: the whole segment file, since a blank frame must reach to the file's end.
    :param start: position in ``data`` of the first frame.
    :param load: makes parts of ``data`` readable; None if all of ``data`` is readable.
    """
    from storage_engine.crc import crc_engine
    from storage_engine.rocketmq.codec import frame_kernels

    array = as_array(data)
    _check_span(len(array), base_offset, start)
    limit = max(1, min(chunk_bytes, MAX_CHUNK_BYTES))
    engine: CrcEngine = crc_engine()
    seed = np.uint64(secrets.randbits(64))
    state = np.zeros(frame_kernels.STATE_SIZE, np.int64)
    state[frame_kernels.POSITION] = state[frame_kernels.RUN_START] = start
    room = _Rows.room_for(min(limit, len(array)) // frame.MIN_MESSAGE_BYTES + 16)
    queue_table = np.zeros(frame_kernels.QUEUE_TABLE_BYTES, np.uint8)
    slots = queue_table[: 4 * frame_kernels.QUEUE_SLOTS]
    run = (-1, b"")
    needed_end = 0
    while (begin := int(state[frame_kernels.RUN_START])) < len(array):
        loaded = len(array)
        if load is not None:
            loaded = min(loaded, max(needed_end, begin + limit + frame_kernels.LOOK_BYTES))
            load(begin, loaded)
        before = state.copy()
        # Topic names are positions in the loaded bytes, so each chunk begins with an empty table of queues.
        state[frame_kernels.QUEUES] = 0
        slots.fill(0)
        frame_kernels.scan(
            address_of(array),
            len(array),
            loaded,
            base_offset,
            limit,
            engine.function,
            engine.table,
            check_crc,
            seed,
            state,
            room.positions,
            room.sizes,
            room.kinds,
            room.faults,
            room.origins,
            room.codes,
            address_of(queue_table),
        )
        if needed_end := int(state[frame_kernels.WANTED]):
            # Load at least an eighth more. Otherwise many small requests would walk the same bytes too often.
            needed_end = max(needed_end, loaded + (loaded - begin) // 8)
            state = before
            continue
        rows = room.first(int(state[frame_kernels.ROWS]))
        yield FrameChunk(
            positions=rows.positions,
            sizes=rows.sizes,
            kinds=rows.kinds,
            codes=rows.codes,
            is_blank_header=(rows.kinds == FrameKind.BLANK) & (rows.origins == rows.positions),
            queues=_queue_names(queue_table, int(state[frame_kernels.QUEUES])),
            topic_bytes=int(state[frame_kernels.TOPIC_BYTES]),
            property_bytes=int(state[frame_kernels.PROPERTY_BYTES]),
            born_ipv6_rows=int(state[frame_kernels.BORN_IPV6_ROWS]),
            store_ipv6_rows=int(state[frame_kernels.STORE_IPV6_ROWS]),
            damages=_damages(array, base_offset, rows, run),
        )
        if (origin := int(state[frame_kernels.RUN_ORIGIN])) != run[0]:
            run = (origin, _header(array, origin))


def scan_segment(
    data: SegmentBytes, base_offset: int, *, start: int = 0, check_crc: bool = True
) -> FrameTable:
    """Return every frame of a sealed segment, with the fields for checks of queues, index and times.

    :param data: the whole segment file.
    :raises ValueError: ``start`` is outside ``data``.
    """
    from storage_engine.rocketmq.codec import frame_kernels

    array = as_array(data)
    columns: list[tuple[npt.NDArray[np.generic], ...]] = []
    damages: list[Damage] = []
    topics: dict[bytes, int] = {}
    for chunk in iterate_frames(array, base_offset, 64 << 20, start=start, check_crc=check_crc):
        rows = len(chunk.positions)
        queue_offset = np.empty(rows, np.int64)
        store_timestamp_ms = np.empty(rows, np.int64)
        sys_flag = np.empty(rows, np.int32)
        frame_kernels.read_headers(
            address_of(array), chunk.positions, chunk.kinds, queue_offset, sys_flag, store_timestamp_ms
        )
        names = [
            array[at : at + size].tobytes()
            for at, size in zip(
                chunk.queues.topic_positions.tolist(), chunk.queues.topic_lengths.tolist(), strict=True
            )
        ]
        # Rows without a message have code -1, the last element: no topic, queue id 0.
        topic_of_code = np.array([*(topics.setdefault(name, len(topics)) for name in names), -1], np.int32)
        queue_of_code = np.append(chunk.queues.queue_ids, np.int32(0))
        columns.append(
            (
                chunk.positions + base_offset,
                chunk.sizes.copy(),
                chunk.kinds.copy(),
                topic_of_code[chunk.codes],
                queue_of_code[chunk.codes],
                queue_offset,
                sys_flag,
                store_timestamp_ms,
            )
        )
        damages.extend(chunk.damages)
    types = (np.int64, np.int32, np.uint8, np.int32, np.int32, np.int64, np.int32, np.int64)
    values: list[Any] = [
        np.concatenate([np.empty(0, dtype), *(column[i] for column in columns)]).astype(dtype, copy=False)
        for i, dtype in enumerate(types)
    ]
    values += (tuple(name.decode("utf-8", "replace") for name in topics), tuple(damages))
    return FrameTable(*values)


def find_logical_end(data: SegmentBytes, base_offset: int, *, start: int = 0, check_crc: bool = True) -> int:
    """Return the position at which a segment's frames end, by a walk as in CommitLog#recoverNormally.

    :param data: the whole segment file.
    :return: position of the first bytes that are no valid frame, such as zeros; the length of a full file.
    """
    from storage_engine.crc import crc_engine
    from storage_engine.rocketmq.codec import frame_kernels

    array = as_array(data)
    _check_span(len(array), base_offset, start)
    engine = crc_engine()
    return int(
        frame_kernels.walk_to_end(
            address_of(array), len(array), base_offset, start, engine.function, engine.table, check_crc
        )
    )


def has_dispatchable_frame(data: SegmentBytes, base_offset: int, start: int) -> bool:
    """Return whether any frame at or behind ``start`` gets a consume queue entry.

    Frames flagged prepared or rollback get no entry (CommitLogDispatcherBuildConsumeQueue). The walk doesn't
    end at bad bytes, since frames behind them may still wait for dispatch.

    :param start: position of a frame.
    """
    from storage_engine.rocketmq.codec import frame_kernels

    array = as_array(data)
    _check_span(len(array), base_offset, start)
    return bool(frame_kernels.any_dispatchable(address_of(array), len(array), base_offset, start))


def read_store_timestamp(path: str | os.PathLike[str], position: int, base_offset: int) -> int:
    """Return the store timestamp of the message at ``position`` of a segment, from its header alone.

    :return: milliseconds since the epoch.
    :raises CorruptFrameError: no message begins there.
    :raises OSError: the file can't be read.
    """
    with open_stored(path) as file:
        file.seek(position)
        header = file.read(frame.STORE_HOST_AT + frame.IPV6_EXTRA_BYTES)
    offset = base_offset + position
    if len(header) < frame.STORE_HOST_AT + frame.IPV6_EXTRA_BYTES:
        raise CorruptFrameError.at(str(path), offset, "a whole header", f"{len(header)} bytes before the end")
    (magic,) = _UINT32.unpack_from(header, frame.MAGIC_AT)
    (named,) = _INT64.unpack_from(header, frame.PHYSICAL_OFFSET_AT)
    if magic not in frame.MESSAGE_MAGICS:
        raise CorruptFrameError.at(str(path), offset, "a message's magic", f"{magic:08x}")
    if named != offset:
        raise CorruptFrameError.at(str(path), offset, f"physical offset {offset} in the header", str(named))
    (sys_flag,) = _UINT32.unpack_from(header, frame.SYS_FLAG_AT)
    extra = frame.ip_bytes(sys_flag, frame.BORN_HOST_IPV6) - 4
    (timestamp_ms,) = _INT64.unpack_from(header, frame.STORE_TIMESTAMP_AT + extra)
    return int(timestamp_ms)


def _check_span(length: int, base_offset: int, start: int) -> None:
    if not 0 <= start <= length:
        raise ValueError(f"start {start} lies outside the segment's {length} bytes")
    if not 0 <= base_offset <= (1 << 63) - 1 - length:
        raise ValueError(f"base offset {base_offset} is no 64-bit offset")


def _queue_names(table: npt.NDArray[np.uint8], count: int) -> QueueNames:
    from storage_engine.rocketmq.codec import frame_kernels

    positions = table[frame_kernels.QUEUE_TOPIC_AT_AT : frame_kernels.QUEUE_TOPIC_LENGTHS_AT].view(np.int64)
    lengths = table[frame_kernels.QUEUE_TOPIC_LENGTHS_AT : frame_kernels.QUEUE_IDS_AT].view(np.int32)
    queue_ids = table[frame_kernels.QUEUE_IDS_AT :].view(np.int32)
    return QueueNames(positions[:count], lengths[:count], queue_ids[:count])


def _damages(
    data: npt.NDArray[np.uint8], base_offset: int, rows: _Rows, run: tuple[int, bytes]
) -> tuple[Damage, ...]:
    """Return one damage for each run of undecodable rows. After a thousand, one entry sums up the rest.

    :param run: start and first bytes of a run from an earlier chunk, since that chunk may not be in memory.
    """
    bad = np.flatnonzero(rows.kinds == FrameKind.UNDECODABLE)
    if len(bad) == 0:
        return ()
    first = np.flatnonzero(np.diff(rows.origins[bad], prepend=-1))
    run_sizes = np.add.reduceat(rows.sizes[bad].astype(np.int64), first)
    result = []
    for row, size in zip(bad[first[:_MAX_DAMAGES]].tolist(), run_sizes.tolist(), strict=False):
        origin = int(rows.origins[row])
        header = run[1] if origin == run[0] else _header(data, origin)
        expected, found = _explain(header, len(data), base_offset, origin, int(rows.faults[row]))
        result.append(Damage(base_offset + int(rows.positions[row]), size, expected, found))
    if len(first) > _MAX_DAMAGES:
        rest = bad[first[_MAX_DAMAGES]]
        result.append(
            Damage(
                base_offset + int(rows.positions[rest]),
                int(run_sizes[_MAX_DAMAGES:].sum()),
                "valid frames",
                f"{len(first) - _MAX_DAMAGES} more runs of bad bytes up to offset "
                f"{base_offset + int(rows.positions[bad[-1]]) + int(rows.sizes[bad[-1]])}",
            )
        )
    return tuple(result)


def _header(data: npt.NDArray[np.uint8], position: int) -> bytes:
    return data[position : position + frame.SYS_FLAG_AT].tobytes()


def _explain(header: bytes, length: int, base_offset: int, position: int, fault: int) -> tuple[str, str]:
    """Return two texts for a message: what a valid frame at ``position`` would have, and what is there."""
    from storage_engine.rocketmq.codec import frame_kernels

    remaining = length - position
    if fault == frame_kernels.FAULT_TRUNCATED:
        return f"a frame of at least {frame.BLANK_HEADER_BYTES} bytes", f"{remaining} bytes before the end"
    size, magic = struct.unpack_from(">iI", header)
    if fault == frame_kernels.FAULT_MAGIC:
        expected = f"magic {frame.MAGIC_V1:08x}, {frame.MAGIC_V2:08x} or {frame.MAGIC_BLANK:08x}"
        return expected, f"{magic:08x}" + (" (nothing was ever written here)" if not any(header) else "")
    if fault == frame_kernels.FAULT_BLANK_SIZE:
        return f"a blank frame of all {remaining} remaining bytes", f"size {size}"
    if fault == frame_kernels.FAULT_SIZE:
        return f"a frame size from {frame.MIN_MESSAGE_BYTES} to {remaining}", str(size)
    if fault == frame_kernels.FAULT_PHYSICAL_OFFSET:
        (named,) = _INT64.unpack_from(header, frame.PHYSICAL_OFFSET_AT)
        return f"physical offset {base_offset + position} in the header", str(named)
    if fault == frame_kernels.FAULT_LENGTHS:
        return f"body, topic and properties lengths that make up {size} bytes", "others"
    if fault == frame_kernels.FAULT_BODY_CRC:
        (crc,) = _UINT32.unpack_from(header, frame.BODY_CRC_AT)
        return f"a body with CRC {crc:08x}", "another CRC"
    return "a frame with the CRC that its properties end with", "another CRC"


def near_logical_end(data: memoryview, base_offset: int) -> int:
    """Return the position at which a segment's frames end, by a quick search; 0 if it begins with no frame.

    :param data: the whole segment file.
    """
    if not _frame_bytes(data, 0, base_offset):
        return 0
    low, high = 0, -(-len(data) // _BLOCK)
    while low < high:
        middle = (low + high) // 2
        if any(data[middle * _BLOCK : (middle + 1) * _BLOCK]):
            low = middle + 1
        else:
            high = middle
    at = _last_message(data, base_offset, min(low * _BLOCK, len(data)))
    while size := _frame_bytes(data, at, base_offset):
        at += size
    return at


def last_message(data: memoryview, base_offset: int) -> bytes:
    """Return the bytes of a full segment's last message; empty if there is none near the segment's end.

    :param data: the whole segment file.
    """
    at = _last_message(data, base_offset, len(data))
    return bytes(data[at : at + _frame_bytes(data, at, base_offset)]) if at else b""


def _last_message(data: memoryview, base_offset: int, end: int) -> int:
    """Return the position of the last message that begins before ``end``; 0 if no message begins near it."""
    starts = message_starts(lambda start, stop: bytes(data[start:stop]), end)
    return next((at for at in starts if _frame_bytes(data, at, base_offset)), 0)


def message_starts(read: Callable[[int, int], bytes], end: int) -> Iterator[int]:
    """Yield the positions at which a message may begin, backwards from a position.

    A magic within a body counts as well. The caller must compare the physical offset in the header.

    :param read: returns the segment's bytes between two positions.
    """
    for window in _WINDOWS_BYTES:
        start = max(0, end - window)
        block = read(start, end)
        at = len(block)
        while (at := max(block.rfind(magic, 0, at) for magic in _MAGICS)) >= 0:
            yield start + at - frame.MAGIC_AT
        if start == 0:
            return


def _frame_bytes(data: memoryview, at: int, base_offset: int) -> int:
    """Return the size of the frame at a position; 0 if no frame begins there."""
    if at < 0 or at + frame.BLANK_HEADER_BYTES > len(data):
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
    if magic == frame.MAGIC_BLANK:
        return len(data) - at if size == len(data) - at else 0
    if magic not in frame.MESSAGE_MAGICS or not frame.MIN_MESSAGE_BYTES <= size <= len(data) - at:
        return 0
    (offset,) = _INT64.unpack_from(data, at + frame.PHYSICAL_OFFSET_AT)
    return size if offset == base_offset + at else 0
