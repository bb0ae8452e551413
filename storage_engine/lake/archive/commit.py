"""Making proven segments count: data files into the table of rows, in one snapshot, then their receipts.

Whatever is retried, killed or run twice, each segment is in each table once.

A receipt is appended only for a data file that the table has at that moment. Where a segment's receipt holds
no longer, since its file was lost or its rows were rewritten or dropped, the new file takes the place of what
is left of the old, and the new receipt supersedes the one that is there.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction

from storage_engine.brokers import same_companions
from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import LakeConflictError, ProofError
from storage_engine.lake.archive.commit_steps import (
    MAX_ATTEMPTS,
    CommitStep,
    commit_steps,
    overtaken,
    pause_seconds,
)
from storage_engine.lake.archive.receipt_commit import prepare_receipts
from storage_engine.lake.archive.transactions import begin
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake, check_broker
from storage_engine.lake.catalog.commit_lock import UNLOCKED_PROOF_MS
from storage_engine.lake.catalog.names import proven_files, relative_name
from storage_engine.lake.catalog.writing import ready_to_write
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.filters import segment_rows
from storage_engine.lake.file.jobs import ProvenSegment, file_name, slot_prefix, split_data_file_name
from storage_engine.lake.file.live_files import LiveFile, live_data_files
from storage_engine.lake.file.manifest_entry import iceberg_data_file
from storage_engine.lake.file.scan import plan_files, read_files
from storage_engine.lake.file.staging import publish, sweep
from storage_engine.lake.soundness.chain import check_links_on, row_fault
from storage_engine.lake.soundness.receipts import receipts_in
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import Reader, broken_receipts
from storage_engine.lake.storage.errors import lake_errors, metadata_errors
from storage_engine.model.proof.companions import read_companions
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity, StoredFile


@dataclass(frozen=True, slots=True)
class MissingSegment:
    """A segment whose proven file the table does not have.

    :param replaces: entries of files that were archived for it before; they go in the same commit.
    :param rewritten: another engine holds rows of it in files of its own; those rows go as well.
    :param other_sha256: the table has other bytes in its place, with this first part of a SHA-256.
    """

    segment: ProvenSegment
    replaces: tuple[DataFile, ...]
    rewritten: bool
    other_sha256: str | None = None


def missing_data(
    table: Table, store_id: str, segments: Sequence[ProvenSegment], base_offsets: tuple[int, int]
) -> list[MissingSegment]:
    """Ask the loaded table of rows which of a store's segments it does not have as they were proven.

    :raises LakeUnavailableError: the table can't be read.
    """
    own: dict[str, list[LiveFile]] = {}
    foreign = False
    for file in live_data_files(table, store_id, base_offsets):
        prefix, _ = split_data_file_name(file_name(file.location))
        own.setdefault(prefix, []).append(file)
        # Rows that another engine rewrote are in files whose names say nothing of segments.
        foreign = foreign or not prefix
    missing = []
    for segment in segments:
        files = own.get(slot_prefix(segment.identity), [])
        other = [content for file in files if (content := _content(file)) != segment.sha256[:16]]
        if other:
            missing.append(MissingSegment(segment, (), False, other[0]))
        elif not (len(files) == 1 and _is_as_proven(files[0], segment)):
            rewritten = foreign and _has_rows(table, segment, files)
            missing.append(MissingSegment(segment, tuple(file.entry for file in files), rewritten))
    return missing


def prepare_data(table: Table, missing: Sequence[MissingSegment]) -> Transaction:
    """Write the manifests of a commit that is still to be sent to the catalog.

    :raises ProofError: a file is not the one that was proven, or in a lake without a lock it was proven so
        long ago that somebody may be removing it.
    """
    added = [_data_file(table, item.segment) for item in missing]
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
        found = len(table.io.new_input(segment.data_file))
    if found != segment.data_file_bytes:
        raise ProofError(
            f"{segment.data_file}: expected {segment.data_file_bytes} bytes as proven, found {found}. "
            "Nothing was committed. Do all hosts see the same warehouse? Run archive again."
        )
    return iceberg_data_file(table, segment.data_file, found, segment.store_id, segment.manifest_facts)


def _check_age(segment: ProvenSegment) -> None:
    age_ms = time.time_ns() // 1_000_000 - segment.proven_at_ms
    if age_ms > UNLOCKED_PROOF_MS and local_path(segment.data_file) is None:
        raise ProofError(
            f"{segment.data_file}: expected a proof of the last {UNLOCKED_PROOF_MS // HOUR_MS} hours, found "
            f"one that is {age_ms / HOUR_MS:.1f} hours old: on object stores no lock keeps gc from removing "
            "a file that waits for its commit. Nothing was committed. Run archive again to prove it again, "
            "with fewer segments at a time."
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
    """Return whether rows of a segment lie in files other than its own, which may be lost: none is read."""
    where = segment_rows(segment.store_id, segment.lineage, segment.log, segment.base_offset)
    locations = {file.location for file in own}
    with metadata_errors(table.location(), "look for rows of a segment"):
        tasks = [
            task
            for task in plan_files(table, where, (segment.base_offset, segment.base_offset), segment.store_id)
            if task.file.file_path not in locations
        ]
        return read_files(table, where, ("physical_offset",), tasks).num_rows > 0


BATCH_SEGMENTS = 1000
"""Committed together at most: what their manifest entries take in memory does not grow with the rest."""


def commit_segments(lake: Lake, proven: Sequence[ProvenSegment]) -> tuple[Receipt, ...]:
    """Commit proven segments; when this returns, they are in the lake durably.

    Up to :data:`BATCH_SEGMENTS` are committed together, all or nothing; of more, those before an error are
    in the lake, and are found there when it is run again.

    :return: one receipt a segment, in the given order, read back from the table. For a segment that was
        committed before, and whose receipt still holds, it is the older one.
    :raises LakeConflictError: other bytes, another end or other companions are archived under the same
        store, lineage, log and base offset; nothing was committed.
    :raises LakeUnavailableError: the lake can't be read or written; run again to go on from there.
    :raises CommitStateUnknownError: the outcome of a commit can't be read.
    :raises ReceiptError: a store's chain of receipts is broken; no receipt was added.
    """
    if not proven:
        return ()
    for broker in {segment.broker for segment in proven}:
        check_broker(lake, broker)
    _check_against_each_other(proven)
    ready_to_write(lake)
    segments = sorted(
        {segment.identity: segment for segment in proven}.values(),
        key=lambda s: (s.store_id, s.lineage, s.log, s.base_offset),
    )
    batches = [segments[at : at + BATCH_SEGMENTS] for at in range(0, len(segments), BATCH_SEGMENTS)]
    settled: dict[SegmentIdentity, Receipt] = {}
    # Ask both tables of all before any file gets its final name.
    for batch in batches:
        settled |= _look(lake, lake.segments(), lake.messages(), batch)[1]
    for batch in batches:
        settled |= _commit_batch(lake, batch, settled)
    return tuple(settled[segment.identity] for segment in proven)


def _commit_batch(
    lake: Lake, segments: Sequence[ProvenSegment], settled: Mapping[SegmentIdentity, Receipt]
) -> dict[SegmentIdentity, Receipt]:
    """
    :param settled: receipts that held when the tables were asked.
    :return: a receipt that holds for each segment.
    """
    # A receipt that holds by what the tables say may be of a file that was lost: then this one is put back.
    messages, staged = lake.messages(), segments
    lacking = [
        segment
        for segment in staged
        if (row := settled.get(segment.identity)) is None
        or proven_files(messages, row) == (_file_of(segment),)
    ]
    published = {segment.identity: segment for segment in publish(lacking)}
    segments = [published.get(segment.identity, segment) for segment in staged]
    for attempt in range(MAX_ATTEMPTS):
        with CHANGE_LOCK:
            commit_steps(lake, lambda: _next_step(lake, segments))
        unsettled, holding = _look(lake, lake.segments(), lake.messages(), segments)
        if not unsettled:
            break
        # Who archives the same at the same time has put its file in the place of our file since we asked.
        time.sleep(pause_seconds(attempt))
    else:
        raise overtaken(lake)
    sweep(staged)
    return holding


def append_receipts(lake: Lake, store_id: str, missing: Callable[[Table], Sequence[Receipt]]) -> None:
    """Append receipts of segments whose rows are in the lake already.

    :param missing: says of a freshly loaded ``segments`` table which rows it lacks.
    :raises StorageEngineError: as :func:`commit_segments` does.
    """

    def next_step() -> CommitStep | None:
        table = lake.segments()
        head = check_links_on(table, store_id)
        rows = missing(table)
        if not rows:
            return None
        what = tuple(row.sha256 for row in rows)
        return CommitStep(table, what, lambda: prepare_receipts(table, {store_id: head}, rows))

    ready_to_write(lake)
    with CHANGE_LOCK:
        commit_steps(lake, next_step)


def _look(
    lake: Lake, segments: Table, messages: Table, proven: Sequence[ProvenSegment]
) -> tuple[list[ProvenSegment], dict[SegmentIdentity, Receipt]]:
    """Return which segments have no receipt that holds, and the receipts of the others.

    :param segments: loaded before the table of rows: a receipt comes after its data.
    """
    settled: dict[SegmentIdentity, Receipt] = {}
    others: list[Receipt] = []
    for store_id, of_store in _by_store(proven).items():
        check_links_on(segments, store_id)
        span = _span(of_store)
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
                # The same bytes again are archived again; other bytes need another lineage even so.
                continue
            _check_extent(segment, row)
            if proven_files(messages, row) != (_file_of(segment),):
                others.append(row)
            elif not reader.is_displaced(row):
                settled[row.identity] = row
    # Whoever archived a segment again may have found its file damaged: its length proves nothing.
    broken = broken_receipts(lake, others, Depth.FILES)
    settled |= {row.identity: row for row in others if row.identity not in broken}
    return [segment for segment in proven if segment.identity not in settled], settled


def _has_as_much(row: Receipt, segment: ProvenSegment) -> bool:
    """Return whether a receipt lacks nothing of a segment but what archive rules leave out of it now, too."""
    if row.is_whole or not row.lacks_by_rules:
        return row.is_whole
    lacks = {stream["name"] for stream in json.loads(segment.streams or "[]") if stream["gone"] is not None}
    return row.gone_streams.keys() <= lacks


def _next_step(lake: Lake, proven: Sequence[ProvenSegment]) -> CommitStep | None:
    """Data first; receipts only when the table has all of it.

    What is missing is asked of the very tables that the commit is then bound to.
    """
    table, messages = lake.segments(), lake.messages()
    unsettled, _ = _look(lake, table, messages, proven)
    if not unsettled:
        return None
    missing: list[MissingSegment] = []
    for store_id, of_store in _by_store(unsettled).items():
        missing += missing_data(messages, store_id, of_store, _span(of_store))
    for item in missing:
        if item.other_sha256 is not None:
            raise _conflict(item.segment, item.other_sha256)
    if missing:
        what = ("data", *(item.segment.data_file for item in missing))
        return CommitStep(messages, what, lambda: prepare_data(messages, missing))
    heads = {store_id: check_links_on(table, store_id) for store_id in _by_store(unsettled)}
    rows = [
        segment.receipt(relative_name(messages, segment.data_file))
        for segment in sorted(unsettled, key=lambda s: (s.lineage, s.log, s.base_offset))
    ]
    what = ("receipts", *(segment.data_file for segment in unsettled))
    return CommitStep(table, what, lambda: prepare_receipts(table, heads, rows))


def _check_against_each_other(proven: Sequence[ProvenSegment]) -> None:
    seen: dict[str, ProvenSegment] = {}
    for segment in proven:
        other = seen.setdefault(f"{segment.store_id}/{slot_prefix(segment.identity)}", segment)
        if other.sha256 != segment.sha256:
            raise _conflict(segment, other.sha256)
        _check_extent(segment, other)


def _by_store(proven: Sequence[ProvenSegment]) -> dict[str, list[ProvenSegment]]:
    by_store: dict[str, list[ProvenSegment]] = {}
    for segment in proven:
        by_store.setdefault(segment.store_id, []).append(segment)
    return by_store


def _span(segments: Sequence[ProvenSegment]) -> tuple[int, int]:
    offsets = [segment.base_offset for segment in segments]
    return min(offsets), max(offsets)


def _file_of(segment: ProvenSegment) -> StoredFile:
    return StoredFile(segment.data_file, segment.data_file_bytes, segment.data_file_sha256)


def _check_extent(segment: ProvenSegment, other: ProvenSegment | Receipt) -> None:
    """Make sure that what has the same bytes has the same end and companions as well.

    :raises LakeConflictError: it hasn't.
    """
    if (segment.end_offset, segment.files) == (other.end_offset, other.files):
        return
    archived, found = (read_companions(one.files) for one in (other, segment))
    if _ends(segment) != _ends(other) or not same_companions(segment.broker, archived, found):
        raise LakeConflictError(
            f"{segment.source_path}: expected {_extent(other)}, as is archived for store {segment.store_id}, "
            f"lineage {segment.lineage}, {segment.log} at offset {segment.base_offset}; found "
            f"{_extent(segment)}. Nothing was committed. {_adopt(segment.log)}"
        )


def _adopt(log: str) -> str:
    return (
        "If the broker recovered from a crash and wrote these offsets again, or a restore filled what is "
        "gone, run storage-engine adopt to open a new lineage, with --conn-id for a store of "
        "Airflow; of several logs, "
        f"--log {shlex.quote(log)} opens it for this one alone. Otherwise the file was changed."
    )


def _ends(segment: ProvenSegment | Receipt) -> int:
    return segment.base_offset + segment.size_bytes if segment.end_offset is None else segment.end_offset


def _extent(segment: ProvenSegment | Receipt) -> str:
    files = [f"{one.name} with SHA-256 {one.sha256}" for one in read_companions(segment.files)]
    return f"a segment that ends at {_ends(segment)}, beside it {', '.join(files) or 'no file'}"


def _conflict(segment: ProvenSegment, archived_sha256: str) -> LakeConflictError:
    return LakeConflictError(
        f"{segment.source_path}: expected SHA-256 {archived_sha256}, which is archived for store "
        f"{segment.store_id}, lineage {segment.lineage}, {segment.log} at offset {segment.base_offset}; "
        f"found {segment.sha256}. Nothing was committed. {_adopt(segment.log)}"
    )
