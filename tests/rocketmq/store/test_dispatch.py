from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.layout import StoreLayout, list_segments, resolve_layout
from storage_engine.rocketmq.format.mapped_files import file_name
from storage_engine.rocketmq.store import store
from storage_engine.rocketmq.store.store import dispatched_offset, find_active

MIB = 1 << 20


def layout_of(root: Path) -> StoreLayout:
    overrides = {"storePathCommitLog": f"{root}/cl1,{root}/cl2"} if (root / "cl1").is_dir() else {}
    return resolve_layout(load_broker_config(None, overrides, root=root))


def dispatched(layout: StoreLayout) -> int:
    files = list_segments(layout)
    active, max_offset = find_active(files)
    return dispatched_offset(layout, files, files[active].base_offset, max_offset)


@pytest.mark.parametrize("name", ["clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames"])
def test_one_message_behind_the_sealed_segments_proves_them_without_walking_the_queues(
    name: str, store_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(store_copy(name))
    monkeypatch.setattr(store, "all_queues", lambda _: pytest.fail("walked over the queues"))
    files = list_segments(layout)
    assert dispatched(layout) > files[find_active(files)[0]].base_offset


def test_a_consume_queue_entry_for_another_message_proves_nothing(store_copy: Callable[[str], Path]) -> None:
    layout = layout_of(store_copy("clean-stop"))
    before = dispatched(layout)
    assert before == 7442667
    for queue in iter_queues(layout.consumequeue):  # every queue offset now belongs to another message
        for path in queue.path.iterdir():
            path.write_bytes(
                path.read_bytes().replace((7 * MIB).to_bytes(8, "big"), (5 * MIB).to_bytes(8, "big"))
            )
    assert dispatched(layout) < 7 * MIB + 102635


def test_queues_that_cannot_be_read_prove_nothing(store_copy: Callable[[str], Path]) -> None:
    layout = layout_of(store_copy("kill9"))
    for queue in iter_queues(layout.consumequeue):
        for path in queue.path.iterdir():
            path.write_bytes(bytes(7))
    assert dispatched(layout) == list_segments(layout)[0].base_offset


@pytest.mark.parametrize("topic", [b"a/b", b"../..", b"a\0b"])
def test_a_topic_that_can_be_no_directory_is_not_looked_for(
    store_copy: Callable[[str], Path], topic: bytes
) -> None:
    layout = layout_of(store_copy("clean-stop"))
    path = layout.root / "commitlog/00000000000007340032"
    data = bytearray(path.read_bytes())
    body_length = int.from_bytes(data[84:88], "big")
    at = 88 + body_length
    length = data[at]
    data[at + 1 : at + 1 + length] = topic.ljust(length, b"x")
    path.write_bytes(data)
    assert dispatched(layout) == 7442667  # the queues themselves prove it


def test_an_entry_behind_the_end_of_the_log_proves_nothing(store_copy: Callable[[str], Path]) -> None:
    layout = layout_of(store_copy("clean-stop"))
    shutil.rmtree(layout.consumequeue)
    shutil.rmtree(layout.batchconsumequeue, ignore_errors=True)
    nothing = dispatched(layout)
    stray = layout.consumequeue / "stray" / "0"
    stray.mkdir(parents=True)
    entry = struct.pack(">qiq", 1 << 40, 100, 0)
    (stray / file_name(0)).write_bytes(entry.ljust(6000, b"\0"))
    assert dispatched(layout) == nothing == 0
