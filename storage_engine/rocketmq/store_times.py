"""Store timestamps of many messages by physical offset, from their headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_engine.rocketmq import frame
from storage_engine.rocketmq.mapped_files import mapped

UNKNOWN = -1
"""Stands for an offset or a time that can't be told; the real ones are not negative."""

_HEADER_BYTES = frame.STORE_HOST_AT + frame.IPV6_EXTRA_BYTES


@dataclass(frozen=True, slots=True)
class LogFile:
    """A commitlog file; the part of a segment that reading needs."""

    path: str
    base_offset: int
    size_bytes: int


def store_timestamps(files: Sequence[LogFile], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Store timestamp, in milliseconds, of the message that begins at each physical offset.

    :param files: the commitlog's, oldest first.
    :param offsets: in ascending order.
    :return: :data:`UNKNOWN` where no file has the offset or no message begins there.
    :raises OSError: a file can't be read.
    """
    times = np.full(len(offsets), UNKNOWN, dtype=np.int64)
    for file in files:
        low, high = np.searchsorted(offsets, [file.base_offset, file.base_offset + file.size_bytes])
        if low < high:
            times[low:high] = _in_file(file, offsets[low:high])
    return times


def _in_file(file: LogFile, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    positions = offsets - file.base_offset
    fits = positions + _HEADER_BYTES <= file.size_bytes
    with mapped(Path(file.path)) as data:
        headers = np.frombuffer(data, np.uint8)[
            np.where(fits, positions, 0)[:, np.newaxis] + np.arange(_HEADER_BYTES)
        ]
    magic = _field(headers, frame.MAGIC_AT, ">u4")
    genuine = (
        fits
        & ((magic == frame.MAGIC_V1) | (magic == frame.MAGIC_V2))
        & (_field(headers, frame.PHYSICAL_OFFSET_AT, ">i8") == offsets)
    )
    ipv6 = (_field(headers, frame.SYS_FLAG_AT, ">u4") & frame.BORN_HOST_IPV6) != 0
    times = np.where(
        ipv6,
        _field(headers, frame.STORE_TIMESTAMP_AT + frame.IPV6_EXTRA_BYTES, ">i8"),
        _field(headers, frame.STORE_TIMESTAMP_AT, ">i8"),
    )
    return np.where(genuine, times, UNKNOWN)


def _field(headers: npt.NDArray[np.uint8], at: int, dtype: str) -> npt.NDArray[np.int64]:
    size = np.dtype(dtype).itemsize
    column: npt.NDArray[np.int64] = (
        np.ascontiguousarray(headers[:, at : at + size]).view(dtype)[:, 0].astype(np.int64)
    )
    return column
