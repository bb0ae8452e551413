"""The chain that links a store's receipts. It shows if a receipt was changed, removed, added or reordered.

A row's hash covers its fields and the hash of the row before. Fields without a value are left out. So a
column that a later version adds, and that older rows lack, doesn't change their hashes. A chain can't show
that its last rows are missing. The journal knows the chain's length, and so shows such a loss.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.table import FileScanTask, Table

from storage_engine.exceptions import ReceiptError
from storage_engine.lake.durable_io import open_data_file
from storage_engine.lake.file.scan import all_equal, between, is_whole_file, plan_files, read_files
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.lake.storage.small_files import FileMemory
from storage_engine.model.proof.receipt import (
    CHAIN_START,
    PROOF_VERSION,
    ChainHead,
    Receipt,
    files_fault,
    read_row_groups,
)

_LINK_TYPES: dict[str, pa.DataType] = {
    "sequence": pa.int64(),
    "previous_hash": pa.large_string(),
    "row_hash": pa.large_string(),
}
_LINKS = pa.schema([pa.field(name, kind) for name, kind in _LINK_TYPES.items()])

_chains: FileMemory[dict[tuple[str, int], pa.Table]] = FileMemory(most=2)
"""For each snapshot's manifest list, the links of rows by store and number of the first row."""

_LAST = 2**63 - 1

_files: FileMemory[pa.Table] = FileMemory(most=500_000)
"""Links by data file. The cache's limit is a number of rows; each row takes some 140 bytes."""

_heads: dict[tuple[str, str], ChainHead] = {}
"""The last row of a chain that this process has checked, by table and store."""

_HASHED = sorted(set(Receipt.__dataclass_fields__) - {"row_hash"})
_KEYS = [f'"{name}":' for name in _HASHED]
_values = attrgetter(*_HASHED)

_WHAT_NOW = (
    "Nothing was changed. Find out who writes to the lake; receipts of this store prove nothing now. Roll "
    "the table segments back to a snapshot from before this change, or bring it back from a backup."
)


def row_hash(receipt: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, over the canonical JSON of all fields with a value, except ``row_hash``."""
    content = {name: value for name, value in receipt.items() if name != "row_hash" and value is not None}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_of(row: Receipt) -> str:
    """Return :func:`row_hash` of a receipt in a third of the time: a lake may have 1,000,000 receipts."""
    text = ",".join(
        [
            key + (encode_basestring_ascii(value) if type(value) is str else str(value))
            for key, value in zip(_KEYS, _values(row), strict=True)
            if value is not None
        ]
    )
    return hashlib.sha256(f"{{{text}}}".encode()).hexdigest()


def row_faults(rows: Iterable[Receipt]) -> dict[int, str]:
    """Return why rows can't be trusted, by their ``id``. Trustworthy rows are left out."""
    return {id(row): fault for row in rows if (fault := row_fault(row))}


def row_fault(row: Receipt) -> str:
    """Return why a row can't be trusted, without a look at the chain; "" if it can be trusted."""
    if row.proof_version > PROOF_VERSION:
        return (
            f"proof version {row.proof_version}, and this release knows up to {PROOF_VERSION}: use the "
            "release of storage-engine that wrote it, or a later one"
        )
    if row.row_hash != hash_of(row):
        return "it was changed after it was written"
    try:
        read_row_groups(row.row_groups)
    except ReceiptError as error:
        return str(error)
    return files_fault(row.files)


def check_chain(
    rows: Iterable[Receipt], known: Collection[ChainHead] = (), faults: Mapping[int, str] | None = None
) -> ChainHead:
    """Check every row of one store, and that each follows the row before it.

    :param rows: all rows of the store, superseded ones too, in any order.
    :param known: rows that the chain is known to have had.
    :param faults: result of :func:`row_faults` for these rows; None if they weren't checked yet.
    :return: number and hash of the last row.
    :raises ReceiptError: a row was changed, removed, or added by another program.
    """
    ordered = sorted(rows, key=lambda row: row.sequence)
    faults = row_faults(ordered) if faults is None else faults
    for row in ordered if faults else ():
        if fault := faults.get(id(row)):
            raise ReceiptError(f"receipt of {receipt_name(row)}: {fault}. {_WHAT_NOW}")
    return check_links_of(ordered, known)


def check_links_of(rows: Iterable[Receipt], known: Collection[ChainHead] = ()) -> ChainHead:
    """Do the same as :func:`check_links` for rows that were read already."""
    ordered = sorted(rows, key=lambda row: row.sequence)
    store_id = ordered[0].store_id if ordered else ""
    return _check_links(
        store_id,
        np.array([row.sequence for row in ordered], dtype=np.int64),
        [row.previous_hash for row in ordered],
        [row.row_hash for row in ordered],
        known,
    )


def check_links(
    table: Table, store_id: str, known: Collection[ChainHead] = (), *, whole: bool = False
) -> ChainHead:
    """Check that each row of a store follows the row before it, without hashing the rows' fields.

    This is cheap: it reads three columns of the oldest known row and of later rows. If the check of these
    rows fails, or if no row is known, all rows are checked. A caller that relies on a row must check its
    fields.

    :param table: the loaded table ``segments``.
    :param known: rows that the chain is known to have had.
    :param whole: check all rows, even if some are known.
    :return: number and hash of the last row.
    :raises ReceiptError: a row was removed, replaced, or added by another program.
    :raises LakeUnavailableError: the table can't be read.
    """
    head: ChainHead | None = None
    first = 0 if whole else min((row.sequence for row in known), default=0)
    if first > 0:
        with suppress(ReceiptError):
            head = _check(table, store_id, known, first)
    if head is None:
        head = _check(table, store_id, known, 0)
    _heads[str(table.metadata.table_uuid), store_id] = head
    return head


def check_links_on(table: Table, store_id: str) -> ChainHead:
    """Check the links before a commit: from the last row that this process has checked, or all links."""
    begin = _heads.get((str(table.metadata.table_uuid), store_id))
    if begin is not None and begin.sequence >= 0:
        # If the table was rolled back meanwhile, the whole chain is checked.
        with suppress(ReceiptError):
            return check_links(table, store_id, (begin,))
    return check_links(table, store_id)


def _check(table: Table, store_id: str, heads: Collection[ChainHead], first: int) -> ChainHead:
    with metadata_errors(table.location(), "read receipts"):
        columns = _links(table, store_id, first)
    sequences = columns["sequence"].to_numpy()
    return _check_links(store_id, sequences, columns["previous_hash"], columns["row_hash"], heads, first)


def forget_links() -> None:
    """Forget all links, so that the next check of a chain reads all of its files again."""
    _files.clear()
    _chains.clear()
    _heads.clear()


def _links(table: Table, store_id: str, first: int) -> pa.Table:
    """Return the links of a store's rows in order, from the row with the number ``first`` on."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return _LINKS.empty_table()
    of_snapshot = _chains.get(snapshot.manifest_list, dict)
    if (store_id, first) not in of_snapshot:
        where = all_equal({"store_id": store_id})
        if first > 0:
            where = And(where, between("sequence", first, _LAST))
        files = plan_files(table, where, store_id=store_id, since=first)
        parts = [_links_of_file(table, where, task) for task in files]
        rows = pa.concat_tables([_LINKS.empty_table(), *parts]).sort_by("sequence")
        of_snapshot[store_id, first] = rows.slice(int(np.searchsorted(rows["sequence"].to_numpy(), first)))
    return of_snapshot[store_id, first]


def _links_of_file(table: Table, where: BooleanExpression, task: FileScanTask) -> pa.Table:
    location = task.file.file_path

    def read() -> pa.Table:
        with open_data_file(table.io, location) as stored, pq.ParquetFile(stored) as file:
            return file.read(columns=_LINKS.names).select(_LINKS.names).cast(_LINKS)

    if not is_whole_file(task):
        return read_files(table, where, _LINKS.names, [task]).cast(_LINKS)
    return _files.get(location, read, lambda rows: rows.num_rows + 10)


def receipt_name(receipt: Receipt) -> str:
    return f"store {receipt.store_id} lineage {receipt.lineage} {receipt.log}/{receipt.base_offset:020d}"


def _check_links(
    store_id: str,
    sequences: np.ndarray[Any, np.dtype[np.int64]],
    previous: Sequence[str] | pa.ChunkedArray[Any],
    hashes: Sequence[str] | pa.ChunkedArray[Any],
    heads: Collection[ChainHead],
    first: int = 0,
) -> ChainHead:
    """Check the numbers and links of rows, and that known rows are among them.

    :param sequences: the rows' numbers, ascending.
    :param first: number of the first row that was read. The row before it isn't checked.
    """
    misplaced = np.flatnonzero(sequences != np.arange(first, first + len(sequences)))
    if len(misplaced):
        at = first + int(misplaced[0])
        if sequences[misplaced[0]] < at:
            fault = f"two rows are number {int(sequences[misplaced[0]])}: one was added from elsewhere"
        else:
            fault = f"row number {at} is missing: it was removed or replaced"
        raise ReceiptError(f"receipts of store {store_id}: {fault}. {_WHAT_NOW}")
    hashes_before = _array([], previous)
    following = _array([hashes_before[0].as_py() if first and len(sequences) else CHAIN_START], hashes)
    linked = pc.equal(following[:-1], hashes_before)
    if (at := pc.index(linked, value=False).as_py()) >= 0:
        raise ReceiptError(
            f"receipts of store {store_id}: row number {first + at} does not follow row number "
            f"{first + at - 1}: one of them was removed or replaced. {_WHAT_NOW}"
        )
    head = ChainHead(first + len(sequences) - 1, following[-1].as_py())
    for row in heads:
        actual = following[row.sequence - first + 1].as_py() if row.sequence <= head.sequence else "no row"
        if actual != row.row_hash:
            raise ReceiptError(
                f"receipts of store {store_id}: expected row number {row.sequence} with the hash "
                f"{row.row_hash}, which journal or stamp recorded, found {actual}; the table's last row is "
                f"number {head.sequence}: the last rows were removed or replaced, or the table was rolled "
                f"back. {_WHAT_NOW}"
            )
    return head


def _array(first: Sequence[str], column: Sequence[str] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
    kind = pa.large_string()
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [pa.array(column, kind)]
    return pa.concat_arrays([pa.array(first, kind), *chunks])
