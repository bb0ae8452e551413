"""Description of a store's content for a person, and search for a topic's messages by their keys.

Files are only read, and only those that the request needs. The index finds messages by a hash, and the log
confirms them. The headers of the index files show which messages the index may lack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from storage_engine.core.file_users import FileUser
from storage_engine.core.jsonable import filled, to_jsonable
from storage_engine.core.long_work import report_each, report_work
from storage_engine.core.untrusted import java_text
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.exceptions import CorruptFrameError, StoreBusyError
from storage_engine.model.disk import DiskUsage
from storage_engine.model.report.inspection import (
    Disks,
    Inspection,
    KeyLookup,
    Names,
    Paragraph,
    Section,
    Table,
)
from storage_engine.model.store import Segment, StoreSnapshot
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.commitlog import FrameKind, read_store_timestamp, scan_segment
from storage_engine.rocketmq.codec.stored_messages import StoredMessage, read_message
from storage_engine.rocketmq.file_facts import LogListing, list_log
from storage_engine.rocketmq.format import batch_consume_queue, config_files, consume_queue
from storage_engine.rocketmq.format.batch_consume_queue import all_queues
from storage_engine.rocketmq.format.broker_config import SETTING_NAMES, BrokerConfig
from storage_engine.rocketmq.format.checkpoint import read_known_values
from storage_engine.rocketmq.format.consume_queue import QueueDirectory
from storage_engine.rocketmq.format.index_file import IndexFile, open_index, read_index_files
from storage_engine.rocketmq.format.layout import StoreLayout, is_new
from storage_engine.rocketmq.format.mapped_files import map_file
from storage_engine.rocketmq.format.stored_files import read_or_tell
from storage_engine.rocketmq.store.store import RocketMQStore
from storage_engine.rocketmq.store.store_lock import lock_holder

_UNITS = {"hours": "h", "percent": "%", "ms": "ms", "bytes": "bytes"}
"""Unit of a field by the end of the field's name."""


@dataclass(frozen=True, slots=True)
class SegmentInspection:
    """A segment, with counts and times of its messages.

    Timestamps are store timestamps in milliseconds since the epoch, or None without a message. If the
    messages were not read, only ``segment`` and the first timestamp are known, and the other fields are None.
    """

    segment: Segment
    messages: int | None
    first_store_timestamp_ms: int | None
    last_store_timestamp_ms: int | None
    damaged_bytes: int | None


@dataclass(frozen=True, slots=True)
class QueueInspection:
    """A queue. Consumers can read the queue offsets [min_offset, max_offset)."""

    topic: str
    queue_id: int
    batch: bool
    files: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class IndexInspection:
    """An index file, with the times and physical offsets that it covers, and its number of entries."""

    path: str
    size_bytes: int
    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_phy_offset: int
    end_phy_offset: int
    entries: int
    hash_slots: int
    capacity: int


@dataclass(frozen=True, slots=True)
class StoreInspection:
    """Everything that ``inspect`` shows.

    :param crashed: whether ``abort`` exists: the broker runs (``holder``), or it did not stop cleanly.
    :param dispatched_offset: messages below this offset are in their consume queues; later ones may be.
    :param queues: one entry for each queue; empty if they were not requested.
    :param unreadable: errors of unreadable files other than the log. The fields for these files are empty.
    """

    root: str
    taken_at_ms: int
    crashed: bool
    holder: FileUser | None
    min_offset: int
    max_offset: int
    dispatched_offset: int
    segments: tuple[SegmentInspection, ...]
    log_disks: tuple[DiskUsage, ...]
    dependents_disk: DiskUsage
    queue_count: int
    queues: tuple[QueueInspection, ...]
    index_files: tuple[IndexInspection, ...]
    checkpoint: Mapping[str, int] | None
    topics: tuple[config_files.TopicConfig, ...]
    groups: tuple[str, ...]
    config: BrokerConfig
    unreadable: tuple[str, ...] = ()


def inspect(
    store: RocketMQStore,
    now_ms: int,
    *,
    messages: bool = False,
    queues: bool = False,
    snapshot: StoreSnapshot | None = None,
) -> StoreInspection:
    """Collect the description of a store.

    :param messages: read every frame of every segment (without checksums), for counts and timestamps.
    :param snapshot: snapshot of a running broker's store. If it is None, one is taken from the files alone.
    :raises BadInputError: the directory is no store, or a file's content contradicts its name.
    """
    snapshot = snapshot or store.snapshot(now_ms)
    (log,) = snapshot.logs
    layout = store.layout
    queue_dirs = [(queue, form is batch_consume_queue.FORMAT) for queue, form in all_queues(layout)]
    index_files, no_index = read_or_tell(partial(read_index_files, layout, store.config), (), "the index")
    checkpoint, no_checkpoint = read_or_tell(
        partial(read_known_values, layout.checkpoint), {}, "the checkpoint"
    )
    topics, no_topics = read_or_tell(partial(config_files.topics, layout), (), "topics")
    groups, no_groups = read_or_tell(partial(config_files.groups, layout), (), "groups' names")
    return StoreInspection(
        root=snapshot.root,
        taken_at_ms=now_ms,
        crashed=snapshot.crashed,
        holder=lock_holder(layout),
        min_offset=log.min_offset,
        max_offset=log.max_offset,
        dispatched_offset=log.dispatched_offset,
        segments=tuple(_segments(log.segments, log.max_offset, messages)),
        log_disks=snapshot.log_disks,
        dependents_disk=snapshot.dependents_disk,
        queue_count=len(queue_dirs),
        queues=tuple(_queues(queue_dirs, log.min_offset)) if queues else (),
        index_files=tuple(map(_index, index_files)),
        checkpoint=checkpoint,
        topics=topics,
        groups=groups,
        config=store.config,
        unreadable=(*no_index, *no_checkpoint, *no_topics, *no_groups),
    )


def _segments(segments: tuple[Segment, ...], max_offset: int, messages: bool) -> Iterator[SegmentInspection]:
    used = [max(0, min(segment.end_offset, max_offset) - segment.base_offset) for segment in segments]
    with report_work("Reading messages", sum(used) if messages else 0) as advance:
        for segment, used_bytes in zip(segments, used, strict=True):
            if not used_bytes:
                yield SegmentInspection(segment, 0, None, None, 0)
            elif messages:
                yield _read_messages(segment, used_bytes)
                advance(used_bytes)
            else:
                yield SegmentInspection(segment, None, _first_store_timestamp(segment), None, None)


def _first_store_timestamp(segment: Segment) -> int | None:
    try:
        return read_store_timestamp(segment.facts.path, 0, segment.base_offset)
    except CorruptFrameError:  # a whole segment can be one blank
        return None


def _read_messages(segment: Segment, used_bytes: int) -> SegmentInspection:
    with map_file(Path(segment.facts.path)) as data:
        frames = scan_segment(data[:used_bytes], segment.base_offset, check_crc=False)
    times = frames.store_timestamp_ms[frames.kind == FrameKind.MESSAGE]
    return SegmentInspection(
        segment=segment,
        messages=len(times),
        first_store_timestamp_ms=int(times[0]) if len(times) else None,
        last_store_timestamp_ms=int(times[-1]) if len(times) else None,
        damaged_bytes=int(np.sum(frames.size_bytes[frames.kind == FrameKind.UNDECODABLE])),
    )


def _index(file: IndexFile) -> IndexInspection:
    entries = file.header.next_entry - 1
    sizes = {"size_bytes": file.size_bytes, "hash_slots": file.hash_slots, "capacity": file.capacity}
    return filled(IndexInspection, file.header, path=str(file.path), entries=entries, **sizes)


def _queues(queue_dirs: list[tuple[QueueDirectory, bool]], log_min_offset: int) -> Iterator[QueueInspection]:
    ordered = sorted(queue_dirs, key=lambda item: (item[0].topic, item[0].queue_id))
    for queue, batch in report_each(ordered, "Looking at queues", "queues"):
        kind = batch_consume_queue if batch else consume_queue
        files = kind.FORMAT.files(queue.path)
        bounds = kind.bounds(files, log_min_offset)
        yield QueueInspection(
            queue.topic, queue.queue_id, batch, len(files), bounds.min_offset, bounds.max_offset
        )


def describe(store: StoreInspection, data_paths: tuple[Path, ...], *, messages: bool) -> Inspection:
    """Convert the description to text for a person, and to data.

    :param messages: whether every frame was read, so that counts are known.
    """
    sections: list[Section] = [
        Paragraph(_state(store)),
        Disks((*store.log_disks, store.dependents_disk)),
        Paragraph(_checkpoint(store)),
        _count_table(store.segments) if messages else _segment_table(store.segments),
    ]
    if store.queues:
        sections.append(_queue_table(store.queues))
    sections.append(Paragraph(""))
    if store.index_files:
        sections.append(Paragraph(_index_text(store.index_files)))
    topics = tuple(topic.topic for topic in store.topics)
    sections += [Paragraph(f"WARNING {problem}") for problem in store.unreadable]
    sections += [Names("Topics", topics), Names("Groups", store.groups), _settings(store.config)]
    return Inspection(to_jsonable(store), tuple(sections), data_paths)


def _state(store: StoreInspection) -> str:
    lines: list[str] = []
    if store.holder is not None:
        lines.append(f"Held by {store.holder.name} (process {store.holder.pid})")
    elif store.crashed:
        lines.append(
            "Not stopped cleanly: abort exists. The store can be archived, but not cleaned until recovered."
        )
    least = "" if store.dispatched_offset >= store.max_offset else "at least "
    lines.append(
        f"Offsets {store.min_offset} to {store.max_offset}; {store.queue_count} consume queues, "
        f"complete {least}up to {store.dispatched_offset}"
    )
    return "\n".join(lines)


def _checkpoint(store: StoreInspection) -> str:
    if store.checkpoint is None:
        return "Checkpoint: none"
    log, queues, index = (
        time_text(store.checkpoint.get(f"{part}_msg_timestamp_ms")) or "unknown"
        for part in ("physic", "logics", "index")
    )
    return f"Checkpoint: commitlog {log}, consume queues {queues},\n            index {index}"


def _count_table(rows: Sequence[SegmentInspection]) -> Table:
    return Table(
        "Commitlog",
        ("segment", "state", "messages#", "first stored", "last stored", "damaged#"),
        tuple(
            (
                row.segment.name,
                row.segment.state.value,
                row.messages,
                time_text(row.first_store_timestamp_ms),
                time_text(row.last_store_timestamp_ms),
                bytes_text(row.damaged_bytes) if row.damaged_bytes else "none",
            )
            for row in rows
        ),
    )


def _segment_table(rows: Sequence[SegmentInspection]) -> Table:
    return Table(
        "Commitlog",
        ("segment", "size#", "state", "last written", "first stored"),
        tuple(
            (
                row.segment.name,
                bytes_text(row.segment.facts.size_bytes),
                row.segment.state.value,
                time_text(row.segment.mtime_ns // 1_000_000),
                time_text(row.first_store_timestamp_ms),
            )
            for row in rows
        ),
    )


def _queue_table(rows: Sequence[QueueInspection]) -> Table:
    return Table(
        "Consume queues",
        ("topic~", "queue#", "files#", "min#", "max#", "kind"),
        tuple(
            (q.topic, q.queue_id, q.files, q.min_offset, q.max_offset, "batch" if q.batch else "")
            for q in rows
        ),
    )


def _index_text(files: Sequence[IndexInspection]) -> str:
    first, last = files[0], files[-1]
    return (
        f"Index: {count_text(len(files), 'file')}, offsets {first.begin_phy_offset} to "
        f"{last.end_phy_offset},\n       "
        f"stored {time_text(first.begin_timestamp_ms)} to {time_text(last.end_timestamp_ms)}"
    )


def _settings(config: BrokerConfig) -> Table:
    return Table(
        "Settings in effect, by the names that --set takes",
        ("setting", "value"),
        tuple((name, _setting_text(field, getattr(config, field))) for field, name in SETTING_NAMES.items()),
    )


def _setting_text(field: str, value: object) -> str:
    if value is None:
        return "not set: as in the existing files"
    if unit := _UNITS.get(field.rpartition("_")[2]):
        return f"{value} {unit}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


_START = struct.Struct(">II")
_KEY_PROPERTIES = (b"KEYS\x01", b"UNIQ_KEY\x01")
_MOST_READ = 1000
"""Largest number of messages without a key that are read, and skipped, at the start of a range."""


def look_up(
    layout: StoreLayout, config: BrokerConfig, topic: str, key: str, max_count: int | None = None
) -> KeyLookup:
    """Find the messages of a topic with a key.

    The broker finds messages only by the hash of topic and key (DefaultMessageStore#queryMessage). Its
    clients then compare topic and keys (MQAdminImpl#queryMessage), and so does this function.

    :param max_count: largest number of messages to return; None for the broker's limit (maxMsgsNumBatch).
        If there are more messages, the newest are returned.
    :raises CorruptFileError: a file isn't a possible index file.
    :raises StoreNotFoundError: there is no segment.
    """
    if is_new(layout):
        return KeyLookup((), ())
    most = config.max_msgs_num_batch if max_count is None else max_count
    log = list_log(layout)
    offsets: list[int] = []
    unread: list[int] = []
    with open_index(layout, config) as index:
        for offset in index.newest_first(topic, key):
            if len(offsets) >= most:
                break
            message = _message_at(log, offset)
            if message is None:
                unread.append(offset)
            elif _has_key(message, topic, key):
                offsets.append(offset)
    return KeyLookup(tuple(sorted(offsets)), tuple(sorted(unread)))


def _message_at(log: LogListing, offset: int) -> StoredMessage | None:
    """Return the message that begins at a physical offset; None if none can be read there."""
    for file in log.named:
        if file.base_offset <= offset < file.end_offset:
            try:
                with map_file(file.path, scattered=True) as data:
                    return read_message(data, offset - file.base_offset, offset)
            except (struct.error, ValueError, FileNotFoundError, StoreBusyError):
                return None
    return None


def _has_key(message: StoredMessage, topic: str, key: str) -> bool:
    """Return whether a message is indexed under a topic and a key (IndexService#buildIndex)."""
    if java_text(message.topic) != topic:
        return False
    unique, keys = (
        java_text(message.property(name) or b"") for name in (frame.PROPERTY_UNIQUE_KEY, frame.PROPERTY_KEYS)
    )
    return bool(key) and (key == unique or key in keys.split(" "))


def unindexed_ranges(layout: StoreLayout, config: BrokerConfig) -> tuple[tuple[int, int | None], ...]:
    """Return ranges of physical offsets that no index file covers although they may have messages with keys.

    Messages without a key aren't indexed. So a range begins at its first message with a key.

    :return: start and end offset of each range. The end is None for a range up to the log's end.
    :raises CorruptFileError: a file isn't a possible index file.
    :raises StoreNotFoundError: there is no segment.
    """
    if is_new(layout):
        return ()
    log = list_log(layout)
    log_end = log.named[-1].end_offset
    ranges: list[tuple[int, int | None]] = []
    position = _first_message_at(log, log.min_offset)
    for file in read_index_files(layout, config):
        begin, end = file.header.begin_phy_offset, file.header.end_phy_offset
        if file.header.next_entry <= 1 or position is None:
            continue
        if (first := _first_with_key(log, position, begin)) is not None:
            ranges.append((first, begin))
        if end >= position:
            position = _next_message(log, end) if _is_message(log, end) else end
    if position is not None and (first := _first_with_key(log, position, log_end)) is not None:
        ranges.append((first, None))
    return tuple(ranges)


def _first_with_key(log: LogListing, position: int, end: int) -> int | None:
    """Return the offset of the first message with a key between two offsets; None if all have no key.

    After :data:`_MOST_READ` messages without a key, the next message is returned unread.
    """
    message: int | None = position
    for _ in range(_MOST_READ):
        if message is None or message >= end:
            return None
        if not _is_message(log, message):
            return message
        content = log.read_at(message, _start(log, message)[0])
        flags = int.from_bytes(content[frame.SYS_FLAG_AT : frame.BORN_TIMESTAMP_AT].ljust(4, b"\0"), "big")
        is_rolled_back = flags & frame.TRANSACTION_MASK == frame.TRANSACTION_ROLLBACK
        if not is_rolled_back and any(name in content for name in _KEY_PROPERTIES):
            return message
        message = _next_message(log, message)
    return message


def _next_message(log: LogListing, offset: int) -> int | None:
    """Return the offset of the message behind the one at ``offset``; None if no message follows."""
    return _first_message_at(log, offset + _start(log, offset)[0])


def _first_message_at(log: LogListing, offset: int) -> int | None:
    """Return the offset of the message at ``offset`` or behind a blank there; None if no message is there."""
    size, magic = _start(log, offset)
    if magic == frame.MAGIC_BLANK:
        offset += size
    return offset if _is_message(log, offset) else None


def _is_message(log: LogListing, offset: int) -> bool:
    return _start(log, offset)[1] in frame.MESSAGE_MAGICS


def _start(log: LogListing, offset: int) -> tuple[int, int]:
    """Return size and magic code of the frame at an offset; zeros if the log has no bytes there."""
    content = log.read_at(offset, _START.size)
    size, magic = _START.unpack(content) if len(content) == _START.size else (0, 0)
    return size, magic
