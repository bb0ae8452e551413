"""Which group reads which queue, as far as the broker's files tell. Reads config and directory names only.

A broker knows the topics of a group that has committed an offset, and little of one that has not: its retry
topic, and its SQL filters. Consumers that keep their offsets themselves (broadcasting) are not known at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_engine.rocketmq import config_files
from storage_engine.rocketmq.layout import StoreLayout

RETRY_TOPIC_PREFIX = "%RETRY%"

_COLUMNS: list[pa.Field[Any]] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("queue_id", pa.int32(), nullable=False),
    pa.field("group", pa.string(), nullable=False),
    pa.field("committed_offset", pa.int64()),
]
POSITIONS_SCHEMA = pa.schema(_COLUMNS)


def group_positions(layout: StoreLayout) -> pa.Table:
    """One row for each group and queue, rows of one queue together.

    ``committed_offset`` is null where a group that reads the topic has none: unknown, not zero. A group
    that is known by nothing but its name is there with queue 0 of its retry topic.

    :raises CorruptFileError: a config file that can't be read as what it is.
    """
    committed = config_files.consumer_offsets(layout)
    rows: list[tuple[str, int, str, int | None]] = [
        (it.topic, it.queue_id, it.group, it.offset) for it in committed
    ]
    queues_read: dict[tuple[str, str], set[int]] = defaultdict(set)
    for it in committed:
        queues_read[it.group, it.topic].add(it.queue_id)
    known = {group for group, _ in queues_read}
    for group, topic in config_files.filtered_subscriptions(layout):
        queues_read.setdefault((group, topic), set())
    topics = {topic.topic for topic in config_files.topics(layout)}
    for group in known.union(config_files.groups(layout)):
        retry = RETRY_TOPIC_PREFIX + group
        if retry in topics and (group not in known or _has_queues(layout, retry)):
            queues_read.setdefault((group, retry), set())
    on_disk = {topic: set(_queue_ids(layout, topic)) for _, topic in queues_read}
    for (group, topic), with_offset in queues_read.items():
        missing = on_disk[topic] - with_offset
        if group not in known and not missing:
            missing = {0}
        rows += [(topic, queue_id, group, None) for queue_id in missing]
    rows.sort(key=lambda row: row[:3])
    columns = list(zip(*rows, strict=True)) or [()] * len(_COLUMNS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _COLUMNS, strict=True)]
    return pa.table(arrays, schema=POSITIONS_SCHEMA)


def queue_directories(layout: StoreLayout, topic: str) -> tuple[Path, Path]:
    """Where a topic's consume queues are, and its batch consume queues if it has those instead."""
    return layout.consumequeue / topic, layout.batchconsumequeue / topic


def _has_queues(layout: StoreLayout, topic: str) -> bool:
    return next(_queue_ids(layout, topic), None) is not None


def _queue_ids(layout: StoreLayout, topic: str) -> Iterator[int]:
    for directory in queue_directories(layout, topic):
        try:
            names = [path.name for path in directory.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield from (int(name) for name in names if name.isascii() and name.isdecimal())
