from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.arrow.name_columns import POSITIONS_SCHEMA
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.lag.consumer_offsets import consumers_in_files, group_positions

Row = tuple[str, int, str, int | None]


@pytest.fixture
def empty(tmp_path: Path) -> StoreLayout:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config").mkdir()
    return resolve_layout(load_broker_config(None, root=tmp_path))


def write(layout: StoreLayout, **files: object) -> None:
    for name, content in files.items():
        (layout.config / f"{name}.json").write_text(json.dumps(content))


def add_queues(layout: StoreLayout, topic: str, *queue_ids: int, kind: str = "consumequeue") -> None:
    for queue_id in queue_ids:
        (layout.root / kind / topic / str(queue_id)).mkdir(parents=True)


def rows(layout: StoreLayout) -> list[Row]:
    table = group_positions(layout, consumers_in_files(layout))
    assert table.schema == POSITIONS_SCHEMA
    return [
        (row["topic"], row["queue_id"], row["group"], row["committed_offset"]) for row in table.to_pylist()
    ]


def topic(*names: str) -> dict[str, object]:
    config = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    return {"topicConfigTable": {name: {"topicName": name, **config} for name in names}}


def test_every_committed_offset_is_a_row_and_rows_of_a_queue_lie_together(
    store_copy: Callable[[str], Path],
) -> None:
    layout = resolve_layout(load_broker_config(None, root=store_copy("clean-stop")))
    found = rows(layout)
    committed = {(name, queue): offset for name, queue, group, offset in found if group == "cg_orders"}
    assert committed == {
        ("orders", queue): offset for queue, offset in enumerate([402, 397, 402, 401, 402, 403, 401, 402])
    }
    assert found == sorted(found, key=lambda row: row[:3])


def test_retry_topic_with_messages_and_no_offset_is_unknown_not_zero(
    store_copy: Callable[[str], Path],
) -> None:
    layout = resolve_layout(load_broker_config(None, root=store_copy("clean-stop")))
    (row,) = (row for row in rows(layout) if row[0].startswith("%RETRY%"))
    assert row[0] == f"%RETRY%{row[2]}"
    assert row[3] is None


def test_queue_of_a_known_topic_without_an_offset_is_unknown(empty: StoreLayout) -> None:
    write(empty, consumerOffset={"offsetTable": {"orders@readers": {"0": 7}}})
    add_queues(empty, "orders", 0, 1)
    add_queues(empty, "other", 0)
    assert rows(empty) == [("orders", 0, "readers", 7), ("orders", 1, "readers", None)]


def test_batch_queues_count_as_queues(empty: StoreLayout) -> None:
    write(empty, consumerOffset={"offsetTable": {"batches@readers": {"0": 7}}})
    add_queues(empty, "batches", 0, 3, kind="batchconsumequeue")
    assert rows(empty) == [("batches", 0, "readers", 7), ("batches", 3, "readers", None)]


def test_offset_in_a_queue_that_is_gone_is_still_a_row(empty: StoreLayout) -> None:
    write(empty, consumerOffset={"offsetTable": {"gone@readers": {"2": 7}}})
    assert rows(empty) == [("gone", 2, "readers", 7)]


def test_subscription_with_a_filter_is_known_without_any_offset(empty: StoreLayout) -> None:
    write(empty, consumerFilter={"filterDataByTopic": {"orders": {"groupFilterData": {"readers": {}}}}})
    add_queues(empty, "orders", 0, 1)
    assert rows(empty) == [("orders", 0, "readers", None), ("orders", 1, "readers", None)]


def test_group_that_never_committed_is_there_with_its_retry_topic(empty: StoreLayout) -> None:
    write(
        empty,
        subscriptionGroup={"subscriptionGroupTable": {"readers": {}, "TOOLS_CONSUMER": {}}},
        topics=topic("%RETRY%readers", "orders"),
    )
    assert rows(empty) == [("%RETRY%readers", 0, "readers", None)]


def test_retry_topic_without_messages_says_nothing_of_a_group_that_committed(empty: StoreLayout) -> None:
    write(
        empty,
        consumerOffset={"offsetTable": {"orders@readers": {"0": 7}}},
        subscriptionGroup={"subscriptionGroupTable": {"readers": {}}},
        topics=topic("%RETRY%readers", "orders"),
    )
    add_queues(empty, "orders", 0)
    assert rows(empty) == [("orders", 0, "readers", 7)]


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 4)), max_size=3),
    st.dictionaries(
        st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")),
        st.dictionaries(st.integers(0, 5), st.integers(0, 9), min_size=1),
    ),
)
def test_group_has_a_row_in_each_queue_of_its_topics_on_disk_or_with_an_offset(
    on_disk: dict[str, set[int]], committed: dict[tuple[str, str], dict[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "commitlog").mkdir()
        (Path(root) / "config").mkdir()
        layout = resolve_layout(load_broker_config(None, root=root))
        for name, queue_ids in on_disk.items():
            add_queues(layout, name, *queue_ids)
        write(
            layout, consumerOffset={"offsetTable": {"@".join(key): value for key, value in committed.items()}}
        )
        expected = [
            (name, queue_id, group, offsets.get(queue_id))
            for (name, group), offsets in committed.items()
            for queue_id in on_disk.get(name, set()) | offsets.keys()
        ]
        assert rows(layout) == sorted(expected, key=lambda row: row[:3])


def test_store_without_consumers_has_no_rows(empty: StoreLayout) -> None:
    assert rows(empty) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("consumerFilter", []),
        ("consumerFilter", {"filterDataByTopic": {"orders": {}}}),
        ("consumerFilter", {"filterDataByTopic": 3}),
        ("subscriptionGroup", {"subscriptionGroupTable": []}),
        ("consumerOffset", {"offsetTable": {"orders": {}}}),
        ("lmqConsumerOffset", {"lmqOffsetTable": 3}),
    ],
)
def test_what_a_file_has_that_cannot_be_read_is_unknown_by_its_name(
    empty: StoreLayout, name: str, content: object
) -> None:
    write(
        empty,
        consumerOffset={"offsetTable": {"orders@readers": {"0": 7}}},
        subscriptionGroup={"subscriptionGroupTable": {"silent": {}}},
        consumerFilter={"filterDataByTopic": {"orders": {"groupFilterData": {"filtering": {}}}}},
    )
    known = consumers_in_files(empty)
    assert known.unknown == ()
    write(empty, **{name: content})
    found = consumers_in_files(empty)
    (reason,) = found.unknown
    assert str(empty.config / f"{name}.json") in reason
    assert (found.committed == known.committed) == ("Offset" not in name)
    assert found.groups == (frozenset() if name == "subscriptionGroup" else known.groups)
    assert found.subscriptions == (frozenset() if name == "consumerFilter" else known.subscriptions)


def test_without_a_readable_list_of_topics_a_groups_retry_topic_may_be_there(empty: StoreLayout) -> None:
    write(empty, subscriptionGroup={"subscriptionGroupTable": {"silent": {}}}, topics={"topicConfigTable": 3})
    add_queues(empty, "%RETRY%silent", 0, 1)
    assert rows(empty) == [("%RETRY%silent", queue, "silent", None) for queue in (0, 1)]
