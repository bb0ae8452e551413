"""Deletion beside three brokers while a setting, an election or a disk fails: nothing unproven goes by us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from storage_engine.kafka.live import release
from storage_engine.kafka.live.release import cut
from tests.integration.kafka_broker import SECONDS, VERSIONS, admin_of, make_topics, served, small
from tests.integration.kafka_cluster import Cluster, wait_until
from tests.integration.test_kafka_hold import change
from tests.integration.test_kafka_release import (
    HOUR_MS,
    command,
    in_lake,
    old,
    said,
    start_of,
    until_held,
    values,
)
from tests.services.command_line import Outcome

pytestmark = [
    pytest.mark.integration,
    pytest.mark.again,
    pytest.mark.timeout(1_200),
    pytest.mark.usefixtures("plainly"),
]

VERSION = VERSIONS[-1]
SETTINGS = {
    "log.dirs": "{node}/first,{node}/second",
    "metadata.log.dir": "{node}/metadata",
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 0,
    "file.delete.delay.ms": 1000,
}
OLD, YOUNG = 80, 10
TAKEN = dict(enumerate(values(0, OLD + YOUNG)))


@pytest.fixture
def cluster(own_cluster: Cluster) -> Cluster:
    """What a test leaves behind no other can use."""
    return own_cluster


def fill(cluster: Cluster, topic: str, lake: Path) -> None:
    """Hold the store of node 1, which leads, and write what has expired, and what has not."""
    cluster.wait_for_isr(topic)
    if cluster.leader(topic) != 1:
        cluster.move_leader(topic, 1)
    until_held(cluster.nodes[1], lake)
    old(cluster.nodes[1], topic, 0, OLD)
    old(cluster.nodes[1], topic, OLD, YOUNG, 0)
    until_held(cluster.nodes[1], lake)


def lost(cluster: Cluster, topic: str, lake: Path, by: int = 1) -> list[int]:
    """Return which of the records that were taken are neither served nor in the lake."""
    first, there = start_of(cluster.nodes[by], topic), served(cluster.nodes[by].address, topic)
    archived = in_lake(lake, topic)
    return [at for at, value in TAKEN.items() if (there if at >= first else archived).get(at) != value]


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Let something happen between the last look and the request that deletes."""

    def disturbed(*words: Any) -> Any:
        act()
        return cut(*words)

    monkeypatch.setattr(release, "cut", disturbed)


def told_of(cluster: Cluster, lake: Path, *before: Outcome) -> str:
    """Return what commands said, and what holding the store again says of drift."""
    again = command(cluster.nodes[1], lake, "hold", "--json")
    return "".join(one.out + one.err for one in (*before, again))


def directory_of(cluster: Cluster, node: int, topic: str) -> Path:
    """Return which log directory of a node has a topic."""
    (found,) = Path(cluster.nodes[node].server_properties).parent.glob(f"*/{topic}-0")
    return found.parent


def test_a_hold_that_another_client_reverts_in_the_middle(
    cluster: Cluster, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics(cluster.address, "orders", replicas=3, retention_ms=HOUR_MS, **small(VERSION))
    fill(cluster, "orders", lake)
    unproven = values(OLD + YOUNG, 40)

    def revert() -> None:
        # Expired, and not in the lake. The broker deletes them by its own rules as soon as it may.
        old(cluster.nodes[1], "orders", OLD + YOUNG, len(unproven))
        change(cluster.nodes[1], "orders", "retention.ms", str(HOUR_MS))

    meanwhile(monkeypatch, revert)
    command(cluster.nodes[1], lake, "clean", "--run-key", "r", "--json")
    monkeypatch.undo()
    assert lost(cluster, "orders", lake) == []
    # The hold is raised again. Once it counts the same run goes on, and its report names who changed what.
    until_held(cluster.nodes[1], lake)
    again = command(cluster.nodes[1], lake, "clean", "--run-key", "r", "--json")
    assert said(again)["report"]["outcome"] == "done"
    assert "another program set it between" in again.out
    # What isn't expired keeps what is behind it, too.
    there = served(cluster.nodes[1].address, "orders")
    assert [there.get(OLD + YOUNG + at) for at in range(len(unproven))] == unproven
    for number in (2, 3):
        cluster.move_leader("orders", number)
        assert lost(cluster, "orders", lake) == []


def test_a_hold_that_is_reverted_costs_what_the_broker_takes_and_says_so(
    cluster: Cluster, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics(cluster.address, "orders", replicas=3, retention_ms=HOUR_MS, **small(VERSION))
    cluster.wait_for_isr("orders")
    cluster.move_leader("orders", 1)
    until_held(cluster.nodes[1], lake)
    old(cluster.nodes[1], "orders", 0, OLD)
    until_held(cluster.nodes[1], lake)

    def revert() -> None:
        old(cluster.nodes[1], "orders", OLD, OLD)
        change(cluster.nodes[1], "orders", "retention.ms", str(HOUR_MS))
        wait_until(lambda: start_of(cluster.nodes[1], "orders") == 2 * OLD, "the broker to delete all")

    meanwhile(monkeypatch, revert)
    done = command(cluster.nodes[1], lake, "clean", "--run-key", "r", "--json")
    monkeypatch.undo()
    # The broker itself has deleted what was never archived. Nobody calls that a success.
    assert done.exit_code == 1
    told = told_of(cluster, lake, done)
    assert "another program set it between" in told
    archived = in_lake(lake, "orders")
    assert [at for at, value in archived.items() if value != values(at, 1)[0]] == []
    gone = sorted(set(range(2 * OLD)) - archived.keys())
    assert f"records of offsets [{gone[0]}, {2 * OLD})" in told


def test_an_unclean_election_frees_nothing_of_what_the_new_leader_took(cluster: Cluster, lake: Path) -> None:
    config = {
        "retention.ms": str(HOUR_MS),
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "true",
        **{name.replace("_", "."): str(value) for name, value in small(VERSION).items()},
    }
    # Its controllers stay a quorum while both of its replicas are gone in turn.
    admin = admin_of(cluster.address)
    asked = admin.create_topics([NewTopic("orders", 1, replica_assignment=[[1, 2]], config=config)])
    asked["orders"].result(SECONDS)
    cluster.wait_for_isr("orders", (1, 2))
    until_held(cluster.nodes[1], lake)
    old(cluster.nodes[1], "orders", 0, OLD // 2)
    cluster.wait_for_isr("orders", (1, 2))
    cluster.nodes[2].freeze()
    cluster.wait_for_isr("orders", (1,))
    old(cluster.nodes[1], "orders", OLD // 2, OLD // 2 + YOUNG)
    until_held(cluster.nodes[1], lake)
    said(command(cluster.nodes[1], lake, "archive", "--json"))
    assert max(in_lake(lake, "orders")) > OLD // 2 + 20
    cluster.nodes[1].kill()
    cluster.nodes[2].thaw()
    wait_until(lambda: cluster.leader("orders") == 2, "an unclean election of node 2")
    # Other records at the same offsets.
    others = values(1_000, YOUNG)
    old(cluster.nodes[2], "orders", 1_000, YOUNG)
    there = served(cluster.nodes[2].address, "orders")
    first_other = min(at for at, value in there.items() if value in others)
    assert first_other < OLD
    cluster.start((1,))
    cluster.wait_for_isr("orders", (1, 2))
    assert "as by an unclean election" in told_of(cluster, lake)
    refused = command(cluster.nodes[1], lake, "clean", "--json")
    assert refused.exit_code == 1, refused.out
    # The course that was cut off is in the lake; what the new leader took is served.
    assert start_of(cluster.nodes[1], "orders") <= first_other
    archived, now = in_lake(lake, "orders"), served(cluster.nodes[1].address, "orders")
    assert [now.get(first_other + at) for at in range(len(others))] == others
    assert [at for at in range(first_other) if (now.get(at) or archived.get(at)) != TAKEN[at]] == []
    kept = [at for at in archived if at >= first_other]
    assert kept
    assert [at for at in kept if archived[at] != TAKEN[at]] == []


@pytest.mark.parametrize("when", ["before the run", "before the deletion"])
def test_a_log_directory_that_fails_on_the_node_itself(
    cluster: Cluster, lake: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    make_topics(cluster.address, "orders", replicas=3, retention_ms=HOUR_MS, **small(VERSION))
    fill(cluster, "orders", lake)
    directory = directory_of(cluster, 1, "orders")
    aside = directory.with_name("aside")

    def fail() -> None:
        directory.rename(aside)
        directory.touch()
        # The next segment can't be made, which the broker takes for a failed disk.
        old(cluster.nodes[1], "orders", OLD + YOUNG, 40, 0)
        cluster.wait_for_isr("orders", (2, 3))

    if when == "before the run":
        fail()
        refused = command(cluster.nodes[1], lake, "clean", "--run-key", "r", "--json")
        assert refused.exit_code != 0, refused.out
        assert start_of(cluster.nodes[2], "orders") == 0
    else:
        meanwhile(monkeypatch, fail)
        command(cluster.nodes[1], lake, "clean", "--run-key", "r", "--json")
        monkeypatch.undo()
    assert lost(cluster, "orders", lake, by=2) == []
    # Repaired, it catches up, and the run goes on.
    cluster.nodes[1].kill()
    directory.unlink()
    aside.rename(directory)
    cluster.start((1,))
    cluster.wait_for_isr("orders")
    until_held(cluster.nodes[1], lake)
    said(command(cluster.nodes[1], lake, "clean", "--run-key", "again", "--json"))
    assert start_of(cluster.nodes[1], "orders") > 0
    for number in (1, 2, 3):
        if cluster.leader("orders") != number:
            cluster.move_leader("orders", number)
        assert lost(cluster, "orders", lake) == []


def test_a_follower_s_log_directory_that_fails_keeps_nothing_from_going(
    cluster: Cluster, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics(cluster.address, "orders", replicas=3, retention_ms=HOUR_MS, **small(VERSION))
    fill(cluster, "orders", lake)
    directory = directory_of(cluster, 3, "orders")
    aside = directory.with_name("aside")

    def fail() -> None:
        directory.rename(aside)
        directory.touch()
        old(cluster.nodes[1], "orders", OLD + YOUNG, 40, 0)
        cluster.wait_for_isr("orders", (1, 2))

    meanwhile(monkeypatch, fail)
    said(command(cluster.nodes[1], lake, "clean", "--json"))
    begins = start_of(cluster.nodes[1], "orders")
    assert begins > 0
    cluster.nodes[3].kill()
    directory.unlink()
    aside.rename(directory)
    cluster.start((3,))
    cluster.wait_for_isr("orders")
    # What it had kept doesn't come back: it takes over where its leader begins.
    cluster.move_leader("orders", 3)
    assert start_of(cluster.nodes[1], "orders") == begins
    assert lost(cluster, "orders", lake) == []
