from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.broker_config import load_broker_config
from storage_engine.rocketmq.config_files import (
    ConsumerOffset,
    consumer_offsets,
    delay_offsets,
    groups,
    topics,
)
from storage_engine.rocketmq.layout import StoreLayout, resolve_layout


def layout_of(root: Path) -> StoreLayout:
    return resolve_layout(load_broker_config(None, root=root))


@pytest.fixture
def empty(tmp_path: Path) -> StoreLayout:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config").mkdir()
    return layout_of(tmp_path)


@pytest.mark.parametrize(
    ("name", "orders"),
    [
        ("clean-stop", [402, 397, 402, 401, 402, 403, 401, 402]),  # in lmqConsumerOffset.json
        ("cqext-batchcq", [144, 142, 142, 144, 142, 144, 145, 142]),  # in consumerOffset.json
    ],
)
def test_consumer_offsets_come_as_a_flat_table(
    name: str, orders: list[int], store_copy: Callable[[str], Path]
) -> None:
    table = consumer_offsets(layout_of(store_copy(name)))
    assert [row for row in table if row.group == "cg_orders"] == [
        ConsumerOffset("cg_orders", "orders", queue_id, offset) for queue_id, offset in enumerate(orders)
    ]
    assert ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 72) in table
    assert list(table) == sorted(table)


def test_topics_and_groups_are_read(store_copy: Callable[[str], Path]) -> None:
    layout = layout_of(store_copy("clean-stop"))
    by_name = {topic.topic: topic for topic in topics(layout)}
    assert (by_name["events_UPPER-4q"].read_queues, by_name["events_UPPER-4q"].write_queues) == (4, 4)
    assert by_name["SCHEDULE_TOPIC_XXXX"].read_queues == 18
    assert {"cg_orders", "cg_ledger", "cg_dlq"} <= set(groups(layout))


def test_delay_offsets_are_read_by_level(store_copy: Callable[[str], Path]) -> None:
    assert delay_offsets(layout_of(store_copy("clean-stop"))) == {1: 53, 2: 5, 3: 5, 4: 5, 5: 4}


def test_a_light_message_queue_has_one_queue(empty: StoreLayout) -> None:
    (empty.config / "lmqConsumerOffset.json").write_text('{"lmqOffsetTable":{"%LMQ%x@%LMQ%x":7}}')
    assert consumer_offsets(empty) == (ConsumerOffset("%LMQ%x", "%LMQ%x", 0, 7),)


def test_of_two_offsets_the_lower_counts(empty: StoreLayout) -> None:
    (empty.config / "lmqConsumerOffset.json").write_text('{"offsetTable":{"t@g":{0:7,1:1}}}')
    (empty.config / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:5,1:9}}}')
    assert consumer_offsets(empty) == (ConsumerOffset("g", "t", 0, 5), ConsumerOffset("g", "t", 1, 1))


def test_a_store_without_records_has_none(empty: StoreLayout) -> None:
    assert (consumer_offsets(empty), topics(empty), groups(empty), delay_offsets(empty)) == ((), (), (), {})


@pytest.mark.parametrize("content", [b"", b'{"offsetTable":{"t@g":{0:', b"\xff\xfe"])
def test_a_broken_file_is_replaced_by_its_backup_as_the_broker_does(
    empty: StoreLayout, content: bytes
) -> None:
    (empty.config / "consumerOffset.json").write_bytes(content)
    (empty.config / "consumerOffset.json.bak").write_text('{"offsetTable":{"t@g":{0:5}}}')
    assert consumer_offsets(empty) == (ConsumerOffset("g", "t", 0, 5),)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("consumerOffset.json", '{"offsetTable":{"t@g":{0:', "consumerOffset.json: at character 25"),
        ("consumerOffset.json", "[]", "expected an object"),
        ("consumerOffset.json", '{"offsetTable":{"t":{0:1}}}', "'t' is not topic@group"),
        ("consumerOffset.json", '{"offsetTable":{"t@g":5}}', "offsets by topic@group"),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{"x":5}}}', "offsets by topic@group"),
        ("lmqConsumerOffset.json", '{"lmqOffsetTable":[]}', "lmqConsumerOffset.json: expected offsets"),
    ],
)
def test_a_file_that_can_not_be_read_is_an_error_with_its_name(
    empty: StoreLayout, name: str, content: str, message: str
) -> None:
    (empty.config / name).write_text(content)
    with pytest.raises(CorruptFileError, match=message):
        consumer_offsets(empty)


def test_other_records_that_can_not_be_read_are_errors_too(empty: StoreLayout) -> None:
    (empty.config / "topics.json").write_text('{"topicConfigTable":{"t":{"perm":6}}}')
    with pytest.raises(CorruptFileError, match="readQueueNums"):
        topics(empty)
    (empty.config / "topics.json").write_text('{"topicConfigTable":[]}')
    with pytest.raises(CorruptFileError, match="an object topicConfigTable"):
        topics(empty)
    (empty.config / "delayOffset.json").write_text('{"offsetTable":{"x":1}}')
    with pytest.raises(CorruptFileError, match="each delay level"):
        delay_offsets(empty)
