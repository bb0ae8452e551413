"""What became of a partition's transactions, by its receipts' side files and its last segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from storage_engine.kafka.codec.transaction_states import UncommittedTransactions
from storage_engine.kafka.format.producer_snapshot import parse_producer_snapshot
from storage_engine.kafka.format.transaction_index import AbortedTransaction, parse_transaction_index
from storage_engine.lake_server.archived_partitions import ArchivedPartition, ArchivedRange
from storage_engine.lake_server.segment_batches import Piece
from storage_engine.model.proof.receipt import Receipt

Pieces = Callable[[Receipt], Iterator[Piece]]
"""Gives the pieces of a segment, in order."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """What readers of committed records have to know of a partition.

    :param aborted: by their last offset.
    :param sections: the offsets without a hole, each by its end and its last stable offset: below that every
        transaction has ended.
    """

    aborted: tuple[AbortedTransaction, ...]
    sections: tuple[tuple[int, int], ...]

    def stable_at(self, offset: int) -> int:
        """Return the last stable offset of what a reader at an offset gets without a hole."""
        last = self.sections[-1][1] if self.sections else offset
        return next((stable for end, stable in self.sections if offset < end), last)

    def within(self, first: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records of the offsets [first, end)."""
        return [one for one in self.aborted if one.last_offset >= first and one.first_offset < end]


def read_transactions(partition: ArchivedPartition, pieces: Pieces) -> Transactions:
    """Return what is known of a partition's transactions.

    The indexes are the broker's own (TransactionIndex). What is open at a hole, and behind the last segment,
    tell the segment before, its snapshot and its batches (ProducerStateManager); without a snapshot those of
    the segments before it.

    :raises CorruptFileError: an index or a snapshot can't be read.
    :raises LakeUnavailableError: the lake can't be read.
    """
    aborted: list[AbortedTransaction] = []
    for one in partition.ranges:
        for companion in () if one.refused else one.receipt.companions:
            if companion.name.endswith(".txnindex"):
                found = parse_transaction_index(companion.content, f"{companion.name} of {one.receipt.log}")
                # Of offsets that two receipts have, one tells it.
                aborted += (entry for entry in found if entry.last_offset >= one.first)
    return Transactions(
        tuple(sorted(aborted, key=lambda entry: entry.last_offset)),
        tuple((section[-1].end, _stable(section, pieces)) for section in _sections(partition.ranges)),
    )


def _sections(ranges: Sequence[ArchivedRange]) -> list[list[ArchivedRange]]:
    """Cut ranges at each hole: what ended in it, nobody knows. One that is refused is as good as a hole."""
    sections: list[list[ArchivedRange]] = []
    for one in ranges:
        last = sections[-1][-1] if sections else None
        if last is None or last.end < one.first or last.refused or one.refused:
            sections.append([])
        sections[-1].append(one)
    return sections


def _stable(section: Sequence[ArchivedRange], pieces: Pieces) -> int:
    if section[-1].refused:
        return section[-1].end
    last, snapshot = 0, b""
    for number, one in enumerate(section):
        for companion in one.receipt.companions:
            if companion.name.endswith(".snapshot"):
                last, snapshot = number, companion.content
    receipt = section[last].receipt
    producers = parse_producer_snapshot(snapshot, f"snapshot of {receipt.log}") if snapshot else ()
    known = UncommittedTransactions.of_files((), producers, receipt.base_offset)
    for one in section[last:]:
        for piece in pieces(one.receipt):
            if len(piece.last_offsets):
                known = known.continued(
                    memoryview(bytes(piece.read(0, piece.size_bytes))), int(piece.last_offsets[-1]) + 1
                )
    first_open = known.first_open_offset
    return section[-1].end if first_open is None else first_open
