"""Three nodes with replicas of one log, cleaned while all are stopped: whoever leads, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.kafka.format.layout import read_node
from tests.integration.kafka_broker import VERSIONS, make_topics, served, small
from tests.integration.kafka_cluster import NODES, Cluster
from tests.integration.test_kafka_release import HOUR_MS, in_lake, old, start_of, values
from tests.services.command_line import run_command

pytestmark = [
    pytest.mark.integration,
    pytest.mark.again,
    pytest.mark.timeout(2_400),
    pytest.mark.usefixtures("plainly"),
]

TOPIC = "orders"
NEVER_MS = 24 * HOUR_MS
SETTINGS = {
    # They delete nothing by themselves.
    "log.initial.task.delay.ms": NEVER_MS,
    "log.retention.check.interval.ms": NEVER_MS,
}
RECORDS = 70
WORD = "the cluster was switched off at nine"


@dataclass(frozen=True)
class Round:
    """Which nodes are cleaned, and in which order all are started."""

    cleaned: tuple[int, ...]
    started: tuple[int, ...]


ROUNDS = (
    Round((1,), (1, 2, 3)),
    Round((1,), (3, 2, 1)),
    Round((2, 3), (1, 3, 2)),
    Round((1, 2, 3), (2, 1, 3)),
    Round((3, 1, 2), (3, 1, 2)),
)


@pytest.fixture(scope="module", params=[VERSIONS[-1], *VERSIONS[:-1]])
def cluster_version(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


@pytest.fixture(scope="module")
def cluster(cluster: Cluster, cluster_version: str) -> Cluster:
    make_topics(cluster.address, TOPIC, replicas=3, retention_ms=HOUR_MS, **small(cluster_version))
    return cluster


def clean(cluster: Cluster, node: int, lake: Path, *words: object) -> None:
    done = run_command("clean", cluster.nodes[node].server_properties, "--lake", lake, *words)
    assert done.exit_code == 0, done.out + done.err


def first_offset(cluster: Cluster, node: int) -> int:
    root = Path(cluster.nodes[node].server_properties)
    (log,) = (log for _, log in read_node(root).logs if log.name.topic == TOPIC)
    return log.segments[0].base_offset


def lost(cluster: Cluster, lake: Path, taken: Mapping[int, bytes]) -> list[int]:
    """Return which of the records that were taken are neither served nor in the lake."""
    first, there, archived = (
        start_of(cluster.nodes[1], TOPIC),
        served(cluster.nodes[1].address, TOPIC),
        in_lake(lake, TOPIC),
    )
    return [at for at, value in taken.items() if (there if at >= first else archived).get(at) != value]


def start_in_order(cluster: Cluster, ids: Sequence[int]) -> None:
    """Start each node some time after the one before, whoever of them is elected first."""
    for number in ids:
        cluster.nodes[number].launch()
        time.sleep(2)
    for number in ids:
        cluster.nodes[number].wait_until_serving()
    cluster.wait_for_isr(TOPIC)


def test_whichever_nodes_were_cleaned_each_record_is_served_or_in_the_lake(
    cluster: Cluster, lake: Path
) -> None:
    taken = list[bytes]()
    for one in ROUNDS:
        cluster.wait_for_isr(TOPIC)
        # The last of them lie in the active segment, which nobody archives.
        old(cluster.nodes[1], TOPIC, len(taken), RECORDS)
        taken += values(len(taken), RECORDS)
        cluster.wait_for_isr(TOPIC)
        cluster.stop()
        before = {number: first_offset(cluster, number) for number in NODES}
        # Without a person's word nothing goes of what others have, too.
        first = one.cleaned[0]
        clean(cluster, first, lake)
        planned = run_command("plan", cluster.nodes[first].server_properties)
        assert "replicas-elsewhere" in planned.out, planned
        assert first_offset(cluster, first) == before[first]
        for number in one.cleaned:
            clean(cluster, number, lake, "--replicas-stopped", WORD)
            assert first_offset(cluster, number) > before[number], one
        left = {number: first_offset(cluster, number) for number in NODES}
        assert all(left[number] == before[number] for number in NODES if number not in one.cleaned)
        start_in_order(cluster, one.started)
        for leader in NODES:
            if cluster.leader(TOPIC) != leader:
                cluster.move_leader(TOPIC, leader)
            # It may begin where any of them began that has led since, and nowhere else.
            assert start_of(cluster.nodes[1], TOPIC) in left.values()
            assert lost(cluster, lake, dict(enumerate(taken))) == [], (one, leader)
        for number in one.cleaned:
            verified = run_command("verify", cluster.nodes[number].server_properties, "--lake", lake)
            assert verified.exit_code == 0, verified.out + verified.err
