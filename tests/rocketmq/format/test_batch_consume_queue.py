from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage_engine.rocketmq.format import batch_consume_queue
from storage_engine.rocketmq.format.consume_queue import QueueBounds, iter_queues

COLUMNS = {
    "offset": "offset",
    "size": "size",
    "tags_code": "tagsCode",
    "store_time": "storeTime",
    "base_offset": "msgBaseOffset",
    "batch_size": "batchSize",
    "compact_offset": "compactOffset",
    "reserved": "reserved",
}


def test_every_entry_equals_what_the_broker_reads(
    store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    root = store_copy("cqext-batchcq")
    truth = ground_truth("cqext-batchcq", "batchconsumequeue")
    queues = list(iter_queues(root / "batchconsumequeue"))
    assert {(queue.topic, queue.queue_id) for queue in queues} == {(t["topic"], t["queue"]) for t in truth}
    for queue in queues:
        lines = [t for t in truth if (t["topic"], t["queue"]) == (queue.topic, queue.queue_id)]
        files = batch_consume_queue.FORMAT.files(queue.path)
        entries = batch_consume_queue.FORMAT.read_queue(files)
        for ours, theirs in COLUMNS.items():
            assert entries[ours].tolist() == [line[theirs] for line in lines]
        assert [line["slot"] for line in lines] == list(range(len(lines)))
        last = batch_consume_queue.FORMAT.last_message(files)
        assert last is not None
        assert last == (lines[-1]["offset"], entries["size"][-1])
        assert entries["base_offset"][-1] == lines[-1]["msgBaseOffset"]


def test_bounds_count_messages_and_not_entries(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("cqext-batchcq")
    queue = next(iter_queues(root / "batchconsumequeue"))
    files = batch_consume_queue.FORMAT.files(queue.path)
    entries = batch_consume_queue.FORMAT.read_queue(files)
    maximum = int(entries["base_offset"][-1] + entries["batch_size"][-1])
    assert maximum > len(entries)
    assert batch_consume_queue.bounds(files, 0) == QueueBounds(0, maximum)
    third = entries[2]
    assert batch_consume_queue.bounds(files, int(third["offset"])) == QueueBounds(
        int(third["base_offset"]), maximum
    )
    assert batch_consume_queue.bounds(files, 1 << 40) == QueueBounds(maximum, maximum)


def test_an_empty_queue_has_no_bounds(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000").write_bytes(bytes(460))
    files = batch_consume_queue.FORMAT.files(tmp_path)
    assert batch_consume_queue.FORMAT.last_message(files) is None
    assert batch_consume_queue.bounds(files, 0) == QueueBounds(0, 0)
