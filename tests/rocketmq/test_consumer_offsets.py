from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq import consumer_offsets as module
from storage_engine.rocketmq.broker_config import load_broker_config
from storage_engine.rocketmq.layout import StoreLayout, resolve_layout


class Offset(NamedTuple):
    topic: str
    queue_id: int
    group: str
    offset: int


def layout_of(root: Path) -> StoreLayout:
    return resolve_layout(load_broker_config(None, root=root))


def consumer_offsets(layout: StoreLayout) -> list[Offset]:
    return [Offset(*row.values()) for row in module.consumer_offsets(layout).to_pylist()]


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
        Offset("orders", queue_id, "cg_orders", offset) for queue_id, offset in enumerate(orders)
    ]
    assert ("RMQ_SYS_TRANS_HALF_TOPIC", 0, "CID_RMQ_SYS_TRANS", 72) in table
    assert table == sorted(table)


def test_a_light_message_queue_has_one_queue(empty: StoreLayout) -> None:
    (empty.config / "lmqConsumerOffset.json").write_text('{"lmqOffsetTable":{"%LMQ%x@%LMQ%x":7}}')
    assert consumer_offsets(empty) == [Offset("%LMQ%x", 0, "%LMQ%x", 7)]


def test_of_two_offsets_the_lower_counts(empty: StoreLayout) -> None:
    (empty.config / "lmqConsumerOffset.json").write_text('{"offsetTable":{"t@g":{0:7,1:1}}}')
    (empty.config / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:5,1:9}}}')
    assert consumer_offsets(empty) == [Offset("t", 0, "g", 5), Offset("t", 1, "g", 1)]


@pytest.mark.parametrize("content", [b"", b'{"offsetTable":{"t@g":{0:', b"\xff\xfe"])
def test_a_broken_file_is_replaced_by_its_backup_as_the_broker_does(
    empty: StoreLayout, content: bytes
) -> None:
    (empty.config / "consumerOffset.json").write_bytes(content)
    (empty.config / "consumerOffset.json.bak").write_text('{"offsetTable":{"t@g":{0:5}}}')
    assert consumer_offsets(empty) == [Offset("t", 0, "g", 5)]


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
