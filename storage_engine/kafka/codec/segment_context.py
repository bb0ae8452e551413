"""The facts that a segment's rows need besides its bytes: topic, partition and outcome of transactions.

The host with the store writes them as JSON text. The host that decodes the segment reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from storage_engine.kafka.format import batch_headers as header
from storage_engine.kafka.format.transaction_index import AbortedTransaction
from storage_engine.model.broker.codec import Damage

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_engine.kafka.codec.record_batch import Batches, SegmentBytes

_COLUMNS = ("topic", "partition", "state")


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """Facts about a segment that its bytes don't contain.

    :param end: offset after its last record. Every transaction that began below ``end`` has ended by now.
    :param open_before: transactions that were open at the segment's start, as producer and first offset.
    :param aborted_later: transactions that were open at the segment's end and were aborted after it, as
        producer, first and last offset. Other transactions that were open at the end were committed.
    """

    topic: str
    partition: int
    end: int
    open_before: tuple[tuple[int, int], ...]
    aborted_later: tuple[tuple[int, int, int], ...]

    def as_text(self) -> str:
        """Return the facts as a context for :class:`SegmentColumns`."""
        return json.dumps(asdict(self))


class SegmentColumns:
    """Adds topic, partition and state to a segment's rows, and finds batches at wrong offsets.

    Transactions that ended inside the segment are read from its own markers, because a transaction index may
    be missing or damaged.

    :param context: the text of :class:`SegmentTransactions`. If "", the columns get no value, and no offset
        is checked.
    """

    def __init__(self, context: str, data: SegmentBytes, base_offset: int) -> None:
        from storage_engine.kafka.codec.record_batch import read_batches
        from storage_engine.kafka.codec.transaction_states import UncommittedTransactions

        self._facts: dict[str, Any] | None = json.loads(context) if context else None
        self._end = self._facts["end"] if self._facts else 0
        self._transactions = UncommittedTransactions.none(self._end)
        self.misplaced: tuple[Damage, ...] = ()
        if self._facts is not None:
            batches = read_batches(data, check_crc=False)
            aborted: tuple[tuple[int, int, int], ...] = ()
            # Most segments have no transaction, so their markers needn't be read.
            if (batches.attributes & header.TRANSACTIONAL != 0).any():
                transactions = UncommittedTransactions.of_open(
                    map(tuple, self._facts["open_before"]), base_offset
                )
                aborted = transactions.continued(data, self._end).aborted
            later = map(tuple, self._facts["aborted_later"])
            entries = [
                AbortedTransaction(producer, first, last, 0) for producer, first, last in (*aborted, *later)
            ]
            self._transactions = UncommittedTransactions.of_files(entries, (), self._end)
            self.misplaced = tuple(_find_misplaced(batches, base_offset, self._end))

    def added_to(self, rows: pa.Table) -> pa.Table:
        """Return rows with topic, partition and state."""
        import pyarrow as pa

        from storage_engine.kafka.codec.decode import without_values
        from storage_engine.kafka.codec.record_schema import SCHEMA

        types = {name: SCHEMA.field(name).type for name in _COLUMNS}
        columns: dict[str, Any] = {}
        if self._facts is None:
            columns = {name: without_values(kind, rows.num_rows) for name, kind in types.items()}
        else:
            for name in ("topic", "partition"):
                columns[name] = pa.repeat(pa.scalar(self._facts[name], types[name]), rows.num_rows)
            columns["state"] = self._transactions.state_column(rows)
        arrays = [columns[name] if name in columns else rows[name] for name in SCHEMA.names]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _find_misplaced(batches: Batches, base_offset: int, end: int) -> Iterator[Damage]:
    """Yield the first batch that doesn't begin where the previous batch ends.

    Either a batch is missing, or the batch has a wrong base offset, which its CRC doesn't cover
    (DefaultRecordBatch#computeChecksum).
    """
    import numpy as np

    firsts, behind = batches.base_offsets, batches.last_offsets + 1
    lowest = np.concatenate(([base_offset], behind[:-1]))[: len(firsts)]
    wrong = (firsts < lowest) | (behind > end)
    if batches.gaps_are_losses:
        wrong |= firsts > lowest
    for place in np.flatnonzero(wrong)[:1].tolist():
        yield Damage(
            int(batches.positions[place]),
            int(batches.sizes[place]),
            f"a batch from offset {lowest[place]} on, below {end}",
            f"one of [{firsts[place]}, {behind[place]})",
        )
