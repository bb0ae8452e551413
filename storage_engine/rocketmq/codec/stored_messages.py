"""Lookup of single messages in the commitlog by their physical offsets. Only these messages are read."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from storage_engine.exceptions import CorruptFileError, CorruptFrameError
from storage_engine.model.store import Segment, SegmentId, SegmentState, StoreSnapshot
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.commitlog import message_starts, read_store_timestamp
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile, list_raw_files, map_file, readable_files
from storage_engine.rocketmq.format.stored_files import open_stored

Longs = npt.NDArray[np.int64]
UNKNOWN = -1
"""Value for an unknown offset or time; real values are not negative."""

_HEADER_BYTES = frame.STORE_HOST_AT + frame.IPV6_EXTRA_BYTES
_HEADER = np.dtype(
    {
        "names": ["magic", "physical_offset", "sys_flag", "time", "time_behind_ipv6"],
        "formats": [">u4", ">i8", ">u4", ">i8", ">i8"],
        "offsets": [
            frame.MAGIC_AT,
            frame.PHYSICAL_OFFSET_AT,
            frame.SYS_FLAG_AT,
            frame.STORE_TIMESTAMP_AT,
            frame.STORE_TIMESTAMP_AT + frame.IPV6_EXTRA_BYTES,
        ],
        "itemsize": _HEADER_BYTES,
    }
)


class StoredMessage(NamedTuple):
    topic: bytes
    body: bytes
    properties: bytes

    def property(self, name: bytes) -> bytes | None:
        """Return a property's value; None if the message has no property of this name.

        Of several values that aren't empty, the last counts (MessageDecoder#string2messageProperties).
        """
        for pair in reversed(self.properties.split(bytes([frame.PROPERTY_SEPARATOR]))):
            key, _, value = pair.partition(bytes([frame.NAME_VALUE_SEPARATOR]))
            if value and key == name:
                return value
        return None


def stored_messages(files: Sequence[MappedFile], offsets: Longs) -> Iterator[StoredMessage]:
    """Yield the messages that begin at these physical offsets.

    :param files: files of the commitlog, oldest first.
    :param offsets: ascending, none below the log's min offset.
    :raises CorruptFileError: no message begins at one of the offsets.
    """
    behind = 0
    for file in files:
        low, high = np.searchsorted(offsets, [file.base_offset, file.end_offset])
        behind = int(high)
        if low < high:
            with map_file(file.path) as data:
                for offset in offsets[low:high].tolist():
                    try:
                        yield read_message(data, offset - file.base_offset, offset)
                    except (struct.error, ValueError) as error:
                        raise CorruptFileError(
                            f"{file.path}: position {offset - file.base_offset}: expected the message that a "
                            f"consume queue has at physical offset {offset}, found none ({error}). Compare "
                            "the file with a replica."
                        ) from error
    if behind < len(offsets):
        raise CorruptFileError(
            f"{files[-1].path}: expected a message at physical offset {offsets[behind]}, which a consume "
            "queue has, found the commitlog's end. Start the broker, which recovers the store, and stop it "
            "cleanly."
        )


def read_message(data: memoryview, position: int, offset: int) -> StoredMessage:
    """Read the message that begins at a position of a segment.

    :raises ValueError: no message begins there.
    :raises struct.error: the segment ends within the message.
    """
    size, magic = struct.unpack_from(">iI", data, position)
    (physical_offset,) = struct.unpack_from(">q", data, position + frame.PHYSICAL_OFFSET_AT)
    (sys_flag,) = struct.unpack_from(">i", data, position + frame.SYS_FLAG_AT)
    if magic not in frame.MESSAGE_MAGICS or physical_offset != offset:
        raise ValueError(f"magic {magic:08x}, physical offset {physical_offset}")
    flags = (frame.BORN_HOST_IPV6, frame.STORE_HOST_IPV6)
    moved = sum(frame.IPV6_EXTRA_BYTES for flag in flags if sys_flag & flag)
    at = position + frame.BODY_LENGTH_AT + moved
    (body_length,) = struct.unpack_from(">i", data, at)
    body_end = at + 4 + body_length
    (topic_length,) = struct.unpack_from(">B" if magic == frame.MAGIC_V1 else ">H", data, body_end)
    topic_at = body_end + (1 if magic == frame.MAGIC_V1 else 2)
    properties_at = topic_at + topic_length + 2
    (properties_length,) = struct.unpack_from(">H", data, properties_at - 2)
    if body_length < 0 or properties_at + properties_length > position + size:
        raise ValueError(f"size {size}, body of {body_length} bytes")
    return StoredMessage(
        bytes(data[topic_at : topic_at + topic_length]),
        bytes(data[at + 4 : body_end]),
        bytes(data[properties_at : properties_at + properties_length]),
    )


def file_of(segment: Segment) -> MappedFile:
    return MappedFile(Path(segment.facts.path), segment.base_offset, segment.facts.size_bytes)


def store_timestamps(
    files: Sequence[MappedFile], offsets: npt.NDArray[np.int64], *, may_go: bool = False
) -> npt.NDArray[np.int64]:
    """Return the store timestamp, in ms since the epoch, of the message that begins at each physical offset.

    :param files: files of the commitlog, oldest first.
    :param offsets: ascending.
    :param may_go: ignore a file that a running broker has deleted since it was listed.
    :return: one time for each offset; :data:`UNKNOWN` if no file has the offset, or no message begins there.
    :raises OSError: a file can't be read.
    """
    times = np.full(len(offsets), UNKNOWN, dtype=np.int64)
    for file in files:
        low, high = np.searchsorted(offsets, [file.base_offset, file.end_offset])
        if low < high:
            with suppress(FileNotFoundError) if may_go else nullcontext():
                times[low:high] = _read_times(file, offsets[low:high])
    return times


def sealed_at_ms(snapshot: StoreSnapshot, *, may_go: bool = False) -> dict[SegmentId, int]:
    """Return the time of the last write to each sealed segment: the store time of the next message.

    That message didn't fit into the segment, which was then filled up. Unlike an mtime, the
    message's store time never changes.

    :return: times by segment. Segments with an unknown time are left out.
    :raises OSError: a file can't be read.
    """
    times_ms = {}
    for log in snapshot.logs:
        for segment, behind in pairwise(log.segments):
            if segment.state is SegmentState.SEALED:
                file = file_of(behind)
                time_ms = int(store_timestamps([file], np.array([file.base_offset]), may_go=may_go)[0])
                if time_ms != UNKNOWN:
                    times_ms[segment.id] = time_ms
    return times_ms


def oldest_message_ms(snapshot: StoreSnapshot) -> int | None:
    """Return the first message's store time; None if the log has no message, or its file has vanished.

    :raises OSError: a file can't be read.
    """
    times_ms = []
    for file in (file_of(log.segments[0]) for log in snapshot.logs if log.segments):
        times_ms += store_timestamps([file], np.array([file.base_offset]), may_go=True).tolist()
    return min((time_ms for time_ms in times_ms if time_ms != UNKNOWN), default=None)


def newest_message_ms(layout: StoreLayout, max_offset: int) -> int | None:
    """Return the store time, in ms since the epoch, of the last message before ``max_offset``.

    :param max_offset: the broker's max offset. Bytes behind it aren't read, since they may be half written.
    :return: None if no file has this offset, or its file has no message.
    :raises OSError: the file can't be read.
    """
    for file in readable_files(list_raw_files(layout.log_paths)):
        if file.base_offset < max_offset <= file.end_offset:
            return _read_newest(file, max_offset - file.base_offset)
    return None


def _read_newest(file: MappedFile, end: int) -> int | None:
    with open_stored(file.path) as opened:
        for at in message_starts(lambda start, stop: os.pread(opened.fileno(), stop - start, start), end):
            with suppress(CorruptFrameError, OSError, ValueError):
                return read_store_timestamp(file.path, at, file.base_offset)
    return None


def _read_times(file: MappedFile, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    positions = offsets - file.base_offset
    fits = positions + _HEADER_BYTES <= file.size_bytes
    if not fits.any():
        return np.full(len(offsets), UNKNOWN, dtype=np.int64)
    with map_file(file.path) as data:
        # a header may begin at any byte
        at_each_byte: npt.NDArray[np.void] = np.ndarray(
            (len(data) - _HEADER_BYTES + 1,), _HEADER, buffer=data, strides=(1,)
        )
        headers = at_each_byte[np.where(fits, positions, 0)]
        del at_each_byte
    is_message = (
        fits & np.isin(headers["magic"], frame.MESSAGE_MAGICS) & (headers["physical_offset"] == offsets)
    )
    ipv6 = (headers["sys_flag"] & frame.BORN_HOST_IPV6) != 0
    times = np.where(ipv6, headers["time_behind_ipv6"], headers["time"])
    return np.where(is_message, times, UNKNOWN).astype(np.int64)
