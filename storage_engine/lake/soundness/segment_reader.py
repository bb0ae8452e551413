"""A segment's bytes out of the lake, wherever its rows lie by now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.exceptions import ProofError
from storage_engine.lake.catalog.names import data_file_of
from storage_engine.lake.catalog.tables import TREE_COLUMNS
from storage_engine.lake.file.data_file import (
    WindowMemory,
    check_disjoint,
    check_tiled,
    encode_rows,
    opened_rows,
    push_rows,
    rows_of_segment,
    segment_bytes,
)
from storage_engine.lake.file.filters import segment_rows
from storage_engine.lake.file.live_files import live_data_files
from storage_engine.lake.file.segment_tree import SegmentTree
from storage_engine.lake.soundness.message_batches import message_batches, rows_of_file
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.model.broker.codec import Columns
from storage_engine.model.proof.receipt import Receipt, with_rows

EVERY_ROW: Final[Any] = cast("Any", pc).scalar(True)
"""Which rows, as Arrow has it."""


def untouched_files(table: Table, rows: Sequence[Receipt]) -> frozenset[str]:
    """Locations of the data files of receipts that the table has as they were written.

    :param table: that of rows, as loaded.
    :raises LakeUnavailableError: the lake can't be read.
    """
    found: set[str] = set()
    for store_id, of_store in groupby(sorted(rows, key=attrgetter("store_id")), attrgetter("store_id")):
        offsets = [row.base_offset for row in of_store]
        files = live_data_files(table, store_id, (min(offsets), max(offsets)))
        found.update(file.location for file in files if not file.has_deletes)
    return frozenset(found)


def expired_files(table: Table, rows: Iterable[Receipt]) -> frozenset[str]:
    """Return the locations of data files in which a segment that expired lies, and none with rows.

    Between the two commits of an expiry the table has them still.

    :param rows: receipts that count, whatever their state.
    """
    every_row = list(rows)
    kept = {data_file_of(table, row) for row in with_rows(every_row)}
    return frozenset({data_file_of(table, row) for row in every_row if not row.has_rows} - kept)


def read_segment(
    table: Table,
    receipt: Receipt,
    *,
    untouched: Set[str] | None = None,
    memory: WindowMemory | None = None,
    tree: SegmentTree | None = None,
) -> Iterator[tuple[int, memoryview]]:
    """Yield a segment's bytes in order, as (position, bytes); the first position is :func:`origin_of` it.

    From its own data file while the table has it as it was written; else from the rows that another
    engine rewrote. Who reads compares the SHA-256: nothing here is proof.

    :param table: that of rows, as loaded.
    :param untouched: what :func:`untouched_files` says of the table; None: it is asked for this segment.
    :param memory: says how long the bytes are valid; None: until the next are asked for.
    :raises ProofError: the data file is no Parquet file, or the rows are not a whole segment.
    :raises LakeUnavailableError: the lake can't be read.
    """
    location = data_file_of(table, receipt)
    if location in (untouched_files(table, [receipt]) if untouched is None else untouched):
        yield from _from_data_file(table, location, receipt, memory, tree)
    else:
        yield from _from_rows(table, receipt, tree)


def tree_to_compare(receipt: Receipt, name: str) -> SegmentTree | None:
    """Return what makes a tree to hold against a receipt's; None: that has none.

    :param name: of the file or table that has the rows, for messages.
    """
    return None if receipt.root is None else SegmentTree(find_broker(receipt.broker).codec.columns, name)


def tree_fault(receipt: Receipt, leaves: SegmentTree | None) -> str:
    """Return how the tree over a segment's rows differs from its receipt's; "" where it doesn't.

    :param leaves: what :func:`tree_to_compare` gave, once all rows were read.
    """
    if leaves is None:
        return ""
    try:
        tree = leaves.tree(receipt.base_offset, receipt.size_bytes, receipt.sha256, receipt.gone_streams)
    except ProofError as error:
        return str(error)
    if tree.root != receipt.root:
        return f"expected the root {receipt.root}, found {tree.root}"
    if tree.streams != receipt.streams:
        return f"expected the streams {receipt.streams}, found {tree.streams}"
    return ""


def partial_fault(table: Table, receipt: Receipt, *, from_table: bool) -> str:
    """Return how the rows that stay of a segment differ from what was proven; "" where they don't.

    They, and the recorded hashes of the streams that are gone, reach the root of the whole segment, which is
    over the SHA-256 of its file.

    :param table: that of rows, as loaded.
    :param from_table: read what the table has of them; else their own data file, which the table may not
        have yet. Rows of streams that are gone are passed over there.
    :raises ProofError: the rows aren't of the segment.
    :raises LakeUnavailableError: the lake can't be read.
    """
    leaves = tree_to_compare(receipt, receipt.data_file)
    if leaves is None:
        return "expected a root, found none"
    location, codec = data_file_of(table, receipt), find_broker(receipt.broker).codec
    if from_table:
        for _ in _from_rows(table, receipt, leaves):
            pass
        return tree_fault(receipt, leaves)
    with opened_rows(table.io, location) as parquet:
        rows = rows_of_segment(parquet, receipt, location)
        push_rows(rows, codec, origin_of(receipt), receipt.size_bytes, location, leaves)
    return tree_fault(receipt, leaves)


def origin_of(receipt: Receipt) -> int:
    """Return the position of a segment's first byte, from which its rows' positions count."""
    return find_broker(receipt.broker).codec.origin(receipt.base_offset)


def narrow_rows(
    table: Table, receipt: Receipt, columns: Sequence[str], untouched: Set[str], keeps: Any = EVERY_ROW
) -> Iterator[pa.Table]:
    """Yield some columns of a segment's rows, in batches.

    :param table: that of rows, as loaded.
    :param untouched: what :func:`untouched_files` says of the table.
    :param keeps: which rows, as Arrow has it, by these columns.
    :raises ProofError: a data file is no Parquet file.
    :raises LakeUnavailableError: the lake can't be read.
    """
    location = data_file_of(table, receipt)
    if location not in untouched:
        where = segment_rows(receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)
        of_codec = find_broker(receipt.broker).codec.columns
        wanted = list(dict.fromkeys((*columns, *of_codec.streams[:1])))
        for rows in message_batches(table, where, wanted):
            yield _without(rows, of_codec, receipt).select(list(columns)).filter(keeps)
        return
    if receipt.groups is None:
        types = find_broker(receipt.broker).codec.schema
        for rows in rows_of_file(table.io, location, keeps, columns, (), types):
            yield rows.select(list(columns))
        return
    with opened_rows(table.io, location) as parquet:
        segment = rows_of_segment(parquet, receipt, location)
        for group in range(segment.num_row_groups):
            yield segment.read_row_group(group, columns=list(columns), use_threads=False).filter(keeps)


def _from_data_file(
    table: Table, location: str, receipt: Receipt, memory: WindowMemory | None, tree: SegmentTree | None
) -> Iterator[tuple[int, memoryview]]:
    codec = find_broker(receipt.broker).codec
    with opened_rows(table.io, location) as parquet:
        rows = rows_of_segment(parquet, receipt, location)
        yield from segment_bytes(
            rows, codec, origin_of(receipt), receipt.size_bytes, location, memory=memory, tree=tree
        )


def _from_rows(table: Table, receipt: Receipt, tree: SegmentTree | None) -> Iterator[tuple[int, memoryview]]:
    out, _, _, _ = _bytes_of_rows(table, receipt, tree)
    yield origin_of(receipt), out


def filled_segment(table: Table, receipt: Receipt) -> tuple[memoryview, int]:
    """Return a segment of which some streams are gone, with filler where their messages were, and how many
    bytes that is. All other bytes are proven: with the recorded hashes of what is gone they reach the root.

    :param table: that of rows, as loaded.
    :raises ProofError: what stays isn't as it was proven.
    :raises LakeUnavailableError: the lake can't be read.
    """
    leaves = tree_to_compare(receipt, table.location())
    out, starts, ends, stored_ms = _bytes_of_rows(table, receipt, leaves)
    if fault := tree_fault(receipt, leaves) if leaves is not None else "expected a root, found none":
        raise ProofError(f"{table.location()}: {receipt.log}/{receipt.base_offset:020d}: {fault}.")
    origin = origin_of(receipt)
    begins = np.append(origin, ends)
    behind = np.append(starts, origin + receipt.size_bytes)
    gaps = np.flatnonzero(begins < behind)
    # A filler was stored when the message before it was, the first one when the segment's first was.
    times = np.append(receipt.first_store_timestamp_ms or receipt.proven_at_ms, stored_ms)
    known = np.maximum.accumulate(np.where(times > 0, np.arange(len(times)), 0))
    codec = find_broker(receipt.broker).codec
    rows = codec.filler(begins[gaps], behind[gaps], times[known[gaps]])
    if rows is None:
        raise ProofError(
            f"{receipt.log}: expected a broker whose log may have filler, found {receipt.broker}."
        )
    return out, encode_rows(codec, rows, out, origin, table.location())


def _bytes_of_rows(
    table: Table, receipt: Receipt, tree: SegmentTree | None
) -> tuple[memoryview, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return a segment's bytes, zeros where it has no row; where its rows begin and end, in order, and when
    each was stored, 0 where that isn't known.
    """
    codec, origin = find_broker(receipt.broker).codec, origin_of(receipt)
    where = segment_rows(receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)
    out = np.zeros(receipt.size_bytes, dtype=np.uint8).data
    offsets, sizes, times = ([np.empty(0, np.int64)] for _ in range(3))
    with lake_errors(table.location(), "read a segment's rows"):
        there = set(table.schema().column_names)
        columns = codec.schema if tree is None else (*codec.schema, *TREE_COLUMNS)
        schema = pa.schema([field for field in columns if field.name in there])
        scan = table.scan(row_filter=where, selected_fields=tuple(schema.names))
        for batch in scan.to_arrow_batch_reader():
            rows = pa.Table.from_batches([batch])
            rows = _without(rows, codec.columns, receipt)
            # PyIceberg widens strings and binaries; the codec knows its own types.
            rows = rows.select(schema.names).cast(schema)
            encode_rows(codec, rows, out, origin, table.location())
            if tree is not None:
                tree.add(rows)
            times.append(_stored_ms(rows, codec.columns))
            offsets.append(rows["physical_offset"].to_numpy())
            sizes.append(rows["size"].to_numpy().astype(np.int64))
    starts = np.concatenate(offsets)
    if len(starts) != receipt.row_count:
        # Bytes alone don't tell of rows without any.
        raise ProofError(
            f"{table.location()}: expected {receipt.row_count} rows of {receipt.log}/"
            f"{receipt.base_offset:020d}, found {len(starts)}. Another engine changed them."
        )
    ends, end = starts + np.concatenate(sizes), origin + receipt.size_bytes
    if receipt.is_whole:
        order = check_tiled(starts, ends, origin, end, table.location())
    else:
        order = check_disjoint(starts, ends - starts, origin, end, table.location())
    if tree is not None:
        tree.push(order, starts, ends - starts, out, origin)
    return out, starts[order], ends[order], np.concatenate(times)[order]


def _without(rows: pa.Table, columns: Columns, receipt: Receipt) -> pa.Table:
    gone = list(receipt.gone_streams)
    if not gone:
        return rows
    topics: Any = rows[columns.streams[0]]
    return rows.filter(pc.invert(pc.is_in(topics, value_set=pa.array(gone, topics.type))))


def _stored_ms(rows: pa.Table, columns: Columns) -> npt.NDArray[np.int64]:
    if columns.stored_at is None:
        return np.zeros(rows.num_rows, np.int64)
    stored: Any = rows[columns.stored_at].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    return np.asarray(pc.fill_null(stored, 0).to_numpy())
