"""Which topic archived messages are of, by its id: two topics of one name differ in nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue

from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.file.scan import read_rows

LOG_LINEAGE = ("store_id", "lineage", "log")
"""The columns of rows and receipts that tell one log from all others: a lineage has one log of a name."""

TopicIds = Mapping[tuple[str, int, str], str]
"""Ids of topics by :data:`LOG_LINEAGE`."""


def read_topic_ids(lake: Lake, topic_id_of: Callable[[str], str]) -> TopicIds:
    """Return the topics' ids of the logs that a lake has, without those whose receipts name none.

    :param topic_id_of: returns the topic's id that a log's identity names.
    :raises LakeUnavailableError: the lake can't be read.
    """
    table = lake.segments()
    if "log_id" not in table.schema().column_names:
        # A table that an older version made.
        return {}
    rows = read_rows(table, AlwaysTrue(), (*LOG_LINEAGE, "log_id"))
    found: dict[tuple[str, int, str], set[str]] = {}
    for row in rows.group_by([*LOG_LINEAGE, "log_id"]).aggregate([]).to_pylist():
        ids = found.setdefault((row["store_id"], row["lineage"], row["log"]), set())
        ids.update({topic_id_of(row["log_id"])} if row["log_id"] else ())
    return {log: ids.pop() for log, ids in found.items() if len(ids) == 1}


def topic_id_column(rows: pa.Table, ids: TopicIds) -> pa.ChunkedArray[Any]:
    """Return the topic's id of each row; null where it isn't known.

    :param rows: with the columns of :data:`LOG_LINEAGE`; those of one data file are of one log.
    """
    # Any: the stubs know no scalar beside an array.
    compute: Any = pc
    found: Any = pa.nulls(len(rows), pa.string())
    for log in rows.group_by(list(LOG_LINEAGE)).aggregate([]).to_pylist():
        if topic_id := ids.get((log["store_id"], log["lineage"], log["log"])):
            is_it = pa.repeat(pa.scalar(True), len(rows))
            for name in LOG_LINEAGE:
                is_it = compute.and_(is_it, compute.equal(rows[name], log[name]))
            found = compute.if_else(is_it, topic_id, found)
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])
