"""Two brokers of one name that are both its master: archived as ever, and nothing of them is deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.rocketmq.remoting.masters import NameServers
from tests.integration.broker import CLEANS_AT_ONCE, Broker, running_broker
from tests.integration.live_store import SEGMENT_BYTES, SETTINGS, LiveLog, create_topic
from tests.services.command_line import Outcome, run_command

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("cleans_at_once"),
    pytest.mark.again,
    pytest.mark.usefixtures("plainly"),
]

NAME = "broker-of-two-masters"
SECONDS = 120
KEPT = {
    **SETTINGS,
    "brokerName": NAME,
    "cleanFileForciblyEnable": False,
    "diskMaxUsedSpaceRatio": 95,
    # Of two masters a name server has the one that registered last: so it goes to and fro.
    "registerNameServerPeriod": 10_000,
}
REFUSED = "While two claim to be the master, it is unknown whose log goes on."


@dataclass
class Masters:
    """:param first: whose store is managed."""

    first: Broker
    second: Broker
    log: LiveLog
    work: Path
    name_server_port: int

    def run(self, command: str, *words: object, live: bool = True, code: int = 0) -> Outcome:
        where: tuple[object, ...] = (self.first.store, "--lake", self.work / "lake", "--time-zone", "UTC")
        if live:
            where += ("--broker", self.first.client.address, "--allow-same-disk")
        else:
            where += ("--broker-conf", self.work / "first" / "broker.conf")
        done = run_command(command, *where, *words)
        assert done.exit_code == code, (command, words, done.out, done.err)
        return done

    def end_second(self) -> None:
        self.second.client.close()
        self.second.java.kill()

    def wait_for_master(self, *addresses: str) -> None:
        """Until the name server has this one as the master; without one: until it has none."""
        deadline = time.monotonic() + SECONDS
        servers = NameServers(f"127.0.0.1:{self.name_server_port}")
        while True:
            members = servers.cluster_info().brokers.get(NAME)
            if (members.master if members else None) == (addresses[0] if addresses else None):
                return
            assert time.monotonic() < deadline, members
            time.sleep(0.05)


@pytest.fixture
def masters(tmp_path: Path, name_server_port: int) -> Iterator[Masters]:
    with (
        running_broker(
            tmp_path / "one", tmp_path / "first", name_server_port, KEPT, main_class=CLEANS_AT_ONCE
        ) as first,
        running_broker(tmp_path / "two", tmp_path / "second", name_server_port, KEPT) as second,
    ):
        create_topic(first.client)
        log = LiveLog(first)
        log.fill(6)
        assert run_command("init-lake", "--lake", tmp_path / "lake").exit_code == 0
        yield Masters(first, second, log, tmp_path, name_server_port)


def test_nothing_is_released_beside_a_second_master_until_it_ends(masters: Masters) -> None:
    log, before = masters.log, masters.log.names()
    assert len(masters.run("archive", "--json").json["archived"]) == 6
    masters.wait_for_master(masters.second.client.address)
    said = masters.run("hold").out
    assert "nothing is deleted through this broker: expected one master" in " ".join(said.split()), said
    # Whichever the name server has by now: whom an earlier look has seen is asked itself.
    masters.wait_for_master(masters.first.client.address)
    clean = ("clean", "--manual", "--max-segments", 3)
    refused = masters.run(*clean, code=1)
    assert REFUSED in refused.err
    assert f"{masters.second.client.address} says that it is the master" in refused.err
    assert log.names() == before

    masters.end_second()
    masters.wait_for_master(masters.first.client.address)
    masters.run(*clean)
    assert log.names() == before[3:]
    assert min(log.names()) == 3 * SEGMENT_BYTES


def test_nothing_of_a_stopped_master_goes_while_another_is_the_master(masters: Masters) -> None:
    masters.first.stop()
    log, before = masters.log, masters.log.names()
    masters.wait_for_master(masters.second.client.address)
    refused = masters.run("clean", "--manual", "--max-segments", 3, live=False, code=1)
    assert REFUSED in refused.err
    # What was planned, the clean has archived.
    assert len(masters.run("archive", "--json", live=False).json["archived"]) == 3
    assert log.names() == before

    masters.end_second()
    masters.wait_for_master()
    masters.run("clean", "--manual", "--max-segments", 3, live=False)
    assert log.names() == before[3:]
