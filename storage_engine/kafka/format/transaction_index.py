"""A segment's ``.txnindex``: the transactions that were aborted (TransactionIndex). Nobody can make it again
once older segments are gone."""

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
    """A transaction whose records [first_offset, last_offset] readers of committed records skip.

    :param last_offset: of its marker, which lies in the index's segment.
    :param last_stable_offset: below it no transaction was open when this one ended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_transaction_index(data: bytes, path: str) -> tuple[AbortedTransaction, ...]:
    """Read an index.

    :param path: for messages.
    :raises CorruptFileError: it has no whole entries, one is of another version, or they don't grow.
    """
    check_entries(len(data), _ENTRY.size, path, _REMEDY)
    found: list[AbortedTransaction] = []
    for place, (version, *words) in enumerate(_ENTRY.iter_unpack(data)):
        at = place * _ENTRY.size
        if version != VERSION:
            raise corrupt(path, at, f"version {VERSION}", str(version), _REMEDY)
        entry = AbortedTransaction(*words)
        if not 0 <= entry.first_offset <= entry.last_offset:
            raise corrupt(
                path, at, "a range of offsets", f"[{entry.first_offset}, {entry.last_offset}]", _REMEDY
            )
        if found and entry.last_offset <= found[-1].last_offset:
            above = f"a last offset above {found[-1].last_offset}"
            raise corrupt(path, at, above, str(entry.last_offset), _REMEDY)
        found.append(entry)
    return tuple(found)
