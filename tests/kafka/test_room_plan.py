"""What goes to make room in a stopped node, log by log, and what keeps the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import NotOnBrokerError
from storage_engine.kafka.format.layout import LiveFacts, LivePartition, Node, read_node
from storage_engine.kafka.live.observe import LeadersWord
from storage_engine.kafka.reclaim import RoomNode, RoomStore, with_word
from storage_engine.model.plan import LogPlan, PlanRequest, Reason
from storage_engine.retention.store.broker_answers import propose, take_snapshot
from tests.kafka.made_node import CLUSTER, WRITTEN_MS, MadeNode, batch_of

DAY_MS = 24 * 3_600_000
NOW_MS = WRITTEN_MS + 10 * DAY_MS
SETTINGS = {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS), "retention.bytes": "-1"}
YOUNG = {**SETTINGS, "retention.ms": str(30 * DAY_MS)}


@pytest.fixture
def made(tmp_path: Path) -> MadeNode:
    """A log of three closed segments of two records each, which node 2 leads, and one that is here alone."""
    node = MadeNode(tmp_path / "node")
    four = {base: [batch_of(base)] for base in (0, 2, 4, 6)}
    node.add("t-0", four)
    node.add("u-0", four)
    node.replicas["t-0"] = (1, 2, 3)
    return node


def led(made: MadeNode, **change: Any) -> LivePartition:
    known = LivePartition(
        made.topic_ids["t"], 2, 0, 8, 8, SETTINGS, replicas=(1, 2, 3), in_sync=(2, 3), leader_epoch=4
    )
    return replace(known, **change)


@dataclass(slots=True)
class Answered(RoomNode):
    """A stopped node whose cluster has answered already."""

    def read(self, now_ms: int) -> Node:
        assert self.word is not None
        return with_word(read_node(self.root), self.word, "b:1")


def plans(made: MadeNode, request: PlanRequest | None = None, **change: Any) -> dict[str, LogPlan]:
    alone = LivePartition(made.topic_ids["u"], None, topic_settings=SETTINGS, replicas=(1,))
    word = LeadersWord(LiveFacts(0, CLUSTER, {"t-0": led(made, **change), "u-0": alone}), frozenset({2, 3}))
    store = RoomStore(Answered(made.write(), word=word))
    found = propose(store, take_snapshot(store, NOW_MS, "kafka"), NOW_MS, request or PlanRequest())
    return {one.log: one for one in found.logs}


def found(made: MadeNode, request: PlanRequest | None = None, **change: Any) -> list[tuple[Reason, str]]:
    """Return why each closed segment of the led log goes or stays."""
    *closed, _ = plans(made, request, **change)["t-0"].decisions
    return [(one.reason, one.detail) for one in closed]


def reasons(made: MadeNode, request: PlanRequest | None = None, **change: Any) -> list[Reason]:
    return [reason for reason, _ in found(made, request, **change)]


GO, KEPT = Reason.EXPIRED, Reason.BEHIND_KEPT


def test_what_has_expired_goes_once_its_leader_begins_behind_it(made: MadeNode) -> None:
    said = found(made)
    assert [reason for reason, _ in said] == [GO, GO, GO]
    assert said[0][1].endswith("node 2 leads it from offset 0 on, and is told to delete it first")
    assert len(plans(made)["u-0"].to_delete) == 3
    assert plans(made)["u-0"].decisions[0].detail.endswith("; no other node has a replica")


def test_what_is_deleted_for_the_cluster_goes_whatever_its_age(made: MadeNode) -> None:
    for start, going in ((3, 1), (4, 2), (6, 3), (100, 3)):
        said = found(made, log_start=start, topic_settings=YOUNG)
        assert [reason is GO for reason, _ in said] == [True] * going + [False] * (3 - going), start
        assert said[0][1].endswith("so it is deleted for the cluster")
    assert reasons(made, log_start=2, topic_settings=YOUNG) == [GO, Reason.NOT_EXPIRED, KEPT]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"topic_settings": {**SETTINGS, "cleanup.policy": ""}, "log_start": 2}, None),
        ({"topic_settings": {**SETTINGS, "cleanup.policy": "compact,delete"}}, Reason.COMPACTED),
        ({"refused": ("last_stable_offset: no",)}, Reason.REPLICAS_ELSEWHERE),
        ({"last_stable_offset": None}, Reason.REPLICAS_ELSEWHERE),
        ({"topic_id": None}, Reason.UNKNOWN),
        ({"leader": 1}, Reason.UNKNOWN),
        ({"leader": None}, Reason.UNKNOWN),
        ({"leader_epoch": 2}, Reason.UNKNOWN),
    ],
)
def test_what_is_not_known_of_a_leader_or_forbids_it_keeps_what_it_has(
    made: MadeNode, change: dict[str, Any], expected: Reason | None
) -> None:
    said = reasons(made, **change)
    if expected is None:
        # It deletes nothing of its own accord; what it has deleted goes.
        assert said == [GO, Reason.UNLIMITED, KEPT]
    else:
        assert set(said) <= {expected, KEPT}
        assert said[0] is expected
    assert len(plans(made, **change)["u-0"].to_delete) == 3


def test_nothing_goes_of_a_log_whose_leader_has_more_before_it(made: MadeNode) -> None:
    path = made.directories[0] / "t-0"
    (path / f"{0:020d}.log").unlink()
    *closed, _ = plans(made, log_start=1)["t-0"].decisions
    assert [one.reason for one in closed] == [Reason.REPLICAS_ELSEWHERE, KEPT]
    assert "this node's files don't prove" in closed[0].detail
    assert len(plans(made, log_start=2)["t-0"].to_delete) == 2


@pytest.mark.parametrize("limit", ["high_watermark", "last_stable_offset"])
def test_what_reaches_above_its_leaders_limits_stays(made: MadeNode, limit: str) -> None:
    change: dict[str, Any] = {limit: 5}
    assert reasons(made, **change) == [GO, GO, Reason.NOT_REPLICATED]
    # Below its start the records are gone, whatever the limits.
    assert reasons(made, **change, log_start=6) == [GO, GO, GO]


def test_what_this_node_has_not_seen_replicated_stays(made: MadeNode) -> None:
    made.watermarks["t-0"] = 3
    assert reasons(made) == [GO, Reason.NOT_REPLICATED, KEPT]
    assert reasons(made, log_start=6) == [GO, Reason.NOT_REPLICATED, KEPT]


def test_of_an_unclean_stop_only_what_lies_below_the_recovery_point_goes(made: MadeNode) -> None:
    (made.directories[0] / ".kafka_cleanshutdown").unlink()
    assert reasons(made) == [Reason.STORE_CRASHED, KEPT, KEPT]
    for point, going in ((3, 1), (4, 2), (7, 3)):
        made.checkpoint("recovery-point-offset-checkpoint", {"t-0": point, "u-0": 7})
        assert [reason is GO for reason in reasons(made)] == [True] * going + [False] * (3 - going)
    assert len(plans(made)["u-0"].to_delete) == 3


def test_a_person_may_have_it_deleted_sooner_as_far_as_the_space_takes_it(made: MadeNode) -> None:
    request = PlanRequest(forced=True, reason="disk full", free_bytes=1 << 60)
    assert reasons(made, PlanRequest(free_bytes=1 << 60), topic_settings=YOUNG)[0] is Reason.NOT_EXPIRED
    said = found(made, request, topic_settings=YOUNG)
    assert [reason for reason, _ in said] == [Reason.FORCED] * 3
    assert said[0][1].startswith("a person asks for room: disk full; node 2 leads it")
    # It overrides age alone.
    assert reasons(made, request, topic_settings=YOUNG, high_watermark=5)[2] is Reason.NOT_REPLICATED
    compacted = {**YOUNG, "cleanup.policy": "compact"}
    assert set(reasons(made, request, topic_settings=compacted)) == {Reason.COMPACTED}
    enough = replace(request, free_bytes=1)
    assert set(reasons(made, enough, topic_settings=YOUNG)) == {Reason.TARGET_REACHED}


@pytest.mark.parametrize("forced", [False, True])
def test_nothing_goes_of_a_log_with_remote_storage_though_nothing_is_copied(
    made: MadeNode, forced: bool
) -> None:
    request = PlanRequest(forced=forced, reason="disk full", replicas_stopped="switched off")
    remote = {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}
    assert set(reasons(made, request, topic_settings={**SETTINGS, **remote})) == {Reason.REMOTE_STORAGE}
    made.settings["u"] = remote
    store = RoomStore(RoomNode(made.write()))
    plan = propose(store, take_snapshot(store, NOW_MS, "kafka"), NOW_MS, request)
    assert {one.log for one in plan.to_delete} == {"t-0"}


def test_another_cluster_is_refused(made: MadeNode) -> None:
    word = LeadersWord(LiveFacts(0, "other", {}), frozenset())
    with pytest.raises(NotOnBrokerError, match="Name a broker of their own"):
        with_word(read_node(made.write()), word, "b:1")


def test_without_a_cluster_only_what_no_other_node_has_goes(made: MadeNode) -> None:
    store = RoomStore(RoomNode(made.write()))

    def going(request: PlanRequest) -> list[str]:
        plan = propose(store, take_snapshot(store, NOW_MS, "kafka"), NOW_MS, request)
        return [f"{one.log}/{one.base_offset}" for one in plan.to_delete]

    alone = ["u-0/0", "u-0/2", "u-0/4"]
    assert going(PlanRequest()) == alone
    assert going(PlanRequest(replicas_stopped="switched off")) == ["t-0/0", "t-0/2", "t-0/4", *alone]
