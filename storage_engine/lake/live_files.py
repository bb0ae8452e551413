"""Which data files the ``messages`` table refers to at this moment."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import Table

from storage_engine.lake.errors import metadata_errors
from storage_engine.lake.filters import store_rows


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file in a snapshot. ``has_deletes``: some of its rows count as deleted (merge-on-read)."""

    location: str
    has_deletes: bool


def live_data_files(
    table: Table, store_id: str, base_offsets: tuple[int, int] | None = None
) -> tuple[LiveFile, ...]:
    """A store's data files in the table's loaded snapshot; a file listed twice is there twice.

    :param base_offsets: only files that can hold a segment whose base offset lies within these two,
        inclusive.
    :raises LakeUnavailableError: when the manifests can't be read.
    """
    with metadata_errors(table.location(), "read the table's manifests"):
        tasks = table.scan(row_filter=store_rows(store_id, base_offsets)).plan_files()
        return tuple(LiveFile(task.file.file_path, bool(task.delete_files)) for task in tasks)
