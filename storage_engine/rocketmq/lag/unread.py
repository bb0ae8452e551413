"""What consumers have not read of the messages that a deletion takes from the broker.

Of each queue that some group reads the first entry is looked at; more only of queues that lose entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.arrow.name_columns import names_of, one_array
from storage_engine.core.long_work import told
from storage_engine.core.wording import count_text
from storage_engine.model.lag.lag import Unread, UnreadMessages
from storage_engine.model.store.store import Segment
from storage_engine.rocketmq.codec.store_times import UNKNOWN, LogFile, store_timestamps
from storage_engine.rocketmq.format import batch_consume_queue, consume_queue
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile, check_not_emptied, has_directory
from storage_engine.rocketmq.format.queue_files import FILLER_SIZE
from storage_engine.rocketmq.format.rereading import reread
from storage_engine.rocketmq.lag.lag import Flags, Longs, queue_runs, read_files
from storage_engine.rocketmq.lag.subscriptions import queue_directories


@dataclass(frozen=True, slots=True)
class _InQueue:
    """One group's unread messages in one queue that go.

    :param messages: -1: the group's position is not known.
    :param physical_offset: of the first one; -1: it can't be told.
    """

    topic: str
    messages: int
    physical_offset: int


def unread_messages(
    layout: StoreLayout,
    segments: tuple[Segment, ...],
    positions: pa.Table,
    new_min_offset: int,
    attempts: int,
    *,
    deleted: bool = False,
) -> Unread:
    """Find what each group has not read below an offset of the log, by group and topic.

    :param segments: of the log, oldest first.
    :param positions: of :data:`~storage_engine.rocketmq.lag.positions.POSITIONS_SCHEMA`, in queue order.
    :param new_min_offset: where the log begins after the deletion.
    :param attempts: how often files are read that don't fit together.
    :param deleted: the segments are gone from the log, so that queues may lack entries of them.
    :raises CorruptFileError: a queue's files aren't a queue.
    :raises FileNotFoundError: a queue's file went away since it was listed.
    """
    log_min_offset = segments[0].base_offset
    groups = one_array(positions["group"])
    group = np.asarray(groups.indices)
    column: Any = positions["committed_offset"]
    known = np.asarray(pc.is_valid(column), dtype=bool)
    committed = np.asarray(pc.fill_null(column, 0), dtype=np.int64)
    found: dict[tuple[int, str], list[_InQueue]] = {}
    untold: set[tuple[int, str]] = set()
    for topic, queue_id, span in _told_runs(positions):
        look = partial(
            _in_queue, layout, (log_min_offset, new_min_offset), topic, queue_id, committed[span], known[span]
        )
        lost, physical = reread(look, attempts)
        gone = _gone_below(layout, log_min_offset, topic, queue_id) if deleted else 0
        for code, messages, at in zip(group[span].tolist(), lost.tolist(), physical.tolist(), strict=True):
            if messages:
                found.setdefault((code, topic), []).append(_InQueue(topic, messages, at))
        missed = np.where(known[span], committed[span], 0) < gone
        untold |= {(code, topic) for code in group[span][missed].tolist()}
    names = names_of(groups.dictionary)
    log = tuple(LogFile(s.facts.path, s.base_offset, s.facts.size_bytes) for s in segments)
    times = _times(log, list(map(_first_offset, found.values())), may_go=deleted or attempts > 1)
    rows = [_row(names[key[0]], items, times) for key, items in found.items()]
    named = [(names[code], topic) for code, topic in untold]
    return Unread(tuple(sorted(rows, key=_most_first)), error=_untold_text(named) if named else "")


def _told_runs(positions: pa.Table) -> Iterator[tuple[str, int, slice]]:
    """Yield what :func:`queue_runs` does, and tell how far it is."""
    with told("Reading queues", positions.num_rows, "positions") as advance:
        for run in queue_runs(positions):
            yield run
            advance(run[2].stop - run[2].start)


def _untold_text(groups_and_topics: list[tuple[str, str]]) -> str:
    (group, topic), *more = sorted(groups_and_topics)
    others = f"; likewise for {count_text(len(more), 'more group and topic')}" if more else ""
    return f"queues of {topic} have lost their entries of what {group} had not read{others}"


def _gone_below(layout: StoreLayout, log_min_offset: int, topic: str, queue_id: int) -> int:
    """Return the queue offset below which a queue may have lost entries of messages from an offset on.

    0: it has all of them, or is gone.
    """
    found = _queue_files(layout, topic, queue_id)
    if found is None:
        return 0
    kind, files, first = found
    if first is not None and (first["size"] == FILLER_SIZE or first["offset"] <= log_min_offset):
        return 0
    bounds: consume_queue.QueueBounds = kind.bounds(files, log_min_offset)
    return bounds.min_offset


def _in_queue(
    layout: StoreLayout,
    min_offsets: tuple[int, int],
    topic: str,
    queue_id: int,
    committed: Longs,
    known: Flags,
) -> tuple[Longs, Longs]:
    """Return how many unread messages of a queue each row loses, -1 for an unknown number; and where they
    begin.

    :param min_offsets: of the log, now and after the deletion.
    """
    now, after = min_offsets
    none = np.zeros(len(committed), np.int64)
    found = _queue_files(layout, topic, queue_id)
    if found is None:
        return none, none
    kind, files, first = found
    if first is None or (first["size"] != FILLER_SIZE and first["offset"] >= after):
        return none, none
    wanted = np.where(known, committed, 0)
    if kind is batch_consume_queue:
        last = kind.FORMAT.last_position(files)
        new_first = kind.bounds(files, after, last).min_offset
        bounds, physical = read_files(files, now, wanted, last=last, is_batch=True)
        lost = np.maximum(new_first - np.maximum(wanted, bounds.min_offset), 0)
        return np.where(known, lost, -np.minimum(lost, 1)), physical[:-1]
    if known.all() and _is_left(files, int(wanted.min()), after):
        return none, none
    new_first = consume_queue.queue_offset(*consume_queue.FORMAT.first_left(files, after))
    is_whole = first["size"] != FILLER_SIZE and first["offset"] >= now
    oldest = (files[0], 0) if is_whole else consume_queue.FORMAT.first_left(files, now)
    begins = np.maximum(wanted, consume_queue.queue_offset(*oldest))
    lost = np.maximum(new_first - begins, 0)
    at = {offset: _physical_offset(files, offset) for offset in set(begins[lost > 0].tolist())}
    physical = np.array([at.get(offset, UNKNOWN) for offset in begins.tolist()], dtype=np.int64)
    return np.where(known, lost, -np.minimum(lost, 1)), physical


def _physical_offset(files: tuple[MappedFile, ...], queue_offset: int) -> int:
    """Return where in the log a queue's message lies; -1: it can't be told."""
    entry = consume_queue.entry_at(files, queue_offset)
    return UNKNOWN if entry is None else entry.physical_offset


def _is_left(files: tuple[MappedFile, ...], queue_offset: int, min_offset: int) -> bool:
    """Return whether the message at a queue offset, or the one before it, provably lies at or above an offset
    of the log, so that nobody who has read up to there loses any."""
    for offset in (queue_offset, queue_offset - 1):
        entry = consume_queue.entry_at(files, offset)
        if entry is not None and entry.physical_offset >= min_offset:
            return True
    return False


def _queue_files(layout: StoreLayout, topic: str, queue_id: int) -> tuple[Any, tuple[Any, ...], Any] | None:
    """Return a queue's format, its files, and its first entry or None; None: it has no file.

    :raises CorruptFileError: its files aren't a queue, or the only one is empty.
    """
    if not has_directory(topic):
        return None
    plain, batched = (directory / str(queue_id) for directory in queue_directories(layout, topic))
    kinds: tuple[tuple[Path, Any], ...] = ((plain, consume_queue), (batched, batch_consume_queue))
    for path, kind in kinds:
        if files := kind.list_files(path):
            return kind, files, kind.FORMAT.entry(files[0], 0)
    for path, _ in kinds:
        check_not_emptied(path)
    return None


def _row(group: str, items: list[_InQueue], times: Mapping[int, int]) -> UnreadMessages:
    """:param times: store timestamps by physical offset, those that can be told."""
    messages = sum(item.messages for item in items if item.messages > 0)
    return UnreadMessages(
        group=group,
        topic=items[0].topic,
        messages=messages or None,
        queues=len(items),
        from_ms=times.get(_first_offset(items)),
    )


def _first_offset(items: list[_InQueue]) -> int:
    """Return the physical offset of the first message; -1: it can't be told."""
    return min((item.physical_offset for item in items if item.physical_offset >= 0), default=UNKNOWN)


def _times(log: tuple[LogFile, ...], offsets: Collection[int], *, may_go: bool) -> dict[int, int]:
    """Return the store timestamps of the messages at some physical offsets, as far as they can be told."""
    wanted = np.array(sorted(set(offsets) - {UNKNOWN}), dtype=np.int64)
    times = store_timestamps(log, wanted, may_go=may_go)
    return {at: ms for at, ms in zip(wanted.tolist(), times.tolist(), strict=True) if ms != UNKNOWN}


def _most_first(row: UnreadMessages) -> tuple[int, str, str]:
    return -(row.messages or 0), row.group, row.topic
