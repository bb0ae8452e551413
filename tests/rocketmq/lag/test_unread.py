"""What consumers lose by a deletion is what they have lost after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.lag import Unread, UnreadMessages
from storage_engine.rocketmq.cleanup_rules import time_zone
from storage_engine.rocketmq.format.consume_queue import EntryFormat
from storage_engine.rocketmq.lag import lag
from storage_engine.rocketmq.lag.consumer_offsets import consumers_in_files, group_positions
from storage_engine.rocketmq.lag.lag import lag_context
from storage_engine.rocketmq.store.broker import RocketMQBrokerStore, open_files
from tests.services.lag import queue_lags

NOW_MS = 1_900_000_000_000
MIB = 1 << 20

StoreCopy = Callable[[str], Path]


def opened(root: Path) -> RocketMQBrokerStore:
    return open_files(StoreSettings(str(root), time_zone="UTC"))


def lost_by_queue(store: RocketMQBrokerStore) -> dict[tuple[str, str, int], int]:
    """Messages that groups can no longer read, by what lag says of the files."""
    layout = store.files.layout
    context = lag_context(layout, store.snapshot(NOW_MS), store.config, (), NOW_MS, time_zone("UTC"))
    rows = queue_lags(context, group_positions(layout, consumers_in_files(layout))).to_pylist()
    return {(row["group"], row["topic"], row["queue_id"]): row["lost_messages"] for row in rows}


def found_in(store: RocketMQBrokerStore, new_min_offset: int) -> tuple[UnreadMessages, ...]:
    found = store.consumers.unread(store.snapshot(NOW_MS), {"commitlog": new_min_offset})
    assert found.error == ""
    return found.rows


@pytest.mark.parametrize("name", ["clean-stop", "cqext-batchcq", "kill9"])
@pytest.mark.parametrize("segments", [1, 2, 4])
def test_what_consumers_lose_is_what_they_have_lost_afterwards(
    store_copy: StoreCopy, name: str, segments: int
) -> None:
    store = opened(store_copy(name))
    (log,) = store.snapshot(NOW_MS).logs
    going = log.segments[: min(segments, len(log.segments) - 1)]
    foreseen = found_in(store, going[-1].end_offset)
    before = lost_by_queue(store)
    for segment in going:
        os.unlink(segment.facts.path)  # noqa: PTH108
    after: dict[tuple[str, str], int] = {}
    for (group, topic, queue), lost in lost_by_queue(store).items():
        more = lost - before[group, topic, queue]
        after[group, topic] = after.get((group, topic), 0) + more
    assert {(row.group, row.topic): row.messages for row in foreseen if row.messages} == {
        key: lost for key, lost in after.items() if lost
    }


def test_the_time_of_the_first_unread_message_is_told(store_copy: StoreCopy) -> None:
    store = opened(store_copy("clean-stop"))
    (row,) = [row for row in found_in(store, 5 * MIB) if row.group == "cg_orders"]
    assert (row.topic, row.messages) == ("orders", 37)
    assert row.from_ms is not None
    assert row.from_ms > 1_700_000_000_000


def test_a_group_without_a_position_may_need_what_goes(store_copy: StoreCopy) -> None:
    root = store_copy("clean-stop")
    (root / "config" / "lmqConsumerOffset.json.bak").unlink()
    offsets = root / "config" / "lmqConsumerOffset.json"
    offsets.write_text('{"offsetTable":{"orders@cg_orders":{0:1000000}}}')
    rows = [row for row in found_in(opened(root), 5 * MIB) if row.group == "cg_orders"]
    assert [(row.topic, row.messages, row.queues) for row in rows if row.topic == "orders"] == [
        ("orders", None, 7)
    ]


def test_queues_that_lose_nothing_are_looked_at_once(
    store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run costs what expires, not what there is."""
    store = opened(store_copy("clean-stop"))
    looked: list[str] = []
    find = lag.consume_queue.FORMAT.first_left

    def counted(*arguments: object) -> object:
        looked.append(str(arguments[1]))
        return find(*arguments[1:])  # type: ignore[arg-type]

    monkeypatch.setattr(EntryFormat, "first_left", counted)
    assert found_in(store, 1) is not None
    few = len(looked)
    found_in(store, 7 * MIB)
    assert few < len(looked) - few


def test_what_the_queues_have_no_entries_of_any_more_is_said_to_be_unknown(store_copy: StoreCopy) -> None:
    """A broker that has deleted segments deletes the queue files that only point to them."""
    root = store_copy("clean-stop")
    (root / "config" / "lmqConsumerOffset.json.bak").unlink()
    positions = ",".join(f"{queue}:0" for queue in range(8))
    offsets = root / "config" / "lmqConsumerOffset.json"
    offsets.write_text(f'{{"offsetTable":{{"orders@cg_orders":{{{positions}}}}}}}')
    store = opened(root)
    before = store.snapshot(NOW_MS)
    (log,) = before.logs
    exact = store.consumers.unread(before, {"commitlog": 5 * MIB}, deleted=True)
    assert exact == Unread(found_in(store, 5 * MIB))
    store.dependents.delete(store.dependents.find({"commitlog": 5 * MIB}), lambda: None)
    for number in range(5):
        os.unlink(log.segments[number].facts.path)  # noqa: PTH108
    left = store.consumers.unread(before, {"commitlog": 5 * MIB}, deleted=True)
    counted = {(row.group, row.topic): row.messages for row in left.rows}
    missed = [row for row in exact.rows if counted.get((row.group, row.topic)) != row.messages]
    assert missed
    assert {(row.group, row.topic) for row in missed} == {("cg_orders", "orders")}
    assert left.error == "queues of orders have lost their entries of messages that cg_orders had not read"
