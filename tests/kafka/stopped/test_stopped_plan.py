"""What keeps a stopped node's segments, though its broker's rules would delete them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.model.plan import Decision, PlanRequest, Reason
from storage_engine.retention.store.broker_answers import propose, take_snapshot
from tests.kafka.made_node import (
    TRANSACTIONAL,
    WRITTEN_MS,
    MadeNode,
    batch_of,
    metadata_record,
    partition,
    unsigned,
)

NOW_MS = WRITTEN_MS + 10 * 24 * 3_600_000
THREE = {0: [batch_of(0)], 2: [batch_of(2)], 4: [batch_of(4)]}
"""Two closed segments that have expired, and an active one."""
STOPPED = PlanRequest(replicas_stopped="node 2 is switched off")


@pytest.fixture
def made(tmp_path: Path) -> MadeNode:
    node = MadeNode(tmp_path / "node", ("logs", "more"))
    node.add("t-0", THREE)
    node.add("u-0", THREE, directory=1)
    return node


def decisions_of(made: MadeNode, log: str, request: PlanRequest | None = None) -> Sequence[Decision]:
    store = KafkaStore(OpenNode(made.write()))
    plan = propose(store, take_snapshot(store, NOW_MS, "kafka"), NOW_MS, request or PlanRequest())
    (of_log,) = (one for one in plan.logs if one.log == log)
    return of_log.decisions


def reasons(made: MadeNode, request: PlanRequest | None = None, log: str = "t-0") -> tuple[list[Reason], str]:
    """Return why the closed segments of a log go or stay, and the first one's detail."""
    *closed, _ = decisions_of(made, log, request)
    return [one.reason for one in closed], closed[0].detail


def changed(made: MadeNode, *fields: tuple[int, tuple[int, ...]]) -> bytes:
    """Return the record that changes a partition of ``t``: lists of nodes by their tags."""
    lists = [
        (tag, unsigned(len(nodes) + 1) + b"".join(node.to_bytes(4, "big") for node in nodes))
        for tag, nodes in fields
    ]
    tagged = unsigned(len(lists)) + b"".join(unsigned(tag) + unsigned(len(one)) + one for tag, one in lists)
    return metadata_record(5, (0).to_bytes(4, "big") + made.topic_ids["t"].bytes)[:-1] + tagged


def test_what_no_other_node_has_goes(made: MadeNode) -> None:
    assert reasons(made)[0] == [Reason.EXPIRED, Reason.EXPIRED]


REMOTE = {"remote.storage.enable": "true"}
NOT_COPIED = {**REMOTE, "remote.log.copy.disable": "true"}


@pytest.mark.parametrize("copied", [False, True])
def test_only_its_broker_deletes_of_a_log_with_remote_storage(made: MadeNode, copied: bool) -> None:
    made.settings["t"] = REMOTE if copied else NOT_COPIED
    found, why = reasons(made, STOPPED)
    assert found == [Reason.REMOTE_STORAGE, Reason.REMOTE_STORAGE]
    assert ("only its broker may delete records of this log" in why) == (not copied)
    assert reasons(made, log="u-0")[0] == [Reason.EXPIRED, Reason.EXPIRED]
    # What nothing is copied of is archived as any other, and goes by the whole retention.
    store = KafkaStore(OpenNode(made.properties))
    snapshot = take_snapshot(store, NOW_MS, "kafka")
    archivable = store.archivable(snapshot)
    assert ("t-0" in {one.log for one in archivable.segments}) == (not copied)
    assert ("t-0" in archivable.kept_out) == copied
    assert (("t-0", 0) in store.course.deletes_at_ms(snapshot, NOW_MS)) == (not copied)


def test_a_person_s_limit_counts_for_all_logs_together(made: MadeNode) -> None:
    request = PlanRequest(manual=True, forced=True, max_segments=1, reason="try")
    store = KafkaStore(OpenNode(made.write()))
    plan = propose(store, take_snapshot(store, NOW_MS, "kafka"), NOW_MS, request)
    assert len(plan.to_delete) == 1
    assert {one.reason for one in plan.decisions} == {Reason.EXPIRED, Reason.BATCH_FULL, Reason.ACTIVE}
    assert "a forced run deletes only expired segments" in plan.notices[0]


def test_other_nodes_replicas_keep_a_log_and_no_other_one(made: MadeNode) -> None:
    made.replicas["t-0"] = (2, 1, 3)
    found, why = reasons(made)
    assert found == [Reason.REPLICAS_ELSEWHERE, Reason.REPLICAS_ELSEWHERE]
    assert why.startswith("nodes 2 and 3 have a replica, and no option says that every such node is stopped")
    assert "(by its broker's rules: retention.ms: its newest record is older" in why
    assert reasons(made, log="u-0")[0] == [Reason.EXPIRED, Reason.EXPIRED]
    assert reasons(made, PlanRequest(replicas_stopped=" "))[0] == found


def test_a_person_s_word_that_they_are_stopped_counts_and_is_in_the_plan(made: MadeNode) -> None:
    made.replicas["t-0"] = (1, 2)
    assert reasons(made, STOPPED)[0] == [Reason.EXPIRED, Reason.EXPIRED]
    store = KafkaStore(OpenNode(made.properties))
    plan = propose(store, take_snapshot(store, NOW_MS, "kafka"), NOW_MS, STOPPED)
    assert plan.notices[-1] == "a person says that all other nodes are stopped: node 2 is switched off"


def test_what_an_open_transaction_keeps_out_of_the_lake_stays(made: MadeNode) -> None:
    open_from_2 = [batch_of(2, producer=7, attributes=TRANSACTIONAL)]
    made.add("v-0", {0: [batch_of(0)], 2: open_from_2, 4: [batch_of(4)], 6: [batch_of(6)]})
    found = decisions_of(made, "v-0")
    assert [one.reason for one in found[:3]] == [
        Reason.EXPIRED,
        Reason.NOT_ARCHIVABLE,
        Reason.BEHIND_KEPT,
    ]
    assert "a transaction of producer 7 is open from offset 2 on" in found[1].detail
    assert reasons(made)[0] == [Reason.EXPIRED, Reason.EXPIRED]


def test_a_segment_without_bytes_stays_as_nothing_can_prove_it(made: MadeNode) -> None:
    path = made.add("v-0", {0: [batch_of(0)], 2: [], 4: [batch_of(4)], 6: [batch_of(6)]})
    made.checkpoint("cleaner-offset-checkpoint", {"v-0": 4})
    os.utime(path / f"{2:020d}.log", (WRITTEN_MS // 1000, WRITTEN_MS // 1000))
    found = decisions_of(made, "v-0")
    assert [one.reason for one in found[:3]] == [
        Reason.EXPIRED,
        Reason.NOT_ARCHIVABLE,
        Reason.BEHIND_KEPT,
    ]
    assert "it has no bytes to prove" in found[1].detail


@pytest.mark.parametrize("request_", [PlanRequest(), STOPPED])
@pytest.mark.parametrize(("tag", "what"), [(3, "node 2 removed"), (4, "node 2 added")])
def test_a_reassignment_keeps_it_whoever_says_what(
    made: MadeNode, request_: PlanRequest, tag: int, what: str
) -> None:
    made.more_records = [changed(made, (tag, (2,)))]
    found, why = reasons(made, request_)
    assert found == [Reason.UNKNOWN, Reason.UNKNOWN]
    assert f"are being reassigned ({what})" in why
    made.more_records.append(changed(made, (tag, ())))
    assert reasons(made)[0] == [Reason.EXPIRED, Reason.EXPIRED]


def test_the_newest_replicas_count(made: MadeNode) -> None:
    made.more_records = [changed(made, (2, (1, 2)))]
    assert reasons(made)[0][0] is Reason.REPLICAS_ELSEWHERE
    made.more_records.append(changed(made, (2, (3,))))
    assert "on node 3, not on node 1" in reasons(made, STOPPED)[1]


def no_partition(made: MadeNode) -> None:
    del made.replicas["t-0"]


def other_topic(made: MadeNode) -> None:
    made.more_records = [partition(made.topic_ids["u"], 0, (1,))]
    path = made.directories[0] / "t-0" / "partition.metadata"
    path.write_text((made.directories[1] / "u-0" / "partition.metadata").read_text())


def unfinished(suffix: str) -> Callable[[MadeNode], None]:
    return lambda made: (made.directories[0] / "t-0" / f"{0:020d}.log{suffix}").write_bytes(b"")


def copied(made: MadeNode) -> None:
    (made.directories[1] / f"t-0.{'0' * 32}-future").mkdir()


def no_topic_id(made: MadeNode) -> None:
    (made.directories[0] / "t-0" / "partition.metadata").unlink()


@pytest.mark.parametrize(
    ("doubt", "reason", "expected"),
    [
        (no_partition, Reason.UNKNOWN, "don't say which nodes have its replicas"),
        (other_topic, Reason.REFUSED, "has topic id"),
        (no_topic_id, Reason.REFUSED, "expected the topic's id, found no file"),
        (unfinished(".swap"), Reason.UNKNOWN, "its broker has to finish what the cleaner was doing"),
        (unfinished(".cleaned"), Reason.UNKNOWN, "its broker has to finish what the cleaner was doing"),
        (copied, Reason.UNKNOWN, "copies it to another log directory"),
    ],
)
def test_doubt_about_a_log_keeps_it_and_no_other(
    made: MadeNode, doubt: Callable[[MadeNode], object], reason: Reason, expected: str
) -> None:
    doubt(made)
    found, why = reasons(made, STOPPED)
    assert found == [reason, reason]
    assert expected in why
    assert reasons(made, log="u-0")[0] == [Reason.EXPIRED, Reason.EXPIRED]


def unclean(made: MadeNode) -> None:
    (made.directories[1] / ".kafka_cleanshutdown").unlink()


def other_stops(made: MadeNode) -> None:
    (made.directories[1] / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":10}')


def no_identity(made: MadeNode) -> None:
    (made.directories[1] / "meta.properties").unlink()


def other_node(made: MadeNode) -> None:
    path = made.directories[1] / "meta.properties"
    path.write_text(path.read_text().replace("node.id=1", "node.id=2"))


def zookeeper(made: MadeNode) -> None:
    path = made.directories[0] / "meta.properties"
    path.write_text("version=0\nbroker.id=1\n")


@pytest.mark.parametrize(
    ("doubt", "reason", "expected"),
    [
        (unclean, Reason.STORE_CRASHED, "did not stop cleanly"),
        (other_stops, Reason.STORE_CRASHED, "did not stop cleanly"),
        (no_identity, Reason.UNKNOWN, "name one cluster and the node.id"),
        (other_node, Reason.UNKNOWN, "name one cluster and the node.id"),
        (zookeeper, Reason.UNKNOWN, "ZooKeeper"),
    ],
)
def test_doubt_about_the_node_keeps_all(
    made: MadeNode, doubt: Callable[[MadeNode], None], reason: Reason, expected: str
) -> None:
    doubt(made)
    for log in ("t-0", "u-0"):
        found, why = reasons(made, STOPPED, log)
        assert set(found) == {reason}
        assert expected in why
