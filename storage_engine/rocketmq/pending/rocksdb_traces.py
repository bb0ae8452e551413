"""Whether a broker keeps timers or half messages in RocksDB, where nothing here can count them.

From 5.4 on every store has ``rocksdbstore``, with the column families ``timer`` and ``trans``, so that its
being there says nothing. ``timerRocksDBEnable`` and ``transRocksDBEnable`` do, but a running broker takes
either at any time: what was kept there before stays there. So the files are asked as well. The timeline keeps
its own checkpoints among its records (MessageRocksDBStorage); RocksDB names the largest key of each of its
files in its manifest, and one of these is always the largest. What isn't in a file yet is in a log.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from storage_engine.exceptions import UnsupportedLayoutError
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import MAX_FILE_BYTES
from storage_engine.rocketmq.pending.pending_queue import queue_ids

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
