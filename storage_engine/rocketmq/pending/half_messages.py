"""Half messages whose transactions are undecided: those that no operation message names.

For each queue of RMQ_SYS_TRANS_HALF_TOPIC, from where the broker's own group is on: the half messages, less
the queue offsets in the bodies ("0,1,…,") of RMQ_SYS_TRANS_OP_HALF_TOPIC's messages with the tag "d"
(TransactionalMessageServiceImpl#fillOpRemoveMap). A check writes an undecided one again, at the end of the
queue, and goes on behind the old one. The offsets are behind the broker by up to 5 s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.codec import frame
from storage_engine.rocketmq.codec.store_times import LogFile
from storage_engine.rocketmq.codec.stored_messages import Longs, stored_messages
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.lag.consumer_offsets import consumer_offsets
from storage_engine.rocketmq.pending.pending_queue import entries_from, queue_ids

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATION_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"

_REMOVES = b"d"


def undecided(layout: StoreLayout, log: Sequence[LogFile]) -> Longs:
    """Physical offset of each undecided half message.

    :param log: the commitlog's files, oldest first.
    :raises CorruptFileError: the offsets, a queue or an operation message can't be read as what it is.
    """
    positions = _positions(layout)
    found = [np.empty(0, np.int64)]
    queues = queue_ids(layout.consumequeue / HALF_TOPIC)
    for queue_id in sorted(queues | {queue for topic, queue in positions if topic == HALF_TOPIC}):
        known = (HALF_TOPIC, queue_id) in positions
        halves = entries_from(
            layout.consumequeue / HALF_TOPIC / str(queue_id),
            positions.get((HALF_TOPIC, queue_id), 0),
            layout.config,
        )
        offsets = halves.physical_offset
        undone = ~np.isin(halves.queue_offset, _decided(layout, log, queue_id, positions))
        if not known:
            # Then the broker begins at what is left (TransactionalMessageBridge#fetchConsumeOffset).
            undone &= offsets >= log[0].base_offset
        found.append(offsets[undone])
    return np.concatenate(found)


def _decided(
    layout: StoreLayout, log: Sequence[LogFile], queue_id: int, positions: dict[tuple[str, int], int]
) -> Longs:
    """Queue offsets of the half messages that were committed or rolled back."""
    operations = entries_from(
        layout.consumequeue / OPERATION_TOPIC / str(queue_id),
        positions.get((OPERATION_TOPIC, queue_id), 0),
        layout.config,
    )
    offsets = operations.physical_offset
    # A half message lies before the operation that decides it: what is gone names only what is gone.
    there = offsets[offsets >= log[0].base_offset]
    bodies = [
        message.body
        for message in stored_messages(log, there)
        if message.property(frame.PROPERTY_TAGS) == _REMOVES
    ]
    numbers = [number for number in b",".join(bodies).split(b",") if number]
    try:
        return np.array(numbers, dtype="S").astype(np.int64)
    except (ValueError, OverflowError) as error:
        raise CorruptFileError(
            f"{layout.consumequeue / OPERATION_TOPIC / str(queue_id)}: expected messages whose bodies are "
            f"queue offsets and commas, found another ({error}). Compare the store with a replica."
        ) from error


def _positions(layout: StoreLayout) -> dict[tuple[str, int], int]:
    """The next queue offset of the broker's own group, by topic and queue."""
    table = consumer_offsets(layout)
    rows = table.filter(pc.equal(table["group"], pa.scalar(GROUP))).to_pylist()
    return {(row["topic"], row["queue_id"]): row["committed_offset"] for row in rows}
