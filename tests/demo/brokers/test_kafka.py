"""A node of Kafka of our own: it serves, stops cleanly, serves what it left, and nothing of it lives on."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from demo.brokers.jvm import HOST, free_ports
from demo.brokers.kafka import Kafka
from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.format.layout import read_node
from tests.integration.kafka_broker import (
    VERSIONS,
    admin_of,
    kafka_jars,
    make_topics,
    produce,
    running_kafka,
)
from tests.integration.kafka_cluster import wait_until
from tests.rounds import again_but


@pytest.mark.again
@pytest.mark.integration
@pytest.mark.parametrize("version", again_but(VERSIONS, VERSIONS[-1]))
def test_a_node_serves_what_it_left_when_it_was_stopped(version: str, tmp_path: Path) -> None:
    directories = f"{tmp_path}/a,{tmp_path}/b"
    with running_kafka(tmp_path, version, {"log.dirs": directories}) as kafka:
        make_topics(kafka.address, "orders", partitions=2)
        produce(kafka.address, "orders", [b"one", b"two"])
        kafka.stop()
        node = read_node(kafka.server_properties)
        assert [one.stopped_cleanly for one in node.directories] == [True, True]
        assert {log.name.log for _, log in node.logs} >= {"orders-0", "orders-1"}
        kafka.start()
        admin = admin_of(kafka.address)
        assert sorted(admin.list_topics(timeout=30).topics["orders"].partitions) == [0, 1]
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(one.info["cmdline"])]


@pytest.mark.again
@pytest.mark.integration
def test_a_node_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageEngineError, match=r"(?s)expected it to run on.*no\.such\.Authorizer"),
        running_kafka(tmp_path, settings={"authorizer.class.name": "no.such.Authorizer"}),
    ):
        pass


@pytest.mark.again
@pytest.mark.integration
def test_a_node_that_does_not_serve_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the two controllers that make a quorum the other one never comes.
    ports = free_ports(3)
    voters = f"1@{HOST}:{ports + 1},2@{HOST}:{ports + 2}"
    kafka = Kafka(tmp_path, kafka_jars(VERSIONS[-1]), {"controller.quorum.voters": voters}, first_port=ports)
    try:
        kafka.launch()
        wait_until(lambda: "Waiting for" in kafka.log.read_text(), "the node to wait")
        monkeypatch.setattr("demo.brokers.kafka._START_SECONDS", 0.0)
        with pytest.raises(StorageEngineError, match=r"(?s)to serve within 0 s, at load.*Waiting for"):
            kafka.wait_until_serving()
    finally:
        kafka.kill()
    assert "JNI global refs" in kafka.log.read_text()
