"""The part of a broker that a Spark task needs: pure, picklable, bytes ↔ Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Damage:
    """A run of bytes in a segment that is not a valid frame, and what was wrong with it."""

    offset: int
    size_bytes: int
    expected: str
    found: str


class SegmentCodec(Protocol):
    """Turns a segment's bytes into rows and back.

    Rows cover the segment without gap or overlap: each has ``physical_offset`` and ``size``, and
    re-encodes to exactly the bytes [physical_offset, physical_offset + size).
    """

    @property
    def schema(self) -> pa.Schema:
        """Columns of a row, without the identity columns that the lake adds."""
        ...

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The columns that :meth:`encode` reads."""
        ...

    def decode(
        self, data: memoryview, base_offset: int, *, chunk_bytes: int = ...
    ) -> Iterator[tuple[pa.Table, tuple[Damage, ...]]]:
        """Yield the rows of consecutive byte ranges of about ``chunk_bytes``, each clustered for
        reading by topic, with the damage found in that range."""
        ...

    def encode(self, rows: pa.Table, out: memoryview, base_offset: int) -> int:
        """Write each row's bytes into ``out`` at physical_offset - base_offset.

        :return: number of bytes written; the caller checks coverage.
        :raises ProofError: when a row lies outside ``out`` or rows overlap.
        """
        ...
