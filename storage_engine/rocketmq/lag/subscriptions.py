"""Groups and the queues that they read, as far as a broker's files or the running broker tell.

Reads config and directory names only.

A broker knows the topics of a group that has committed an offset, and little of one that has not: its retry
topic, and its SQL filters. Consumers that keep their offsets themselves (broadcasting) are not known at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.arrow.name_columns import POSITIONS_SCHEMA, names_of, one_array
from storage_engine.rocketmq.format import config_files
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import has_directory, queue_id_of
from storage_engine.rocketmq.format.stored_files import read_or_tell, refuse_link
from storage_engine.rocketmq.lag.consumer_offsets import consumer_offsets, from_rows, in_queue_order

RETRY_TOPIC_PREFIX = "%RETRY%"

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Consumers:
    """Known consumers, before the queues are looked at.

    :param committed: of :data:`POSITIONS_SCHEMA`, in queue order: every committed offset.
    :param groups: names of all groups that exist.
    :param subscriptions: (group, topic) that are known, with or without an offset.
    :param unknown: what isn't known, by the file that can't be read; what it has is in no other field.
    """

    committed: pa.Table
    groups: frozenset[str]
    subscriptions: frozenset[tuple[str, str]]
    unknown: tuple[str, ...] = ()


def consumers_in_files(layout: StoreLayout, attempts: int = 1) -> Consumers:
    """Return the groups that the broker last wrote to its files, as far as these can be read.

    :param attempts: how often a file is read that can't be read as what it is.
    """
    committed, no_positions = read_or_tell(
        partial(consumer_offsets, layout), POSITIONS_SCHEMA.empty_table(), "groups' positions", attempts
    )
    groups, no_groups = read_or_tell(partial(config_files.groups, layout), (), "groups' names", attempts)
    filtered, no_filters = read_filtered(layout, attempts)
    return Consumers(committed, frozenset(groups), filtered, (*no_positions, *no_groups, *no_filters))


def read_filtered(layout: StoreLayout, attempts: int) -> tuple[frozenset[tuple[str, str]], tuple[str, ...]]:
    """Return (group, topic) of each subscription with a filter, and why these aren't known; (): they are.

    :param attempts: how often the file is read where it can't be read as what it is.
    """
    read = partial(config_files.filtered_subscriptions, layout)
    filtered, unknown = read_or_tell(read, (), "subscriptions with a filter", attempts)
    return frozenset(filtered), unknown


def group_positions(layout: StoreLayout, consumers: Consumers) -> pa.Table:
    """One row of :data:`POSITIONS_SCHEMA` for each group and queue, by topic, queue and group.

    ``committed_offset`` is null where a group that reads the topic has none: unknown, not zero. A group
    that is known by nothing but its name is there with queue 0 of its retry topic.
    """
    committed = consumers.committed
    reads = _Reads.of(committed)
    missing = [*_uncommitted_queues(layout, reads), *_uncommitted_topics(layout, reads, consumers)]
    if not missing:
        return committed
    return in_queue_order(pa.concat_tables([committed, *missing]))


@dataclass(frozen=True, slots=True)
class _Reads:
    """Groups, with the queues in which they committed.

    :param topics, groups: names by code.
    :param row_topic, row_queue, row_group: codes of each row, by topic, queue and group.
    :param pairs: topic code * number of groups + group code of each pair with an offset, ascending.
    :param pair_rows: how many rows each pair has.
    """

    topics: pa.Array[Any]
    groups: pa.Array[Any]
    row_topic: npt.NDArray[np.int32]
    row_queue: npt.NDArray[np.int32]
    row_group: npt.NDArray[np.int32]
    pairs: Longs
    pair_rows: Longs

    @classmethod
    def of(cls, committed: pa.Table) -> _Reads:
        topic, group = (one_array(committed[name]) for name in ("topic", "group"))
        rows = [np.asarray(column.indices) for column in (topic, group)]
        pairs, counts = np.unique(
            rows[0].astype(np.int64) * len(group.dictionary) + rows[1], return_counts=True
        )
        queue = np.asarray(committed["queue_id"])
        return cls(topic.dictionary, group.dictionary, rows[0], queue, rows[1], pairs, counts)


def _uncommitted_queues(layout: StoreLayout, reads: _Reads) -> Iterator[pa.Table]:
    """Queues on disk without an offset of a group that has one in another queue of the topic."""
    on_disk = [sorted(set(_queue_ids(layout, topic))) for topic in names_of(reads.topics)]
    counts = np.array([len(ids) for ids in on_disk], dtype=np.int64)
    queues = np.array([queue for ids in on_disk for queue in ids], dtype=np.int64)
    if not queues.size:
        return
    queue_topics = np.repeat(np.arange(len(counts)), counts)
    wide = max(int(queues.max()), int(reads.row_queue.max(initial=0))) + 1
    gone = ~_found(reads.row_topic.astype(np.int64) * wide + reads.row_queue, queue_topics * wide + queues)
    there = reads.pair_rows.copy()
    groups = len(reads.groups)
    lost, lost_rows = np.unique(
        reads.row_topic[gone].astype(np.int64) * groups + reads.row_group[gone], return_counts=True
    )
    there[np.searchsorted(reads.pairs, lost)] -= lost_rows
    short = reads.pairs[there < counts[reads.pairs // groups]]
    if not short.size:
        return
    # each of these pairs with each queue on disk, less those with an offset
    each = counts[short // groups]
    pair = np.repeat(short, each)
    starts = np.cumsum(counts) - counts
    within = np.arange(len(pair)) - np.repeat(np.cumsum(each) - each, each)
    queue = queues[starts[pair // groups] + within]
    affected = np.isin(reads.row_topic, np.unique(short // groups))
    known = (
        reads.row_topic[affected].astype(np.int64) * groups + reads.row_group[affected]
    ) * wide + reads.row_queue[affected]
    new = ~_found(pair * wide + queue, np.sort(known))
    columns = [
        pa.DictionaryArray.from_arrays((pair[new] // groups).astype(np.int32), reads.topics),
        pa.array(queue[new].astype(np.int32)),
        pa.DictionaryArray.from_arrays((pair[new] % groups).astype(np.int32), reads.groups),
        pa.nulls(int(new.sum()), pa.int64()),
    ]
    yield pa.table(columns, schema=POSITIONS_SCHEMA)


def _found(values: Longs, ascending: Longs) -> npt.NDArray[np.bool_]:
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.asarray(ascending[at] == values)


def _uncommitted_topics(layout: StoreLayout, reads: _Reads, consumers: Consumers) -> Iterator[pa.Table]:
    """Queues of topics in which a group has no offset at all, and is known to read them all the same."""
    groups = dict(zip(names_of(reads.groups), range(len(reads.groups)), strict=True))
    pairs = set(consumers.subscriptions)
    topics = _topics(layout)
    for group in groups.keys() | consumers.groups:
        retry = RETRY_TOPIC_PREFIX + group
        if (topics is None or retry in topics) and (group not in groups or _has_queues(layout, retry)):
            pairs.add((group, retry))
    rows: list[tuple[str, int, str, None]] = []
    for group, topic in pairs - _committed_among(pairs, reads, groups):
        queues = set(_queue_ids(layout, topic))
        if group not in groups and not queues:
            queues = {0}
        rows += [(topic, queue_id, group, None) for queue_id in queues]
    if rows:
        yield from_rows(rows)


def _topics(layout: StoreLayout) -> frozenset[str] | None:
    """Return the topics' names; None: they can't be read, so that directories alone tell of topics."""
    topics, unknown = read_or_tell(partial(config_files.topics, layout), (), "topics")
    return None if unknown else frozenset(topic.topic for topic in topics)


def _committed_among(
    pairs: Collection[tuple[str, str]], reads: _Reads, groups: dict[str, int]
) -> set[tuple[str, str]]:
    wanted = {topic for _, topic in pairs}
    topics = {name: code for code, name in enumerate(names_of(reads.topics)) if name in wanted}
    committed = set()
    for group, topic in pairs:
        if group in groups and topic in topics:
            pair = topics[topic] * len(groups) + groups[group]
            at = int(np.searchsorted(reads.pairs, pair))
            if at < len(reads.pairs) and reads.pairs[at] == pair:
                committed.add((group, topic))
    return committed


def queue_directories(layout: StoreLayout, topic: str) -> tuple[Path, Path]:
    """Return where a topic's consume queues are, and its batch consume queues if it has those instead.

    :param topic: one that ``has_directory``.
    """
    return layout.consumequeue / topic, layout.batchconsumequeue / topic


def _has_queues(layout: StoreLayout, topic: str) -> bool:
    return next(_queue_ids(layout, topic), None) is not None


def _queue_ids(layout: StoreLayout, topic: str) -> Iterator[int]:
    for directory in queue_directories(layout, topic) if has_directory(topic) else ():
        refuse_link(directory)
        try:
            names = [path.name for path in directory.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield from (queue_id for name in names if (queue_id := queue_id_of(name)) is not None)
