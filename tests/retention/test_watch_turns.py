"""Which watch a store has: the first until it ends or hangs, and one that knows the broker for its shield."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.settings.policy import Policy, ShieldMode
from storage_engine.retention import shield
from storage_engine.retention.monitor import store_watch
from storage_engine.retention.monitor.store_watch import HostWatch
from storage_engine.retention.shield import ShieldResult
from storage_engine.retention.store import context
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.hold import heartbeat
from storage_engine.rocketmq.hold.heartbeat import NAME, is_shield_tended, no_watch
from storage_engine.shield.index import shield_path
from tests.retention.watched_stores import SECONDS, Said, held, host_watch, is_mended, root_of, touch, until

FIRST_WATCH = """
import sys, time
from pathlib import Path
from storage_engine.model.hold import WatchLook
from storage_engine.rocketmq.hold.heartbeat import watching

with watching(Path(sys.argv[1])) as own:
    while True:
        own.beat(WatchLook(time.time_ns() // 10**6))
        time.sleep(0.1)
"""

NO_BROKER = LiveBroker(address="127.0.0.1:1")


@pytest.fixture(autouse=True)
def is_alive_though_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 2.0 * SECONDS)


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def host(said: Said) -> Iterator[HostWatch]:
    with host_watch(said) as watch:
        yield watch


@pytest.fixture
def store(tmp_path: Path) -> ManagedStore:
    return held(tmp_path, "one")


def test_a_second_watch_takes_over_when_the_first_ends(
    store: ManagedStore, host: HostWatch, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "_STAND_BY_SECONDS", 0.1)
    first = HostWatch(lambda line: None)
    first.add(store)
    until(lambda: no_watch(root_of(store)) == "")
    told: list[object] = []
    monkeypatch.setattr(host, "_alarmed", lambda _store, problems, _mended: told.append(problems))
    host.add(store)
    until(lambda: said.has("another process watches the store"))
    assert set(told) == {None}
    first.end()
    until(lambda: no_watch(root_of(store)) == "")
    touch(store)
    until(lambda: is_mended(store))


def test_a_second_watch_mends_while_the_first_hangs(
    store: ManagedStore, host: HostWatch, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "_STAND_BY_SECONDS", 0.1)
    first = subprocess.Popen([sys.executable, "-c", FIRST_WATCH, store.root])
    try:
        until(lambda: no_watch(root_of(store)) == "")
        host.add(store)
        until(lambda: said.has("this process takes over when the other ends"))
        first.send_signal(signal.SIGSTOP)
        touch(store)
        monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0.5)
        until(lambda: is_mended(store))
        until(lambda: said.has(f"(process {first.pid} on "))
        assert said.has("was killed or hangs")
    finally:
        first.kill()
        first.wait()
    until(lambda: said.has("watching"))


def test_a_watch_that_can_not_show_its_life_mends(
    store: ManagedStore, host: HostWatch, said: Said, tmp_path: Path
) -> None:
    (root_of(store) / DIRECTORY / NAME).mkdir()
    host.add(store)
    until(lambda: said.has("Is a directory"))
    touch(store)
    until(lambda: is_mended(store))


def test_a_store_is_watched_until_all_who_wanted_it_have_left(store: ManagedStore, host: HostWatch) -> None:
    host.add(store)
    host.add(store)
    until(lambda: no_watch(root_of(store)) == "")
    host.remove(store)
    time.sleep(2 * store_watch.LOOK_SECONDS)
    assert no_watch(root_of(store)) == ""
    host.remove(store)
    until(lambda: no_watch(root_of(store)) != "")


def test_a_watch_that_knows_no_broker_leaves_the_shield_to_others(
    store: ManagedStore, host: HostWatch
) -> None:
    host.add(replace(store, policy=Policy()))
    until(lambda: no_watch(root_of(store)) == "")
    assert not is_shield_tended(root_of(store))


def let_it_be_tended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if broker and lake answered whoever tends a shield."""
    monkeypatch.setattr(context, "opened", nullcontext)
    monkeypatch.setattr(shield, "tend_shield", lambda store, tends: ShieldResult())
    monkeypatch.setattr(store_watch, "read_links", lambda *arguments: None)


def test_a_watch_that_knows_the_broker_tends_the_shield_once_it_has_looked_at_it(
    store: ManagedStore, host: HostWatch, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "_AFTER_ERROR_SECONDS", 0.1)
    host.add(replace(store, policy=Policy(), live=NO_BROKER))
    until(lambda: said.has("the shield can't be tended"))
    until(lambda: no_watch(root_of(store)) == "" and not is_shield_tended(root_of(store)))
    let_it_be_tended(monkeypatch)
    until(lambda: is_shield_tended(root_of(store)))
    monkeypatch.setattr(heartbeat, "TENDED_SECONDS", -1.0)
    assert not is_shield_tended(root_of(store))


def test_a_shield_that_is_switched_off_is_tended_while_there_is_one(
    store: ManagedStore, host: HostWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_it_be_tended(monkeypatch)
    links = shield_path(store.real_root)
    links.mkdir(parents=True)
    host.add(replace(store, policy=Policy(shield=ShieldMode.OFF), live=NO_BROKER))
    until(lambda: is_shield_tended(root_of(store)))
    links.rmdir()
    until(lambda: not is_shield_tended(root_of(store)))
    assert no_watch(root_of(store)) == ""
