"""A slave begins with what the lake has of its master, and goes on with it, as docs/restore.md shows it."""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.exceptions import BrokerError
from tests.integration.broker import BROKER_CONF, Broker, running_broker, start_again
from tests.integration.jvm import write_properties
from tests.integration.live_store import SEGMENT_BYTES, SETTINGS, TOPIC, LiveLog, create_topic, send
from tests.services.command_line import Outcome, run_command

pytestmark = [pytest.mark.integration, pytest.mark.again]

KEPT = {**SETTINGS, "diskMaxUsedSpaceRatio": 95, "cleanFileForciblyEnable": False}
"""No broker deletes by itself, however full the disk of the tests is."""
NAME = "broker-of-a-slave"
SECONDS = 120


@dataclass
class Master:
    """A running master with some sealed segments, and a lake that has them."""

    broker: Broker
    log: LiveLog
    work: Path
    name_server_port: int

    @property
    def slave_settings(self) -> dict[str, object]:
        return {**KEPT, "brokerName": NAME, "brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": True}

    def archive(self) -> int:
        """Archive what is sealed, and return the offset behind it."""
        lake, store = self.work / "lake", self.broker.store
        if not lake.exists():
            run("init-lake", "--lake", lake)
        run("archive", store, "--lake", lake, "--broker", self.broker.client.address, "--allow-same-disk")
        return self.broker.client.runtime_info().commitlog_max_offset // SEGMENT_BYTES * SEGMENT_BYTES

    def restore(self, *words: object, code: int = 0) -> Outcome:
        """Restore for a slave of it."""
        conf = self.work / "slave.conf"
        name_server = f"127.0.0.1:{self.name_server_port}"
        write_properties(conf, {**BROKER_CONF, **self.slave_settings, "namesrvAddr": name_server})
        to = ("--to", self.work / "slave", "--for-store", conf)
        return run("restore", "--lake", self.work / "lake", *to, *words, code=code)


def run(*words: object, code: int = 0) -> Outcome:
    done = run_command(*map(str, words))
    assert done.exit_code == code, (words, done.out, done.err)
    return done


@pytest.fixture
def master(tmp_path: Path, name_server_port: int) -> Iterator[Master]:
    settings = {**KEPT, "brokerName": NAME}
    with running_broker(tmp_path / "master", tmp_path / "first", name_server_port, settings) as broker:
        create_topic(broker.client)
        log = LiveLog(broker)
        log.fill(6)
        yield Master(broker, log, tmp_path, name_server_port)


@contextmanager
def producing(broker: Broker) -> Iterator[None]:
    ends = threading.Event()

    def produce() -> None:
        while not ends.wait(0.02):
            # A broker on a busy machine refuses one now and then.
            with suppress(BrokerError):
                send(broker.client)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield
    finally:
        ends.set()
        producer.join()


def test_a_slave_from_the_lake_has_its_masters_log_byte_for_byte(master: Master) -> None:
    end = master.archive()
    with producing(master.broker):
        master.restore()
        assert sum(path.stat().st_size for path in (master.work / "slave" / "commitlog").iterdir()) == end
        with running_broker(
            master.work / "slave", master.work / "second", master.name_server_port, master.slave_settings
        ) as slave:
            wait_for_offset(slave, end + 4 * SEGMENT_BYTES)
    with running_broker(
        master.work / "slave", master.work / "second", master.name_server_port, master.slave_settings
    ) as slave:
        theirs = master.broker.client.runtime_info().commitlog_max_offset
        wait_for_offset(slave, theirs)
        messages = master.broker.client.max_offset(TOPIC, 0)
        assert messages > len(master.log.sent)
        served = slave.client.queue(TOPIC, 0, 0, messages)
        assert served == master.broker.client.queue(TOPIC, 0, 0, messages)
    whole = theirs // SEGMENT_BYTES
    assert whole > end // SEGMENT_BYTES + 3
    assert hashes(master.work / "slave", whole) == hashes(master.broker.store, whole)


def test_a_slave_is_refused_whose_master_begins_behind_what_is_archived(master: Master) -> None:
    end = master.archive()
    master.log.fill(4)
    master.log.others_clean()
    begins = master.broker.client.runtime_info().commitlog_min_offset
    assert begins >= end
    refused = master.restore(code=1)
    assert f"found that it begins at {begins}" in refused.err
    assert not (master.work / "slave").exists()
    # With more of it in the lake it may begin.
    master.log.fill(3)
    master.archive()
    master.restore("--from-offset", begins)
    with running_broker(
        master.work / "slave", master.work / "second", master.name_server_port, master.slave_settings
    ) as slave:
        wait_for_offset(slave, master.broker.client.runtime_info().commitlog_max_offset)


def test_a_slave_is_refused_whose_master_lost_what_is_archived_and_wrote_on(master: Master) -> None:
    end = master.archive()
    store = master.broker.store
    master.broker.client.close()
    master.broker.java.kill()
    # As a power cut leaves it that took the last two segments, and all that points into them.
    lost = end - 2 * SEGMENT_BYTES
    for path in (store / "commitlog").iterdir():
        if int(path.name) >= lost:
            path.unlink()
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    (store / "checkpoint").unlink()
    start_again(master.broker, master.work / "first", master.name_server_port)
    assert master.broker.client.runtime_info().commitlog_max_offset <= lost
    refused = master.restore(code=1)
    assert "found no message that begins at this offset" in refused.err
    LiveLog(master.broker).fill(6)
    refused = master.restore(code=1)
    assert "The master's log continues differently from the archived one" in refused.err
    assert not (master.work / "slave").exists()
    # What both have, the slave may begin with.
    master.restore("--to-offset", lost)
    with running_broker(
        master.work / "slave", master.work / "second", master.name_server_port, master.slave_settings
    ) as slave:
        theirs = master.broker.client.runtime_info().commitlog_max_offset
        wait_for_offset(slave, theirs)
    whole = theirs // SEGMENT_BYTES
    assert hashes(master.work / "slave", whole) == hashes(store, whole)


def test_a_slave_is_refused_whose_master_does_not_answer(master: Master) -> None:
    master.archive()
    master.broker.stop()
    refused = master.restore(code=1)
    assert "Nothing was written. Start the master first" in refused.err
    assert not (master.work / "slave").exists()


def wait_for_offset(broker: Broker, offset: int) -> None:
    deadline = time.monotonic() + SECONDS
    while (found := broker.client.runtime_info().commitlog_max_offset) < offset:
        assert time.monotonic() < deadline, (found, offset, broker.java.said())
        time.sleep(0.1)


def hashes(store: Path, count: int) -> list[str]:
    """Return the SHA-256 of the log's first segments."""
    paths = [store / "commitlog" / f"{i * SEGMENT_BYTES:020d}" for i in range(count)]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
