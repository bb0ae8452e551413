"""Reading a table: the files that can have wanted rows, these rows, and the snapshot's live files.

PyIceberg decides which files match. A process parses each manifest once, because manifests never change.
Maintenance writes down the stores and ranges of each manifest, so that a reader needn't open all manifests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    LessThanOrEqual,
)
from pyiceberg.expressions.visitors import ResidualEvaluator
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from storage_engine.commands import Command
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog.tables import is_by_store
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.lake.storage.small_files import (
    HIDDEN_PREFIX,
    FileMemory,
    read_small_file,
    replace_small_file,
)
from storage_engine.model.proof.receipt import ProvenRows, SegmentIdentity
from storage_engine.model.store import Segment, grouped

RANGES_NAME = f"{HIDDEN_PREFIX}manifests.json"


class Range(NamedTuple):
    """Bounds of one store's files in a manifest.

    :param first: lowest base offset of a segment.
    :param last: highest base offset of a segment.
    :param newest: highest sequence of a row.
    :param least_rows: number of rows of the file with the fewest.
    """

    first: int
    last: int
    newest: int
    least_rows: int


class WantedFiles(NamedTuple):
    """Conditions for a store's wanted files.

    :param first: the file can have segments with this base offset or a higher one, up to ``last``.
    :param since: the file can have rows with this sequence or a higher one.
    :param below_rows: the file has fewer rows than this.
    """

    first: int = -(2**63)
    last: int = 2**63 - 1
    since: int = 0
    below_rows: int = 2**63 - 1


EVERYTHING = WantedFiles()

Ranges = Mapping[str, Range]
"""A manifest's bounds, by store id."""

_VERSION = 2

_ranges_memory: FileMemory[Mapping[str, Ranges]] = FileMemory(most=8)


def known_ranges(table: Table) -> Mapping[str, Ranges]:
    """Return the ranges of manifests that maintenance has written down, by :func:`manifest_key`."""
    location = _ranges_location(table)
    return _ranges_memory.get(location, lambda: _read_ranges(table, location))


def manifest_key(manifest: ManifestFile) -> str:
    """Return a manifest's name and length."""
    return f"{manifest.manifest_path.rpartition('/')[2]} {manifest.manifest_length}"


def write_ranges(
    table: Table, manifests: Iterable[ManifestFile], ranges_of: Callable[[ManifestFile], Ranges]
) -> None:
    """Write down the ranges of a table's manifests, in one small file.

    :param manifests: manifests of the current snapshot. Ranges of other manifests are dropped.
    :param ranges_of: opens a manifest and returns its ranges. It is called for new manifests.
    :raises LakeUnavailableError: the file can't be written.
    """
    earlier = known_ranges(table)
    # Manifests of another engine's partitioning get no ranges, and are always opened.
    data = [
        manifest
        for manifest in manifests
        if manifest.content is ManifestContent.DATA and is_by_store(table, manifest.partition_spec_id)
    ]
    updated = {manifest_key(it): earlier.get(manifest_key(it)) or ranges_of(it) for it in data}
    if updated != earlier:
        content = {"version": _VERSION, "manifests": updated}
        text = json.dumps({**content, "sha256": _checksum(content)})
        replace_small_file(table.io, _ranges_location(table), text.encode())


def _read_ranges(table: Table, location: str) -> Mapping[str, Ranges]:
    try:
        content = json.loads(read_small_file(table.io, location) or b"{}")
        if content.pop("sha256") != _checksum(content) or content["version"] != _VERSION:
            return {}
        return {
            key: {store_id: Range(*values) for store_id, values in ranges.items()}
            for key, ranges in content["manifests"].items()
        }
    except (LakeUnavailableError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _ranges_location(table: Table) -> str:
    return f"{table.location().rstrip('/')}/{RANGES_NAME}"


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
    """A manifest's live entries. ``ranges`` has a row for each and a column for each field of Range."""

    entries: Sequence[ManifestEntry]
    ranges: np.ndarray[Any, np.dtype[np.int64]]

    def within(self, wanted: WantedFiles) -> list[ManifestEntry]:
        first, last, newest, rows = self.ranges.T
        of_offsets = (first <= wanted.last) & (last >= wanted.first)
        places = np.flatnonzero(of_offsets & (newest >= wanted.since) & (rows < wanted.below_rows))
        return [self.entries[int(at)] for at in places]


_lists: FileMemory[tuple[ManifestFile, ...]] = FileMemory(most=10_000)
_entries: FileMemory[_Entries] = FileMemory(most=40_000)
"""Entries by their manifest's location. An entry takes some 2 KB."""


class _KnownManifest(ManifestFile):
    """A manifest whose entries this process parses only once."""

    table: Table
    wanted: WantedFiles

    @classmethod
    def of(cls, table: Table, manifest: ManifestFile, wanted: WantedFiles) -> _KnownManifest:
        planned = cls(*(manifest[at] for at in range(len(manifest))))
        planned.table, planned.wanted = table, wanted
        return planned

    def entries(self) -> _Entries:
        fetch = super().fetch_manifest_entry
        return _entries.get(
            self.manifest_path,
            lambda: _reduce_entries(self.table, fetch(self.table.io)),
            lambda it: len(it.entries) + 10,
        )

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        assert discard_deleted
        return self.entries().within(self.wanted)


class _Planner(ManifestGroupPlanner):
    """A faster version of PyIceberg's planner.

    It computes a filter's residual once for each partition, not for each file. Without a filter, it doesn't
    look at the files' bounds.
    """

    def _build_partition_evaluator(self, spec_id: int) -> Callable[[DataFile], bool]:
        return (lambda _: True) if self.row_filter == _EVERY else super()._build_partition_evaluator(spec_id)

    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        if self.row_filter == _EVERY:
            return lambda file: file.record_count != 0
        return super()._build_metrics_evaluator()

    def _build_residual_evaluator(self, spec_id: int) -> Callable[[DataFile], ResidualEvaluator]:
        build = super()._build_residual_evaluator(spec_id)
        built: dict[tuple[Any, ...], ResidualEvaluator] = {}

        def evaluator_of(file: DataFile) -> ResidualEvaluator:
            partition = tuple(file.partition[at] for at in range(len(file.partition)))
            if partition not in built:
                built[partition] = _FixedResidual(build(file).residual_for(file.partition))
            return built[partition]

        return evaluator_of


class _FixedResidual(ResidualEvaluator):
    def __init__(self, residual: BooleanExpression) -> None:
        self._residual = residual

    def residual_for(self, partition_data: Record) -> BooleanExpression:
        return self._residual


def list_manifests(table: Table) -> tuple[ManifestFile, ...]:
    """Return the manifests of a loaded table's snapshot. PyIceberg's errors aren't converted."""
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
    """List the files of a loaded table's snapshot that can have the wanted rows.

    An entry has the file's path, partition, number of rows and size, and bounds of the columns that identify
    a segment. It has no other statistics, unless the catalog's server plans the scan. Then only ``where``
    selects files.

    :param base_offsets: only files that can have a segment with a base offset between these two, inclusive.
    :param store_id: the store that ``where`` selects; None if it selects several. With one store, fewer
        manifests are read.
    :param since: only files that can have a row with this sequence or a later one.
    :param below_rows: only files with fewer rows.
    :raises Exception: whatever PyIceberg raises for a manifest that can't be read.
    """
    if table.catalog.supports_server_side_planning():
        return plan_whole_entries(table, where)
    limits = WantedFiles(*base_offsets, since, below_rows)
    manifests: Iterable[ManifestFile] = list_manifests(table)
    if store_id is not None and limits != EVERYTHING:
        manifests = filter(may_have(table, store_id, limits), manifests)
    planned = [_KnownManifest.of(table, manifest, limits) for manifest in manifests]
    return list(_Planner(table.metadata, table.io, row_filter=where).plan_files(planned))


def count_rows(table: Table, store_id: str) -> int | None:
    """Return how many rows a store's files have in a loaded table, or None if delete files may apply to them.

    A manifest isn't opened if its ranges name this store alone, or don't name it.

    :raises Exception: whatever PyIceberg raises for a manifest that can't be read.
    """
    where = EqualTo("store_id", store_id)  # type: ignore[call-arg,arg-type]
    ranges, count, unknown = known_ranges(table), 0, list[_KnownManifest]()
    for manifest in filter(may_have(table, store_id, EVERYTHING), list_manifests(table)):
        if manifest.content is ManifestContent.DELETES:
            return None
        stores = ranges.get(manifest_key(manifest), {})
        added, existing = manifest.added_rows_count, manifest.existing_rows_count
        if stores.keys() == {store_id} and added is not None and existing is not None:
            count += added + existing
        else:
            unknown.append(_KnownManifest.of(table, manifest, EVERYTHING))
    tasks = _Planner(table.metadata, table.io, row_filter=where).plan_files(unknown)
    return count + sum(task.file.record_count for task in tasks)


def may_have(table: Table, store_id: str, wanted: WantedFiles) -> Callable[[ManifestFile], bool]:
    """Return a predicate for a loaded table's manifests: whether one can have a store's wanted files."""
    ranges = known_ranges(table)

    def may_have_files(manifest: ManifestFile) -> bool:
        stores = ranges.get(manifest_key(manifest))
        it = None if stores is None else stores.get(store_id)
        return stores is None or (
            it is not None
            and it.first <= wanted.last
            and it.last >= wanted.first
            and it.newest >= wanted.since
            and it.least_rows < wanted.below_rows
        )

    return may_have_files


def plan_whole_entries(table: Table, where: BooleanExpression) -> list[FileScanTask]:
    """List files like :func:`plan_files`, but with all statistics, which take five times the memory."""
    if table.catalog.supports_server_side_planning():
        return list(table.scan(row_filter=where).plan_files())
    return list(_Planner(table.metadata, table.io, row_filter=where).plan_files(list_manifests(table)))


def read_rows(table: Table, where: BooleanExpression, columns: Sequence[str] = ()) -> pa.Table:
    """Return a loaded table's rows that match a filter.

    :param columns: columns to read; all if empty.
    :raises LakeUnavailableError: the rows can't be read.
    """
    with metadata_errors(table.location(), "read the table"):
        return read_files(table, where, columns, plan_files(table, where))


def read_files(
    table: Table, where: BooleanExpression, columns: Sequence[str], tasks: Iterable[FileScanTask]
) -> pa.Table:
    """Return the rows of chosen files, without rows that delete files remove.

    :param columns: columns to read; all if empty.
    """
    schema = table.schema().select(*columns) if columns else table.schema()
    return ArrowScan(table.metadata, table.io, schema, where).to_table(tasks)


def ranges_of(table: Table, manifest: ManifestFile) -> dict[str, Range]:
    """Return the range of each store in a manifest, by store id. PyIceberg's errors aren't converted."""
    by_store: dict[str, list[int]] = {}
    parsed = _KnownManifest.of(table, manifest, EVERYTHING).entries()
    for at, entry in enumerate(parsed.entries):
        by_store.setdefault(str(entry.data_file.partition[0]), []).append(at)
    ranges = {}
    for store_id, places in by_store.items():
        first, last, newest, rows = parsed.ranges[places].T
        ranges[store_id] = Range(int(first.min()), int(last.max()), int(newest.max()), int(rows.min()))
    return ranges


def is_whole_file(task: FileScanTask) -> bool:
    """Return whether a scan needs every row of a file."""
    return not task.delete_files and task.residual == AlwaysTrue()


def _reduce_entries(table: Table, entries: Sequence[ManifestEntry]) -> _Entries:
    """Keep only the needed statistics of entries. All statistics would take five times the memory."""
    fields = {field.name: field.field_id for field in table.schema().fields}
    kept = {fields[name] for name in _KEPT_BOUNDS if name in fields}
    offset = next((fields[name] for name in _OFFSET_COLUMNS if name in fields), -1)
    sequence = fields.get("sequence", -1)
    ranges = np.empty((len(entries), len(Range._fields)), np.int64)
    for at, entry in enumerate(entries):
        file = entry.data_file
        if file.content is not DataFileContent.DATA:
            # A delete file's bounds are not of rows. They tell to which data files it applies.
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


def all_equal(values: Mapping[str, str | int]) -> BooleanExpression:
    """Return a filter for rows whose columns have all of these values. At least one must be given."""
    # PyIceberg's constructors take (term, literal), but their pydantic models declare something else.
    terms: list[BooleanExpression] = [EqualTo(name, value) for name, value in values.items()]  # type: ignore[call-arg,arg-type]
    return And(*terms) if len(terms) > 1 else terms[0]


def between(column: str, first: int, last: int) -> BooleanExpression:
    """Return a filter for rows whose value in a column is between two values, inclusive."""
    return And(
        GreaterThanOrEqual(column, first),  # type: ignore[call-arg,arg-type]
        LessThanOrEqual(column, last),  # type: ignore[call-arg,arg-type]
    )


def store_rows(store_id: str, base_offsets: tuple[int, int] | None = None) -> BooleanExpression:
    """Return a filter for a store's rows in the table of rows.

    :param base_offsets: only rows of segments with a base offset between these two, inclusive.
    """
    store = all_equal({"store_id": store_id})
    if base_offsets is None:
        return store
    return And(store, between("segment_base_offset", *base_offsets))


def segment_rows(store_id: str, lineage: int, log: str, base_offset: int) -> BooleanExpression:
    """Return a filter for one segment's rows in the table of rows."""
    return all_equal(
        {"store_id": store_id, "segment_base_offset": base_offset, "lineage": lineage, "log": log}
    )


_BOUNDED: Mapping[str, Callable[[SegmentIdentity], Any]] = {
    "lineage": attrgetter("lineage"),
    "log": attrgetter("log"),
    "segment_base_offset": attrgetter("base_offset"),
}


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file as a snapshot's manifests list it.

    :param deletes: delete files that remove some of its rows (merge-on-read).
    """

    entry: DataFile
    deletes: tuple[DataFile, ...] = ()

    @classmethod
    def of(cls, task: FileScanTask) -> LiveFile:
        return cls(task.file, tuple(task.delete_files))

    @property
    def location(self) -> str:
        return self.entry.file_path

    @property
    def delete_files(self) -> tuple[str, ...]:
        """Return the locations of ``deletes``, sorted."""
        return tuple(sorted(file.file_path for file in self.deletes))

    @property
    def has_deletes(self) -> bool:
        return bool(self.deletes)

    def may_have(self, schema: Schema) -> Callable[[SegmentIdentity], bool]:
        """Return a predicate for segments: whether this file can have one, by the bounds in its entry."""
        bounds = []
        for name, value_of in _BOUNDED.items():
            field = schema.find_field(name)
            kind: Any = field.field_type
            lower, upper = (
                None if it is None or (bound := it.get(field.field_id)) is None else from_bytes(kind, bound)
                for it in (self.entry.lower_bounds, self.entry.upper_bounds)
            )
            bounds.append((value_of, lower, upper))
        return lambda segment: all(
            (lower is None or lower <= value_of(segment)) and (upper is None or value_of(segment) <= upper)
            for value_of, lower, upper in bounds
        )


def offsets_of(segments: Iterable[Segment | SegmentIdentity | ProvenRows]) -> Offsets:
    """Return the lowest and the highest base offset of segments. At least one segment must be given."""
    offsets = [segment.base_offset for segment in segments]
    return min(offsets), max(offsets)


def live_data_files(
    table: Table, store_id: str, base_offsets: tuple[int, int] | None = None, *, statistics: bool = False
) -> tuple[LiveFile, ...]:
    """Return a store's data files in the table's loaded snapshot.

    A file that is listed twice is returned twice.

    :param base_offsets: only files that can have a segment with a base offset between these two, inclusive.
    :param statistics: whether the entries have all statistics, which take five times the memory.
    :raises LakeUnavailableError: the manifests can't be read, or rows are deleted by equality delete files.
    """
    with metadata_errors(table.location(), "read the table's manifests"):
        try:
            where = store_rows(store_id, base_offsets)
            if statistics:
                tasks = plan_whole_entries(table, where)
            else:
                tasks = plan_files(table, where, base_offsets or EVERY_OFFSET, store_id)
        except ValueError as error:
            if "equality delete" not in str(error):
                raise
            raise LakeUnavailableError(
                f"lake table {table.location()}: another engine deleted rows by equality delete files, so "
                "it isn't known which rows are left. Nothing was changed. Rewrite the data files with that "
                "engine (in Spark: rewrite_data_files), or roll the table back, and then run ",
                Command("verify --level bytes --renew"),
                ".",
            ) from error
        return tuple(map(LiveFile.of, tasks))


def live_files_of(table: Table, rows: Iterable[ProvenRows]) -> list[LiveFile]:
    """Return the data files in the table's loaded snapshot that can have the segments of receipts.

    :raises LakeUnavailableError: as :func:`live_data_files` does.
    """
    files: list[LiveFile] = []
    for store_id, of_store in grouped(rows, lambda row: row.store_id).items():
        files += live_data_files(table, store_id, offsets_of(of_store))
    return files
