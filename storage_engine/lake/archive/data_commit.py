"""The change to the table of rows that adds proven data files, in the place of what is left of older ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction

from storage_engine.exceptions import ProofError
from storage_engine.lake.archive.transactions import begin
from storage_engine.lake.catalog.commit_lock import UNLOCKED_PROOF_MS
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.filters import segment_rows
from storage_engine.lake.file.jobs import ProvenSegment, file_name, slot_prefix, split_data_file_name
from storage_engine.lake.file.live_files import LiveFile, live_data_files
from storage_engine.lake.file.manifest_entry import iceberg_data_file
from storage_engine.lake.file.scan import plan_files, read_files
from storage_engine.lake.storage.errors import lake_errors, metadata_errors

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Missing:
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
) -> list[Missing]:
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
            missing.append(Missing(segment, (), False, other[0]))
        elif not (len(files) == 1 and _is_as_proven(files[0], segment)):
            rewritten = foreign and _has_rows(table, segment, files)
            missing.append(Missing(segment, tuple(file.entry for file in files), rewritten))
    return missing


def prepare_data(table: Table, missing: Sequence[Missing]) -> Transaction:
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
            f"{segment.data_file}: expected a proof of the last {UNLOCKED_PROOF_MS // _HOUR_MS} hours, found "
            f"one that is {age_ms / _HOUR_MS:.1f} hours old: on object stores no lock keeps gc from removing "
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
