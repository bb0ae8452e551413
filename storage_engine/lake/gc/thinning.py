"""Thinning: writing a segment's data file again without the rows of some streams, and proving the new file.

The new file is read back, with one row group and one window of bytes in memory. Each of its rows is compared
with the old file's row. From the rows and the removed streams' recorded hashes, the root is computed. The
result must equal the proven root.

Must never do: accept another root; touch the old file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.commands import Command
from storage_engine.core.durable import unlink
from storage_engine.exceptions import ProofError
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of, location_of, relative_name
from storage_engine.lake.durable_io import local_path, new_data_file, sha256_of_file
from storage_engine.lake.file.data_file import RowCounter, opened_file, opened_rows, push_rows, write_groups
from storage_engine.lake.file.jobs import new_attempt, with_attempt
from storage_engine.lake.file.segment_tree import SegmentTree
from storage_engine.lake.soundness.segment_reader import origin_of, tree_fault
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.lake.storage.small_files import file_system_of
from storage_engine.model.broker.codec import Columns
from storage_engine.model.keep.acts import Thinning
from storage_engine.model.proof.receipt import Receipt, StoredFile, gone_by


def thin_segment(lake: Lake, receipt: Receipt, streams: Collection[str]) -> Thinning:
    """Write a segment's remaining rows into a new data file, and prove that file. No table names it yet.

    :param receipt: the segment's receipt that counts.
    :param streams: names of the streams whose rows are left out.
    :raises ProofError: the segment shares its data file, or the rows read back differ from the old ones.
    :raises LakeUnavailableError: the lake can't be read or written.
    """
    table = lake.messages()
    if receipt.row_groups is not None:
        raise ProofError(
            f"{receipt.data_file}: expected a data file of one segment, found one that other segments share "
            f"with {receipt.log}/{receipt.base_offset:020d}. Nothing was written. Such a file expires only "
            "with all of its segments."
        )
    old, removed = data_file_of(table, receipt), frozenset(streams)
    new = with_attempt(old, new_attempt())
    try:
        with opened_rows(table.io, old) as parquet:
            with lake_errors(new, "write a data file"), new_data_file(table.io, new) as sink:
                columns = find_broker(receipt.broker).codec.columns
                write_groups(columns, _kept_groups(parquet, columns, removed), sink)
            return _prove(table, receipt, removed, new, parquet)
    except BaseException:
        discard_files(table, [new])
        raise


def discard_files(table: Table, locations: Iterable[str]) -> None:
    """Remove data files that this process has written and that nothing refers to.

    :param locations: the files' whole locations, or their names in receipts.
    """
    for location in locations:
        location = location_of(table, location)
        if (path := local_path(location)) is not None:
            unlink(path)
            continue
        file_system, inside = file_system_of(table.io, location)
        with lake_errors(location, "remove a file"):
            if file_system.get_file_info(inside).is_file:
                file_system.delete_file(inside)


def _kept_groups(old: pq.ParquetFile, columns: Columns, removed: Collection[str]) -> Iterator[pa.Table]:
    """Yield each row group's remaining rows. Row groups without remaining rows are left out."""
    topic, names = columns.streams[0], pa.array(sorted(removed), pa.string())
    for group in range(old.num_row_groups):
        topics: Any = old.read_row_group(group, columns=[topic], use_threads=False)[topic]
        mask = pc.invert(pc.is_in(topics, value_set=names))
        count = pc.sum(mask).as_py() or 0
        if count:
            rows = old.read_row_group(group, use_threads=False)
            yield rows if count == len(topics) else rows.filter(mask)


def _prove(table: Table, receipt: Receipt, names: Collection[str], new: str, old: pq.ParquetFile) -> Thinning:
    """Raise ProofError unless the new file is the old file without the rows of some streams."""
    codec = find_broker(receipt.broker).codec
    counter, leaves = RowCounter(codec.columns), SegmentTree(codec.columns, new)
    expected = _kept_groups(old, codec.columns, names)

    def compare(group: int, rows: pa.Table) -> None:
        kept = next(expected, None)
        if kept is None or not _with_plain_values(rows).equals(_with_plain_values(kept), check_metadata=True):
            raise _change_error(new, old_name, f"row group {group} has other rows")
        counter.add(rows)

    old_name = data_file_of(table, receipt)
    with opened_file(table.io, new) as (stored, parquet):
        if not parquet.schema.equals(old.schema):
            raise _change_error(new, old_name, "it has other columns")
        push_rows(parquet, codec, origin_of(receipt), receipt.size_bytes, new, leaves, compare)
        if next(expected, None) is not None:
            raise _change_error(new, old_name, f"it ends after {parquet.num_row_groups} row groups")
        size_bytes, sha256 = stored.size(), sha256_of_file(stored)
    partial = replace(receipt, streams=gone_by(receipt.streams, "", names))
    if fault := tree_fault(partial, leaves):
        raise _change_error(new, old_name, fault.rstrip("."))
    stats = counter.stats()
    return Thinning(
        segment=receipt.identity,
        streams=tuple(sorted(names)),
        file=StoredFile(relative_name(table, old_name), receipt.data_file_bytes, receipt.data_file_sha256),
        kept=StoredFile(relative_name(table, new), size_bytes, sha256),
        row_count=stats.row_count,
        message_count=stats.message_count,
    )


def _with_plain_values(rows: pa.Table) -> pa.Table:
    """Return rows with plain values. Dictionary codes may differ although the values are equal."""
    return rows.cast(
        pa.schema(
            [
                field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
                for field in rows.schema
            ]
        )
    )


def _change_error(new: str, old: str, reason: str) -> ProofError:
    return ProofError(
        f"{new}: expected the remaining rows of {old} as they were proven, found that {reason}. Nothing was "
        "committed, and the old file stays. Run ",
        Command("verify", "--level bytes"),
        " to find out whether a file, the disk or the codec is at fault.",
    )
