"""What validation has to know of the lake: receipts, data files, and the rows in them. Judges nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.exceptions import ProofError
from storage_engine.lake.catalog import Lake
from storage_engine.lake.chain import CHAIN_START, row_hash
from storage_engine.lake.durable_io import open_data_file, sha256_of_file
from storage_engine.lake.elsewhere import in_either
from storage_engine.lake.errors import lake_errors
from storage_engine.lake.filters import segment_rows
from storage_engine.lake.live_files import LiveFile, live_data_files
from storage_engine.lake.names import data_file_of, proven_files
from storage_engine.lake.receipts import current, receipt_history
from storage_engine.lake.segment_reader import origin_of, read_segment
from storage_engine.lake.soundness_reader import broken_receipts
from storage_engine.model.receipt import Receipt, SegmentIdentity

Slot = tuple[str, int]
"""(log, base offset) of a segment."""

_PLACE_COLUMNS = ("physical_offset", "size")
_NO_ROWS = pa.table({name: pa.array([], pa.int64()) for name in _PLACE_COLUMNS})


@dataclass(frozen=True, slots=True)
class ReceiptFact:
    """A receipt as it is, and as the chain wants it."""

    subject: str
    row_hash: str
    computed_row_hash: str
    previous_hash: str
    computed_previous_hash: str


@dataclass(frozen=True, slots=True)
class DataFileFact:
    """A receipt's data file.

    :param found_bytes: -1 when there is no such file.
    :param found_sha256: "" when it was not read.
    :param times_in_table: how often the current snapshot of ``messages`` lists it.
    :param delete_files: 1 when some of its rows count as deleted.
    """

    subject: str
    expected_bytes: int
    found_bytes: int
    expected_sha256: str
    found_sha256: str
    times_in_table: int
    delete_files: int


@dataclass(frozen=True, slots=True)
class RowsFact:
    """A segment's rows, as whoever queries the table sees them. All offsets here are positions of bytes.

    :param base_offset: of the segment's first byte.
    :param end_offset: behind its last one.
    :param first_row_offset: smallest of a row; -1 without rows.
    :param last_row_end: largest end of a row; -1 without rows.
    :param gaps: number of places where no row covers the next byte.
    :param duplicates: number of rows that begin below the end of what came before.
    """

    subject: str
    base_offset: int
    end_offset: int
    first_row_offset: int
    last_row_end: int
    row_bytes: int
    gaps: int
    duplicates: int
    expected_rows: int
    found_rows: int


@dataclass(frozen=True, slots=True)
class LakeFacts:
    """:param broken: receipts that prove nothing at this moment, and why.
    :param queues: the streams of the messages in the segments whose rows were read: topic and queue, say.
    """

    receipts: tuple[Receipt, ...]
    broken: dict[SegmentIdentity, str]
    chain: tuple[ReceiptFact, ...]
    data_files: tuple[DataFileFact, ...]
    rows: tuple[RowsFact, ...]
    queues: frozenset[tuple[Any, ...]]
    notes: tuple[str, ...]


NO_LAKE = LakeFacts((), {}, (), (), (), frozenset(), ())


def laid_over(first: LakeFacts, second: LakeFacts) -> LakeFacts:
    """Two lakes of one store as one: every file and row of both, and a receipt that holds in either."""
    holding = [row for row in second.receipts if row.identity not in second.broken]
    receipts, broken = in_either(first.receipts, first.broken, holding)
    known = {row.identity for row in receipts}
    more = tuple(row for row in second.receipts if row.identity not in known)
    return LakeFacts(
        receipts=(*receipts, *more),
        broken={**broken, **{row.identity: second.broken[row.identity] for row in more}},
        chain=(*first.chain, *second.chain),
        data_files=(*first.data_files, *second.data_files),
        rows=(*first.rows, *second.rows),
        queues=first.queues | second.queues,
        notes=(*first.notes, *second.notes),
    )


def collect_lake(lake: Lake, store_id: str, deep: AbstractSet[Slot] | None, *, full: bool) -> LakeFacts:
    """Look at a store's part of the lake.

    Every receipt's own hash and place in the chain is checked. Data files of the segments in ``deep`` are
    read and hashed, with their rows; of the others the presence and length is, unless only those in
    ``deep`` were asked for.

    :param deep: segments to look at closely; None: the last one archived of each log.
    :param full: look at every segment closely.
    :raises LakeUnavailableError: the lake can't be read.
    """
    history = receipt_history(lake, store_id)
    rows = current(history)
    table = lake.messages()
    live = _by_location(live_data_files(table, store_id)) if rows else {}
    if full:
        close, shallow = list(rows), []
    elif deep is None:
        newest = {row.log: row for row in rows}
        close, shallow = list(newest.values()), [row for row in rows if row not in newest.values()]
    else:
        close, shallow = [row for row in rows if (row.log, row.base_offset) in deep], []
    checked = [*shallow, *close]
    broken = broken_receipts(lake, checked)
    data_files = {fact.subject: fact for row in shallow for fact in _data_files(table, row, live, {})}
    hashes: dict[str, str] = {}
    row_facts: list[RowsFact] = []
    queues: set[tuple[str, int]] = set()
    notes: list[str] = []
    for receipt in close:
        files = _data_files(table, receipt, live, hashes, read=True)
        found, met = _rows(receipt, _row_table(table, receipt, files))
        row_facts.append(found)
        queues |= met
        fault = next(filter(None, map(_damage, files)), "")
        if fault and receipt.identity not in broken:
            broken[receipt.identity] = fault
        elif receipt.identity in broken and not files[0].times_in_table and _same_bytes(table, receipt):
            # Another engine rewrote the rows into other files, and they still prove the segment.
            del broken[receipt.identity]
            notes.append(f"{_name(receipt)}: its rows lie in other files by now, and prove the same bytes")
            continue
        data_files |= {fact.subject: fact for fact in files}
    if unread := len(rows) - len(checked):
        notes.append(f"data files of {unread} segments that the run did not touch were not looked at")
    if shallow:
        notes.append(
            f"data files of {len(shallow)} segments were not read, only their presence and length checked"
        )
    return LakeFacts(
        receipts=rows,
        broken=broken,
        chain=tuple(_chain(history)),
        data_files=tuple(data_files.values()),
        rows=tuple(row_facts),
        queues=frozenset(queues),
        notes=tuple(notes),
    )


def _by_location(files: Iterable[LiveFile]) -> dict[str, list[LiveFile]]:
    found: dict[str, list[LiveFile]] = {}
    for file in files:
        found.setdefault(file.location, []).append(file)
    return found


def _chain(rows: Sequence[Receipt]) -> Iterable[ReceiptFact]:
    """The receipts in the order of the chain; those that it doesn't reach come last."""
    following = {row.previous_hash: row for row in rows}
    ordered: list[Receipt] = []
    last = CHAIN_START
    while last in following:
        row = following.pop(last)
        ordered.append(row)
        last = row.row_hash
    reached = {id(row) for row in ordered}
    previous = CHAIN_START
    for row in (*ordered, *(row for row in rows if id(row) not in reached)):
        yield ReceiptFact(
            subject=f"receipt {_name(row)}",
            row_hash=row.row_hash,
            computed_row_hash=row_hash(asdict(row)),
            previous_hash=row.previous_hash,
            computed_previous_hash=previous,
        )
        previous = row.row_hash


def _data_files(
    table: Table,
    receipt: Receipt,
    live: dict[str, list[LiveFile]],
    hashes: dict[str, str],
    *,
    read: bool = False,
) -> list[DataFileFact]:
    """Of every file that a receipt's proof rests on: several, where another engine has moved its rows.

    :param hashes: of the files that were read, by location; a file may have the rows of many segments.
    """
    files = proven_files(table, receipt)
    named = {file.location for file in files}
    deletes = {name for location in named for file in live.get(location, []) for name in file.delete_files}
    facts = []
    for stored in files:
        size = -1
        with lake_errors(stored.location, "check a data file"), suppress(FileNotFoundError):
            size = len(table.io.new_input(stored.location))
            if read and stored.location not in hashes:
                with open_data_file(table.io, stored.location) as file:
                    hashes[stored.location] = sha256_of_file(file)
        listed = live.get(stored.location, [])
        facts.append(
            DataFileFact(
                subject=stored.location,
                expected_bytes=stored.size_bytes,
                found_bytes=size,
                expected_sha256=stored.sha256,
                found_sha256=hashes.get(stored.location, ""),
                times_in_table=len(listed) or int(stored.location in deletes),
                delete_files=int(any(set(file.delete_files) - named for file in listed)),
            )
        )
    return facts


def _damage(file: DataFileFact) -> str:
    if file.times_in_table > 1:
        return f"data file {file.subject} is in the table {file.times_in_table} times"
    if file.times_in_table and file.found_sha256 not in ("", file.expected_sha256):
        return (
            f"data file {file.subject} has SHA-256 {file.found_sha256[:16]}…, expected "
            f"{file.expected_sha256[:16]}…"
        )
    return ""


def _same_bytes(table: Table, receipt: Receipt) -> bool:
    digest = hashlib.sha256()
    try:
        for _, chunk in read_segment(table, receipt):
            digest.update(chunk)
    except ProofError:
        return False
    return digest.hexdigest() == receipt.sha256


def _rows(receipt: Receipt, rows: pa.Table) -> tuple[RowsFact, set[tuple[str, int]]]:
    starts = rows["physical_offset"].to_numpy().astype(np.int64)
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    ends = starts + rows["size"].to_numpy().astype(np.int64)[order]
    reached = np.maximum.accumulate(ends) if len(ends) else ends
    origin = origin_of(receipt)
    fact = RowsFact(
        subject=f"rows of {_name(receipt)}",
        base_offset=origin,
        end_offset=origin + receipt.size_bytes,
        first_row_offset=int(starts[0]) if len(starts) else -1,
        last_row_end=int(reached[-1]) if len(ends) else -1,
        row_bytes=int((ends - starts).sum()),
        gaps=int((starts[1:] > reached[:-1]).sum()),
        duplicates=int((starts[1:] < reached[:-1]).sum()),
        expected_rows=receipt.row_count,
        found_rows=len(starts),
    )
    streams = find_broker(receipt.broker).codec.columns.streams
    groups = rows.group_by(list(streams)).aggregate([]).to_pylist() if streams and len(rows) else []
    found = (tuple(row[name] for name in streams) for row in groups)
    return fact, {stream for stream in found if None not in stream}


def _row_table(table: Table, receipt: Receipt, files: Sequence[DataFileFact]) -> pa.Table:
    """The rows of a segment that a query of the table sees."""
    columns = (*_PLACE_COLUMNS, *find_broker(receipt.broker).codec.columns.streams)
    if any(file.found_bytes < 0 and file.times_in_table for file in files):
        return _NO_ROWS
    if receipt.moved_to is not None or files[0].times_in_table != 1 or files[0].delete_files:
        where = segment_rows(receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)
        with lake_errors(table.location(), "read a segment's rows"):
            return table.scan(row_filter=where, selected_fields=columns).to_arrow()
    try:
        with open_data_file(table.io, data_file_of(table, receipt)) as stored:
            return pq.read_table(stored, columns=list(columns))
    except (pa.ArrowException, OSError):
        # A file that is no Parquet any more has no rows; that its hash differs is another fact.
        return _NO_ROWS


def _name(receipt: Receipt) -> str:
    return f"{receipt.log}/{receipt.base_offset:020d} (lineage {receipt.lineage})"
