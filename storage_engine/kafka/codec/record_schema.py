"""Arrow schema of the rows into which a log's segment is decoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from storage_engine.kafka.format.partition_metadata import topic_of
from storage_engine.model.broker.codec import Columns

HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])

_FIELDS: list[pa.Field[Any]] = [
    pa.field("physical_offset", pa.int64(), nullable=False),
    pa.field("size", pa.int32(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("key", pa.binary_view()),
    pa.field("value", pa.binary_view()),
    pa.field("headers", pa.list_(HEADER)),
    pa.field("producer_id", pa.int64()),
    pa.field("producer_epoch", pa.int32()),
    pa.field("transactional", pa.bool_()),
    pa.field("control", pa.string()),
    pa.field("leader_epoch", pa.int32()),
    pa.field("base_offset", pa.int64()),
    pa.field("base_timestamp", pa.int64()),
    pa.field("timestamp_delta", pa.int64()),
    pa.field("attributes", pa.int32()),
    pa.field("record_attributes", pa.int32()),
    pa.field("last_offset_delta", pa.int32()),
    pa.field("max_timestamp", pa.int64()),
    pa.field("base_sequence", pa.int32()),
    pa.field("record_count", pa.int32()),
    pa.field("batch_size", pa.int32()),
    pa.field("crc", pa.int32()),
    pa.field("raw", pa.binary_view()),
]

_CONTEXT_FIELDS: list[pa.Field[Any]] = [
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("state", pa.string()),
]

FILE_SCHEMA = pa.schema(_FIELDS)
"""The columns that can be filled from a segment's bytes alone."""

SCHEMA = pa.schema([*_FIELDS[:3], *_CONTEXT_FIELDS, *_FIELDS[3:]])
"""Columns of a row.

``kind`` is ``batch`` (a batch's header, which comes before its records), ``message``, ``control`` (a marker),
``legacy`` (a message of format 0 or 1, with any messages inside) or ``undecodable``. Rows of size > 0 cover
the segment. A record of a compressed batch owns no bytes: its size is 0, and its ``physical_offset`` is the
batch's.

``topic``, ``partition`` and ``state`` come from the segment's context, and have no value without one. A
message outside of any transaction is ``committed``. A reader with ``read_committed`` gets exactly the
``committed`` messages.

``timestamp`` is null if the record has no timestamp, or one outside the years 1 to 9999. In ``headers`` a
name may occur several times. Only batches have the columns ``last_offset_delta`` to ``crc``. Compressed
batches always have ``raw``. ``key``, ``value`` and ``raw`` are no copies: decoded rows keep the segment's
bytes in memory.
"""

_COMMENTS = {
    "physical_offset": "position in the segment of the row's first byte, or of its compressed batch",
    "size": "length in bytes of what the row covers there; 0: a record inside a compressed batch",
    "kind": "message, control (a marker), batch (a batch's header), legacy or undecodable",
    "topic": "topic of the log",
    "partition": "partition of the topic",
    "state": "what became of its transaction by the time it was archived: committed, aborted or open",
    "offset": "offset of the record in its partition",
    "timestamp": "when it was sent, or with LogAppendTime stored; null: it has none",
    "key": "key of the record as stored",
    "value": "value of the record as stored; null: a tombstone",
    "headers": "headers of the record in their order",
    "producer_id": "id of the producer; -1: it has none",
    "producer_epoch": "epoch of the producer",
    "transactional": "whether the record belongs to a transaction",
    "control": "kind of the marker, such as commit",
    "leader_epoch": "epoch of the leader that appended the batch",
    "base_offset": "first offset of its batch",
    "base_timestamp": "first timestamp of its batch, in milliseconds since the epoch",
    "timestamp_delta": "the record's own delta, where timestamp isn't base_timestamp and that delta",
    "attributes": "attributes of its batch: compression, kind of timestamp, transaction, control",
    "record_attributes": "attributes of the record, which no release of Kafka uses",
    "last_offset_delta": "of a batch: its last offset, less its first",
    "max_timestamp": "of a batch: its largest timestamp, in milliseconds since the epoch",
    "base_sequence": "of a batch: sequence number of its first record",
    "record_count": "of a batch: number of its records",
    "batch_size": "of a batch: its length field",
    "crc": "of a batch: its CRC-32C",
    "raw": "the exact bytes, where the other columns would not give them back",
}


def text_array(*texts: str) -> pa.Array[Any]:
    """Make a column of texts without ``pa.array``, which imports pandas if installed, and so takes long."""
    data = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(data), [None, pa.py_buffer(ends.data), pa.py_buffer(b"".join(data))]
    )


CONTROL_TYPES = text_array(
    "abort",
    "commit",
    "leader-change",
    "snapshot-header",
    "snapshot-footer",
    "kraft-version",
    "kraft-voters",
    "unknown",
)
"""Kinds of markers by their number (ControlRecordType). The last kind stands for all other numbers."""


def record_steps(rows: pa.Table) -> pa.ChunkedArray[Any]:
    """Return the distance in offsets from each row to the next: 0 for a batch's header, which is no record.

    The distance is null (unknown) for other rows, because a cleaner may have removed the next record.

    :param rows: with the column ``kind``.
    """
    # Plans of a stopped node need no computing.
    import pyarrow.compute as pc

    is_header = pc.equal(rows["kind"], pa.scalar("batch"))
    steps: pa.ChunkedArray[Any] = pc.if_else(is_header, pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))
    return steps


COLUMNS = Columns(
    stored_at="timestamp",
    streams=("topic", "partition"),
    bounds=("topic", "partition", "offset", "timestamp", "producer_id"),
    file_bounds=("base_offset",),
    dictionary=(
        "topic",
        "partition",
        "state",
        "key",
        "value",
        "producer_id",
        "producer_epoch",
        "control",
        "leader_epoch",
        "attributes",
        "record_attributes",
        "headers.list.element.key",
    ),
    delta=("physical_offset", "size", "offset", "timestamp", "base_offset", "base_timestamp"),
    not_of_raw=("key", "value", "headers"),
    export=(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "state",
        "producer_id",
        "transactional",
        "headers",
        "key",
        "value",
    ),
    keys=("key",),
    topic_id_of=topic_of,
    log_offsets=("offset", "base_offset"),
    comments=_COMMENTS,
    offset="offset",
    steps=record_steps,
    step_columns=("kind",),
)
"""The columns' purposes. Keys and values have no bounds, because a bound is a copy of a value. Many records
repeat the same keys and values, so both have a dictionary. If they don't repeat, the writer drops the
dictionary after a MiB."""
