"""Facts of the commitlog's files: names, sizes, first frames, and on demand every frame."""

from __future__ import annotations

import os
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage_engine.core.long_work import told
from storage_engine.exceptions import StoreNotFoundError
from storage_engine.model.report.facts import DispatchFact, FactsScope, FrameFact, LocalSegment, SegmentFact
from storage_engine.model.store.store import FileFacts
from storage_engine.rocketmq.checks.queue_facts import missing_entries
from storage_engine.rocketmq.codec import frame
from storage_engine.rocketmq.codec.commitlog import FrameKind, FrameTable, scan_segment
from storage_engine.rocketmq.format.layout import LOG, StoreLayout
from storage_engine.rocketmq.format.mapped_files import (
    MappedFile,
    is_offset,
    list_raw_files,
    mapped,
    readable_files,
)
from storage_engine.rocketmq.format.stored_files import open_stored
from storage_engine.rocketmq.store.store import find_active

_HEAD = struct.Struct(">iI")
_OFFSET = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class BrokerLogEnd:
    """Where a running broker's log ends, by its word: what it has written whole.

    :param dispatched_offset: messages below it are in their consume queues.
    """

    max_offset: int
    dispatched_offset: int


@dataclass(frozen=True, slots=True)
class LogListing:
    """The commitlog's files as they were listed, whatever is wrong with them.

    :param files: (path, size) of all of them, in the order of their names.
    :param named: the well-named ones that aren't empty, by base offset.
    """

    files: tuple[tuple[Path, int], ...]
    named: tuple[MappedFile, ...]

    @property
    def min_offset(self) -> int:
        return self.named[0].base_offset

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Bytes of the log at a physical offset; fewer, or none, where no file has them.

        :raises FileNotFoundError: the file is gone since.
        """
        for file in self.named:
            if file.base_offset <= offset < file.end_offset:
                with open_stored(file.path) as opened:
                    # A queue's entry may say any size.
                    wanted = max(0, min(size_bytes, file.end_offset - offset))
                    return os.pread(opened.fileno(), wanted, offset - file.base_offset)
        return b""


@dataclass(frozen=True, slots=True)
class LogFiles:
    """A listing, and where the log ends in it.

    :param dispatched_offset: messages below it are to be in their consume queues.
    """

    listing: LogListing
    active: int
    max_offset: int
    dispatched_offset: int

    @property
    def named(self) -> tuple[MappedFile, ...]:
        return self.listing.named

    @property
    def min_offset(self) -> int:
        return self.listing.min_offset

    @property
    def local(self) -> tuple[LocalSegment, ...]:
        """
        :raises FileNotFoundError: a file is gone since.
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
    """:param newest_store_timestamp_ms: of the last message that was seen; -1 when none was."""

    frames: tuple[FrameFact, ...]
    dispatch: tuple[DispatchFact, ...]
    newest_store_timestamp_ms: int
    notes: tuple[str, ...]


def list_log(layout: StoreLayout) -> LogListing:
    """
    :raises StoreNotFoundError: there is no segment.
    """
    found = list_raw_files(layout.log_paths)
    named = readable_files(found)
    if not named:
        raise StoreNotFoundError(
            f"{', '.join(map(str, layout.log_paths))}: expected segment files, found none. Name the "
            "directory that the broker's storePathRootDir names."
        )
    return LogListing(found, named)


def find_log_files(listing: LogListing, end: BrokerLogEnd | None = None) -> LogFiles:
    """Find the log's end.

    :param end: what a running broker said before the files were listed: a message behind that may be half
        written.
    """
    active, max_offset = find_active(listing.named)
    if end is None:
        return LogFiles(listing, active, max_offset, max_offset)
    max_offset = min(max_offset, end.max_offset)
    while active and listing.named[active].base_offset >= max_offset:
        active -= 1
    return LogFiles(listing, active, max_offset, end.dispatched_offset)


def segment_facts(layout: StoreLayout, log: LogFiles) -> tuple[SegmentFact, ...]:
    """One row a file, in the order of names."""
    files = log.listing.files
    expected = layout.segment_size_bytes or Counter(size for _, size in files).most_common(1)[0][0]
    rows = []
    for path, size in files:
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
    """Walk the first and the active segment frame by frame; with ``full`` every one.

    The first one is where a deletion ended, the active one holds the newest message.
    """
    frames: list[FrameFact] = []
    dispatch: list[DispatchFact] = []
    newest = -1
    chosen = [
        file
        for index, file in enumerate(log.named)
        if index <= log.active and (scope.full or index in (0, log.active))
    ]
    ends = [min(file.size_bytes, log.max_offset - file.base_offset) for file in chosen]
    with told("Reading segments", sum(ends)) as advance:
        for file, end in zip(chosen, ends, strict=True):
            with mapped(file.path) as data, data[:end] as used:
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
            newest = max(newest, int(stamps.max(initial=-1)))
            if scope.full:
                dispatch += _dispatch_facts(layout, file, table, log.dispatched_offset)
            advance(end)
    skipped = log.active + 1 - len(chosen)
    notes = (f"{skipped} segments between the first and the active one were not walked",) if skipped else ()
    return LogWalk(tuple(frames), tuple(dispatch), newest, notes)


def crash_notes(layout: StoreLayout, log: LogFiles) -> tuple[str, ...]:
    """Return what a person should know of a store that no broker stopped: it crashed, and where its log is
    torn.
    """
    if not layout.abort.exists():
        return ()
    crashed = (
        f"the store crashed, or its broker runs: {layout.abort} exists. What fails behind offset "
        f"{log.max_offset}, where the log's last whole frame ends, is mended by the broker's recovery: start "
        "it, stop it cleanly, and validate again"
    )
    file = log.named[log.active]
    position = log.max_offset - file.base_offset
    header = log.listing.read_at(log.max_offset, frame.BODY_CRC_AT)
    if len(header) < frame.BODY_CRC_AT:
        return (crashed,)
    size, magic = _HEAD.unpack_from(header)
    if magic not in (frame.MAGIC_V1, frame.MAGIC_V2):
        return (crashed,)
    torn = (
        f"{file.path}: a torn frame at physical offset {log.max_offset} (position {position} in the file): "
        f"its header says {size} bytes, and they are not a whole frame"
    )
    return crashed, torn


def _first_frame_offset(path: Path) -> int:
    with open_stored(path) as file:
        header = file.read(frame.SYS_FLAG_AT)
    if len(header) < frame.SYS_FLAG_AT:
        return -1
    _, magic = _HEAD.unpack_from(header)
    if magic not in (frame.MAGIC_V1, frame.MAGIC_V2):
        return -1
    (offset,) = _OFFSET.unpack_from(header, frame.PHYSICAL_OFFSET_AT)
    return int(offset)


def _dispatch_facts(
    layout: StoreLayout, file: MappedFile, table: FrameTable, dispatched_offset: int
) -> list[DispatchFact]:
    """Per queue, how many of a segment's messages their consume queue lacks.

    Frames flagged prepared or rollback get no entry (CommitLogDispatcherBuildConsumeQueue).
    """
    transaction = table.sys_flag & frame.TRANSACTION_MASK
    dispatched = (
        (table.kind == FrameKind.MESSAGE)
        & (table.physical_offset < dispatched_offset)
        & (transaction != frame.TRANSACTION_PREPARED)
        & (transaction != frame.TRANSACTION_ROLLBACK)
    )
    rows = np.flatnonzero(dispatched)
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
