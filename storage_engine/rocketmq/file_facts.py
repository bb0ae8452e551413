"""Facts of a RocketMQ store for validation: names, sizes and frames of its files. Judges nothing."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from storage_engine.core.long_work import report_each, report_work
from storage_engine.exceptions import StoreBusyError, StoreNotFoundError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.report.facts import (
    CheckpointFact,
    DispatchFact,
    FactsScope,
    FrameFact,
    IndexFact,
    LocalSegment,
    QueueFact,
    QueueFileFact,
    SegmentFact,
    StoreFacts,
)
from storage_engine.model.store import FileFacts
from storage_engine.rocketmq.cleanup_rules import DEFAULT_INTERVAL_MS
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.commitlog import FrameKind, FrameTable, scan_segment
from storage_engine.rocketmq.format import batch_consume_queue, consume_queue
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.checkpoint import Checkpoint, read_known_values
from storage_engine.rocketmq.format.consume_queue import FILLER_SIZE, Entries, EntryFormat, iter_queues
from storage_engine.rocketmq.format.index_file import list_index_paths, read_header
from storage_engine.rocketmq.format.layout import LOG, StoreLayout, is_new, resolve_layout
from storage_engine.rocketmq.format.mapped_files import (
    MappedFile,
    has_directory,
    is_offset,
    list_raw_files,
    map_file,
    queue_id_of,
    readable_files,
)
from storage_engine.rocketmq.format.stored_files import Patience, open_stored, read_or_tell, refuse_link
from storage_engine.rocketmq.live.connect import local_settings, reach
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.store.store import find_active

if TYPE_CHECKING:
    from storage_engine.rocketmq.engine.serving import EngineSession

_HEAD = struct.Struct(">iI")
"""Size and magic code of a frame."""
_QUEUE_FIELDS = struct.Struct(">i4xq8xi")
"""Queue id, queue offset and system flag of a frame."""
_LMQ_PREFIX = "%LMQ%"


@dataclass(frozen=True, slots=True)
class BrokerLogEnd:
    """End of a running broker's log, as the broker reports it. All messages below it are complete.

    :param dispatched_offset: messages below this offset are in their consume queues.
    """

    max_offset: int
    dispatched_offset: int


@dataclass(frozen=True, slots=True)
class LogListing:
    """The commitlog's files as they were listed, with faulty ones.

    :param named: the files that are named by an offset and aren't empty, sorted by base offset.
    """

    files: tuple[tuple[Path, int], ...]
    named: tuple[MappedFile, ...]

    @property
    def min_offset(self) -> int:
        return self.named[0].base_offset

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Return bytes of the log at a physical offset; fewer or no bytes if no file has them.

        :raises FileNotFoundError: the file has vanished since the listing.
        """
        for file in self.named:
            if file.base_offset <= offset < file.end_offset:
                with open_stored(file.path) as opened:
                    # A damaged queue's entry may have any size.
                    count = max(0, min(size_bytes, file.end_offset - offset))
                    return os.pread(opened.fileno(), count, offset - file.base_offset)
        return b""


@dataclass(frozen=True, slots=True)
class LogFiles(LogListing):
    """A listing of the log's files, with the log's end.

    :param dispatched_offset: messages below this offset must be in their consume queues.
    """

    active: int
    max_offset: int
    dispatched_offset: int

    @property
    def local(self) -> tuple[LocalSegment, ...]:
        """Return the log's files, each with the range of offsets in which it has messages.

        :raises FileNotFoundError: a file has vanished since the listing.
        """
        return tuple(
            LocalSegment(
                log=LOG,
                start_offset=file.base_offset,
                end_offset=min(file.end_offset, max(file.base_offset, self.max_offset)),
                facts=FileFacts.of(file.path),
            )
            for file in self.named
        )


@dataclass(frozen=True, slots=True)
class LogWalk:
    """Facts from the log's messages.

    :param newest_store_timestamp_ms: newest store time of the messages that were read; -1 if none was read.
    """

    frames: tuple[FrameFact, ...]
    dispatch: tuple[DispatchFact, ...]
    newest_store_timestamp_ms: int
    notes: tuple[str, ...]


def list_log(layout: StoreLayout) -> LogListing:
    """List the files in the log's directories. Reads only names and sizes.

    :raises StoreNotFoundError: there is no segment.
    """
    raw_files = list_raw_files(layout.log_paths)
    named = readable_files(raw_files)
    if not named:
        raise StoreNotFoundError(
            f"{', '.join(map(str, layout.log_paths))}: expected segment files, found none. Name the "
            "directory that the broker's storePathRootDir names."
        )
    return LogListing(raw_files, named)


def find_log_files(listing: LogListing, end: BrokerLogEnd | None = None) -> LogFiles:
    """Find the log's end.

    :param end: the end that a running broker reported before the listing. Bytes behind it may be unfinished.
    """
    active, max_offset = find_active(listing.named)
    if end is None:
        return LogFiles(listing.files, listing.named, active, max_offset, max_offset)
    max_offset = min(max_offset, end.max_offset)
    while active and listing.named[active].base_offset >= max_offset:
        active -= 1
    return LogFiles(listing.files, listing.named, active, max_offset, end.dispatched_offset)


def segment_facts(layout: StoreLayout, log: LogFiles) -> tuple[SegmentFact, ...]:
    """Return one row for each file, sorted by name."""
    expected = layout.segment_size_bytes or Counter(size for _, size in log.files).most_common(1)[0][0]
    rows = []
    for path, size in log.files:
        base_offset = int(path.name) if is_offset(path.name) else -1
        rows.append(
            SegmentFact(
                subject=f"{path.parent.name}/{path.name}",
                log=LOG,
                name=path.name,
                base_offset=base_offset,
                end_offset=base_offset + size if base_offset >= 0 else -1,
                first_frame_offset=_first_frame_offset(path) if size > 0 else -1,
                expected_size_bytes=expected,
                size_bytes=size,
            )
        )
    return tuple(rows)


def walk_segments(layout: StoreLayout, log: LogFiles, scope: FactsScope) -> LogWalk:
    """Walk the first and the active segment frame by frame, or with ``full`` every segment.

    Without ``full`` these two suffice: deletions end at the first segment, and the active segment has the
    newest message.
    """
    frames: list[FrameFact] = []
    dispatch: list[DispatchFact] = []
    newest = -1
    written = log.named[: log.active + 1]
    chosen = written if scope.full else tuple(dict.fromkeys((written[0], written[-1])))
    ends = [min(file.size_bytes, log.max_offset - file.base_offset) for file in chosen]
    with report_work("Reading segments", sum(ends)) as advance:
        for file, end in zip(chosen, ends, strict=True):
            with map_file(file.path) as data, data[:end] as used:
                table = scan_segment(used, file.base_offset)
            bad = table.kind == FrameKind.UNDECODABLE
            frames.append(
                FrameFact(
                    subject=f"{file.path.parent.name}/{file.path.name}",
                    frames=len(table.kind) - int(bad.sum()),
                    accepted_damaged_bytes=scope.accepted_damage.get((LOG, file.base_offset), 0),
                    damaged_bytes=int(table.size_bytes[bad].astype(np.int64).sum()),
                )
            )
            stamps = table.store_timestamp_ms[table.kind == FrameKind.MESSAGE]
            newest = int(stamps.max(initial=newest))
            if scope.full:
                dispatch += _dispatch_facts(layout, file, table, log.dispatched_offset)
            advance(end)
    skipped = len(written) - len(chosen)
    notes = (f"{skipped} segments between the first and the active one were not walked",) if skipped else ()
    return LogWalk(tuple(frames), tuple(dispatch), newest, notes)


def crash_notes(layout: StoreLayout, log: LogFiles) -> tuple[str, ...]:
    """Return notices if the broker didn't stop cleanly: that it crashed, and where its log is torn."""
    if not layout.abort.exists():
        return ()
    crashed = (
        f"the store crashed, or its broker runs: {layout.abort} exists. Faults behind offset "
        f"{log.max_offset}, where the log's last whole frame ends, are mended by the broker's recovery: "
        "start the broker, stop it cleanly, and validate again"
    )
    header = log.read_at(log.max_offset, frame.BODY_CRC_AT)
    if len(header) < frame.BODY_CRC_AT:
        return (crashed,)
    size, magic = _HEAD.unpack_from(header)
    if magic not in frame.MESSAGE_MAGICS:
        return (crashed,)
    file = log.named[log.active]
    torn = (
        f"{file.path}: a torn frame at physical offset {log.max_offset} (position "
        f"{log.max_offset - file.base_offset} in the file): its header says {size} bytes, and they are not a "
        "whole frame"
    )
    return crashed, torn


def _first_frame_offset(path: Path) -> int:
    with open_stored(path) as file:
        header = file.read(frame.SYS_FLAG_AT)
    if len(header) < frame.SYS_FLAG_AT:
        return -1
    if _HEAD.unpack_from(header)[1] not in frame.MESSAGE_MAGICS:
        return -1
    return int.from_bytes(header[frame.PHYSICAL_OFFSET_AT :][:8], "big", signed=True)


def _dispatch_facts(
    layout: StoreLayout, file: MappedFile, table: FrameTable, dispatched_offset: int
) -> list[DispatchFact]:
    """Count for each queue a segment's messages without an entry in the consume queue.

    Frames flagged prepared or rollback get no entry (CommitLogDispatcherBuildConsumeQueue).
    """
    undispatched = (frame.TRANSACTION_PREPARED, frame.TRANSACTION_ROLLBACK)
    rows = np.flatnonzero(
        (table.kind == FrameKind.MESSAGE)
        & (table.physical_offset < dispatched_offset)
        & ~np.isin(table.sys_flag & frame.TRANSACTION_MASK, undispatched)
    )
    order = rows[np.lexsort((table.queue_offset[rows], table.queue_id[rows], table.topic[rows]))]
    if not len(order):
        return []
    queue_of = np.stack((table.topic[order], table.queue_id[order]))
    starts = np.flatnonzero(np.any(np.diff(queue_of, prepend=-2), axis=0))
    facts = []
    for group in np.split(order, starts[1:]):
        topic, queue_id = table.topics[int(table.topic[group[0]])], int(table.queue_id[group[0]])
        missing = missing_entries(
            layout, topic, queue_id, table.queue_offset[group], table.physical_offset[group]
        )
        if missing is not None:
            subject = f"{file.path.name}: {topic}/{queue_id}"
            facts.append(DispatchFact(subject, messages=len(group), missing=missing))
    return facts


@dataclass(frozen=True, slots=True)
class Queues:
    """Facts of the consume queues of both kinds.

    :param queues: facts without the log's max offset: ``log_max_offset`` is -1.
    """

    files: tuple[QueueFileFact, ...]
    queues: tuple[QueueFact, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Queue:
    kind: str
    topic: str
    queue_id: int
    path: Path
    format: EntryFormat

    @property
    def subject(self) -> str:
        return f"{self.kind}/{self.topic}/{self.queue_id}"


def collect_queues(
    layout: StoreLayout, look: Callable[[], LogListing], scope: FactsScope, patience: Patience
) -> Queues:
    """Collect facts of the queues in ``scope``.

    With ``full`` all live entries of all queues are read. Otherwise two parts of each queue are read: the
    first file that isn't left over, and the last entry.

    :param patience: how long to repeat a read while a running broker deletes and appends.
    """
    files: list[QueueFileFact] = []
    queues: list[QueueFact] = []
    left_over: list[Callable[[], int]] = []
    log = look()
    for queue in report_each(list(_choose_queues(layout, scope)), "Reading queues", "queues"):
        row = patience.settled(partial(_read_queue, queue, scope.full), log, look, _is_sound)
        files += row.files
        if row.queue is not None:
            queues.append(row.queue)
            left_over.append(partial(_recount_left_over, queue, row.queue.log_min_offset))
    still = patience.until_none(left_over, [row.left_over_files for row in queues])
    queues = [replace(row, left_over_files=count) for row, count in zip(queues, still, strict=True)]
    is_complete = scope.full or scope.queues is None
    notes = () if is_complete else (f"{len(queues)} queues that the run touched were read",)
    return Queues(tuple(files), tuple(queues), notes)


@dataclass(frozen=True, slots=True)
class _Row:
    """Facts about one queue. They are empty if the queue has no file."""

    files: tuple[QueueFileFact, ...]
    queue: QueueFact | None


def _read_queue(queue: _Queue, full: bool, log: LogListing) -> _Row:
    raw_files = list_raw_files((queue.path,), refuse_links=False)
    named = readable_files(raw_files, unit_bytes=queue.format.dtype.itemsize)
    fact = _queue_fact(queue, named, log, full) if named else None
    return _Row(tuple(_file_facts(queue, raw_files)), fact)


def _is_sound(row: _Row) -> bool:
    """Return whether a queue's facts agree. If not, the queue has a fault, or changed during the read."""
    queue = row.queue
    return all(a.end_offset == b.start_offset >= 0 for a, b in pairwise(row.files)) and (
        queue is None
        or (
            queue.found_message in ("", queue.expected_message)
            and queue.lowest_live_offset == queue.first_live_offset
        )
    )


def _recount_left_over(queue: _Queue, minimum: int) -> int:
    return _count_left_over(queue, _readable_files(queue.path, queue.format), minimum)


def missing_entries(
    layout: StoreLayout,
    topic: str,
    queue_id: int,
    queue_offsets: npt.NDArray[np.int64],
    physical_offsets: npt.NDArray[np.int64],
) -> int | None:
    """Return how many of these messages have no entry in their queue that points at them.

    In a consume queue, only the entry at the message's own queue offset counts. A batch consume queue has one
    entry for each frame (BatchConsumeQueue#putMessagePositionInfoWrapper).

    :param queue_offsets: ascending.
    :return: None if the queue doesn't exist: its topic was deleted or can't be the name of a directory.
    """
    if not has_directory(topic):
        return None
    if plain := _readable_files(layout.consumequeue / topic / str(queue_id), consume_queue.FORMAT):
        return len(queue_offsets) - _count_matches(plain, queue_offsets, physical_offsets)
    form = batch_consume_queue.FORMAT
    if batch := _readable_files(layout.batchconsumequeue / topic / str(queue_id), form):
        return int((~np.isin(physical_offsets, form.read_queue(batch)["offset"])).sum())
    return None


def _readable_files(path: Path, form: EntryFormat) -> tuple[MappedFile, ...]:
    return readable_files(list_raw_files((path,), refuse_links=False), unit_bytes=form.dtype.itemsize)


def _count_matches(
    files: tuple[MappedFile, ...],
    queue_offsets: npt.NDArray[np.int64],
    physical_offsets: npt.NDArray[np.int64],
) -> int:
    unit = consume_queue.DTYPE.itemsize
    matched = 0
    for file in files:
        first, last = file.base_offset // unit, file.end_offset // unit
        low, high = np.searchsorted(queue_offsets, (first, last))
        if low < high:
            entries = consume_queue.FORMAT.read_file(file)
            at = queue_offsets[low:high] - first
            inside = at < len(entries)
            matched += int((entries["offset"][at[inside]] == physical_offsets[low:high][inside]).sum())
    return matched


def _choose_queues(layout: StoreLayout, scope: FactsScope) -> Iterator[_Queue]:
    kinds = (
        ("consumequeue", layout.consumequeue, consume_queue.FORMAT),
        ("batchconsumequeue", layout.batchconsumequeue, batch_consume_queue.FORMAT),
    )
    for kind, directory, form in kinds:
        if scope.full or scope.queues is None:
            for queue in iter_queues(directory):
                yield _Queue(kind, queue.topic, queue.queue_id, queue.path, form)
            continue
        touched = {directory / topic / str(queue_id) for topic, queue_id in scope.queues}
        touched |= {Path(file).parent for file in scope.files if Path(file).is_relative_to(directory)}
        for path in sorted(touched):
            refuse_link(path.parent)
            refuse_link(path)
            queue_id = queue_id_of(path.name)
            if queue_id is not None and path.is_dir():
                yield _Queue(kind, path.parent.name, queue_id, path, form)


def _file_facts(queue: _Queue, files: tuple[tuple[Path, int], ...]) -> Iterator[QueueFileFact]:
    unit = queue.format.dtype.itemsize
    for path, size in files:
        start = int(path.name) if is_offset(path.name) else -1
        is_whole = start >= 0 and start % unit == 0 and size % unit == 0
        yield QueueFileFact(
            subject=f"{queue.subject}/{path.name}",
            queue=queue.subject,
            start_offset=start // unit if is_whole else -1,
            end_offset=(start + size) // unit if is_whole else -1,
        )


def _queue_fact(queue: _Queue, files: tuple[MappedFile, ...], log: LogListing, full: bool) -> QueueFact:
    left_over = _count_left_over(queue, files, log.min_offset)
    live = files[left_over]
    newest = queue.format.last_position(files)
    entries = (
        queue.format.read_queue(tuple(f for f in files if f.base_offset >= live.base_offset))
        if full
        else (queue.format.read_file(live))
    )
    # The file may have grown since: entries behind the newest one may be half written.
    entries = entries[: _count_entries(newest, live, queue.format)]
    offsets = np.where(entries["size"] == FILLER_SIZE, -1, entries["offset"]).astype(np.int64)
    at_or_above = np.flatnonzero(offsets >= log.min_offset)
    first = int(at_or_above[0]) if len(at_or_above) else -1
    messages = offsets >= 0
    ends = offsets[messages] + entries["size"][messages]
    newest_entry = None if newest is None else queue.format.entry(*newest)
    first_offset = last_offset = -1
    if newest_entry is not None:
        first_offset, size = int(newest_entry["offset"]), newest_entry["size"]
        last_offset = max(first_offset + (0 if size == FILLER_SIZE else size), int(ends.max(initial=0)))
    expected, found = _messages(queue, live, entries, first, log)
    return QueueFact(
        subject=queue.subject,
        log_min_offset=log.min_offset,
        log_max_offset=-1,
        first_live_offset=-1 if first < 0 else int(offsets[first]),
        lowest_live_offset=-1 if first < 0 else int(offsets[first:].min()),
        floor=0,
        first_offset=first_offset,
        last_offset=last_offset,
        expected_message=expected,
        found_message=found,
        left_over_files=left_over,
    )


def _count_left_over(queue: _Queue, files: tuple[MappedFile, ...], minimum: int) -> int:
    """Count the oldest files whose entries all point below the log's min offset. The last never counts."""
    for index, file in enumerate(files[:-1]):
        last = queue.format.entry(file, queue.format.capacity(file) - 1)
        if last is None or int(last["offset"]) >= minimum:
            return index
    return max(0, len(files) - 1)


def _count_entries(newest: tuple[MappedFile, int] | None, first: MappedFile, form: EntryFormat) -> int:
    """Return the number of entries from the beginning of a file up to the queue's newest entry."""
    if newest is None:
        return 0
    file, position = newest
    return max(0, (file.base_offset - first.base_offset) // form.dtype.itemsize + position + 1)


def _messages(
    queue: _Queue, file: MappedFile, entries: Entries, first: int, log: LogListing
) -> tuple[str, str]:
    """Return the message that the first live entry should point at, and the message at which it points.

    Each is a text: topic, queue and queue offset. An LMQ's entry points at a message of another topic, so the
    second text is empty. For a batch entry, the batch's first message counts.
    """
    if first < 0:
        return "", ""
    entry = entries[first]
    batch = "base_offset" in (entries.dtype.names or ())
    position = file.base_offset // queue.format.dtype.itemsize + first
    queue_offset = int(entry["base_offset"]) if batch else position
    expected = f"{queue.topic}/{queue.queue_id} @ {queue_offset}"
    if queue.topic.startswith(_LMQ_PREFIX):
        return expected, ""
    return expected, _message_at(log.read_at(int(entry["offset"]), int(entry["size"])))


def _message_at(data: bytes) -> str:
    """Return topic, queue and queue offset from a frame, or the frame's fault."""
    if len(data) < frame.MIN_MESSAGE_BYTES:
        return "no frame"
    _, magic = _HEAD.unpack_from(data, frame.SIZE_AT)
    if magic not in frame.MESSAGE_MAGICS:
        return f"magic {magic:08x}"
    queue_id, queue_offset, sys_flag = _QUEUE_FIELDS.unpack_from(data, frame.QUEUE_ID_AT)
    flags = (frame.BORN_HOST_IPV6, frame.STORE_HOST_IPV6)
    extra = sum(frame.IPV6_EXTRA_BYTES for bit in flags if sys_flag & bit)
    if len(data) < frame.MIN_MESSAGE_BYTES + extra:
        return "no whole frame"
    (body_bytes,) = struct.unpack_from(">i", data, frame.BODY_LENGTH_AT + extra)
    topic_at = frame.BODY_AT + extra + body_bytes
    length_bytes = 1 if magic == frame.MAGIC_V1 else 2
    topic_bytes = int.from_bytes(data[topic_at : topic_at + length_bytes], "big")
    topic = data[topic_at + length_bytes : topic_at + length_bytes + topic_bytes]
    return f"{topic.decode(errors='surrogateescape')}/{queue_id} @ {queue_offset}"


def collect(settings: StoreSettings, scope: FactsScope) -> StoreFacts:
    """Collect the facts of a store.

    Files that point into the log are read first. Then the log's end is read, which only moves up. So no sound
    file points behind it.

    :raises StoreNotFoundError: a directory of the store is missing, or it has no segment.
    :raises UnsupportedLayoutError: the store has a layout that this version can't read.
    :raises StoreBusyError: a running broker changes files during each attempt to read them.
    :raises BrokerError: the store's broker runs, and doesn't answer.
    """
    # Imported here: compiled code takes as long to import as an inspection, which uses this module.
    from storage_engine.rocketmq.engine.serving import ask_who_serves

    if settings.live is None:
        config = load_broker_config(settings.broker_conf, settings.overrides, root=settings.root)
        layout = resolve_layout(config)
        session = ask_who_serves(layout.root) if settings.engine else None
        if session is None:
            return _collect(layout, scope, Patience(), lambda: None)
        with closing(session):
            patience = Patience.with_broker(_cleaning_ms(config.raw))
            return _collect(layout, scope, patience, partial(_end_by_engine, session))
    with reach(settings.live) as admin:
        here = local_settings(admin.config(), settings.root, settings.overrides)
        layout = resolve_layout(load_broker_config(None, here, root=settings.root))
        try:
            return _collect(layout, scope, Patience.with_broker(_cleaning_ms(here)), partial(_log_end, admin))
        except FileNotFoundError as error:
            raise StoreBusyError(
                f"{error.filename}: expected the file to stay while the store is read, found that the broker "
                "deletes files during each attempt. Hold the store, or try again when the broker doesn't "
                "clean it."
            ) from error


def _collect(
    layout: StoreLayout, scope: FactsScope, patience: Patience, ask_for_end: Callable[[], BrokerLogEnd | None]
) -> StoreFacts:
    if is_new(layout):
        return StoreFacts((), (), notes=("No message was stored yet.",))
    checkpoint, no_checkpoint = read_or_tell(
        lambda: patience.again(partial(read_known_values, layout.checkpoint)), None, "the checkpoint"
    )
    index_files, no_index = read_or_tell(partial(_index_facts, layout, patience), (), "the index")
    queues = collect_queues(layout, partial(list_log, layout), scope, patience)
    end = ask_for_end()

    def look() -> tuple[LogFiles, LogWalk, tuple[SegmentFact, ...], tuple[LocalSegment, ...]]:
        log = find_log_files(list_log(layout), end)
        return log, walk_segments(layout, log, scope), segment_facts(layout, log), log.local

    log, walk, segments, local = patience.again(look)
    return StoreFacts(
        local=local,
        segments=segments,
        frames=walk.frames,
        dispatch=walk.dispatch,
        queue_files=queues.files,
        queues=tuple(replace(row, log_max_offset=log.max_offset) for row in queues.queues),
        index_files=tuple(replace(row, log_max_offset=log.max_offset) for row in index_files),
        checkpoint=_checkpoint_facts(checkpoint, log, walk.newest_store_timestamp_ms),
        notes=(
            *no_checkpoint,
            *no_index,
            *(crash_notes(layout, log) if end is None else ()),
            *walk.notes,
            *queues.notes,
        ),
    )


def _end_by_engine(session: EngineSession) -> BrokerLogEnd:
    positions = session.positions()
    return BrokerLogEnd(positions.committed, min(positions.dispatched, positions.committed))


def _log_end(admin: BrokerAdmin) -> BrokerLogEnd:
    info = admin.runtime_info()
    # The broker counts ``dispatch_behind_bytes`` from a later max offset, so the result is never too high.
    return BrokerLogEnd(info.commitlog_max_offset, info.commitlog_max_offset - info.dispatch_behind_bytes)


def _cleaning_ms(settings: Mapping[str, str]) -> int:
    """Return the time in ms of two rounds of cleaning, since the present round may have passed a file.

    The result is at least two default pauses, since a round takes time, too.
    """
    try:
        pause_ms = int(settings.get("cleanResourceInterval", DEFAULT_INTERVAL_MS))
    except ValueError:
        pause_ms = DEFAULT_INTERVAL_MS
    return 2 * max(pause_ms, DEFAULT_INTERVAL_MS)


def _index_facts(layout: StoreLayout, patience: Patience) -> tuple[IndexFact, ...]:
    """Collect facts of the index files.

    The broker deletes files that end below the log's min offset, except the last
    (IndexService#deleteExpiredFile).
    """

    def read(log: LogListing) -> tuple[IndexFact, ...]:
        paths = list_index_paths(layout)
        return tuple(_index_fact(path, log.min_offset, is_last=path == paths[-1]) for path in paths)

    def is_sound(rows: tuple[IndexFact, ...]) -> bool:
        return all(row.first_offset <= row.last_offset for row in rows)

    def count(row: IndexFact) -> int:
        return int(layout.root / row.subject in list_index_paths(layout)[:-1])

    look = partial(list_log, layout)
    rows = patience.settled(read, look(), look, is_sound)
    still = patience.until_none([partial(count, row) for row in rows], [row.left_over_files for row in rows])
    return tuple(replace(row, left_over_files=left_over) for row, left_over in zip(rows, still, strict=True))


def _index_fact(path: Path, log_min_offset: int, *, is_last: bool) -> IndexFact:
    header = read_header(path)
    empty = header.next_entry <= 1
    return IndexFact(
        subject=f"index/{path.name}",
        log_min_offset=log_min_offset,
        log_max_offset=-1,
        floor=0,
        first_offset=-1 if empty else header.begin_phy_offset,
        last_offset=-1 if empty else header.end_phy_offset,
        left_over_files=int(not is_last and not empty and header.end_phy_offset < log_min_offset),
    )


def _checkpoint_facts(
    values: Mapping[str, int] | None, log: LogFiles, newest_store_timestamp_ms: int
) -> tuple[CheckpointFact, ...]:
    """Collect facts of the checkpoint's values.

    No value may be behind the log's end. Otherwise a recovery would begin behind unflushed messages
    (CommitLog#recoverAbnormally, isMappedFileMatchedRecover).
    """
    if values is None:
        return ()
    return tuple(
        CheckpointFact(
            subject=f"checkpoint {field.name}",
            low=0,
            value=values.get(field.name, -1) if high >= 0 else -1,
            high=high,
        )
        for field in fields(Checkpoint)
        for high in [newest_store_timestamp_ms if field.name.endswith("_ms") else log.max_offset]
    )
