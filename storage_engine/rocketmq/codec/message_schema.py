"""Arrow schema of the rows that a commitlog segment becomes."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from storage_engine.model.broker.codec import Columns
from storage_engine.rocketmq.codec import frame_layout as frame

_TIMESTAMP = pa.timestamp("us", tz="UTC")

_FIELDS: list[pa.Field[Any]] = [
    pa.field("physical_offset", pa.int64(), nullable=False),
    pa.field("size", pa.int32(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),
    pa.field("magic", pa.int32()),
    pa.field("topic", pa.string()),
    pa.field("queue_id", pa.int32()),
    pa.field("queue_offset", pa.int64()),
    pa.field("flag", pa.int32()),
    pa.field("sys_flag", pa.int32()),
    pa.field("body_crc", pa.int32()),
    pa.field("born_timestamp", _TIMESTAMP),
    pa.field("store_timestamp", _TIMESTAMP),
    pa.field("born_host", pa.string()),
    pa.field("born_port", pa.int32()),
    pa.field("store_host", pa.string()),
    pa.field("store_port", pa.int32()),
    pa.field("reconsume_times", pa.int32()),
    pa.field("prepared_transaction_offset", pa.int64()),
    pa.field("keys", pa.string()),
    pa.field("tags", pa.string()),
    pa.field("unique_key", pa.string()),
    pa.field("properties", pa.map_(pa.string(), pa.string())),
    pa.field("properties_terminated", pa.bool_()),
    pa.field("body", pa.binary_view()),
    pa.field("raw", pa.binary_view()),
    pa.field("properties_text", pa.string()),
]

SCHEMA = pa.schema(_FIELDS)
"""Columns of a row.

``kind`` is ``message``, ``blank`` (the filler behind a segment's last message) or ``undecodable``. Only
messages have typed columns (but the first row of a blank has the blank's magic). ``properties_text`` is the
block of properties as stored; null if it is empty or no UTF-8. ``body`` is as stored, possibly compressed
(``sys_flag``). Timestamps beyond the years 1 to 9999 are null. If typed columns would not re-encode to a
row's exact bytes, ``raw`` has these bytes. ``body`` and ``raw`` are views of the segment, not copies, so
decoded rows keep the segment in memory. To sort these columns, cast them to pa.binary().

Rows of older lakes have ``properties`` and ``properties_terminated`` (whether a separator follows the last
pair) instead of ``properties_text``: :mod:`storage_engine.rocketmq.codec.property_pairs`.
"""

PAIR_COLUMNS: Final = ("properties", "properties_terminated")
TEXT_COLUMN: Final = "properties_text"

_COMMENTS = {
    "physical_offset": "position of the row's first byte in the commitlog",
    "size": "length in bytes of what the row covers there",
    "kind": "message, blank (the filler at a segment's end) or undecodable",
    "magic": "the frame's magic number, which tells its version",
    "topic": "topic that the message was written to",
    "queue_id": "queue of the topic",
    "queue_offset": "place of the message in its queue",
    "flag": "the producer's own flag",
    "sys_flag": "the client's flags: 1 compressed body, 12 transaction, 128 inner batch",
    "body_crc": "CRC-32 of the body as stored",
    "born_timestamp": "when the producer made the message, by its own clock; null beyond the years 1 to 9999",
    "store_timestamp": "when the broker stored the message",
    "born_host": "address of the producer",
    "born_port": "port of the producer",
    "store_host": "address of the broker",
    "store_port": "port of the broker",
    "reconsume_times": "how often a consumer group has sent it back for another attempt",
    "prepared_transaction_offset": "of a message of a transaction: position of its half message",
    "keys": "the message's keys with blanks between them, as the producer set them",
    "tags": "the message's tag, as the producer set it",
    "unique_key": "id that the client gave the message",
    "properties": "all properties of the message, by name",
    "properties_terminated": "whether a separator follows the last property",
    "body": "body as stored; compressed by the producer where sys_flag & 1",
    "raw": "the exact bytes, where the other columns would not give them back",
    "properties_text": "all properties as stored: name, byte 1, value; byte 2 between two of them",
}


def property_maps(texts: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    from storage_engine.rocketmq.codec.property_pairs import property_maps as maps

    return maps(texts)


def queue_steps(rows: pa.Table) -> pa.ChunkedArray[Any]:
    """Return how many queue offsets each message takes: 0 or 1, and null for an inner batch.

    A message that prepares or rolls back a transaction is in no queue (``CommitLog#doAppend`` of releases
    before 4.3 gives it queue offset 0).
    """
    # Imported here, since the plan of a stopped store doesn't need it.
    import pyarrow.compute as pc

    flags = rows["sys_flag"]
    kinds = pc.bit_wise_and(flags, pa.scalar(frame.TRANSACTION_MASK, pa.int32()))
    outside = pa.array([frame.TRANSACTION_PREPARED, frame.TRANSACTION_ROLLBACK], pa.int32())
    steps = pc.if_else(pc.is_in(kinds, value_set=outside), pa.scalar(0), pa.scalar(1))
    batches = pc.bit_wise_and(flags, pa.scalar(frame.INNER_BATCH, pa.int32()))
    known_steps: pa.ChunkedArray[Any] = pc.if_else(
        pc.equal(batches, pa.scalar(0)), steps, pa.scalar(None, pa.int64())
    )
    return known_steps


KINDS = pa.array(["message", "blank", "undecodable"], pa.string())

COLUMNS = Columns(
    stored_at="store_timestamp",
    filler=frame.FILLER_TOPIC,
    streams=("topic", "queue_id"),
    bounds=("topic", "queue_id", "queue_offset", "born_timestamp", "store_timestamp"),
    file_bounds=("keys", "unique_key"),
    dictionary=(
        "magic",
        "topic",
        "queue_id",
        "flag",
        "sys_flag",
        "born_host",
        "born_port",
        "store_host",
        "store_port",
        "reconsume_times",
        "prepared_transaction_offset",
        "tags",
        "properties.key_value.key",
    ),
    delta=("physical_offset", "queue_offset", "born_timestamp", "store_timestamp", "size"),
    export=(
        "topic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "born_timestamp",
        "store_timestamp",
        "born_host",
        "keys",
        "tags",
        "unique_key",
        "properties",
        "sys_flag",
        "body",
    ),
    keys=("unique_key",),
    key_lists=("keys",),
    views={"properties": (TEXT_COLUMN, property_maps)},
    comments=_COMMENTS,
    offset="queue_offset",
    steps=queue_steps,
    step_columns=("sys_flag",),
    producer="born_host",
)
"""Columns by purpose. Bodies get no minimum and maximum, which would be copies of whole bodies."""
