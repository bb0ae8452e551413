"""A real broker on a store that the engine wrote, and the engine on what the broker added."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.soundness.receipts import receipt_history
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus, host_bytes
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.engine.serving import serving
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import resolve_layout
from storage_engine.rocketmq.inspect import look_up
from storage_engine.rocketmq.restored_store import QUEUE_COLUMNS, config_files, merge_queues, queues_of
from tests.integration.broker import FIXTURE_SIZES, Broker, running_broker
from tests.rocketmq.engine.scenarios import read_log
from tests.services.command_line import run_command

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("plainly")]

PHYSICAL_OFFSET_AT = 28
SEND_MESSAGE = 10
HOST = host_bytes("127.0.0.1", 10911)


SIZES = {key: str(value) for key, value in FIXTURE_SIZES.items() if key != "mappedFileSizeTimerLog"}
Frames = dict[tuple[str, int, int], bytes]
"""By topic, queue and queue offset."""


def give_config(root: Path) -> Frames:
    """Give a store the config files that a broker serves it by; return its messages."""
    frames, queues = {}, []
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        for table, _ in CODEC.decode(data, int(path.name)):
            queues.append(queues_of(table.select(list(QUEUE_COLUMNS))))
            for row in table.to_pylist():
                at = row["physical_offset"] - int(path.name)
                if row["kind"] == "message":
                    key = (row["topic"], row["queue_id"], row["queue_offset"])
                    frames[key] = data[at : at + row["size"]]
    for name, content in config_files(merge_queues(pa.concat_tables(queues))).items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content)
    return frames


def check_served(broker: Broker, frames: Frames) -> None:
    """Have a broker serve each message of each queue."""
    for topic, queue_id in sorted({(topic, queue_id) for topic, queue_id, _ in frames}):
        expected = {o: frame for (t, q, o), frame in frames.items() if (t, q) == (topic, queue_id)}
        first = min(expected)
        assert broker.client.queue(topic, queue_id, first, first + len(expected)) == expected
        assert broker.client.max_offset(topic, queue_id) == first + len(expected)


def send(broker: Broker) -> int:
    """Have a broker store a message of topic0, and return its queue offset."""
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
    return int(sent.fields["queueOffset"])


def fill(store: MessageStore) -> None:
    for i in range(900):
        properties = b"KEYS\x01key%d\x02TAGS\x01t%d\x02" % (i, i % 5)
        message = NewMessage(f"topic{i % 3}", b"%d" % i * 700, properties, i % 2, 0, 0, 1, HOST, HOST)
        assert store.put(message).status is PutStatus.PUT_OK


@pytest.mark.again
@pytest.mark.parametrize("killed", [False, True])
def test_a_broker_serves_what_the_engine_wrote_and_goes_on(
    killed: bool, tmp_path: Path, name_server_port: int
) -> None:
    root = tmp_path / "store"
    settings = dict(SIZES)
    config = load_broker_config(None, settings, root=root)
    with open_store(config) as store:
        fill(store)
        end = store.positions().wrote
    if killed:
        (root / "abort").touch()
    frames = give_config(root)

    with running_broker(root, tmp_path, name_server_port) as broker:
        check_served(broker, frames)
        for i in range(0, 900, 50):
            found = broker.client.query(f"topic{i % 3}", f"key{i}")
            assert [hashlib.sha256(frame).hexdigest() for frame in found] == [
                hashlib.sha256(frames[f"topic{i % 3}", i % 2, i // 6]).hexdigest()
            ]
        assert send(broker) == 150
        broker.stop()

    with open_store(config) as store:
        assert store.recovered.offset > end
        added = store.put(NewMessage("topic0", b"of the engine", b"KEYS\x01ours\x02", 0, 0, 0, 1, HOST, HOST))
        assert added.queue_offset == 151
        (offset,) = look_up(resolve_layout(config), config, "topic0", "added").offsets
        held = read_log(store, offset, 200)
        assert held is not None
        assert b"of the broker" in bytes(held.data)
        assert struct.unpack_from(">q", held.data, PHYSICAL_OFFSET_AT)[0] == offset
        held.release()


@pytest.mark.again
def test_a_torn_store_that_was_recovered_here_opens_in_a_broker(
    tmp_path: Path, name_server_port: int
) -> None:
    root = tmp_path / "store"
    settings = dict(SIZES)
    with open_store(load_broker_config(None, settings, root=root)) as store:
        fill(store)
        last = store.put(NewMessage("topic0", b"torn" * 900, b"KEYS\x01torn\x02", 0, 0, 0, 1, HOST, HOST))
        assert store.wait_until_dispatched()
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    log = max((root / "commitlog").iterdir())
    with log.open("r+b") as file:
        # Its second half was not written, and what lay behind it in memory was.
        at = last.physical_offset - int(log.name) + last.size_bytes // 2
        file.seek(at)
        file.write(bytes(last.size_bytes // 2) + b"left over" * 50)
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    recovered = run_command("recover", root, *options, "--json")
    assert recovered.exit_code == 0, recovered.err
    assert recovered.json["log_end"] == last.physical_offset
    frames = give_config(root)
    assert len(frames) == 900
    with running_broker(root, tmp_path, name_server_port) as broker:
        check_served(broker, frames)
        assert not broker.client.query("topic0", "torn")
        assert [len(broker.client.query(f"topic{i % 3}", f"key{i}")) for i in (0, 450, 899)] == [1, 1, 1]
        assert send(broker) == 150
        broker.stop()


@pytest.mark.again
def test_name_and_receipts_stay_when_a_broker_takes_a_store_over_and_gives_it_back(
    tmp_path: Path, name_server_port: int
) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    settings = dict(SIZES)
    config = load_broker_config(None, settings, root=root)
    assert run_command("init-lake", "--lake", lake).exit_code == 0
    options = [
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
        *("--set", "fileReservedTime=0", "--set", f"deleteWhen={';'.join(map(str, range(24)))}"),
        *("--lake", lake, "--name", "orders", "--time-zone", "UTC"),
    ]
    with open_store(config) as store, serving(store):
        fill(store)
        # What isn't on disk yet isn't sealed for who cleans up.
        store.flush()
        cleaned = run_command("clean", root, "--engine", *options)
        assert cleaned.exit_code == 0, cleaned.err
        first = store.files.min_offset
        assert first > 0
        assert store.put(NewMessage("topic0", b"goes on", b"", 0, 0, 0, 1, HOST, HOST)).queue_offset == 150
    stamp = (root / ".storage-engine" / "stamp.json").read_bytes()
    frames = give_config(root)
    journal = Journal(f"sqlite:///{lake / 'journal.db'}")
    (known,) = journal.all_stores()
    with running_broker(root, tmp_path, name_server_port) as broker:
        check_served(broker, frames)
        assert send(broker) == 151
        live = ("--broker", broker.client.address, "--allow-same-disk", "--lake", lake, "--name", "orders")
        archived = run_command("archive", root, *live)
        assert archived.exit_code == 0, archived.err
        broker.stop()
    with open_store(config) as store, serving(store):
        assert store.put(NewMessage("topic0", b"again", b"", 0, 0, 0, 1, HOST, HOST)).queue_offset == 152
        cleaned = run_command("clean", root, "--engine", *options)
        assert cleaned.exit_code == 0, cleaned.err
        assert store.files.min_offset >= first
    assert list(journal.all_stores()) == [known]
    assert (root / ".storage-engine" / "stamp.json").read_bytes() == stamp
    receipts = receipt_history(open_lake(LakeConfig.local(lake)), known.store_id)
    assert {(one.broker, one.store_id) for one in receipts} == {("rocketmq", known.store_id)}
    assert run_command("verify", root, *options).exit_code == 0
