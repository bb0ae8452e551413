"""What a segment's rows need beside its bytes: topic, partition, and the transactions that were aborted.

Written where the store is, read where its segments are decoded, as text of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from storage_engine.kafka.transaction_index import AbortedTransaction

if TYPE_CHECKING:
    import pyarrow as pa


def context_text(topic: str, partition: int, end: int, aborted: Sequence[AbortedTransaction]) -> str:
    """Return a segment's context.

    :param end: offset behind its last; below it every transaction has ended.
    :param aborted: those that have records in it.
    """
    ranges = [[one.producer_id, one.first_offset, one.last_offset] for one in aborted]
    return json.dumps({"topic": topic, "partition": partition, "end": end, "aborted": ranges})


def with_context(text: str) -> Callable[[pa.Table], pa.Table]:
    """Return what adds the columns to decoded rows that a segment's context gives.

    :param text: of :func:`context_text`; "": they have no value.
    """
    import pyarrow as pa

    from storage_engine.kafka.record_schema import SCHEMA
    from storage_engine.kafka.transaction_states import UncommittedTransactions

    def in_order(rows: pa.Table, columns: dict[str, Any]) -> pa.Table:
        found = [columns[name] if name in columns else rows[name] for name in SCHEMA.names]
        return pa.Table.from_arrays(found, schema=SCHEMA)

    def without(rows: pa.Table) -> pa.Table:
        names = ("topic", "partition", "state")
        return in_order(rows, {name: pa.nulls(rows.num_rows, SCHEMA.field(name).type) for name in names})

    if not text:
        return without
    said = json.loads(text)
    entries = [
        AbortedTransaction(producer, first, last, last_stable_offset=first)
        for producer, first, last in said["aborted"]
    ]
    transactions = UncommittedTransactions.of_files(entries, (), said["end"])
    topic, partition = pa.scalar(said["topic"], pa.string()), pa.scalar(said["partition"], pa.int32())

    def given(rows: pa.Table) -> pa.Table:
        columns = {
            "topic": pa.repeat(topic, rows.num_rows),
            "partition": pa.repeat(partition, rows.num_rows),
            "state": transactions.state_column(rows),
        }
        return in_order(rows, columns)

    return given
