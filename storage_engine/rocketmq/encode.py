"""Arrow rows → the bytes of a segment. The proof compares what this writes with the file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.exceptions import ProofError
from storage_engine.rocketmq import encode_kernels as kernels
from storage_engine.rocketmq.commitlog import address_of
from storage_engine.rocketmq.message_schema import SCHEMA

_INT_COLUMNS = (
    "magic",
    "queue_id",
    "queue_offset",
    "flag",
    "sys_flag",
    "body_crc",
    "born_timestamp",
    "store_timestamp",
    "born_port",
    "store_port",
    "reconsume_times",
    "prepared_transaction_offset",
)
"""In the order of the kernel's arguments."""

_NEEDED = (*_INT_COLUMNS, "topic", "born_host", "store_host", "body")
"""What a row without raw bytes must have."""

_ENCODED_COLUMNS = ("physical_offset", "size", *_NEEDED, "properties", "properties_terminated", "raw")

_FAULTS = {
    kernels.FAULT_RAW_SIZE: "as many raw bytes as its size says",
    kernels.FAULT_INCOMPLETE: "raw bytes, or a value in every column that a frame is made of",
    kernels.FAULT_MAGIC: "a message's magic, or raw bytes",
    kernels.FAULT_TIMESTAMP: "timestamps in whole milliseconds",
    kernels.FAULT_LENGTHS: "topic, body and properties that make up its size",
    kernels.FAULT_HOST: "IP addresses as born_host and store_host, of the kind that sys_flag says",
    kernels.FAULT_OUTSIDE: "to lie inside the segment",
}


def encode_rows(rows: pa.Table, out: memoryview, base_offset: int) -> int:
    """Write each row's bytes into ``out`` at physical_offset - base_offset.

    :raises ProofError: when a row lies outside ``out``, rows overlap, or a row can't be encoded.
    :return: bytes written.
    """
    target = np.frombuffer(out, np.uint8)
    if not target.flags.writeable:
        raise ValueError("the buffer to encode into is read-only")
    missing = [name for name in _ENCODED_COLUMNS if name not in rows.column_names]
    if missing:
        raise ProofError(f"rows to encode lack the columns {', '.join(missing)}")
    rows = rows.select(list(_ENCODED_COLUMNS)).cast(
        pa.schema([SCHEMA.field(name) for name in _ENCODED_COLUMNS])
    )
    offsets, sizes = _check_overlap(rows)
    done = 0
    for batch in rows.to_batches():
        count = batch.num_rows
        _encode_batch(batch, target, base_offset, offsets[done : done + count], sizes[done : done + count])
        done += count
    return int(sizes.sum(dtype=np.int64))


def _check_overlap(rows: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    offset_column, size_column = rows.column("physical_offset"), rows.column("size")
    if offset_column.null_count or size_column.null_count:
        raise ProofError("a row to encode lacks its physical_offset or size")
    offsets = offset_column.to_numpy()
    sizes = size_column.to_numpy()
    order = np.argsort(offsets, kind="stable")
    place = kernels.first_overlap(order, offsets, sizes)
    if place >= 0:
        before, row = order[place - 1], order[place]
        raise ProofError(
            f"rows overlap: the one at physical offset {offsets[row]} begins before the one at "
            f"{offsets[before]} with {sizes[before]} bytes ends"
        )
    return offsets, sizes


def _encode_batch(
    batch: pa.RecordBatch,
    target: npt.NDArray[np.uint8],
    base_offset: int,
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
) -> None:
    count = batch.num_rows
    complete = np.ones(count, np.uint8)
    for name in _NEEDED:
        column = batch.column(name)
        if column.null_count:
            complete &= _valid(column)
    properties = batch.column("properties")
    terminated = batch.column("properties_terminated")
    names, values = properties.keys, properties.items
    if values.null_count:
        raise ProofError("a row to encode has a property whose value is null")
    texts = [batch.column(name) for name in ("topic", "born_host", "store_host", "body", "raw")]
    pieces = [_text(column) for column in (*texts, names, values)]
    failed = np.zeros(1, np.int64)
    fault = kernels.encode_rows(
        address_of(target),
        len(target),
        base_offset,
        count,
        offsets,
        sizes,
        complete,
        _valid(batch.column("raw")),
        *(_ints(batch.column(name)) for name in _INT_COLUMNS),
        _booleans(terminated),
        np.array([address for _, address, _ in pieces], np.int64),
        np.array([size for _, _, size in pieces], np.int64),
        *(piece_offsets for piece_offsets, _, _ in pieces[:5]),
        _map_offsets(properties),
        *(piece_offsets for piece_offsets, _, _ in pieces[5:]),
        failed,
    )
    if fault != kernels.ENCODED:
        row = int(failed[0])
        raise ProofError(
            f"row at physical offset {offsets[row]} with {sizes[row]} bytes can't be encoded into the "
            f"{len(target)} bytes from {base_offset}: expected {_FAULTS[fault]}"
        )


def _valid(column: pa.Array) -> npt.NDArray[np.uint8]:
    if column.null_count == 0:
        return np.ones(len(column), np.uint8)
    if column.null_count == len(column):
        return np.zeros(len(column), np.uint8)
    return _booleans(column.is_valid())


def _booleans(column: pa.Array) -> npt.NDArray[np.uint8]:
    """One byte a value; null is false."""
    filled = pc.fill_null(column, False) if column.null_count else column
    return filled.cast(pa.uint8()).to_numpy()


def _ints(column: pa.Array) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
    """The values as they lie; where a value is null, anything."""
    dtype = np.dtype(np.int32 if column.type.bit_width == 32 else np.int64)
    _, values = column.buffers()
    if len(column) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(values, dtype, len(column), column.offset * dtype.itemsize)


def _text(column: pa.Array) -> tuple[npt.NDArray[np.int32], int, int]:
    """Offsets, and address and length of the bytes that they point into."""
    _, offsets, content = column.buffers()
    address, size = (content.address, content.size) if content is not None else (0, 0)
    if len(column) == 0 or offsets is None:
        return np.zeros(len(column) + 1, np.int32), address, size
    view = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    return view, address, size


def _map_offsets(column: pa.MapArray) -> npt.NDArray[np.int32]:
    """Where each row's pairs begin; a null row's must be empty, as Arrow's own writers leave it."""
    return _text_like_offsets(column.offsets, len(column))


def _text_like_offsets(offsets: pa.Array, count: int) -> npt.NDArray[np.int32]:
    if count == 0:
        return np.zeros(1, np.int32)
    return offsets.to_numpy()
