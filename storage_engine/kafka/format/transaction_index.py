"""A segment's ``.txnindex``: its aborted transactions (TransactionIndex).

It can't be created again once older segments are deleted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from storage_engine.kafka.format.file_names import check_entries, corrupt

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_REMEDY = "Bring it back from a backup or a replica: without it readers see aborted records."


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction. Consumers of committed records skip its records [first_offset, last_offset].

    :param last_offset: offset of its marker, which is in the index's segment.
    :param last_stable_offset: when this transaction ended, no other transaction was open below this offset.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_transaction_index(data: bytes, path: str) -> tuple[AbortedTransaction, ...]:
    """Read an index.

    :raises CorruptFileError: entries aren't whole, don't grow, or have another version.
    """
    check_entries(len(data), _ENTRY.size, path, _REMEDY)
    entries: list[AbortedTransaction] = []
    for place, (version, *words) in enumerate(_ENTRY.iter_unpack(data)):
        at = place * _ENTRY.size
        if version != VERSION:
            raise corrupt(path, at, f"version {VERSION}", str(version), _REMEDY)
        entry = AbortedTransaction(*words)
        if not 0 <= entry.first_offset <= entry.last_offset:
            raise corrupt(
                path, at, "a range of offsets", f"[{entry.first_offset}, {entry.last_offset}]", _REMEDY
            )
        if entries and entry.last_offset <= entries[-1].last_offset:
            above = f"a last offset above {entries[-1].last_offset}"
            raise corrupt(path, at, above, str(entry.last_offset), _REMEDY)
        entries.append(entry)
    return tuple(entries)
