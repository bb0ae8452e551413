"""What consumers have not read of the records below some offsets of a node's logs. Pure but for what
positions of records tell of their time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage_engine.kafka.lag.lag import LagContext, find_all
from storage_engine.kafka.lag.positions import Consumers, Place
from storage_engine.model.lag.lag import Unread, UnreadMessages

_UnreadPlace = tuple[Place, bool, str, int]
"""Where a group loses records: its place, whether its position there is known, the log, and from where on."""


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
    unread = _unread_from(consumers, context, new_min_offsets, deleted=deleted)
    return _summed(unread, consumers, context, new_min_offsets, deleted=deleted)


def unread_by_log(
    consumers: Consumers, context: LagContext, new_min_offsets: Mapping[str, int]
) -> dict[str, Unread]:
    """Sum up the same for each log alone."""
    of_logs: dict[str, list[_UnreadPlace]] = {log: [] for log in new_min_offsets}
    for unread in _unread_from(consumers, context, new_min_offsets, deleted=False):
        of_logs[unread[2]].append(unread)
    return {
        log: _summed(of_log, consumers, context, new_min_offsets, deleted=False)
        for log, of_log in of_logs.items()
    }


def _summed(
    unread: Sequence[_UnreadPlace],
    consumers: Consumers,
    context: LagContext,
    new_min_offsets: Mapping[str, int],
    *,
    deleted: bool,
) -> Unread:
    places = {} if deleted else find_all(context, ((name, first) for _, _, name, first in unread))
    sums: dict[tuple[str, str, bool], _OfGroup] = {}
    for (group, topic, _), is_known, name, first in unread:
        # Where its position isn't known it may need all: no sum of other partitions hides that.
        key = group, topic, is_known
        row = sums.get(key)
        if row is None:
            row = sums[key] = _OfGroup()
        row.partitions += 1
        if is_known:
            row.messages = (row.messages or 0) + new_min_offsets[name] - first
        place = places.get((name, first))
        if place is not None and place.timestamp_ms is not None:
            row.from_ms = min(place.timestamp_ms, row.from_ms or place.timestamp_ms)
    rows = [
        UnreadMessages(group, topic, row.messages, row.partitions, row.from_ms)
        for (group, topic, _), row in sums.items()
    ]
    rows.sort(key=lambda row: (row.messages is None, -(row.messages or 0), row.group, row.topic))
    return Unread(tuple(rows), notices=consumers.source.notices, logs=consumers.logs)


def _unread_from(
    consumers: Consumers, context: LagContext, new_min_offsets: Mapping[str, int], *, deleted: bool
) -> list[_UnreadPlace]:
    """Return groups' places that lose records."""
    logs: dict[tuple[str, int], str] = {}
    unread: list[_UnreadPlace] = []
    for position, committed in consumers.committed.items():
        key = position[1:]
        name = logs.get(key)
        if name is None:
            name = logs[key] = f"{key[0]}-{key[1]}"
        log, end = context.logs.get(name), new_min_offsets.get(name)
        if log is None or end is None:
            continue
        first = 0 if deleted else log.begin
        if committed is not None:
            first = max(committed, first)
        if first < end:
            unread.append((position, committed is not None, name, first))
    return unread
