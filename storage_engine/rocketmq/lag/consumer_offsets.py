"""Positions of each group in each queue, from the file that the broker wrote last.

A broker with many groups and queues writes hundreds of MB. Such a table is read by compiled code, into
columns; anything in it that this code doesn't know, and any small table, by the general parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.arrow.name_columns import POSITIONS_SCHEMA, Names, coded, one_array
from storage_engine.rocketmq.format.config_files import parse_object, read_config
from storage_engine.rocketmq.format.fastjson import FastjsonError
from storage_engine.rocketmq.format.layout import StoreLayout

TOPIC_GROUP_SEPARATOR = "@"

LARGE_BYTES = 1 << 20
"""From here on compiled code is quicker than the general parser, loading it included."""
Codes = npt.NDArray[np.int64]
Longs = npt.NDArray[np.int64]

_MAX_KEY = 1 << 62


def consumer_offsets(layout: StoreLayout) -> pa.Table:
    """One row of :data:`POSITIONS_SCHEMA` for each committed offset, by topic, queue and group.

    A broker with light message queues (enableLmq) keeps them in ``lmqConsumerOffset.json``, one without in
    ``consumerOffset.json``. Where both are left, the lower offset counts: lag is never made smaller.

    :raises CorruptFileError: neither a file nor its backup can be read as what it is.
    """
    tables = []
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        table = read_config(layout.config / name, parse_offsets, "offsets by topic@group and queue")
        if table is not None:
            tables.append(table)
    return _lowest(in_queue_order(pa.concat_tables(tables or [POSITIONS_SCHEMA.empty_table()])))


def parse_offsets(data: bytes) -> pa.Table:
    """Offsets as a file has them, or a live broker's answer; rows in any order.

    :raises MALFORMED: it is something else.
    """
    found = parse_large(data) if len(data) >= LARGE_BYTES else None
    return parse_any(data) if found is None else found


def parse_any(data: bytes) -> pa.Table:
    """Offsets by the general parser.

    :raises MALFORMED: it is something else.
    """
    return from_rows(list(_rows(parse_object(data))))


def _rows(content: dict[Any, Any]) -> Iterator[tuple[str, int, str, int]]:
    for name, queues in content.get("offsetTable", {}).items():
        topic, group = _topic_and_group(name)
        for queue, offset in queues.items():
            yield topic, int(queue), group, int(offset)
    # LmqConsumerOffsetManager: a light message queue has one queue, 0
    for name, offset in content.get("lmqOffsetTable", {}).items():
        topic, group = _topic_and_group(name)
        yield topic, 0, group, int(offset)


def _topic_and_group(name: str) -> tuple[str, str]:
    topic, separator, group = name.partition(TOPIC_GROUP_SEPARATOR)
    if not (topic and separator and group):
        raise ValueError(f"{name[:200]!r} is not topic@group")
    return topic, group


def parse_large(data: bytes) -> pa.Table | None:
    """The same by compiled code, in a fraction of the time and memory.

    A queue that one topic@group names twice is there twice; the general parser knows the later one.

    :return: None when there is something in the text that only the general parser can judge.
    :raises FastjsonError: the text ends too early, or in zeros: it was not written to its end.
    """
    # Loading compiled code takes longer than most tables do.
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
        return None  # of two entries of one name the later counts, which the general parser knows
    columns = [
        _repeated(topics, rows),
        pa.array(queues[:row_count]),
        _repeated(groups, rows),
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


def _repeated(names: Names, counts: npt.NDArray[np.int64]) -> Names:
    codes = np.repeat(np.asarray(names.indices), counts)
    return pa.DictionaryArray.from_arrays(codes, names.dictionary)


def _lowest(table: pa.Table) -> pa.Table:
    """Return one row for each topic, queue and group: the one with the lowest offset.

    :param table: in queue order, of known offsets.
    """
    if not table.num_rows:
        return table
    topic, group = (np.asarray(one_array(table[name]).indices) for name in ("topic", "group"))
    changed = (np.diff(group) != 0) | (np.diff(np.asarray(table["queue_id"])) != 0) | (np.diff(topic) != 0)
    firsts = np.flatnonzero(np.concatenate([[True], changed]))
    if len(firsts) == table.num_rows:
        return table
    lowest = np.minimum.reduceat(np.asarray(table["committed_offset"]), firsts)
    kept = table.take(firsts)
    return kept.set_column(
        POSITIONS_SCHEMA.get_field_index("committed_offset"), "committed_offset", pa.array(lowest)
    )


def from_rows(rows: Sequence[tuple[str, int, str, int | None]]) -> pa.Table:
    """A table of :data:`POSITIONS_SCHEMA` from its rows."""
    columns = list(zip(*rows, strict=True)) or [()] * len(POSITIONS_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, POSITIONS_SCHEMA, strict=True)]
    return pa.table(arrays, schema=POSITIONS_SCHEMA)


def in_queue_order(table: pa.Table) -> pa.Table:
    """Return the rows by topic, queue and group: those of one queue together, in one chunk.

    :param table: of :data:`POSITIONS_SCHEMA`.
    """
    topics, topic = coded(table["topic"])
    groups, group = coded(table["group"])
    queue = np.asarray(table["queue_id"])
    order = _order(topic, queue, group, len(topics), len(groups))
    columns = [
        pa.DictionaryArray.from_arrays(topic[order], topics),
        pa.array(queue[order]),
        pa.DictionaryArray.from_arrays(group[order], groups),
        table["committed_offset"].combine_chunks().take(order),
    ]
    return pa.table(columns, schema=POSITIONS_SCHEMA)


def _order(
    topic: npt.NDArray[np.int32],
    queue: npt.NDArray[np.int32],
    group: npt.NDArray[np.int32],
    topics: int,
    groups: int,
) -> npt.NDArray[np.int64]:
    queues = int(queue.max(initial=0)) + 1
    if topics * queues * groups >= _MAX_KEY or queue.min(initial=0) < 0:
        return np.lexsort((group, queue, topic)).astype(np.int64)
    key = (topic.astype(np.int64) * queues + queue) * groups + group
    return np.argsort(key).astype(np.int64, copy=False)
