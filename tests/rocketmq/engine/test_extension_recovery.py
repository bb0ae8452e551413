"""Recoveries of a queue with extensions that are interrupted: no entry gets another message's unit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from storage_engine.rocketmq.engine.append.append import NewMessage
from storage_engine.rocketmq.engine.dispatch.entry_files import EntryFiles
from storage_engine.rocketmq.engine.dispatch.queue_writer import UNIT, ExtWriter, QueueWriter
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.consume_queue import HEADER_BYTES
from storage_engine.rocketmq.format.layout import resolve_layout
from tests.rocketmq.engine.killing import check_extensions, rows_of
from tests.rocketmq.engine.scenarios import write_conf

FIRST, SECOND = 40, 10
LOST_UNIT = 2 * FIRST + 4


class Killed(BaseException):
    pass


def conf_of(directory: Path) -> BrokerConfig:
    return write_conf(
        directory.with_suffix(".conf"),
        directory,
        enableConsumeQueueExt=True,
        mappedFileSizeCommitLog=1 << 20,
        mappedFileSizeConsumeQueueExt=1 << 16,
    )


def put(store: MessageStore, numbers: range) -> None:
    for number in numbers:
        store.put(NewMessage("orders", b"", b"TAGS\x01t%d\x02" % number))
    store.flush()


def test_a_recovery_that_is_killed_leaves_no_entry_with_another_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, root = tmp_path / "first", tmp_path / "root"
    with open_store(conf_of(first)) as store:
        put(store, range(FIRST))
        shutil.copytree(first, tmp_path / "crashed")
    # A recovery writes a unit for each message, also of those that have their entries.
    with open_store(conf_of(tmp_path / "crashed")) as store:
        put(store, range(FIRST, FIRST + SECOND))
        shutil.copytree(tmp_path / "crashed", root)
    (units,) = (root / "consumequeue_ext/orders/0").iterdir()
    content = bytearray(units.read_bytes())
    begin = LOST_UNIT * HEADER_BYTES
    assert any(content[begin : begin + HEADER_BYTES])
    content[begin : begin + HEADER_BYTES] = bytes(HEADER_BYTES)
    units.write_bytes(content)

    def killed(files: EntryFiles, content: bytes) -> None:
        if "consumequeue" in files.directory.parts:
            raise Killed
        written(files, content)

    written = EntryFiles.append
    with monkeypatch.context() as context:
        context.setattr(EntryFiles, "append", killed)
        with pytest.raises(Killed), open_store(conf_of(root)):
            pass
    config = conf_of(root)
    with open_store(config):
        pass
    rows = rows_of(root)
    assert len(rows) == FIRST + SECOND
    check_extensions(resolve_layout(config), rows)


def opened(root: Path) -> QueueWriter:
    writer = QueueWriter(root / "queue", 20 * UNIT, ExtWriter(root / "ext", 500))
    writer.load()
    writer.recover(0)
    return writer


def append(writer: QueueWriter, first: int, count: int, tags_code: int) -> None:
    numbers = np.arange(first, first + count, dtype=np.int64)
    codes = np.full(count, tags_code, np.int64)
    writer.append(100 * numbers, np.full(count, 100), codes, numbers, 1000 + numbers)


def test_no_entry_gets_a_unit_of_before_where_a_power_loss_took_its_own(tmp_path: Path) -> None:
    append(opened(tmp_path), 0, 5, tags_code=1)
    (queue,), (ext,) = (list((tmp_path / name).iterdir()) for name in ("queue", "ext"))
    content = queue.read_bytes()
    queue.write_bytes(content[: 3 * UNIT].ljust(len(content), b"\0"))
    writer = opened(tmp_path)
    assert writer.next_queue_offset == 3
    on_disk = ext.read_bytes()
    assert not any(on_disk[3 * HEADER_BYTES :])
    append(writer, 3, 1, tags_code=2)
    ext.write_bytes(on_disk)
    assert opened(tmp_path).next_queue_offset == 3
