"""Which data files the table of rows refers to at this moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from storage_engine.commands import Command
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.file.filters import store_rows
from storage_engine.lake.file.scan import EVERY_OFFSET, plan_files, plan_whole_entries
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.model.proof.receipt import SegmentIdentity

_BOUNDED: Mapping[str, Callable[[SegmentIdentity], Any]] = {
    "lineage": attrgetter("lineage"),
    "log": attrgetter("log"),
    "segment_base_offset": attrgetter("base_offset"),
}


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file in a snapshot.

    :param delete_files: locations of the files that say which of its rows count as deleted (merge-on-read).
    """

    entry: DataFile
    delete_files: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        return self.entry.file_path

    @property
    def has_deletes(self) -> bool:
        return bool(self.delete_files)

    def may_have(self, schema: Schema) -> Callable[[SegmentIdentity], bool]:
        """Return what tells whether the file may have a segment, by the bounds that the table has of it."""
        bounds = []
        for name, value_of in _BOUNDED.items():
            field = schema.find_field(name)
            kind: Any = field.field_type
            lower, upper = (
                None if it is None or (found := it.get(field.field_id)) is None else from_bytes(kind, found)
                for it in (self.entry.lower_bounds, self.entry.upper_bounds)
            )
            bounds.append((value_of, lower, upper))
        return lambda segment: all(
            (lower is None or lower <= value_of(segment)) and (upper is None or value_of(segment) <= upper)
            for value_of, lower, upper in bounds
        )


def live_data_files(
    table: Table,
    store_id: str,
    base_offsets: tuple[int, int] | None = None,
    *,
    statistics: bool = False,
) -> tuple[LiveFile, ...]:
    """A store's data files in the table's loaded snapshot; a file listed twice is there twice.

    :param base_offsets: only files that can hold a segment whose base offset lies within these two,
        inclusive.
    :param statistics: with every statistic that the table has of them, in five times the memory.
    :raises LakeUnavailableError: when the manifests can't be read, or say what can't be told by them.
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
                f"lake table {table.location()}: another engine deleted rows by equality delete files, "
                "so which rows are left can't be told. Nothing was changed. Let that engine rewrite "
                "the data files (in Spark: rewrite_data_files), or roll the table back, and then run ",
                Command("verify --level bytes --renew"),
                ".",
            ) from error
        return tuple(
            LiveFile(task.file, tuple(sorted(file.file_path for file in task.delete_files))) for task in tasks
        )
