"""What consumers have not read of the records below some offsets of a node's logs. Pure but for what
positions of records tell of their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_engine.kafka.lag import LagContext, find
from storage_engine.kafka.positions import Consumers
from storage_engine.model.lag import Unread, UnreadMessages


@dataclass(slots=True)
class _OfGroup:
    """Of the partitions of a topic in which a group's position is known, or of those in which it isn't.

    :param messages: None: it isn't known.
    :param from_ms: when the first one was written; None: it can't be told.
    """

    messages: int | None = None
    partitions: int = 0
    from_ms: int | None = None


def unread_records(
    consumers: Consumers, context: LagContext, new_min_offsets: Mapping[str, int], *, deleted: bool
) -> Unread:
    """Sum up by group and topic what is not read below offsets where logs are to begin.

    :param context: of these logs.
    :param deleted: it is gone already: no log is looked into for when the first one was written.
    """
    found: dict[tuple[str, str, bool], _OfGroup] = {}
    for (group, topic, number), committed in consumers.committed.items():
        name = f"{topic}-{number}"
        log, end = context.logs.get(name), new_min_offsets.get(name)
        if log is None or end is None:
            continue
        first = 0 if deleted else log.begin
        if committed is not None:
            first = max(committed, first)
        if first >= end:
            continue
        # Where its position isn't known it may need all: no sum of other partitions hides that.
        one = found.setdefault((group, topic, committed is not None), _OfGroup())
        one.partitions += 1
        if committed is not None:
            one.messages = (one.messages or 0) + end - first
        place = None if deleted else find(log, first)
        if place is not None and place.timestamp_ms is not None:
            one.from_ms = min(place.timestamp_ms, one.from_ms or place.timestamp_ms)
    rows = [
        UnreadMessages(group, topic, one.messages, one.partitions, one.from_ms)
        for (group, topic, _), one in found.items()
    ]
    rows.sort(key=lambda row: (row.messages is None, -(row.messages or 0), row.group, row.topic))
    return Unread(tuple(rows), notices=consumers.source.notices, logs=consumers.logs)
