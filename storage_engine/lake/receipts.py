"""Reading the ``segments`` table: receipts, the chain that links them, and whether they still hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from storage_engine.exceptions import ReceiptError
from storage_engine.lake.catalog import Lake
from storage_engine.lake.errors import LAKE_FAILURES, lake_unavailable, metadata_errors
from storage_engine.lake.filters import all_equal
from storage_engine.lake.live_files import live_data_files
from storage_engine.model.receipt import PROOF_VERSION, Receipt, SegmentIdentity

CHAIN_START = "0" * 64
"""``previous_hash`` of a store's first row."""


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """What the lake holds of one store. ``store_root`` and ``broker`` are those of its newest receipt."""

    store_id: str
    broker: str
    store_root: str
    lineage: int
    segment_count: int
    size_bytes: int
    newest_proof_ms: int


def receipts(
    lake: Lake, store_id: str, *, lineage: int | None = None, log: str | None = None
) -> tuple[Receipt, ...]:
    """A store's receipts, by log, lineage and offset.

    :param lineage: only this one; None: all.
    :param log: only this one; None: all.
    :raises LakeUnavailableError: when the table can't be read.
    """
    return receipts_in(lake.segments(), store_id, lineage=lineage, log=log)


def receipts_in(
    table: Table, store_id: str, *, lineage: int | None = None, log: str | None = None
) -> tuple[Receipt, ...]:
    """The same from a ``segments`` table that is loaded already: its state is the one that counts."""
    where: dict[str, str | int] = {"store_id": store_id}
    if lineage is not None:
        where["lineage"] = lineage
    if log is not None:
        where["log"] = log
    return _read(table, all_equal(where))


def find_receipt(lake: Lake, store_id: str, lineage: int, log: str, base_offset: int) -> Receipt | None:
    """The receipt of one segment; None when it has none.

    :raises LakeUnavailableError: when the table can't be read: then it is not known whether it has one.
    """
    where = all_equal({"store_id": store_id, "lineage": lineage, "log": log, "base_offset": base_offset})
    found = _read(lake.segments(), where)
    return found[0] if found else None


def list_stores(lake: Lake) -> tuple[StoreSummary, ...]:
    """Every store the lake has a segment of, by store id.

    :raises LakeUnavailableError: when the table can't be read.
    """
    table = lake.segments()
    with metadata_errors(table.location(), "read receipts"):
        columns = ("store_id", "broker", "store_root", "lineage", "size_bytes", "proven_at_ms")
        rows = table.scan(selected_fields=columns).to_arrow().to_pylist()
    by_store: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_store.setdefault(row["store_id"], []).append(row)
    return tuple(_summary(by_store[store_id]) for store_id in sorted(by_store))


def row_hash(receipt: Mapping[str, Any]) -> str:
    """SHA-256, in hex, over the canonical JSON of all other fields."""
    content = {name: value for name, value in receipt.items() if name != "row_hash"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_chain(rows: Iterable[Receipt]) -> str:
    """Follow one store's rows from the first to the last, in the order in which they were committed.

    :param rows: all rows of the store, in any order.
    :return: ``row_hash`` of the last one; :data:`CHAIN_START` when there are none.
    :raises ReceiptError: when a row was changed, removed, or added by somebody else.
    """
    following: dict[str, Receipt] = {}
    remaining = 0
    for row in rows:
        if row.row_hash != row_hash(asdict(row)):
            raise ReceiptError(
                f"receipt of {_name(row)}: its fields hash to {row_hash(asdict(row))}, the row says "
                f"{row.row_hash}: it was changed after it was written. {_WHAT_NOW}"
            )
        if row.previous_hash in following:
            raise ReceiptError(
                f"receipts of {_name(following[row.previous_hash])} and {_name(row)} both follow "
                f"{row.previous_hash}: one was added from elsewhere. {_WHAT_NOW}"
            )
        following[row.previous_hash] = row
        remaining += 1
    last = CHAIN_START
    while last in following:
        last = following[last].row_hash
        remaining -= 1
    if remaining:
        raise ReceiptError(
            f"receipts of store {next(iter(following.values())).store_id}: the chain ends at {last} with "
            f"{remaining} rows left that don't follow it: a row before them was removed or replaced. "
            f"{_WHAT_NOW}"
        )
    return last


def broken_receipts(lake: Lake, rows: Sequence[Receipt]) -> dict[SegmentIdentity, str]:
    """Which of these receipts don't hold at this moment, and why. One that isn't named here holds.

    A receipt holds when its row is as it was written, by a proof this version knows, and its data file
    is in the current snapshot of ``messages`` and has the recorded length.

    :raises LakeUnavailableError: when that can't be found out.
    """
    if not rows:
        return {}
    table = lake.messages()
    live: dict[str, frozenset[str]] = {}
    broken: dict[SegmentIdentity, str] = {}
    for row in rows:
        if row.store_id not in live:
            files = live_data_files(table, row.store_id)
            live[row.store_id] = frozenset(file.location for file in files if not file.has_deletes)
        if fault := _fault(table, row, live[row.store_id]):
            broken[row.identity] = fault
    return broken


def check_receipt(lake: Lake, receipt: Receipt) -> None:
    """Make sure that a receipt holds, as :func:`broken_receipts` says.

    :raises ReceiptError: when it doesn't.
    :raises LakeUnavailableError: when that can't be found out.
    """
    for fault in broken_receipts(lake, [receipt]).values():
        raise ReceiptError(
            f"receipt of {_name(receipt)}: {fault}. Nothing was deleted. Run verify on the lake; archive "
            "the segment again while it is still on the broker's disk."
        )


_WHAT_NOW = "Nothing was changed. Find out who writes to the lake; receipts of this store prove nothing now."


def _read(table: Table, where: BooleanExpression) -> tuple[Receipt, ...]:
    with metadata_errors(table.location(), "read receipts"):
        rows = table.scan(row_filter=where).to_arrow().to_pylist()
    names = Receipt.__dataclass_fields__
    found = [Receipt(**{name: row[name] for name in names}) for row in rows]
    return tuple(sorted(found, key=lambda r: (r.log, r.lineage, r.base_offset)))


def _fault(table: Table, row: Receipt, live: frozenset[str]) -> str | None:
    if row.row_hash != row_hash(asdict(row)):
        return "its row was changed after it was written"
    if row.proof_version > PROOF_VERSION:
        return f"proof version {row.proof_version}, this version knows up to {PROOF_VERSION}"
    if row.data_file not in live:
        return f"data file {row.data_file} is not in the table as it was written (rewritten, or rows deleted)"
    try:
        found = len(table.io.new_input(row.data_file))
    except FileNotFoundError:
        return f"data file {row.data_file} is missing"
    except LAKE_FAILURES as error:
        raise lake_unavailable(row.data_file, "check a data file", error) from error
    if found != row.data_file_bytes:
        return f"data file {row.data_file} has {found} bytes, expected {row.data_file_bytes}"
    return None


def _summary(rows: Sequence[dict[str, Any]]) -> StoreSummary:
    newest = max(rows, key=lambda row: row["proven_at_ms"])
    return StoreSummary(
        store_id=newest["store_id"],
        broker=newest["broker"],
        store_root=newest["store_root"],
        lineage=max(row["lineage"] for row in rows),
        segment_count=len(rows),
        size_bytes=sum(row["size_bytes"] for row in rows),
        newest_proof_ms=newest["proven_at_ms"],
    )


def _name(receipt: Receipt) -> str:
    return f"store {receipt.store_id} lineage {receipt.lineage} {receipt.log}/{receipt.base_offset:020d}"
