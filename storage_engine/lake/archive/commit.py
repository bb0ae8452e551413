"""Commits of proven segments: data files into the table of rows, in one snapshot, then their receipts.

Even if commits are retried, killed or run twice, each table has each segment once.

A receipt is appended only for a data file that the table has at that moment. A segment's older receipt may no
longer be sound, because its file was lost or its rows were rewritten or dropped. Then the new file replaces
the rest of the old one, and the new receipt supersedes the old receipt.
"""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction

from storage_engine.brokers import find_broker, same_companions
from storage_engine.commands import Command, Text
from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import LakeConflictError, LakeUnavailableError, ProofError, StorageEngineError
from storage_engine.lake.archive.commit_retries import (
    MAX_ATTEMPTS,
    CommitStep,
    commit_steps,
    overtaken,
    pause_seconds,
)
from storage_engine.lake.archive.small_tables import begin, prepare_receipts
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake, check_broker
from storage_engine.lake.catalog.placed_table import data_file_of, proven_files, relative_name
from storage_engine.lake.catalog.writing import UNLOCKED_PROOF_MS, ready_to_write
from storage_engine.lake.durable_io import local_path, sha256_of_file
from storage_engine.lake.file.data_file import copy_rows, opened_file, rows_of_segment, segments_in
from storage_engine.lake.file.jobs import (
    ProvenSegment,
    data_file_name,
    file_name,
    is_own_name,
    is_shared_name,
    new_attempt,
    slot_prefix,
    split_data_file_name,
)
from storage_engine.lake.file.scan import (
    LiveFile,
    live_data_files,
    offsets_of,
    plan_files,
    read_files,
    segment_rows,
)
from storage_engine.lake.file.staging import publish, sweep
from storage_engine.lake.file.table_entries import iceberg_data_file, packed_facts, record_count
from storage_engine.lake.soundness.chain import check_links_on, row_fault
from storage_engine.lake.soundness.receipts import receipts_in
from storage_engine.lake.soundness.segment_reader import rows_fault, untouched_files
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import Reader, broken_receipts
from storage_engine.lake.storage.errors import lake_errors, metadata_errors
from storage_engine.model.proof.receipt import (
    Receipt,
    SegmentIdentity,
    StoredFile,
    read_companions,
    with_rows,
)
from storage_engine.model.store import grouped

_log = logging.getLogger(__name__)
_store_of = attrgetter("store_id")


class SharedFileError(StorageEngineError):
    """A data file of several segments can't be committed, because the lake has one of the segments by now.

    Nothing was committed.

    :param data_files: all such files. Each of their segments must be archived again into a file of its own.
    """

    def __init__(self, message: str = "", data_files: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.data_files = data_files


class SharedWithOthersError(LakeUnavailableError):
    """A data file no longer proves a segment, and has rows of other segments that aren't archived with it.

    :param slots: the :func:`slot_prefix` of each segment in the file.
    :param receipts: the segments' receipts that count. Each names this file, or a file that this file
        replaced.
    """

    def __init__(
        self,
        message: str = "",
        location: str = "",
        slots: frozenset[str] = frozenset(),
        receipts: Sequence[Receipt] = (),
    ) -> None:
        super().__init__(message)
        self.location, self.slots, self.receipts = location, slots, tuple(receipts)


ReceiptsOf = Callable[[], Sequence[Receipt]]


@dataclass(frozen=True, slots=True)
class LeavingFile:
    """A shared file that leaves the table. Each of its segments that isn't lost gets another file.

    :param slots: all segments of the file.
    :param lost: segments that the file no longer proves and that exist nowhere else.
    """

    slots: frozenset[str]
    lost: frozenset[str]


Leaving = Mapping[str, LeavingFile]
"""Shared files that leave the table, by location."""


@dataclass(frozen=True, slots=True)
class MissingSegment:
    """A segment whose proven file the table does not have.

    :param replaces: entries of the segment's earlier files, which the same commit removes.
    :param rewritten: whether another engine has put rows of the segment into files of its own. The commit
        removes these rows as well.
    :param other_sha256: beginning of the SHA-256 of other bytes that the table has for the segment, or None.
    :param is_taken: the table has rows of the segment elsewhere, and its proven file also has other segments.
    """

    segment: ProvenSegment
    replaces: tuple[DataFile, ...]
    rewritten: bool
    other_sha256: str | None = None
    is_taken: bool = False


def _slots_in(table: Table, file: LiveFile, receipts_of: ReceiptsOf) -> frozenset[str]:
    """Return the prefixes of the segments that have rows in a shared file.

    The file names its segments. If it is lost or damaged, the receipts that name the file are used. If these
    receipts have fewer rows than the file, a compaction was killed. Then the other rows are of segments whose
    receipts name files that the table lacks. Such segments are included if their rows make up the difference.

    :raises LakeUnavailableError: neither the file nor the receipts show which segments it has.
    """
    try:
        return frozenset(map(slot_prefix, segments_in(table.io, file.location)))
    except (LakeUnavailableError, ProofError) as error:
        rows = [row for row in receipts_of() if data_file_of(table, row) == file.location]
        count = file.entry.record_count - sum(row.row_count for row in rows)
        if not rows or count > 0:
            may_have = file.may_have(table.schema())
            others = [row for row in receipts_of() if may_have(row.identity)]
            locations = untouched_files(table, others) | {file.location}
            others = [row for row in others if data_file_of(table, row) not in locations]
            # A segment may have expired since. Its rows stay in the table until the compaction is finished.
            sets = [it for it in (with_rows(others), others) if it and sum(r.row_count for r in it) == count]
            if not (rows or sets):
                raise LakeUnavailableError(error, " Nothing was committed.") from error
            rows += sets[0] if sets else ()
        return frozenset(slot_prefix(row.identity) for row in rows)


def _shares_file(
    table: Table, segment: ProvenSegment, location: str, slots: frozenset[str], others: int, of: ReceiptsOf
) -> SharedWithOthersError:
    return SharedWithOthersError(
        f"{location}: expected a data file that proves {segment.log}/{segment.base_offset:020d} of store "
        f"{segment.store_id}, found one that doesn't, and that also has the rows of {others} more segments. "
        "Without these rows the file can't be replaced. Nothing was committed or deleted. Bring the original "
        "file back from a copy of the lake or a second lake; or archive all of its segments again, in one "
        "run.",
        location,
        slots,
        [row for row in of() if row.has_rows and slot_prefix(row.identity) in slots],
    )


def missing_data(
    table: Table,
    store_id: str,
    segments: Sequence[ProvenSegment],
    base_offsets: tuple[int, int],
    receipts_of: ReceiptsOf = tuple,
    leaving: Leaving = MappingProxyType({}),
) -> list[MissingSegment]:
    """Return a store's segments that the loaded table of rows doesn't have in exactly one file, as proven.

    :param receipts_of: returns the store's receipts that count. It is called if a shared file can't be read.
    :param leaving: shared files that may leave the table although some of their segments are lost.
    :raises LakeUnavailableError: the table can't be read.
    :raises SharedWithOthersError: a segment's rows are in a file that other segments share.
    """
    own_files: dict[str, list[LiveFile]] = {}
    shared: list[LiveFile] = []
    foreign = False
    for file in live_data_files(table, store_id, base_offsets):
        prefix, _ = split_data_file_name(file_name(file.location))
        own_files.setdefault(prefix, []).append(file)
        if is_shared_name(file_name(file.location)):
            may_have = file.may_have(table.schema())
            shared += [file] if any(may_have(segment.identity) for segment in segments) else []
        # The names of another engine's files don't show which segments have rows in them.
        foreign = foreign or not is_own_name(file_name(file.location))
    inside = {file.location: _slots_in(table, file, receipts_of) for file in shared}
    asking = {slot_prefix(segment.identity) for segment in segments if segment.row_groups is None}
    missing = []
    for segment in segments:
        files = own_files.get(slot_prefix(segment.identity), [])
        holding = [file for file in shared if slot_prefix(segment.identity) in inside[file.location]]
        if segment.row_groups is not None:
            if not (len(holding) == 1 and _is_as_proven(holding[0], segment)):
                is_taken = bool(files or holding) or (foreign and _has_rows(table, segment, ()))
                missing.append(MissingSegment(segment, (), False, is_taken=is_taken))
            continue
        for file in holding:
            # The file may leave only if each of its segments is archived again here or can't be.
            entry = leaving.get(file.location)
            if others := inside[file.location] - asking - (frozenset() if entry is None else entry.lost):
                slots = inside[file.location]
                raise _shares_file(table, segment, file.location, slots, len(others), receipts_of)
        files = [*files, *holding]
        digests = [content for file in files if (content := _content(file)) not in ("", segment.sha256[:16])]
        if digests:
            missing.append(MissingSegment(segment, (), False, digests[0]))
        elif not (len(files) == 1 and _is_as_proven(files[0], segment)):
            rewritten = foreign and _has_rows(table, segment, files)
            missing.append(MissingSegment(segment, tuple(file.entry for file in files), rewritten))
    return missing


def prepare_data(table: Table, missing: Sequence[MissingSegment]) -> Transaction:
    """Write the manifests of a commit. The catalog is not changed yet.

    :raises ProofError: a file is not the proven one; or in a lake without a lock, the proof is so old that
        another process may be removing the file.
    """
    by_file = {item.segment.data_file: item.segment for item in missing}
    added = [_data_file(table, segment) for segment in by_file.values()]
    replaced = {entry.file_path: entry for item in missing for entry in item.replaces}
    rewritten = [item.segment for item in missing if item.rewritten]
    transaction = begin(table)
    if replaced:
        with transaction.update_snapshot().overwrite() as overwrite:
            for entry in replaced.values():
                overwrite.delete_data_file(entry)
            if not rewritten:
                for file in added:
                    overwrite.append_data_file(file)
                added = []
    for segment in rewritten:
        transaction.delete(segment_rows(segment.store_id, segment.lineage, segment.log, segment.base_offset))
    if added:
        with transaction.update_snapshot().merge_append() as append:
            for file in added:
                append.append_data_file(file)
    return transaction


def _data_file(table: Table, segment: ProvenSegment) -> DataFile:
    _check_age(segment)
    with lake_errors(segment.data_file, "look for a data file"):
        size_bytes = len(table.io.new_input(segment.data_file))
    if size_bytes != segment.data_file_bytes:
        raise ProofError(
            f"{segment.data_file}: expected {segment.data_file_bytes} bytes as proven, found {size_bytes}. "
            "Nothing was committed. Make sure that all hosts see the same warehouse, and run archive again."
        )
    return iceberg_data_file(table, segment.data_file, size_bytes, segment.store_id, segment.manifest_facts)


def _check_age(segment: ProvenSegment) -> None:
    age_ms = time.time_ns() // 1_000_000 - segment.proven_at_ms
    if age_ms > UNLOCKED_PROOF_MS and local_path(segment.data_file) is None:
        raise ProofError(
            f"{segment.data_file}: expected a proof of the last {UNLOCKED_PROOF_MS // HOUR_MS} hours, found "
            f"one that is {age_ms / HOUR_MS:.1f} hours old. On object stores no lock keeps gc from removing "
            "a file that waits for its commit. Nothing was committed. Run archive again to prove the segment "
            "again, with fewer segments at a time."
        )


def _content(file: LiveFile) -> str:
    return split_data_file_name(file_name(file.location))[1]


def _is_as_proven(file: LiveFile, segment: ProvenSegment) -> bool:
    return (
        file.location == segment.data_file
        and file.entry.file_size_in_bytes == segment.data_file_bytes
        and not file.delete_files
    )


def _has_rows(table: Table, segment: ProvenSegment, own: Sequence[LiveFile]) -> bool:
    """Return whether other files than a segment's own have its rows. Its own may be lost, and aren't read."""
    where = segment_rows(segment.store_id, segment.lineage, segment.log, segment.base_offset)
    locations = {file.location for file in own}
    with metadata_errors(table.location(), "look for rows of a segment"):
        tasks = [
            task
            for task in plan_files(table, where, (segment.base_offset, segment.base_offset), segment.store_id)
            if task.file.file_path not in locations
        ]
        return read_files(table, where, ("physical_offset",), tasks).num_rows > 0


OTHERS_SECONDS = 5.0
"""How long another run may take to append the receipt of a file that it has just put into the table."""

_PAUSE_SECONDS = 0.1

BATCH_SEGMENTS = 1000
"""Maximum number of segments in one commit. This bounds the memory that their manifest entries take."""


def commit_segments(
    lake: Lake, proven: Sequence[ProvenSegment], unproven: Set[str] = frozenset()
) -> tuple[Receipt, ...]:
    """Commit proven segments; when this returns, they are in the lake durably.

    Up to :data:`BATCH_SEGMENTS` are committed together, all or nothing. If there are more, an error leaves
    the earlier ones in the lake, and the next run finds them there.

    :param unproven: shared files in which the caller has tried to prove some of these segments.
    :return: a receipt for each segment, in the given order, read back from the table. A sound receipt that a
        segment had before is returned as it is.
    :raises SharedFileError: a shared file can't be committed: the lake has one of its segments by now.
    :raises SharedWithOthersError: the lake has a segment's rows in a file that other segments share. Some of
        these have no receipt that shows whether the file proves them.
    :raises LakeConflictError: other bytes, another end or other companions are archived under the same
        store, lineage, log and base offset; nothing was committed.
    :raises LakeUnavailableError: the lake can't be read or written; run again to continue.
    :raises CommitStateUnknownError: the outcome of a commit can't be read.
    :raises ReceiptError: a store's chain of receipts is broken; no receipt was added.
    """
    if not proven:
        return ()
    for broker in {segment.broker for segment in proven}:
        check_broker(lake, broker)
    _check_against_each_other(proven)
    ready_to_write(lake)
    leaving, others = dict[str, LeavingFile](), list[ProvenSegment]()
    while True:
        try:
            settled = _commit_all(lake, [*proven, *others], leaving)
            return tuple(settled[segment.identity] for segment in proven)
        except SharedWithOthersError as error:
            messages = lake.messages()
            prefixes = {slot_prefix(segment.identity) for segment in (*proven, *others)}
            naming = [row for row in error.receipts if data_file_of(messages, row) == error.location]
            nameless = error.slots - prefixes - {slot_prefix(row.identity) for row in naming}
            if error.location in leaving or (nameless and error.location not in unproven):
                raise
            others += _take_out(messages, error, prefixes)
            prefixes |= {slot_prefix(segment.identity) for segment in others}
            leaving[error.location] = LeavingFile(error.slots, error.slots - prefixes)
            if lost := leaving[error.location].lost:
                _log.warning(
                    "%s: expected a data file with the segments %s, found one that doesn't prove them: "
                    "their rows leave the table, the file stays. If the original file is brought back, %s "
                    "adds them again.",
                    error.location,
                    ", ".join(sorted(lost)),
                    Command("lake rebuild"),
                )


def _take_out(table: Table, error: SharedWithOthersError, prefixes: Set[str]) -> Iterator[ProvenSegment]:
    """Yield the segments that a shared file still proves, each in a file of its own.

    After a killed compaction, receipts may still name the small files, which are no longer in the table. Then
    the segments that these small files prove are yielded.

    :raises LakeUnavailableError: a file exists and can't be read, or the lake can't be written.
    """
    elsewhere = untouched_files(table, error.receipts) - {error.location}
    for row in error.receipts:
        if slot_prefix(row.identity) in prefixes or data_file_of(table, row) in elsewhere:
            continue
        try:
            yield take_out(table, row)
        except ProofError:
            continue
        except LakeUnavailableError as failure:
            if not isinstance(failure.__cause__, FileNotFoundError):
                raise


def take_out(table: Table, receipt: Receipt) -> ProvenSegment:
    """Write a segment of a shared file into a file of its own, and prove it there.

    :raises ProofError: the shared file no longer proves the segment.
    :raises LakeUnavailableError: the file can't be read, or the lake can't be written.
    """
    old, codec = data_file_of(table, receipt), find_broker(receipt.broker).codec
    new = f"{old.rpartition('/')[0]}/{data_file_name(receipt.identity, new_attempt())}"
    # Read first: nothing is written for a segment that is lost.
    check_rows(table, receipt, old)
    copy_rows(table.io, old, new, codec.columns, lambda parquet: rows_of_segment(parquet, receipt, old))
    new_row = replace(receipt, data_file=relative_name(table, new), row_groups=None, moved_to=None)
    check_rows(table, new_row, new)
    with opened_file(table.io, new) as (stored, parquet):
        names = {field.name for field in fields(ProvenSegment)} & {field.name for field in fields(Receipt)}
        return ProvenSegment(
            **{name: getattr(new_row, name) for name in names}
            | {
                "data_file": new,
                "data_file_bytes": stored.size(),
                "data_file_sha256": sha256_of_file(stored),
                "proven_at_ms": time.time_ns() // 1_000_000,
                "act": None,
            },
            staged_file=new,
            manifest_facts=packed_facts(parquet.metadata, codec),
        )


def check_rows(table: Table, receipt: Receipt, location: str) -> None:
    """Raise ProofError if the rows in a data file aren't the segment of a receipt."""
    if fault := rows_fault(table, receipt, location, frozenset({location})):
        raise ProofError(
            f"{location}: expected the segment {receipt.log}/{receipt.base_offset:020d} as it was proven, "
            f"found {fault}."
        )


def _commit_all(
    lake: Lake, proven: Sequence[ProvenSegment], leaving: Leaving
) -> dict[SegmentIdentity, Receipt]:
    """Commit proven segments in batches, and return a sound receipt for each segment."""
    segments = sorted(
        {segment.identity: segment for segment in proven}.values(),
        key=lambda s: (s.store_id, s.lineage, s.log, s.base_offset),
    )
    batches = list(_batches(segments, leaving))
    settled: dict[SegmentIdentity, Receipt] = {}
    # All batches are looked up in both tables before any file gets its final name.
    for batch in batches:
        settled |= _look(lake, lake.segments(), lake.messages(), batch, leaving)[1]
    messages = lake.messages()
    _refuse(
        segment.data_file
        for segment in segments
        if segment.row_groups is not None
        and (row := settled.get(segment.identity)) is not None
        and proven_files(messages, row) != (_file_of(segment),)
    )
    for batch in batches:
        settled |= _commit_batch(lake, batch, settled, leaving)
    return settled


def _batches(segments: Sequence[ProvenSegment], leaving: Leaving) -> Iterator[list[ProvenSegment]]:
    """Divide segments into batches. Segments that share a file, or replace the same file, stay together."""
    by_file: dict[str, list[ProvenSegment]] = {}
    for segment in segments:
        slot = slot_prefix(segment.identity)
        folder = segment.data_file.rpartition("/")[0]
        replaced = (path for path in leaving if path.startswith(f"{folder}/") and slot in leaving[path].slots)
        by_file.setdefault(next(replaced, segment.data_file), []).append(segment)
    batch: list[ProvenSegment] = []
    for of_file in by_file.values():
        if batch and len(batch) + len(of_file) > BATCH_SEGMENTS:
            yield batch
            batch = []
        batch += of_file
    if batch:
        yield batch


def _check_shared(segments: Sequence[ProvenSegment], missing: Sequence[MissingSegment]) -> None:
    """Raise SharedFileError if a shared data file would enter the table for only some of its segments."""
    counts = Counter(segment.data_file for segment in segments if segment.row_groups is not None)
    lacking = Counter(item.segment.data_file for item in missing if not item.is_taken)
    files = {item.segment.data_file for item in missing if item.segment.row_groups is not None}
    # Otherwise the table would have some rows twice, or rows that no receipt names.
    _refuse(
        location
        for location in files
        if lacking[location] != counts[location] or _more_rows(location, segments)
    )


def _refuse(data_files: Iterable[str]) -> None:
    """Raise SharedFileError if any data files are given: the lake has some of their segments by now."""
    if present := frozenset(data_files):
        raise SharedFileError(
            f"{min(present)}: expected a data file with only segments that the lake lacks, found that the "
            "lake has one of them by now. Nothing of the file was committed. Run archive again.",
            present,
        )


def _more_rows(location: str, segments: Sequence[ProvenSegment]) -> bool:
    of_file = [segment for segment in segments if segment.data_file == location]
    return record_count(of_file[0].manifest_facts) != sum(segment.row_count for segment in of_file)


def _commit_batch(
    lake: Lake,
    segments: Sequence[ProvenSegment],
    settled: Mapping[SegmentIdentity, Receipt],
    leaving: Leaving,
) -> dict[SegmentIdentity, Receipt]:
    """Commit data files and then receipts, and return a sound receipt for each segment.

    If another run has replaced a file meanwhile, repeat.

    :param settled: receipts that were sound when the tables were read before.
    """
    # A receipt may hold according to the tables although its file was lost. Then the file is put back.
    messages, staged = lake.messages(), segments
    lacking = [
        segment
        for segment in staged
        if (row := settled.get(segment.identity)) is None
        or proven_files(messages, row) == (_file_of(segment),)
    ]
    published = {segment.identity: segment for segment in publish(lacking)}
    segments = [published.get(segment.identity, segment) for segment in staged]
    of_others: dict[str, float] = {}
    for attempt in range(MAX_ATTEMPTS):
        with CHANGE_LOCK:
            commit_steps(lake, lambda: _next_step(lake, segments, leaving, of_others))
        unsettled, holding = _look(lake, lake.segments(), lake.messages(), segments, leaving)
        if not unsettled:
            break
        # Another run that archives the same segments has replaced our file since the commit.
        time.sleep(pause_seconds(attempt))
    else:
        raise overtaken(lake)
    sweep(staged)
    return holding


def append_receipts(lake: Lake, store_id: str, missing: Callable[[Table], Sequence[Receipt]]) -> None:
    """Append receipts of segments whose rows are in the lake already.

    :param missing: returns the receipts that a freshly loaded ``segments`` table lacks.
    :raises StorageEngineError: as :func:`commit_segments` does.
    """

    def next_step() -> CommitStep | None:
        table = lake.segments()
        head = check_links_on(table, store_id)
        rows = missing(table)
        if not rows:
            return None
        hashes = tuple(row.sha256 for row in rows)
        return CommitStep(table, hashes, lambda: prepare_receipts(table, {store_id: head}, rows))

    ready_to_write(lake)
    with CHANGE_LOCK:
        commit_steps(lake, next_step)


def _look(
    lake: Lake, segments: Table, messages: Table, proven: Sequence[ProvenSegment], leaving: Leaving
) -> tuple[list[ProvenSegment], dict[SegmentIdentity, Receipt]]:
    """Return the segments without a sound receipt, and the sound receipts of the other segments.

    :param segments: the table of receipts. It was loaded before the table of rows, because a receipt is
        committed after its data.
    """
    settled: dict[SegmentIdentity, Receipt] = {}
    others: list[Receipt] = []
    for store_id, of_store in grouped(proven, _store_of).items():
        check_links_on(segments, store_id)
        span = offsets_of(of_store)
        rows = receipts_in(segments, store_id, base_offsets=span, with_ended=True)
        by_slot = {slot_prefix(row.identity): row for row in rows}
        reader = Reader(messages, live_data_files(messages, store_id, span) if rows else ())
        for segment in of_store:
            row = by_slot.get(slot_prefix(segment.identity))
            if row is None:
                continue
            if row.sha256 != segment.sha256:
                raise _conflict(segment, row.sha256)
            if row_fault(row) or not _has_as_much(row, segment):
                # The receipt doesn't hold, so these bytes are archived again. Other bytes were refused above.
                continue
            if data_file_of(messages, row) in leaving:
                # The receipt may hold, but only until its file leaves the table.
                continue
            _check_extent(segment, row)
            if proven_files(messages, row) != (_file_of(segment),):
                others.append(row)
            elif not reader.is_displaced(row):
                settled[row.identity] = row
    # The segment may have been archived again because the receipt's file is damaged. A file's length doesn't
    # show that.
    broken = broken_receipts(lake, others, Depth.FILES)
    settled |= {row.identity: row for row in others if row.identity not in broken}
    return [segment for segment in proven if segment.identity not in settled], settled


def _has_as_much(row: Receipt, segment: ProvenSegment) -> bool:
    """Return whether a receipt is whole, or lacks only topics that rules leave out of ``segment``, too."""
    if row.is_whole or not row.lacks_by_rules:
        return row.is_whole
    lacks = {stream["name"] for stream in json.loads(segment.streams or "[]") if stream["gone"] is not None}
    return row.gone_streams.keys() <= lacks


def _next_step(
    lake: Lake, proven: Sequence[ProvenSegment], leaving: Leaving, of_others: dict[str, float]
) -> CommitStep | None:
    """Return the next commit, or None if nothing is missing.

    Data files come first, receipts only once the table has all data. The commit is bound to the tables that
    were read here. If another run's file has no receipt yet, that run gets time to append it: it may be
    between its two commits.

    :param of_others: by location, the monotonic time in seconds when a file of another run was first seen.
        Filled here.
    """
    while True:
        table, messages = lake.segments(), lake.messages()
        unsettled, _ = _look(lake, table, messages, proven, leaving)
        if not unsettled:
            return None
        missing, unnamed = _missing(table, messages, unsettled, leaving)
        _check_shared(proven, missing)
        for item in missing:
            if item.other_sha256 is not None:
                raise _conflict(item.segment, item.other_sha256)
        now = time.monotonic()
        if not unnamed or now >= max(of_others.setdefault(it, now) for it in unnamed) + OTHERS_SECONDS:
            break
        time.sleep(_PAUSE_SECONDS)
    if missing:
        texts = ("data", *(item.segment.data_file for item in missing))
        return CommitStep(messages, texts, lambda: prepare_data(messages, missing))
    heads = {store_id: check_links_on(table, store_id) for store_id in grouped(unsettled, _store_of)}
    receipts = [
        segment.receipt(relative_name(messages, segment.data_file))
        for segment in sorted(unsettled, key=lambda s: (s.lineage, s.log, s.base_offset))
    ]
    texts = ("receipts", *(segment.data_file for segment in unsettled))
    return CommitStep(table, texts, lambda: prepare_receipts(table, heads, receipts))


def _missing(
    table: Table, messages: Table, unsettled: Sequence[ProvenSegment], leaving: Leaving
) -> tuple[list[MissingSegment], set[str]]:
    """Return the segments that the table of rows lacks, and those files to replace that no receipt names."""
    missing: list[MissingSegment] = []
    unnamed: set[str] = set()
    for store_id, of_store in grouped(unsettled, _store_of).items():
        span = offsets_of(of_store)
        receipts_of = partial(receipts_in, table, store_id, with_ended=True)
        lacking = missing_data(messages, store_id, of_store, span, receipts_of, leaving)
        if replaced := {entry.file_path for item in lacking for entry in item.replaces}:
            # A receipt that names such a file belongs to a segment that is archived again here.
            rows = [row for row in receipts_of(base_offsets=span) if not row_fault(row)]
            unnamed |= replaced - {file.location for row in rows for file in proven_files(messages, row)}
        missing += lacking
    return missing, unnamed


def _check_against_each_other(proven: Sequence[ProvenSegment]) -> None:
    by_slot: dict[str, ProvenSegment] = {}
    for segment in proven:
        other = by_slot.setdefault(f"{segment.store_id}/{slot_prefix(segment.identity)}", segment)
        if other.sha256 != segment.sha256:
            raise _conflict(segment, other.sha256)
        _check_extent(segment, other)


def _file_of(segment: ProvenSegment) -> StoredFile:
    return StoredFile(segment.data_file, segment.data_file_bytes, segment.data_file_sha256)


def _check_extent(segment: ProvenSegment, other: ProvenSegment | Receipt) -> None:
    """Raise LakeConflictError if two segments with the same bytes differ in their end or companions."""
    if (segment.end_offset, segment.files) == (other.end_offset, other.files):
        return
    archived, current = (read_companions(item.files) for item in (other, segment))
    if _ends(segment) != _ends(other) or not same_companions(segment.broker, archived, current):
        raise LakeConflictError(
            f"{segment.source_path}: expected {_extent(other)}, as is archived for store "
            f"{segment.store_id}, lineage {segment.lineage}, {segment.log} at offset "
            f"{segment.base_offset}; found {_extent(segment)}. Nothing was committed. ",
            _adopt(segment.log),
        )


def _adopt(log: str) -> str:
    return Text(
        "If the broker recovered from a crash and wrote these offsets again, or a restore filled "
        "missing messages, run ",
        Command("adopt"),
        " to open a new lineage, with --conn-id for a store of Airflow; of several logs, --log "
        f"{shlex.quote(log)} opens it for this one alone. Otherwise the file was changed.",
    )


def _ends(segment: ProvenSegment | Receipt) -> int:
    return segment.base_offset + segment.size_bytes if segment.end_offset is None else segment.end_offset


def _extent(segment: ProvenSegment | Receipt) -> str:
    files = [f"{file.name} with SHA-256 {file.sha256}" for file in read_companions(segment.files)]
    return f"a segment that ends at {_ends(segment)}, beside it {', '.join(files) or 'no file'}"


def _conflict(segment: ProvenSegment, archived_sha256: str) -> LakeConflictError:
    return LakeConflictError(
        f"{segment.source_path}: expected SHA-256 {archived_sha256}, which is archived for store "
        f"{segment.store_id}, lineage {segment.lineage}, {segment.log} at offset {segment.base_offset}; "
        f"found {segment.sha256}. Nothing was committed. ",
        _adopt(segment.log),
    )
