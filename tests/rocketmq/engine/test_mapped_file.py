"""One file of the log: what of it is in memory before it is written."""

from __future__ import annotations

import re
from pathlib import Path

from storage_engine.rocketmq.engine.append.append import Appender, NewMessage, PutStatus
from storage_engine.rocketmq.engine.append.mapped_file_queue import FileQueue, WritableFile
from storage_engine.rocketmq.engine.dispatch.queue_writer import QueueTable
from storage_engine.rocketmq.engine.engine_settings import settings_for
from storage_engine.rocketmq.format.layout import resolve_layout
from tests.rocketmq.engine.scenarios import pin_range, write_conf

FILE_BYTES = 64 << 20
MOST_BYTES = 33 << 20


def in_memory(path: Path, kind: str) -> int:
    """Return how many bytes of a mapped file are in memory, or dirty, as the kernel says."""
    (part,) = re.findall(
        rf"[^\n]*{re.escape(str(path))}\n(?:[A-Z][^\n]*\n)+", Path("/proc/self/smaps").read_text()
    )
    return sum(int(size) << 10 for size in re.findall(rf"^{kind}: +(\d+) kB$", part, re.MULTILINE))


def log_in(directory: Path) -> tuple[FileQueue, Appender]:
    config = write_conf(directory / "conf", directory / "store", maxMessageSize=4 << 20)
    (directory / "store/commitlog").mkdir(parents=True)
    layout = resolve_layout(config)
    settings = settings_for(config, layout)
    files = FileQueue(layout.commitlog_paths, FILE_BYTES)
    return files, Appender(files, QueueTable(layout, settings, frozenset()), settings, lambda: 1)


def test_what_is_written_next_is_mapped_and_stays_clean(tmp_path: Path) -> None:
    file = WritableFile(tmp_path / "00000000000000000000", 0, FILE_BYTES)
    assert in_memory(file.path, "Rss") < 1 << 20
    file.map_ahead()
    mapped = in_memory(file.path, "Rss")
    assert 16 << 20 < mapped < MOST_BYTES
    assert in_memory(file.path, r"(?:Shared|Private)_Dirty") == 0
    # Again only once much of that is written.
    file.set_positions(100)
    file.map_ahead()
    assert in_memory(file.path, "Rss") == mapped
    file.set_positions(20 << 20)
    file.map_ahead()
    assert mapped + (16 << 20) < in_memory(file.path, "Rss") < mapped + MOST_BYTES
    file.set_positions(FILE_BYTES)
    file.map_ahead()
    file.shutdown(0, 0)
    file.map_ahead()
    assert file.is_cleaned_up


def test_what_a_fast_producer_reaches_at_once_is_writable_before(tmp_path: Path) -> None:
    files, appender = log_in(tmp_path)
    message = NewMessage("orders", bytes(2 << 20))
    appender.put(message)
    file = files.last
    assert file is not None
    file.map_ahead()
    assert 5 << 20 < in_memory(file.path, r"(?:Shared|Private)_Dirty") < 7 << 20
    # A slow one leaves what comes next as it is.
    appender.put(NewMessage("orders", b""))
    file.flush(0)
    file.map_ahead()
    assert in_memory(file.path, r"(?:Shared|Private)_Dirty") == 0
    del file
    files.close()


def test_what_a_flush_took_out_of_the_mapping_is_read_as_before(tmp_path: Path) -> None:
    files, appender = log_in(tmp_path)
    body = bytes(range(256)) * (3 << 12)
    appender.put(NewMessage("orders", body))
    file = files.last
    assert file is not None
    before = pin_range(file, 0, file.read_position)
    assert before is not None
    file.flush(0)
    assert in_memory(file.path, "Rss") < 1 << 20
    assert bytes(before.data).count(body) == 1
    assert file.path.read_bytes()[: file.wrote] == bytes(before.data)
    before.release()
    del file
    files.close()


def test_nothing_is_written_to_a_file_that_is_gone(tmp_path: Path) -> None:
    files, appender = log_in(tmp_path)
    appender.put(NewMessage("orders", b""))
    assert files.last is not None
    files.last.shutdown(0, 0)
    assert appender.put(NewMessage("orders", b"")).status is PutStatus.SERVICE_NOT_AVAILABLE
    files.close()
