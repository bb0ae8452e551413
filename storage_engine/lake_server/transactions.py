"""What became of a partition's transactions, by its receipts' side files and its last segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from storage_engine.kafka.codec.transaction_states import UncommittedTransactions
from storage_engine.kafka.format.producer_snapshot import parse_producer_snapshot
from storage_engine.kafka.format.transaction_index import AbortedTransaction, parse_transaction_index
from storage_engine.lake_server.archived_partitions import ArchivedPartition
from storage_engine.lake_server.segment_batches import Piece
from storage_engine.model.proof.receipt import Receipt

Pieces = Callable[[Receipt], Iterator[Piece]]
"""Gives the pieces of a segment, in order."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """What readers of committed records have to know of a partition.

    :param aborted: by their last offset.
    :param stable: the last stable offset: below it every transaction has ended.
    """

    aborted: tuple[AbortedTransaction, ...]
    stable: int

    def within(self, first: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records of the offsets [first, end)."""
        return [one for one in self.aborted if one.last_offset >= first and one.first_offset < end]


def read_transactions(partition: ArchivedPartition, pieces: Pieces) -> Transactions:
    """Return what is known of a partition's transactions.

    The indexes are the broker's own (TransactionIndex). What is open behind the last segment, its snapshot
    and its batches tell (ProducerStateManager); without a snapshot those of the segments before it.

    :raises CorruptFileError: an index or a snapshot can't be read.
    :raises LakeUnavailableError: the lake can't be read.
    """
    aborted: list[AbortedTransaction] = []
    last = 0
    snapshot = b""
    for number, one in enumerate(partition.ranges):
        for companion in one.receipt.companions:
            where = f"{companion.name} of {one.receipt.log}"
            if companion.name.endswith(".txnindex"):
                found = parse_transaction_index(companion.content, where)
                # Of offsets that two receipts have, one tells it.
                aborted += (entry for entry in found if entry.last_offset >= one.first)
            elif companion.name.endswith(".snapshot"):
                last, snapshot = number, companion.content
    receipt = partition.ranges[last].receipt
    producers = parse_producer_snapshot(snapshot, f"snapshot of {receipt.log}") if snapshot else ()
    known = UncommittedTransactions.of_files((), producers, receipt.base_offset)
    for one in partition.ranges[last:]:
        for piece in pieces(one.receipt):
            if len(piece.last_offsets):
                known = known.continued(piece.data, int(piece.last_offsets[-1]) + 1)
    first_open = known.first_open_offset
    return Transactions(
        tuple(sorted(aborted, key=lambda entry: entry.last_offset)),
        partition.end if first_open is None else first_open,
    )
