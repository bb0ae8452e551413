"""A store's connection that names a connection of the type kafka: its extra is the client's settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_engine.hooks.storage_engine import StorageEngineHook
from tests.integration.kafka_broker import make_topics, running_kafka

pytestmark = [pytest.mark.integration, pytest.mark.again]


def test_the_test_button_asks_the_cluster_that_the_named_connection_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_kafka(tmp_path / "node") as kafka:
        make_topics(kafka.address, "orders")
        fields = {
            "root": str(kafka.server_properties),
            "broker_type": "kafka",
            "mode": "live",
            "broker_conn_id": "cluster",
            "lake": str(tmp_path / "lake"),
            "journal_url": f"sqlite:///{tmp_path}/journal.db",
            "policy": json.dumps({"archive": "off"}),
            "broker_settings": json.dumps({"allow_same_disk": True}),
        }
        monkeypatch.setenv("AIRFLOW_CONN_NODE", json.dumps({"conn_type": "storage_engine", "extra": fields}))
        extra = {"bootstrap.servers": kafka.address, "group.id": "of-a-consumer", "error_cb": "a.function"}
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "kafka", "extra": extra}))
        works, said = StorageEngineHook("node").test_connection()
        assert works, said
        assert said.startswith("Cluster ")
        assert f"of 1 broker at {kafka.address}" in said
        # The active segments of the topic and of what the cluster has of its own aren't sealed.
        assert "Store: 1 segments, 0 of them sealed" in said
        kafka.kill()
        monkeypatch.setattr("storage_engine.kafka.cluster.client.TIMEOUT_SECONDS", 2.0)
        works, said = StorageEngineHook("node").test_connection()
        assert not works
        assert f"{kafka.address}: asked for its brokers and its controller, expected an answer" in said
