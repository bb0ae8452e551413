"""What a node's broker takes once its topics have their first settings again, topic by topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.kafka.hold.drift import FoundLogs
from storage_engine.kafka.hold.due_logs import DueLog, DueLogs, HoldLook, expiry, unheld_segments
from storage_engine.kafka.hold.hold_state import HoldState
from storage_engine.kafka.live import hold
from storage_engine.kafka.live.hold import look_for_unheld
from storage_engine.kafka.retention_rules import LogFacts, RetentionSettings, SegmentFacts, retention_pass
from storage_engine.model.store import FileFacts, Segment, SegmentState
from tests.kafka.live.shared_cluster import (
    DAY_MS,
    HOUR_MS,
    NOW_MS,
    SharedCluster,
    Store,
    cluster,
    node,
)
from tests.kafka.unreadable_files import unreadable

__all__ = ["cluster"]
LIVE = {"deletes": "us"}
LOGS = {"orders-0": {0: 30, 2: 10, 4: -40}, "orders-1": {0: 1, 2: 1}, "refunds-0": {0: 150, 2: 20, 4: 10}}
"""Of the first topic retention.ms is a day, of the second the node's seven days."""


def taken(store: Store, now_ms: int = NOW_MS) -> list[str]:
    found = look_for_unheld(store, now_ms, now_ms + DAY_MS)  # type: ignore[arg-type]
    assert found.unknown == ()
    return [f"{one.log}/{one.base_offset}" for one in found.segments]


@pytest.mark.parametrize("deletes", ["us", "broker"])
def test_each_topic_goes_by_what_it_has_once_it_is_given_back(
    cluster: SharedCluster, tmp_path: Path, deletes: str
) -> None:
    """An active segment goes where all of it has expired by then: its broker closes it."""
    store = Store(cluster, node(tmp_path / "a", LOGS), deletes=deletes)
    goes = ["orders-0/0", "orders-0/2", "orders-1/0", "orders-1/2", "refunds-0/0"]
    assert taken(store) == goes
    hold.renew(store, NOW_MS) if deletes == "us" else store.due(NOW_MS)  # type: ignore[arg-type]
    assert cluster.value("orders") > 2 * DAY_MS
    assert taken(store) == goes
    assert cluster.value("orders") > 2 * DAY_MS
    # What somebody else has set stays as they set it.
    cluster.own["orders"]["retention.ms"] = 2 * DAY_MS
    assert taken(store) == ["orders-0/0", "refunds-0/0"]


def test_a_topic_that_another_store_needs_raised_stays(cluster: SharedCluster, tmp_path: Path) -> None:
    one = Store(cluster, node(tmp_path / "a", {"orders-0": {0: 30, 2: 1}}), **LIVE)
    other = Store(cluster, node(tmp_path / "b", {"orders-1": {0: 29, 2: 1}}), **LIVE)
    hold.renew(one, NOW_MS)  # type: ignore[arg-type]
    assert taken(one) == ["orders-0/0", "orders-0/2"]
    hold.renew(other, NOW_MS + HOUR_MS)  # type: ignore[arg-type]
    assert taken(one, NOW_MS + HOUR_MS) == []
    hold.end_hold(other, NOW_MS + 2 * HOUR_MS)  # type: ignore[arg-type]
    assert taken(one, NOW_MS + 2 * HOUR_MS) == ["orders-0/0", "orders-0/2"]


def test_size_takes_all_of_a_log_whose_growth_is_not_known(cluster: SharedCluster, tmp_path: Path) -> None:
    cluster.own["orders"] = {"retention.ms": -1, "retention.bytes": 10_000}
    store = Store(cluster, node(tmp_path / "a", {"orders-0": {0: 30, 2: 1}}), **LIVE)
    assert taken(store) == ["orders-0/0", "orders-0/2"]
    hold.renew(store, NOW_MS)  # type: ignore[arg-type]
    # Nothing was written since.
    assert taken(store, NOW_MS + HOUR_MS) == []


def test_a_log_of_one_segment_that_can_not_be_read_is_taken(cluster: SharedCluster, tmp_path: Path) -> None:
    made = node(tmp_path / "a", {"orders-0": {0: 30}})
    made.checkpoint("replication-offset-checkpoint", {})
    cluster.leaderless.add("orders")
    with unreadable(made.directories[0] / "orders-0" / f"{0:020d}.log"):
        assert taken(Store(cluster, made, **LIVE)) == ["orders-0/0"]


def test_what_can_not_be_told_is_named(cluster: SharedCluster, tmp_path: Path) -> None:
    made = node(tmp_path / "a", {"orders-0": {0: 30, 2: 1}, "refunds-0": {0: 1}}, ("one", "two"))
    store = Store(cluster, made, **LIVE)
    hold.renew(store, NOW_MS)  # type: ignore[arg-type]
    (made.directories[0] / "meta.properties").unlink()
    made.directories[0].rename(tmp_path / "gone")
    found = look_for_unheld(store, NOW_MS + 1, NOW_MS + DAY_MS)  # type: ignore[arg-type]
    assert found.segments == ()
    assert found.unknown
    assert all("orders" in why or str(made.directories[0]) in why for why in found.unknown)


@settings(deadline=None)
@given(
    ages=st.lists(st.integers(0, 80), min_size=1, max_size=6),
    kept_hours=st.sampled_from([-1, 12, 30, 60]),
    kept_bytes=st.sampled_from([-1, 0, 250, 500]),
    delete=st.booleans(),
)
def test_what_a_pass_takes_within_a_day_is_taken(
    ages: list[int], kept_hours: int, kept_bytes: int, delete: bool
) -> None:
    """Of a log that nobody writes to, by the rules of its pass at each hour of the day."""
    kept_ms = kept_hours * HOUR_MS if kept_hours >= 0 else -1
    kept = RetentionSettings(delete=delete, retention_ms=kept_ms, retention_bytes=kept_bytes)
    facts = LogFacts(
        tuple(SegmentFacts(i * 10, 100, NOW_MS - age * HOUR_MS) for i, age in enumerate(ages)),
        0,
        len(ages) * 10,
        len(ages) * 10,
    )
    gone: set[int] = set()
    left = facts
    for at_ms in range(NOW_MS, NOW_MS + DAY_MS + 1, HOUR_MS):
        gone |= {one.base_offset for one in retention_pass(left, kept, at_ms).deletions}
        left = facts._replace(segments=tuple(one for one in facts.segments if one.base_offset not in gone))
        if not left.segments:
            break
    moments = expiry(facts, kept, NOW_MS, bytes_per_ms=0.0)
    log = DueLog("orders", tuple(map(segment, facts.segments)), moments, None, False, None)
    look = HoldLook(NOW_MS, DueLogs({"orders-0": log}, frozenset()), FoundLogs({}, ("orders-0",)), (), ())
    found = unheld_segments(HoldState(), look, NOW_MS + DAY_MS)
    assert {one.base_offset for one in found.segments} == gone


def segment(facts: SegmentFacts) -> Segment:
    files = FileFacts(f"/logs/orders-0/{facts.base_offset:020d}.log", 1, 1, facts.size_bytes, 0, 0)
    return Segment("orders-0", facts.base_offset, files, SegmentState.SEALED, end=facts.base_offset + 10)
