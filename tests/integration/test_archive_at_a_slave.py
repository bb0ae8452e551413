"""A slave's disk pays for archiving: it has its master's log. Nothing else is done beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.broker import Broker, running_broker
from tests.integration.live_store import FLUSH_SECONDS, SEGMENT_BYTES, SETTINGS, LiveLog, create_topic, send
from tests.services.command_line import Outcome, run_command

pytestmark = [pytest.mark.integration, pytest.mark.again]

KEPT = {**SETTINGS, "diskMaxUsedSpaceRatio": 95, "cleanFileForciblyEnable": False}
"""No broker deletes by itself, however full the disk of the tests is."""
NAME = "broker-with-a-slave"
SECONDS = 120


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
    for command in ("hold", "plan", "clean"):
        refused = pair.run(pair.slave, command, code=2)
        assert "expected a master, found a slave (brokerRole=SLAVE). Nothing was changed" in refused.err
    assert "found a slave" in run("lag", pair.slave.store, "--broker", pair.slave.client.address, code=2).err
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


def files(store: Path) -> dict[str, tuple[int, int]]:
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in (store / "commitlog").iterdir()
        if int(path.name) < 5 * SEGMENT_BYTES
    }


def wait_until_equal(master: Broker, slave: Broker) -> None:
    deadline = time.monotonic() + SECONDS
    while (
        slave.client.runtime_info().commitlog_max_offset < master.client.runtime_info().commitlog_max_offset
    ):
        assert time.monotonic() < deadline, slave.java.said()
        time.sleep(0.1)
