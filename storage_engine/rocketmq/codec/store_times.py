"""Store timestamps of many messages by physical offset, from their headers alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_engine.exceptions import CorruptFrameError
from storage_engine.model.store.store import SegmentId, SegmentState, StoreSnapshot
from storage_engine.rocketmq.codec import frame
from storage_engine.rocketmq.codec.commitlog import message_starts, read_store_timestamp
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile, list_raw_files, mapped, readable_files
from storage_engine.rocketmq.format.stored_files import open_stored

UNKNOWN = -1
"""Stands for an offset or a time that can't be told; the real ones are not negative."""

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


@dataclass(frozen=True, slots=True)
class LogFile:
    """A commitlog file; the part of a segment that reading needs."""

    path: str
    base_offset: int
    size_bytes: int


def store_timestamps(
    files: Sequence[LogFile], offsets: npt.NDArray[np.int64], *, may_go: bool = False
) -> npt.NDArray[np.int64]:
    """Store timestamp, in milliseconds, of the message that begins at each physical offset.

    :param files: the commitlog's, oldest first.
    :param offsets: in ascending order.
    :param may_go: a running broker may delete a file meanwhile; it has no offset then.
    :return: :data:`UNKNOWN` where no file has the offset or no message begins there.
    :raises OSError: a file can't be read.
    """
    times = np.full(len(offsets), UNKNOWN, dtype=np.int64)
    for file in files:
        low, high = np.searchsorted(offsets, [file.base_offset, file.base_offset + file.size_bytes])
        if low < high:
            with suppress(FileNotFoundError) if may_go else nullcontext():
                times[low:high] = _in_file(file, offsets[low:high])
    return times


def sealed_at_ms(snapshot: StoreSnapshot, *, may_go: bool = False) -> dict[SegmentId, int]:
    """Return when sealed segments were written to last, by the store time of the message that came after.

    That one didn't fit into the segment, which was filled up for it. Nobody changes it with a file's times.

    :param may_go: as for :func:`store_timestamps`.
    :return: without segments of which that can't be told.
    :raises OSError: a file can't be read.
    """
    found = {}
    for log in snapshot.logs:
        for segment, behind in pairwise(log.segments):
            if segment.state is SegmentState.SEALED:
                file = LogFile(behind.facts.path, behind.base_offset, behind.facts.size_bytes)
                time_ms = int(store_timestamps([file], np.array([file.base_offset]), may_go=may_go)[0])
                if time_ms != UNKNOWN:
                    found[segment.id] = time_ms
    return found


def oldest_message_ms(snapshot: StoreSnapshot) -> int | None:
    """Return when the first message was stored; None: there is none, or its file went away meanwhile.

    :raises OSError: a file can't be read.
    """
    found = []
    for first in (log.segments[0] for log in snapshot.logs if log.segments):
        file = LogFile(first.facts.path, first.base_offset, first.facts.size_bytes)
        found += store_timestamps([file], np.array([file.base_offset]), may_go=True).tolist()
    return min((time_ms for time_ms in found if time_ms != UNKNOWN), default=None)


def newest_message_ms(layout: StoreLayout, max_offset: int) -> int | None:
    """Store time of the last message before ``max_offset``; None where its file has none or is gone.

    :param max_offset: the broker's; nothing behind it is looked at, as it may be half written.
    :raises OSError: the file can't be read.
    """
    for file in readable_files(list_raw_files(layout.log_paths)):
        if file.base_offset < max_offset <= file.end_offset:
            return _newest_in(file, max_offset - file.base_offset)
    return None


def _newest_in(file: MappedFile, end: int) -> int | None:
    with open_stored(file.path) as opened:
        for at in message_starts(lambda start, stop: os.pread(opened.fileno(), stop - start, start), end):
            with suppress(CorruptFrameError, OSError, ValueError):
                return read_store_timestamp(file.path, at, file.base_offset)
    return None


def _in_file(file: LogFile, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    positions = offsets - file.base_offset
    fits = positions + _HEADER_BYTES <= file.size_bytes
    if not fits.any():
        return np.full(len(offsets), UNKNOWN, dtype=np.int64)
    with mapped(Path(file.path)) as data:
        # a header may begin at any byte
        at_each_byte: npt.NDArray[np.void] = np.ndarray(
            (len(data) - _HEADER_BYTES + 1,), _HEADER, buffer=data, strides=(1,)
        )
        headers = at_each_byte[np.where(fits, positions, 0)]
        del at_each_byte
    magic = headers["magic"]
    genuine = (
        fits
        & ((magic == frame.MAGIC_V1) | (magic == frame.MAGIC_V2))
        & (headers["physical_offset"] == offsets)
    )
    ipv6 = (headers["sys_flag"] & frame.BORN_HOST_IPV6) != 0
    times = np.where(ipv6, headers["time_behind_ipv6"], headers["time"])
    return np.where(genuine, times, UNKNOWN).astype(np.int64)
