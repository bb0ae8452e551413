"""A pair whose roles a controller decides: what it may have cut off is neither archived nor deleted."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.exceptions import BrokerError
from storage_engine.rocketmq.remoting.masters import NameServers
from tests.integration.broker import CONTROLLED, Broker, controller, running_broker, start_again
from tests.integration.live_store import SEGMENT_BYTES, SETTINGS, create_topic, send
from tests.services.command_line import Outcome, run_command

pytestmark = [pytest.mark.integration, pytest.mark.again]

KEPT = {**SETTINGS, "diskMaxUsedSpaceRatio": 95, "cleanFileForciblyEnable": False}
"""No broker deletes by itself, however full the disk of the tests is."""
NAME = "broker-of-a-controller"
SECONDS = 180
FLUSHED_MS = 3000
"""A checkpoint is flushed so often here."""


def run(*words: object, code: int = 0) -> Outcome:
    done = run_command(*map(str, words))
    assert done.exit_code == code, (words, done.out, done.err)
    return done


@dataclass
class Pair:
    """The master as it is first, the slave, and a lake."""

    first: Broker
    second: Broker
    work: Path
    name_server_port: int

    def archive(self, broker: Broker, *words: object, code: int = 0) -> Outcome:
        lake = self.work / "lake"
        if not lake.exists():
            run("init-lake", "--lake", lake)
        of = (broker.store, "--lake", lake, "--broker", broker.client.address)
        return run("archive", *of, "--allow-same-disk", "--json", *words, code=code)

    def master(self) -> str:
        members = NameServers(f"127.0.0.1:{self.name_server_port}").broker(NAME)
        return members.master or ""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with controller(tmp_path) as (port, peer):
        settings: Mapping[str, object] = {
            **KEPT,
            "brokerName": NAME,
            **CONTROLLED,
            "controllerAddr": f"127.0.0.1:{peer}",
            "flushConsumeQueueThoroughInterval": FLUSHED_MS,
            "controllerHeartBeatTimeoutMills": 3000,
            # One that doesn't answer stays in sync, so that it may become the master.
            "haMaxTimeSlaveNotCatchup": 600_000,
            "haSendHeartbeatInterval": 1000,
            "haHousekeepingInterval": 600_000,
        }
        with running_broker(tmp_path / "one", tmp_path / "first", port, settings) as first:
            wait_until(lambda: first.client.config()["brokerRole"] != "SLAVE", first)
            create_topic(first.client)
            with running_broker(tmp_path / "two", tmp_path / "second", port, settings) as second:
                fill(first, 4)
                end = first.client.runtime_info().commitlog_max_offset
                wait_until(lambda: first.client.confirmed_offset() == end, second)
                wait_until(lambda: second.client.runtime_info().commitlog_max_offset == end, second)
                yield Pair(first, second, tmp_path, port)


def test_what_a_promotion_cuts_off_was_neither_archived_nor_deleted(pair: Pair) -> None:
    first, second = pair.first, pair.second
    confirmed = first.client.runtime_info().commitlog_max_offset
    # One more of both flushes the checkpoint, of which no number counts.
    time.sleep(2 * FLUSHED_MS / 1000)
    at_slave = pair.archive(second).json
    assert at_slave["archived"] == []
    assert "Archive beside the master" in at_slave["kept_out"][0]["why"]
    second.java.process.send_signal(signal.SIGSTOP)
    fill(first, 4)
    sure = range(0, confirmed // SEGMENT_BYTES * SEGMENT_BYTES, SEGMENT_BYTES)
    found = pair.archive(first).json
    assert [row["base_offset"] for row in found["archived"]] == list(sure)
    (kept,) = found["kept_out"]
    assert (kept["segments"], kept["first_offset"]) == (4, sure.stop)
    assert f"all replicas in sync have the log up to {confirmed}" in kept["why"]

    # By the files alone, once the master is gone, nobody can tell what all have.
    first.client.close()
    first.java.kill()
    conf = pair.work / "first" / "broker.conf"
    stopped = (first.store, "--lake", pair.work / "lake", "--broker-conf", conf)
    alone = run("archive", *stopped, "--json").json
    assert alone["archived"] == []
    assert "Archive beside the master" in alone["kept_out"][0]["why"]
    decisions = run("plan", *stopped, "--manual", "--json").json["decisions"]
    reasons = [row["reason"] for row in decisions]
    assert reasons[:-2] == ["not-replicated"] * (len(sure) + 4), reasons

    lost = hashes(first.store)
    second.java.process.send_signal(signal.SIGCONT)
    wait_until(lambda: second.client.config()["brokerRole"] != "SLAVE", second)
    create_topic(second.client)
    fill(second, 6)
    start_again(first, pair.work / "first", pair.name_server_port)
    end = second.client.runtime_info().commitlog_max_offset
    wait_until(lambda: first.client.runtime_info().commitlog_max_offset == end, first)
    assert first.client.config()["brokerRole"] == "SLAVE"
    ours, theirs = hashes(first.store), hashes(second.store)
    whole = range(0, end // SEGMENT_BYTES * SEGMENT_BYTES, SEGMENT_BYTES)
    assert [ours[base] for base in whole] == [theirs[base] for base in whole]
    wait_until(lambda: second.client.confirmed_offset() == end, second)
    # What the former master archived counts for the new one, and what it wrote itself is its own.
    own = pair.archive(second).json["archived"]
    assert [row["base_offset"] for row in own] == [base for base in whole if base >= sure.stop]
    for store_id in {found["archived"][0]["store_id"], own[0]["store_id"]}:
        back = pair.work / f"back-{store_id}"
        run("restore", "--lake", pair.work / "lake", "--to", back, "--store-id", store_id)
        assert hashes(back) == {base: ours[base] for base in whole}
    # What was in the lake stayed as it was, and what was not became another.
    assert next(base for base in whole if base in lost and lost[base] != ours[base]) == sure.stop


def hashes(store: Path) -> dict[int, str]:
    """Return the SHA-256 of each file of a log, by its base offset."""
    return {
        int(path.name): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (store / "commitlog").iterdir()
    }


def fill(broker: Broker, segments: int) -> None:
    """Send until so many more segments are sealed."""
    last = broker.client.runtime_info().commitlog_max_offset // SEGMENT_BYTES + segments
    while broker.client.runtime_info().commitlog_max_offset // SEGMENT_BYTES < last:
        send(broker.client)


def wait_until(ready: Callable[[], bool], broker: Broker) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            if ready():
                return
        except BrokerError:
            pass
        assert time.monotonic() < deadline, broker.java.said()
        time.sleep(0.2)
