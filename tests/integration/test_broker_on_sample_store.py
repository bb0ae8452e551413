"""A real broker on a sample store: it serves every message of every queue, and knows its groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.model.broker.kind import SampleRequest
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import resolve_layout
from storage_engine.rocketmq.lag.consumer_offsets import consumer_offsets
from storage_engine.rocketmq.sample.writing import sample_settings, write_sample
from tests.integration.broker import running_broker

pytestmark = [pytest.mark.integration, pytest.mark.again]

SEGMENT_BYTES = 1 << 20
END_MS = 1_795_000_000_000
QUERY_CONSUMER_OFFSET = 14


def test_a_broker_serves_a_sample_store(tmp_path: Path, name_server_port: int) -> None:
    written = write_sample(SampleRequest(tmp_path / "sample", 3000, 3, 5, 1, END_MS, SEGMENT_BYTES))
    root = Path(written.store)
    frames: dict[tuple[str, int], dict[int, bytes]] = {}
    keys: dict[tuple[str, str], int] = {}
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()[: written.log_bytes - int(path.name)]
        for table, _ in CODEC.decode(memoryview(data), int(path.name)):
            for row in table.to_pylist():
                if row["kind"] == "message":
                    at = row["physical_offset"] - int(path.name)
                    queue = frames.setdefault((row["topic"], row["queue_id"]), {})
                    queue[row["queue_offset"]] = data[at : at + row["size"]]
                    key = row["keys"]
                    if key and key.startswith("SPC-") and row["topic"] in ("orders", "payments"):
                        keys[row["topic"], key] = keys.get((row["topic"], key), 0) + 1
    layout = resolve_layout(load_broker_config(Path(written.configuration), root=root))
    offsets = consumer_offsets(layout).to_pylist()
    overrides = {
        key: value
        for key, value in sample_settings(root, SEGMENT_BYTES).items()
        if not key.startswith("storePath")
    }
    with running_broker(root, tmp_path, name_server_port, overrides) as broker:
        delivered = 0
        for (topic, queue_id), expected in sorted(frames.items()):
            assert broker.client.queue(topic, queue_id, 0, len(expected)) == expected
            delivered += broker.client.max_offset(topic, queue_id) - len(expected)
        # Delayed messages that were pending are due long since.
        assert 0 <= delivered <= written.pending
        assert keys
        for (topic, key), count in list(keys.items())[:20]:
            assert len(broker.client.query(topic, key)) == count
        for row in offsets:
            if row["topic"].startswith("RMQ_SYS"):
                continue
            answer = broker.client.call(
                QUERY_CONSUMER_OFFSET,
                consumerGroup=row["group"],
                topic=row["topic"],
                queueId=row["queue_id"],
            )
            assert int(answer.fields["offset"]) == row["committed_offset"]
        broker.stop()
