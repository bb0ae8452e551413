from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.config_files import TopicConfig, delay_offsets, groups, topics
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout


def layout_of(root: Path) -> StoreLayout:
    return resolve_layout(load_broker_config(None, root=root))


@pytest.fixture
def empty(tmp_path: Path) -> StoreLayout:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config").mkdir()
    return layout_of(tmp_path)


def test_topics_and_groups_are_read(store_copy: Callable[[str], Path]) -> None:
    layout = layout_of(store_copy("clean-stop"))
    by_name = {topic.topic: topic for topic in topics(layout)}
    assert (by_name["events_UPPER-4q"].read_queues, by_name["events_UPPER-4q"].write_queues) == (4, 4)
    assert by_name["SCHEDULE_TOPIC_XXXX"].read_queues == 18
    assert {"cg_orders", "cg_ledger", "cg_dlq"} <= set(groups(layout))


def test_delay_offsets_are_read_by_level(store_copy: Callable[[str], Path]) -> None:
    assert delay_offsets(layout_of(store_copy("clean-stop"))) == {1: 53, 2: 5, 3: 5, 4: 5, 5: 4}


def test_a_store_without_records_has_none(empty: StoreLayout) -> None:
    assert (topics(empty), groups(empty), delay_offsets(empty)) == ((), (), {})


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


@pytest.mark.parametrize(
    "broken",
    [
        '{"topicConfigTable":{"t":{"perm":1e400,"readQueueNums":1,"writeQueueNums":1}}}',
        '{"topicConfigTable":{"t":{"perm":%s,"readQueueNums":1,"writeQueueNums":1}}}' % ("9" * 5000),
        '{"topicConfigTable":{"t":{"perm":2147483648,"readQueueNums":1,"writeQueueNums":1}}}',
        '{"topicConfigTable":7}',
        '{"topicConfigTable":{"t":7}}',
        "[" * 10_000,
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_read_from_its_backup(
    empty: StoreLayout, broken: str
) -> None:
    path = empty.config / "topics.json"
    path.write_text(broken)
    with pytest.raises(CorruptFileError, match=r"topics\.json: "):
        topics(empty)
    good = '{"topicConfigTable":{"t":{"perm":6,"readQueueNums":1,"writeQueueNums":2}}}'
    (empty.config / "topics.json.bak").write_text(good)
    assert topics(empty) == (TopicConfig("t", 1, 2, 6),)


@pytest.mark.parametrize("offset", ["-1", "9223372036854775808", "1e400", '"x"'])
def test_a_delay_offset_that_no_queue_can_have_is_an_error(empty: StoreLayout, offset: str) -> None:
    (empty.config / "delayOffset.json").write_text(f'{{"offsetTable":{{1:{offset}}}}}')
    with pytest.raises(CorruptFileError, match=r"delayOffset\.json"):
        delay_offsets(empty)
