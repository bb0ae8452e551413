"""Fact tables about a store, and about a lake's receipts, data files and rows. Each suite has one table.

The expectations decide whether a fact is a fault. This module doesn't.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.long_work import report_each, report_work
from storage_engine.exceptions import BadInputError, ProofError, ReceiptError, StorageEngineError
from storage_engine.journal.journal import Journal, Step, StoreRecord
from storage_engine.lake.acts.act_files import merged_expiries
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.coverage.coverage import (
    LocalSpan,
    ReleasedSpan,
    Witnesses,
    log_ranges,
    lost_ranges,
    merge_lakes,
    names_of_logs,
)
from storage_engine.lake.coverage.spans import comparable, compare
from storage_engine.lake.durable_io import open_data_file
from storage_engine.lake.file.data_file import rows_of_segment
from storage_engine.lake.file.scan import live_data_files, segment_rows
from storage_engine.lake.restore.restore_span import filled_notes
from storage_engine.lake.soundness.chain import check_links_of, row_hash
from storage_engine.lake.soundness.receipts import current, list_stores, receipt_history
from storage_engine.lake.soundness.segment_reader import origin_of
from storage_engine.lake.soundness.soundness import NO_SUCH_FILE, Depth, Look, chain_faults, reasons
from storage_engine.lake.soundness.soundness_reader import Reader
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.lake.verify.replica_coverage import replica_spans
from storage_engine.model.broker.broker_store import contradiction
from storage_engine.model.proof.receipt import (
    CHAIN_START,
    ChainHead,
    Receipt,
    SegmentIdentity,
    ended,
    select_whole,
)
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.report.facts import FactsScope, LocalSegment, StoreFacts
from storage_engine.model.report.validation import RangeStatus, Status, Where
from storage_engine.model.store import Lineages, group_by_log, is_unique
from storage_engine.quality.expectation_rules import FactTable
from storage_engine.retention.proof.history import compared_receipts, releases
from storage_engine.retention.proof.proofs import drop_older_lakes, reachable_lakes
from storage_engine.retention.proof.shielding import shielded_spans
from storage_engine.retention.ranges.drift import all_gone_spans
from storage_engine.retention.ranges.missing_logs import missing_logs, missing_spans, present_logs
from storage_engine.retention.release.checkpointing import deleted_dependents
from storage_engine.retention.store.broker_answers import ask, take_snapshot
from storage_engine.retention.store.brokers import open_store, settings_of
from storage_engine.retention.store.context import AnyStore, Context, managed_of, open_context
from storage_engine.retention.store.known_heads import KnownHeads, known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.unnamed_lakes import lakes_unasked
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts

Slot = tuple[str, int]
"""(log, base offset) of a segment."""

_PLACE_COLUMNS = ("physical_offset", "size")
_NO_ROWS = pa.table({name: pa.array([], pa.int64()) for name in _PLACE_COLUMNS})


@dataclass(frozen=True, slots=True)
class ReceiptFact:
    """A receipt with its hashes, and the hashes that the chain expects.

    :param fault: why the receipt can't allow a deletion; "" if the receipt allows a deletion, isn't current,
        or wasn't checked.
    :param moved: why the receipt has to be renewed, although its rows prove its bytes; else "".
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

    :param found_bytes: length of the file; -1 if the file is missing.
    :param found_sha256: hash of the file; "" if the file was not read.
    :param times_in_table: number of entries for the file in the current snapshot of the table of rows.
    :param delete_files: 1 if some of the file's rows count as deleted, otherwise 0.
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
    """A segment's rows, as any reader of the table gets them. All offsets are positions of bytes.

    :param base_offset: position of the segment's first byte.
    :param end_offset: position after the segment's last byte.
    :param first_row_offset: smallest start of a row with bytes; -1 without such a row.
    :param last_row_end: largest end of a row with bytes; -1 without such a row.
    :param gaps: number of places between rows where no row covers the next byte.
    :param duplicates: number of rows that begin below the end of an earlier row.
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
    """:param receipts: receipts of segments that are whole in a lake.
    :param broken: reasons why segments' bytes aren't proven now.
    :param queues: streams of messages, such as topic and queue, in the segments whose rows were read.
    """

    receipts: tuple[Receipt, ...]
    broken: dict[SegmentIdentity, str]
    chain: tuple[ReceiptFact, ...]
    data_files: tuple[DataFileFact, ...]
    rows: tuple[RowsFact, ...]
    queues: frozenset[tuple[Any, ...]]
    notes: tuple[str, ...]
    ended: tuple[Receipt, ...] = ()
    """Receipts of expired segments."""
    expiries: Mapping[str, str] = field(default_factory=dict)
    """By the SHA-256 of an expiry's act, a clause with the keep policy and the time of the expiry."""


NO_LAKE = LakeFacts((), {}, (), (), (), frozenset(), ())


def laid_over(first: LakeFacts, second: LakeFacts) -> LakeFacts:
    """Combine the facts of two lakes of a store: all files and rows, and one receipt for each segment.

    If a segment's receipt is broken in one lake only, the receipt in the other lake counts.
    """
    holding = [row for row in second.receipts if row.identity not in second.broken]
    receipts, broken = merge_lakes(first.receipts, first.broken, holding)
    identities = {row.identity for row in receipts}
    added = tuple(row for row in second.receipts if row.identity not in identities)
    return LakeFacts(
        receipts=(*receipts, *added),
        broken={**broken, **{row.identity: second.broken[row.identity] for row in added}},
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
    """Collect the facts about a store's part of the lake.

    The hash of each receipt and its place in the chain are checked. The data files of segments in ``deep``
    are read and hashed, with their rows. Data files of other segments aren't checked.

    :param deep: segments to read closely; None for the last archived segment of each log. Then presence and
        length of the other segments' data files are checked.
    :param full: read all segments closely, and compare all statistics that the table has of their files.
    :param known: receipts that the lake had at an earlier time.
    :raises LakeUnavailableError: the lake can't be read.
    """
    history = receipt_history(lake, store_id)
    rows = select_whole(current(history))
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
    for receipt in report_each(shallow, "Looking at data files", "segments"):
        look = looks[receipt.identity] = reader.look(receipt, Depth.SIZES)
        data_files |= {fact.subject: fact for fact in _data_files(reader, look, Depth.SIZES)}
    row_facts: list[RowsFact] = []
    queues: set[tuple[str, int]] = set()
    notes: list[str] = []
    with report_work("Reading archived rows", sum(receipt.size_bytes for receipt in close)) as advance:
        for receipt in close:
            look = reader.look(receipt, Depth.STATISTICS if full else Depth.FILES)
            if look.is_displaced:
                look = reader.look(receipt, Depth.ROWS)
            looks[receipt.identity] = look
            files = _data_files(reader, look, Depth.FILES)
            if files:
                row_fact, met = _rows(receipt, _row_table(table, receipt, files))
                row_facts.append(row_fact)
                queues |= met
            if look.is_displaced and look.is_proven_by_rows:
                # Another engine put the rows into other files, and they still prove the segment.
                notes.append(f"{_name(receipt)}: its rows are in other files now, and prove the same bytes")
            else:
                data_files |= {fact.subject: fact for fact in files}
            advance(receipt.size_bytes)
    unread = len(rows) - len(looks)
    looks |= _looks_in_part(reader, history, deep, full=full)
    if unread:
        notes.append(f"data files of {unread} segments that the run did not touch were not checked")
    if shallow:
        notes.append(
            f"data files of {len(shallow)} segments were not read; only their presence and length were "
            "checked"
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
    """Look at the files of segments from which archive rules left topics out, and yield each look."""
    for receipt in (row for row in current(history) if row.lacks_by_rules):
        is_close = full or (deep is not None and (receipt.log, receipt.base_offset) in deep)
        look = reader.look(receipt, Depth.FILES if is_close else Depth.SIZES)
        yield receipt.identity, reader.look(receipt, Depth.ROWS) if look.is_displaced else look


def _faults(
    history: Sequence[Receipt],
    rows: Sequence[Receipt],
    looks: Mapping[SegmentIdentity, Look],
    heads: Collection[ChainHead],
) -> dict[SegmentIdentity, str]:
    """Return why current receipts are not sound. Moved rows are no fault if their new files prove them."""
    faults: dict[SegmentIdentity, str] = {}
    try:
        check_links_of(history, heads)
    except ReceiptError as error:
        faults = reasons(chain_faults(rows, Text(error)))
    for identity, look in looks.items():
        if wrong := [fault for fault in look.faults if fault in look.losses or not fault.kind.is_displaced]:
            faults[identity] = str(wrong[0])
    return faults


def _chain(
    rows: Sequence[Receipt], faults: Mapping[SegmentIdentity, str], looks: Mapping[SegmentIdentity, Look]
) -> Iterator[ReceiptFact]:
    """Yield the receipts in the order of the chain. Receipts outside the chain come last."""
    following = {row.previous_hash: row for row in rows}
    ordered: list[Receipt] = []
    last = CHAIN_START
    while last in following:
        row = following.pop(last)
        ordered.append(row)
        last = row.row_hash
    reached = {id(row) for row in ordered}
    current_ids = {id(row) for row in current(rows)}
    previous = CHAIN_START
    for row in (*ordered, *(row for row in rows if id(row) not in reached)):
        look = looks.get(row.identity) if id(row) in current_ids else None
        is_moved = look is not None and look.is_displaced and look.is_proven_by_rows
        yield ReceiptFact(
            subject=f"receipt {_name(row)}",
            row_hash=row.row_hash,
            computed_row_hash=row_hash(asdict(row)),
            previous_hash=row.previous_hash,
            computed_previous_hash=previous,
            fault=faults.get(row.identity, "") if id(row) in current_ids else "",
            moved=str(look.faults[0]) if look is not None and is_moved else "",
        )
        previous = row.row_hash


def _data_files(reader: Reader, look: Look, depth: Depth) -> list[DataFileFact]:
    """Return the files of a receipt's proof. There are several if another engine moved the rows."""
    files = [reader.file(file.stored, depth) for file in look.seen.files]
    locations = {file.stored.location for file in files}
    deletes = {name for file in files for entry in file.listed for name in entry.delete_files}
    return [
        DataFileFact(
            subject=file.stored.location,
            expected_bytes=file.stored.size_bytes,
            found_bytes=NO_SUCH_FILE if file.size_bytes is None else file.size_bytes,
            expected_sha256=file.stored.sha256,
            found_sha256=file.sha256 or "",
            times_in_table=len(file.listed) or int(file.stored.location in deletes),
            delete_files=int(any(set(entry.delete_files) - locations for entry in file.listed)),
        )
        for file in files
    ]


def _rows(receipt: Receipt, rows: pa.Table) -> tuple[RowsFact, set[tuple[str, int]]]:
    starts = rows["physical_offset"].to_numpy().astype(np.int64)
    sizes = rows["size"].to_numpy().astype(np.int64)
    # A row without bytes begins where a row with bytes begins.
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
    queues = (tuple(row[name] for name in streams) for row in groups)
    return fact, {stream for stream in queues if None not in stream}


def _row_table(table: Table, receipt: Receipt, files: Sequence[DataFileFact]) -> pa.Table:
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
            # On files of another engine, PyArrow and PyIceberg may raise any error. The receipt has a fault.
            return _NO_ROWS
    try:
        with open_data_file(table.io, data_file_of(table, receipt)) as stored:
            parquet, name = pq.ParquetFile(stored), receipt.data_file
            segment = rows_of_segment(parquet, receipt, name)
            return segment.read_row_groups(list(range(segment.num_row_groups)), columns=list(columns))
    except (pa.ArrowException, OSError, ProofError):
        # A file that is no Parquet has no rows. Its changed hash is another fact.
        return _NO_ROWS


def _name(receipt: Receipt) -> str:
    return f"{receipt.log}/{receipt.base_offset:020d} (lineage {receipt.lineage})"


_ON_DISK = (Where.LOCAL, Where.BOTH, Where.PENDING)


def explain_ranges(
    ranges: Sequence[RangeStatus], others: Mapping[str, str], cleaned_to: Mapping[str, int]
) -> tuple[RangeStatus, ...]:
    """Return the ranges with further details from the broker's files.

    :param others: result of :func:`other_logs`.
    :param cleaned_to: by log, the offset up to which a cleaner has run and may have removed all records.
    """
    logs: set[str] = set()

    def explain(row: RangeStatus) -> RangeStatus:
        if row.where in _ON_DISK and row.log in others:
            detail = "the log on disk isn't the archived log"
            if row.log not in logs:
                logs.add(row.log)
                detail += Text(
                    f": {others[row.log]}. Find out what happened to the archived log. Then ",
                    Command("adopt", f"STORE --log {row.log} --reason WHY"),
                    " opens a new lineage of the log",
                )
            return replace(row, status=Status.FAILURE, detail=detail)
        end = cleaned_to.get(row.log, 0)
        if row.where is Where.LOST and row.status is Status.FAILURE and row.end_offset <= end:
            cleaned = f"the broker's cleaner has run up to offset {end}, and may have removed all its records"
            return replace(row, status=Status.WARNING, detail=f"{row.detail}; {cleaned}")
        return row

    return tuple(map(explain, ranges))


def other_logs(
    store: ManagedStore, record: StoreRecord | None, receipts: Sequence[Receipt]
) -> dict[str, str]:
    """Return contradictions between logs on disk and their receipts, by log.

    Only logs that have an identity in receipts are compared. The running broker isn't asked.

    :param record: the store's record; None if no journal knows the store. Then the newest lineages are used.
    """
    if not any(is_unique(row.log_id or "") for row in receipts):
        return {}
    newest: dict[str, int] = {}
    for row in receipts:
        newest[row.log] = max(row.lineage, newest.get(row.log, 0))
    if record is not None:
        newest = {log: record.lineage_of(log) for log in newest}
    rows = group_by_log(row for row in receipts if row.lineage == newest[row.log])
    texts: dict[str, str] = {}
    with closing(open_store(replace(store, live=None))) as broker:
        logs = {log.name for log in take_snapshot(broker, clock_ms(), store.broker).logs}
        for log in sorted(logs & rows.keys()):
            try:
                texts[log] = contradiction(broker, log, rows[log])
            except StorageEngineError as error:
                texts[log] = f"it isn't known whether this is the archived log: {reason_of(error)}"
    return {log: text for log, text in texts.items() if text}


@dataclass(frozen=True, slots=True)
class RunScope:
    """Segments that a run touched.

    :param segments: segments that the run archived, planned or deleted.
    :param pending: segments of the run's plan that are not deleted yet.
    :param files: queue and index files that the run deleted.
    """

    segments: frozenset[Slot]
    pending: frozenset[Slot]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """:param tables: the fact tables, by suite name.
    :param store_id: None if the store isn't known yet.
    :param without_suites: suites that have nothing to check in this kind of store.
    """

    tables: Mapping[str, FactTable]
    ranges: tuple[RangeStatus, ...]
    store_id: str | None
    notes: tuple[str, ...]
    without_suites: frozenset[str] = frozenset()


def collect_facts(store: AnyStore, run_key: str | None, *, full: bool, with_lake: bool) -> Facts:
    """Collect the facts about a store, its lake and its journal. This changes none of them.

    :param run_key: run whose segments are read; None to read the boundaries of all ranges.
    :param full: read all frames, queues and archived rows.
    :param with_lake: False to read the store alone.
    :raises StoreNotFoundError: there is no such store.
    :raises LakeUnavailableError: the lake can't be read, so its facts are unknown.
    :raises RunStateError: there is no such run.
    :raises BrokerError: the store's broker runs, but doesn't answer.
    """
    facts = _collect(store, run_key, full=full, with_lake=with_lake)
    if managed_of(store).is_live and with_lake and lost_ranges(facts.ranges):
        # A segment may have been archived and deleted between the looks at lake and store.
        return _collect(store, run_key, full=full, with_lake=with_lake)
    return facts


def _collect(place: AnyStore, run_key: str | None, *, full: bool, with_lake: bool) -> Facts:
    store = managed_of(place)
    run = _run_scope(place, run_key) if run_key is not None else None
    lakes, unreachable = reachable_lakes(store) if with_lake and store.archives else ([], {})
    journal, record = _journal(place) if with_lake else (None, None)
    heads = KnownHeads()
    if lakes and journal is not None and record is not None:
        heads = known_heads(journal, record)
        lakes, unreachable = drop_older_lakes(lakes, unreachable, heads, record.store_id)
    store_id, released, notes = (
        (None, (), ()) if journal is None else known_store(store, journal, record, lakes, unreachable)
    )
    unasked: tuple[str, ...] = ()
    missing, present = _missing(store, journal, record) if store_id is not None and journal else ((), {})
    released = (*released, *missing)
    lake = NO_LAKE
    if with_lake and store.archives and store_id is not None:
        deep = run.segments if run else None
        unasked = lakes_unasked(heads.heads, lakes, unreachable)
        lake = reduce(
            laid_over,
            (
                collect_lake(each, store_id, deep, full=full, known=heads.of(each, each.segments()))
                for each in lakes
            ),
        )
        notes += tuple(Text("a lake could not be asked: ", reason) for reason in unreachable.values())
    elif with_lake and store_id is not None:
        notes += ("the store's policy is archive: off, so the lake was not asked",)
    elif not with_lake:
        notes += (
            "the lake was not asked: deleted bytes can't be told apart from bytes that the store never had",
        )
    archived = (*lake.receipts, *lake.ended)
    names = names_of_logs(present, archived, released)
    own_rows = [row for row in lake.receipts if names.name_of(row) == row.log]
    lineages = _lineages(record, own_rows)
    rows = comparable(own_rows, lineages)
    local = _collect_store(store, run, lake, rows, full=full)
    acts = read_own_acts(store.real_root)
    spans = _spans(local.local, rows, lineages, acts, run.pending if run else frozenset(), full=full)
    shielded = () if record is None else shielded_spans(store.real_root, record.lineages)
    lay_over = partial(log_ranges, (*spans, *shielded), archived, released=released, broken=lake.broken)
    witnesses = Witnesses(present, unasked=unasked, expiries=lake.expiries)
    ranges = lay_over(witnesses=witnesses)
    if store_id is not None and journal is not None:
        lost = lost_ranges(ranges)
        compared = partial(compared_receipts, journal, store_id)
        others = [span for each in lakes for span in replica_spans(each, store_id, names, lost, compared)]
        ranges = lay_over(witnesses=replace(witnesses, replicas=others)) if others else ranges
    foreign = other_logs(store, record, lake.receipts) if store_id is not None else {}
    ranges = explain_ranges(ranges, foreign, local.cleaned_to)
    logs = {row.log for row in ranges}
    ranges += tuple(
        RangeStatus(
            log, 0, 0, Where.LOST, Status.FAILURE, (), f"{reason}; its first and last offsets aren't known"
        )
        for log, reason in sorted(local.missing.items())
        if log not in logs
    )
    notes += tuple(f"{log}: {reason}" for log, reason in sorted(local.missing.items()) if log in logs)
    notes += filled_notes(store.real_root, {(segment.log, segment.start_offset) for segment in local.local})
    return Facts(
        tables=_tables(local, lake, ranges, spans, rows),
        ranges=ranges,
        store_id=store_id,
        notes=(*notes, *local.notes, *lake.notes),
        without_suites=local.without_suites,
    )


def _run_scope(store: AnyStore, run_key: str) -> RunScope:
    context = open_context(store)
    run = context.run(run_key)
    records, _ = releases(context.journal.events(run, Step.RELEASE))
    deleted = {(release.log, release.base_offset) for release in records.values()}
    planned = {(s.log, s.base_offset) for s in (run.plan.to_delete if run.plan else ())}
    archived = {
        (str(event.payload["log"]), int(event.payload["base_offset"]))
        for event in context.journal.events(run, Step.ARCHIVE)
        if event.subject and "base_offset" in event.payload
    }
    return RunScope(
        segments=frozenset(planned | deleted | archived),
        pending=frozenset(planned - deleted),
        files=tuple(file.facts.path for file in deleted_dependents(context, run)),
    )


def _journal(store: AnyStore) -> tuple[Journal, StoreRecord | None]:
    """Return a store's journal, and the journal's record of the store.

    The lakes must be open already: a missing journal is created, and that is wrong if a lake is missing, too.
    """
    journal = store.journal if isinstance(store, Context) else Journal(store.journal_url)
    managed = managed_of(store)
    return journal, journal.find_store(managed.real_root, managed.host)


def archived_lakes(store: AnyStore) -> tuple[str, tuple[LakeConfig, ...], tuple[str, ...]]:
    """Return a store's id, its readable lakes, and why the other lakes can't be read.

    :raises BadInputError: no part of the store is archived.
    """
    managed = managed_of(store)
    if not managed.archives:
        raise BadInputError(
            f"{managed.root}: expected an archived store, found archive: off in its policy. Nothing was "
            "changed. Archive the store first."
        )
    lakes, unreachable = reachable_lakes(managed)
    store_id, _, notes = known_store(managed, *_journal(store), lakes, unreachable)
    if store_id is None:
        raise BadInputError(f"{managed.root}: {notes[0]}. Nothing was changed. Archive the store first.")
    missing = tuple(Text("a lake could not be asked: ", reason) for reason in unreachable.values())
    return store_id, tuple(lake.config for lake in lakes), (*notes, *missing)


def known_store(
    store: ManagedStore,
    journal: Journal,
    record: StoreRecord | None,
    lakes: Sequence[Lake],
    unreachable: Mapping[str, str],
) -> tuple[str | None, tuple[ReleasedSpan, ...], tuple[str, ...]]:
    """Return a store's id, its deleted segments, and notes. The id is None if no journal or lake knows it."""
    if record is not None:
        return record.store_id, all_gone_spans(journal, record, unreachable), ()
    if not store.archives:
        return None, (), ("the journal doesn't know this store",)
    known_stores = [s for lake in lakes for s in list_stores(lake) if s.store_root == store.real_root]
    if not known_stores:
        return None, (), ("neither journal nor lake knows this store: no part of it was ever archived",)
    return (
        max(known_stores, key=lambda s: s.newest_proof_ms).store_id,
        (),
        ("the store's identity was taken from the lake",),
    )


def _missing(
    store: ManagedStore, journal: Journal, record: StoreRecord | None
) -> tuple[tuple[ReleasedSpan, ...], dict[str, str]]:
    """Return the ranges of missing logs, and the identities of present logs by name.

    A log is missing if it was seen before and must still be on disk.
    """
    with closing(open_store(replace(store, live=None, engine=False))) as broker:
        if broker.identities is None:
            return (), {}
        snapshot = take_snapshot(broker, clock_ms(), store.broker)
        present = present_logs(broker, snapshot)
        if record is None:
            return (), present
        absent = missing_logs(store, journal, record, broker, snapshot)
        return missing_spans(journal, record, absent), present


def _lineages(record: StoreRecord | None, rows: Sequence[Receipt]) -> Lineages:
    """Return the lineages of a store's logs: the newest archived ones if the journal has no record."""
    if rows and record is not None:
        return record.lineages
    ordered = sorted(rows, key=lambda row: row.lineage)
    return Lineages(0, {row.log: row.lineage for row in ordered})


def _collect_store(
    store: ManagedStore,
    run: RunScope | None,
    lake: LakeFacts,
    rows: Mapping[Slot, Receipt],
    *,
    full: bool,
) -> StoreFacts:
    scope = FactsScope(
        full=full,
        queues=lake.queues if run and not full else None,
        files=run.files if run else (),
        accepted_damage={slot: row.damaged_bytes for slot, row in rows.items()},
    )
    broker = find_broker(store.broker)
    return ask(store.broker, "collect facts", lambda: broker.collect_facts(settings_of(store), scope))


def _spans(
    local: Sequence[LocalSegment],
    rows: Mapping[Slot, Receipt],
    lineages: Lineages,
    acts: OwnActs,
    pending: frozenset[Slot],
    *,
    full: bool,
) -> tuple[LocalSpan, ...]:
    spans = []
    for segment in local:
        with suppress(FileNotFoundError):  # The segment may be deleted meanwhile.
            slot = (segment.log, segment.start_offset)
            span = _span(segment, rows.get(slot), acts, full=full, pending=slot in pending)
            spans.append(replace(span, lineage=lineages.of(segment.log)))
    return tuple(spans)


def _span(
    segment: LocalSegment, receipt: Receipt | None, acts: OwnActs, *, full: bool, pending: bool
) -> LocalSpan:
    files, unread = (segment.facts, *segment.companions), segment.unread
    result = compare(files, None if unread else receipt, acts, hash_all=full)
    return LocalSpan(
        log=segment.log,
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        name=segment.facts.path.rsplit("/", 1)[-1],
        sha256=result.sha256,
        unchanged=result.unchanged,
        pending=pending,
        companions_fault=result.companions_fault,
        unread=unread or result.unread,
    )


def _tables(
    local: StoreFacts,
    lake: LakeFacts,
    ranges: Sequence[RangeStatus],
    spans: Sequence[LocalSpan],
    rows: Mapping[Slot, Receipt],
) -> dict[str, FactTable]:
    overlaps = [
        {
            "subject": f"{span.log}/{span.name}",
            "archived_sha256": receipt.sha256,
            "local_sha256": span.sha256 or "",
            "unchanged": span.unchanged,
        }
        for span in spans
        if (receipt := rows.get((span.log, span.start_offset))) is not None
    ]
    statuses = [
        {
            "subject": f"{row.log} [{row.start_offset}, {row.end_offset}): {row.detail}",
            "log": row.log,
            "start_offset": row.start_offset,
            "end_offset": row.end_offset,
            "where": row.where.value,
            "status": row.status.value,
        }
        for row in ranges
    ]
    return {
        "store_segments": _table(local.segments),
        "store_frames": _table(local.frames),
        "store_dispatch": _table(local.dispatch),
        "store_queue_files": _table(local.queue_files),
        "store_queues": _table(local.queues),
        "store_index_files": _table(local.index_files),
        "store_checkpoint": _table(local.checkpoint),
        "lake_receipts": _table(lake.chain),
        "lake_data_files": _table(lake.data_files),
        "lake_rows": _table(lake.rows),
        "across_ranges": FactTable(tuple(statuses)),
        "across_overlaps": FactTable(tuple(overlaps)),
    }


def _table(rows: Sequence[Any]) -> FactTable:
    return FactTable(tuple(asdict(row) for row in rows))
