"""Segments of a Kafka log ↔ Arrow: a row for each batch and each record, from which the segment is encoded.

``encode(decode(segment)) == segment`` for any bytes whatever. Typed columns contain as much as they can. If a
row's exact bytes can't be encoded from them, ``raw`` contains these bytes as well. The proof compares the
encoded bytes with the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.arrow.memory import ColumnAddresses, address_of, boolean_flags, valid_flags
from storage_engine.exceptions import ProofError
from storage_engine.kafka.codec import encode_kernels as kernels
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
        return ENCODED_COLUMNS

    def origin(self, base_offset: int) -> int:
        """Return 0: a segment's positions begin at 0, because offsets count records, not bytes."""
        return 0

    def decode(
        self, data: SegmentBytes, base_offset: int, *, chunk_bytes: int = _CHUNK_BYTES, context: str = ""
    ) -> Iterator[tuple[pa.Table, tuple[Damage, ...]]]:
        """Yield the rows of consecutive byte ranges of a whole segment, with the damage found there.

        Rows are in the segment's order, a batch before its records. CRCs are checked.

        :param data: the whole segment file, unchanged until the iteration ends.
        :param base_offset: offset of its first record; positions don't depend on it.
        :param chunk_bytes: length of a range; a longer batch is a range of its own.
        :param context: the text of :mod:`~storage_engine.kafka.codec.segment_context`. If "", topic,
            partition and state get no value, and no batch's offsets are compared with those of the segment.
        """
        from storage_engine.arrow.memory import Arena
        from storage_engine.kafka.codec.compression import Decompressor
        from storage_engine.kafka.codec.decode import decode_chunk
        from storage_engine.kafka.codec.segment_context import SegmentColumns

        array, decompressor, arena = as_array(data), Decompressor(), Arena.of_thread()
        segment = SegmentColumns(context, array, base_offset)
        misplaced = [*segment.misplaced]

        def completed(rows: pa.Table, damages: tuple[Damage, ...]) -> tuple[pa.Table, tuple[Damage, ...]]:
            all_damages = (*damages, *misplaced)
            misplaced.clear()
            return segment.added_to(rows), all_damages

        for chunk in iterate_batches(array, chunk_bytes, CrcCheck.COMPRESSED):
            # No name here keeps a reference to rows while the next rows are made in their memory.
            yield from starmap(
                completed, decode_chunk(array, self.origin(base_offset), chunk, decompressor, arena)
            )

    def encode(self, rows: pa.Table, out: memoryview, first_position: int) -> int:
        """Write each row's bytes into ``out`` at physical_offset - first_position.

        :param rows: in any order; columns beyond the schema are ignored.
        :return: number of bytes written. Each byte is written once, because rows of one call don't overlap.
        :raises ProofError: a row lies outside ``out``, rows overlap, or a row has no raw bytes and lacks a
            needed column.
        """
        target = np.frombuffer(out, np.uint8)
        if not target.flags.writeable:
            raise ValueError("the buffer to encode into is read-only")
        present = set(rows.column_names)
        missing = [name for name in ENCODED_COLUMNS if name not in present]
        if missing:
            raise ProofError(f"rows to encode lack the columns {', '.join(missing)}")
        rows = _with_types(rows.select(list(ENCODED_COLUMNS)))
        written = _check_overlap(rows)
        for batch in rows.to_batches():
            _encode_batch(batch, target, first_position)
        return written


CODEC = KafkaCodec()


_OF_ALL = {"physical_offset": kernels.PHYSICAL_OFFSET, "size": kernels.SIZE}
_OF_RECORDS = {
    "offset": kernels.OFFSET,
    "base_offset": kernels.BASE_OFFSET,
    "base_timestamp": kernels.BASE_TIMESTAMP,
    "record_attributes": kernels.RECORD_ATTRIBUTES,
}
"""Columns that a record without raw bytes must have."""
_OF_BATCHES = {
    "base_offset": kernels.BASE_OFFSET,
    "base_timestamp": kernels.BASE_TIMESTAMP,
    "max_timestamp": kernels.MAX_TIMESTAMP,
    "leader_epoch": kernels.LEADER_EPOCH,
    "attributes": kernels.ATTRIBUTES,
    "last_offset_delta": kernels.LAST_OFFSET_DELTA,
    "producer_id": kernels.PRODUCER_ID,
    "producer_epoch": kernels.PRODUCER_EPOCH,
    "base_sequence": kernels.BASE_SEQUENCE,
    "record_count": kernels.RECORD_COUNT,
    "batch_size": kernels.BATCH_SIZE,
    "crc": kernels.CRC,
}
"""Columns that a batch without raw bytes must have."""
_TIMES = {"timestamp": kernels.TIMESTAMP, "timestamp_delta": kernels.TIMESTAMP_DELTA}
_VIEWS = {
    "key": (kernels.KEY, kernels.KEY_BUFFERS),
    "value": (kernels.VALUE, kernels.VALUE_BUFFERS),
    "raw": (kernels.RAW, kernels.RAW_BUFFERS),
}
_INTEGERS = {**_OF_ALL, **_OF_RECORDS, **_OF_BATCHES, **_TIMES}

ENCODED_COLUMNS = (*_INTEGERS, "kind", "key", "value", "headers", "raw")
"""Columns from which a row's bytes are made."""
_ENCODED_SCHEMA = pa.schema([SCHEMA.field(name) for name in ENCODED_COLUMNS])

_FAULTS = {
    kernels.FAULT_OUTSIDE: "to lie inside the segment",
    kernels.FAULT_RAW_SIZE: "as many raw bytes as its size says",
    kernels.FAULT_INCOMPLETE: "raw bytes, or a value in every column that a batch or a record is made of",
    kernels.FAULT_TIMESTAMP: "a timestamp in whole milliseconds",
    kernels.FAULT_LENGTHS: "fields whose lengths add up to its size",
}


def _with_types(rows: pa.Table) -> pa.Table:
    """Return rows with the kernel's types. Most columns have these types already, and a cast takes long."""
    pairs = list(zip(rows.columns, _ENCODED_SCHEMA, strict=True))
    if any(column.null_count and not field.nullable for column, field in pairs):
        # The error of this cast names the column that lacks a value.
        return rows.cast(_ENCODED_SCHEMA)
    typed = [column if column.type == field.type else column.cast(field.type) for column, field in pairs]
    return pa.Table.from_arrays(typed, schema=_ENCODED_SCHEMA)


def _check_overlap(rows: pa.Table) -> int:
    """Return how many bytes the rows own.

    :raises ProofError: rows overlap, or lack a position or a size.
    """
    offset_column, size_column = rows.column("physical_offset"), rows.column("size")
    if offset_column.null_count or size_column.null_count:
        raise ProofError("a row to encode lacks its physical_offset or size")
    sizes = size_column.to_numpy()
    owning = np.flatnonzero(sizes > 0)
    starts, sizes = offset_column.to_numpy()[owning], sizes[owning].astype(np.int64)
    order = np.argsort(starts, kind="stable")
    starts, sizes = starts[order], sizes[order]
    early = np.flatnonzero(starts[1:] < starts[:-1] + sizes[:-1])
    if len(early):
        place = int(early[0])
        raise ProofError(
            f"rows overlap: the row at physical offset {starts[place]} has {sizes[place]} bytes, and the "
            f"next row begins at {starts[place + 1]}"
        )
    return int(sizes.sum())


def _encode_batch(batch: pa.RecordBatch, target: npt.NDArray[np.uint8], first_position: int) -> None:
    if batch.num_rows == 0:
        return
    addresses = ColumnAddresses(kernels.COLUMNS)
    for name, place in _INTEGERS.items():
        addresses.fixed(place, batch.column(name))
    for name, (place, buffers_place) in _VIEWS.items():
        addresses.views(place, buffers_place, batch.column(name))
    has_delta = valid_flags(batch.column("timestamp_delta"))
    headers: Any = batch.column("headers")
    is_record = valid_flags(headers) & (has_delta | valid_flags(batch.column("timestamp")))
    is_batch = boolean_flags(cast("Any", pc.equal)(batch.column("kind"), "batch"))
    for name in _OF_RECORDS:
        is_record = is_record & valid_flags(batch.column(name))
    for name in _OF_BATCHES:
        is_batch = is_batch & valid_flags(batch.column(name))
    addresses.bytes(kernels.IS_BATCH, is_batch)
    addresses.bytes(kernels.IS_RECORD, is_record)
    addresses.bytes(kernels.HAS_RAW, valid_flags(batch.column("raw")))
    addresses.bytes(kernels.HAS_KEY, valid_flags(batch.column("key")))
    addresses.bytes(kernels.HAS_VALUE, valid_flags(batch.column("value")))
    addresses.bytes(kernels.HAS_DELTA, has_delta)
    addresses.fixed(kernels.HEADER_STARTS, headers.offsets)
    entries = headers.values
    values = entries.field("value")
    addresses.text(kernels.NAMES, kernels.NAME_OFFSETS, entries.field("key"))
    addresses.text(kernels.HEADER_VALUES, kernels.HEADER_VALUE_OFFSETS, values)
    addresses.bytes(kernels.HAS_HEADER_VALUE, valid_flags(values))
    failed = np.zeros(1, np.int64)
    fault = kernels.encode_rows(
        address_of(target), len(target), first_position, batch.num_rows, address_of(addresses.table), failed
    )
    if fault != kernels.ENCODED:
        row = int(failed[0])
        raise ProofError(
            f"row at physical offset {batch.column('physical_offset')[row]} with "
            f"{batch.column('size')[row]} bytes can't be encoded into the {len(target)} bytes from "
            f"{first_position}: expected {_FAULTS[fault]}"
        )
