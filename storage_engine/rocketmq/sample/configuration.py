"""Configuration of a sample store: what its broker has in ``config``, and its broker.conf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_engine.rocketmq.codec.frame import SCHEDULE_TOPIC
from storage_engine.rocketmq.pending.half_messages import HALF_TOPIC, OPERATION_TOPIC
from storage_engine.rocketmq.store.restored_config import NO_QUEUES, config_files

_GROUPS = (("billing", 0.0), ("search", 0.001), ("reports", 0.4))
"""Consumer groups of a topic, and which share of its messages each still has to read."""
_LAGGING_SHARE = 0.1
_EVERY_SECOND = 2
_OWN_TOPICS = (SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC)
_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 0}

Ends = Mapping[tuple[str, int], int]
Offsets = dict[str, dict[int, int]]


def settings(root: Path, segment_bytes: int) -> dict[str, str]:
    """Return what the broker of a sample store is set to: small files, so that there are many."""
    entries = 15_000
    return {
        "storePathRootDir": str(root),
        "storePathCommitLog": str(root / "commitlog"),
        "mappedFileSizeCommitLog": str(segment_bytes),
        "mappedFileSizeConsumeQueue": str(20 * entries),
        "maxHashSlotNum": "50000",
        "maxIndexNum": "200000",
    }


def broker_conf(values: Mapping[str, str]) -> bytes:
    """Return settings as a broker reads them."""
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def group_offsets(ends: Ends) -> tuple[Offsets, int]:
    """Return how far each consumer group has read, and how many groups are far behind.

    :param ends: of queues, by topic and queue id.
    """
    offsets: Offsets = {}
    lagging = 0
    topics = sorted({topic for topic, _ in ends} - set(_OWN_TOPICS))
    for number, topic in enumerate(topics):
        for group, unread in _GROUPS:
            if unread > _LAGGING_SHARE:
                if number % _EVERY_SECOND:
                    continue
                lagging += 1
            queues = {queue: end for (name, queue), end in sorted(ends.items()) if name == topic}
            offsets[f"{topic}@{topic}_{group}"] = {
                queue: end - int(end * unread) for queue, end in queues.items()
            }
    return offsets, lagging


def files(ends: Ends, delivered: list[int], offsets: Offsets) -> dict[str, bytes]:
    """Return the files of ``config`` by their path below the store's root.

    :param delivered: by delay level less one, how many messages of it were delivered.
    :param offsets: of all groups, the broker's own too.
    """
    rows = sorted((topic, queue, end - 1, False) for (topic, queue), end in ends.items())
    columns = zip(*rows, strict=True)
    queues = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, NO_QUEUES.schema, strict=True)],
        schema=NO_QUEUES.schema,
    )
    groups = sorted({name.partition("@")[2] for name in offsets})
    levels = {level + 1: count for level, count in enumerate(delivered) if (SCHEDULE_TOPIC, level) in ends}
    return {
        **config_files(queues),
        # Which of the two is read is the broker's enableLmq.
        "config/consumerOffset.json": _json({"offsetTable": offsets}),
        "config/lmqConsumerOffset.json": _json({"offsetTable": offsets}),
        "config/delayOffset.json": _json({"offsetTable": levels}),
        "config/subscriptionGroup.json": _json(
            {"subscriptionGroupTable": {group: _group(group) for group in groups}, "forbiddenTable": {}}
        ),
    }


def _group(name: str) -> dict[str, Any]:
    """Return a SubscriptionGroupConfig; what isn't said is the broker's default."""
    return {
        "groupName": name,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps({"dataVersion": _VERSION, **content}, indent=1).encode()
