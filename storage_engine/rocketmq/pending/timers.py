"""Timer messages that still wait: in the timer log until they are due, before that in the timers' queue.

``config/timercheck``, big-endian longs: lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset,
masterTimerQueueOffset (TimerCheckpoint), behind the broker by about 1 s. Record of ``timerlog`` (TimerLog):
size 4 (= 52), previous position 8, magic 4, write time 8, delay 4, physical offset 8, message size 4, hash of
the topic 4, reserved 8; a blank of what is left ends a file. A timer beyond the wheel's window is written
again each time that it comes up, as a new message: each of its records names the message as it is then.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.codec import frame
from storage_engine.rocketmq.codec.store_times import LogFile
from storage_engine.rocketmq.codec.stored_messages import Longs, stored_messages
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import MappedFile, list_mapped_files, mapped
from storage_engine.rocketmq.format.stored_files import read_stored
from storage_engine.rocketmq.pending.pending_queue import entries_from

TIMER_TOPIC = "rmq_sys_wheel_timer"
CHECKPOINT_BYTES = 4096
UNKNOWN_DUE = -1

RECORD = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("write_time_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("offset", ">i8"),
        ("message_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
_BLANK = struct.Struct(">iqI")
"""Size of what is left, 0, magic (TimerLog#append)."""
_MAGIC_BITS = 0xF
_MAX_DELAY_MS = (1 << 31) - 1
"""The field's: no record is due later than this after it was written."""
_DUE_PROPERTY = b"TIMER_OUT_MS"
_DUE_READ_MAX = 100_000
"""Of so many messages that aren't in the timer log yet the due times are read; of more they are unknown."""


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """How far the broker is with its timers.

    :param read_time_ms: timers due before it are delivered.
    :param log_position: the timer log is written up to here at least.
    :param queue_offset: messages below it are in the timer log.
    """

    read_time_ms: int
    log_position: int
    queue_offset: int


def read_timer_checkpoint(path: Path) -> TimerCheckpoint | None:
    """Read ``config/timercheck``; None when there is none.

    The broker goes on from the lower one of its two queue offsets (TimerMessageStore#recover).

    :raises CorruptFileError: another size, or a negative value.
    """
    try:
        data = read_stored(path)
    except FileNotFoundError:
        return None
    if len(data) != CHECKPOINT_BYTES:
        raise CorruptFileError(f"{path}: expected {CHECKPOINT_BYTES} bytes, found {len(data)}. {_RESTORE}")
    read_time_ms, log_position, queue_offset, master_offset = values = struct.unpack_from(">4q", data)
    if min(values) < 0:
        raise CorruptFileError(f"{path}: expected four times and positions, found {values}. {_RESTORE}")
    return TimerCheckpoint(read_time_ms, log_position, min(queue_offset, master_offset))


_RESTORE = "Restore the file from a replica or a backup, or start the broker and stop it cleanly."


def waiting_timers(layout: StoreLayout, log: Sequence[LogFile]) -> tuple[Longs, Longs]:
    """Physical offset of each waiting timer, and when it is due, in ms (:data:`UNKNOWN_DUE`: not known).

    For one that lies beyond the wheel's window that is when it comes up to be written again.

    :param log: the commitlog's files, oldest first.
    :raises CorruptFileError: one of the files is missing, or can't be read as what it is.
    """
    path = layout.config / "timercheck"
    queue, timer_log = layout.consumequeue / TIMER_TOPIC / "0", layout.root / "timerlog"
    checkpoint = read_timer_checkpoint(path)
    files = list_mapped_files((timer_log,), error=CorruptFileError)
    if checkpoint is None:
        if len(entries_from(queue, 0, path)) or next(_records(files, 0, 0, timer_log), None) is not None:
            raise CorruptFileError(
                f"{path}: expected the timers' checkpoint, as there are timers in {queue} or {timer_log}, "
                f"found no file. {_RESTORE}"
            )
        return np.empty(0, np.int64), np.empty(0, np.int64)
    records = [np.empty(0, RECORD)]
    records += _records(files, checkpoint.log_position, checkpoint.read_time_ms, timer_log)
    in_log = np.concatenate(records)
    offsets, due = in_log["offset"].astype(np.int64), _due_ms(in_log)
    entries = entries_from(queue, checkpoint.queue_offset, path).physical_offset
    entries = entries[~np.isin(entries, offsets)]
    # The log has a message more than once where the broker read its queue again after a crash.
    offsets, first = np.unique(offsets, return_index=True)
    return np.concatenate([offsets, entries]), np.concatenate([due[first], _due_of_messages(log, entries)])


def _records(
    files: Sequence[MappedFile], position: int, read_time_ms: int, timer_log: Path
) -> Iterator[np.ndarray]:
    """The records that are not due before a time, file by file (TimerMessageStore#recoverAndRevise).

    :param position: the log must not end before it.
    """
    end = 0
    for file in files:
        with mapped(file.path) as data:
            if not _all_due_before(data, read_time_ms):
                records = np.frombuffer(data, RECORD, len(data) // RECORD.itemsize)
                odd = (records["size"] != RECORD.itemsize) | ((records["magic"] & ~_MAGIC_BITS) != 0)
                count = int(odd.argmax()) if odd.any() else len(records)
                end = file.base_offset + count * RECORD.itemsize
                waiting = records[:count]
                waiting = waiting[_due_ms(waiting) >= read_time_ms].copy()
                blank = _is_blank(data, count * RECORD.itemsize)
                del records
                if len(waiting):
                    yield waiting
                if not blank:
                    break
        end = file.end_offset
    if end < position:
        raise CorruptFileError(
            f"{timer_log}: expected records up to position {position}, to which the timers' checkpoint says "
            f"it is written, found their end at {end}. {_RESTORE}"
        )


def _due_ms(records: np.ndarray) -> Longs:
    due: Longs = records["write_time_ms"].astype(np.int64) + records["delay_ms"]
    return due


def _all_due_before(data: memoryview, read_time_ms: int) -> bool:
    """Return whether a full file's last record, which was written after the others, says that none waits."""
    last = (len(data) - _BLANK.size) // RECORD.itemsize * RECORD.itemsize - RECORD.itemsize
    if last < 0 or not _is_blank(data, last + RECORD.itemsize):
        return False
    record = np.frombuffer(data, RECORD, 1, last)[0]
    return bool(
        record["size"] == RECORD.itemsize and int(record["write_time_ms"]) + _MAX_DELAY_MS < read_time_ms
    )


def _is_blank(data: memoryview, at: int) -> bool:
    left = len(data) - at
    return left >= _BLANK.size and _BLANK.unpack_from(data, at) == (left, 0, frame.MAGIC_BLANK)


def _due_of_messages(log: Sequence[LogFile], offsets: Longs) -> Longs:
    """Due times of messages by their properties; unknown where the message is gone, or there are many."""
    due = np.full(len(offsets), UNKNOWN_DUE, np.int64)
    there = np.flatnonzero(offsets >= log[0].base_offset)
    if 0 < len(there) <= _DUE_READ_MAX:
        values = [message.property(_DUE_PROPERTY) for message in stored_messages(log, offsets[there])]
        due[there] = [int(value) if value and value.isdigit() else UNKNOWN_DUE for value in values]
    return due
