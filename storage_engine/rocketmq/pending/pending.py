"""What is pending in a store: delayed messages, timers, half messages. Computed from files alone.

The broker does not look at them when it deletes segments, and a deletion loses them nearly silently. What
can't be read, is missing where something says that it was there, or ends too early, makes its kind unknown.

The queue of SCHEDULE_TOPIC_XXXX with id q is that of level q + 1 (ScheduleMessageService#queueId2DelayLevel);
an entry's tags code is the time in ms at which it is due (ScheduleMessageService#computeDeliverTimestamp), or
the address of a unit that has it. ``delayOffset.json`` is behind the broker by up to 10 s.

What a broker keeps in RocksDB nothing here can count. From 5.4 on every store has ``rocksdbstore``, with the
column families ``timer`` and ``trans``, so that its being there says nothing. ``timerRocksDBEnable`` and
``transRocksDBEnable`` do, but a running broker takes either at any time: what was kept there before stays
there. So the files are asked as well. The timeline keeps its own checkpoints among its records
(MessageRocksDBStorage); RocksDB names the largest key of each of its files in its manifest, and one of these
is always the largest. What isn't in a file yet is in a log.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError, CorruptFileError, StoreBusyError, UnsupportedLayoutError
from storage_engine.model.broker.broker_store import Pending, PendingKind
from storage_engine.rocketmq.codec.frame import SCHEDULE_TOPIC
from storage_engine.rocketmq.codec.store_times import LogFile
from storage_engine.rocketmq.codec.stored_messages import Longs
from storage_engine.rocketmq.format import consume_queue, consume_queue_ext
from storage_engine.rocketmq.format.config_files import delay_offsets
from storage_engine.rocketmq.format.layout import LOG, StoreLayout, is_new, list_segments
from storage_engine.rocketmq.format.mapped_files import MAX_FILE_BYTES
from storage_engine.rocketmq.format.rereading import reread
from storage_engine.rocketmq.pending.half_messages import undecided
from storage_engine.rocketmq.pending.pending_queue import entries_from, queue_ids
from storage_engine.rocketmq.pending.timers import waiting_timers

TIMER_KEYS: Final = (b"timeline_checkpoint", b"sys_topic_scan_offset_checkpoint")
"""Of the column family ``timer``: how far the timeline is, and how far it has read the timers' queue."""
HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
"""Of half messages whose state is in RocksDB (TransMessageRocksDBStore)."""


def refuse_timers_in_rocksdb(layout: StoreLayout) -> None:
    """
    :raises UnsupportedLayoutError: timers are, or may be, in RocksDB.
    :raises OSError: a file of RocksDB can't be looked at.
    """
    if layout.timers_in_rocksdb:
        raise _unknown(layout, "timers", "timerRocksDBEnable=true")
    for path in _manifests_and_logs(layout.rocksdb):
        if _has_any(path, TIMER_KEYS):
            raise _unknown(layout, "timers", f"the timeline's records in {path}")


def refuse_halves_in_rocksdb(layout: StoreLayout, log_min_offset: int) -> None:
    """
    :raises UnsupportedLayoutError: half messages are, or may be, in RocksDB.
    :raises CorruptFileError: a queue can't be read as what it is.
    """
    if layout.halves_in_rocksdb:
        raise _unknown(layout, "half messages", "transRocksDBEnable=true")
    topic = layout.consumequeue / HALF_TOPIC
    for queue_id in queue_ids(topic):
        last = consume_queue.last_entry(consume_queue.list_files(topic / str(queue_id)))
        if last is not None and last.physical_offset >= log_min_offset:
            raise _unknown(layout, "half messages", str(topic))


def _unknown(layout: StoreLayout, what: str, where: str) -> UnsupportedLayoutError:
    return UnsupportedLayoutError(
        f"{layout.root}: expected {what} in the store's own files, found that they are in RocksDB, at "
        f"least in part (seen by {where}), which this version doesn't read. Nothing was changed. Set "
        "pending_policy to warn where none of them is due any more."
    )


def _manifests_and_logs(directory: Path) -> Iterator[Path]:
    try:
        names = sorted(path.name for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from (directory / name for name in names if name.startswith("MANIFEST-") or name.endswith(".log"))


def _has_any(path: Path, keys: tuple[bytes, ...]) -> bool:
    """Return whether a file has one of these somewhere. Reads nothing into memory."""
    try:
        with path.open("rb", buffering=0) as file:
            size = path.stat().st_size
            if size > MAX_FILE_BYTES:
                return True  # nobody looks through that at each run: unknown
            if not size:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return any(data.find(key) >= 0 for key in keys)
    except FileNotFoundError:
        return False  # a running broker drops its old ones, once a newer one has what was in them


def waiting_in_levels(layout: StoreLayout) -> tuple[Longs, Longs]:
    """Physical offset of each waiting message, and when it is due, in ms.

    A level that the file doesn't name begins at its queue's first message (ScheduleMessageService#start).

    :raises CorruptFileError: the positions or a queue can't be read as what they are.
    """
    delivered = delay_offsets(layout)
    topic = layout.consumequeue / SCHEDULE_TOPIC
    offsets, due = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for queue_id in sorted(queue_ids(topic) | {level - 1 for level in delivered}):
        entries = entries_from(
            topic / str(queue_id), delivered.get(queue_id + 1, 0), layout.config / "delayOffset.json"
        )
        offsets.append(entries.physical_offset)
        due.append(_due_ms(layout.consumequeue_ext / SCHEDULE_TOPIC / str(queue_id), entries.tags_code))
    return np.concatenate(offsets), np.concatenate(due)


def _due_ms(extension: Path, tags_codes: Longs) -> Longs:
    """Tags codes, those that are addresses replaced by their units' (ConsumeQueueExt#isExtAddr)."""
    elsewhere = tags_codes <= consume_queue_ext.MAX_ADDRESS
    if not elsewhere.any():
        return tags_codes
    due = tags_codes.copy()
    wanted = tags_codes[elsewhere] - np.iinfo(np.int64).min
    found = np.zeros(len(wanted), dtype=bool)
    values = np.zeros(len(wanted), dtype=np.int64)
    for file in consume_queue_ext.list_files(extension):
        here = (wanted >= file.base_offset) & (wanted < file.end_offset)
        if here.any():
            units = consume_queue_ext.read_units(file)
            at = np.searchsorted(units.offset, wanted[here])
            hit = (at < len(units.offset)) & (np.append(units.offset, -1)[at] == wanted[here])
            found[here], values[here] = hit, np.append(units.tags_code, 0)[at]
    if not found.all():
        raise CorruptFileError(
            f"{extension}: expected a unit at offset {wanted[~found][0]}, to which the queue's entry points, "
            "found none. Compare the directory with a replica."
        )
    due[elsewhere] = values
    return due


_Reader: TypeAlias = Callable[[Sequence[LogFile]], tuple[Longs, Longs]]
"""Of a kind: physical offsets, and due times of as many messages or of none."""

_WHEEL_STOPS = (
    "asked for offset 0 once it is gone, the broker reads the first frame that is left, and the whole timer "
    "wheel stops, restarts included, until timerSkipUnknownError=true"
)


def pending(layout: StoreLayout, *, attempts: int = 1) -> tuple[Pending, ...]:
    """Return what is pending, one item a kind.

    Of a kind's files those that say how far the broker is are read first: what it does meanwhile is pending
    still, by them. What comes in while they are read may be missing; it lies behind any segment that was
    sealed before.

    :param attempts: how often files are read that don't fit together; beside a running broker more than one.
    """
    if is_new(layout):
        return tuple(Pending(kind, 0, log=LOG) for kind in PendingKind)

    def timers(log: Sequence[LogFile]) -> tuple[Longs, Longs]:
        refuse_timers_in_rocksdb(layout)
        return waiting_timers(layout, log)

    def halves(log: Sequence[LogFile]) -> tuple[Longs, Longs]:
        refuse_halves_in_rocksdb(layout, log[0].base_offset)
        return undecided(layout, log), np.empty(0, np.int64)

    readers: dict[PendingKind, _Reader] = {
        PendingKind.DELAYED: lambda _: waiting_in_levels(layout),
        PendingKind.TIMER: timers,
        PendingKind.HALF: halves,
    }
    return tuple(_pending(kind, layout, reader, attempts) for kind, reader in readers.items())


def _pending(kind: PendingKind, layout: StoreLayout, reader: _Reader, attempts: int) -> Pending:
    def read() -> tuple[int, Longs, Longs]:
        log = [LogFile(str(file.path), file.base_offset, file.size_bytes) for file in list_segments(layout)]
        return log[0].base_offset, *reader(log)

    try:
        log_min_offset, offsets, due = reread(read, attempts)
    except (BadInputError, StoreBusyError, OSError) as error:
        return Pending(kind, None, error=reason_text(error), log=LOG)
    there = offsets >= log_min_offset
    timed = due[there][due[there] >= 0] if len(due) else due
    known = len(timed) == int(there.sum()) > 0
    stops = kind is PendingKind.TIMER and bool((offsets == 0).any())
    return Pending(
        kind,
        count=int(there.sum()),
        first_offset=int(offsets[there].min()) if there.any() else None,
        first_due_ms=int(timed.min()) if known else None,
        last_due_ms=int(timed.max()) if known else None,
        lost=int((~there).sum()),
        consequence=_WHEEL_STOPS if stops else "",
        log=LOG,
    )
