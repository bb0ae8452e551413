"""Bytes of each topic and day, by the segments that were archived; each runs in the transaction of its
caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, cast, delete, func, insert, select

from storage_engine.journal.tables.schema import topic_days
from storage_engine.model.store.topic_days import TopicDay

Slot = tuple[str, int]
"""Log and base offset of a segment."""


class SlotTopic(NamedTuple):
    """What a segment has of one topic; of topic "" are several that have no row of their own.

    :param newest_day: UTC day of its newest message, counted from 1970-01-01.
    """

    topic: str
    newest_day: int
    size_bytes: int


def put_topic_days(connection: Connection, store_id: str, found: Mapping[Slot, Sequence[TopicDay]]) -> None:
    """Put what segments hold in the place of what is recorded of them."""
    rows: list[dict[str, Any]] = []
    for (log, base_offset), held in found.items():
        mine = {"store_id": store_id, "log": log, "base_offset": base_offset}
        connection.execute(delete(topic_days).filter_by(**mine))
        rows += [
            {**mine, "topic": one.topic, "day": one.day, "bytes": one.size_bytes, "messages": one.messages}
            for one in held
        ]
    if rows:
        connection.execute(insert(topic_days), rows)


def read_topic_days(
    connection: Connection, store_id: str, start_day: int, end_day: int, limit: int
) -> tuple[TopicDay, ...]:
    """Return what a store's archived segments hold of each topic and day, the largest first."""
    size_bytes = func.sum(topic_days.c.bytes)
    query = (
        select(
            topic_days.c.topic,
            topic_days.c.day,
            # PostgreSQL sums whole numbers to decimals.
            cast(size_bytes, BigInteger).label("size_bytes"),
            cast(func.sum(topic_days.c.messages), BigInteger).label("messages"),
        )
        .where(topic_days.c.store_id == store_id)
        .where(topic_days.c.day >= start_day, topic_days.c.day < end_day)
        .group_by(topic_days.c.day, topic_days.c.topic)
        .order_by(size_bytes.desc(), topic_days.c.day, topic_days.c.topic)
        .limit(limit)
    )
    return tuple(TopicDay(**row._mapping) for row in connection.execute(query))


def read_archived_topics(connection: Connection, store_id: str) -> dict[Slot, list[SlotTopic]]:
    """Return by segment which topics a store's archived segments have."""
    columns = (topic_days.c.log, topic_days.c.base_offset, topic_days.c.topic)
    query = (
        select(
            *columns,
            func.max(topic_days.c.day).label("day"),
            cast(func.sum(topic_days.c.bytes), BigInteger).label("bytes"),
        )
        .where(topic_days.c.store_id == store_id)
        .group_by(*columns)
    )
    topics: dict[Slot, list[SlotTopic]] = {}
    for row in connection.execute(query):
        topics.setdefault((row.log, row.base_offset), []).append(SlotTopic(row.topic, row.day, row.bytes))
    return topics
