"""Reading the ``segments`` table: receipts, and whether they still hold.

A segment that was proven again, because its data file was lost or its rows were rewritten, has several
rows; the last one counts. The chain that links all rows is :mod:`storage_engine.lake.chain`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from operator import itemgetter
from typing import Any

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.table import Table

from storage_engine.lake.catalog import Lake
from storage_engine.lake.chain import row_fault
from storage_engine.lake.durable_io import open_data_file, sha256_of_file
from storage_engine.lake.errors import LAKE_FAILURES, lake_unavailable, metadata_errors
from storage_engine.lake.filters import all_equal, between
from storage_engine.lake.live_files import LiveFile, live_data_files
from storage_engine.lake.names import data_file_of, proven_files
from storage_engine.lake.scan import EVERY_OFFSET, Offsets, read_rows
from storage_engine.model.receipt import Receipt, SegmentIdentity, StoredFile


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """What the lake holds of one store. Root, host, name and broker are those of its newest receipt; host and
    name are None where an older version wrote that. ``log_lineages`` has each log's newest lineage.
    """

    store_id: str
    broker: str
    store_root: str
    lineage: int
    segment_count: int
    size_bytes: int
    newest_proof_ms: int
    store_host: str | None
    store_name: str | None
    log_lineages: Mapping[str, int] = field(default_factory=dict)


def receipts(
    lake: Lake,
    store_id: str,
    *,
    lineage: int | None = None,
    log: str | None = None,
    base_offsets: tuple[int, int] | None = None,
) -> tuple[Receipt, ...]:
    """A store's receipts that count, one a segment, by log, lineage and offset.

    :param lineage: only this one; None: all.
    :param log: only this one; None: all.
    :param base_offsets: only of segments whose base offset lies within these two, inclusive.
    :raises LakeUnavailableError: when the table can't be read.
    """
    return receipts_in(lake.segments(), store_id, lineage=lineage, log=log, base_offsets=base_offsets)


def receipts_in(
    table: Table,
    store_id: str,
    *,
    lineage: int | None = None,
    log: str | None = None,
    base_offsets: tuple[int, int] | None = None,
    superseded: bool = False,
) -> tuple[Receipt, ...]:
    """The same from a ``segments`` table that is loaded already: its state is the one that counts.

    :param superseded: all rows, in the order in which they were committed.
    """
    where: dict[str, str | int] = {"store_id": store_id}
    if lineage is not None:
        where["lineage"] = lineage
    if log is not None:
        where["log"] = log
    condition, offsets = all_equal(where), base_offsets or EVERY_OFFSET
    if base_offsets is not None:
        condition = And(condition, between("base_offset", *base_offsets))
    rows = _read(table, condition, offsets)
    return rows if superseded else current(rows)


def receipt_history(lake: Lake, store_id: str) -> tuple[Receipt, ...]:
    """Every row of a store, superseded ones too, in the order in which they were committed.

    :raises LakeUnavailableError: when the table can't be read.
    """
    return receipts_in(lake.segments(), store_id, superseded=True)


def current(rows: Sequence[Receipt]) -> tuple[Receipt, ...]:
    """Of several rows for one segment the last, by log, lineage and offset."""
    last = {row.identity: row for row in sorted(rows, key=lambda row: row.sequence)}
    return tuple(sorted(last.values(), key=lambda r: (r.log, r.lineage, r.base_offset)))


def list_stores(lake: Lake) -> tuple[StoreSummary, ...]:
    """Every store the lake has a segment of, by store id.

    :raises LakeUnavailableError: when the table can't be read.
    """
    table = lake.segments()
    identity = ("store_id", "lineage", "log", "base_offset", "sha256")
    with metadata_errors(table.location(), "read receipts"):
        columns = [*identity, "broker", "store_root", "size_bytes", "proven_at_ms", "sequence"]
        # A lake of version 1 lacks them.
        columns += [name for name in ("store_host", "store_name") if name in table.schema().column_names]
        rows = read_rows(table, AlwaysTrue(), columns).sort_by("sequence").to_pylist()
    last = {tuple(row[name] for name in identity): row for row in rows}
    by_store: dict[str, list[dict[str, Any]]] = {}
    for row in last.values():
        by_store.setdefault(row["store_id"], []).append(row)
    return tuple(_summary(by_store[store_id]) for store_id in sorted(by_store))


def broken_receipts(
    lake: Lake,
    rows: Sequence[Receipt],
    *,
    read_files: bool = False,
    progress: Callable[[], None] | None = None,
) -> dict[SegmentIdentity, str]:
    """Which of these receipts don't hold at this moment, and why. One that isn't named here holds.

    A receipt holds when its row is as it was written, by a proof this version knows, and its files are in
    the current snapshot of ``messages``, with no rows deleted, and have the recorded length.

    :param read_files: read the files too: they must have the recorded SHA-256.
    :param progress: called after each receipt whose files were read.
    :raises LakeUnavailableError: when that can't be found out.
    """
    if not rows:
        return {}
    table = lake.messages()
    live = _live_by_store(table, rows)
    # A file that another engine wrote may hold the rows of many segments.
    file_fault = cache(partial(_file_fault, table, read=read_files))
    broken: dict[SegmentIdentity, str] = {}
    for row in rows:
        fault = row_fault(row) or live_fault(table, row, live[row.store_id])
        if fault := fault or next(filter(None, map(file_fault, proven_files(table, row))), ""):
            broken[row.identity] = fault
        if read_files and progress is not None:
            progress()
    return broken


def moved_receipts(lake: Lake, rows: Sequence[Receipt]) -> tuple[Receipt, ...]:
    """Those whose rows another engine has put into other files, or dropped, since they were proven.

    :raises LakeUnavailableError: when that can't be found out.
    """
    table = lake.messages()
    live = _live_by_store(table, rows)
    return tuple(row for row in rows if not row_fault(row) and live_fault(table, row, live[row.store_id]))


def _live_by_store(table: Table, rows: Sequence[Receipt]) -> dict[str, dict[str, LiveFile]]:
    """By store and location, the data files that can hold these segments."""
    live: dict[str, dict[str, LiveFile]] = {}
    for store_id in {row.store_id for row in rows}:
        offsets = [row.base_offset for row in rows if row.store_id == store_id]
        files = live_data_files(table, store_id, (min(offsets), max(offsets)))
        live[store_id] = {file.location: file for file in files}
    return live


def live_fault(table: Table, row: Receipt, live: Mapping[str, LiveFile]) -> str:
    """Why the table no longer has a receipt's rows in the files that prove them; "" when it has.

    :param table: ``messages``.
    :param live: by location, the data files that can hold the segment.
    """
    named = {file.location for file in proven_files(table, row)}
    data = [live[location] for location in named if location in live]
    if not data or (row.moved_to is None and len(data) != len(named)):
        return (
            f"data file {data_file_of(table, row)} is not in the table as it was written: another engine "
            f"has put its rows into other files, or dropped them"
        )
    deletes = {location for file in data for location in file.delete_files}
    if gone := named - {file.location for file in data} - deletes:
        return (
            f"{min(gone)}, one of the files that its rows were moved to, is not in the table as it was when "
            f"they were proven there"
        )
    if new := deletes - named:
        return f"the table counts rows of {data[0].location} as deleted, by {min(new)}"
    return ""


def _read(
    table: Table, where: BooleanExpression, base_offsets: Offsets = EVERY_OFFSET
) -> tuple[Receipt, ...]:
    """Return rows in the order of the chain."""
    with metadata_errors(table.location(), "read receipts"):
        rows = read_rows(table, where, base_offsets=base_offsets).to_pylist()
    return tuple(sorted(map(receipt_of_row, rows), key=lambda r: r.sequence))


def receipt_of_row(row: dict[str, Any]) -> Receipt:
    """Return a row of the table as a receipt."""
    # A table that an older version made may lack columns that have no value in its rows.
    fields: dict[str, Any] = {name: row.get(name) for name in Receipt.__dataclass_fields__}
    return Receipt(**fields)


def _file_fault(table: Table, file: StoredFile, read: bool) -> str:
    try:
        found = len(table.io.new_input(file.location))
        if found != file.size_bytes:
            return f"data file {file.location} has {found} bytes, expected {file.size_bytes}"
        if not read:
            return ""
        with open_data_file(table.io, file.location) as stored:
            sha256 = sha256_of_file(stored)
    except FileNotFoundError:
        return f"data file {file.location} is missing"
    except LAKE_FAILURES as error:
        raise lake_unavailable(file.location, "check a data file", error) from error
    if sha256 != file.sha256:
        return f"data file {file.location} has SHA-256 {sha256}, expected {file.sha256}"
    return ""


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
        store_host=newest.get("store_host"),
        store_name=newest.get("store_name"),
        log_lineages={row["log"]: row["lineage"] for row in sorted(rows, key=itemgetter("lineage"))},
    )
