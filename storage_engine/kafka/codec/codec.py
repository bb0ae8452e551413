"""Segments of a Kafka log ↔ Arrow: rows for each batch and its records, which give the segment back.

``encode(decode(segment)) == segment`` for any bytes whatever. Typed columns carry what they can; a row that
they alone would not bring back exactly has its bytes in ``raw`` too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap

import pyarrow as pa

from storage_engine.kafka.codec.record_batch import CrcCheck, SegmentBytes, as_array, iterate_batches
from storage_engine.kafka.codec.record_schema import COLUMNS, SCHEMA
from storage_engine.model.broker.codec import Columns, Damage, SegmentCodec

_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class KafkaCodec(SegmentCodec):
    """SegmentCodec of Kafka's logs. Stateless; safe to pickle and to share between threads."""

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def columns(self) -> Columns:
        return COLUMNS

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        from storage_engine.kafka.codec.encode import ENCODED_COLUMNS

        return ENCODED_COLUMNS

    def origin(self, base_offset: int) -> int:
        """Return 0: offsets count records."""
        return 0

    def decode(
        self, data: SegmentBytes, base_offset: int, *, chunk_bytes: int = _CHUNK_BYTES, context: str = ""
    ) -> Iterator[tuple[pa.Table, tuple[Damage, ...]]]:
        """Yield the rows of consecutive byte ranges of a whole segment, with the damage found there.

        Rows are in the segment's order, a batch before its records. CRCs are checked.

        :param data: the whole segment file, unchanged until the iteration ends.
        :param base_offset: offset of its first record; positions don't depend on it.
        :param chunk_bytes: length of a range; a longer batch is a range of its own.
        :param context: what :mod:`~storage_engine.kafka.codec.segment_context` writes; "": topic, partition
            and state have no value, and no batch's offsets are held against those of the segment.
        """
        from storage_engine.arrow.memory import Arena
        from storage_engine.kafka.codec.compression import Decompressor
        from storage_engine.kafka.codec.decode import decode_chunk
        from storage_engine.kafka.codec.segment_context import SegmentColumns

        array, decompressor, arena = as_array(data), Decompressor(), Arena.of_thread()
        segment = SegmentColumns(context, array, base_offset)
        misplaced = [*segment.misplaced]

        def completed(rows: pa.Table, damages: tuple[Damage, ...]) -> tuple[pa.Table, tuple[Damage, ...]]:
            found = (*damages, *misplaced)
            misplaced.clear()
            return segment.added_to(rows), found

        for chunk in iterate_batches(array, chunk_bytes, CrcCheck.COMPRESSED):
            # No name here holds on to rows while the next are made in their memory.
            yield from starmap(
                completed, decode_chunk(array, self.origin(base_offset), chunk, decompressor, arena)
            )

    def encode(self, rows: pa.Table, out: memoryview, first_position: int) -> int:
        """Write each row's bytes into ``out`` at physical_offset - first_position.

        :param rows: in any order; columns beyond the schema are ignored.
        :return: bytes written. Rows of one call don't overlap, so it is also the bytes covered.
        :raises ProofError: when a row lies outside ``out``, rows overlap, or a row has neither raw
            bytes nor all that it needs.
        """
        from storage_engine.kafka.codec.encode import encode_rows

        return encode_rows(rows, out, first_position)


CODEC = KafkaCodec()
