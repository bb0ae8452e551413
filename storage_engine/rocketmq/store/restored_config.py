"""The ``config`` directory that a broker needs beside restored segments, derived from their messages.

Without it a broker rebuilds its queues but serves no topic, and takes whatever it once kept for later
(delayed messages, timers, half messages, unacknowledged pops) for work still to be done: it would deliver all
of it again. With it, those queues count as worked off up to their ends.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.rocketmq.codec import frame
from storage_engine.rocketmq.codec.frame import SCHEDULE_TOPIC

COLUMNS = ("kind", "topic", "queue_id", "queue_offset", "sys_flag")
"""Of ``messages``; all that is needed of a row."""

_TOPICS = "config/topics.json"
_DELAYS = "config/delayOffset.json"
_OFFSETS = ("config/consumerOffset.json", "config/lmqConsumerOffset.json")
"""The broker's enableLmq decides which of the two is read."""
_TIMERS = "config/timercheck"

FILES = (_TOPICS, _DELAYS, *_OFFSETS, _TIMERS)

NO_QUEUES = pa.table(
    {
        "topic": pa.array([], pa.string()),
        "queue_id": pa.array([], pa.int32()),
        "last": pa.array([], pa.int64()),
        "inner_batch": pa.array([], pa.bool_()),
    }
)
"""Result of :func:`queues_of` for no rows."""

_TIMER_TOPIC = "rmq_sys_wheel_timer"
_REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
_LIGHT_QUEUE_PREFIX = "%LMQ%"
_TRANSACTION_TOPICS = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
_TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"

_QUEUES_OF_ITS_OWN = {SCHEDULE_TOPIC: 18}
_REVIVE_QUEUES = 8
"""As many as the broker itself gives these topics (TopicConfigManager#init); fewer would take some away."""

_READ_AND_WRITE = 6
_TIMER_CHECKPOINT_BYTES = 4096
_MAX_INT = (1 << 31) - 1
_MAX_QUEUES = 1 << 16
"""Of a topic, in ``topics.json``: a damaged or hostile message may name any queue, and clients make an object
of each queue of a topic. What lies in queues beyond is in the log, and can be exported."""

_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}
"""Of each file; always the same, so that a restore that is run again writes the same bytes."""
_NEWER_VERSION = {**_VERSION, "counter": 1}
"""A broker takes a file into its RocksDB only if it is newer (RocksDBTopicConfigManager#merge)."""


def queues_of(rows: pa.Table) -> pa.Table:
    """The queues that rows are in: topic, queue_id, last queue_offset, and whether it has inner batches.

    Results of several calls can be put together with :func:`merge_queues`.

    :param rows: with :data:`COLUMNS`.
    """
    # A topic that is no text is none that a broker has or serves, and what was rolled back is in no queue.
    named = pc.and_(pc.equal(rows["kind"], pa.scalar("message")), pc.is_valid(rows["topic"]))
    messages = rows.filter(named)
    ended = pc.bit_wise_and(messages["sys_flag"].cast(pa.int32()), pa.scalar(frame.TRANSACTION_MASK))
    messages = messages.filter(pc.not_equal(ended, pa.scalar(frame.TRANSACTION_ROLLBACK)))
    inner_batch = pc.bit_wise_and(messages["sys_flag"].cast(pa.int32()), pa.scalar(frame.INNER_BATCH))
    return merge_queues(
        pa.Table.from_arrays(
            [
                messages["topic"].cast(pa.string()),
                messages["queue_id"],
                messages["queue_offset"],
                pc.not_equal(inner_batch, pa.scalar(0)),
            ],
            names=NO_QUEUES.column_names,
        )
    )


def merge_queues(queues: pa.Table) -> pa.Table:
    """One row a queue, whatever number of :func:`queues_of` the rows come from."""
    found = queues.group_by(["topic", "queue_id"]).aggregate([("last", "max"), ("inner_batch", "max")])
    ordered = found.select(["topic", "queue_id", "last_max", "inner_batch_max"])
    return ordered.rename_columns(NO_QUEUES.column_names)


def config_files(queues: pa.Table, *, into_rocksdb: bool = False) -> dict[str, bytes]:
    """Files by their path below the store's root, from a result of :func:`merge_queues`.

    :param into_rocksdb: for a broker that keeps in RocksDB what it takes from them.
    """
    version = _NEWER_VERSION if into_rocksdb else _VERSION
    by_topic: dict[str, dict[int, int]] = {}
    batch_topics = set()
    for row in queues.sort_by([("topic", "ascending"), ("queue_id", "ascending")]).to_pylist():
        by_topic.setdefault(row["topic"], {})[row["queue_id"]] = row["last"] + 1
        if row["inner_batch"]:
            batch_topics.add(row["topic"])
    offsets = _json(version, {"offsetTable": _worked_off(by_topic)})
    return {
        _TOPICS: _json(
            version,
            {
                "topicConfigTable": {
                    topic: _topic(topic, max(ends) + 1, topic in batch_topics)
                    for topic, ends in by_topic.items()
                    if not topic.startswith(_LIGHT_QUEUE_PREFIX)
                }
            },
        ),
        # A delay level's number is its queue's plus one (ScheduleMessageService#queueId2DelayLevel).
        _DELAYS: _json(
            version,
            {
                "offsetTable": {
                    queue + 1: end
                    for queue, end in by_topic.get(SCHEDULE_TOPIC, {}).items()
                    if queue < _MAX_INT
                }
            },
        ),
        **dict.fromkeys(_OFFSETS, offsets),
        _TIMERS: _timer_checkpoint(by_topic.get(_TIMER_TOPIC, {}).get(0, 0)),
    }


def _topic(topic: str, queues: int, inner_batch: bool) -> dict[str, Any]:
    """A TopicConfig. The type of queue must be right, or the broker builds the other (QueueTypeUtils)."""
    own = _REVIVE_QUEUES if topic.startswith(_REVIVE_PREFIX) else _QUEUES_OF_ITS_OWN.get(topic, 1)
    number = min(max(queues, own), _MAX_QUEUES)
    return {
        "attributes": {"queue.type": "BatchCQ"} if inner_batch else {},
        "order": False,
        "perm": _READ_AND_WRITE,
        "readQueueNums": number,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": number,
    }


def _worked_off(by_topic: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """Offsets of the groups by which the broker reads its own topics.

    Which, say TransactionalMessageBridge#fetchConsumeOffset and PopReviveService. Where other groups were
    nobody knows: they begin where their clients say.
    """
    return {
        f"{topic}@{_TRANSACTION_GROUP if topic in _TRANSACTION_TOPICS else _REVIVE_GROUP}": ends
        for topic, ends in by_topic.items()
        if topic in _TRANSACTION_TOPICS or topic.startswith(_REVIVE_PREFIX)
    }


def _timer_checkpoint(end: int) -> bytes:
    """TimerCheckpoint: lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset, masterTimerQueueOffset.

    The broker goes on from the lower of the last two (TimerMessageStore#recover).
    """
    return struct.pack(">4q", 0, 0, end, end).ljust(_TIMER_CHECKPOINT_BYTES, b"\0")


def _json(version: dict[str, int], content: dict[str, Any]) -> bytes:
    """Keys that are numbers are quoted, which fastjson reads as it does its own unquoted ones."""
    return json.dumps({"dataVersion": version, **content}, indent=1, ensure_ascii=False).encode()
