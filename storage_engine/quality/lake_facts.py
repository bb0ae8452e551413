"""What validation has to know of the lake: receipts, data files, and the rows in them. Judges nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.core.long_work import told, told_each
from storage_engine.exceptions import ProofError, ReceiptError, StorageEngineError
from storage_engine.lake.acts.act_files import merged_expiries
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.names import data_file_of
from storage_engine.lake.coverage.coverage import in_either
from storage_engine.lake.durable_io import open_data_file
from storage_engine.lake.file.data_file import rows_of_segment
from storage_engine.lake.file.filters import segment_rows
from storage_engine.lake.file.live_files import live_data_files
from storage_engine.lake.soundness.chain import check_links_of, row_hash
from storage_engine.lake.soundness.receipts import current, receipt_history
from storage_engine.lake.soundness.segment_reader import origin_of
from storage_engine.lake.soundness.soundness import NO_SUCH_FILE, Depth, Look, chain_faults, reasons
from storage_engine.lake.soundness.soundness_reader import Reader
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.model.proof.receipt import CHAIN_START, ChainHead, Receipt, SegmentIdentity, ended, whole

Slot = tuple[str, int]
"""(log, base offset) of a segment."""

_PLACE_COLUMNS = ("physical_offset", "size")
_NO_ROWS = pa.table({name: pa.array([], pa.int64()) for name in _PLACE_COLUMNS})


@dataclass(frozen=True, slots=True)
class ReceiptFact:
    """A receipt as it is, and as the chain wants it.

    :param fault: why no deletion may rest on it; "" where one may, it doesn't count, or nobody looked.
    :param moved: why it has to be renewed though its rows prove its bytes; "" where it hasn't.
    """

    subject: str
    row_hash: str
    computed_row_hash: str
    previous_hash: str
    computed_previous_hash: str
    fault: str
    moved: str


@dataclass(frozen=True, slots=True)
class DataFileFact:
    """A receipt's data file.

    :param found_bytes: -1 when there is no such file.
    :param found_sha256: "" when it was not read.
    :param times_in_table: how often the current snapshot of the table of rows lists it.
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
    """:param receipts: of segments that a lake has whole.
    :param broken: receipts whose bytes nothing proves at this moment, and why.
    :param queues: the streams of the messages in the segments whose rows were read: topic and queue, say.
    """

    receipts: tuple[Receipt, ...]
    broken: dict[SegmentIdentity, str]
    chain: tuple[ReceiptFact, ...]
    data_files: tuple[DataFileFact, ...]
    rows: tuple[RowsFact, ...]
    queues: frozenset[tuple[Any, ...]]
    notes: tuple[str, ...]
    ended: tuple[Receipt, ...] = ()
    """Receipts of segments that expired."""
    expiries: Mapping[str, str] = field(default_factory=dict)
    """By which policy and since when, by the act's SHA-256."""


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
        ended=(*first.ended, *second.ended),
        expiries={**first.expiries, **second.expiries},
    )


def collect_lake(
    lake: Lake,
    store_id: str,
    deep: AbstractSet[Slot] | None,
    *,
    full: bool,
    known: Collection[ChainHead] = (),
) -> LakeFacts:
    """Look at a store's part of the lake.

    Every receipt's own hash and place in the chain is checked. Data files of the segments in ``deep`` are
    read and hashed, with their rows; of the others the presence and length is, unless only those in
    ``deep`` were asked for.

    :param deep: segments to look at closely; None: the last one archived of each log.
    :param full: look at every segment closely, and at all statistics that the table has of its file.
    :param known: receipts that the lake is known to have had.
    :raises LakeUnavailableError: the lake can't be read.
    """
    history = receipt_history(lake, store_id)
    rows = whole(current(history))
    table = lake.messages()
    reader = Reader(table, live_data_files(table, store_id, statistics=full) if history else ())
    if full:
        close, shallow = list(rows), []
    elif deep is None:
        newest = {row.log: row for row in rows}
        close, shallow = list(newest.values()), [row for row in rows if row not in newest.values()]
    else:
        close, shallow = [row for row in rows if (row.log, row.base_offset) in deep], []
    looks: dict[SegmentIdentity, Look] = {}
    data_files: dict[str, DataFileFact] = {}
    for receipt in told_each(shallow, "Looking at data files", "segments"):
        look = looks[receipt.identity] = reader.look(receipt, Depth.SIZES)
        data_files |= {fact.subject: fact for fact in _data_files(reader, look, Depth.SIZES)}
    row_facts: list[RowsFact] = []
    queues: set[tuple[str, int]] = set()
    notes: list[str] = []
    with told("Reading archived rows", sum(receipt.size_bytes for receipt in close)) as advance:
        for receipt in close:
            look = reader.look(receipt, Depth.STATISTICS if full else Depth.FILES)
            if look.is_displaced:
                look = reader.look(receipt, Depth.ROWS)
            looks[receipt.identity] = look
            files = _data_files(reader, look, Depth.FILES)
            if files:
                found, met = _rows(receipt, _row_table(table, receipt, files))
                row_facts.append(found)
                queues |= met
            if look.is_displaced and look.is_proven_by_rows:
                # Another engine put the rows into other files, and they still prove the segment.
                notes.append(
                    f"{_name(receipt)}: its rows lie in other files by now, and prove the same bytes"
                )
            else:
                data_files |= {fact.subject: fact for fact in files}
            advance(receipt.size_bytes)
    unread = len(rows) - len(looks)
    looks |= _looks_in_part(reader, history, deep, full=full)
    if unread:
        notes.append(f"data files of {unread} segments that the run did not touch were not looked at")
    if shallow:
        notes.append(
            f"data files of {len(shallow)} segments were not read, only their presence and length checked"
        )
    return LakeFacts(
        receipts=rows,
        broken={identity: str(look.losses[0]) for identity, look in looks.items() if look.losses},
        chain=tuple(_chain(history, _faults(history, rows, looks, known), looks)),
        data_files=tuple(data_files.values()),
        rows=tuple(row_facts),
        queues=frozenset(queues),
        notes=tuple(notes),
        ended=ended(current(history)),
        expiries=merged_expiries([(lake, ended(current(history)))]),
    )


def _looks_in_part(
    reader: Reader, history: Sequence[Receipt], deep: AbstractSet[Slot] | None, *, full: bool
) -> Iterator[tuple[SegmentIdentity, Look]]:
    """Look at files of segments of which archive rules left topics out: their rows are no whole run."""
    for receipt in (row for row in current(history) if row.lacks_by_rules):
        is_close = full or (deep is not None and (receipt.log, receipt.base_offset) in deep)
        look = reader.look(receipt, Depth.FILES if is_close else Depth.SIZES)
        yield receipt.identity, reader.look(receipt, Depth.ROWS) if look.is_displaced else look


def _faults(
    history: Sequence[Receipt],
    rows: Sequence[Receipt],
    looks: Mapping[SegmentIdentity, Look],
    known: Collection[ChainHead],
) -> dict[SegmentIdentity, str]:
    """Say why receipts that count are not sound, but for those whose rows were proven where they lie now."""
    faults: dict[SegmentIdentity, str] = {}
    try:
        check_links_of(history, known)
    except ReceiptError as error:
        faults = reasons(chain_faults(rows, str(error)))
    for identity, look in looks.items():
        if wrong := [fault for fault in look.faults if fault in look.losses or not fault.kind.is_displaced]:
            faults[identity] = str(wrong[0])
    return faults


def _chain(
    rows: Sequence[Receipt], faults: Mapping[SegmentIdentity, str], looks: Mapping[SegmentIdentity, Look]
) -> Iterator[ReceiptFact]:
    """The receipts in the order of the chain; those that it doesn't reach come last."""
    following = {row.previous_hash: row for row in rows}
    ordered: list[Receipt] = []
    last = CHAIN_START
    while last in following:
        row = following.pop(last)
        ordered.append(row)
        last = row.row_hash
    reached = {id(row) for row in ordered}
    counting = {id(row) for row in current(rows)}
    previous = CHAIN_START
    for row in (*ordered, *(row for row in rows if id(row) not in reached)):
        look = looks.get(row.identity) if id(row) in counting else None
        is_moved = look is not None and look.is_displaced and look.is_proven_by_rows
        yield ReceiptFact(
            subject=f"receipt {_name(row)}",
            row_hash=row.row_hash,
            computed_row_hash=row_hash(asdict(row)),
            previous_hash=row.previous_hash,
            computed_previous_hash=previous,
            fault=faults.get(row.identity, "") if id(row) in counting else "",
            moved=str(look.faults[0]) if look is not None and is_moved else "",
        )
        previous = row.row_hash


def _data_files(reader: Reader, look: Look, depth: Depth) -> list[DataFileFact]:
    """Of every file that a receipt's proof rests on: several, where another engine has moved its rows."""
    files = [reader.file(file.stored, depth) for file in look.seen.files]
    named = {file.stored.location for file in files}
    deletes = {name for file in files for entry in file.listed for name in entry.delete_files}
    return [
        DataFileFact(
            subject=file.stored.location,
            expected_bytes=file.stored.size_bytes,
            found_bytes=NO_SUCH_FILE if file.size_bytes is None else file.size_bytes,
            expected_sha256=file.stored.sha256,
            found_sha256=file.sha256 or "",
            times_in_table=len(file.listed) or int(file.stored.location in deletes),
            delete_files=int(any(set(entry.delete_files) - named for entry in file.listed)),
        )
        for file in files
    ]


def _rows(receipt: Receipt, rows: pa.Table) -> tuple[RowsFact, set[tuple[str, int]]]:
    starts = rows["physical_offset"].to_numpy().astype(np.int64)
    sizes = rows["size"].to_numpy().astype(np.int64)
    # A row without bytes begins where one begins that has some.
    starts, sizes = starts[sizes != 0], sizes[sizes != 0]
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    ends = starts + sizes[order]
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
        found_rows=rows.num_rows,
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
        try:
            with lake_errors(table.location(), "read a segment's rows"):
                return table.scan(row_filter=where, selected_fields=columns).to_arrow()
        except StorageEngineError:
            raise
        except Exception:
            # Over what another engine wrote PyArrow and PyIceberg raise anything; why is the receipt's fault.
            return _NO_ROWS
    try:
        with open_data_file(table.io, data_file_of(table, receipt)) as stored:
            parquet, name = pq.ParquetFile(stored), receipt.data_file
            segment = rows_of_segment(parquet, receipt, name)
            return segment.read_row_groups(list(range(segment.num_row_groups)), columns=list(columns))
    except (pa.ArrowException, OSError, ProofError):
        # A file that is no Parquet any more has no rows; that its hash differs is another fact.
        return _NO_ROWS


def _name(receipt: Receipt) -> str:
    return f"{receipt.log}/{receipt.base_offset:020d} (lineage {receipt.lineage})"
