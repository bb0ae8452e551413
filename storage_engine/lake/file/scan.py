"""Which files of a table hold wanted rows, and these rows, without parsing one manifest twice in a process.

PyIceberg decides which files match. It is only spared reading again what can't have changed, and judging
entries whose segments lie elsewhere in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import ResidualEvaluator
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, ManifestEntry, ManifestFile
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from storage_engine.lake.file.manifest_ranges import (
    EVERYTHING,
    Range,
    WantedFiles,
    known_ranges,
    manifest_key,
    may_hold,
)
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.lake.storage.small_files import FileMemory

Offsets = tuple[int, int]
"""First and last base offset, inclusive."""

EVERY_OFFSET: Offsets = (EVERYTHING.first, EVERYTHING.last)
_LAST = EVERY_OFFSET[1]

_OFFSET_COLUMNS = ("segment_base_offset", "base_offset")
_KEPT_BOUNDS = ("store_id", "lineage", "log", *_OFFSET_COLUMNS, "sequence", "log_id")
_EVERY = AlwaysTrue()
_POSITIONS = {field.name: at for at, field in enumerate(DATA_FILE_TYPE[2].fields)}


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """A manifest's live entries.

    :param ranges: by entry, a column for each field of :class:`Range`.
    """

    entries: Sequence[ManifestEntry]
    ranges: np.ndarray[Any, np.dtype[np.int64]]

    def within(self, wanted: WantedFiles) -> list[ManifestEntry]:
        first, last, newest, rows = self.ranges.T
        of_offsets = (first <= wanted.last) & (last >= wanted.first)
        places = np.flatnonzero(of_offsets & (newest >= wanted.since) & (rows < wanted.below_rows))
        return [self.entries[int(at)] for at in places]


_lists: FileMemory[tuple[ManifestFile, ...]] = FileMemory(most=10_000)
_entries: FileMemory[_Entries] = FileMemory(most=40_000)
"""By their number: some 2 KB each."""


class _KnownManifest(ManifestFile):
    """A manifest whose entries this process may know."""

    table: Table
    wanted: WantedFiles

    @classmethod
    def of(cls, table: Table, manifest: ManifestFile, wanted: WantedFiles) -> _KnownManifest:
        found = cls(*(manifest[at] for at in range(len(manifest))))
        found.table, found.wanted = table, wanted
        return found

    def known(self) -> _Entries:
        fetch = super().fetch_manifest_entry
        return _entries.get(
            self.manifest_path,
            lambda: _sorted_out(self.table, fetch(self.table.io)),
            lambda it: len(it.entries) + 10,
        )

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        assert discard_deleted
        return self.known().within(self.wanted)


class _Planner(ManifestGroupPlanner):
    """PyIceberg's, which works out once a partition, not once a file, what of a filter is left to check, and
    looks at no file's bounds where every file is wanted."""

    def _build_partition_evaluator(self, spec_id: int) -> Callable[[DataFile], bool]:
        return _is_wanted if self.row_filter == _EVERY else super()._build_partition_evaluator(spec_id)

    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        return _has_rows if self.row_filter == _EVERY else super()._build_metrics_evaluator()

    def _build_residual_evaluator(self, spec_id: int) -> Callable[[DataFile], ResidualEvaluator]:
        build = super()._build_residual_evaluator(spec_id)
        built: dict[tuple[Any, ...], ResidualEvaluator] = {}

        def of(file: DataFile) -> ResidualEvaluator:
            partition = tuple(file.partition[at] for at in range(len(file.partition)))
            if partition not in built:
                built[partition] = _OnceEvaluated(build(file).residual_for(file.partition))
            return built[partition]

        return of


def _is_wanted(_: DataFile) -> bool:
    return True


def _has_rows(file: DataFile) -> bool:
    return file.record_count != 0


class _OnceEvaluated(ResidualEvaluator):
    def __init__(self, residual: BooleanExpression) -> None:
        self._residual = residual

    def residual_for(self, partition_data: Record) -> BooleanExpression:
        return self._residual


def list_manifests(table: Table) -> tuple[ManifestFile, ...]:
    """Return the manifests of a loaded table's snapshot.

    :raises Exception: whatever PyIceberg raises for a file that can't be read.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return ()
    return _lists.get(snapshot.manifest_list, lambda: tuple(snapshot.manifests(table.io)), len)


def plan_files(
    table: Table,
    where: BooleanExpression,
    base_offsets: Offsets = EVERY_OFFSET,
    store_id: str | None = None,
    *,
    since: int = EVERYTHING.since,
    below_rows: int = EVERYTHING.below_rows,
) -> list[FileScanTask]:
    """List the files of a loaded table's snapshot that can have rows of this kind.

    What the table says of a file is its path, partition, number of rows and size, and the bounds of the
    columns that name a segment; other statistics are left out.

    :param base_offsets: only files that can hold a segment whose base offset lies within these two.
    :param store_id: only files of this store; None: of those that ``where`` says.
    :param since: only files that can hold a row of this sequence, or of a later one.
    :param below_rows: only files of fewer rows, as far as the catalog leaves the planning to us.
    :raises Exception: whatever PyIceberg raises for a manifest that can't be read.
    """
    if table.catalog.supports_server_side_planning():
        return plan_whole_entries(table, where)
    wanted = WantedFiles(*base_offsets, since, below_rows)
    manifests: Iterable[ManifestFile] = list_manifests(table)
    if store_id is not None and wanted != EVERYTHING:
        manifests = filter(may_have(table, store_id, wanted), manifests)
    known = [_KnownManifest.of(table, manifest, wanted) for manifest in manifests]
    return list(_Planner(table.metadata, table.io, row_filter=where).plan_files(known))


def may_have(table: Table, store_id: str, wanted: WantedFiles) -> Callable[[ManifestFile], bool]:
    """Return what tells whether a manifest of a loaded table can list files that somebody looks for."""
    ranges = known_ranges(table)
    return lambda manifest: may_hold(ranges.get(manifest_key(manifest)), store_id, wanted)


def plan_whole_entries(table: Table, where: BooleanExpression) -> list[FileScanTask]:
    """List the same files with every statistic that the table has of them, in five times the memory.

    :raises Exception: whatever PyIceberg raises for a manifest that can't be read.
    """
    if table.catalog.supports_server_side_planning():
        return list(table.scan(row_filter=where).plan_files())
    return list(_Planner(table.metadata, table.io, row_filter=where).plan_files(list_manifests(table)))


def read_rows(
    table: Table,
    where: BooleanExpression,
    columns: Sequence[str] = (),
    base_offsets: Offsets = EVERY_OFFSET,
) -> pa.Table:
    """Return a loaded table's rows.

    :param columns: none: all.
    :raises LakeUnavailableError: they can't be read.
    """
    with metadata_errors(table.location(), "read the table"):
        return read_files(table, where, columns, plan_files(table, where, base_offsets))


def read_files(
    table: Table, where: BooleanExpression, columns: Sequence[str], tasks: Iterable[FileScanTask]
) -> pa.Table:
    """Return rows of chosen files only, without those that count as deleted.

    :param columns: none: all.
    """
    schema = table.schema().select(*columns) if columns else table.schema()
    return ArrowScan(table.metadata, table.io, schema, where).to_table(tasks)


def ranges_of(table: Table, manifest: ManifestFile) -> dict[str, Range]:
    """Return, by store id, what a manifest can have files of.

    :raises Exception: whatever PyIceberg raises for a manifest that can't be read.
    """
    by_store: dict[str, list[int]] = {}
    known = _KnownManifest.of(table, manifest, EVERYTHING).known()
    for at, entry in enumerate(known.entries):
        by_store.setdefault(str(entry.data_file.partition[0]), []).append(at)
    found = {}
    for store_id, places in by_store.items():
        first, last, newest, rows = known.ranges[places].T
        found[store_id] = Range(int(first.min()), int(last.max()), int(newest.max()), int(rows.min()))
    return found


def is_whole_file(task: FileScanTask) -> bool:
    """Return whether every row that a file holds is wanted."""
    return not task.delete_files and task.residual == AlwaysTrue()


def _sorted_out(table: Table, entries: Sequence[ManifestEntry]) -> _Entries:
    """Keep what is needed of entries: with all their statistics they would take five times the memory."""
    fields = {field.name: field.field_id for field in table.schema().fields}
    kept = {fields[name] for name in _KEPT_BOUNDS if name in fields}
    offset = next((fields[name] for name in _OFFSET_COLUMNS if name in fields), -1)
    sequence = fields.get("sequence", -1)
    ranges = np.empty((len(entries), len(Range._fields)), np.int64)
    for at, entry in enumerate(entries):
        file = entry.data_file
        if file.content is not DataFileContent.DATA:
            # The bounds of a delete file say which data files it is about.
            ranges[at] = (*EVERY_OFFSET, _LAST, 0)
            continue
        for name in ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"):
            file[_POSITIONS[name]] = None
        for name in ("lower_bounds", "upper_bounds"):
            bounds = getattr(file, name) or {}
            file[_POSITIONS[name]] = {key: value for key, value in bounds.items() if key in kept}
        ranges[at] = (
            _bound(file.lower_bounds.get(offset), EVERY_OFFSET[0]),
            _bound(file.upper_bounds.get(offset), EVERY_OFFSET[1]),
            _bound(file.upper_bounds.get(sequence), _LAST),
            file.record_count,
        )
    return _Entries(tuple(entries), ranges)


def _bound(value: bytes | None, otherwise: int) -> int:
    return otherwise if value is None else int(from_bytes(LongType(), value))
