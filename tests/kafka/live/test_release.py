"""What keeps a log from being cut beside its running cluster: whatever isn't known, and whatever isn't so."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import BrokerUnavailableError, ChangedUnderUsError
from storage_engine.kafka.format.layout import LiveFacts, LivePartition, PartitionLog, read_node
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id
from storage_engine.kafka.hold.hold_state import (
    HoldState,
    KnownLog,
    from_their_starts,
    with_first_settings,
    with_live,
)
from storage_engine.kafka.live import release
from storage_engine.kafka.live.release import Prefix, find_cut_fault, find_witness
from storage_engine.kafka.store.plan import cut_to_archivable
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.model.plan import Decision, LogPlan, Reason
from storage_engine.model.store import Archivable
from tests.kafka.hold_memory import Memory

LOG = "plain-0"
NODE = 1
SETTINGS = {"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "-1"}


@pytest.fixture
def found(node: Path) -> tuple[Prefix, LivePartition, HoldState, str]:
    """The first two segments of a log, with a cluster that has nothing against letting them go."""
    looked = read_node(node / "server.properties")
    directory, log = next(pair for pair in looked.logs if pair[1].name.log == LOG)
    store = KafkaStore(OpenNode(node / "server.properties"))
    (seen,) = (one for one in store.snapshot(0).logs if one.name == LOG)
    assert len(seen.segments) > 3
    topic_id = read_topic_id(log.path / PARTITION_METADATA)
    end = seen.max_offset
    live = LivePartition(
        topic_id, NODE, 0, end, end, SETTINGS, replicas=(1, 2), in_sync=(1, 2), leader_epoch=3
    )
    known = KnownLog(str(topic_id), NODE, 3, (1, 2), 0, end)
    prefix = Prefix(log.name, directory, log, seen.segments[:2])
    (cluster_id,) = looked.cluster_ids
    return prefix, live, HoldState(logs={LOG: known}), cluster_id


def test_what_is_all_known_and_so_may_go(found: Any) -> None:
    prefix, live, state, cluster_id = found
    assert find_cut_fault(prefix, live, state, NODE, cluster_id) == ""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"topic_id": None}, "and the cluster's is None"),
        ({"topic_id": uuid.UUID(int=5)}, "and the cluster's is 00000000"),
        ({"leader": None}, "no replica leads it"),
        ({"in_sync": (2,)}, "isn't in sync with leader"),
        ({"leader_epoch": None}, "epoch is None"),
        ({"leader_epoch": 2}, "epoch is 2, and it was 3"),
        ({"log_start": None}, "doesn't tell its log start"),
        ({"high_watermark": None}, "doesn't tell its log start"),
        ({"last_stable_offset": None}, "doesn't tell its log start"),
        ({"last_stable_offset": 1}, "or the last stable offset 1"),
        ({"high_watermark": 1}, "lies above the high watermark 1"),
        ({"log_start": 1 << 40}, "begins at 1099511627776 already"),
        ({"refused": ("settings: no",)}, "doesn't tell all of it: settings: no"),
        ({"topic_settings": None}, "its settings aren't known"),
        ({"topic_settings": {"retention.ms": "5"}}, "isn't delete alone"),
        ({"topic_settings": {**SETTINGS, "cleanup.policy": "compact,delete"}}, "isn't delete alone"),
        ({"topic_settings": {**SETTINGS, "cleanup.policy": ""}}, "isn't delete alone"),
        ({"topic_settings": {**SETTINGS, "remote.storage.enable": "true"}}, "remote storage"),
        ({"topic_settings": {**SETTINGS, "retention.ms": "much"}}, "its settings aren't known"),
    ],
)
def test_what_the_cluster_does_not_tell_or_tells_otherwise_keeps_a_log(
    found: Any, change: dict[str, object], expected: str
) -> None:
    prefix, live, state, cluster_id = found
    assert expected in find_cut_fault(prefix, replace(live, **change), state, NODE, cluster_id)


def test_a_log_of_another_cluster_or_node_or_that_is_not_held_stays(found: Any) -> None:
    prefix, live, state, cluster_id = found
    assert "isn't held" in find_cut_fault(prefix, live, HoldState(), NODE, cluster_id)
    known = replace(state.logs[LOG], topic_id=str(uuid.UUID(int=5)))
    assert "was held" in find_cut_fault(prefix, live, HoldState(logs={LOG: known}), NODE, cluster_id)
    assert "of cluster other" in find_cut_fault(prefix, live, state, NODE, "other")
    assert "doesn't tell all of it" in find_cut_fault(prefix, None, state, NODE, cluster_id)
    for node_id in (None, 9):
        assert "isn't in sync" in find_cut_fault(prefix, live, state, node_id, cluster_id)
    internal = replace(prefix, name=replace(prefix.name, topic="__consumer_offsets"))
    assert "internal" in find_cut_fault(internal, live, state, NODE, cluster_id)


def test_only_a_logs_first_segments_with_one_behind_them_go(found: Any) -> None:
    prefix, live, state, cluster_id = found
    segments = prefix.log.segments

    def why(log: PartitionLog) -> str:
        return find_cut_fault(replace(prefix, log=log), live, state, NODE, cluster_id)

    assert "aren't the log's first ones" in why(replace(prefix.log, segments=segments[1:]))
    assert "aren't the log's first ones" in why(replace(prefix.log, segments=segments[:2]))
    assert "no segment begins at offset" in why(replace(prefix.log, segments=(*segments[:2], *segments[3:])))
    first = prefix.segments[0]
    other = replace(first, facts=replace(first.facts, inode=first.facts.inode + 1))
    swapped = replace(prefix, segments=(other, *prefix.segments[1:]))
    assert "isn't the file" in find_cut_fault(swapped, live, state, NODE, cluster_id)


def test_what_its_leader_has_before_its_first_segment_is_not_proven_by_it(found: Any) -> None:
    """A replica that was added later begins later; its leader would drop what no file here has."""
    prefix, live, state, cluster_id = found
    later = replace(prefix.log, segments=prefix.log.segments[1:])
    first = prefix.segments[1]
    began = replace(prefix, log=later, segments=(first,))

    def why(start: int) -> str:
        return find_cut_fault(began, replace(live, log_start=start), state, NODE, cluster_id)

    assert "this node's files don't prove the leader's records before that" in why(first.base_offset - 1)
    assert why(first.base_offset) == ""


def test_what_a_cleaner_took_here_its_leader_may_have_still(found: Any) -> None:
    """Each node's own cleaner takes records of a log that was compacted once."""
    prefix, live, state, cluster_id = found
    cleaned = replace(prefix, directory=replace(prefix.directory, cleaned_to={LOG: 1}))
    assert find_cut_fault(cleaned, live, state, NODE, cluster_id) == ""
    elsewhere = replace(live, leader=2)
    assert "may still have them" in find_cut_fault(cleaned, elsewhere, state, NODE, cluster_id)
    behind = replace(prefix, directory=replace(prefix.directory, cleaned_to={LOG: 0}))
    assert find_cut_fault(behind, elsewhere, state, NODE, cluster_id) == ""


def test_the_witness_is_the_batch_that_ends_the_prefix(found: Any) -> None:
    prefix, _, _, _ = found
    boundary = prefix.boundary
    witness = find_witness(prefix.log.segments[1:], boundary, boundary + 10**6)
    assert witness is not None
    assert witness.offset == boundary - 1
    # What isn't replicated yet, no consumer gets.
    assert find_witness(prefix.log.segments[1:], boundary, boundary - 1) is None


def test_segments_below_their_leaders_start_are_not_there(node: Path, found: Any) -> None:
    prefix, live, _, cluster_id = found
    looked = read_node(node / "server.properties")

    def left(start: int | None) -> list[int]:
        facts = LiveFacts(1, cluster_id, {LOG: replace(live, log_start=start)})
        seen = from_their_starts(with_live(looked, facts, "a:1"))
        (log,) = (log for _, log in seen.logs if log.name.log == LOG)
        return [one.base_offset for one in log.segments]

    every = left(None)
    assert left(prefix.boundary) == every[2:]
    # A start inside a segment leaves all of it, and the active one always stays.
    assert left(prefix.boundary + 1) == every[2:]
    assert left(1 << 40) == every[-1:]


def test_what_is_held_is_decided_on_by_the_settings_before(node: Path, found: Any) -> None:
    from storage_engine.kafka.hold.hold_state import HeldSetting, TopicSetting

    prefix, live, _, cluster_id = found
    held = HeldSetting(
        prefix.name.topic, str(live.topic_id), "retention.ms", TopicSetting(5, True), (7, 9), True, 0
    )
    looked = read_node(node / "server.properties")

    def shown(value: str, setting: HeldSetting = held) -> str:
        settings = {**SETTINGS, "retention.ms": value}
        facts = LiveFacts(1, cluster_id, {LOG: replace(live, topic_settings=settings)})
        seen = with_first_settings(with_live(looked, facts, "a:1"), [HoldState(settings=(setting,))])
        assert seen.live is not None
        found = seen.live.partitions[LOG].topic_settings
        assert found is not None
        return found["retention.ms"]

    assert [shown("9"), shown("7"), shown("8")] == ["5", "5", "8"]
    assert shown("9", replace(held, topic_id="other")) == "9"


def test_nothing_goes_from_the_first_segment_on_that_may_not_be_archived(found: Any) -> None:
    prefix, _, _, _ = found
    first, second = prefix.segments
    plan = LogPlan(LOG, (Decision(first, Reason.EXPIRED, ""), Decision(second, Reason.EXPIRED, "")))
    assert (
        cut_to_archivable(plan, Archivable((first, second)), {first.id, second.id}, has_remote=False) == plan
    )
    cut = cut_to_archivable(
        plan, Archivable((first,), {LOG: "a transaction is open"}), {first.id}, has_remote=False
    )
    assert [one.reason for one in cut.decisions] == [Reason.EXPIRED, Reason.NOT_ARCHIVABLE]
    assert "a transaction is open" in cut.decisions[1].detail
    none = cut_to_archivable(plan, Archivable((second,)), {second.id}, has_remote=False)
    assert [one.reason for one in none.decisions] == [Reason.NOT_ARCHIVABLE, Reason.BEHIND_KEPT]


def opened(node: Path, state: HoldState) -> Any:
    """Return what a release needs of a live store of the fixture's node."""
    store = KafkaStore(OpenNode(node / "server.properties"))
    store.snapshot(0)
    memory = Memory(to_jsonable(state))
    return SimpleNamespace(
        seen=store.node.seen, memory=memory, root=node, asked=SimpleNamespace(address="b:1")
    )


def test_a_log_that_may_not_be_cut_keeps_no_other(
    found: Any, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, live, state, cluster_id = found
    store = opened(node, state)
    others = [one for one in store.seen.logs if one.name != LOG and len(one.segments) > 1][:2]
    leaderless = replace(live, leader=None)
    facts = LiveFacts(0, cluster_id, {LOG: live, **{one.name: leaderless for one in others}})
    cuts: list[str] = []

    def cut(*words: Any, **_: Any) -> None:
        cuts.extend(one.prefix.name.log for one in words[3])

    monkeypatch.setattr(release, "observe", lambda *_: facts)
    monkeypatch.setattr(release, "find_differences", lambda *_: {})
    monkeypatch.setattr(release, "cut_logs", cut)
    first_ones = [one.segments[0] for one in others]
    with pytest.raises(ChangedUnderUsError, match="no replica leads it") as caught:
        release.delete_segments(store, [*first_ones, *prefix.segments])
    assert caught.value.path == first_ones[0].facts.path
    assert cuts == [LOG]


def test_where_a_log_begins_has_to_be_known_of_those_alone_that_we_have_had_cut(
    found: Any, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, _, state, _ = found
    monkeypatch.setattr(release, "starts_of", lambda *_: {})
    assert release.find_below_start(opened(node, state), prefix.segments) == frozenset()
    was_cut = replace(state.logs[LOG], let_go=prefix.segments[0].end_offset)
    with pytest.raises(
        BrokerUnavailableError, match=f"expected the leader of log {LOG} to say where the log begins"
    ):
        release.find_below_start(opened(node, HoldState(logs={LOG: was_cut})), prefix.segments)
