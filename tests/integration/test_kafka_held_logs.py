"""Beside real brokers each log is released by itself: what keeps one of them keeps no other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from demo.brokers.kafka import Kafka
from tests.integration.kafka_broker import (
    SECONDS,
    VERSIONS,
    admin_of,
    make_topics,
    produce,
    running_kafka,
    served,
    small,
)
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
from tests.rounds import rounds
from tests.services.command_line import Outcome

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("plainly")]

VERSION = VERSIONS[-1]
INTERVAL_MS = 4000
SETTINGS = {
    "log.retention.check.interval.ms": INTERVAL_MS,
    "log.initial.task.delay.ms": 0,
    "file.delete.delay.ms": 1000,
}
SIZE_BYTES = 85_000
"""Of 80 records it takes none, as what would stay is less; nor does it keep any more."""
SIZED = 110
"""So many records are in a topic at first that is kept by its size."""
REVERTED = {"retention_ms": HOUR_MS, "retention_bytes": SIZE_BYTES}


def last_segment(kafka: Kafka, topic: str) -> int:
    files = sorted((Path(kafka.server_properties).parent / "data" / f"{topic}-0").glob("*.log"))
    return int(files[-1].stem)


def set_back(kafka: Kafka) -> None:
    """Have somebody set a topic's size back, to less than it may grow to before that counts."""
    change(kafka, "reverted", "retention.bytes", str(SIZE_BYTES))


def fates_of(done: Outcome, topic: str) -> set[tuple[str, str]]:
    """Return what became of a topic's segments in a run, and why."""
    segments = said(done)["report"]["segments"]
    return {(one["fate"], one["reason"]) for one in segments if one["log"] == f"{topic}-0"}


def goes_up_to_its_end(kafka: Kafka, topic: str) -> None:
    assert start_of(kafka, topic) == last_segment(kafka, topic)


@pytest.mark.again
def test_a_topic_that_is_set_back_and_one_that_grows_keep_no_other(lake: Path, tmp_path: Path) -> None:
    with running_kafka(tmp_path / "kafka", VERSION, SETTINGS) as kafka:
        make_topics(kafka.address, "orders", retention_ms=HOUR_MS, **small(VERSION))
        make_topics(kafka.address, "reverted", **REVERTED, **small(VERSION))
        make_topics(kafka.address, "sized", retention_bytes=150_000, **small(VERSION))
        until_held(kafka, lake)
        for topic in ("orders", "reverted"):
            old(kafka, topic, 0, 80)
        produce(kafka.address, "sized", values(0, SIZED), batch_num_messages=1)
        until_held(kafka, lake)
        said(command(kafka, lake, "archive", "--json"))
        # As much more as makes its retention.bytes be raised again, and less than it holds by now.
        produce(kafka.address, "sized", values(SIZED, 70), batch_num_messages=1)
        set_back(kafka)
        done = command(kafka, lake, "clean", "--json")
        assert ("kept", "not-held") in fates_of(done, "reverted")
        assert {fate for fate, _ in fates_of(done, "reverted")} == {"kept"}
        goes_up_to_its_end(kafka, "orders")
        assert ("deleted", "expired") in fates_of(done, "sized")
        until_held(kafka, lake)
        assert ("deleted", "expired") in fates_of(command(kafka, lake, "clean", "--json"), "reverted")


@contextmanager
def written_to(address: str, *topics: str) -> Iterator[dict[str, int]]:
    """Write to topics in turn until the block ends. Yields how many records of each are there by now."""
    stop, done = threading.Event(), dict.fromkeys(topics, SIZED)

    def write() -> None:
        for topic in itertools.cycle(topics):
            if stop.wait(1):
                return
            produce(address, topic, values(done[topic], 10), key=b"k", batch_num_messages=1)
            done[topic] += 10

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield done
        finally:
            stop.set()
    writing.result()


def _reaches(written: dict[str, int], topic: str, count: int) -> bool:
    return written[topic] >= count


def leave_without_leader(cluster: Cluster, topic: str) -> None:
    """Leave a topic of nodes 1 and 2 with the replica of node 1 alone, which lacks records."""
    cluster.stop((1,))
    wait_until(lambda: cluster.leader(topic) == 2, f"{topic} led by node 2")
    old(cluster.nodes[2], topic, 80, 10)
    cluster.nodes[2].kill()
    cluster.start((1,))
    wait_until(lambda: cluster.leader(topic) in (None, -1), f"{topic} without a leader")


@pytest.mark.again
@pytest.mark.timeout(1_800)
def test_beside_three_brokers_each_topic_is_released_on_time(cluster: Cluster, lake: Path) -> None:
    taken = {"orders": 0, "reverted": 80, "leaderless": 80}
    node = cluster.nodes[1]
    make_topics(node.address, "orders", replicas=3, retention_ms=HOUR_MS, **small(VERSION))
    make_topics(node.address, "reverted", replicas=3, **REVERTED, **small(VERSION))
    make_topics(node.address, "sized", replicas=3, retention_bytes=150_000, **small(VERSION))
    make_topics(node.address, "audit", replicas=3, cleanup_policy="compact", **small(VERSION))
    config = {"retention.ms": str(HOUR_MS), "min.insync.replicas": "1"}
    config |= {name.replace("_", "."): str(value) for name, value in small(VERSION).items()}
    admin = admin_of(node.address)
    topic = NewTopic("leaderless", 1, replica_assignment=[[1, 2]], config=config)
    admin.create_topics([topic])["leaderless"].result(SECONDS)
    until_held(node, lake)
    for topic in ("reverted", "leaderless"):
        old(node, topic, 0, 80)
    produce(node.address, "sized", values(0, SIZED), batch_num_messages=1)
    until_held(node, lake)
    said(command(node, lake, "archive", "--json"))
    leave_without_leader(cluster, "leaderless")
    cluster.wait_for_isr("orders", (1, 3))
    # Not faster than it has grown so far: nothing raises a size in time that is reached within moments.
    with written_to(cluster.nodes[3].address, "sized", "audit", "audit", "audit") as written:
        sized = -1
        for _ in range(rounds("STORAGE_ENGINE_HELD_LOGS", 1, 6)):
            old(node, "orders", taken["orders"], 60)
            taken["orders"] += 60
            wait_until(partial(_reaches, written, "sized", written["sized"] + 20), "more records")
            set_back(node)
            done = command(node, lake, "clean", "--json")
            assert {fate for fate, _ in fates_of(done, "reverted")} == {"kept"}
            assert ("kept", "not-held") in fates_of(done, "reverted")
            assert ("kept", "not-held") in fates_of(done, "leaderless")
            goes_up_to_its_end(node, "orders")
            sized, before = start_of(node, "sized"), sized
            assert sized > before
    for topic, count in {**taken, "sized": written["sized"]}.items():
        if topic == "leaderless":
            continue
        first, there, archived = start_of(node, topic), served(node.address, topic), in_lake(lake, topic)
        expected = dict(enumerate(values(0, count)))
        assert {at: (there if at >= first else archived).get(at) for at in expected} == expected
    # Once it is led again, it goes, too.
    cluster.start((2,))
    cluster.wait_for_isr("leaderless", (1, 2))
    until_held(node, lake)
    assert ("deleted", "expired") in fates_of(command(node, lake, "clean", "--json"), "leaderless")
