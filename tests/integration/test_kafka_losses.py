"""What a real broker's owner deletes, and makes again, is no loss; what somebody removes is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_engine.lake.move.making import make_lake
from storage_engine.model.broker.live import LiveBroker
from storage_engine.retention.monitor.monitoring import monitor
from storage_engine.retention.store.managed_store import ManagedStore
from tests.integration.kafka_broker import SECONDS, VERSIONS, admin_of, make_topics, produce, running_kafka
from tests.integration.kafka_cluster import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.again]

RECORD = b"x" * 1000


def gone(store: ManagedStore) -> list[str]:
    return [one for one in monitor(store, "look").alarms if one.startswith("segment-gone")]


def test_a_deleted_topic_is_no_loss_and_a_removed_log_is(tmp_path: Path) -> None:
    with running_kafka(tmp_path / "kafka", VERSIONS[-1], {"file.delete.delay.ms": 0}) as kafka:
        root, logs = str(kafka.server_properties), Path(kafka.server_properties).parent / "data"
        stopped = ManagedStore.local("node", root, tmp_path, broker="kafka", named=True)
        live = LiveBroker(kafka.address, allow_same_disk=True)
        running = ManagedStore.local("node", root, tmp_path, broker="kafka", live=live, named=True)
        make_lake(stopped.lake, "kafka")
        make_topics(kafka.address, "again", "stays", retention_ms=-1)
        for topic in ("again", "stays"):
            produce(kafka.address, topic, [RECORD] * 10)
        assert gone(running) == []
        admin = admin_of(kafka.address)
        for done in admin.delete_topics(["again"]).values():
            done.result(SECONDS)
        wait_until(lambda: not (logs / "again-0").exists(), "its directory is renamed")
        assert gone(running) == []
        make_topics(kafka.address, "again", retention_ms=-1)
        produce(kafka.address, "again", [RECORD] * 30)
        assert gone(running) == []
        kafka.stop()
        assert gone(stopped) == []
        shutil.rmtree(logs / "stays-0")
        (alarm,) = gone(stopped)
        assert alarm.endswith("stays-0 [0, 10) is LOST.")
