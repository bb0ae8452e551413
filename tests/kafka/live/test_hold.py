"""What is held of nodes that are left to their brokers. What isn't known, or others need, stays held."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BrokerRefusedError, StoreBusyError
from storage_engine.kafka.hold.hold_state import TopicSetting
from storage_engine.kafka.live import hold, raised_settings
from storage_engine.kafka.store.plan import SeenNode
from storage_engine.model.hold import DriftKind
from tests.kafka.live.shared_cluster import (
    DAY_MS,
    HOUR_MS,
    NO_SUCH_TOPIC,
    NOW_MS,
    SharedCluster,
    Store,
    cluster,
    node,
)
from tests.kafka.made_node import batch_of

__all__ = ["cluster"]
OLD = {0: 20, 2: -40}
"""Ages in hours of a segment that is near its end, and of an active one whose records are far from it."""


@pytest.mark.parametrize("copied", [False, True])
def test_a_topic_that_nothing_is_copied_of_is_held_as_any_other(
    cluster: SharedCluster, tmp_path: Path, copied: bool
) -> None:
    cluster.more["orders"] = {"remote.storage.enable": "true", "remote.log.copy.disable": str(not copied)}
    store = Store(cluster, node(tmp_path / "a", {"orders-0": OLD}))
    store.due(NOW_MS)
    assert (cluster.value("orders") > DAY_MS) == (not copied)
    cluster.refuses.add("orders")
    cluster.own["orders"] = {"retention.ms": DAY_MS}
    assert [one.log for one in store.due(NOW_MS + 1).due] == ([] if copied else ["orders-0"])
    cluster.refuses.clear()
    held = hold.renew(Store(cluster, store.made, deletes="us"), NOW_MS + 2)  # type: ignore[arg-type]
    assert ("never held or deleted from" in "".join(held.notices)) == copied
    assert (cluster.value("orders") > DAY_MS) == (not copied)


def test_one_store_relies_on_another_ones_hold_and_puts_it_back_last(
    cluster: SharedCluster, tmp_path: Path
) -> None:
    one = Store(cluster, node(tmp_path / "a", {"orders-0": OLD}), hold_hours=48)
    other = Store(cluster, node(tmp_path / "b", {"orders-1": {0: 13, 2: -40}}), hold_hours=48)
    one.due(NOW_MS)
    held_ms = cluster.value("orders")
    assert held_ms > DAY_MS
    # By the value of before, though nothing of it goes soon by the one that the first store has set.
    assert "orders" in other.due(NOW_MS + HOUR_MS).described
    (relied,) = other.state.settings
    assert (relied.original, relied.ours) == (TopicSetting(DAY_MS, is_own=True), (held_ms,))
    later_ms = NOW_MS + 14 * HOUR_MS
    status = one.due(later_ms, ("orders-0", 0))
    assert cluster.value("orders") == held_ms
    assert "still raised, though no longer needed: orders" in status.described
    assert status.is_well
    other.due(later_ms + 1, ("orders-1", 0))
    assert cluster.value("orders") == DAY_MS


@pytest.mark.parametrize("strict", [False, True])
def test_an_unmanaged_store_leaves_what_another_one_relies_on(
    cluster: SharedCluster, tmp_path: Path, strict: bool
) -> None:
    live = {"deletes": "us", "hold": "strict" if strict else "bounded"}
    one = Store(cluster, node(tmp_path / "a", {"orders-0": {0: 30, 2: 1}}), **live)
    other = Store(cluster, node(tmp_path / "b", {"orders-1": {0: 29, 2: 1}}), **live)
    hold.renew(one, NOW_MS)  # type: ignore[arg-type]
    held_ms = cluster.value("orders")
    hold.renew(other, NOW_MS + HOUR_MS)  # type: ignore[arg-type]
    hold.end_hold(one, NOW_MS + 2 * HOUR_MS)  # type: ignore[arg-type]
    assert cluster.value("orders") == held_ms
    assert hold.renew(other, NOW_MS + 3 * HOUR_MS).disturbances == ()  # type: ignore[arg-type]
    hold.end_hold(other, NOW_MS + 4 * HOUR_MS)  # type: ignore[arg-type]
    assert cluster.value("orders") == DAY_MS


def test_a_first_value_that_no_other_store_knows_is_not_forgotten(
    cluster: SharedCluster, tmp_path: Path
) -> None:
    one = Store(cluster, node(tmp_path / "a", {"orders-0": OLD}))
    other = Store(cluster, node(tmp_path / "b", {"orders-1": OLD}))
    one.due(NOW_MS)
    other.due(NOW_MS + 1)
    # The first one raises it again, and the other one hasn't looked since.
    one.due(NOW_MS + 20 * HOUR_MS)
    with pytest.raises(BrokerRefusedError, match=r"hasn't seen retention\.ms as it is yet"):
        hold.end_hold(one, NOW_MS + 20 * HOUR_MS)  # type: ignore[arg-type]
    other.due(NOW_MS + 20 * HOUR_MS)
    hold.end_hold(one, NOW_MS + 20 * HOUR_MS)  # type: ignore[arg-type]
    assert one.memory.state is None
    hold.end_hold(other, NOW_MS + 20 * HOUR_MS)  # type: ignore[arg-type]
    assert cluster.value("orders") == DAY_MS


def held(cluster: SharedCluster, tmp_path: Path) -> tuple[Store, int]:
    """Return a store with a topic that is held, for what lies from offset 2 on, and what it is raised to."""
    store = Store(cluster, node(tmp_path / "a", {"orders-0": {0: 30, 2: 20, 4: -40}}))
    store.due(NOW_MS, ("orders-0", 0))
    assert cluster.value("orders") > DAY_MS
    return store, cluster.value("orders")


def test_that_nobody_renewed_a_hold_is_told_from_half_of_its_time_on(
    cluster: SharedCluster, tmp_path: Path
) -> None:
    store, _ = held(cluster, tmp_path)
    status = hold.described(store.state)
    assert (status.ends_at_ms, status.lasts_ms) == (NOW_MS + DAY_MS, DAY_MS)
    assert not status.is_half_over(NOW_MS + 12 * HOUR_MS)
    assert status.is_half_over(NOW_MS + 12 * HOUR_MS + 1)
    assert not hold.described(None).is_half_over(NOW_MS + 90 * DAY_MS)


@pytest.mark.parametrize("times", [1, 9])
def test_a_file_that_goes_while_a_log_is_looked_at_releases_nothing(
    cluster: SharedCluster, tmp_path: Path, times: int
) -> None:
    store, held_ms = held(cluster, tmp_path)
    left = times

    def broker_deletes() -> None:
        nonlocal left
        files = sorted((store.made.directories[0] / "orders-0").glob("*.log"))
        shutil.copy(files[0], f"{files[0]}.before")
        if (left := left - 1) >= 0:
            files[0].unlink()

    def put_there() -> None:
        for file in (store.made.directories[0] / "orders-0").glob("*.before"):
            file.rename(file.with_suffix(""))

    look = store.look
    store.after_look = broker_deletes

    def looked(now_ms: int) -> SeenNode:
        put_there()
        return look(now_ms)

    store.look = looked  # type: ignore[method-assign]
    status = hold.hold_due(store, {}, DAY_MS, NOW_MS + 6 * HOUR_MS)  # type: ignore[arg-type]
    assert cluster.value("orders") >= held_ms
    if times == 9:
        assert "log orders-0 lost files while it was looked at" in status.alarms[0]
        assert not status.is_well
    else:
        assert status.alarms == ()


def test_settings_that_the_cluster_does_not_tell_release_nothing(
    cluster: SharedCluster, tmp_path: Path
) -> None:
    store, held_ms = held(cluster, tmp_path)
    store.untold = {"orders"}
    # The node's own metadata have our value.
    store.made.settings["orders"] = {"retention.ms": str(held_ms)}
    store.made.write()
    store.due(NOW_MS + 6 * HOUR_MS, ("orders-0", 0))
    assert cluster.value("orders") >= held_ms


def test_a_log_directory_that_can_not_be_read_releases_nothing(
    cluster: SharedCluster, tmp_path: Path
) -> None:
    made = node(tmp_path / "a", {"other-0": {0: 1}, "orders-0": OLD}, ("logs", "more"))
    store = Store(cluster, made)
    store.due(NOW_MS)
    held_ms = cluster.value("orders")
    (made.directories[1] / "meta.properties").rename(tmp_path / "away")
    status = store.due(NOW_MS + 6 * HOUR_MS)
    assert cluster.value("orders") == held_ms
    assert "topic orders stays held" in status.alarms[0]
    assert f"log directory {made.directories[1]} has failed" in status.alarms[0]
    (tmp_path / "away").rename(made.directories[1] / "meta.properties")
    store.due(NOW_MS + 6 * HOUR_MS, ("orders-0", 0))
    assert cluster.value("orders") == DAY_MS


def test_a_log_that_moved_stays_held_until_a_store_looks_at_it_there(
    cluster: SharedCluster, tmp_path: Path
) -> None:
    one = Store(cluster, node(tmp_path / "a", {"orders-0": OLD, "other-0": {0: 1}}))
    other = Store(cluster, node(tmp_path / "b", {"orders-0": OLD}))
    one.due(NOW_MS)
    held_ms = cluster.value("orders")
    (live,) = [known for name, known in other.look(0).node.live.partitions.items()]  # type: ignore[union-attr]
    cluster.elsewhere["orders-0"] = replace(live, replicas=(2,))
    shutil.rmtree(one.made.directories[0] / "orders-0")
    for at_ms in (1, 2):
        status = one.due(NOW_MS + at_ms)
        assert "no store of this journal looks at it there" in status.alarms[0]
        assert [each.kind for each in status.disturbances] == [DriftKind.REASSIGNED][at_ms - 1 :]
    assert cluster.value("orders") == held_ms
    other.due(NOW_MS + 3)
    one.due(NOW_MS + 4)
    assert cluster.value("orders") == held_ms
    assert [each.is_left for each in one.state.settings] == [True]
    other.due(NOW_MS + 5, ("orders-0", 0))
    assert cluster.value("orders") == DAY_MS


def test_a_topic_that_is_deleted_is_forgotten(cluster: SharedCluster, tmp_path: Path) -> None:
    store = Store(cluster, node(tmp_path / "a", {"orders-0": OLD, "other-0": {0: 1}}))
    store.due(NOW_MS)
    shutil.rmtree(store.made.directories[0] / "orders-0")
    cluster.answers["orders"] = BrokerRefusedError("no", remark="the account may not ask")
    assert not store.due(NOW_MS + 1).is_well
    assert store.state.settings
    cluster.answers["orders"] = NO_SUCH_TOPIC
    assert store.due(NOW_MS + 2).is_well
    assert store.state.settings == ()
    assert "orders-0" not in store.state.logs


def test_two_stores_never_change_a_topic_at_a_time(
    cluster: SharedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Store(cluster, node(tmp_path / "a", {"orders-0": OLD}))
    other = Store(cluster, node(tmp_path / "b", {"orders-1": OLD}))
    one.due(NOW_MS)
    tried = 0

    def meanwhile(*words: Any) -> Any:
        nonlocal tried
        tried += 1
        with pytest.raises(StoreBusyError):
            other.due(NOW_MS + 1)
        return cluster.change_settings(*words)

    monkeypatch.setattr(raised_settings, "change_settings", meanwhile)
    one.due(NOW_MS + 1, ("orders-0", 0))
    assert tried == 1
    assert other.memory.state is None


def test_what_was_judged_by_settings_that_changed_since_is_judged_again(
    cluster: SharedCluster, tmp_path: Path
) -> None:
    one = Store(cluster, node(tmp_path / "a", {"orders-0": OLD}))
    other = Store(cluster, node(tmp_path / "b", {"orders-1": OLD}))
    other.due(NOW_MS)
    looks = 0

    def put_back_meanwhile() -> None:
        nonlocal looks
        if (looks := looks + 1) == 2:
            other.due(NOW_MS + 1, ("orders-1", 0))

    one.after_look = put_back_meanwhile
    one.due(NOW_MS + 2)
    assert looks == 3
    (raised,) = one.state.settings
    assert raised.original == TopicSetting(DAY_MS, is_own=True)
    assert cluster.value("orders") == raised.ours[-1]


@pytest.mark.parametrize("fault", ["settings aren't told", "settings can't be set"])
def test_a_first_value_is_kept_until_it_is_back(
    cluster: SharedCluster, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(cluster, node(tmp_path / "a", {"orders-0": OLD}))
    store.due(NOW_MS)
    held_ms = cluster.value("orders")
    if "told" in fault:
        cluster.answers["orders"] = BrokerRefusedError("no", code=29, remark="not allowed")
    else:
        cluster.refuses.add("orders")
    status = store.due(NOW_MS + 1, ("orders-0", 0))
    assert not status.is_well
    assert "topic orders isn't needed to be held any more, and can't be put back" in status.alarms[0]
    assert "still raised, though no longer needed: orders" in status.described
    with pytest.raises(BrokerRefusedError, match="Settings of orders are still the hold's"):
        hold.end_hold(store, NOW_MS + 2)  # type: ignore[arg-type]
    assert cluster.value("orders") == held_ms
    cluster.answers.clear()
    cluster.refuses.clear()
    assert store.due(NOW_MS + 3, ("orders-0", 0)).is_well
    assert cluster.value("orders") == DAY_MS
    assert store.state.settings == ()


def turn_over(store: Store, base: int) -> None:
    """Let a log's segments be others, of offsets from a base on."""
    path = store.made.directories[0] / "orders-0"
    for file in path.glob("*.log"):
        file.unlink()
    for each in (base, base + 2, base + 4):
        (path / f"{each:020d}.log").write_bytes(batch_of(each, ms=NOW_MS))
    store.made.watermarks["orders-0"] = base + 6


def test_a_log_that_grows_too_fast_to_be_measured_is_held_and_all_that_went_is_named(
    cluster: SharedCluster, tmp_path: Path
) -> None:
    size = len(batch_of(0))
    cluster.own["orders"] = {"retention.ms": -1, "retention.bytes": 5 * size}
    store = Store(cluster, node(tmp_path / "a", {"orders-0": {0: 0, 2: 0, 4: 0}}))
    cluster.refuses.add("orders")
    (due,) = store.due(NOW_MS).due
    assert (due.start_offset, due.end_offset, due.at_ms) == (0, 6, NOW_MS)
    cluster.refuses.clear()
    turn_over(store, 100)
    status = store.due(NOW_MS + 600_000)
    assert cluster.value("orders", "retention.bytes") > 5 * size
    # What was unproven at the last look, and what no look has seen.
    (gone,) = status.disturbances
    assert (gone.kind, gone.start_offset, gone.end_offset) == (DriftKind.SEGMENT_GONE, 0, 100)
    assert store.state.logs["orders-0"].unproven == ((100, 106),)


def test_a_store_that_nobody_holds_any_more_is_not_waited_for(cluster: SharedCluster, tmp_path: Path) -> None:
    one = Store(cluster, node(tmp_path / "a", {"orders-0": OLD}))
    gone = Store(cluster, node(tmp_path / "b", {"orders-1": OLD}))
    gone.due(NOW_MS)
    one.due(NOW_MS + 1)
    assert one.due(NOW_MS + 23 * HOUR_MS, ("orders-0", 0)).is_well
    assert cluster.value("orders") > DAY_MS
    status = one.due(NOW_MS + 25 * HOUR_MS, ("orders-0", 0))
    assert "which was last looked at at" in status.alarms[0]
    assert cluster.value("orders") == DAY_MS


def test_settings_that_nobody_tells_are_an_alarm_at_once(cluster: SharedCluster, tmp_path: Path) -> None:
    store = Store(cluster, node(tmp_path / "a", {"orders-0": {0: 1, 2: -40}}))
    store.untold = {"orders"}
    shutil.rmtree(store.made.root / "meta" / "__cluster_metadata-0")
    (due,) = store.due(NOW_MS).due
    assert (due.log, due.start_offset, due.end_offset, due.at_ms) == ("orders-0", 0, 4, NOW_MS)
    assert "its settings aren't known" in due.why


def test_a_hold_that_goes_on_as_nothing_is_archived_is_an_alarm(
    cluster: SharedCluster, tmp_path: Path
) -> None:
    store = Store(cluster, node(tmp_path / "a", {"orders-0": OLD, "idle-0": {0: 7 * 24 - 4}}))
    for hours in range(0, 49, 12):
        assert store.due(NOW_MS + hours * HOUR_MS).alarms == ()
    (alarm,) = store.due(NOW_MS + 49 * HOUR_MS).alarms
    assert "topic orders is held since 2030-03-17" in alarm
    assert "no lake has what log orders-0 holds from offset 0 on" in alarm


def test_a_file_of_another_topic_of_the_name_is_not_proven(cluster: SharedCluster, tmp_path: Path) -> None:
    store = Store(cluster, node(tmp_path / "a", {"orders-0": OLD}))
    first = store.look(0).logs[0].segments[0]
    path = Path(first.facts.path)
    shutil.copy(path, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    hold.hold_due(store, {first.id: first.facts}, DAY_MS, NOW_MS)  # type: ignore[arg-type]
    assert cluster.value("orders") > DAY_MS
