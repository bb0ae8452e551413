"""RocketMQ commitlog ↔ Arrow: one row for each frame, with all data to rebuild the segment byte for byte.

``encode(decode(segment)) == segment`` for any bytes. Typed columns hold the frame's fields. If they alone
wouldn't restore a frame exactly, the row has the frame's bytes in ``raw``, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from storage_engine.model.broker.codec import Bodies, Columns, Damage, LoadBytes, SegmentCodec
from storage_engine.rocketmq.codec.commitlog import SegmentBytes, as_array, iterate_frames
from storage_engine.rocketmq.codec.message_schema import COLUMNS, SCHEMA

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MIN_CHUNK_BYTES = 1 << 20
_MAX_CHUNK_BYTES = 16 << 20


def default_chunk_bytes(segment_bytes: int) -> int:
    """Return the length of a range: a quarter of the segment, but at least 1 MiB and at most 16 MiB.

    Rows of a shorter range cluster badly, and a longer range doesn't fit into the processor's caches.
    """
    return min(_MAX_CHUNK_BYTES, max(_MIN_CHUNK_BYTES, segment_bytes // 4))


@dataclass(frozen=True, slots=True)
class RocketMQCodec(SegmentCodec):
    """SegmentCodec of RocketMQ's commitlog. It has no state: it can be pickled and shared between threads."""

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def columns(self) -> Columns:
        return COLUMNS

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        from storage_engine.rocketmq.codec.encode import ENCODED_COLUMNS

        return ENCODED_COLUMNS

    @property
    def bodies(self) -> Bodies:
        from storage_engine.rocketmq.codec import body

        return body

    def decode(
        self, data: SegmentBytes, base_offset: int, *, chunk_bytes: int | None = None, context: str = ""
    ) -> Iterator[tuple[pa.Table, tuple[Damage, ...]]]:
        """Yield the rows of consecutive byte ranges of a whole segment, with the damage found in each range.

        Rows of a range are sorted by (topic, queue_id, physical_offset); blank and undecodable rows come
        last. Body and property CRCs are checked.

        :param data: the whole segment file, which must not change until the iteration ends.
        :param chunk_bytes: length of a range; a longer frame is a range of its own.
        """
        from storage_engine.arrow.memory import Arena
        from storage_engine.rocketmq.codec.decode import decode_chunk

        array, arena = as_array(data), Arena()
        for chunk in iterate_frames(array, base_offset, chunk_bytes or default_chunk_bytes(len(array))):
            yield next(decode_chunk(array, base_offset, chunk, arena)), chunk.damages

    def decode_groups(
        self, data: SegmentBytes, base_offset: int, *, chunk_bytes: int, context: str, load: LoadBytes
    ) -> Iterator[tuple[Iterator[pa.Table], tuple[Damage, ...]]]:
        from storage_engine.arrow.memory import Arena
        from storage_engine.arrow.row_groups import cut_places
        from storage_engine.rocketmq.codec.decode import decode_chunk

        array, arena = as_array(data), Arena.of_thread()
        for chunk in iterate_frames(array, base_offset, chunk_bytes, load=load):
            yield decode_chunk(array, base_offset, chunk, arena, cut_places), chunk.damages

    def encode(self, rows: pa.Table, out: memoryview, first_position: int) -> int:
        """Write each row's bytes into ``out`` at physical_offset - first_position.

        :param rows: rows in any order; columns that aren't in the schema are ignored.
        :return: number of bytes of ``out`` that were written; none was written twice.
        :raises ProofError: a row lies outside ``out``, rows overlap, or a row lacks data for its bytes.
        """
        from storage_engine.rocketmq.codec.encode import encode_rows

        return encode_rows(rows, out, first_position)

    def filler(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], stored_ms: npt.NDArray[np.int64]
    ) -> pa.Table:
        from storage_engine.rocketmq.codec.encode import filler_rows

        return filler_rows(starts, ends, stored_ms)

    def older_rows(self, rows: pa.Table) -> pa.Table:
        from storage_engine.rocketmq.codec.encode import older_rows

        return older_rows(rows)


CODEC = RocketMQCodec()
