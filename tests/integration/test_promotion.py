"""A master dies and its slave takes its place: neither store is held or deleted by what was the other's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, GateRefusedError
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold import DriftKind
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import Acceptance
from storage_engine.retention.store.brokers import open_to_look
from storage_engine.retention.store.managed_store import ManagedStore
from tests.integration.broker import CLEANS_AT_ONCE, Broker, running_broker, start_again
from tests.integration.live_store import SETTINGS, LiveLog, create_topic
from tests.lakes import make_lakes

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cleans_at_once"), pytest.mark.again]

NAME = "broker-pair"
SECONDS = 120


@dataclass
class Pair:
    master: Broker
    slave: Broker
    log: LiveLog
    work: Path
    name_server_port: int

    def at(self, broker: Broker) -> ManagedStore:
        return self._managed(broker.store, LiveBroker(broker.client.address, allow_same_disk=True))

    def by_name(self, root: Path) -> ManagedStore:
        name_servers = f"127.0.0.1:{self.name_server_port}"
        live = LiveBroker(
            name_servers=name_servers, broker_name=NAME, may_change_settings=True, allow_same_disk=True
        )
        return self._managed(root, live)

    def _managed(self, root: Path, live: LiveBroker) -> ManagedStore:
        directory = self.work / f"managed-{root.name}"
        return make_lakes(ManagedStore.local("live", str(root), directory, time_zone="UTC", live=live))


@pytest.fixture
def pair(tmp_path: Path, name_server_port: int) -> Iterator[Pair]:
    settings = {**SETTINGS, "brokerName": NAME}
    with running_broker(
        tmp_path / "one", tmp_path / "first", name_server_port, settings, main_class=CLEANS_AT_ONCE
    ) as master:
        as_slave = {**settings, "brokerId": 1, "brokerRole": "SLAVE"}
        with running_broker(
            tmp_path / "two", tmp_path / "second", name_server_port, as_slave, main_class=CLEANS_AT_ONCE
        ) as slave:
            create_topic(master.client)
            log = LiveLog(master)
            log.fill(4)
            end, deadline = master.client.runtime_info().commitlog_max_offset, time.monotonic() + SECONDS
            while slave.client.runtime_info().commitlog_max_offset < end:
                assert time.monotonic() < deadline, slave.java.said()
                time.sleep(0.1)
            yield Pair(master, slave, log, tmp_path, name_server_port)


def test_a_slave_that_was_promoted_is_noticed_and_neither_store_is_touched(pair: Pair) -> None:
    with pytest.raises(BadInputError, match="found a slave"):
        steps.hold(pair.at(pair.slave))

    # The same bytes at the same offsets, and a lock of its own broker.
    with pytest.raises(BadInputError, match="it is a slave's"):
        steps.hold(pair.by_name(pair.slave.store))
    store = pair.by_name(pair.master.store)
    assert steps.hold(store).status.held
    assert steps.sense(store).alarms == ()

    pair.master.client.close()
    pair.master.java.kill()
    pair.slave.client.close()
    pair.slave.java.kill()
    change(pair.work / "second" / "broker.conf", "1", "0", "SLAVE", "ASYNC_MASTER")
    start_again(pair.slave, pair.work / "second", pair.name_server_port, main_class=CLEANS_AT_ONCE)
    before = {path: path.stat().st_mtime_ns for path in map(pair.log.path, pair.log.sha256)}
    # By name it is the slave that is asked now, which deletes by force as it always did.
    found = open_to_look(store).shield.end_force()
    assert found is not None
    assert found.kind is DriftKind.ROLE_CHANGED
    assert pair.slave.client.config()["cleanFileForciblyEnable"] == "true"
    with pytest.raises(BadInputError, match="a slave was promoted"):
        steps.sense(store)
    assert DriftKind.ROLE_CHANGED in recorded(store)
    assert not steps.hold(store).status.held
    with pytest.raises(GateRefusedError, match="a slave was promoted"):
        steps.make_plan(store, "plan", PlanRequest(manual=True))

    # The old master comes back as the new one's slave.
    change(pair.work / "first" / "broker.conf", "0", "1", "ASYNC_MASTER", "SLAVE")
    start_again(pair.master, pair.work / "first", pair.name_server_port, main_class=CLEANS_AT_ONCE)
    old = pair.at(pair.master)
    with pytest.raises(BadInputError, match="another broker is the master now"):
        steps.sense(old)
    assert not steps.hold(old).status.held
    assert {path: path.stat().st_mtime_ns for path in before} == before

    new = pair.by_name(pair.slave.store)
    assert steps.hold(new).status.held
    assert steps.sense(new).alarms == ()
    # What was set at the old master isn't put back at the new one.
    settings = pair.slave.client.config()
    # What the old master deletes, nobody can tell.
    with pytest.raises(GateRefusedError, match="--leave-unproven 1 "):
        steps.unmanage(store)
    left = steps.unmanage(store, acceptance=Acceptance(1, "a test", "it is no master")).status.notices
    assert any("put it back to true there" in notice for notice in left)
    assert pair.slave.client.config()["cleanFileForciblyEnable"] == settings["cleanFileForciblyEnable"]
    assert steps.sense(new).alarms == ()


def change(conf: Path, broker_id: str, new_id: str, role: str, new_role: str) -> None:
    text = conf.read_text().replace(f"brokerRole={role}", f"brokerRole={new_role}")
    conf.write_text(text.replace(f"brokerId={broker_id}", f"brokerId={new_id}"))


def recorded(store: ManagedStore) -> set[str]:
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    events = journal.store_events(record.store_id, Step.DRIFT, Phase.RESULT)
    return {event.payload["disturbance"]["kind"] for event in events}
