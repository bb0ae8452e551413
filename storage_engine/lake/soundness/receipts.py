"""Reading the ``segments`` table: the receipts and their stores.

A segment has several rows if it was proven again, because its data file was lost or its rows were rewritten.
The last row counts. If the segment has expired, the last row says so and proves nothing; it is returned only
on request. :mod:`storage_engine.lake.soundness.chain` checks the chain of rows, and
:mod:`storage_engine.lake.soundness.soundness` decides whether a receipt is sound.

Functions raise LakeUnavailableError if the lake can't be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from storage_engine.commands import Command
from storage_engine.core.long_work import no_collection, report_work
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import PlacedTable, live_files, rows_of
from storage_engine.lake.catalog.tables import SEGMENTS
from storage_engine.lake.durable_io import open_data_file, sha256_of_file
from storage_engine.lake.file.scan import (
    EVERY_OFFSET,
    Offsets,
    all_equal,
    between,
    plan_files,
    read_files,
    read_rows,
)
from storage_engine.lake.storage.errors import LAKE_FAILURES, lake_unavailable, metadata_errors
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity, select_whole
from storage_engine.model.store import grouped

T = TypeVar("T")
P = ParamSpec("P")

_ROWS_AT_A_TIME = 50_000
_MOST_BYTES_TO_SHARE = 1 << 30
"""Largest column whose equal values are shared. A larger column of texts may not fit into one Arrow array."""

_identity = attrgetter("store_id", "lineage", "log", "base_offset", "sha256")


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """Summary of a lake's content for one store.

    Root, host, name and broker are those of the newest segment, which was first proven at
    ``newest_proof_ms``. Host and name are None if an older version wrote its receipt. ``log_lineages`` has
    each log's newest lineage. ``segment_count`` and ``size_bytes`` don't include expired segments.
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


def receipts_in(
    table: Table,
    store_id: str,
    *,
    lineage: int | None = None,
    log: str | None = None,
    base_offsets: tuple[int, int] | None = None,
    superseded: bool = False,
    with_ended: bool = False,
) -> tuple[Receipt, ...]:
    """Return the receipts that prove a store's segments, one for each segment, by log, lineage and offset.

    :param table: the loaded table ``segments``.
    :param lineage: lineage of the receipts to return; None for all lineages.
    :param log: log of the receipts to return; None for all logs.
    :param base_offsets: lowest and highest base offset of the receipts to return, inclusive.
    :param superseded: return all rows, in the order in which they were committed.
    :param with_ended: also return receipts of segments of which the lake has only a part, or nothing now.
    """
    where: dict[str, str | int] = {"store_id": store_id}
    if lineage is not None:
        where["lineage"] = lineage
    if log is not None:
        where["log"] = log
    condition, offsets = all_equal(where), base_offsets or EVERY_OFFSET
    if base_offsets is not None:
        condition = And(condition, between("base_offset", *base_offsets))
    rows = read_receipts(table, condition, offsets, store_id)
    if superseded:
        return rows
    return current(rows) if with_ended else select_whole(current(rows))


def _open_for(read: Callable[Concatenate[Table, P], T]) -> Callable[Concatenate[Lake, P], T]:
    def of_lake(lake: Lake, /, *args: P.args, **named: P.kwargs) -> T:
        return read(lake.segments(), *args, **named)

    return of_lake


receipts = _open_for(receipts_in)
""":func:`receipts_in` for a lake, with its table ``segments`` as the catalog has it now."""


def receipt_history(lake: Lake, store_id: str) -> tuple[Receipt, ...]:
    """Return all rows of a store, including superseded ones, in the order in which they were committed."""
    return receipts_in(lake.segments(), store_id, superseded=True)


def current(rows: Sequence[Receipt]) -> tuple[Receipt, ...]:
    """Return the last row of each segment, whatever its state is, by log, lineage and offset."""
    last = {_identity(row): row for row in sorted(rows, key=attrgetter("sequence"))}
    return tuple(sorted(last.values(), key=attrgetter("log", "lineage", "base_offset")))


def first_proven_ms(history: Iterable[Receipt]) -> Mapping[SegmentIdentity, int]:
    """Return the time of each segment's first proof, in milliseconds since the epoch. Pure.

    :param history: all rows of the store, including superseded ones.
    """
    first: dict[SegmentIdentity, int] = {}
    for row in history:
        first[row.identity] = min(row.proven_at_ms, first.get(row.identity, row.proven_at_ms))
    return first


def list_stores(lake: Lake) -> tuple[StoreSummary, ...]:
    """Return a summary of each store that has a segment in the lake, by store id."""
    table = lake.segments()
    identity = ("store_id", "lineage", "log", "base_offset", "sha256")
    with metadata_errors(table.location(), "read receipts"):
        columns = [*identity, "broker", "store_root", "size_bytes", "proven_at_ms", "sequence"]
        # A lake of version 1 lacks these columns.
        later = ("store_host", "store_name", "state")
        columns += [name for name in later if name in table.schema().column_names]
        rows = read_rows(table, AlwaysTrue(), columns).sort_by("sequence").to_pylist()
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in identity)
        # The time of the first proof counts: later rows of the segment don't show its store's latest state.
        row["proven_at_ms"] = last.get(key, row)["proven_at_ms"]
        last[key] = row
    of_stores = grouped(last.values(), itemgetter("store_id"))
    return tuple(_summary(of_stores[store_id]) for store_id in sorted(of_stores))


def read_receipts(
    table: Table, where: BooleanExpression, base_offsets: Offsets = EVERY_OFFSET, store_id: str | None = None
) -> tuple[Receipt, ...]:
    """Return rows of a loaded ``segments`` table, including superseded ones, by their sequence number.

    :param base_offsets: read only files that can have a segment with a base offset between these two.
    :param store_id: read only files of this store; None for all stores.
    """
    with metadata_errors(table.location(), "read receipts"):
        files, rows = plan_files(table, where, base_offsets, store_id), []
        # Some files at a time, because the columns take as much memory as the receipts.
        for part in _parts(files):
            rows += _receipts_of(read_files(table, where, (), part))
    return tuple(sorted(rows, key=attrgetter("sequence")))


def _parts(files: Iterable[FileScanTask]) -> Iterator[list[FileScanTask]]:
    part, rows = list[FileScanTask](), 0
    for file in files:
        part.append(file)
        rows += file.file.record_count
        if rows >= _ROWS_AT_A_TIME:
            yield part
            part, rows = [], 0
    if part:
        yield part


def _receipts_of(rows: pa.Table) -> list[Receipt]:
    """Return rows of the table as receipts. Equal values are shared, which saves memory."""
    # A table that an older version made may lack columns that have no value in its rows.
    columns = [
        _values(rows[name]) if name in rows.column_names else [None] * rows.num_rows
        for name in Receipt.__dataclass_fields__
    ]
    with no_collection():
        return list(map(Receipt, *columns))


def _values(column: pa.ChunkedArray[Any]) -> list[Any]:
    if column.nbytes > _MOST_BYTES_TO_SHARE:
        return column.to_pylist()
    encoded: Any = column.combine_chunks().dictionary_encode()
    if len(encoded.dictionary) > len(column) // 2:
        return column.to_pylist()
    values = [*encoded.dictionary.to_pylist(), None]
    return [values[at] for at in encoded.indices.fill_null(len(values) - 1).to_pylist()]


def _summary(rows: Sequence[dict[str, Any]]) -> StoreSummary:
    newest = max(rows, key=lambda row: row["proven_at_ms"])
    archived = [row for row in rows if row.get("state") is None]
    return StoreSummary(
        store_id=newest["store_id"],
        broker=newest["broker"],
        store_root=newest["store_root"],
        lineage=max(row["lineage"] for row in rows),
        segment_count=len(archived),
        size_bytes=sum(row["size_bytes"] for row in archived),
        newest_proof_ms=newest["proven_at_ms"],
        store_host=newest.get("store_host"),
        store_name=newest.get("store_name"),
        log_lineages={row["log"]: row["lineage"] for row in sorted(rows, key=itemgetter("lineage"))},
    )


def receipts_of_files(file_io: FileIO, locations: Iterable[str]) -> list[Receipt]:
    """Read receipts straight from data files of ``segments``."""
    rows: list[Receipt] = []
    for location in locations:
        with metadata_errors(location, "read receipts"), open_data_file(file_io, location) as stored:
            rows += _receipts_of(pq.read_table(cast("Any", stored)))
    return rows


def by_store(rows: Iterable[Receipt]) -> Mapping[str, list[Receipt]]:
    """Return receipts by store, in the order of the chain."""
    return grouped(sorted(rows, key=attrgetter("sequence")), attrgetter("store_id"))


_THREADS = 2
_NAMED = 3


def proven_hashes(messages: PlacedTable, rows: Iterable[Receipt]) -> dict[str, str]:
    """Return the SHA-256 of each file that a receipt's proof depends on, by the file's present location."""
    hashes = {}
    for of_store in by_store(rows).values():
        counting = current(of_store)
        partial = {row.identity for row in counting if row.has_rows and not row.is_whole}
        # Between the two commits of a partial expiry, the table still has the earlier file.
        for row in (*counting, *(row for row in of_store if row.identity in partial)):
            for file in row.proven_files:
                inside = file.location if is_relative(file.location) else messages.inside(file.location)
                if inside is not None:
                    hashes[f"{messages.location}/{inside}"] = file.sha256
    return hashes


def is_relative(name: str) -> bool:
    """Return whether a file's name in a receipt is relative to the table's location."""
    return "://" not in name and not name.startswith("/")


def check_files(tables: Mapping[str, PlacedTable], rows: Iterable[Receipt]) -> tuple[int, int]:
    """Make sure that every data file of a lake exists and has its size, and its SHA-256 if a receipt has it.

    :param rows: all receipts.
    :return: the number of data files, and their bytes.
    :raises LakeUnavailableError: a file is missing, differs or can't be read.
    """
    messages = rows_of(tables)
    hashes = proven_hashes(messages, rows)
    files = [
        (table.io, location, file)
        for table in (tables[SEGMENTS], messages)
        for location, file in live_files(table).items()
    ]
    total_bytes = sum(file.file_size_in_bytes for _, _, file in files)
    with (
        report_work("Checking data files", total_bytes) as advance,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="look") as pool,
    ):

        def look(item: tuple[FileIO, str, DataFile]) -> str:
            file_io, location, file = item
            fault = file_fault(file_io, location, file.file_size_in_bytes, hashes.get(location))
            advance(file.file_size_in_bytes)
            return fault

        faults = [fault for fault in pool.map(look, files) if fault]
    if faults:
        more = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
        raise LakeUnavailableError(
            f"{messages.location}: expected {len(files)} data files as they were archived, found that "
            f"{'; '.join(faults[:_NAMED])}{more}. Nothing was changed. Bring these files from the lake's "
            "former place or from a second lake; or run ",
            Command("lake rebuild"),
            ", which makes the catalog from the files that are left.",
        )
    return len(files), total_bytes


def file_fault(file_io: FileIO, location: str, size_bytes: int, sha256: str | None) -> str:
    """Return the fault of a file; "" if the file has no fault.

    :param sha256: the expected hash, in hex; None if it was not recorded. Then only the size is checked.
    """
    try:
        length = len(file_io.new_input(location))
        if length != size_bytes:
            return f"{location} has {length} bytes, expected {size_bytes}"
        if sha256 is None:
            return ""
        with open_data_file(file_io, location) as stored:
            found_sha256 = sha256_of_file(stored)
    except FileNotFoundError:
        return f"{location} is missing"
    except LAKE_FAILURES as error:
        raise lake_unavailable(location, "check a data file", error) from error
    return "" if found_sha256 == sha256 else f"{location} has SHA-256 {found_sha256}, expected {sha256}"
