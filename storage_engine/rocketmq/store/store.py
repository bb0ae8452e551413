"""A RocketMQ store on disk: its snapshot at one moment, its dispatched offset, and its segments' bytes.

Reading changes no file, and doesn't touch the lock. Only a locked store may be changed.

The broker dispatches to the consume queues in the order of the log (ReputMessageService#doReput). So one
entry proves that all messages before it were dispatched. Without this proof, a segment must stay for its
consumers.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from storage_engine.exceptions import BadInputError, StoreBusyError, StoreLayoutError
from storage_engine.model.disk import DiskUsage
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState, StoreSnapshot
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.commitlog import find_logical_end, has_dispatchable_frame
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.batch_consume_queue import all_queues
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.layout import (
    LOG,
    StoreLayout,
    has_controller,
    is_new,
    list_segments,
    resolve_layout,
)
from storage_engine.rocketmq.format.mapped_files import (
    MappedFile,
    has_directory,
    list_raw_files,
    map_file,
    readable_files,
)
from storage_engine.rocketmq.format.stored_files import open_stored

_FRAMES_TO_PROBE = 64


def dispatched_offset(
    layout: StoreLayout, segments: Sequence[MappedFile], sealed_end: int, max_offset: int
) -> int:
    """Return the offset below which every message is in its consume queue.

    First the consume queue of the first message behind the sealed segments is read. If its entry is missing,
    the ends of all queues are read until one is behind the sealed segments. Segments behind the newest entry
    also count as dispatched if they have no messages for consume queues.

    :param segments: the commitlog's files, oldest first.
    :param sealed_end: start of the active segment. No proof is needed behind it.
    :param max_offset: the logical end of the log. Entries that point behind it are ignored.
    :return: an offset from the log's min offset (nothing is proven) to ``max_offset``.
    """
    proven = segments[0].base_offset
    for end in _proofs(layout, segments, sealed_end, max_offset):
        # An entry behind the log's end is of another log, or was written before the log was cut off.
        proven = max(proven, end) if end <= max_offset else proven
        if proven >= sealed_end:
            return min(proven, max_offset)
    for segment in segments:
        if segment.base_offset <= proven < segment.end_offset <= sealed_end:
            with map_file(segment.path) as data:
                if has_dispatchable_frame(data, segment.base_offset, proven - segment.base_offset):
                    break
            proven = segment.end_offset
    return min(proven, max_offset)


def _proofs(
    layout: StoreLayout, segments: Sequence[MappedFile], sealed_end: int, max_offset: int
) -> Iterator[int]:
    """Yield the ends of messages that have an entry in a consume queue.

    First comes the active segment's first message, which is found without a search of all queues. Queues
    whose files can't be read are skipped.
    """
    for segment in segments:
        if segment.base_offset == sealed_end:
            with suppress(BadInputError):
                yield from _probe_first(layout, segment, max_offset - sealed_end)
    for queue, form in all_queues(layout):
        with suppress(BadInputError):
            if last := form.last_message(form.files(queue.path)):
                yield sum(last)


def _probe_first(layout: StoreLayout, segment: MappedFile, length: int) -> Iterator[int]:
    """Yield the end of a segment's first message for a consume queue, if the queue has its entry.

    Only the segment's first ``_FRAMES_TO_PROBE`` frames are read.
    """
    with open_stored(segment.path) as file:
        position = 0
        for _ in range(_FRAMES_TO_PROBE):
            header = os.pread(file.fileno(), frame.BODY_AT + 2 * frame.IPV6_EXTRA_BYTES, position)
            if position >= length or len(header) < frame.BODY_AT:
                return
            size, magic = struct.unpack_from(">iI", header, frame.SIZE_AT)
            if magic not in (frame.MAGIC_V1, frame.MAGIC_V2) or size < frame.MIN_MESSAGE_BYTES:
                return
            queue = _consume_queue(layout, file.fileno(), position, header, magic)
            if queue is not None:
                (queue_offset,) = struct.unpack_from(">q", header, frame.QUEUE_OFFSET_AT)
                entry = consume_queue.entry_at(consume_queue.FORMAT.files(queue), queue_offset)
                if entry is not None and entry.physical_offset == segment.base_offset + position:
                    yield entry.physical_offset + entry.size_bytes
                return
            position += size


def _consume_queue(layout: StoreLayout, fd: int, position: int, header: bytes, magic: int) -> Path | None:
    """Return the directory of a message's consume queue; None if the message gets no entry in one."""
    (sys_flag,) = struct.unpack_from(">i", header, frame.SYS_FLAG_AT)
    kind = sys_flag & frame.TRANSACTION_MASK
    if sys_flag & frame.INNER_BATCH or kind in (frame.TRANSACTION_PREPARED, frame.TRANSACTION_ROLLBACK):
        return None
    extra = sum(
        frame.IPV6_EXTRA_BYTES for bit in (frame.BORN_HOST_IPV6, frame.STORE_HOST_IPV6) if sys_flag & bit
    )
    (body_length,) = struct.unpack_from(">i", header, frame.BODY_LENGTH_AT + extra)
    topic_at = position + frame.BODY_AT + extra + body_length
    length_bytes = 1 if magic == frame.MAGIC_V1 else 2
    topic_length = int.from_bytes(os.pread(fd, length_bytes, topic_at), "big")
    topic = os.pread(fd, topic_length, topic_at + length_bytes).decode(errors="surrogateescape")
    if not has_directory(topic):
        return None
    (queue_id,) = struct.unpack_from(">i", header, frame.QUEUE_ID_AT)
    return layout.consumequeue / topic / str(queue_id)


BROKER = "rocketmq"
_LOOKS = 4

FindEnd = Callable[[memoryview, int], int]
"""Function that returns where a segment's frames end, from its bytes and their first physical offset."""


@dataclass(frozen=True, slots=True)
class RocketMQStore:
    """A store with a supported layout."""

    config: BrokerConfig
    layout: StoreLayout

    @classmethod
    def open(cls, config: BrokerConfig, *, to_archive: bool = False) -> RocketMQStore:
        """Find the store of a broker with these settings.

        :param to_archive: also accept a store that may only be archived; see :func:`resolve_layout`.
        :raises StoreNotFoundError: a directory of the store is missing.
        :raises UnsupportedLayoutError: the store uses RocksDB, DLedger or compaction.
        """
        return cls(config, resolve_layout(config, to_archive=to_archive))

    def snapshot(self, now_ms: int, *, find_end: FindEnd = find_logical_end) -> StoreSnapshot:
        """Return the store's current state, with all facts from which a plan is decided.

        :param find_end: function that finds the log's end. Callers that delete nothing use a faster one.
        :raises StoreNotFoundError: the store has no segment.
        :raises StoreLayoutError: the segments don't form one contiguous log.
        :raises CorruptFileError: a consume queue's files don't fit together.
        :raises StoreBusyError: files vanished during each attempt, since another process changes the store.
        """
        for _ in range(_LOOKS - 1):
            # While another run deletes, the log may seem to have a gap, since directories are listed in turn.
            with suppress(StoreBusyError, StoreLayoutError):
                return self._look(now_ms, find_end)
        return self._look(now_ms, find_end)

    def _look(self, now_ms: int, find_end: FindEnd) -> StoreSnapshot:
        layout = self.layout
        try:
            log = LogSnapshot(LOG, (), 0, 0) if is_new(layout) else self._log(list_segments(layout), find_end)
            crashed = layout.abort.exists()
            used_bytes = None
            if self.config.replicas_per_disk_partition > 1:  # DefaultMessageStore#getMajorFileSize
                used_bytes = sum(s.facts.size_bytes for s in log.segments) + dependents_bytes(layout)
        except FileNotFoundError as error:
            raise StoreBusyError(
                f"{error.filename}: expected the file, found that it vanished: another program changes the "
                "store. Nothing was changed. Run again when that program has ended."
            ) from error
        return StoreSnapshot(
            broker=BROKER,
            root=str(layout.root),
            taken_at_ms=now_ms,
            logs=(log,),
            log_disks=tuple(DiskUsage.of(path) for path in layout.commitlog_paths),
            dependents_disk=DiskUsage.of(layout.consumequeue),
            crashed=crashed,
            used_bytes=used_bytes,
        )

    def raw_log(self) -> LogSnapshot:
        """List the log's existing files, even if files between them are missing, with dispatched offset 0.

        Deletions must never be decided from this list.

        :raises StoreLayoutError: a file is a symbolic link.
        :raises OSError: a file can't be read, or vanished meanwhile.
        """
        readable = readable_files(list_raw_files(self.layout.log_paths))
        sizes = Counter(file.size_bytes for file in readable)
        size_bytes = self.layout.segment_size_bytes or max(sizes, key=lambda size: sizes[size], default=0)
        names = Counter(file.base_offset for file in readable)
        files = tuple(
            file for file in readable if file.size_bytes == size_bytes and names[file.base_offset] == 1
        )
        active, max_offset = find_active(files) if files else (0, 0)
        return LogSnapshot(
            LOG, _segments(files, active), max_offset, 0, confirmed_offset=self._confirmed_offset()
        )

    @contextmanager
    def read_segment(self, segment: Segment) -> Iterator[memoryview]:
        """Yield a segment's bytes, read into memory.

        The file isn't mapped: a mapping could outlive the file, or fail while the mapping is read.

        :raises StoreBusyError: the segment is gone, or has another size than in the snapshot.
        """
        path, size_bytes = segment.facts.path, segment.facts.size_bytes
        data = bytearray(size_bytes)
        try:
            with open_stored(path) as file, memoryview(data) as view:
                position = 0
                while position < size_bytes and (count := file.readinto(view[position:])):
                    position += count
                actual_bytes = position if position < size_bytes else size_bytes + len(file.read(1))
        except FileNotFoundError as error:
            raise StoreBusyError(
                f"{path}: expected the file, found that it vanished: another program changes the store. Find "
                "out which program, and run again."
            ) from error
        if actual_bytes != size_bytes:
            raise StoreBusyError(
                f"{path}: expected {size_bytes} bytes, found {actual_bytes}: another program changes the "
                "file. Find out which program, and run again."
            )
        with memoryview(data).toreadonly() as view:
            yield view

    def _log(self, files: tuple[MappedFile, ...], find_end: FindEnd) -> LogSnapshot:
        active, max_offset = find_active(files, find_end)
        return LogSnapshot(
            name=LOG,
            segments=_segments(files, active),
            max_offset=max_offset,
            # The queues of a store that may only be archived can't be read. No deletion depends on them.
            dispatched_offset=files[active].base_offset
            if self.layout.archive_only
            else dispatched_offset(self.layout, files, files[active].base_offset, max_offset),
            confirmed_offset=self._confirmed_offset(),
        )

    def _confirmed_offset(self) -> int | None:
        """Return 0 if a controller may cut off the log, since files confirm no offset; otherwise None."""
        return 0 if has_controller(self.config, self.layout) else None


def dependents_bytes(layout: StoreLayout) -> int:
    """Return the total size of a store's consume queue and index files."""
    dependents = (layout.consumequeue, layout.batchconsumequeue, layout.index)
    files = (path.lstat() for directory in dependents for path in directory.rglob("*"))
    return sum(stat.st_size for stat in files if S_ISREG(stat.st_mode))


def _segments(files: tuple[MappedFile, ...], active: int) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            log=LOG,
            base_offset=file.base_offset,
            facts=FileFacts.of(file.path),
            state=SegmentState.SEALED if i < active else SegmentState.ACTIVE,
        )
        for i, file in enumerate(files)
    )


def find_active(files: tuple[MappedFile, ...], find_end: FindEnd = find_logical_end) -> tuple[int, int]:
    """Find the active segment and the logical end of the log.

    Files behind the last frame are preallocated. The last file with a frame is active even if it is full: an
    empty file behind it is removed when the store is opened.

    :param files: the commitlog's files, oldest first.
    :param find_end: see :meth:`RocketMQStore.snapshot`.
    :return: index of the active segment (later files are active, too), and the log's max offset.
    """
    for index in range(len(files) - 1, -1, -1):
        file = files[index]
        with map_file(file.path) as data:
            end = find_end(data, file.base_offset)
        if end > 0:
            return index, file.base_offset + end
    return 0, files[0].base_offset
