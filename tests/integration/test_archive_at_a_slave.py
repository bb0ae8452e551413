"""A slave's disk pays for archiving: it has its master's log. Nothing is held or released beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import javaproperties
import pytest

from tests.integration.broker import Broker, running_broker, start_again
from tests.integration.live_store import (
    EXPIRED_HOURS,
    FLUSH_SECONDS,
    SEGMENT_BYTES,
    SETTINGS,
    TOPIC,
    LiveLog,
    create_topic,
    send,
)
from tests.services.command_line import Outcome, run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.usefixtures("plainly")]

KEPT = {**SETTINGS, "diskMaxUsedSpaceRatio": 95, "cleanFileForciblyEnable": False}
"""No broker deletes by itself, however full the disk of the tests is."""
NAME = "broker-with-a-slave"
SECONDS = 240
UPDATE_CONSUMER_OFFSET, UPDATE_AND_CREATE_GROUP = 15, 200


@dataclass
class Pair:
    master: Broker
    slave: Broker
    lake: Path

    def run(self, broker: Broker, command: str, *words: object, code: int = 0) -> Outcome:
        of = (broker.store, "--lake", self.lake, "--broker", broker.client.address, "--allow-same-disk")
        return run(command, *of, *words, code=code)


def run(*words: object, code: int = 0) -> Outcome:
    done = run_command(*map(str, words))
    assert done.exit_code == code, (words, done.out, done.err)
    return done


@pytest.fixture(params=["ASYNC_MASTER", "SYNC_MASTER"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, name_server_port: int) -> Iterator[Pair]:
    name = f"{NAME}-{request.param}"
    settings = {**KEPT, "brokerName": name, "brokerRole": request.param}
    as_slave = {**settings, "brokerId": 1, "brokerRole": "SLAVE"}
    lake = tmp_path / "lake"
    run("init-lake", "--lake", lake)
    with (
        running_broker(tmp_path / "one", tmp_path / "first", name_server_port, settings) as master,
        running_broker(tmp_path / "two", tmp_path / "second", name_server_port, as_slave) as slave,
    ):
        create_topic(master.client)
        # A slave begins with the segment that is the last when it connects.
        send(master.client)
        wait_until_equal(master, slave)
        LiveLog(master).fill(5)
        wait_until_equal(master, slave)
        yield Pair(master, slave, lake)


def test_a_slave_s_log_is_archived_and_nothing_else_is_done_to_it(pair: Pair) -> None:
    before = files(pair.slave.store)
    archived = pair.run(pair.slave, "archive", "--json").json["archived"]
    log = LiveLog(pair.master)
    log.age()
    expected = {base: sha256 for base, sha256 in log.sha256.items() if base < 5 * SEGMENT_BYTES}
    assert {row["base_offset"]: row["sha256"] for row in archived} == expected
    assert len(archived) == 5
    for command in ("hold", "clean"):
        refused = pair.run(pair.slave, command, code=2)
        assert "expected a master, found a slave (brokerRole=SLAVE). Nothing was changed" in refused.err
    plan = pair.run(pair.slave, "plan", "--manual", "--json").json
    assert {row["reason"] for row in plan["decisions"]} == {"unknown"}
    assert "a slave cleans by its own rules" in plan["decisions"][0]["detail"]
    pair.run(pair.slave, "validate", "--full")
    pair.run(pair.slave, "verify")
    assert files(pair.slave.store) == before


def test_what_a_slave_archived_counts_for_its_master(pair: Pair) -> None:
    master = LiveLog(pair.master)
    pair.run(pair.slave, "archive")
    before = files(pair.slave.store)
    assert pair.run(pair.master, "archive", "--json").json["archived"] == []
    time.sleep(FLUSH_SECONDS)
    master.age()
    cleaned = pair.run(pair.master, "clean", "--manual", "--max-segments", 3, "--may-change-settings")
    assert min(master.names()) == 3 * SEGMENT_BYTES, cleaned.out
    assert files(pair.slave.store) == before
    # What it has released on that proof is no loss.
    pair.run(pair.master, "verify")


def test_lag_at_a_slave_is_by_its_master_s_word_or_as_old_as_it_says(pair: Pair) -> None:
    def lag(broker: Broker) -> Any:
        return run("lag", broker.store, "--broker", broker.client.address, "--json").json

    def committed(measured: Any) -> int | None:
        offsets = [row["committed_offset"] for row in measured["rows"] if row["group"] == "readers"]
        return offsets[0] if offsets else None

    def behind(row: Any) -> tuple[object, ...]:
        return tuple(row[key] for key in ("group", "max_offset", "lag_messages", "next_physical_offset"))

    # Brokers with light message queues keep positions there. A slave copies them once a minute.
    copy = pair.slave.store / "config" / "lmqConsumerOffset.json"
    pair.master.client.call(UPDATE_AND_CREATE_GROUP, body=b'{"groupName":"readers"}')
    commit(pair.master, 1)
    wait_until(lambda: copy.exists() and b"readers" in copy.read_bytes(), pair.slave)
    commit(pair.master, 2)
    at_slave = lag(pair.slave)
    assert committed(at_slave) == 2
    assert f"master {pair.master.client.address} says" in " ".join(at_slave["source"]["notices"])
    # What is at risk is by the times of each one's own files.
    assert [behind(row) for row in at_slave["rows"]] == [behind(row) for row in lag(pair.master)["rows"]]

    pair.master.client.close()
    pair.master.java.kill()
    without = lag(pair.slave)
    assert committed(without) in (1, 2)
    said = " ".join(without["source"]["notices"])
    assert "those that it wrote down" in said
    assert f"{pair.slave.client.address} is a slave, which only copies positions" in said
    assert without["source"]["positions"] == "files"


def test_a_stopped_slave_s_store_is_cleaned_and_it_goes_on_behind_its_master(pair: Pair) -> None:
    pair.run(pair.slave, "archive")
    pair.slave.stop()
    work = pair.slave.java.home.parent
    old = time.time() - EXPIRED_HOURS * 3600
    for base in range(0, 5 * SEGMENT_BYTES, SEGMENT_BYTES):
        os.utime(pair.slave.store / "commitlog" / f"{base:020d}", (old, old))
    before = set(files(pair.slave.store))
    stopped = (pair.slave.store, "--lake", pair.lake, "--broker-conf", work / "broker.conf")
    run("clean", *stopped, "--manual", "--max-segments", 3, "--time-zone", "UTC")
    gone = before - set(files(pair.slave.store))
    assert sorted(map(int, gone)) == [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES]

    name_servers = javaproperties.loads((work / "broker.conf").read_text())["namesrvAddr"]
    start_again(pair.slave, work, int(name_servers.rpartition(":")[2]))
    log = LiveLog(pair.master)
    log.fill(3)
    wait_until_equal(pair.master, pair.slave)
    assert pair.slave.client.runtime_info().commitlog_min_offset == 3 * SEGMENT_BYTES
    assert pair.master.client.runtime_info().commitlog_min_offset == 0
    sealed = range(3 * SEGMENT_BYTES, min(log.names()[-1], 8 * SEGMENT_BYTES), SEGMENT_BYTES)
    assert len(sealed) > 2
    for base in sealed:
        name = f"{base:020d}"
        ours, theirs = (one.store / "commitlog" / name for one in (pair.slave, pair.master))
        assert ours.read_bytes() == theirs.read_bytes(), name


def commit(broker: Broker, offset: int) -> None:
    """Let a group of consumers be so far in the topic's queue."""
    fields = {"consumerGroup": "readers", "topic": TOPIC, "queueId": 0, "commitOffset": offset}
    broker.client.call(UPDATE_CONSUMER_OFFSET, **fields)


def wait_until(ready: Callable[[], bool], broker: Broker) -> None:
    deadline = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < deadline, broker.java.said()
        time.sleep(0.1)


def files(store: Path) -> dict[str, tuple[int, int]]:
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in (store / "commitlog").iterdir()
        if int(path.name) < 5 * SEGMENT_BYTES
    }


def wait_until_equal(master: Broker, slave: Broker) -> None:
    def is_equal() -> bool:
        ends = [one.client.runtime_info().commitlog_max_offset for one in (slave, master)]
        return ends[0] >= ends[1]

    wait_until(is_equal, slave)
