"""A segment's ``.index``: positions of batches by offset (OffsetIndex). It can be created again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_engine.kafka.format.file_names import check_entries, corrupt

ENTRY_BYTES = 8
_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_REMEDY = "Remove it while the broker is stopped: the broker makes it again when it starts."


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """The entries of an offset index: a batch's last offset, and a position at or before that batch.

    :param slots: the number of entries that the file has room for. Unused slots are zero.
    """

    offsets: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: int


def parse_offset_index(data: bytes | memoryview, base_offset: int, path: str) -> OffsetIndex:
    """Read an index.

    :param base_offset: the segment's base offset, from which the entries count.
    :raises CorruptFileError: entries aren't whole, or don't grow.
    """
    check_entries(len(data), ENTRY_BYTES, path, _REMEDY)
    entries = np.frombuffer(data, _ENTRY)
    used = np.flatnonzero((entries["offset"] != 0) | (entries["position"] != 0))
    count = int(used[-1]) + 1 if len(used) else 0
    relative = entries["offset"][:count].astype(np.int64)
    positions = entries["position"][:count].astype(np.int64)
    wrong = (relative < 0) | (positions < 0)
    wrong[1:] |= (relative[1:] <= relative[:-1]) | (positions[1:] <= positions[:-1])
    if wrong.any():
        i = int(np.argmax(wrong))
        entry = f"relative offset {relative[i]}, position {positions[i]}"
        raise corrupt(
            path, i * ENTRY_BYTES, "a larger offset and position than in the entry before", entry, _REMEDY
        )
    return OffsetIndex(base_offset + relative, positions, len(entries))
