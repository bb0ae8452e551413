from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import CorruptFrameError
from storage_engine.rocketmq.engine.recover_on_demand import rebuild_queues, recover_store
from storage_engine.rocketmq.format import batch_consume_queue, consume_queue
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.index_file import open_index
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from tests.rocketmq.engine.scenarios import contents

SHAPE = {"maxHashSlotNum": "100", "maxIndexNum": "400"}


def config_of(root: Path) -> BrokerConfig:
    return load_broker_config(None, SHAPE, root=root)


def test_a_killed_brokers_store_becomes_clean(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("kill9")
    before = contents(root)
    foreseen = recover_store(config_of(root), dry_run=True, cut_messages=False)
    assert contents(root) == before
    assert foreseen.crashed
    assert foreseen.cut_messages == 0
    done = recover_store(config_of(root), dry_run=False, cut_messages=False)
    assert done.done
    assert done.log_end == foreseen.log_end
    assert not (root / "abort").exists()
    left = {path for path in before if path.startswith("commitlog/")} - contents(root).keys()
    assert {Path(path).name for path in left} == set(foreseen.deleted_files)
    again = recover_store(config_of(root), dry_run=True, cut_messages=False)
    assert (again.crashed, again.log_end) == (False, done.log_end)
    assert (again.deleted_files, again.stray_entries, again.missing_messages) == ((), 0, 0)


def test_whole_messages_are_cut_off_only_where_a_person_says_so(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("kill9")
    log = sorted((root / "commitlog").iterdir())
    (root / "checkpoint").unlink()
    damaged = bytearray(log[0].read_bytes())
    damaged[120:140] = bytes(20)
    log[0].write_bytes(damaged)
    before = contents(root)
    foreseen = recover_store(config_of(root), dry_run=True, cut_messages=False)
    assert foreseen.cut_messages > 100
    with pytest.raises(CorruptFrameError, match="--cut-messages"):
        recover_store(config_of(root), dry_run=False, cut_messages=False)
    with pytest.raises(CorruptFrameError, match="would be missing in the queues"):
        rebuild_queues(config_of(root))
    assert {path: data for path, data in contents(root).items() if path != "lock"} == {
        path: data for path, data in before.items() if path != "lock"
    }
    recover_store(config_of(root), dry_run=False, cut_messages=True)
    assert len(list((root / "commitlog").iterdir())) == 1


@pytest.mark.parametrize("name", ["clean-stop", "cqext-batchcq"])
def test_queues_made_again_are_those_that_the_broker_made(
    name: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    root = store_copy(name)
    layout, log = resolve_layout(config_of(root)), contents(root / "commitlog")
    before = queues_of(layout)
    rebuild_queues(config_of(root))
    assert contents(root / "commitlog") == log
    assert queues_of(layout) == before
    assert not (root / "abort").exists()
    with open_index(layout, config_of(root)) as index:
        for line in ground_truth(name, "indexlookup"):
            topic, _, key = line["key"].partition("#")
            assert list(index.lookup(topic, key, 64)) == sorted(line["offsets"])[-64:], line["key"]


def queues_of(layout: StoreLayout) -> dict[tuple[str, int], object]:
    """Return what queues say of each message; a broker's extensions have bitmaps beside its tags' codes."""
    found: dict[tuple[str, int], object] = {}
    for queue in iter_queues(layout.batchconsumequeue):
        entries = batch_consume_queue.FORMAT.read_queue(batch_consume_queue.FORMAT.files(queue.path))
        found[queue.topic, queue.queue_id] = entries.tolist()
    for queue in iter_queues(layout.consumequeue):
        entries = consume_queue.FORMAT.read_queue(consume_queue.FORMAT.files(queue.path))
        units = {}
        for file in consume_queue.list_files(layout.consumequeue_ext / queue.topic / str(queue.queue_id)):
            read = consume_queue.read_units(file)
            units |= dict(zip(read.offset.tolist(), read.tags_code.tolist(), strict=True))
        found[queue.topic, queue.queue_id] = [
            (offset, size, units.get(consume_queue.unit_offset(code), code))
            for offset, size, code in entries.tolist()
        ]
    return {queue: entries for queue, entries in found.items() if entries}
