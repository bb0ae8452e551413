"""Deletion beside three brokers: whatever a follower or a leader does meanwhile, nothing unproven goes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.kafka.cluster.client import Cluster as AskedCluster
from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.live import release
from storage_engine.kafka.live.release import Witness, cut, find_differences, find_witness
from storage_engine.model.broker.live import LiveBroker
from tests.integration.kafka_broker import VERSIONS, make_topics, served, small
from tests.integration.kafka_cluster import Cluster
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
from tests.services.command_line import run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.usefixtures("plainly")]

TOPIC = "orders"
RECORDS = 80
SETTINGS = {
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 0,
    "file.delete.delay.ms": 1000,
}


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, led by node 1, whose store is held."""
    name = f"orders-{abs(hash(request.node.name)) % 10_000}"
    make_topics(
        cluster.address, name, replicas=3, retention_ms=HOUR_MS, min_insync_replicas=2, **small(VERSIONS[-1])
    )
    cluster.wait_for_isr(name)
    if cluster.leader(name) != 1:
        cluster.move_leader(name, 1)
    return name


@pytest.fixture
def lake(cluster: Cluster, topic: str, lake: Path) -> Path:
    until_held(cluster.nodes[1], lake)
    old(cluster.nodes[1], topic, 0, RECORDS)
    return lake


def lost(cluster: Cluster, topic: str, lake: Path) -> list[int]:
    """Return which of the records that were taken are neither served nor in the lake."""
    node = cluster.nodes[1]
    first, there, archived = start_of(node, topic), served(node.address, topic), in_lake(lake, topic)
    return [
        offset
        for offset, value in enumerate(values(0, RECORDS))
        if (there if offset >= first else archived).get(offset) != value
    ]


def files_of(cluster: Cluster, node: int, topic: str) -> list[Path]:
    directory = Path(cluster.nodes[node].server_properties).parent / "data" / f"{topic}-0"
    return sorted(directory.glob("*.log"))


def wait_for_first(cluster: Cluster, topic: str, base_offset: int) -> None:
    """Wait until each node's first file is this one."""
    deadline = time.monotonic() + 120
    while [int(files_of(cluster, node, topic)[0].stem) for node in (1, 2, 3)] != [base_offset] * 3:
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_frozen_follower_keeps_nothing_from_being_settled(
    cluster: Cluster, topic: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = int(files_of(cluster, 1, topic)[-1].stem)

    def frozen(*words: Any) -> Any:
        cluster.nodes[3].freeze()
        return cut(*words)

    monkeypatch.setattr(release, "cut", frozen)
    try:
        done = command(cluster.nodes[1], lake, "clean", "--json")
    finally:
        cluster.nodes[3].thaw()
    assert said(done)["report"]["outcome"] == "done"
    assert start_of(cluster.nodes[1], topic) == last
    assert lost(cluster, topic, lake) == []
    cluster.wait_for_isr(topic)
    # The follower takes the start over, and no records come back.
    wait_for_first(cluster, topic, last)
    cluster.move_leader(topic, 3)
    assert start_of(cluster.nodes[1], topic) == last
    assert lost(cluster, topic, lake) == []


def test_a_leader_that_moves_in_the_middle_is_no_loss(
    cluster: Cluster, topic: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = int(files_of(cluster, 1, topic)[-1].stem)

    def moved(*words: Any) -> Any:
        cluster.move_leader(topic, 2)
        return cut(*words)

    monkeypatch.setattr(release, "cut", moved)
    command(cluster.nodes[1], lake, "clean", "--run-key", "r", "--json")
    monkeypatch.undo()
    assert lost(cluster, topic, lake) == []
    # The same run goes on, whatever it came to.
    said(command(cluster.nodes[1], lake, "clean", "--run-key", "r", "--json"))
    assert start_of(cluster.nodes[1], topic) == last
    assert lost(cluster, topic, lake) == []


def test_beside_a_frozen_node_nothing_goes_of_what_its_files_prove(
    cluster: Cluster, topic: str, lake: Path
) -> None:
    """What a node has archived that doesn't follow may not be what its leader has."""
    cluster.move_leader(topic, 2)
    said(command(cluster.nodes[1], lake, "archive", "--json"))
    cluster.nodes[1].freeze()
    try:
        cluster.wait_for_isr(topic, (2, 3))
        live = ("--broker", cluster.nodes[2].address, "--deletes-us", "--allow-same-disk")
        done = run_command("clean", cluster.nodes[1].server_properties, "--lake", lake, *live, "--json")
        assert done.exit_code == 1, done.out
        assert "BrokerUnavailableError" in done.out
        assert start_of(cluster.nodes[2], topic) == 0
    finally:
        cluster.nodes[1].thaw()
    cluster.wait_for_isr(topic)
    said(command(cluster.nodes[1], lake, "clean", "--json"))
    assert start_of(cluster.nodes[1], topic) > 0
    assert lost(cluster, topic, lake) == []


def test_a_record_of_another_epoch_is_no_witness(cluster: Cluster, topic: str) -> None:
    old(cluster.nodes[1], topic, 0, 10, 0)
    cluster.move_leader(topic, 2)
    old(cluster.nodes[1], topic, 10, 40, 0)
    node = read_node(Path(cluster.nodes[1].server_properties))
    (log,) = (log for _, log in node.logs if log.name.topic == topic)
    boundary = log.segments[1].base_offset
    found = find_witness(log.segments, boundary, 50)
    assert found is not None
    assert found.offset == boundary - 1
    asked = AskedCluster(LiveBroker(cluster.address))

    def other(witness: Witness) -> str:
        return find_differences(asked, {(topic, 0): witness}, lambda: None).get((topic, 0), "")

    assert other(found) == ""
    for epoch in (found.epoch - 1, found.epoch + 1):
        assert "another leader appended other records" in other(replace(found, epoch=epoch))
    assert "gives no record of offset 1000" in other(Witness(1000, found.epoch))
