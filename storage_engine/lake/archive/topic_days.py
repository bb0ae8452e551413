"""Bytes of each topic and day in a segment, computed from four narrow columns of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.core.clock import DAY_MS
from storage_engine.lake.soundness.segment_reader import narrow_rows
from storage_engine.model.broker.codec import Columns
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import TopicDay

MOST_TOPICS = 100
"""Topics of a segment with rows of their own; the others are counted together."""
MOST_ROWS = 10_000
"""Rows of a segment, which a broker writes within a few days. Those with fewer bytes are left out."""

_SIZE, _KIND = "size", "kind"
_COUNTED = ["topic", "day", "bytes", "messages"]
_A_DAY = {"s": 86_400, "ms": DAY_MS, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def read_topic_days(table: Table, receipt: Receipt, untouched: Set[str]) -> tuple[TopicDay, ...]:
    """Return the bytes of each topic and day in a segment, the largest first.

    :param table: that of rows, as loaded.
    :param untouched: the result of :func:`~storage_engine.lake.soundness.segment_reader.untouched_files` for
        the table.
    :return: nothing where the broker's codec names no topic or no time.
    :raises ProofError: a data file is no Parquet file.
    :raises LakeUnavailableError: the lake can't be read.
    """
    columns = find_broker(receipt.broker).codec.columns
    if not columns.streams or columns.stored_at is None:
        return ()
    wanted = (columns.streams[0], columns.stored_at, _SIZE, _KIND)
    return topic_days_of(narrow_rows(table, receipt, wanted, untouched), columns)


def topic_days_of(batches: Iterable[pa.Table], columns: Columns) -> tuple[TopicDay, ...]:
    """Return the bytes of each topic and day in some rows, the largest first; messages without one of both
    don't count.

    What holds messages, as the header of a batch does, has the time of the next one.

    :param batches: in the segment's order, with the first of the columns that name a stream, that of the
        stored time, ``size`` and ``kind``.
    """
    counted = [_counted(rows, columns) for rows in batches]
    if not counted:
        return ()
    found = _sums(pa.concat_tables(counted))
    topics = found.group_by("topic").aggregate([("bytes", "sum")]).sort_by([("bytes_sum", "descending")])
    largest = topics["topic"][:MOST_TOPICS]
    own = pc.if_else(pc.is_in(found["topic"], value_set=largest), found["topic"], "")
    found = _sums(found.set_column(0, "topic", own))
    found = found.sort_by([("bytes", "descending"), ("topic", "ascending"), ("day", "ascending")])
    return tuple(
        TopicDay(row["topic"], row["day"], row["bytes"], row["messages"])
        for row in found[:MOST_ROWS].to_pylist()
    )


def _counted(rows: pa.Table, columns: Columns) -> pa.Table:
    topic, stored_at = columns.streams[0], str(columns.stored_at)
    if rows[topic].null_count:
        rows = rows.filter(rows[topic].is_valid())
    is_message = pc.equal(rows[_KIND], pa.scalar("message"))
    if rows[stored_at].null_count:
        timed = pc.fill_null_forward(pc.fill_null_backward(rows[stored_at]))
        timed = pc.if_else(is_message, rows[stored_at], timed)
        rows = rows.set_column(rows.schema.get_field_index(stored_at), stored_at, timed)
        known = rows[stored_at].is_valid()
        rows, is_message = rows.filter(known), is_message.filter(known)
    stored = rows[stored_at]
    days = np.floor_divide(stored.cast(pa.int64()).to_numpy(), _A_DAY[stored.type.unit])
    sizes = rows[_SIZE].cast(pa.int64())
    counted = pa.Table.from_arrays(
        [rows[topic], pa.chunked_array([days]), sizes, is_message.cast(pa.int64())],
        names=["topic", "day", _SIZE, _KIND],
    )
    sums = counted.group_by(["topic", "day"], use_threads=False).aggregate([(_SIZE, "sum"), (_KIND, "sum")])
    sums = sums.select(["topic", "day", f"{_SIZE}_sum", f"{_KIND}_sum"])
    return sums.set_column(0, "topic", sums["topic"].cast(pa.string())).rename_columns(_COUNTED)


def _sums(counted: pa.Table) -> pa.Table:
    sums = counted.group_by(["topic", "day"], use_threads=False).aggregate(
        [("bytes", "sum"), ("messages", "sum")]
    )
    return sums.select(["topic", "day", "bytes_sum", "messages_sum"]).rename_columns(_COUNTED)
