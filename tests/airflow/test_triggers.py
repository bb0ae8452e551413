"""Triggers fire when a cause begins, wake when a window opens, and never block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import TriggerEvent

from storage_engine.exceptions import StoreNotFoundError
from storage_engine.model.broker.broker_store import Watch
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Cause, Trigger, Urgency
from storage_engine.retention.plan.watching import watch
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.hold.heartbeat import no_watch
from storage_engine.rocketmq.live import connect
from storage_engine.rocketmq.live.live_store import unknown
from storage_engine.rocketmq.remoting.connection import Access
from storage_engine.triggers import cleanup
from storage_engine.triggers.cleanup import CleanupCauseTrigger, DeleteWindowTrigger, DiskLevelTrigger
from tests.rocketmq.live.held_files import LEASE_NS, held_store, mtimes_ns, path_of

ALL_HOURS = ";".join(str(hour) for hour in range(24))
NEVER = "99"


def seen(percent: int | None = 10, *, window: bool = False, opens_in_s: float | None = None) -> Watch:
    """What a look at a store shows: disks this full, and the window open or opening."""
    now_ms = int(time.time() * 1000)
    disk = DiskUsage("/disk", percent, error="" if percent is not None else "unmounted")
    return Watch(
        watched_at_ms=now_ms,
        triggers=(Trigger(Cause.TIME_UP, Urgency.ORDINARY, "it is time"),) if window else (),
        notices=(),
        levels=(disk,),
        deciding_percent=percent,
        ordinary_percent=75,
        next_window_ms=now_ms if window else opens_in_s and int(now_ms + opens_in_s * 1000),
    )


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to a store that nobody looks at for real."""
    definition = {"conn_type": "storage_engine", "extra": {"root": "/nowhere"}}
    monkeypatch.setenv("AIRFLOW_CONN_WATCHED", json.dumps(definition))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, connection: None) -> Callable[..., list[float]]:
    """Let a trigger see the given looks, one after the other; the last one repeats."""

    def script(sequence: Sequence[Watch]) -> list[float]:
        times: list[float] = []

        def look(_store: object) -> Watch:
            times.append(time.monotonic())
            return sequence[min(len(times), len(sequence)) - 1]

        monkeypatch.setattr(cleanup, "watch", look)
        return times

    return script


@pytest.fixture
def real_looks(monkeypatch: pytest.MonkeyPatch) -> list[Watch]:
    """What the triggers' looks at real stores showed so far."""
    shown: list[Watch] = []

    def look(store: ManagedStore) -> Watch:
        shown.append(watch(store))
        return shown[-1]

    monkeypatch.setattr(cleanup, "watch", look)
    return shown


async def _events(
    trigger: Any, seconds: float, expected: int = 0, seen_enough: Callable[[], bool] = lambda: True
) -> list[TriggerEvent]:
    events: list[TriggerEvent] = []

    async def collect() -> None:
        async for event in trigger.run():
            events.append(event)

    collecting = asyncio.create_task(collect())
    gives_up = time.monotonic() + 120
    try:
        while not collecting.done() and time.monotonic() < gives_up:
            if len(events) >= expected and seen_enough():
                break
            await asyncio.sleep(0.005)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(collecting, seconds)
    finally:
        collecting.cancel()
        await asyncio.wait([collecting])
    return events


def events_of(trigger: Any, expected: int, times: Sequence[Any] = (), looks: int = 0) -> list[TriggerEvent]:
    """Every event until so many came and the script was looked at so often, and a moment more."""
    return asyncio.run(_events(trigger, 0.1, expected, lambda: len(times) >= looks))


def first_event_of(trigger: Any) -> TriggerEvent:
    (event, *_) = asyncio.run(_events(trigger, 0, 1))
    return event


def disk_trigger(**arguments: Any) -> DiskLevelTrigger:
    return DiskLevelTrigger("watched", poll_seconds=0.01, **arguments)


@pytest.mark.parametrize(
    "trigger",
    [
        DeleteWindowTrigger("x"),
        DiskLevelTrigger("x", threshold_percent=80, hysteresis_percent=5, poll_seconds=3),
        CleanupCauseTrigger("x", poll_seconds=7),
    ],
)
def test_a_trigger_survives_serialisation(trigger: Any) -> None:
    path, arguments = trigger.serialize()
    again = import_string(path)(**arguments)
    assert type(again) is type(trigger)
    assert again.serialize() == (path, arguments)


def test_disk_fires_above_the_brokers_level_not_at_it(looks: Any) -> None:
    looks([seen(75), seen(75), seen(76)])
    (event,) = events_of(disk_trigger(), 1)
    assert event.payload["cause"] == "space-full"
    assert event.payload["used_percent"] == 76


def test_disk_fires_above_its_own_threshold(looks: Any) -> None:
    looks([seen(76), seen(80), seen(81)])
    (event,) = events_of(disk_trigger(threshold_percent=80), 1)
    assert event.payload["used_percent"] == 81


def test_an_unknown_level_never_fires(looks: Any) -> None:
    times = looks([seen(None)])
    assert events_of(disk_trigger(), 0, times, 3) == []
    assert len(times) > 2


def test_a_level_around_the_threshold_fires_once(looks: Any) -> None:
    times = looks([seen(76), seen(74), seen(76), seen(74), seen(None), seen(77)])
    assert len(events_of(disk_trigger(hysteresis_percent=2), 1, times, 8)) == 1


def test_a_level_that_fell_far_enough_fires_again(looks: Any) -> None:
    looks([seen(76), seen(73), seen(74), seen(78)])
    events = events_of(disk_trigger(hysteresis_percent=2), 2)
    assert [event.payload["used_percent"] for event in events] == [76, 78]


def test_unknown_is_not_low_so_it_does_not_rearm(looks: Any) -> None:
    times = looks([seen(76), seen(None), seen(None), seen(90)])
    assert len(events_of(disk_trigger(), 1, times, 6)) == 1


def test_the_window_is_slept_through_and_its_opening_is_not_missed(
    looks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = time.monotonic() + 0.4
    times = looks([seen(opens_in_s=0.4), seen(window=True)])
    (event,) = events_of(DeleteWindowTrigger("watched"), 1)
    assert event.payload["cause"] == "time-up"
    assert event.payload["details"] == ["it is time"]
    assert len(times) == 2
    assert times[1] > opens - 0.05


def test_a_long_wait_for_the_window_is_cut_to_look_at_clock_and_settings_anew(
    looks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "_LONGEST_SLEEP_SECONDS", 0.1)
    times = looks([seen(opens_in_s=3600), seen(opens_in_s=3600), seen(window=True)])
    assert len(events_of(DeleteWindowTrigger("watched"), 1)) == 1
    assert len(times) >= 3


def test_each_opening_of_the_window_is_one_event(looks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_LONGEST_SLEEP_SECONDS", 0.02)
    looks([seen(window=True), seen(window=True), seen(opens_in_s=0.1), seen(window=True)])
    assert len(events_of(DeleteWindowTrigger("watched"), 2)) == 2


@pytest.mark.parametrize(
    ("look", "cause"), [(seen(10, window=True), "time-up"), (seen(80, opens_in_s=60), "space-full")]
)
def test_either_cause_is_enough(looks: Any, look: Watch, cause: str) -> None:
    looks([seen(10, opens_in_s=60), look])
    (event,) = events_of(CleanupCauseTrigger("watched", poll_seconds=0.01), 1)
    assert event.payload["cause"] == cause


def test_either_wakes_for_the_window_before_its_poll_is_due(looks: Any) -> None:
    looks([seen(10, opens_in_s=0.2), seen(10, window=True)])
    assert len(events_of(CleanupCauseTrigger("watched", poll_seconds=3600), 1)) == 1


def test_a_disk_that_hangs_does_not_block_the_loop(monkeypatch: pytest.MonkeyPatch, connection: None) -> None:
    hanging, release, is_over = (threading.Event() for _ in range(3))

    def look(_store: object) -> Watch:
        hanging.set()
        release.wait(60)
        is_over.set()
        return seen(10)

    monkeypatch.setattr(cleanup, "watch", look)

    async def ticks_while_hanging() -> int:
        waiting = asyncio.create_task(_events(disk_trigger(), 2))
        while not hanging.is_set():
            await asyncio.sleep(0.01)
        ticks = 0
        for _ in range(20):
            await asyncio.sleep(0.01)
            ticks += not is_over.is_set()
        release.set()
        waiting.cancel()
        return ticks

    assert asyncio.run(ticks_while_hanging()) == 20


def test_a_store_that_is_not_there_fails_the_trigger(connection: None) -> None:
    with pytest.raises(StoreNotFoundError, match="/nowhere"):
        events_of(disk_trigger(), 1)


def test_a_real_store_in_its_window_fires_at_once(store_connection: Any) -> None:
    store_connection("watched", deleteWhen=ALL_HOURS)
    event = first_event_of(DeleteWindowTrigger("watched"))
    assert event.payload["cause"] == "time-up"


def test_a_real_store_whose_window_never_comes_does_not_fire(
    store_connection: Any, real_looks: list[Watch]
) -> None:
    store_connection("watched", deleteWhen=NEVER)
    assert events_of(DeleteWindowTrigger("watched"), 0, real_looks, 1) == []


def test_a_real_disk_is_measured(store_connection: Any) -> None:
    store_connection("watched", deleteWhen=NEVER)
    event = first_event_of(disk_trigger(threshold_percent=-1))
    assert 0 <= event.payload["used_percent"] <= 100


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A connection to a store that is not here, beside a broker on this port of loopback."""

    def connect(port: int) -> None:
        extra = {"root": "/nowhere", "mode": "beside", "broker_address": f"127.0.0.1:{port}"}
        definition = {"conn_type": "storage_engine", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_WATCHED", json.dumps(definition))

    return connect


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield int(server.getsockname()[1])


@pytest.mark.parametrize(
    "trigger",
    [
        DeleteWindowTrigger("watched"),
        disk_trigger(threshold_percent=-1),
        CleanupCauseTrigger("watched", poll_seconds=0.01),
    ],
)
def test_a_broker_that_is_down_is_no_cause_and_is_asked_again(
    beside: Callable[[int], None],
    trigger: Any,
    monkeypatch: pytest.MonkeyPatch,
    real_looks: list[Watch],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = int(closed.getsockname()[1])
    beside(port)
    monkeypatch.setattr(cleanup, "DEFAULT_POLL_SECONDS", 0.01)
    told: list[Watch] = []
    monkeypatch.setattr(type(trigger), "_say", lambda _trigger, seen: told.append(seen))
    assert events_of(trigger, 0, real_looks, 2) == []
    assert len(real_looks) > 1
    assert not any(look.known for look in real_looks)
    assert told == real_looks[:1]
    assert "can't be asked" in told[0].notices[0]


def test_a_broker_that_is_silent_does_not_block_the_loop(
    beside: Callable[[int], None], silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside(silent_port)
    monkeypatch.setattr(connect, "Access", partial(Access, request_timeout_seconds=0.5))
    begun: list[object] = []
    ended: list[Watch] = []

    def look(store: ManagedStore) -> Watch:
        begun.append(store)
        ended.append(watch(store))
        return ended[-1]

    monkeypatch.setattr(cleanup, "watch", look)
    triggers, ticks = 8, 0

    def are_through() -> bool:
        return len(ended) >= triggers and ticks > 20

    async def tick() -> None:
        nonlocal ticks
        waiting = [asyncio.create_task(_events(disk_trigger(), 0, 0, are_through)) for _ in range(triggers)]
        while not all(task.done() for task in waiting):
            await asyncio.sleep(0.01)
            ticks += len(begun) > len(ended)
        assert [task.result() for task in waiting] == [[]] * triggers

    asyncio.run(tick())
    assert are_through()


@pytest.mark.slow
def test_a_hold_whose_store_is_here_is_watched_while_a_trigger_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its broker can be asked or not, and without blocking the loop; its disk is mounted later."""
    root, away = tmp_path / "store", tmp_path / "away"
    held_store(root)
    extra = {"root": str(root), "mode": "beside", "broker_address": "127.0.0.1:1"}
    definition = {"conn_type": "storage_engine", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_WATCHED", json.dumps(definition))
    asked, is_watched_here = threading.Event(), cleanup.is_watched_here

    def ask(store: ManagedStore) -> bool:
        is_here = is_watched_here(store)
        asked.set()
        return is_here

    monkeypatch.setattr(cleanup, "is_watched_here", ask)

    async def mended() -> bool:
        root.rename(away)
        waiting = [asyncio.create_task(_events(disk_trigger(), 300)) for _ in range(2)]
        while not asked.is_set():
            await asyncio.sleep(0.01)
        away.rename(root)
        while no_watch(root):
            await asyncio.sleep(0.01)
        os.utime(path_of(root, 0), ns=(0, 0))
        while mtimes_ns(root)[0] != LEASE_NS:
            await asyncio.sleep(0.01)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        while not no_watch(root):
            await asyncio.sleep(0.01)
        return True

    assert asyncio.run(asyncio.wait_for(mended(), 120))


def test_what_is_unknown_ends_no_window(looks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "DEFAULT_POLL_SECONDS", 0.01)
    monkeypatch.setattr(cleanup, "_LONGEST_SLEEP_SECONDS", 0.01)
    times = looks([seen(window=True), unknown(0, "down"), unknown(0, "down"), seen(window=True)])
    assert len(events_of(DeleteWindowTrigger("watched"), 1, times, 6)) == 1
