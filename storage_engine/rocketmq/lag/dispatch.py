"""Offset up to which the commitlog was dispatched to the consume queues, from the store's files.

The broker dispatches in the order of the log (ReputMessageService#doReput). So one entry proves that all
messages before it were dispatched. Without this proof, a segment must stay for its consumers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from storage_engine.exceptions import BadInputError
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.commitlog import has_dispatchable_frame
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.batch_consume_queue import all_queues
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile, has_directory, map_file
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
    :return: at most ``max_offset``; the log's min offset without a proof.
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
    """Yield the ends of messages that have an entry in a consume queue. The cheapest and highest comes first.

    Queues whose files can't be read are skipped.
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
    """Look for the entry of a segment's first dispatched message, among ``_FRAMES_TO_PROBE`` frames."""
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
