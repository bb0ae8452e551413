"""Whether a log's leader has the very records that a node's files have: one batch tells, by offset and epoch.

A leader numbers its batches with its epoch, and each replica takes them in order from one leader at a time.
So two logs with a batch of one epoch at one offset are the same up to there. Leaders without those records,
as after an unclean election, have another epoch there, or nothing.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.format import batch_header as header
from storage_engine.kafka.format.batch_walk import batch_heads, opened
from storage_engine.kafka.format.layout import SegmentFiles

_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.5
_EPOCH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Witness:
    """A batch of a log that isn't a marker's.

    :param offset: of its last record.
    :param epoch: of the leader that took it.
    """

    offset: int
    epoch: int


def find_witness(segments: Sequence[SegmentFiles], boundary: int, high_watermark: int) -> Witness | None:
    """Return the first batch that ends at or behind a boundary and can be read from the leader; None: there
    is none.

    :param segments: of a log, from the one that ends at the boundary on.
    :raises OSError: a file can't be read.
    """
    for segment in segments:
        with opened(segment.log.path) as descriptor:
            begin = 0
            for head in batch_heads(descriptor, 0):
                at, begin = begin, head.end_position
                if head.last_offset < boundary - 1 or head.attributes & header.CONTROL:
                    continue
                if head.last_offset >= high_watermark:
                    return None
                (epoch,) = _EPOCH.unpack(os.pread(descriptor, _EPOCH.size, at + header.LEADER_EPOCH_AT))
                return Witness(head.last_offset, epoch)
    return None


def other_than(
    cluster: Cluster, witnesses: Mapping[tuple[str, int], Witness], meanwhile: Callable[[], object]
) -> Mapping[tuple[str, int], str]:
    """Ask leaders for records, and return why logs aren't known to be the same, by topic and partition.

    Nothing is committed, and no group is joined.

    :param meanwhile: called now and then while it waits.
    """
    from confluent_kafka import Consumer, TopicPartition

    why = dict.fromkeys(witnesses, f"its leader gave no record in {_SECONDS:.0f} s")
    if not witnesses:
        return why
    consumer = Consumer(cluster.consumer_settings())
    ends = time.monotonic() + _SECONDS
    left = dict(witnesses)
    try:
        consumer.assign([TopicPartition(*key, one.offset) for key, one in witnesses.items()])
        while left and time.monotonic() < ends:
            meanwhile()
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            if (error := message.error()) is not None:
                said = cluster.shown(error.str())
                for key in _about(message.topic(), message.partition(), left):
                    why[key] = f"its leader gives no record of offset {left.pop(key).offset}: {said}"
                continue
            key = (str(message.topic()), int(message.partition() or 0))
            witness = left.pop(key, None)
            if witness is None:
                continue
            found = Witness(int(message.offset() or 0), _epoch_of(message.leader_epoch()))
            if found == witness:
                del why[key]
            else:
                why[key] = (
                    f"its leader has at offset {found.offset} a record of epoch {found.epoch}, and the file "
                    f"one of epoch {witness.epoch} at {witness.offset}: another leader took other records"
                )
    finally:
        consumer.close()
    return why


def _about(
    topic: str | None, partition: int | None, left: Mapping[tuple[str, int], Witness]
) -> list[tuple[str, int]]:
    """Return which logs an error is about; of a topic as a whole it names no partition."""
    whole = partition is None or partition < 0
    return [key for key in left if key[0] == topic and (whole or key[1] == partition)]


def _epoch_of(found: int | None) -> int:
    return -1 if found is None else found
