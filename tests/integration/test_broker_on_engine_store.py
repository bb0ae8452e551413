"""A real broker on a store that the engine wrote, and the engine on what the broker added."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from storage_engine.rocketmq.broker_config import load_broker_config
from storage_engine.rocketmq.codec import CODEC
from storage_engine.rocketmq.engine.message_store import open_store
from storage_engine.rocketmq.engine.new_message import NewMessage, PutStatus, host_bytes
from storage_engine.rocketmq.index_file import lookup
from storage_engine.rocketmq.layout import resolve_layout
from storage_engine.rocketmq.restored_config import COLUMNS, config_files, merge_queues, queues_of
from tests.integration.broker import FIXTURE_SIZES, running_broker

pytestmark = pytest.mark.integration

PHYSICAL_OFFSET_AT = 28
SEND_MESSAGE = 10
HOST = host_bytes("127.0.0.1", 10911)


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.again)])
def test_a_broker_serves_what_the_engine_wrote_and_goes_on(
    killed: bool, tmp_path: Path, name_server_port: int
) -> None:
    root = tmp_path / "store"
    settings = {key: str(value) for key, value in FIXTURE_SIZES.items()}
    config = load_broker_config(None, settings, root=root)
    with open_store(config) as store:
        for i in range(900):
            properties = b"KEYS\x01key%d\x02TAGS\x01t%d\x02" % (i, i % 5)
            message = NewMessage(f"topic{i % 3}", b"%d" % i * 700, properties, i % 2, 0, 0, 1, HOST, HOST)
            assert store.put(message).status is PutStatus.PUT_OK
        end = store.positions().wrote
    if killed:
        (root / "abort").touch()
    frames, queues = {}, []
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        for table, _ in CODEC.decode(data, int(path.name)):
            queues.append(queues_of(table.select(list(COLUMNS))))
            for row in table.to_pylist():
                at = row["physical_offset"] - int(path.name)
                if row["kind"] == "message":
                    key = (row["topic"], row["queue_id"], row["queue_offset"])
                    frames[key] = data[at : at + row["size"]]
    for name, content in config_files(merge_queues(pa.concat_tables(queues))).items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content)

    with running_broker(root, tmp_path, name_server_port) as broker:
        for topic, queue_id in sorted({(topic, queue_id) for topic, queue_id, _ in frames}):
            expected = {o: frame for (t, q, o), frame in frames.items() if (t, q) == (topic, queue_id)}
            assert broker.client.queue(topic, queue_id, 0, len(expected)) == expected
            assert broker.client.max_offset(topic, queue_id) == len(expected)
        for i in range(0, 900, 50):
            found = broker.client.query(f"topic{i % 3}", f"key{i}")
            assert [hashlib.sha256(frame).hexdigest() for frame in found] == [
                hashlib.sha256(frames[f"topic{i % 3}", i % 2, i // 6]).hexdigest()
            ]
        sent = broker.client.call(
            SEND_MESSAGE,
            body=b"of the broker",
            producerGroup="test",
            topic="topic0",
            defaultTopic="TBW102",
            defaultTopicQueueNums=4,
            queueId=0,
            sysFlag=0,
            bornTimestamp=1,
            flag=0,
            properties="KEYS\x01added\x02",
            reconsumeTimes=0,
        )
        assert sent.fields["queueOffset"] == "150"
        broker.stop()

    with open_store(config) as store:
        assert store.recovered.offset > end
        added = store.put(NewMessage("topic0", b"of the engine", b"KEYS\x01ours\x02", 0, 0, 0, 1, HOST, HOST))
        assert added.queue_offset == 151
        (offset,) = lookup(resolve_layout(config), "topic0", "added", config=config)
        held = store.read(offset, 200)
        assert held is not None
        assert b"of the broker" in bytes(held.data)
        assert struct.unpack_from(">q", held.data, PHYSICAL_OFFSET_AT)[0] == offset
        held.release()
