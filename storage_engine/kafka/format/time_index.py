"""A segment's ``.timeindex``: largest timestamps so far, by offset (TimeIndex). Can be made again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_engine.kafka.format.stored_files import check_entries, corrupt

ENTRY_BYTES = 12
_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_REMEDY = "Remove it while the broker is stopped: the broker makes it again when it starts."


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """Entries as they lie: up to this offset no record has a larger timestamp.

    :param slots: for which the file has room; what a broker has not used is zero.
    """

    timestamps_ms: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    slots: int


def parse_time_index(data: bytes | memoryview, base_offset: int, path: str) -> TimeIndex:
    """Read an index.

    :param base_offset: of its segment.
    :param path: for messages.
    :raises CorruptFileError: it has no whole entries, or they don't grow.
    """
    check_entries(len(data), ENTRY_BYTES, path, _REMEDY)
    entries = np.frombuffer(data, _ENTRY)
    used = np.flatnonzero((entries["timestamp"] != 0) | (entries["offset"] != 0))
    count = int(used[-1]) + 1 if len(used) else 0
    relative = entries["offset"][:count].astype(np.int64)
    timestamps = entries["timestamp"][:count].astype(np.int64)
    wrong = relative < 0
    wrong[1:] |= (relative[1:] < relative[:-1]) | (timestamps[1:] < timestamps[:-1])
    if wrong.any():
        i = int(np.argmax(wrong))
        found = f"timestamp {timestamps[i]}, relative offset {relative[i]}"
        raise corrupt(path, i * ENTRY_BYTES, "an entry not before the last one", found, _REMEDY)
    return TimeIndex(timestamps, base_offset + relative, len(entries))
