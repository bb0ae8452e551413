"""On what ground a stopped node's log may lose segments: by its cluster's word; what is unknown is none."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from storage_engine.kafka.format.layout import LiveFacts, LivePartition
from storage_engine.kafka.live.observe import LeadersWord
from storage_engine.kafka.metadata.cluster_metadata import ClusterMetadata, PartitionState
from storage_engine.kafka.reclaim import OwnLog, Way, way_of
from storage_engine.model.plan import Reason

TOPIC_ID = uuid.UUID(int=7)
LOG = OwnLog("t-0", TOPIC_ID, 0, 1, 3)
THREE = ClusterMetadata(partition_states={(TOPIC_ID, 0): PartitionState((1, 2, 3), 3)})
ALONE = ClusterMetadata(partition_states={(TOPIC_ID, 0): PartitionState((1,), 3)})
LED = LivePartition(TOPIC_ID, 2, 40, 90, 90, replicas=(1, 2, 3), in_sync=(2, 3), leader_epoch=4)
UNLED = LivePartition(TOPIC_ID, None, replicas=(1, 2, 3), in_sync=(2,))


def word(live: LivePartition | None, running: tuple[int, ...] = (2, 3)) -> LeadersWord:
    return LeadersWord(LiveFacts(0, "c", {} if live is None else {"t-0": live}), frozenset(running))


def found(live: LivePartition | None, *, running: tuple[int, ...] = (2, 3), said: str = "") -> Any:
    return way_of(LOG, THREE, word(live, running), said)


def test_a_leader_elsewhere_is_a_way_from_its_start_on() -> None:
    assert found(LED) == Way("node 2 leads it from offset 40 on", 2, 4, 40)
    # Whatever a person says: a leader that answers knows better.
    assert found(LED, said="all are off") == found(LED)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"topic_id": uuid.UUID(int=8)}, "and the cluster's is 00000000"),
        ({"topic_id": None}, "and the cluster's is None"),
        ({"replicas": (2, 3)}, "not on node 1"),
        ({"replicas": ()}, "doesn't say which nodes"),
        ({"leader": 1}, "still names node 1 as its leader"),
        ({"log_start": None, "refused": ("log_start: no",)}, "doesn't tell its log start: log_start: no"),
        ({"leader_epoch": None}, "doesn't tell its log start"),
        ({"leader_epoch": 2}, "of epoch 2, and this node has seen epoch 3"),
    ],
)
def test_what_a_cluster_does_not_tell_of_a_led_log_or_tells_otherwise_is_no(
    change: dict[str, Any], expected: str
) -> None:
    reason, why = found(replace(LED, **change))
    assert reason is Reason.UNKNOWN
    assert expected in why


def test_a_log_that_the_cluster_says_nothing_of_has_none() -> None:
    assert "doesn't say which nodes" in str(found(None))


def test_a_leader_of_an_older_epoch_than_the_node_s_metadata_have_is_no() -> None:
    newer = ClusterMetadata(partition_states={(TOPIC_ID, 0): PartitionState((1, 2, 3), 9)})
    assert "has seen epoch 9" in str(way_of(LOG, newer, word(LED), ""))


def test_where_none_leads_every_broker_with_a_replica_has_to_be_gone() -> None:
    way = found(UNLED, running=(4, 5))
    assert isinstance(way, Way)
    assert way.leader is None
    assert "nodes 2 and 3, with a replica, don't run" in way.said
    for running in ((3,), (2, 3, 4)):
        assert "no replica leads it, though" in str(found(UNLED, running=running))
        # A person's word doesn't change what the cluster sees.
        assert "no replica leads it, though" in str(found(UNLED, running=running, said="both are off"))


def test_a_reassignment_or_unknown_replicas_keep_a_log_that_none_leads() -> None:
    moving = ClusterMetadata(partition_states={(TOPIC_ID, 0): PartitionState((1, 2), 3, adding=(4,))})
    assert "are being reassigned" in str(way_of(LOG, moving, word(UNLED, (5,)), ""))
    assert "don't say which nodes" in str(way_of(LOG, ClusterMetadata(), word(UNLED, (5,)), ""))
    # The cluster's own word on its leader is newer.
    assert isinstance(way_of(LOG, moving, word(LED), ""), Way)


def test_alone_by_the_node_s_word_and_by_the_cluster_s() -> None:
    only = replace(UNLED, replicas=(1,), in_sync=(1,))
    assert way_of(LOG, ALONE, word(only), "") == Way("no other node has a replica")
    assert "no replica leads it, though node 2" in str(way_of(LOG, ALONE, word(UNLED, (2,)), ""))


def test_without_a_cluster_a_person_s_word_counts() -> None:
    assert way_of(LOG, ALONE, None, "") == Way("")
    fault = way_of(LOG, THREE, None, "")
    assert isinstance(fault, tuple)
    reason, why = fault
    assert reason is Reason.REPLICAS_ELSEWHERE
    assert "nodes 2 and 3 have a replica" in why
    assert way_of(LOG, THREE, None, "ticket 7") == Way("other nodes are stopped: ticket 7")
