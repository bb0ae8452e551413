"""The end of a store's chain of receipts, by itself and as that of a lake."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from storage_engine.model.proof.receipt import Receipt

CHAIN_START = "0" * 64
"""``previous_hash`` of a store's first row."""


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last row of a store's chain, or the last one that somebody knows of."""

    sequence: int
    row_hash: str

    @classmethod
    def of(cls, receipts: Iterable[Receipt]) -> ChainHead:
        """Return the last of some rows of one store; the start of the chain when there are none."""
        last = max(receipts, key=lambda row: row.sequence, default=None)
        return EMPTY_CHAIN if last is None else cls(last.sequence, last.row_hash)


EMPTY_CHAIN = ChainHead(-1, CHAIN_START)


@dataclass(frozen=True, slots=True)
class LakeHead:
    """The last receipt of the store that a lake had.

    :param location: of the lake, by its configuration.
    :param place: location of its table ``segments``; "" where an older version recorded none.
    """

    lake_id: str
    location: str
    sequence: int
    row_hash: str
    place: str = ""

    @property
    def chain_head(self) -> ChainHead:
        return ChainHead(self.sequence, self.row_hash)
