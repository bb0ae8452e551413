"""Pending messages of a store: delayed messages, timers, half messages. Computed from files alone.

The broker deletes segments without a check for them, and reports almost no error when they are lost. The
number of a kind's messages is unknown if one of its files can't be read or ends too early. It is also unknown
if a file is missing to which another file refers.

Delayed messages: the queue of SCHEDULE_TOPIC_XXXX with id q belongs to level q + 1
(ScheduleMessageService#queueId2DelayLevel). An entry's tags code is the due time in ms
(ScheduleMessageService#computeDeliverTimestamp), or the address of a unit with that time.
``delayOffset.json`` is up to 10 s behind the broker.

Messages in RocksDB can't be counted here. From 5.4 on every store has ``rocksdbstore``, with the column
families ``timer`` and ``trans``, so its existence says nothing. The settings ``timerRocksDBEnable`` and
``transRocksDBEnable`` show its use. But a running broker accepts a change of either setting at any time, and
earlier records stay in RocksDB. So RocksDB's files are searched as well. The timeline keeps its own
checkpoints among its records (MessageRocksDBStorage). RocksDB's manifest names the largest key of each of its
files, and one of these checkpoints is always the largest key. Records that aren't in a file yet are in a log.

Waiting timer messages are first in the timers' queue, and then in the timer log until they are due. Layout of
``config/timercheck``, big-endian longs: lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset,
masterTimerQueueOffset (TimerCheckpoint). It is about 1 s behind the broker. Record of ``timerlog``
(TimerLog): size 4 (= 52), previous position 8, magic 4, write time 8, delay 4, physical offset 8, message
size 4, hash of the topic 4, reserved 8; a blank fills the rest of a file. A timer beyond the wheel's window
is written again as a new message each time that the wheel reaches it. Each record refers to the message that
was the newest at its time.

Half messages are undecided if no operation message names them. In each queue of RMQ_SYS_TRANS_HALF_TOPIC the
candidates begin at the position of the broker's own group. A candidate is decided if its queue offset is in
the body ("0,1,…,") of a message with the tag "d" in RMQ_SYS_TRANS_OP_HALF_TOPIC
(TransactionalMessageServiceImpl#fillOpRemoveMap). A check writes an undecided half message again at the end
of the queue, and continues behind the old one. The offsets are up to 5 s behind the broker.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError, CorruptFileError, StoreBusyError, UnsupportedLayoutError
from storage_engine.model.broker.broker_store import Pending, PendingKind
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.stored_messages import Longs, stored_messages
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.broker_config import CONSUME_QUEUE_ENTRY_BYTES
from storage_engine.rocketmq.format.config_files import delay_offsets
from storage_engine.rocketmq.format.consume_queue import FILLER_SIZE
from storage_engine.rocketmq.format.layout import LOG, StoreLayout, is_new, list_segments
from storage_engine.rocketmq.format.mapped_files import (
    MAX_FILE_BYTES,
    MappedFile,
    list_mapped_files,
    map_file,
    queue_id_of,
)
from storage_engine.rocketmq.format.stored_files import read_stored, refuse_link, reread
from storage_engine.rocketmq.lag.consumer_offsets import consumer_offsets

TIMER_KEYS: Final = (b"timeline_checkpoint", b"sys_topic_scan_offset_checkpoint")
"""Keys of the column family ``timer``: the timeline's progress, and its position in the timers' queue."""
ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
"""Topic of half messages whose state is in RocksDB (TransMessageRocksDBStore)."""
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
"""Blank at a file's end: size of the rest, 0, magic (TimerLog#append)."""
_MAGIC_BITS = 0xF
_MAX_DELAY_MS = (1 << 31) - 1
"""Largest value of the delay field. So every record is due at most this long after it was written."""
_DUE_PROPERTY = b"TIMER_OUT_MS"
_DUE_READ_MAX = 100_000
"""Largest number of messages outside the timer log whose due times are read. With more, none is read."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATION_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"

_REMOVES = b"d"


def refuse_timers_in_rocksdb(layout: StoreLayout) -> None:
    """Refuse a store with timers in RocksDB.

    :raises UnsupportedLayoutError: timers are, or may be, in RocksDB.
    :raises OSError: a file of RocksDB can't be read.
    """
    if layout.timers_in_rocksdb:
        raise _unknown(layout, "timers", "timerRocksDBEnable=true")
    for path in _manifests_and_logs(layout.rocksdb):
        if _has_any(path, TIMER_KEYS):
            raise _unknown(layout, "timers", f"the timeline's records in {path}")


def refuse_halves_in_rocksdb(layout: StoreLayout, log_min_offset: int) -> None:
    """Refuse a store with half messages in RocksDB.

    :raises UnsupportedLayoutError: half messages are, or may be, in RocksDB.
    :raises CorruptFileError: a queue is unreadable or malformed.
    """
    if layout.halves_in_rocksdb:
        raise _unknown(layout, "half messages", "transRocksDBEnable=true")
    topic = layout.consumequeue / ROCKSDB_HALF_TOPIC
    for queue_id in queue_ids(topic):
        last = consume_queue.last_entry(consume_queue.FORMAT.files(topic / str(queue_id)))
        if last is not None and last.physical_offset >= log_min_offset:
            raise _unknown(layout, "half messages", str(topic))


def _unknown(layout: StoreLayout, kind: str, where: str) -> UnsupportedLayoutError:
    return UnsupportedLayoutError(
        f"{layout.root}: expected {kind} in the store's own files, found that they are in RocksDB, at "
        f"least in part (shown by {where}). This version can't read them there. Nothing was changed. If "
        "none of them is due any more, set pending_policy to warn."
    )


def _manifests_and_logs(directory: Path) -> Iterator[Path]:
    try:
        names = sorted(path.name for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from (directory / name for name in names if name.startswith("MANIFEST-") or name.endswith(".log"))


def _has_any(path: Path, keys: tuple[bytes, ...]) -> bool:
    """Return whether a file contains one of these keys, or is too large for a search in each run."""
    try:
        with path.open("rb", buffering=0) as file:
            size = path.stat().st_size
            if size > MAX_FILE_BYTES:
                return True
            if not size:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return any(data.find(key) >= 0 for key in keys)
    except FileNotFoundError:
        return False  # a running broker deletes old manifests and logs once newer files have their content


def waiting_in_levels(layout: StoreLayout) -> tuple[Longs, Longs]:
    """Return the physical offset of each waiting delayed message, and its due time in ms.

    A level that is not in ``delayOffset.json`` begins at the first message (ScheduleMessageService#start).

    :raises CorruptFileError: the positions or a queue are unreadable or malformed.
    """
    delivered = delay_offsets(layout)
    topic = layout.consumequeue / frame.SCHEDULE_TOPIC
    offsets, due = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for queue_id in sorted(queue_ids(topic) | {level - 1 for level in delivered}):
        entries = entries_from(
            topic / str(queue_id), delivered.get(queue_id + 1, 0), layout.config / "delayOffset.json"
        )
        offsets.append(entries.physical_offset)
        due.append(_due_ms(layout.consumequeue_ext / frame.SCHEDULE_TOPIC / str(queue_id), entries.tags_code))
    return np.concatenate(offsets), np.concatenate(due)


def _due_ms(extension: Path, tags_codes: Longs) -> Longs:
    """Return due times in ms. A tags code is a due time, or the address (ConsumeQueueExt#isExtAddr) of a unit
    that has the due time as its own tags code.

    :raises CorruptFileError: there is no unit at an address.
    """
    elsewhere = tags_codes <= consume_queue.MAX_ADDRESS
    if not elsewhere.any():
        return tags_codes
    due = tags_codes.copy()
    addresses = tags_codes[elsewhere] - np.iinfo(np.int64).min
    has_unit = np.zeros(len(addresses), dtype=bool)
    values = np.zeros(len(addresses), dtype=np.int64)
    for file in consume_queue.list_files(extension):
        here = (addresses >= file.base_offset) & (addresses < file.end_offset)
        if here.any():
            units = consume_queue.read_units(file)
            at = np.searchsorted(units.offset, addresses[here])
            hit = (at < len(units.offset)) & (np.append(units.offset, -1)[at] == addresses[here])
            has_unit[here], values[here] = hit, np.append(units.tags_code, 0)[at]
    if not has_unit.all():
        raise CorruptFileError(
            f"{extension}: expected a unit at offset {addresses[~has_unit][0]}, to which the queue's entry "
            "points, found none. Compare the directory with a replica."
        )
    due[elsewhere] = values
    return due


_Reader: TypeAlias = Callable[[Sequence[MappedFile]], tuple[Longs, Longs]]
"""Reads one kind of pending messages: their physical offsets, and either all their due times or none."""

_WHEEL_STOPS = (
    "if the broker asks for offset 0 after its deletion, it reads the first frame that is left, and the "
    "whole timer wheel stops, even after restarts, until timerSkipUnknownError=true"
)


def pending(layout: StoreLayout, *, attempts: int = 1) -> tuple[Pending, ...]:
    """Return pending messages, with one item for each kind.

    For each kind, the files with the broker's progress are read first. So messages that the broker handles
    during the read still count as pending. Messages that arrive during the read may be missing; they are
    behind all segments that were sealed before. A kind that can't be read has an error in place of a count.

    :param attempts: attempts to read files that contradict each other; more than 1 beside a running broker.
    """
    if is_new(layout):
        return tuple(Pending(kind, 0, log=LOG) for kind in PendingKind)

    def timers(log: Sequence[MappedFile]) -> tuple[Longs, Longs]:
        refuse_timers_in_rocksdb(layout)
        return waiting_timers(layout, log)

    def halves(log: Sequence[MappedFile]) -> tuple[Longs, Longs]:
        refuse_halves_in_rocksdb(layout, log[0].base_offset)
        return read_undecided(layout, log), np.empty(0, np.int64)

    readers: dict[PendingKind, _Reader] = {
        PendingKind.DELAYED: lambda _: waiting_in_levels(layout),
        PendingKind.TIMER: timers,
        PendingKind.HALF: halves,
    }
    return tuple(_count_pending(kind, layout, reader, attempts) for kind, reader in readers.items())


def _count_pending(kind: PendingKind, layout: StoreLayout, reader: _Reader, attempts: int) -> Pending:
    def read() -> tuple[int, Longs, Longs]:
        log = list_segments(layout)
        return log[0].base_offset, *reader(log)

    try:
        log_min_offset, offsets, due = reread(read, attempts)
    except (BadInputError, StoreBusyError, OSError) as error:
        return Pending(kind, None, error=reason_text(error), log=LOG)
    present = offsets >= log_min_offset
    timed = due[present][due[present] >= 0] if len(due) else due
    is_known = len(timed) == int(present.sum()) > 0
    stops = kind is PendingKind.TIMER and bool((offsets == 0).any())
    return Pending(
        kind,
        count=int(present.sum()),
        first_offset=int(offsets[present].min()) if present.any() else None,
        first_due_ms=int(timed.min()) if is_known else None,
        last_due_ms=int(timed.max()) if is_known else None,
        lost=int((~present).sum()),
        consequence=_WHEEL_STOPS if stops else "",
        log=LOG,
    )


def queue_ids(topic: Path) -> set[int]:
    """Return the ids of the queues below consumequeue/<topic>; empty if the directory doesn't exist."""
    try:
        refuse_link(topic)
        names = [path.name for path in topic.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return set()
    return {queue_id for name in names if (queue_id := queue_id_of(name)) is not None}


@dataclass(frozen=True, slots=True)
class OwedEntries:
    """Entries of one queue that still have to be handled, as columns, sorted by queue offset."""

    queue_offset: Longs
    physical_offset: Longs
    tags_code: Longs

    def __len__(self) -> int:
        return len(self.queue_offset)


def entries_from(queue: Path, queue_offset: int, position: Path) -> OwedEntries:
    """Return the entries at and behind a queue offset.

    :param queue: the directory consumequeue/<topic>/<queue id>.
    :param queue_offset: queue offset of the reader's next message. If its entry was deleted with older ones,
        the result begins with the first entry that is left.
    :param position: the file from which ``queue_offset`` was read, for the error.
    :raises CorruptFileError: the files aren't a queue, or the queue ends before ``queue_offset``.
    """
    files = consume_queue.FORMAT.files(queue)
    end = consume_queue.next_queue_offset(files, consume_queue.FORMAT.last_position(files))
    if queue_offset > end:
        raise CorruptFileError(
            f"{queue}: expected entries up to queue offset {queue_offset}, the position in {position}, found "
            f"{end}: one of the two was lost or put back. Start the broker, which rebuilds its queues and "
            "corrects its positions, and stop it cleanly."
        )
    parts = [np.empty(0, consume_queue.DTYPE)]
    first = queue_offset
    for file in files:
        base = file.base_offset // CONSUME_QUEUE_ENTRY_BYTES
        first = max(first, base) if file is files[0] else first
        low, high = max(first - base, 0), min(end - base, file.size_bytes // CONSUME_QUEUE_ENTRY_BYTES)
        if low < high:
            with map_file(file.path) as data:
                entries = np.frombuffer(data, consume_queue.DTYPE)[low:high].copy()
            if not consume_queue.FORMAT.in_use(entries).all():
                raise CorruptFileError(
                    f"{file.path}: expected entries up to queue offset {end}, found a hole. Start the "
                    "broker, which rebuilds its queues, and stop it cleanly."
                )
            parts.append(entries)
    joined = np.concatenate(parts)
    offsets = first + np.arange(len(joined), dtype=np.int64)
    real = joined["size"] != FILLER_SIZE
    return OwedEntries(
        offsets[real], joined["offset"][real].astype(np.int64), joined["tags_code"][real].astype(np.int64)
    )


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The broker's progress with its timers.

    :param read_time_ms: timers due before this time are delivered.
    :param log_position: the timer log is written at least up to this position.
    :param queue_offset: messages below this queue offset are in the timer log.
    """

    read_time_ms: int
    log_position: int
    queue_offset: int


def read_timer_checkpoint(path: Path) -> TimerCheckpoint | None:
    """Read ``config/timercheck``; None if the file doesn't exist.

    The broker continues from the lower of its two queue offsets (TimerMessageStore#recover).

    :raises CorruptFileError: the file has another size, or a negative value.
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


def waiting_timers(layout: StoreLayout, log: Sequence[MappedFile]) -> tuple[Longs, Longs]:
    """Return the physical offset of each waiting timer, and its due time in ms since the epoch.

    An unknown due time is :data:`UNKNOWN_DUE`. For a timer beyond the wheel's window, the due time is the
    time at which the timer is written again.

    :param log: the commitlog's files, oldest first.
    :raises CorruptFileError: a file is missing, unreadable or malformed.
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
    offsets, due = in_log["offset"].astype(np.int64), _timer_due_ms(in_log)
    entries = entries_from(queue, checkpoint.queue_offset, path).physical_offset
    entries = entries[~np.isin(entries, offsets)]
    # The log has a message more than once where the broker read its queue again after a crash.
    offsets, first = np.unique(offsets, return_index=True)
    return np.concatenate([offsets, entries]), np.concatenate([due[first], _due_of_messages(log, entries)])


def _records(
    files: Sequence[MappedFile], position: int, read_time_ms: int, timer_log: Path
) -> Iterator[np.ndarray]:
    """Yield the records due at ``read_time_ms`` or later, file by file (TimerMessageStore#recoverAndRevise).

    :raises CorruptFileError: the timer log ends before ``position``.
    """
    end = 0
    for file in files:
        with map_file(file.path) as data:
            if not _has_no_timer(data, read_time_ms):
                records = np.frombuffer(data, RECORD, len(data) // RECORD.itemsize)
                odd = (records["size"] != RECORD.itemsize) | ((records["magic"] & ~_MAGIC_BITS) != 0)
                count = int(odd.argmax()) if odd.any() else len(records)
                end = file.base_offset + count * RECORD.itemsize
                waiting = records[:count]
                waiting = waiting[_timer_due_ms(waiting) >= read_time_ms].copy()
                blank = _is_blank(data, count * RECORD.itemsize)
                del records
                if len(waiting):
                    yield waiting
                if not blank:
                    break
        end = file.end_offset
    if end < position:
        raise CorruptFileError(
            f"{timer_log}: expected records up to position {position}, the end in the timers' checkpoint, "
            f"found their end at {end}. {_RESTORE}"
        )


def _timer_due_ms(records: np.ndarray) -> Longs:
    due: Longs = records["write_time_ms"].astype(np.int64) + records["delay_ms"]
    return due


def _has_no_timer(data: memoryview, read_time_ms: int) -> bool:
    """Return whether a full file has no waiting timer. Its last record, the youngest, decides."""
    last = (len(data) - _BLANK.size) // RECORD.itemsize * RECORD.itemsize - RECORD.itemsize
    if last < 0 or not _is_blank(data, last + RECORD.itemsize):
        return False
    record = np.frombuffer(data, RECORD, 1, last)[0]
    return bool(
        record["size"] == RECORD.itemsize and int(record["write_time_ms"]) + _MAX_DELAY_MS < read_time_ms
    )


def _is_blank(data: memoryview, at: int) -> bool:
    left_bytes = len(data) - at
    return left_bytes >= _BLANK.size and _BLANK.unpack_from(data, at) == (left_bytes, 0, frame.MAGIC_BLANK)


def _due_of_messages(log: Sequence[MappedFile], offsets: Longs) -> Longs:
    """Return messages' due times from their properties.

    A deleted message's time is unknown. If more than :data:`_DUE_READ_MAX` messages exist, all are unknown.
    """
    due = np.full(len(offsets), UNKNOWN_DUE, np.int64)
    rows = np.flatnonzero(offsets >= log[0].base_offset)
    if 0 < len(rows) <= _DUE_READ_MAX:
        values = [message.property(_DUE_PROPERTY) for message in stored_messages(log, offsets[rows])]
        due[rows] = [int(value) if value and value.isdigit() else UNKNOWN_DUE for value in values]
    return due


def read_undecided(layout: StoreLayout, log: Sequence[MappedFile]) -> Longs:
    """Return the physical offset of each undecided half message.

    :param log: the commitlog's files, oldest first.
    :raises CorruptFileError: the offsets, a queue or an operation message are unreadable or malformed.
    """
    positions = _positions(layout)
    parts = [np.empty(0, np.int64)]
    queues = queue_ids(layout.consumequeue / HALF_TOPIC)
    for queue_id in sorted(queues | {queue for topic, queue in positions if topic == HALF_TOPIC}):
        has_position = (HALF_TOPIC, queue_id) in positions
        halves = entries_from(
            layout.consumequeue / HALF_TOPIC / str(queue_id),
            positions.get((HALF_TOPIC, queue_id), 0),
            layout.config,
        )
        offsets = halves.physical_offset
        undone = ~np.isin(halves.queue_offset, _read_decided(layout, log, queue_id, positions))
        if not has_position:
            # Then the broker begins at the oldest message (TransactionalMessageBridge#fetchConsumeOffset).
            undone &= offsets >= log[0].base_offset
        parts.append(offsets[undone])
    return np.concatenate(parts)


def _read_decided(
    layout: StoreLayout, log: Sequence[MappedFile], queue_id: int, positions: dict[tuple[str, int], int]
) -> Longs:
    """Return the queue offsets of half messages that were committed or rolled back."""
    operations = entries_from(
        layout.consumequeue / OPERATION_TOPIC / str(queue_id),
        positions.get((OPERATION_TOPIC, queue_id), 0),
        layout.config,
    )
    offsets = operations.physical_offset
    # A half message lies before the operation that decides it. So deleted operations name deleted messages.
    present = offsets[offsets >= log[0].base_offset]
    bodies = [
        message.body
        for message in stored_messages(log, present)
        if message.property(frame.PROPERTY_TAGS) == _REMOVES
    ]
    numbers = [number for number in b",".join(bodies).split(b",") if number]
    try:
        return np.array(numbers, dtype="S").astype(np.int64)
    except (ValueError, OverflowError) as error:
        raise CorruptFileError(
            f"{layout.consumequeue / OPERATION_TOPIC / str(queue_id)}: expected messages whose bodies are "
            f"queue offsets and commas, found another ({error}). Compare the store with a replica."
        ) from error


def _positions(layout: StoreLayout) -> dict[tuple[str, int], int]:
    """Return the next queue offset of the broker's own group for transactions, by topic and queue."""
    table = consumer_offsets(layout)
    rows = table.filter(pc.equal(table["group"], pa.scalar(GROUP))).to_pylist()
    return {(row["topic"], row["queue_id"]): row["committed_offset"] for row in rows}
