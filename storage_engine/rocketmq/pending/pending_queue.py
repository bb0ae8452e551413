"""The part of a consume queue that its reader has not worked off yet. Reads nothing before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.codec.stored_messages import Longs
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.broker_config import CONSUME_QUEUE_ENTRY_BYTES
from storage_engine.rocketmq.format.mapped_files import mapped, queue_id_of
from storage_engine.rocketmq.format.queue_files import FILLER_SIZE
from storage_engine.rocketmq.format.stored_files import refuse_link


def queue_ids(topic: Path) -> set[int]:
    """The queues below consumequeue/<topic>; empty when there is no such topic."""
    try:
        refuse_link(topic)
        names = [path.name for path in topic.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return set()
    return {queue_id for name in names if (queue_id := queue_id_of(name)) is not None}


@dataclass(frozen=True, slots=True)
class OwedEntries:
    """Entries of one queue, as columns, by queue offset."""

    queue_offset: Longs
    physical_offset: Longs
    tags_code: Longs

    def __len__(self) -> int:
        return len(self.queue_offset)


def entries_from(queue: Path, queue_offset: int, position: Path) -> OwedEntries:
    """The entries at and behind a queue offset.

    :param queue: the directory consumequeue/<topic>/<queue id>.
    :param queue_offset: of the reader's next message; below the first one that is left counts as that.
    :param position: the file that ``queue_offset`` is from, for the error.
    :raises CorruptFileError: the queue's files aren't a queue, or it ends before ``queue_offset``.
    """
    files = consume_queue.list_files(queue)
    last = consume_queue.FORMAT.last_position(files)
    end = files[0].base_offset // CONSUME_QUEUE_ENTRY_BYTES if files else 0
    if last is not None:
        end = last[0].base_offset // CONSUME_QUEUE_ENTRY_BYTES + last[1] + 1
    if queue_offset > end:
        raise CorruptFileError(
            f"{queue}: expected entries up to queue offset {queue_offset}, which {position} says are worked "
            f"off, found {end}: one of the two was lost or put back. Start the broker, which rebuilds its "
            "queues and corrects its positions, and stop it cleanly."
        )
    parts = [np.empty(0, consume_queue.DTYPE)]
    first = queue_offset
    for file in files:
        base = file.base_offset // CONSUME_QUEUE_ENTRY_BYTES
        first = max(first, base) if file is files[0] else first
        low, high = max(first - base, 0), min(end - base, file.size_bytes // CONSUME_QUEUE_ENTRY_BYTES)
        if low < high:
            with mapped(file.path) as data:
                entries = np.frombuffer(data, consume_queue.DTYPE)[low:high].copy()
            if not consume_queue.FORMAT.in_use(entries).all():
                raise CorruptFileError(
                    f"{file.path}: expected entries up to queue offset {end}, found a hole. Start the "
                    "broker, which rebuilds its queues, and stop it cleanly."
                )
            parts.append(entries)
    found = np.concatenate(parts)
    offsets = first + np.arange(len(found), dtype=np.int64)
    real = found["size"] != FILLER_SIZE
    return OwedEntries(
        offsets[real],
        found["offset"][real].astype(np.int64),
        found["tags_code"][real].astype(np.int64),
    )
