"""Consumer groups' lag, and their unread messages in segments that a plan deletes, from a store's files.

The input is a table of (group, topic, queue, committed offset). Each queue's files are read once for all its
groups, and the other steps are vectorised. So a Spark task can do any share of the work.

To find unread messages, the first entry of each queue with a group is read. It shows whether the queue loses
entries. Only if the queue does, further entries are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.arrow.name_columns import (
    ANYWHERE,
    PLACES_SCHEMA,
    names_of,
    one_array,
    queue_starts,
    segments_table,
)
from storage_engine.core.long_work import report_work
from storage_engine.core.wording import count_text
from storage_engine.exceptions import BadInputError, FileGoneError
from storage_engine.model.broker.kind import check_plan
from storage_engine.model.lag import LagSource, Unread, UnreadMessages
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store import Segment, SegmentId, StoreSnapshot
from storage_engine.rocketmq.cleanup_rules import delete_hours, expires_at_ms, next_window_ms
from storage_engine.rocketmq.codec.stored_messages import UNKNOWN, file_of, store_timestamps
from storage_engine.rocketmq.format import batch_consume_queue, consume_queue
from storage_engine.rocketmq.format.broker_config import CONSUME_QUEUE_ENTRY_BYTES, BrokerConfig
from storage_engine.rocketmq.format.consume_queue import FILLER_SIZE, Position
from storage_engine.rocketmq.format.layout import LOG, StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile, check_not_emptied, has_directory, map_file
from storage_engine.rocketmq.format.stored_files import reread
from storage_engine.rocketmq.lag.consumer_offsets import queue_directories

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LagContext:
    """Data from which lag is measured. It can be pickled.

    :param segments: files of the commitlog, oldest first.
    :param doomed: base offsets of the segments that are about to be deleted.
    :param time_to_loss_ms: for each segment, the time until age alone allows the deletion of it and of all
        older segments. 0 for ``doomed`` segments; None for others if deleteWhen has no hour.
    :param source: source of the measured positions.
    :param attempts: number of attempts to read a queue's inconsistent files beside a running broker.
    :param unreadable: gets the errors of queues that this process can't read.
    """

    layout: StoreLayout
    segments: tuple[MappedFile, ...]
    doomed: frozenset[int]
    time_to_loss_ms: tuple[int | None, ...]
    source: LagSource = field(default_factory=LagSource)
    attempts: int = 1
    unreadable: list[str] = field(default_factory=list, compare=False)

    @property
    def log_min_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def segments_table(self) -> pa.Table:
        """Return the segments, each with its ``time_to_loss_ms`` and whether it is about to be deleted."""
        return segments_table(
            (LOG, segment.base_offset, segment.base_offset in self.doomed, loss_ms)
            for segment, loss_ms in zip(self.segments, self.time_to_loss_ms, strict=True)
        )


def lag_context(
    layout: StoreLayout,
    snapshot: StoreSnapshot,
    config: BrokerConfig,
    doomed: Collection[SegmentId],
    now_ms: int,
    zone: ZoneInfo,
) -> LagContext:
    """Collect the data that :func:`place_positions` needs.

    :param doomed: segments of a plan. Another run may have deleted those before the log's min offset.
    :raises BadInputError: a segment of the plan at or above the min offset isn't in the store.
    """
    (log,) = snapshot.logs
    check_plan(snapshot, doomed)
    hours = delete_hours(config)
    losses: list[int | None] = []
    expired_ms = now_ms
    for segment in log.segments:
        expired_ms = max(expired_ms, expires_at_ms(segment, config))
        window_ms = now_ms if segment.id in doomed else next_window_ms(expired_ms, hours, zone)
        losses.append(None if window_ms is None else window_ms - now_ms)
    return LagContext(
        layout=layout,
        segments=tuple(map(file_of, log.segments)),
        doomed=frozenset(segment.base_offset for segment in doomed),
        time_to_loss_ms=tuple(losses),
    )


def place_positions(context: LagContext, positions: pa.Table | pa.RecordBatch) -> pa.Table:
    """Measure each row's lag, and find the segment of the group's next message.

    If a group's next messages are gone, it continues at the oldest remaining message. A group has no lag at
    the end of a queue, or in a queue that is gone. Without a committed offset, the group's position is
    unknown: it may need the queue's oldest message. If a queue's files can't be read, the next message of
    each of its groups may be anywhere.

    :param positions: table of :data:`~storage_engine.arrow.name_columns.POSITIONS_SCHEMA`. The rows of a
        queue are neighbours, but may be split between calls.
    :return: table of :data:`PLACES_SCHEMA`, in the order of ``positions``.
    :raises FileGoneError: a queue's file vanished after it was listed.
    """
    committed, is_set = _committed(positions)
    read = _read_queues(context, positions, committed, is_set)

    measured = is_set & read.readable
    lost = np.where(measured, np.maximum(read.min_offset - committed, 0), 0)
    lag = np.maximum(read.max_offset - committed, 0)
    behind = measured & (np.maximum(committed, read.min_offset) < read.max_offset)
    located = behind & (read.next_physical >= 0)
    lag_ms, timed = _lag_in_time(context, read, located)

    bases = np.array([item.base_offset for item in context.segments], dtype=np.int64)
    ends = np.array([item.end_offset for item in context.segments], dtype=np.int64)
    segment = np.searchsorted(bases, read.next_physical, "right") - 1
    inside = (segment >= 0) & (read.next_physical < ends[segment])
    lies = inside & (located | ~is_set)
    anywhere = (behind & ~located) | ~read.readable
    columns = [
        positions["group"],
        positions["topic"],
        positions["queue_id"],
        pa.array(committed, mask=~is_set),
        read.min_offset,
        read.max_offset,
        pa.array(lag, mask=~measured),
        pa.array(lag_ms, mask=~(timed | (measured & ~behind))),
        pa.array(read.next_physical, mask=~located),
        pa.array(np.where(anywhere, ANYWHERE, bases[segment]), mask=~(lies | anywhere)),
        lost,
        pa.DictionaryArray.from_arrays(np.zeros(positions.num_rows, dtype=np.int32), pa.array([LOG])),
        pa.nulls(positions.num_rows, pa.int64()),
    ]
    return pa.table(columns, schema=PLACES_SCHEMA)


@dataclass(frozen=True, slots=True)
class _Read:
    """Data read from the queues' files, one element for each row.

    :param next_physical: physical offset of the group's next message, or if the group's position is unknown,
        of the queue's oldest readable message. -1 if there is no such message, or its offset is unknown.
    :param newest_physical: physical offset of the queue's last message; -1 if it is missing or unknown.
    :param readable: whether the queue's files can be read. If not, the other fields have no meaning.
    """

    min_offset: Longs
    max_offset: Longs
    next_physical: Longs
    newest_physical: Longs
    readable: Flags


def _read_queues(
    context: LagContext, positions: pa.Table | pa.RecordBatch, committed: Longs, is_set: Flags
) -> _Read:
    rows = positions.num_rows
    ends = (np.zeros(rows, np.int64), np.zeros(rows, np.int64))
    read = _Read(*ends, np.full(rows, UNKNOWN), np.full(rows, UNKNOWN), np.ones(rows, dtype=bool))
    for topic, queue_id, span in queue_runs(positions):
        offsets = np.where(is_set[span], committed[span], 0)
        try:
            look = partial(read_queue, context.layout, context.log_min_offset, topic, queue_id, offsets)
            bounds, physical = reread(look, context.attempts)
        except FileNotFoundError as error:
            raise FileGoneError.at(error.filename) from error
        except (BadInputError, OSError) as error:
            context.unreadable.append(f"lag in queue {queue_id} of {topic} isn't known: {reason_of(error)}")
            read.readable[span] = False
            continue
        read.min_offset[span], read.max_offset[span] = bounds.min_offset, bounds.max_offset
        read.next_physical[span], read.newest_physical[span] = physical[:-1], physical[-1]
    return read


def queue_runs(positions: pa.Table | pa.RecordBatch) -> Iterator[tuple[str, int, slice]]:
    """Yield topic, queue and span of each run of neighbouring rows of one queue."""
    starts = queue_starts(positions)
    if not starts.size:
        return
    topics = one_array(positions["topic"])
    names = names_of(topics.dictionary.take(np.asarray(topics.indices)[starts]))
    queues = np.asarray(positions["queue_id"])[starts].tolist()
    ends = [*starts[1:].tolist(), positions.num_rows]
    for name, queue_id, start, end in zip(names, queues, starts.tolist(), ends, strict=True):
        yield name, queue_id, slice(start, end)


def read_queue(
    layout: StoreLayout, log_min_offset: int, topic: str, queue_id: int, wanted: Longs
) -> tuple[consume_queue.QueueBounds, Longs]:
    """Return a queue's bounds, and physical offsets of the wanted messages and of the newest one.

    A wanted offset below the bounds counts as the lowest offset in them. The physical offset is -1 if there
    is no message.
    """
    listed = _list_files(layout, topic, queue_id)
    if listed is None:
        return consume_queue.QueueBounds(0, 0), np.full(len(wanted) + 1, UNKNOWN, dtype=np.int64)
    kind, files = listed
    return read_files(files, log_min_offset, wanted, is_batch=kind is batch_consume_queue)


def read_files(
    files: tuple[MappedFile, ...],
    log_min_offset: int,
    wanted: Longs,
    *,
    last: Position = None,
    is_batch: bool = False,
) -> tuple[consume_queue.QueueBounds, Longs]:
    """Return the same as :func:`read_queue`, for listed files.

    :param last: position of the queue's last entry; None to look for it.
    """
    kind = batch_consume_queue if is_batch else consume_queue
    bounds = kind.bounds(files, log_min_offset, last)
    offsets = np.append(np.maximum(wanted, bounds.min_offset), bounds.max_offset - 1)
    offsets_of = _batch_physical_offsets if is_batch else _physical_offsets
    return bounds, offsets_of(files, offsets, bounds)


def _physical_offsets(
    files: tuple[MappedFile, ...], offsets: Longs, bounds: consume_queue.QueueBounds
) -> Longs:
    physical = np.full(len(offsets), UNKNOWN, dtype=np.int64)
    readable = (offsets >= bounds.min_offset) & (offsets < bounds.max_offset)
    for file in files:
        first = file.base_offset // CONSUME_QUEUE_ENTRY_BYTES
        in_file = (offsets >= first) & (offsets < file.end_offset // CONSUME_QUEUE_ENTRY_BYTES)
        rows = np.flatnonzero(readable & in_file)
        if rows.size:
            with map_file(file.path, scattered=True) as data:
                entries = np.frombuffer(data, consume_queue.DTYPE)[offsets[rows] - first]
            physical[rows] = np.where(entries["size"] == FILLER_SIZE, UNKNOWN, entries["offset"])
    return physical


def _batch_physical_offsets(
    files: tuple[MappedFile, ...], offsets: Longs, bounds: consume_queue.QueueBounds
) -> Longs:
    """Return, for each queue offset, the physical offset of the batch that contains it; -1 if none does."""
    entries = batch_consume_queue.FORMAT.read_queue(files)
    physical = np.full(len(offsets), UNKNOWN, dtype=np.int64)
    readable = (offsets >= bounds.min_offset) & (offsets < bounds.max_offset)
    rows = np.searchsorted(entries["base_offset"], offsets[readable], "right") - 1
    physical[readable] = entries["offset"][rows]
    return physical


def _lag_in_time(context: LagContext, read: _Read, located: Flags) -> tuple[Longs, Flags]:
    """Return the time from each group's next message to the queue's newest one, and whether it is known."""
    lag_ms = np.zeros(len(located), dtype=np.int64)
    offsets, inverse = np.unique(
        np.concatenate([read.next_physical[located], read.newest_physical[located]]), return_inverse=True
    )
    times = store_timestamps(context.segments, offsets, may_go=context.attempts > 1)[inverse]
    next_ms, newest_ms = np.split(times, 2)
    timed = located.copy()
    timed[located] = (next_ms != UNKNOWN) & (newest_ms != UNKNOWN)
    lag_ms[located] = np.maximum(newest_ms - next_ms, 0)
    return lag_ms, timed


def _committed(positions: pa.Table | pa.RecordBatch) -> tuple[Longs, Flags]:
    """Return committed offsets, 0 for null, and which are set."""
    column: Any = positions["committed_offset"]
    return np.asarray(pc.fill_null(column, 0), np.int64), np.asarray(pc.is_valid(column), bool)


@dataclass(frozen=True, slots=True)
class _InQueue:
    """The unread messages that one group loses in one queue by a deletion.

    :param messages: number of messages; -1 if the group's position is unknown.
    :param physical_offset: physical offset of the first message; -1 if unknown.
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
    """Find each group's unread messages below an offset of the log, by group and topic.

    :param segments: segments of the log, oldest first.
    :param positions: table of ``POSITIONS_SCHEMA`` in ``lag.consumer_offsets``, in queue order.
    :param new_min_offset: the log's first offset after the deletion.
    :param attempts: number of attempts to read inconsistent files.
    :param deleted: whether the segments are already deleted, so that queues may lack their entries.
    :raises CorruptFileError: a queue's files are malformed.
    :raises FileNotFoundError: a queue's file vanished after it was listed.
    """
    log_min_offset = segments[0].base_offset
    min_offsets = (log_min_offset, new_min_offset)
    groups = one_array(positions["group"])
    group = np.asarray(groups.indices)
    committed, is_set = _committed(positions)
    unread: dict[tuple[int, str], list[_InQueue]] = {}
    unknown_losses: set[tuple[int, str]] = set()
    for topic, queue_id, span in _iter_runs(positions):
        look = partial(_count_lost, layout, min_offsets, topic, queue_id, committed[span], is_set[span])
        lost, physical = reread(look, attempts)
        lost_below = _find_lost_end(layout, log_min_offset, topic, queue_id) if deleted else 0
        for code, messages, at in zip(group[span].tolist(), lost.tolist(), physical.tolist(), strict=True):
            if messages:
                unread.setdefault((code, topic), []).append(_InQueue(topic, messages, at))
        missed = np.where(is_set[span], committed[span], 0) < lost_below
        unknown_losses |= {(code, topic) for code in group[span][missed].tolist()}
    names = names_of(groups.dictionary)
    log = tuple(map(file_of, segments))
    times = _times(log, list(map(_first_offset, unread.values())), may_go=deleted or attempts > 1)
    rows = [_row(names[key[0]], items, times) for key, items in unread.items()]
    rows.sort(key=lambda row: (-(row.messages or 0), row.group, row.topic))
    unknown = [(names[code], topic) for code, topic in unknown_losses]
    return Unread(tuple(rows), error=_unknown_text(unknown) if unknown else "")


def _iter_runs(positions: pa.Table) -> Iterator[tuple[str, int, slice]]:
    """Yield the runs of :func:`queue_runs`, and report progress."""
    with report_work("Reading queues", positions.num_rows, "positions") as advance:
        for run in queue_runs(positions):
            yield run
            advance(run[2].stop - run[2].start)


def _unknown_text(groups_and_topics: list[tuple[str, str]]) -> str:
    (group, topic), *further = sorted(groups_and_topics)
    others = f"; likewise for {count_text(len(further), 'more group and topic')}" if further else ""
    return f"queues of {topic} have lost their entries of messages that {group} had not read{others}"


def _find_lost_end(layout: StoreLayout, log_min_offset: int, topic: str, queue_id: int) -> int:
    """Return the queue offset below which entries may be lost although the log still has their messages.

    Return 0 if no such entry is lost, or the queue is gone. The log has messages from ``log_min_offset`` on.
    """
    listed = _list_files(layout, topic, queue_id)
    if listed is None:
        return 0
    kind, files = listed
    first = kind.FORMAT.entry(files[0], 0)
    if first is not None and (first["size"] == FILLER_SIZE or first["offset"] <= log_min_offset):
        return 0
    bounds: consume_queue.QueueBounds = kind.bounds(files, log_min_offset)
    return bounds.min_offset


def _count_lost(
    layout: StoreLayout,
    min_offsets: tuple[int, int],
    topic: str,
    queue_id: int,
    committed: Longs,
    is_set: Flags,
) -> tuple[Longs, Longs]:
    """Return the number of unread messages that each row's group loses, and their first physical offset.

    The number is -1 if messages are lost, but the group's position is unknown.

    :param min_offsets: min offsets of the log, now and after the deletion.
    """
    now, after = min_offsets
    zeros = np.zeros(len(committed), np.int64)
    listed = _list_files(layout, topic, queue_id)
    if listed is None:
        return zeros, zeros
    kind, files = listed
    first = kind.FORMAT.entry(files[0], 0)
    if first is None or (first["size"] != FILLER_SIZE and first["offset"] >= after):
        return zeros, zeros
    offsets = np.where(is_set, committed, 0)
    if kind is batch_consume_queue:
        last = kind.FORMAT.last_position(files)
        new_first = kind.bounds(files, after, last).min_offset
        bounds, physical = read_files(files, now, offsets, last=last, is_batch=True)
        lost = np.maximum(new_first - np.maximum(offsets, bounds.min_offset), 0)
        return np.where(is_set, lost, -np.minimum(lost, 1)), physical[:-1]
    if is_set.all() and _is_left(files, int(offsets.min()), after):
        return zeros, zeros
    new_first = consume_queue.queue_offset(*consume_queue.FORMAT.first_left(files, after))
    is_complete = first["size"] != FILLER_SIZE and first["offset"] >= now
    oldest = (files[0], 0) if is_complete else consume_queue.FORMAT.first_left(files, now)
    begins = np.maximum(offsets, consume_queue.queue_offset(*oldest))
    lost = np.maximum(new_first - begins, 0)
    entries = {offset: consume_queue.entry_at(files, offset) for offset in set(begins[lost > 0].tolist())}
    at = {offset: entry.physical_offset for offset, entry in entries.items() if entry is not None}
    physical = np.array([at.get(offset, UNKNOWN) for offset in begins.tolist()], dtype=np.int64)
    return np.where(is_set, lost, -np.minimum(lost, 1)), physical


def _is_left(files: tuple[MappedFile, ...], queue_offset: int, min_offset: int) -> bool:
    """Return whether a group with this committed offset provably loses no message.

    The proof is that the group's next message, or the message before it, isn't below ``min_offset``.
    """
    entries = (consume_queue.entry_at(files, offset) for offset in (queue_offset, queue_offset - 1))
    return any(entry is not None and entry.physical_offset >= min_offset for entry in entries)


def _list_files(layout: StoreLayout, topic: str, queue_id: int) -> tuple[Any, tuple[MappedFile, ...]] | None:
    """Return a queue's format and its files; None if it has no file.

    :raises CorruptFileError: its files are malformed, or its only file is empty.
    """
    if not has_directory(topic):
        return None
    plain, batched = (directory / str(queue_id) for directory in queue_directories(layout, topic))
    kinds: tuple[tuple[Path, Any], ...] = ((plain, consume_queue), (batched, batch_consume_queue))
    for path, kind in kinds:
        if files := kind.FORMAT.files(path):
            return kind, files
    for path, _ in kinds:
        check_not_emptied(path)
    return None


def _row(group: str, items: list[_InQueue], times: Mapping[int, int]) -> UnreadMessages:
    messages = sum(item.messages for item in items if item.messages > 0)
    return UnreadMessages(
        group=group,
        topic=items[0].topic,
        messages=messages or None,
        queues=len(items),
        from_ms=times.get(_first_offset(items)),
    )


def _first_offset(items: list[_InQueue]) -> int:
    """Return the physical offset of the first message; -1 if unknown."""
    return min((item.physical_offset for item in items if item.physical_offset >= 0), default=UNKNOWN)


def _times(log: tuple[MappedFile, ...], offsets: Collection[int], *, may_go: bool) -> dict[int, int]:
    """Return the known store timestamps of messages by their physical offsets."""
    distinct = np.array(sorted(set(offsets) - {UNKNOWN}), dtype=np.int64)
    times = store_timestamps(log, distinct, may_go=may_go)
    return {at: ms for at, ms in zip(distinct.tolist(), times.tolist(), strict=True) if ms != UNKNOWN}
