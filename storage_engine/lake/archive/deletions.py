"""The lake's table of ranges that a run released or found deleted. No release or refusal depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from pyiceberg.table import Table

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.archive.commit_retries import CommitStep, commit_steps
from storage_engine.lake.archive.small_tables import as_table, prepare_rows
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake
from storage_engine.lake.catalog.writing import (
    committing,
    drop_damaged,
    make_deletions,
    mark_deletions,
    ready_to_write,
)
from storage_engine.lake.file.scan import all_equal, read_rows
from storage_engine.lake.storage.errors import reason_of
from storage_engine.model.proof.deleted_range import DeletedRange


def read_deletions(lake: Lake, store_id: str) -> tuple[DeletedRange, ...]:
    """Return a store's deleted ranges, the first written first; () if the lake has no table of deletions.

    :raises LakeUnavailableError: the rows can't be read.
    """
    table = lake.deletions()
    return () if table is None else _rows_of(table, store_id)


def drop_unreadable(lake: Lake, store_id: str) -> str:
    """Drop the table of deletions from the catalog if one of the table's own files is lost or damaged.

    :func:`add_deletions` makes it again.

    :return: the reason why the table can't be read; "" if it can be read, and stays.
    :raises LakeUnavailableError: the table can't be read for another reason, or the lake can't be written.
    """
    ready_to_write(lake)
    try:
        read_deletions(lake, store_id)
    except LakeUnavailableError as error:
        if not drop_damaged(lake, error):
            raise
        return reason_of(error.__cause__)
    return ""


def add_deletions(
    lake: Lake, store_id: str, missing: Callable[[Sequence[DeletedRange]], Sequence[DeletedRange]]
) -> None:
    """Append deleted ranges that the lake lacks.

    If the catalog has no table of deletions, the table is made and filled from the first row on.

    :param missing: returns the rows of a store that the table lacks.
    :raises LakeUnavailableError: the lake can't be read or written, or is a copy.
    :raises CommitStateUnknownError: the outcome of a commit can't be read; run again.
    """
    ready_to_write(lake)

    def next_step() -> CommitStep | None:
        table = lake.deletions()
        if table is None:
            raise LakeUnavailableError(
                f"lake {lake.location}: expected the table of deletions, found that another program dropped "
                "it a moment ago. Run again: it is made again from the journal."
            )
        rows = missing(_rows_of(table, store_id))
        if not rows:
            return None
        texts = tuple(f"{row.run} {row.event_id} {row.name}" for row in rows)
        new = [asdict(row) for row in rows]
        return CommitStep(
            table, texts, lambda: prepare_rows(table, {store_id: as_table(table, new)}, "event_id")
        )

    with CHANGE_LOCK:
        with committing(lake):
            make_deletions(lake)
        commit_steps(lake, next_step, mark_deletions)


def _rows_of(table: Table, store_id: str) -> tuple[DeletedRange, ...]:
    fields = tuple(DeletedRange.__dataclass_fields__)
    rows = read_rows(table, all_equal({"store_id": store_id}), fields).to_pylist()
    return tuple(DeletedRange(**row) for row in sorted(rows, key=lambda row: row["event_id"]))
