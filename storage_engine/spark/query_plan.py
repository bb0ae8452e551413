"""The one place from which a query reads each row of a store: the lake or the disk. Every hole is reported.

The store is read before the lake. A segment leaves the disk only after the lake has it. So a segment that is
missing in the first look is in the lake at the second look. A segment that is in both places is read from the
lake, where nothing deletes it, unless the lake has only a part of it.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.host import this_host
from storage_engine.exceptions import (
    BadInputError,
    FileGoneError,
    LakeUnavailableError,
    StorageEngineError,
    StoreNotFoundError,
)
from storage_engine.lake.acts.act_files import merged_expiries
from storage_engine.lake.archive.deletions import read_deletions
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of, proven_files
from storage_engine.lake.coverage.coverage import (
    LocalSpan,
    ReleasedSpan,
    Witnesses,
    log_ranges,
    names_of_logs,
)
from storage_engine.lake.coverage.spans import local_spans
from storage_engine.lake.file.scan import live_data_files, plan_files, store_rows
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.model.broker.broker_store import contexts_of, is_present
from storage_engine.model.broker.codec import Columns, offsets_count_bytes
from storage_engine.model.proof.receipt import NOT_ARCHIVED, Receipt, ended, select_whole, with_rows
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.report.validation import RangeStatus, Status, Where
from storage_engine.model.store import (
    Absence,
    FileFacts,
    Lineages,
    LogIdentity,
    LogNames,
    LogSnapshot,
    Segment,
    SegmentContext,
    SegmentId,
    SegmentState,
    StoreSnapshot,
    group_by_log,
)
from storage_engine.retention.proof.shielding import shielded_spans
from storage_engine.retention.ranges.missing_logs import present_logs
from storage_engine.retention.store.broker_answers import answer_for_left, take_glance
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import read_stamp

Slot = tuple[int, str, int]
"""Lineage, log and base offset of a segment."""


class RowsMissingError(StorageEngineError):
    """Requested rows may be in no place: they expired, were not archived, or are lost."""


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A data file of the lake.

    :param slots: segments whose rows are read from the file, or None if all its rows are read.
    """

    location: str
    size_bytes: int
    slots: tuple[Slot, ...] | None


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A segment of the store that the lake lacks, in the state in which it was seen.

    :param sealed_in: root of the store if another file may get this file's name later, else "". That
        may happen if the segment is sealed and its offsets don't count bytes.
    :param size_bytes: how many bytes of it are read.
    :param log_id: id of its log, as in receipts, or "" if not known.
    :param end: offset after the last durable row, in Kafka the high watermark; None if all rows are durable.
    """

    facts: FileFacts
    sealed_in: str
    size_bytes: int
    slot: Slot
    log_id: str
    end: int | None
    context: str


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Parts of a store that one query reads.

    :param store_id: id of the store, or "" if no part of the store is archived yet.
    """

    store_id: str
    lake_files: tuple[LakeFile, ...]
    store_files: tuple[StoreFile, ...]


@dataclass(frozen=True)
class StoreLook:
    """A store's files on its disk at a moment.

    :param store_id, lineages: from the store's stamp; None if it has no stamp.
    :param present: identities of the store's logs, by name.
    :param contexts: function that returns the broker's facts about segments that their files don't have.
    :param absences: function that returns why logs are missing, if the broker knows it.
    """

    root: str
    at_ms: int
    snapshot: StoreSnapshot
    store_id: str | None = None
    lineages: Lineages | None = None
    present: Mapping[str, str] = field(default_factory=dict)
    contexts: Callable[[Sequence[Segment]], Mapping[SegmentId, SegmentContext]] = lambda _: {}
    absences: Callable[[Mapping[str, LogIdentity]], Mapping[str, Absence]] = lambda _: {}


def look_at_store(store: ManagedStore) -> StoreLook:
    """Look at a store's files on this host's disk. If its broker deletes files meanwhile, look again.

    :raises StoreNotFoundError: there is no such store.
    :raises StorageEngineError: the store can't be read.
    """
    for _ in range(_ATTEMPTS):
        with suppress(FileGoneError):
            return _look(store)
    return _look(store)


def _look(store: ManagedStore) -> StoreLook:
    with closing(open_store(store)) as broker:
        # A missing directory may be right. If it isn't, the look itself fails.
        for directory in filter(Path.exists, broker.data_paths):
            if not is_present(broker, directory):
                raise StoreNotFoundError(
                    f"{directory}: expected a directory of the store with its broker's files, found none of "
                    "these files. Nothing was read. Check that its disk is mounted."
                )
        now_ms = clock_ms()
        snapshot = take_glance(broker, now_ms, store.broker)
        stamp = read_stamp(store.real_root)
        return StoreLook(
            store.real_root,
            now_ms,
            snapshot,
            None if stamp is None else stamp.store_id,
            None if stamp is None else stamp.lineages,
            present_logs(broker, snapshot),
            partial(_read_contexts, store),
            partial(_ask_absences, store),
        )


def _ask_absences(store: ManagedStore, logs: Mapping[str, LogIdentity]) -> Mapping[str, Absence]:
    with closing(open_store(store)) as broker:
        return {} if broker.identities is None else broker.identities.absences(logs)


def _read_contexts(store: ManagedStore, segments: Sequence[Segment]) -> Mapping[SegmentId, SegmentContext]:
    """Return a broker's facts about segments that their files don't have. Deleted segments are left out."""
    contexts: dict[SegmentId, SegmentContext] = {}
    with closing(open_store(store)) as broker:
        for of_log in group_by_log(segments).values():
            contexts |= answer_for_left(of_log, partial(contexts_of, broker))[1]
    return contexts


def plan_read(
    lake: Lake,
    look: StoreLook | None,
    where: BooleanExpression,
    *,
    store_id: str | None = None,
    skip_holes: bool = False,
) -> ReadPlan:
    """Return the files and segments that a query reads.

    :param look: look at the store from before the lake's tables are loaded; None if only the lake is read.
    :param where: filter for the requested rows, by the columns of the table of rows.
    :param store_id: id of the store to read; None for the store of ``look``, or the only store in the lake.
    :param skip_holes: skip expired and lost rows instead of refusing.
    :raises BadInputError: it isn't clear which store is meant.
    :raises RowsMissingError: requested rows may be in no place, or their bytes aren't the proven bytes.
    :raises LakeUnavailableError: the lake can't be read, or lacks a file that a receipt names.
    """
    store_id = _store_id(lake, look, store_id)
    table, rows = lake.messages(), receipts(lake, store_id, with_ended=True)
    columns, present = find_broker(lake.broker).codec.columns, {} if look is None else look.present
    names = names_of_logs(present, rows, ())
    lineages = _lineages(rows, names, look)
    limits = _limits(rows, names, lineages, look)
    counting = tuple(row for row in rows if row.end <= limits[names.name_of(row), row.lineage])
    # Receipts of another log with the same name don't belong to the present one.
    present_rows = [row for row in counting if names.name_of(row) == row.log]
    own_rows = select_whole(present_rows)
    local = () if look is None else tuple(_local(look, own_rows, lineages))
    released = (
        *_read_released(lake, store_id, columns, lineages, present),
        *_list_cut_parts(rows, names, limits),
    )
    expiries = merged_expiries([(lake, ended(counting))])
    ranges = log_ranges(local, counting, released=released, witnesses=Witnesses(present, expiries=expiries))
    of_log = group_by_log(counting, names.name_of)
    if look is not None:
        ranges = (*ranges, *_list_unknown_ends(look), *_list_missing(look, present_rows))
    faults = [row for row in ranges if row.where in _SOMEWHERE and row.status is Status.FAILURE]
    holes = [
        row
        for row in ranges
        if row.where not in _SOMEWHERE
        and _may_have(row, of_log.get(row.log, []), table.schema(), columns, where)
    ]
    if faults or (holes and not skip_holes):
        raise _hole_error(lake, store_id, faults or holes, may_skip=not faults)
    segments = () if look is None else tuple(_find_unarchived(look, own_rows))
    contexts = {} if look is None else look.contexts(segments)
    segment_ids = {segment.id for segment in segments}
    read = [
        row
        for row in with_rows(counting)
        if row.is_whole or SegmentId(names.name_of(row), row.base_offset) not in segment_ids
    ]
    store_files = tuple(
        _store_file(look, segment, lineages, contexts.get(segment.id))
        for segment in segments
        if look is not None
    )
    return ReadPlan(store_id, tuple(_lake_files(table, store_id, read, where)), store_files)


_SOMEWHERE = (Where.LOCAL, Where.PENDING, Where.ARCHIVED, Where.BOTH)


def _store_id(lake: Lake, look: StoreLook | None, named: str | None) -> str:
    """:raises BadInputError: it isn't clear which store is meant, or the store at the path is another one."""
    if look is not None and look.store_id is not None:
        if named not in (None, look.store_id):
            raise BadInputError(
                f"{look.root}: expected store {named}, which option storeId names, found the stamp of store "
                f"{look.store_id}. Nothing was read. Leave out one of the options."
            )
        return look.store_id
    if named is not None:
        return named
    stores = list_stores(lake)
    if look is not None:
        stores = tuple(store for store in stores if store.store_root == look.root)
        if not stores:
            return ""
    # Another machine may have another store at the same path.
    if len(stores) == 1 and (look is None or stores[0].store_host in (None, this_host())):
        return stores[0].store_id
    text = ", ".join(f"{store.store_id} ({store.store_root})" for store in stores) or "none"
    raise BadInputError(
        f"lake {lake.location}: expected exactly one store to read, found {text}. Nothing was read. Name the "
        "store with option storeId. A store without an archive has to be archived first."
    )


def _lineages(rows: Sequence[Receipt], names: LogNames, look: StoreLook | None) -> dict[str, int]:
    """Return each log's newest lineage, whose bytes are the valid ones now."""
    newest: dict[str, int] = {}
    for row in rows:
        name = names.name_of(row)
        newest[name] = max(row.lineage, newest.get(name, 0))
    if look is not None:
        lineages = Lineages.archived(newest, look.lineages)
        newest |= {log.name: lineages.of(log.name) for log in look.snapshot.logs}
    return newest


def _limits(
    rows: Sequence[Receipt], names: LogNames, lineages: Mapping[str, int], look: StoreLook | None
) -> Mapping[tuple[str, int], int]:
    """Return the offset up to which each lineage of a log is valid: the first offset of a newer lineage."""
    firsts = defaultdict[str, dict[int, int]](dict)
    for row in rows:
        of_log = firsts[names.name_of(row)]
        of_log[row.lineage] = min(row.base_offset, of_log.get(row.lineage, row.base_offset))
    for log in () if look is None else look.snapshot.logs:
        of_log, lineage = firsts[log.name], lineages[log.name]
        of_log[lineage] = min(log.min_offset, of_log.get(lineage, log.min_offset))
    limits: dict[tuple[str, int], int] = {}
    for name, of_log in firsts.items():
        for lineage in of_log:
            newer_firsts = (first for newer, first in of_log.items() if newer > lineage)
            limits[name, lineage] = min(newer_firsts, default=sys.maxsize)
    return limits


def _list_cut_parts(
    rows: Sequence[Receipt], names: LogNames, limits: Mapping[tuple[str, int], int]
) -> Iterator[ReleasedSpan]:
    """Yield the first part of each segment that is cut by the start of a newer lineage."""
    for row in rows:
        limit = limits[names.name_of(row), row.lineage]
        if row.base_offset < limit < row.end:
            others = f"in the lake in a segment of lineage {row.lineage}, which a newer lineage cuts off"
            log_id = row.log_id or ""
            yield ReleasedSpan(row.log, row.base_offset, limit, others=others, unknown=True, log_id=log_id)


def _local(look: StoreLook, rows: Sequence[Receipt], lineages: Mapping[str, int]) -> Iterator[LocalSpan]:
    of_logs = Lineages(0, {log.name: lineages[log.name] for log in look.snapshot.logs})
    yield from local_spans(look.snapshot, rows, of_logs)
    yield from shielded_spans(look.root, of_logs)


def _read_released(
    lake: Lake, store_id: str, columns: Columns, lineages: Mapping[str, int], present: Mapping[str, str]
) -> tuple[ReleasedSpan, ...]:
    ids: Mapping[str, str] = {}
    if columns.topic_id_of is not None:
        ids = {log: columns.topic_id_of(log_id) for log, log_id in present.items() if log_id}
    return tuple(
        ReleasedSpan(
            row.log,
            row.start_offset,
            row.end_offset,
            excused=row.detail if row.detail.startswith(NOT_ARCHIVED) else "",
            others=f"{row.what}: {row.detail}",
            lineage=row.lineage,
        )
        for row in read_deletions(lake, store_id)
        if row.lineage == lineages.get(row.log, row.lineage)
        and row.topic_id in (None, ids.get(row.log, row.topic_id))
    )


def _may_have(
    hole: RangeStatus, rows: Sequence[Receipt], schema: Schema, columns: Columns, where: BooleanExpression
) -> bool:
    inside = [row for row in ended(rows) if row.base_offset < hole.end_offset and hole.start_offset < row.end]
    evaluator, log = _InclusiveMetricsEvaluator(schema, where), rows[0].log if rows else hole.log
    if not inside or hole.where not in (Where.EXPIRED, Where.NOT_ARCHIVED):
        return evaluator.eval(_bounds(schema, log=(log, log)))
    times = "" if columns.stored_at is None else columns.stored_at
    for row in inside:
        bounds: dict[str, tuple[Any, Any]] = {
            "log": (log, log),
            "segment_base_offset": (row.base_offset, row.base_offset),
        }
        if row.first_store_timestamp_ms is not None and row.last_store_timestamp_ms is not None:
            bounds[times] = (row.first_store_timestamp_ms * 1000, row.last_store_timestamp_ms * 1000 + 999)
        for topic in row.gone_streams or (None,):
            topics = {} if topic is None else {columns.streams[0]: (topic, topic)}
            if evaluator.eval(_bounds(schema, **bounds, **topics)):
                return True
    return False


def _bounds(schema: Schema, **bounds: tuple[Any, Any]) -> DataFile:
    """Return a file's bounds in the form in which a manifest has them."""
    fields: list[Any] = [field for field in schema.fields if field.name in bounds]

    def pack(at: int) -> dict[int, bytes]:
        return {field.field_id: to_bytes(field.field_type, bounds[field.name][at]) for field in fields}

    return DataFile.from_args(record_count=1, lower_bounds=pack(0), upper_bounds=pack(1))


def _hole_error(
    lake: Lake, store_id: str, ranges: Sequence[RangeStatus], *, may_skip: bool
) -> RowsMissingError:
    holes = [
        f"{row.log} [{row.start_offset}, {row.end_offset}) {row.where.value}: {row.detail}" for row in ranges
    ]
    return RowsMissingError(
        f"lake {lake.location}: expected every requested row of store {store_id} in a known place, found "
        f"{named_in_short(holes)}. Nothing was read. ",
        "Use option holes=skip to leave these rows out"
        if may_skip
        else Text("Run ", Command("verify", "--level store")),
        ".",
    )


def _find_unarchived(look: StoreLook, rows: Sequence[Receipt]) -> Iterator[Segment]:
    archived = {(row.log, row.base_offset) for row in rows}
    for log in look.snapshot.logs:
        for segment in log.segments:
            has_rows = segment.facts.size_bytes and segment.base_offset < _end(look, log)
            if has_rows and segment.id not in archived:
                yield segment


_ATTEMPTS = 4

_SOON_MS = 60_000
"""Age from which a log without a known high watermark is reported. Brokers checkpoint high watermarks more
often (replica.high.watermark.checkpoint.interval.ms).
"""


def _list_unknown_ends(look: StoreLook) -> Iterator[RangeStatus]:
    """Yield the logs for which it isn't known up to which offset their rows are durable."""
    for log in look.snapshot.logs:
        if _end(look, log) > 0 or log.max_offset == log.min_offset:
            continue
        if look.at_ms - min(segment.mtime_ns for segment in log.segments) // 1_000_000 > _SOON_MS:
            offsets, detail = (log.min_offset, log.max_offset), "its high watermark isn't known"
            yield RangeStatus(log.name, *offsets, Where.UNKNOWN, Status.FAILURE, (), detail)


def _list_missing(look: StoreLook, rows: Iterable[Receipt]) -> Iterator[RangeStatus]:
    """Yield the logs that are missing on disk but should be there. The lake may lack their last rows."""
    here, ends, logs = {log.name for log in look.snapshot.logs}, dict[str, int](), dict[str, LogIdentity]()
    for row in rows:
        if row.log not in here:
            ends[row.log] = max(row.end, ends.get(row.log, 0))
            logs[row.log] = LogIdentity(row.log_id or "")
    for log, absence in (look.absences(logs) if logs else {}).items():
        if not absence.is_right:
            detail = f"the part after it isn't on disk, {absence.why}"
            yield RangeStatus(log, ends[log], ends[log], Where.UNKNOWN, Status.FAILURE, (), detail)


def _end(look: StoreLook, log: LogSnapshot) -> int:
    """Return the offset up to which a log's rows are durable."""
    return log.max_offset if _is_by_bytes(look) else log.dispatched_offset


def _is_by_bytes(look: StoreLook) -> bool:
    return offsets_count_bytes(find_broker(look.snapshot.broker).codec)


def _store_file(
    look: StoreLook, segment: Segment, lineages: Mapping[str, int], context: SegmentContext | None
) -> StoreFile:
    log = next(log for log in look.snapshot.logs if log.name == segment.log)
    size_bytes, end = segment.facts.size_bytes, _end(look, log)
    is_sealed, is_by_bytes = segment.state is SegmentState.SEALED, _is_by_bytes(look)
    is_whole = is_sealed and segment.end_offset <= end
    if not is_whole and is_by_bytes:
        # The rest of the file is preallocated, or is still being written.
        size_bytes = min(size_bytes, end - segment.base_offset)
    return StoreFile(
        segment.facts,
        look.root if is_sealed and not is_by_bytes else "",
        size_bytes,
        (lineages[segment.log], segment.log, segment.base_offset),
        look.present.get(segment.log, ""),
        None if is_whole else end,
        "" if context is None else context.codec,
    )


def _lake_files(
    table: Table, store_id: str, rows: Sequence[Receipt], where: BooleanExpression
) -> Iterator[LakeFile]:
    """Yield the data files that may have requested rows.

    :raises LakeUnavailableError: a file is not in the table, or some of its rows count as deleted.
    """
    live = {file.location: file for file in live_data_files(table, store_id)}
    single = {data_file_of(table, row) for row in rows if row.row_groups is None}
    shared = Counter[str]()
    slots = defaultdict[str, list[Slot]](list)
    for row in rows:
        for file in proven_files(table, row):
            if file.location not in live or live[file.location].has_deletes:
                fault = "the table no longer has it"
                if file.location in live:
                    fault = "some of its rows count as deleted"
                raise LakeUnavailableError(
                    f"lake table {table.location()}: expected {file.location} with the rows of "
                    f"{row.log}/{row.base_offset:020d}, found that {fault}. Nothing was read. Try again. If "
                    "the error stays, run ",
                    Command("verify --level bytes --renew"),
                    ".",
                )
            slots[file.location].append((row.lineage, row.log, row.base_offset))
            shared[file.location] += row.row_count if row.row_groups is not None else 0
    with metadata_errors(table.location(), "plan a scan"):
        tasks = plan_files(table, And(store_rows(store_id), where), store_id=store_id)
    for location in sorted({task.file.file_path for task in tasks} & slots.keys()):
        entry = live[location].entry
        are_all = shared[location] == entry.record_count or (location in single and len(slots[location]) == 1)
        yield LakeFile(location, entry.file_size_in_bytes, None if are_all else tuple(slots[location]))
