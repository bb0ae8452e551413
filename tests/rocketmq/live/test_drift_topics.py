"""Whose messages lay in a range, by consume queues that a real broker wrote."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.model.hold import Drift, DriftKind
from storage_engine.rocketmq.codec.stored_messages import newest_message_ms
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import StoreLayout, list_segments, resolve_layout
from storage_engine.rocketmq.live.drift import topics_in, with_topics
from storage_engine.rocketmq.store.store import find_active

GONE = DriftKind.SEGMENT_GONE


def layout_of(root: Path) -> StoreLayout:
    return resolve_layout(load_broker_config(None, {}, root=root))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("clean-stop", ["consumequeue"]), ("cqext-batchcq", ["consumequeue", "batchconsumequeue"])],
)
def test_every_entry_of_each_segment_is_counted_by_its_topic(
    store_copy: Callable[[str], Path], ground_truth: Callable[..., Any], name: str, kinds: list[str]
) -> None:
    layout = layout_of(store_copy(name))
    ranges = [(file.base_offset, file.end_offset) for file in list_segments(layout)]
    expected = tuple(Counter[str]() for _ in ranges)
    for kind in kinds:
        for entry in ground_truth(name, kind):
            offset = int(entry["offset"])
            for (start, end), of_range in zip(ranges, expected, strict=True):
                if start <= offset < end:
                    of_range[entry["topic"]] += 1
    assert topics_in(layout, ranges) == expected
    assert sum(expected, Counter())


def test_a_queue_that_went_meanwhile_tells_nothing_and_stops_nothing(
    store_copy: Callable[[str], Path],
) -> None:
    layout = layout_of(store_copy("clean-stop"))
    (whole,) = topics_in(layout, [(0, 1 << 40)])
    damaged = next(layout.consumequeue.glob("*/*"))
    for file in damaged.iterdir():
        file.write_bytes(b"short")
    (left,) = topics_in(layout, [(0, 1 << 40)])
    assert 0 < left.total() < whole.total()
    shutil.rmtree(layout.consumequeue)
    assert topics_in(layout, [(0, 1 << 40)])[0].total() == topics_in(layout, [(0, 1 << 40)])[0].total()


def test_only_ranges_that_are_gone_get_topics(store_copy: Callable[[str], Path]) -> None:
    layout = layout_of(store_copy("clean-stop"))
    other = Drift(DriftKind.HOLD_LAPSED, "late")
    gone = Drift(GONE, "went.", "commitlog", 0, 1 << 20)
    nothing = Drift(GONE, "went.", "commitlog", 1 << 40, 1 << 41)
    told = with_topics((other, gone, nothing), layout)
    assert told[0] is other
    assert told[1].topics
    assert told[1].topics[0] in told[1].detail
    assert told[2].topics == ()
    assert "don't tell any more" in told[2].detail


def test_the_newest_message_is_the_last_one_before_the_end(
    store_copy: Callable[[str], Path], ground_truth: Callable[..., Any]
) -> None:
    layout = layout_of(store_copy("clean-stop"))
    found = ground_truth("clean-stop", "commitlog")
    frames = sorted(
        (f for f in found if f["kind"] == "message"), key=lambda frame: int(frame["physicOffset"])
    )
    _, end = find_active(list_segments(layout))
    assert newest_message_ms(layout, end) == frames[-1]["storeTimestamp"]
    middle = frames[len(frames) // 2]
    behind = int(middle["physicOffset"]) + int(middle["size"])
    assert newest_message_ms(layout, behind) == middle["storeTimestamp"]
    assert newest_message_ms(layout, 0) is None
    assert newest_message_ms(layout, 1 << 50) is None
