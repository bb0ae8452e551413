"""Every connection that a look or a step opens is closed once it is through, or has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_engine.cli.options.options import check_store
from storage_engine.exceptions import BadInputError, BrokerUnavailableError, StorageEngineError
from storage_engine.model.broker.broker_store import watch_of
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.store.brokers import open_store, open_to_look
from storage_engine.retention.store.context import open_context, opened
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.live import live_store, observe

MIB = 1 << 20
FIRST, SECOND = "10.0.0.1:10911", "10.0.0.2:10911"


class Brokers:
    """In the place of a broker's processes: counts who is connected to which of them."""

    def __init__(self) -> None:
        self.master = FIRST
        self.root = ""
        self.fails_to: set[str] = set()
        self.connected: list[str] = []
        self.asked = 0

    def reach(self, live: LiveBroker) -> Admin:
        return Admin(self, self.master)


class Admin:
    """In the place of a broker's: connects at the first request."""

    def __init__(self, brokers: Brokers, address: str) -> None:
        self._brokers, self.address, self._is_open = brokers, address, False

    def _ask(self, what: str) -> None:
        self._brokers.asked += 1
        if not self._is_open:
            self._is_open = True
            self._brokers.connected.append(self.address)
        if what in self._brokers.fails_to:
            raise BrokerUnavailableError(f"{self.address}: expected an answer, found none.")

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._brokers.connected.remove(self.address)

    def config(self) -> dict[str, str]:
        self._ask("config")
        return {"storePathRootDir": self._brokers.root, "brokerRole": "ASYNC_MASTER", "brokerName": "b"}

    def runtime_info(self) -> Any:
        self._ask("runtime_info")
        files = sorted(int(path.name) for path in Path(self._brokers.root, "commitlog").iterdir())
        return SimpleNamespace(
            boot_timestamp_ms=1,
            commitlog_min_offset=files[0],
            commitlog_max_offset=files[-1] + MIB,
            commitlog_used_percent={"/log": 10.0},
            consume_queue_used_percent=10.0,
            dispatch_behind_bytes=0,
        )


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    found = Brokers()
    monkeypatch.setattr(observe, "reach", found.reach)
    monkeypatch.setattr(live_store, "check_same_store", lambda *_: True)
    yield found
    assert found.asked
    assert found.connected == []


@pytest.fixture
def store(store_copy: Callable[[str], Path], tmp_path: Path, brokers: Brokers) -> ManagedStore:
    brokers.root = str(store_copy("clean-stop"))
    live = LiveBroker(address=FIRST, allow_same_disk=True)
    policy = Policy(archive=ArchiveMode.OFF)
    return ManagedStore.local(
        "s", brokers.root, tmp_path / "managed", time_zone="UTC", policy=policy, live=live
    )


def watched(store: ManagedStore) -> None:
    with closing(open_store(store)) as broker:
        watch_of(broker, 0)


LOOKS = {
    "preview": lambda store: preview(store, PlanRequest(manual=True, reason="a test")),
    "check": check_store,
    "watch": watched,
    "look": lambda store: closing(open_to_look(store)).__exit__(None, None, None),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("fails_to", ["", "config", "runtime_info"])
def test_a_look_leaves_no_connection(store: ManagedStore, brokers: Brokers, look: str, fails_to: str) -> None:
    brokers.fails_to = {fails_to}
    with suppress(BrokerUnavailableError):
        LOOKS[look](store)


def test_an_opening_that_fails_leaves_none(
    store: ManagedStore, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = replace(store, live=replace(store.live or LiveBroker(), broker_name="other"))
    with pytest.raises(BadInputError, match="expected broker 'other'"):
        open_store(another)
    refused = replace(store, live=replace(store.live or LiveBroker(), allow_same_disk=False))
    with pytest.raises(BadInputError, match="expected no files of Storage Engine on a disk"):
        open_context(refused)
    with pytest.raises(StorageEngineError, match="expected no files of Storage Engine"), opened(refused):
        pytest.fail("opened it")


def test_a_process_closes_what_its_steps_have_opened(store: ManagedStore, brokers: Brokers) -> None:
    with opened(store) as context:
        for _ in range(3):
            assert open_context(context).broker.snapshot(0).logs
            assert brokers.connected == [FIRST]


def test_a_master_that_moves_is_followed_by_one_connection(store: ManagedStore, brokers: Brokers) -> None:
    with opened(store) as context:
        open_context(context)
        for master in (SECOND, FIRST, SECOND):
            brokers.master = master
            for _ in range(2):
                assert open_context(context).broker.snapshot(0).logs
                assert brokers.connected == [master]


def test_who_has_looked_at_a_former_master_asks_no_other_one(store: ManagedStore, brokers: Brokers) -> None:
    with opened(store) as context:
        brokers.master = SECOND
        open_context(context)
        assert brokers.connected == [SECOND]
        assert context.broker.snapshot(0).logs
        assert brokers.connected == [SECOND, FIRST]


def test_where_no_master_is_known_the_session_keeps_the_one_that_was(
    store: ManagedStore, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(live: LiveBroker) -> Admin:
        raise BrokerUnavailableError("no name server answers.")

    with opened(store) as context:
        monkeypatch.setattr(observe, "reach", nobody)
        with pytest.raises(BrokerUnavailableError):
            open_context(context)
        assert context.broker.snapshot(0).logs


def test_a_store_that_is_opened_again_for_each_step_is_closed_each_time(
    store: ManagedStore, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a third party's is, whose stores can't be asked again."""
    monkeypatch.setattr(live_store.LiveStore, "renewed", lambda *_: None)
    with opened(store) as context:
        for _ in range(3):
            assert open_context(context).broker.snapshot(0).logs
