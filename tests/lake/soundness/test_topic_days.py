from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.lake.soundness import segment_reader
from storage_engine.lake.soundness.segment_reader import MOST_TOPICS, read_topic_days, topic_days_of
from storage_engine.model.broker.codec import Columns
from storage_engine.model.store import TopicDay

DAY_MS = 24 * 3_600_000
COLUMNS = Columns(stored_at="taken_at", streams=("channel", "part"))

messages = st.lists(
    st.tuples(
        st.sampled_from(["orders", "payments", "ä", None]),
        st.one_of(st.none(), st.integers(-3 * DAY_MS, 3 * DAY_MS)),
        st.integers(1, 1000),
    ),
    max_size=30,
)


def rows_of(found: list[tuple[str | None, int | None, int]], unit: Any = "ms") -> pa.Table:
    channels, moments, sizes = ([one[at] for one in found] for at in range(3))
    taken_at = pa.array(moments, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp(unit, tz="UTC"))
    columns = {"channel": pa.array(channels, pa.string()), "taken_at": taken_at}
    kinds = pa.repeat(pa.scalar("message"), len(found))
    return pa.table({**columns, "size": pa.array(sizes, pa.int32()), "kind": kinds})


@given(st.lists(messages, max_size=3), st.sampled_from(["ms", "us", "ns"]))
def test_it_is_what_one_message_after_the_other_comes_to(batches: Any, unit: str) -> None:
    expected: dict[tuple[str, int], list[int]] = defaultdict(list)
    for channel, moment, size in (one for batch in batches for one in batch):
        if channel is not None and moment is not None:
            expected[channel, moment // DAY_MS].append(size)
    found = topic_days_of([rows_of(batch, unit) for batch in batches], COLUMNS)
    assert {(one.topic, one.day): (one.size_bytes, one.messages) for one in found} == {
        key: (sum(sizes), len(sizes)) for key, sizes in expected.items()
    }
    assert [one.size_bytes for one in found] == sorted((one.size_bytes for one in found), reverse=True)


def test_what_holds_messages_counts_where_they_do() -> None:
    kinds = ["batch", "message", "message", "batch", "control", "undecodable", "message"]
    moments = [None, DAY_MS, DAY_MS, None, 0, None, None]
    rows = rows_of([("orders", moment, 10**at) for at, moment in enumerate(moments)])
    rows = rows.set_column(3, "kind", pa.array(kinds))
    assert topic_days_of([rows], COLUMNS) == (
        TopicDay("orders", 0, 111_000, 0),
        TopicDay("orders", 1, 111, 2),
    )


def test_topics_beyond_the_largest_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[str | None, int | None, int]] = [(f"t{n}", 0, 1000 - n) for n in range(MOST_TOPICS + 3)]
    rows.append((f"t{MOST_TOPICS}", DAY_MS, 1))
    found = topic_days_of([rows_of(rows[:50]), rows_of(rows[50:])], COLUMNS)
    assert len(found) == MOST_TOPICS + 2
    assert found[0] == TopicDay("", 0, 900 + 899 + 898, 3)
    assert found[-1] == TopicDay("", 1, 1, 1)
    assert {one.topic for one in found} == {"", *(f"t{n}" for n in range(MOST_TOPICS))}
    monkeypatch.setattr(segment_reader, "MOST_ROWS", 5)
    assert topic_days_of([rows_of(rows)], COLUMNS) == found[:5]


@pytest.mark.parametrize("columns", [Columns(stored_at="taken_at"), Columns(streams=("channel",))])
def test_a_codec_that_names_no_topic_or_time_has_none(
    columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = SimpleNamespace(codec=SimpleNamespace(columns=columns))
    monkeypatch.setattr(segment_reader, "find_broker", lambda name: broker)
    receipt: Any = SimpleNamespace(broker="toy")
    table: Any = None
    assert read_topic_days(table, receipt, frozenset()) == ()
