from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.jsonable import to_jsonable
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.inspect import StoreInspection, inspect
from storage_engine.rocketmq.store.store import RocketMQStore

STORES = ["clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames"]


def inspected(root: Path, **detail: bool) -> StoreInspection:
    overrides = {"storePathCommitLog": f"{root}/cl1,{root}/cl2"} if (root / "cl1").is_dir() else {}
    return inspect(RocketMQStore.open(load_broker_config(None, overrides, root=root)), 0, **detail)


@pytest.mark.parametrize("name", STORES)
def test_segments_tell_what_the_broker_reads_in_them(
    name: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    times = defaultdict(list)
    for line in ground_truth(name, "commitlog"):
        if line["kind"] == "message":
            times[line["file"]].append(line["storeTimestamp"])
    root = store_copy(name)
    for seen in inspected(root, messages=True).segments:
        expected = times[seen.segment.name]
        assert seen.messages == len(expected)
        assert seen.first_store_timestamp_ms == (expected[0] if expected else None)
        assert seen.last_store_timestamp_ms == (expected[-1] if expected else None)
        assert seen.damaged_bytes == 0
    for seen in inspected(root).segments:
        expected = times[seen.segment.name]
        assert seen.first_store_timestamp_ms == (expected[0] if expected else None)
        assert seen.last_store_timestamp_ms is None


@pytest.mark.parametrize("name", STORES)
def test_queues_tell_the_offsets_that_can_be_read(
    name: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    indexes = defaultdict(list)
    for line in ground_truth(name, "consumequeue"):
        indexes[line["topic"], line["queue"]].append(line["index"])
    seen = inspected(store_copy(name), queues=True)
    queues = {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in seen.queues if not q.batch}
    assert queues == {key: (found[0], found[-1] + 1) for key, found in indexes.items()}
    assert seen.queue_count == len(seen.queues)
    assert any(q.batch for q in seen.queues) == (name == "cqext-batchcq")


@pytest.mark.parametrize("name", STORES)
def test_an_inspection_can_be_printed_as_json(name: str, store_copy: Callable[[str], Path]) -> None:
    seen = inspected(store_copy(name))
    assert seen.queues == ()
    data = json.loads(json.dumps(to_jsonable(seen)))
    assert data["checkpoint"]["physic_msg_timestamp_ms"] > 0
    assert data["config"]["delete_when"] == "04"
    assert data["crashed"] == (name == "kill9")
    assert data["holder"] is None
    assert len(data["index_files"]) > 0


@pytest.mark.parametrize("name", ["checkpoint", "config/topics.json", "config/subscriptionGroup.json"])
def test_what_cannot_be_read_beside_the_log_is_named_and_the_rest_is_shown(
    store_copy: Callable[[str], Path], name: str
) -> None:
    root = store_copy("edge-frames")
    whole = inspected(root)
    for path in root.glob(f"{name}*"):
        path.unlink()
    (root / name).mkdir(parents=True)
    seen = inspected(root)
    (why,) = seen.unreadable
    assert str(root / name) in why
    assert (whole.unreadable, seen.segments, seen.index_files) == ((), whole.segments, whole.index_files)


def test_a_short_checkpoint_has_the_values_that_are_whole(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("edge-frames")
    whole = inspected(root).checkpoint
    path = root / "checkpoint"
    path.write_bytes(path.read_bytes()[:12])
    assert whole is not None
    assert inspected(root).checkpoint == dict(list(whole.items())[:1])
