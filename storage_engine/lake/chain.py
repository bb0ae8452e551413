"""The chain that links a store's receipts: whoever changes, removes, adds or reorders one is found out.

A row's hash covers its fields and the hash of the row before. Fields without a value are left out, so that
a column which a later version adds, and older rows lack, leaves their hashes as they were. That the last
rows are missing no chain can show: who knows how long it was (the journal does) says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from storage_engine.exceptions import ReceiptError
from storage_engine.lake.errors import metadata_errors
from storage_engine.lake.filters import all_equal
from storage_engine.model.receipt import PROOF_VERSION, Receipt

CHAIN_START = "0" * 64
"""``previous_hash`` of a store's first row."""

_WHAT_NOW = (
    "Nothing was changed. Find out who writes to the lake; receipts of this store prove nothing now. Roll "
    "the table segments back to a snapshot before it, or bring it back from a backup."
)


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last row of a store's chain, or the last one that somebody knows of."""

    sequence: int
    row_hash: str

    @classmethod
    def of(cls, receipts: Iterable[Receipt]) -> ChainHead:
        """The last of some rows of one store; the start of the chain when there are none."""
        last = max(receipts, key=lambda row: row.sequence, default=None)
        return EMPTY_CHAIN if last is None else cls(last.sequence, last.row_hash)


EMPTY_CHAIN = ChainHead(-1, CHAIN_START)


def row_hash(receipt: Mapping[str, Any]) -> str:
    """SHA-256, in hex, over the canonical JSON of all other fields that have a value."""
    content = {name: value for name, value in receipt.items() if name != "row_hash" and value is not None}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def row_fault(row: Receipt) -> str:
    """Why a row, looked at by itself, can't be trusted; "" when it can."""
    if row.proof_version > PROOF_VERSION:
        return (
            f"proof version {row.proof_version}, this version knows up to {PROOF_VERSION}: use the release "
            "of storage-engine that wrote it, or a later one"
        )
    if row.row_hash != row_hash(asdict(row)):
        return "it was changed after it was written"
    return ""


def check_chain(rows: Iterable[Receipt], known: Collection[ChainHead] = ()) -> ChainHead:
    """Check every row of one store, and that each follows the one before.

    :param rows: all rows of the store, superseded ones too, in any order.
    :param known: rows that the chain is known to have had.
    :return: the last row's place.
    :raises ReceiptError: when a row was changed, removed, or added by somebody else.
    """
    ordered = sorted(rows, key=lambda row: row.sequence)
    for row in ordered:
        if fault := row_fault(row):
            raise ReceiptError(f"receipt of {receipt_name(row)}: {fault}. {_WHAT_NOW}")
    store_id = ordered[0].store_id if ordered else ""
    return _check_links(
        store_id,
        np.array([row.sequence for row in ordered], dtype=np.int64),
        [row.previous_hash for row in ordered],
        [row.row_hash for row in ordered],
        known,
    )


def check_links(table: Table, store_id: str, known: Collection[ChainHead] = ()) -> ChainHead:
    """Check that each row of a store follows the one before, without hashing the rows' fields.

    Cheap enough for every commit: three columns are read. Whoever relies on a row checks its fields.

    :param table: ``segments``, as loaded: its state is the one that counts.
    :param known: rows that the chain is known to have had.
    :return: the last row's place.
    :raises ReceiptError: when a row was removed, replaced, or added by somebody else.
    :raises LakeUnavailableError: the table can't be read.
    """
    columns = ("sequence", "previous_hash", "row_hash")
    with metadata_errors(table.location(), "read receipts"):
        found = table.scan(row_filter=all_equal({"store_id": store_id}), selected_fields=columns).to_arrow()
    found = found.sort_by("sequence")
    sequences = found["sequence"].to_numpy()
    return _check_links(store_id, sequences, found["previous_hash"], found["row_hash"], known)


def receipt_name(receipt: Receipt) -> str:
    return f"store {receipt.store_id} lineage {receipt.lineage} {receipt.log}/{receipt.base_offset:020d}"


def _check_links(
    store_id: str,
    sequences: np.ndarray[Any, np.dtype[np.int64]],
    previous: Sequence[str] | pa.ChunkedArray[Any],
    hashes: Sequence[str] | pa.ChunkedArray[Any],
    known: Collection[ChainHead],
) -> ChainHead:
    """:param sequences: ascending."""
    wrong = np.flatnonzero(sequences != np.arange(len(sequences)))
    if len(wrong):
        at = int(wrong[0])
        if sequences[at] < at:
            what = f"two rows are number {int(sequences[at])}: one was added from elsewhere"
        else:
            what = f"row number {at} is not there: it was removed or replaced"
        raise ReceiptError(f"receipts of store {store_id}: {what}. {_WHAT_NOW}")
    following = np.array([CHAIN_START, *_texts(hashes)])
    broken = np.flatnonzero(following[:-1] != np.array(_texts(previous), dtype=following.dtype))
    if len(broken):
        at = int(broken[0])
        raise ReceiptError(
            f"receipts of store {store_id}: row number {at} does not follow row number {at - 1}: one of them "
            f"was removed or replaced. {_WHAT_NOW}"
        )
    head = ChainHead(len(sequences) - 1, str(following[-1]))
    for row in known:
        found = str(following[row.sequence + 1]) if row.sequence <= head.sequence else "no row"
        if found != row.row_hash:
            raise ReceiptError(
                f"receipts of store {store_id}: expected row number {row.sequence} with the hash "
                f"{row.row_hash}, which journal or stamp recorded, found {found}; the table's last row is "
                f"number {head.sequence}: the last rows were removed or replaced, or the table was rolled "
                f"back. {_WHAT_NOW}"
            )
    return head


def _texts(column: Sequence[str] | pa.ChunkedArray[Any]) -> Sequence[str]:
    return [str(text) for text in column.to_pylist()] if isinstance(column, pa.ChunkedArray) else column
