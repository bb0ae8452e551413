"""Consumer groups' lag in a node's logs, in offsets, bytes and time.

A group's next offset is looked up in its log: in the offset index, in the batch headers after the index
entry, and in the batch that contains the offset. Offsets are counted as Kafka's own tools do, including
markers and records that the cleaner has removed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from storage_engine.arrow.name_columns import ANYWHERE, PLACES_SCHEMA, POSITIONS_SCHEMA, segments_table
from storage_engine.core.wording import count_text
from storage_engine.kafka.format.batch_headers import BatchHead, batch_heads, opened, position_before
from storage_engine.kafka.format.layout import Node
from storage_engine.kafka.metadata.consumer_offsets import TOPIC, read_consumer_offsets
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.model.lag import LagSource, PositionsFrom, Unread, UnreadMessages
from storage_engine.model.report.diagnosis import named_in_short

if TYPE_CHECKING:
    from storage_engine.kafka.cluster.client import Cluster


Place = tuple[str, str, int]
"""Group, topic and partition."""
# The stubs of pyarrow.compute accept no text beside a column.
pc: Any = pyarrow.compute

_MAX_DECODED_BYTES = 64 << 20
"""A larger batch isn't decoded: its newest timestamp counts for all of its records."""
_BYTES_PER_DECODE = 8 << 20
"""Bytes of batches, from any logs, that one call decodes. One call costs as much as hundreds of batches."""
_UnreadPlace = tuple[Place, bool, str, int]
"""Where a group loses records: group and partition, whether its position is known, log, first lost offset."""


@dataclass(frozen=True, slots=True)
class Consumers:
    """Consumer groups that read a node's logs, and how far they have read.

    :param committed: next offset by group, topic and partition; None if the group reads the partition and
        its position isn't known.
    :param logs: names of the logs whose consumers are all known. None means all of the node's logs.
    """

    committed: Mapping[Place, int | None]
    source: LagSource
    logs: tuple[str, ...] | None = None

    @property
    def table(self) -> pa.Table:
        """Return a row for each group in each partition that it reads, by topic, partition and group."""
        order = sorted(self.committed.items(), key=lambda item: (item[0][1], item[0][2], item[0][0]))
        rows = [
            {"topic": topic, "queue_id": number, "group": group, "committed_offset": offset}
            for (group, topic, number), offset in order
        ]
        return pa.Table.from_pylist(rows, schema=POSITIONS_SCHEMA)


def consumers_of(node: Node, cluster: Cluster | None) -> Consumers:
    """Return the consumers of a node's logs.

    :param cluster: the running cluster. If None, the consumer offsets on the node's disk are read.
    :raises BrokerError: the cluster can't be asked.
    :raises CorruptFileError: the cluster's metadata can't be read.
    """
    partitions: dict[str, list[int]] = {}
    for _, log in node.logs:
        if not log.name.is_internal:
            partitions.setdefault(log.name.topic, []).append(log.name.partition)
    if cluster is None:
        return _read_consumers(node, partitions)
    from storage_engine.kafka.cluster.consumers import group_positions

    positions = group_positions(cluster, partitions)
    source = LagSource(PositionsFrom.BROKER, None, positions.notices)
    unseen = positions.unseen_topics
    logs: tuple[str, ...] | None = None if positions.all_groups else ()
    if positions.all_groups and unseen:
        logs = tuple(log.name.log for _, log in node.logs if log.name.topic not in unseen)
    return Consumers(_with_all_partitions(positions.committed, partitions), source, logs)


def _read_consumers(node: Node, partitions: Mapping[str, list[int]]) -> Consumers:
    logs = [(directory, log) for directory, log in node.logs if log.name.topic == TOPIC]
    positions = read_consumer_offsets(logs, may_be_torn=node.left_uncleanly)
    here = {log.name.partition for _, log in logs}
    everywhere = read_topic_settings(node).metadata.partitions_of(TOPIC)
    notices = [*positions.unknown]
    if not everywhere and not here:
        notices.append(f"no partition of {TOPIC} is on this node, so which groups read isn't known")
    elif not everywhere:
        notices.append(
            f"of {TOPIC} this node has {count_text(len(here), 'partition')}; how many there are isn't known"
        )
    elif missing := everywhere - here:
        notices.append(
            f"groups of {count_text(len(missing), 'partition')} of {TOPIC} aren't known: this node has "
            f"{len(here)} of {len(everywhere)}"
        )
    silent = sorted(positions.groups - {group for group, _, _ in positions.offsets})
    if silent:
        notices.append(f"what groups without any offset read isn't known: {named_in_short(silent)}")
    source = LagSource(PositionsFrom.FILES, None, tuple(notices))
    all_known = bool(everywhere) and everywhere <= here and not (silent or positions.unknown)
    committed: dict[Place, int | None] = {
        place: offset for place, offset in positions.offsets.items() if place[1] in partitions
    }
    return Consumers(_with_all_partitions(committed, partitions), source, None if all_known else ())


def _with_all_partitions(
    committed: Mapping[Place, int | None], partitions: Mapping[str, list[int]]
) -> dict[Place, int | None]:
    """Return each group's position in every partition that this node has of the group's topics.

    A group with a position in one partition of a topic is expected to read the whole topic. In a partition
    in which the group has no position, the result is None.
    """
    reads = {(group, topic) for group, topic, _ in committed}
    return {
        (group, topic, number): committed.get((group, topic, number))
        for group, topic in reads
        for number in partitions.get(topic, ())
    }


@dataclass(frozen=True, slots=True)
class SegmentOfLag:
    """A segment that groups read.

    :param going: the plan deletes the segment. Lag is computed for this plan.
    :param time_to_loss_ms: time until the segment's age alone allows its deletion; None if never, or not
        known.
    """

    base_offset: int
    path: str
    index_path: str | None
    size_bytes: int
    going: bool
    time_to_loss_ms: int | None


@dataclass(frozen=True, slots=True)
class LogOfLag:
    """A log that groups read.

    :param begin: first offset that can be read.
    :param end: offset after the last record that can be read.
    :param is_end_known: its last segment can be read. Otherwise the log ends at ``end`` or later.
    """

    name: str
    begin: int
    end: int
    newest_ms: int | None
    segments: tuple[SegmentOfLag, ...]
    is_end_known: bool = True


@dataclass(frozen=True, slots=True)
class LagContext:
    """The logs that lag is measured in, by name. Picklable."""

    logs: Mapping[str, LogOfLag] = field(default_factory=dict)

    @property
    def segments_table(self) -> pa.Table:
        """Return a row for each segment: whether the plan deletes it, and the ms until age allows that."""
        return segments_table(
            (log.name, segment.base_offset, segment.going, segment.time_to_loss_ms)
            for log in self.logs.values()
            for segment in log.segments
        )


@dataclass(frozen=True, slots=True)
class OffsetPlace:
    """The place of an offset in its log.

    :param segment: the segment with the record at the offset. If the cleaner has removed this record, the
        segment with the next record.
    :param bytes_from_there: the log's size from the offset's batch to the end.
    """

    segment: SegmentOfLag
    bytes_from_there: int
    timestamp_ms: int | None


def place_positions(context: LagContext, positions: pa.Table | pa.RecordBatch) -> pa.Table:
    """Find the position of each row's lag in the logs.

    If a group's next records are deleted, it continues at the log's start. The lag of a group without a
    committed offset is unknown: it may need the log's oldest record.

    :param positions: rows of :data:`~storage_engine.arrow.name_columns.POSITIONS_SCHEMA`.
    :return: rows of :data:`~storage_engine.arrow.name_columns.PLACES_SCHEMA`, in the order of ``positions``.
    """
    rows = [
        (log, row, max(row["committed_offset"] or 0, log.begin))
        for row in positions.to_pylist()
        if (log := context.logs.get(f"{row['topic']}-{row['queue_id']}")) is not None
    ]
    places = find_all(context, ((log.name, offset) for log, _, offset in rows if offset < log.end))
    return pa.Table.from_pylist(
        [_row(log, row, offset, places.get((log.name, offset))) for log, row, offset in rows],
        schema=PLACES_SCHEMA,
    )


def _row(
    log: LogOfLag, position: Mapping[str, Any], following: int, place: OffsetPlace | None
) -> dict[str, Any]:
    committed = position["committed_offset"]
    is_known = committed is not None
    behind = following < log.end or not log.is_end_known
    lag_ms = 0 if is_known and not behind else None
    if is_known and place is not None and place.timestamp_ms is not None and log.newest_ms is not None:
        lag_ms = max(log.newest_ms - place.timestamp_ms, 0)
    located = place if is_known else None
    anywhere = ANYWHERE if is_known and behind else None
    return {
        "group": position["group"],
        "topic": position["topic"],
        "queue_id": position["queue_id"],
        "committed_offset": committed,
        "min_offset": log.begin,
        "max_offset": log.end,
        "lag_messages": max(log.end - committed, 0) if is_known and log.is_end_known else None,
        "lag_ms": lag_ms,
        "next_physical_offset": following if located else None,
        "next_segment_base_offset": place.segment.base_offset if place else anywhere,
        "lost_messages": max(log.begin - committed, 0) if is_known else 0,
        "log": log.name,
        "lag_bytes": located.bytes_from_there if located else 0 if is_known and not behind else None,
    }


@dataclass(frozen=True, slots=True)
class _Batch:
    """The batch that contains an offset, or else the first batch after it.

    :param position: position of the batch's first byte in the segment. ``end_position`` is after its last
        byte.
    :param is_decoded: it must be decoded to find the time of the record at the offset.
    """

    path: str
    position: int
    end_position: int
    is_decoded: bool


def find_all(context: LagContext, offsets: Iterable[tuple[str, int]]) -> dict[tuple[str, int], OffsetPlace]:
    """Find the places of offsets in their logs. Each distinct offset is looked up once.

    :param offsets: names of logs, each with an offset.
    :return: the places. An offset is left out if its log has no record from this offset on, or if its segment
        can't be read.
    """
    places: dict[tuple[str, int], OffsetPlace] = {}
    batches: dict[_Batch, list[tuple[str, int]]] = {}
    for key in dict.fromkeys(offsets):
        name, offset = key
        located = _locate(context.logs[name], offset)
        if located is not None:
            places[key], batch = located
            if batch.is_decoded:
                batches.setdefault(batch, []).append(key)
    for load in _loads(sorted(batches, key=lambda batch: (batch.path, batch.position))):
        for key, timestamp_ms in _record_times(load, batches).items():
            places[key] = replace(places[key], timestamp_ms=timestamp_ms)
    return places


def _locate(log: LogOfLag, offset: int) -> tuple[OffsetPlace, _Batch] | None:
    """Return the place of an offset, with its batch. The place has the batch's newest timestamp."""
    bases = [segment.base_offset for segment in log.segments]
    first = max(bisect_right(bases, offset) - 1, 0)
    for number in range(first, len(log.segments)):
        segment = log.segments[number]
        try:
            batch = _locate_in(segment, offset)
        except OSError:
            return None
        if batch is not None:
            position, head = batch
            rest = sum(later.size_bytes for later in log.segments[number + 1 :])
            is_decoded = (
                head.base_offset < head.last_offset and head.end_position - position <= _MAX_DECODED_BYTES
            )
            return (
                OffsetPlace(
                    segment,
                    max(segment.size_bytes - position, 0) + rest,
                    head.newest_ms if head.newest_ms >= 0 else None,
                ),
                _Batch(segment.path, position, head.end_position, is_decoded),
            )
    return None


def _locate_in(segment: SegmentOfLag, offset: int) -> tuple[int, BatchHead] | None:
    """Return the position and head of the batch that contains the offset, or of the first batch after it."""
    with opened(segment.path) as descriptor:
        position = position_before(segment.index_path, segment.base_offset, offset)
        for head in batch_heads(descriptor, position):
            if head.last_offset >= offset:
                return position, head
            position = head.end_position
    return None


def _loads(batches: Sequence[_Batch]) -> Iterator[list[tuple[_Batch, bytes]]]:
    """Yield batches with their bytes, in portions that one call decodes."""
    load: list[tuple[_Batch, bytes]] = []
    size = 0
    for batch in batches:
        try:
            with opened(batch.path) as descriptor:
                data = os.pread(descriptor, batch.end_position - batch.position, batch.position)
        except OSError:
            continue
        if load and size + len(data) > _BYTES_PER_DECODE:
            yield load
            load, size = [], 0
        load.append((batch, data))
        size += len(data)
    if load:
        yield load


def _record_times(
    load: Sequence[tuple[_Batch, bytes]], batches: Mapping[_Batch, Sequence[tuple[str, int]]]
) -> dict[tuple[str, int], int]:
    """Return the timestamps of records. Batches of all logs are decoded together.

    :param batches: for each batch, logs and offsets. The batch contains each offset, or is the first batch
        after it.
    :return: by log and offset, the timestamp in ms of the first record at or after it. Records without a
        timestamp are left out.
    """
    # Loading the kernels takes longer than reading many a store.
    from storage_engine.kafka.codec.codec import CODEC

    starts = np.cumsum([0, *(len(data) for _, data in load)])
    times: dict[tuple[str, int], int] = {}
    for rows, damages in CODEC.decode(memoryview(b"".join(data for _, data in load)), 0):
        if damages and len(load) > 1:
            # A damaged batch may hide the next one, so each batch is decoded alone.
            return {key: time for part in load for key, time in _record_times([part], batches).items()}
        is_record = pc.is_in(rows["kind"], value_set=pa.array(["message", "control"]))
        records = rows.select(["physical_offset", "offset", "timestamp"]).filter(is_record)
        offsets, timestamps = np.asarray(records["offset"]), records["timestamp"].cast(pa.int64())
        bounds = np.searchsorted(np.asarray(records["physical_offset"]), starts).tolist()
        for (batch, _), (begin, end) in zip(load, pairwise(bounds), strict=True):
            for key in batches[batch] if begin < end else ():
                at = begin + int(np.argmax(offsets[begin:end] >= key[1]))
                timestamp_us = timestamps[at].as_py()
                if offsets[at] >= key[1] and timestamp_us is not None:
                    times[key] = timestamp_us // 1000
    return times


@dataclass(slots=True)
class _GroupSum:
    """A group's unread records of a topic: in partitions with a known position, or in all other partitions.

    :param messages: number of unread records; None if not known.
    :param from_ms: time of the first such record, in ms since the epoch; None if not known.
    """

    messages: int | None = None
    partitions: int = 0
    from_ms: int | None = None


def unread_records(
    consumers: Consumers, context: LagContext, new_min_offsets: Mapping[str, int], *, deleted: bool
) -> Unread:
    """Sum up, for each group and topic, the unread records below the logs' new starts.

    :param deleted: these records are already deleted. Then the time of the first one isn't looked up.
    """
    unread = _unread_from(consumers, context, new_min_offsets, deleted=deleted)
    return _sum_up(unread, consumers, context, new_min_offsets, deleted=deleted)


def unread_by_log(
    consumers: Consumers, context: LagContext, new_min_offsets: Mapping[str, int]
) -> dict[str, Unread]:
    """Sum up the unread records below the logs' new starts, for each log separately."""
    of_logs: dict[str, list[_UnreadPlace]] = {log: [] for log in new_min_offsets}
    for unread in _unread_from(consumers, context, new_min_offsets, deleted=False):
        of_logs[unread[2]].append(unread)
    return {
        log: _sum_up(of_log, consumers, context, new_min_offsets, deleted=False)
        for log, of_log in of_logs.items()
    }


def _sum_up(
    unread: Sequence[_UnreadPlace],
    consumers: Consumers,
    context: LagContext,
    new_min_offsets: Mapping[str, int],
    *,
    deleted: bool,
) -> Unread:
    places = {} if deleted else find_all(context, ((name, first) for _, _, name, first in unread))
    sums: dict[tuple[str, str, bool], _GroupSum] = {}
    for (group, topic, _), is_known, name, first in unread:
        # Partitions with an unknown position have a row of their own: the group may need all their records.
        row = sums.setdefault((group, topic, is_known), _GroupSum())
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
    """Return the places where groups would lose records."""
    names: dict[tuple[str, int], str] = {}
    unread: list[_UnreadPlace] = []
    for position, committed in consumers.committed.items():
        key = position[1:]
        name = names.get(key)
        if name is None:
            name = names[key] = f"{key[0]}-{key[1]}"
        log, end = context.logs.get(name), new_min_offsets.get(name)
        if log is None or end is None:
            continue
        first = max(committed or 0, 0 if deleted else log.begin)
        if first < end:
            unread.append((position, committed is not None, name, first))
    return unread
