"""Consumer groups, the queues that they read, and their positions, from the broker's files.

A broker with many groups and queues writes a file of hundreds of MB. Compiled code reads a large file into
columns. The general parser reads small files, and files that the compiled code doesn't understand.

A broker knows the topics in which a group has committed offsets. Of a group without an offset it knows only
the retry topic and SQL filters. Consumers that keep their offsets themselves (broadcasting) are unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.arrow.name_columns import POSITIONS_SCHEMA, Names, coded, names_of, one_array
from storage_engine.rocketmq.format import config_files
from storage_engine.rocketmq.format.config_files import FastjsonError, parse_object, read_config
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import has_directory, queue_id_of
from storage_engine.rocketmq.format.stored_files import read_or_tell, refuse_link

TOPIC_GROUP_SEPARATOR = "@"

LARGE_BYTES = 1 << 20
"""Size from which compiled code, including its loading, is faster than the general parser."""
Codes = npt.NDArray[np.int64]
Longs = npt.NDArray[np.int64]

_MAX_KEY = 1 << 62


def consumer_offsets(layout: StoreLayout) -> pa.Table:
    """Return one row of :data:`POSITIONS_SCHEMA` for each committed offset, by topic, queue and group.

    A broker with light message queues (enableLmq) keeps offsets in ``lmqConsumerOffset.json``, any other
    broker in ``consumerOffset.json``. If both exist, the lower offset counts, so that lag is never too small.

    :raises CorruptFileError: a file and its backup are unreadable or malformed.
    """
    tables = []
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        table = read_config(layout.config / name, parse_offsets, "offsets by topic@group and queue")
        if table is not None:
            tables.append(table)
    return _keep_lowest(in_queue_order(pa.concat_tables(tables or [POSITIONS_SCHEMA.empty_table()])))


def parse_offsets(data: bytes) -> pa.Table:
    """Parse the offsets of a file or of a live broker's answer. The rows are in any order.

    :raises MALFORMED: the text has another form.
    """
    table = parse_large(data) if len(data) >= LARGE_BYTES else None
    return parse_any(data) if table is None else table


def parse_any(data: bytes) -> pa.Table:
    """Parse offsets with the general parser.

    :raises MALFORMED: the text has another form.
    """
    return from_rows(list(_rows(parse_object(data))))


def _rows(content: dict[Any, Any]) -> Iterator[tuple[str, int, str, int]]:
    for name, queues in content.get("offsetTable", {}).items():
        topic, group = _topic_and_group(name)
        for queue, offset in queues.items():
            yield topic, int(queue), group, int(offset)
    # The only queue of a light message queue is 0 (LmqConsumerOffsetManager).
    for name, offset in content.get("lmqOffsetTable", {}).items():
        topic, group = _topic_and_group(name)
        yield topic, 0, group, int(offset)


def _topic_and_group(name: str) -> tuple[str, str]:
    topic, separator, group = name.partition(TOPIC_GROUP_SEPARATOR)
    if not (topic and separator and group):
        raise ValueError(f"{name[:200]!r} is not topic@group")
    return topic, group


def parse_large(data: bytes) -> pa.Table | None:
    """Parse offsets with compiled code, in a fraction of the general parser's time and memory.

    If one topic@group has a queue twice, both rows are returned. The general parser returns the later one.

    :return: None if only the general parser can read the text.
    :raises FastjsonError: the text was not written completely, since it ends too early or with zeros.
    """
    # Loading compiled code takes longer than most tables take to parse.
    from storage_engine.rocketmq.lag.offset_kernels import scan_offsets

    text = np.frombuffer(data, np.uint8)
    most = data.count(b":")
    names = np.empty((most, 4), np.int64)
    queues, offsets = np.empty(most, np.int32), np.empty(most, np.int64)
    name_count, row_count, unknown_at = scan_offsets(text, names, queues, offsets)
    if unknown_at >= 0:
        if not data[unknown_at:].strip(b"\0"):
            raise FastjsonError(unknown_at, "more", data[:unknown_at].decode("ascii", "replace"))
        return None
    begins, separators, ends, firsts = np.ascontiguousarray(names[:name_count].T)
    light = separators < 0
    separators = np.abs(separators)
    topics = _names(text, begins, separators)
    groups = _names(text, separators + 1, ends)
    rows = np.diff(firsts, append=row_count)
    pairs = np.asarray(topics.indices, np.int64) * len(groups.dictionary) + np.asarray(groups.indices)
    if any(len(np.unique(part)) < len(part) for part in (pairs[light], pairs[~light])):
        return None  # Of equal names the later one counts, as in the general parser.
    columns = [
        _repeat(topics, rows),
        pa.array(queues[:row_count]),
        _repeat(groups, rows),
        pa.array(offsets[:row_count]),
    ]
    return pa.table(columns, schema=POSITIONS_SCHEMA)


def _names(text: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Names:
    from storage_engine.rocketmq.lag.offset_kernels import copy_ranges

    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - begins)])
    content = np.empty(int(offsets[-1]), np.uint8)
    copy_ranges(text, begins, offsets, content)
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(content.data)]
    coded = pa.Array.from_buffers(pa.large_string(), len(begins), buffers).dictionary_encode()
    return pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.string()))


def _repeat(names: Names, counts: npt.NDArray[np.int64]) -> Names:
    codes = np.repeat(np.asarray(names.indices), counts)
    return pa.DictionaryArray.from_arrays(codes, names.dictionary)


def _keep_lowest(table: pa.Table) -> pa.Table:
    """Return for each topic, queue and group the row with the lowest offset.

    :param table: table in queue order without null offsets.
    """
    if not table.num_rows:
        return table
    topic, group = (np.asarray(one_array(table[name]).indices) for name in ("topic", "group"))
    changed = (np.diff(group) != 0) | (np.diff(np.asarray(table["queue_id"])) != 0) | (np.diff(topic) != 0)
    firsts = np.flatnonzero(np.concatenate([[True], changed]))
    if len(firsts) == table.num_rows:
        return table
    lowest = np.minimum.reduceat(np.asarray(table["committed_offset"]), firsts)
    first_rows = table.take(firsts)
    return first_rows.set_column(
        POSITIONS_SCHEMA.get_field_index("committed_offset"), "committed_offset", pa.array(lowest)
    )


def from_rows(rows: Sequence[tuple[str, int, str, int | None]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(POSITIONS_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, POSITIONS_SCHEMA, strict=True)]
    return pa.table(arrays, schema=POSITIONS_SCHEMA)


def in_queue_order(table: pa.Table) -> pa.Table:
    """Sort a table of :data:`POSITIONS_SCHEMA` by topic, queue and group, and make it one chunk."""
    topics, topic = coded(table["topic"])
    groups, group = coded(table["group"])
    queue = np.asarray(table["queue_id"])
    queues = int(queue.max(initial=0)) + 1
    if len(topics) * queues * len(groups) >= _MAX_KEY or queue.min(initial=0) < 0:
        order = np.lexsort((group, queue, topic))
    else:
        order = np.argsort((topic.astype(np.int64) * queues + queue) * len(groups) + group)
    columns = [
        pa.DictionaryArray.from_arrays(topic[order], topics),
        pa.array(queue[order]),
        pa.DictionaryArray.from_arrays(group[order], groups),
        table["committed_offset"].combine_chunks().take(order),
    ]
    return pa.table(columns, schema=POSITIONS_SCHEMA)


RETRY_TOPIC_PREFIX = "%RETRY%"


@dataclass(frozen=True, slots=True)
class Consumers:
    """The consumers that a broker's files or answers show. The queues' directories were not read for them.

    :param committed: table of :data:`POSITIONS_SCHEMA` in queue order, with all committed offsets.
    :param groups: names of all groups that exist.
    :param subscriptions: known pairs (group, topic), with or without an offset.
    :param unknown: texts about files that can't be read. The other fields lack the data of these files.
    """

    committed: pa.Table
    groups: frozenset[str]
    subscriptions: frozenset[tuple[str, str]]
    unknown: tuple[str, ...] = ()


def consumers_in_files(layout: StoreLayout, attempts: int = 1) -> Consumers:
    """Return the groups from the broker's files, as far as these can be read.

    :param attempts: number of attempts to read a file that is unreadable or malformed.
    """
    committed, no_positions = read_or_tell(
        partial(consumer_offsets, layout), POSITIONS_SCHEMA.empty_table(), "groups' positions", attempts
    )
    groups, no_groups = read_or_tell(partial(config_files.groups, layout), (), "groups' names", attempts)
    filtered, no_filters = read_filtered(layout, attempts)
    return Consumers(committed, frozenset(groups), filtered, (*no_positions, *no_groups, *no_filters))


def read_filtered(layout: StoreLayout, attempts: int) -> tuple[frozenset[tuple[str, str]], tuple[str, ...]]:
    """Return (group, topic) of each subscription with a filter, and errors if the file can't be read.

    :param attempts: number of attempts to read a file that is unreadable or malformed.
    """
    read = partial(config_files.filtered_subscriptions, layout)
    filtered, unknown = read_or_tell(read, (), "subscriptions with a filter", attempts)
    return frozenset(filtered), unknown


def group_positions(layout: StoreLayout, consumers: Consumers) -> pa.Table:
    """Return one row of :data:`POSITIONS_SCHEMA` for each group and queue, by topic, queue and group.

    If a group reads a topic but has no offset in a queue, ``committed_offset`` is null (unknown, not zero). A
    group of which only the name is known gets a row for queue 0 of its retry topic.
    """
    committed = consumers.committed
    reads = _Reads.of(committed)
    missing = [*_uncommitted_queues(layout, reads), *_uncommitted_topics(layout, reads, consumers)]
    if not missing:
        return committed
    return in_queue_order(pa.concat_tables([committed, *missing]))


@dataclass(frozen=True, slots=True)
class _Reads:
    """Groups, with the queues in which they have committed an offset.

    :param topics, groups: names by code.
    :param row_topic, row_queue, row_group: codes of each row, sorted by topic, queue and group.
    :param pairs: (topic code * number of groups + group code) of each pair with an offset, ascending.
    :param pair_rows: number of rows of each pair.
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
    """Yield rows for queues on disk where a group has no offset but has one in another queue of the topic."""
    on_disk = [sorted(set(_queue_ids(layout, topic))) for topic in names_of(reads.topics)]
    counts = np.array([len(ids) for ids in on_disk], dtype=np.int64)
    queues = np.array([queue for ids in on_disk for queue in ids], dtype=np.int64)
    if not queues.size:
        return
    queue_topics = np.repeat(np.arange(len(counts)), counts)
    wide = max(int(queues.max()), int(reads.row_queue.max(initial=0))) + 1
    absent = ~_is_in(reads.row_topic.astype(np.int64) * wide + reads.row_queue, queue_topics * wide + queues)
    pair_rows = reads.pair_rows.copy()
    groups = len(reads.groups)
    lost, lost_rows = np.unique(
        reads.row_topic[absent].astype(np.int64) * groups + reads.row_group[absent], return_counts=True
    )
    pair_rows[np.searchsorted(reads.pairs, lost)] -= lost_rows
    short = reads.pairs[pair_rows < counts[reads.pairs // groups]]
    if not short.size:
        return
    # Combine these pairs with the queues on disk, and leave out the combinations with an offset.
    pair_queues = counts[short // groups]
    pair = np.repeat(short, pair_queues)
    starts = np.cumsum(counts) - counts
    within = np.arange(len(pair)) - np.repeat(np.cumsum(pair_queues) - pair_queues, pair_queues)
    queue = queues[starts[pair // groups] + within]
    affected = np.isin(reads.row_topic, np.unique(short // groups))
    known_keys = (
        reads.row_topic[affected].astype(np.int64) * groups + reads.row_group[affected]
    ) * wide + reads.row_queue[affected]
    new = ~_is_in(pair * wide + queue, np.sort(known_keys))
    columns = [
        pa.DictionaryArray.from_arrays((pair[new] // groups).astype(np.int32), reads.topics),
        pa.array(queue[new].astype(np.int32)),
        pa.DictionaryArray.from_arrays((pair[new] % groups).astype(np.int32), reads.groups),
        pa.nulls(int(new.sum()), pa.int64()),
    ]
    yield pa.table(columns, schema=POSITIONS_SCHEMA)


def _is_in(values: Longs, ascending: Longs) -> npt.NDArray[np.bool_]:
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.asarray(ascending[at] == values)


def _uncommitted_topics(layout: StoreLayout, reads: _Reads, consumers: Consumers) -> Iterator[pa.Table]:
    """Yield rows for the queues of topics that a group reads without having an offset in any queue."""
    groups = dict(zip(names_of(reads.groups), range(len(reads.groups)), strict=True))
    pairs = set(consumers.subscriptions)
    topics, errors = read_or_tell(partial(config_files.topics, layout), (), "topics")
    names = {topic.topic for topic in topics}
    for group in groups.keys() | consumers.groups:
        retry = RETRY_TOPIC_PREFIX + group
        # If the topics can't be read, their directories tell which exist.
        if (errors or retry in names) and (
            group not in groups or any(True for _ in _queue_ids(layout, retry))
        ):
            pairs.add((group, retry))
    rows: list[tuple[str, int, str, None]] = []
    for group, topic in pairs - _filter_committed(pairs, reads, groups):
        queues = set(_queue_ids(layout, topic))
        if group not in groups and not queues:
            queues = {0}
        rows += [(topic, queue_id, group, None) for queue_id in queues]
    if rows:
        yield from_rows(rows)


def _filter_committed(
    pairs: Collection[tuple[str, str]], reads: _Reads, groups: dict[str, int]
) -> set[tuple[str, str]]:
    pair_topics = {topic for _, topic in pairs}
    topics = {name: code for code, name in enumerate(names_of(reads.topics)) if name in pair_topics}
    committed = set()
    for group, topic in pairs:
        if group in groups and topic in topics:
            pair = topics[topic] * len(groups) + groups[group]
            at = int(np.searchsorted(reads.pairs, pair))
            if at < len(reads.pairs) and reads.pairs[at] == pair:
                committed.add((group, topic))
    return committed


def queue_directories(layout: StoreLayout, topic: str) -> tuple[Path, Path]:
    """Return the directories of a topic's consume queues and batch consume queues. Only one has queues.

    :param topic: a topic for which ``has_directory`` returns True.
    """
    return layout.consumequeue / topic, layout.batchconsumequeue / topic


def _queue_ids(layout: StoreLayout, topic: str) -> Iterator[int]:
    for directory in queue_directories(layout, topic) if has_directory(topic) else ():
        refuse_link(directory)
        try:
            names = [path.name for path in directory.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield from (queue_id for name in names if (queue_id := queue_id_of(name)) is not None)
