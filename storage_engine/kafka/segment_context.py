"""What a segment's rows need beside its bytes: topic, partition, and the transactions that were aborted.

Written where the store is, read where its segments are decoded, as text of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from storage_engine.kafka.transaction_index import AbortedTransaction
from storage_engine.model.codec import Damage

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("topic", "partition", "state")


def context_text(topic: str, partition: int, end: int, aborted: Sequence[AbortedTransaction]) -> str:
    """Return a segment's context.

    :param end: offset behind its last; below it every transaction has ended.
    :param aborted: those that have records in it.
    """
    ranges = [[one.producer_id, one.first_offset, one.last_offset] for one in aborted]
    return json.dumps({"topic": topic, "partition": partition, "end": end, "aborted": ranges})


class SegmentColumns:
    """Adds to a segment's rows what its context says, and finds batches that aren't where they should be.

    :param context: of :func:`context_text`; "": the columns have no value, and no offset is looked at.
    :param base_offset: of the segment.
    """

    def __init__(self, context: str, base_offset: int) -> None:
        from storage_engine.kafka.transaction_states import UncommittedTransactions

        self._said: dict[str, Any] | None = json.loads(context) if context else None
        self._next_offset = base_offset
        aborted = self._said["aborted"] if self._said else ()
        entries = [
            AbortedTransaction(producer, first, last, last_stable_offset=first)
            for producer, first, last in aborted
        ]
        self._end = self._said["end"] if self._said else 0
        self._transactions = UncommittedTransactions.of_files(entries, (), self._end)

    def added_to(self, rows: pa.Table) -> pa.Table:
        """Return rows with topic, partition and state."""
        import pyarrow as pa

        from storage_engine.kafka.record_schema import SCHEMA

        types = {name: SCHEMA.field(name).type for name in _COLUMNS}
        columns: dict[str, Any] = {name: pa.nulls(rows.num_rows, kind) for name, kind in types.items()}
        if self._said is not None:
            for name in ("topic", "partition"):
                columns[name] = pa.repeat(pa.scalar(self._said[name], types[name]), rows.num_rows)
            columns["state"] = self._transactions.state_column(rows)
        found = [columns[name] if name in columns else rows[name] for name in SCHEMA.names]
        return pa.Table.from_arrays(found, schema=SCHEMA)

    def misplaced(self, rows: pa.Table) -> Iterator[Damage]:
        """Yield batches whose offsets aren't behind those before them, or lie outside of the segment.

        A batch's CRC doesn't cover its base offset (DefaultRecordBatch#computeChecksum).

        :param rows: of the next part of the segment.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._said is None:
            return
        columns = rows.select(["physical_offset", "size", "kind", "offset", "last_offset_delta"])
        batches = columns.filter(pc.equal(rows["kind"], pa.scalar("batch")))
        firsts = batches["offset"].to_numpy()
        behind = firsts + batches["last_offset_delta"].to_numpy() + 1
        lowest = np.concatenate(([self._next_offset], behind[:-1]))
        wrong = np.flatnonzero((firsts < lowest) | (behind > self._end))
        if len(behind):
            self._next_offset = int(behind[-1])
        for place in wrong[:1].tolist():
            yield Damage(
                int(batches["physical_offset"][place].as_py()),
                int(batches["size"][place].as_py()),
                f"a batch of offsets in [{lowest[place]}, {self._end})",
                f"one of [{firsts[place]}, {behind[place]})",
            )
