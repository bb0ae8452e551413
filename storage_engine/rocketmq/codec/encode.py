"""Encoding of Arrow rows to the bytes of a segment. The proof compares these bytes with the file.

Lakes before version 3 have rows with pairs of properties in place of the properties' text. If a message's
pairs, joined again, don't equal its block of properties, such a row also keeps the message's exact bytes.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.arrow.memory import ColumnAddresses, address_of, valid_flags
from storage_engine.exceptions import ProofError
from storage_engine.rocketmq.codec import encode_kernels as kernels
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.message_schema import PAIR_COLUMNS, SCHEMA, TEXT_COLUMN
from storage_engine.rocketmq.codec.property_pairs import PAIR_END, join_pairs, read_pairs

_INT_COLUMNS = {
    "physical_offset": kernels.PHYSICAL_OFFSET,
    "size": kernels.SIZE,
    "magic": kernels.MAGIC,
    "queue_id": kernels.QUEUE_ID,
    "queue_offset": kernels.QUEUE_OFFSET,
    "flag": kernels.FLAG,
    "sys_flag": kernels.SYS_FLAG,
    "body_crc": kernels.BODY_CRC,
    "born_timestamp": kernels.BORN_TIMESTAMP,
    "store_timestamp": kernels.STORE_TIMESTAMP,
    "born_port": kernels.BORN_PORT,
    "store_port": kernels.STORE_PORT,
    "reconsume_times": kernels.RECONSUME_TIMES,
    "prepared_transaction_offset": kernels.PREPARED_TRANSACTION_OFFSET,
}

_TEXT_COLUMNS = {
    "topic": (kernels.TOPIC, kernels.TOPIC_OFFSETS),
    "born_host": (kernels.BORN_HOST, kernels.BORN_HOST_OFFSETS),
    "store_host": (kernels.STORE_HOST, kernels.STORE_HOST_OFFSETS),
}
_PROPERTIES = (kernels.PROPERTIES, kernels.PROPERTIES_OFFSETS)

_VIEW_COLUMNS = {"body": (kernels.BODY, kernels.BODY_BUFFERS), "raw": (kernels.RAW, kernels.RAW_BUFFERS)}

_NEEDED = (*_INT_COLUMNS, *_TEXT_COLUMNS, "body")
"""Columns that a row without raw bytes must have."""

ENCODED_COLUMNS = (*_NEEDED, *PAIR_COLUMNS, "raw", TEXT_COLUMN)
"""Columns from which a row's bytes are made. Rows of older lakes have pairs in place of the last column."""

_FAULTS = {
    kernels.FAULT_RAW_SIZE: "as many raw bytes as its size says",
    kernels.FAULT_INCOMPLETE: "raw bytes, or a value in every column that a frame is made of",
    kernels.FAULT_MAGIC: "a message's magic, or raw bytes",
    kernels.FAULT_TIMESTAMP: "timestamps in whole milliseconds",
    kernels.FAULT_LENGTHS: "topic, body and properties that make up its size",
    kernels.FAULT_HOST: "IP addresses as born_host and store_host, of the kind that sys_flag says",
    kernels.FAULT_OUTSIDE: "to lie inside the segment",
}
_PAIRS, _TERMINATED = PAIR_COLUMNS


def encode_rows(rows: pa.Table, out: memoryview, base_offset: int) -> int:
    """Write each row's bytes into ``out`` at physical_offset - base_offset.

    :raises ProofError: a row is outside ``out``, rows overlap, or a row can't be encoded.
    :return: bytes written.
    """
    target = np.frombuffer(out, np.uint8)
    if not target.flags.writeable:
        raise ValueError("the buffer to encode into is read-only")
    if not 0 <= base_offset <= (1 << 63) - 1 - len(target):
        raise ValueError(f"base offset {base_offset} is no 64-bit offset")
    names = [name for name in ENCODED_COLUMNS if name in rows.column_names]
    if missing := set(ENCODED_COLUMNS) - {*names, TEXT_COLUMN}:
        raise ProofError(f"rows to encode lack the columns {', '.join(sorted(missing))}")
    rows = rows.select(names).cast(pa.schema([SCHEMA.field(name) for name in names]))
    sizes = _check_overlap(rows)
    for batch in rows.to_batches():
        _encode_batch(batch, target, base_offset)
    return int(sizes.sum(dtype=np.int64))


def _check_overlap(rows: pa.Table) -> npt.NDArray[np.int32]:
    offset_column, size_column = rows.column("physical_offset"), rows.column("size")
    if offset_column.null_count or size_column.null_count:
        raise ProofError("a row to encode lacks its physical_offset or size")
    # Copies, since numba compiles a separate kernel for read-only arrays.
    offsets = np.array(offset_column.to_numpy(), np.int64)
    sizes = np.array(size_column.to_numpy(), np.int32)
    # A stable sort if needed, since a row of 0 bytes may begin where the next row begins.
    order = np.argsort(offsets, kind=None if sizes.all() else "stable")
    place = kernels.first_overlap(order, offsets, sizes)
    if place >= 0:
        before, row = order[place - 1], order[place]
        raise ProofError(
            f"rows overlap: the one at physical offset {offsets[row]} begins before the one at "
            f"{offsets[before]} with {sizes[before]} bytes ends"
        )
    return sizes


def _encode_batch(batch: pa.RecordBatch, target: npt.NDArray[np.uint8], base_offset: int) -> None:
    if batch.num_rows == 0:
        return
    addresses = ColumnAddresses(kernels.COLUMNS)
    complete = np.ones(batch.num_rows, np.uint8)
    for name in _NEEDED:
        complete &= valid_flags(batch.column(name))
    addresses.bytes(kernels.COMPLETE, complete)
    addresses.bytes(kernels.HAS_RAW, valid_flags(batch.column("raw")))
    for name, place in _INT_COLUMNS.items():
        addresses.fixed(place, batch.column(name))
    for name, (place, offsets_place) in _TEXT_COLUMNS.items():
        addresses.text(place, offsets_place, batch.column(name))
    for name, (place, buffers_place) in _VIEW_COLUMNS.items():
        addresses.views(place, buffers_place, batch.column(name))
    addresses.bytes(kernels.HOSTS, np.zeros(kernels.HOSTS_BYTES, np.uint8))
    addresses.text(*_PROPERTIES, _property_texts(batch))
    failed = np.zeros(1, np.int64)
    fault = kernels.encode_rows(
        address_of(target), len(target), base_offset, batch.num_rows, address_of(addresses.table), failed
    )
    if fault != kernels.ENCODED:
        row = int(failed[0])
        raise ProofError(
            f"row at physical offset {batch.column('physical_offset')[row]} with "
            f"{batch.column('size')[row]} bytes can't be encoded into the {len(target)} bytes from "
            f"{base_offset}: expected {_FAULTS[fault]}"
        )


def _property_texts(rows: pa.RecordBatch) -> pa.Array[Any]:
    """Return each row's block of properties. For rows of an older lake, the pairs are joined to a block."""
    texts = rows.column(TEXT_COLUMN) if TEXT_COLUMN in rows.schema.names else None
    pairs, terminated = (rows.column(name) for name in PAIR_COLUMNS)
    if texts is None:
        return join_pairs(pairs, terminated)
    return texts if pairs.null_count == len(pairs) else pc.coalesce(texts, join_pairs(pairs, terminated))


def filler_rows(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], store_ms: npt.NDArray[np.int64]
) -> pa.Table:
    """Return rows of filler frames for runs of bytes. No broker puts these frames into a queue or its index.

    Each frame has the flag of a rolled-back transaction (CommitLogDispatcherBuildConsumeQueue, …BuildIndex)
    and a body of zeros. In a run too short for the whole topic name, the frame has only the name's beginning.

    :param starts: first offset of each run, ascending.
    :param store_ms: store time of the frames in each run. It must not be 0, since a broker relies on the
        store time of a segment's first message.
    :raises ProofError: a run is too short for a frame.
    """
    runs = ends - starts
    if (short := runs <= frame.MIN_MESSAGE_BYTES).any():
        raise ProofError(
            f"offset {starts[np.argmax(short)]}: expected room for a filler message, found "
            f"{runs[np.argmax(short)]} bytes between the remaining messages."
        )
    counts = -(-runs // frame.FILLER_BYTES)
    run = np.repeat(np.arange(len(runs)), counts)
    number = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
    each, rest = runs // counts, runs % counts
    sizes = each[run] + (number < rest[run])
    offsets = starts[run] + number * each[run] + np.minimum(number, rest[run])
    topic_bytes = np.minimum(sizes - frame.MIN_MESSAGE_BYTES, len(frame.FILLER_TOPIC))
    body_bytes = sizes - frame.MIN_MESSAGE_BYTES - topic_bytes
    columns: dict[str, Any] = {
        "physical_offset": offsets,
        "size": sizes,
        "kind": pa.repeat(pa.scalar("message"), len(run)),
        "magic": np.full(len(run), frame.MAGIC_V1, np.uint32).view(np.int32),
        "topic": pa.array([frame.FILLER_TOPIC[:count] for count in range(len(frame.FILLER_TOPIC) + 1)]).take(
            pa.array(topic_bytes)
        ),
        "sys_flag": np.full(len(run), frame.TRANSACTION_ROLLBACK),
        "body_crc": _zeros_crc(body_bytes),
        "body": _zeros(body_bytes),
        **dict.fromkeys(("born_host", "store_host"), pa.repeat(pa.scalar("0.0.0.0"), len(run))),
        **dict.fromkeys(("born_timestamp", "store_timestamp"), store_ms[run] * 1000),
    }
    zeros = np.zeros(len(run), np.int64)
    columns |= {name: zeros for name in _INT_COLUMNS if name not in columns}
    return pa.Table.from_arrays(
        [
            pa.array(columns[field.name]).cast(field.type)
            if field.name in columns
            else pa.nulls(len(run), field.type)
            for field in SCHEMA
        ],
        schema=SCHEMA,
    )


def _zeros(sizes: npt.NDArray[np.int64]) -> pa.Array[Any]:
    """Return binaries of zeros that all share the same memory."""
    views = np.zeros((len(sizes), 4), np.int32)
    views[:, 0] = sizes
    memory = pa.py_buffer(bytes(int(sizes.max(initial=0))))
    buffers: Any = [None, pa.py_buffer(views.tobytes()), memory]
    return pa.Array.from_buffers(pa.binary_view(), len(sizes), buffers)


def _zeros_crc(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    distinct, places = np.unique(sizes, return_inverse=True)
    crcs, crc = [], 0
    for more in np.diff(distinct, prepend=0).tolist():
        crc = zlib.crc32(bytes(more), crc)
        crcs.append(crc & frame.CRC_MASK)
    return np.array(crcs, np.int64)[places]


def older_rows(rows: pa.Table) -> pa.Table:
    """Return decoded rows in the form of lakes before version 3."""
    texts: Any = rows[TEXT_COLUMN]
    maps, is_exact = read_pairs(texts)
    columns: dict[str, Any] = {_PAIRS: maps, _TERMINATED: pc.ends_with(texts, PAIR_END)}
    mask = ~is_exact & rows["raw"].is_null().to_numpy()
    if mask.any():
        exact = pa.chunked_array([_exact_bytes(rows, mask)])
        columns["raw"] = pc.coalesce(rows["raw"].cast(pa.large_binary()), exact.cast(pa.large_binary()))
    for name, column in columns.items():
        field = SCHEMA.field(name)
        rows = rows.set_column(rows.schema.get_field_index(name), field, column.cast(field.type))
    return rows.drop_columns([TEXT_COLUMN])


def _exact_bytes(rows: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Array[Any]:
    """Return the bytes of the chosen messages as views, and null for other rows."""
    # Arrow can't filter columns of views.
    plain = [
        field.with_type(pa.large_binary()) if pa.types.is_binary_view(field.type) else field
        for field in rows.schema
    ]
    chosen = rows.cast(pa.schema(plain)).filter(pa.array(mask))
    positions, sizes = chosen["physical_offset"].to_numpy(), chosen["size"].to_numpy()
    first = int(positions.min())
    out = np.zeros(int((positions + sizes).max()) - first, np.uint8)
    encode_rows(chosen, out.data, first)
    # A view is length, first four bytes, buffer number, position: every frame is too long to lie in a view.
    views = np.zeros((rows.num_rows, 4), np.int32)
    views[mask, 0], views[mask, 3] = sizes, positions - first
    views[mask, 1] = out[(positions - first)[:, None] + np.arange(4)].view(np.int32)[:, 0]
    validity = pa.py_buffer(np.packbits(mask, bitorder="little").data)
    buffers: list[pa.Buffer | None] = [validity, pa.py_buffer(views.data), pa.py_buffer(out.data)]
    return pa.Array.from_buffers(pa.binary_view(), rows.num_rows, buffers)
