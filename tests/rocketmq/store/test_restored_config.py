"""The configuration for a restored store, against what a broker itself had written of the same store."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.config_files import delay_offsets, topics
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.lag.consumer_offsets import consumer_offsets
from storage_engine.rocketmq.restored_store import (
    CONFIG_FILES,
    NO_CONFIG_QUEUES,
    QUEUE_COLUMNS,
    config_files,
    merge_queues,
    queues_of,
)

SYSTEM_GROUPS = {"CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_REVIVE_GROUP"}


def _row(topic: str | None, queue_id: int | None, offset: int | None, flag: int | None = 0) -> dict[str, Any]:
    kind = "blank" if queue_id is None else "message"
    return dict(zip(QUEUE_COLUMNS, (kind, topic, queue_id, offset, flag), strict=True))


def _files(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    schema = pa.schema([CODEC.schema.field(name) for name in QUEUE_COLUMNS])
    files = config_files(queues_of(pa.Table.from_pylist(list(rows), schema)))
    assert tuple(files) == CONFIG_FILES
    return {name: content if "timer" in name else json.loads(content) for name, content in files.items()}


def _layout(root: Path) -> StoreLayout:
    return resolve_layout(load_broker_config(None, {}, root=str(root)))


@pytest.fixture
def derived(store_copy, tmp_path: Path) -> tuple[StoreLayout, StoreLayout]:
    """The layouts of a store that a broker stopped, and of one with the files derived from its log."""
    source: Path = store_copy("clean-stop")
    found = [NO_CONFIG_QUEUES]
    for path in sorted((source / "commitlog").iterdir()):
        for rows, _ in CODEC.decode(memoryview(path.read_bytes()), int(path.name)):
            found.append(queues_of(rows.select(QUEUE_COLUMNS)))
    for name, content in config_files(merge_queues(pa.concat_tables(found))).items():
        path = tmp_path / "restored" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "restored" / "commitlog").mkdir()
    return _layout(source), _layout(tmp_path / "restored")


def test_topics_have_the_queues_that_they_had(derived: tuple[StoreLayout, StoreLayout]) -> None:
    source, restored = ({topic.topic: topic for topic in topics(layout)} for layout in derived)
    assert {"orders", "tx_topic", "delayed", "SCHEDULE_TOPIC_XXXX", "%DLQ%cg_dlq"} < restored.keys()
    assert restored.items() <= source.items()


def test_delays_timers_and_transactions_count_as_done(derived: tuple[StoreLayout, StoreLayout]) -> None:
    source, restored = derived
    assert delay_offsets(restored) == delay_offsets(source)
    offsets = [row for row in consumer_offsets(source).to_pylist() if row["group"] in SYSTEM_GROUPS]
    assert len(offsets) == 2
    assert consumer_offsets(restored).to_pylist() == offsets
    timers = [(layout.config / "timercheck").read_bytes() for layout in derived]
    assert [len(content) for content in timers] == [4096, 4096]
    assert timers[0][16:32] == timers[1][16:32]


def test_unacknowledged_pops_count_as_done() -> None:
    files = _files([_row("rmq_sys_REVIVE_LOG_east", 3, 41), _row("rmq_sys_REVIVE_LOG_east", 3, 7)])
    assert files["config/consumerOffset.json"]["offsetTable"] == {
        "rmq_sys_REVIVE_LOG_east@CID_RMQ_SYS_REVIVE_GROUP": {"3": 42}
    }
    topic = files["config/topics.json"]["topicConfigTable"]["rmq_sys_REVIVE_LOG_east"]
    assert topic["readQueueNums"] == topic["writeQueueNums"] == 8


def test_a_topic_of_inner_batches_gets_batch_queues() -> None:
    rows = [_row("batches", 0, 5, 192), _row("batches", 2, 6, 0), _row("plain", 0, 1, 769)]
    table = _files(rows)["config/topics.json"]["topicConfigTable"]
    assert table["batches"]["attributes"] == {"queue.type": "BatchCQ"}
    assert table["batches"]["readQueueNums"] == 3
    assert table["plain"]["attributes"] == {}


def test_the_highest_queue_that_a_message_can_name_leaves_numbers_that_clients_can_work_with() -> None:
    highest = 2**31 - 1
    files = _files([_row("hostile", highest, 5), _row("SCHEDULE_TOPIC_XXXX", highest, 5)])
    for topic in files["config/topics.json"]["topicConfigTable"].values():
        assert topic["readQueueNums"] == topic["writeQueueNums"] == 65536
    assert files["config/delayOffset.json"]["offsetTable"] == {}


def test_light_queues_are_no_topics() -> None:
    assert _files([_row("%LMQ%a", 0, 5)])["config/topics.json"]["topicConfigTable"] == {}


def test_a_topic_whose_bytes_are_no_text_is_none() -> None:
    assert _files([_row(None, 0, 5, 0)]) == _files([_row(None, None, None, None)])


def test_segments_without_messages_give_a_broker_nothing_to_do() -> None:
    files = _files([_row(None, None, None, None)])
    assert files["config/topics.json"]["topicConfigTable"] == {}
    assert files["config/delayOffset.json"]["offsetTable"] == {}
    assert files["config/timercheck"] == bytes(4096)
