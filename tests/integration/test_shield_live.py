"""A real broker on a disk that fills: while its store is held nothing goes, however full the disk.

What it deletes by force all the same, and people by hand, is in the log or, by the shield, in the lake.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import BrokerRefusedError, GateRefusedError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.hold import DriftKind
from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.monitor.monitoring import monitor
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.hold.hold_state import HoldState
from storage_engine.rocketmq.live import hold as live_hold
from storage_engine.rocketmq.live import release
from storage_engine.rocketmq.live.live_store import LiveStore
from storage_engine.shield.index import look_at_shield, shield_path
from tests.integration.broker import CLEANS_AT_ONCE, running_broker
from tests.integration.live_store import SEGMENT_BYTES, SETTINGS, TOPIC, Disk, LiveLog, create_topic, send
from tests.integration.load import running_load
from tests.integration.shield_watch import (
    SECONDS,
    Said,
    Watch,
    assert_nothing_is_lost,
    end_watch,
    hold_enough,
    in_neither_place,
    is_all_kept,
    is_shielded,
    store_id_of,
    until,
    watch_of,
)
from tests.lakes import make_lakes

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cleans_at_once")]

FENCED = 11
A_PASS_SECONDS = 1.5
"""Ten segments, each 100 ms after the one before."""
ABOVE_FORCE = 88
MESSAGES_A_SECOND = 100
SERVICE_NOT_AVAILABLE = 14
PASSES = 5
ROUND_THE_CLOCK = ";".join(f"{hour:02d}" for hour in range(24))
NEVER = "99"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    with Disk.mounted(tmp_path_factory.mktemp("shielded") / "disk") as disk:
        yield disk


@pytest.fixture(scope="module")
def live_log(disk: Disk, name_server_port: int) -> Iterator[LiveLog]:
    store, work = disk.path / "store", disk.path.parent
    settings = {**SETTINGS, "diskMaxUsedSpaceRatio": 75}  # the disk is its own
    with running_broker(store, work, name_server_port, settings, main_class=CLEANS_AT_ONCE) as broker:
        create_topic(broker.client)
        log = LiveLog(broker)
        log.fill(1)  # an empty store can't be held
        yield log


@pytest.fixture(scope="module")
def store(live_log: LiveLog, disk: Disk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedStore]:
    """Held by us, until the last test."""
    directory = tmp_path_factory.mktemp("managed")
    store = live_log.managed(directory)
    shutil.rmtree(directory / "lake")
    # Where the command line has its lake, inside which no other may lie.
    store = make_lakes(replace(store, lake=LakeConfig.local(str(directory))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_hold, "FIRST_PASS_MS", 0)
        assert steps.hold(store).status.held
        yield store
        disk.fill_to(60)
        live_log.wait_until_idle()
        steps.unmanage(store)
    assert not shield_path(store.root).exists()


@pytest.fixture
def log(disk: Disk, live_log: LiveLog, store: ManagedStore) -> LiveLog:
    """So many expired segments, which we hold."""
    hold_enough(live_log, disk, store)
    return live_log


@pytest.fixture(scope="module")
def begun() -> list[Watch]:
    """The watch of several tests, once one has asked for it."""
    return []


@pytest.fixture(scope="module")
def one_watch(
    live_log: LiveLog,
    disk: Disk,
    store: ManagedStore,
    begun: list[Watch],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Watch]:
    hold_enough(live_log, disk, store)  # what is filled later may be fenced before it has expired
    with watch_of(store, tmp_path_factory.mktemp("watch") / "said") as watch:
        begun.append(watch)
        yield watch


@pytest.fixture
def said(log: LiveLog, store: ManagedStore, one_watch: Watch) -> Said:
    """What the watch says from now on; the expired segments are in the shield."""
    said = one_watch.said
    said.begin = len(said.path.read_text())
    until(lambda: is_shielded(store, log), said)
    return said


def force(log: LiveLog, disk: Disk) -> None:
    """An administrator switches on what deletes whatever its age, above the level where it does."""
    disk.fill_to(ABOVE_FORCE)
    log.broker.client.update_config({"cleanFileForciblyEnable": "true"})


def wait_for_passes(log: LiveLog, begun_by: str) -> None:
    """Until the broker has cleaned a few times for this cause, by its own log."""
    logs = list((log.broker.java.home / "logs").rglob("store.log"))

    def passes() -> int:
        return sum(len(re.findall(rf"begin to delete .*{begun_by}", path.read_text())) for path in logs)

    before, deadline = passes(), time.monotonic() + SECONDS
    while passes() < before + PASSES:
        assert time.monotonic() < deadline, f"no pass for {begun_by}"
        time.sleep(0.1)


def is_taken(log: LiveLog) -> bool:
    """Whether the broker takes a message; otherwise it says why it can't."""
    try:
        log.sent.append(send(log.broker.client, 100))
    except BrokerRefusedError as error:
        if error.code != SERVICE_NOT_AVAILABLE:
            raise
        return False
    return True


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def release_two(store: ManagedStore) -> tuple[int, ...]:
    planned = steps.make_plan(store, "two", PlanRequest(manual=True, max_segments=2)).delete_offsets
    steps.archive(store, "two", steps.archive_jobs(store, "two"))
    steps.record_lag(store, "two", LagSummary(0, 0, 0, 0, 0, (), 0), [])
    assert tuple(one.base_offset for one in steps.release(store, "two").deleted) == planned
    return planned


@pytest.mark.again
def test_nothing_goes_at_any_level_while_held_and_everything_after(
    live_log: LiveLog, disk: Disk, tmp_path: Path
) -> None:
    log = live_log
    log.fill(6)
    client, store = log.broker.client, log.managed(tmp_path / "managed")
    names = log.names()
    assert steps.hold(store).status.held
    assert client.config()["cleanFileForciblyEnable"] == "false"

    client.update_config({"deleteWhen": ROUND_THE_CLOCK})
    wait_for_passes(log, "isTimeUp: true")
    client.update_config({"deleteWhen": NEVER})
    for percent in (80, 88, 95):
        disk.fill_to(percent)
        wait_for_passes(log, "isUsageExceedsThreshold: true")
        assert log.names()[: len(names)] == names, f"at {percent} %"
    assert client.runtime_info().commitlog_min_offset == 0

    wait_until(lambda: not is_taken(log))
    # What is there is served all the same, and what is archived may go, though the broker takes nothing.
    assert client.pull(TOPIC, 0, 0).frames
    assert release_two(store) == (0, SEGMENT_BYTES)
    assert log.names()[: len(names) - 2] == names[2:]
    # By its own force it would take all but the active one, once nothing is held.
    left = sum(base in log.sha256 for base in log.names())
    with pytest.raises(GateRefusedError, match=f"--leave-unproven {left} "):
        steps.unmanage(store)
    assert client.config()["cleanFileForciblyEnable"] == "false"
    disk.fill_to(60)
    wait_until(lambda: is_taken(log))

    assert not steps.unmanage(store).status.held
    assert client.config()["cleanFileForciblyEnable"] == "true"
    assert {base: log.mtimes()[base] for base in names[2:6]} == {b: log.mtime_ns[b] for b in names[2:6]}
    disk.fill_to(88)
    log.wait_for_min_offset(client.runtime_info().commitlog_max_offset // SEGMENT_BYTES * SEGMENT_BYTES)


@pytest.mark.again
def test_what_is_deleted_by_force_is_archived_from_the_shield_and_force_is_set_back(
    log: LiveLog, disk: Disk, store: ManagedStore, said: Said
) -> None:
    names = log.names()
    force(log, disk)
    until(lambda: log.names() != names, said)
    until(lambda: log.broker.client.config()["cleanFileForciblyEnable"] == "false", said)
    until(lambda: is_all_kept(store, log), said)
    until(lambda: "was set back to false" in said.text(), said)
    assert_nothing_is_lost(store)


@pytest.mark.again
def test_force_that_is_switched_on_while_a_release_waits_for_the_broker_is_set_back(
    log: LiveLog, store: ManagedStore, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = log.names()

    def somebody_interferes(beside: LiveStore) -> HoldState:
        log.broker.client.update_config({"cleanFileForciblyEnable": "true"})
        until(lambda: log.broker.client.config()["cleanFileForciblyEnable"] == "false", said)
        return trigger(beside)

    trigger = release._trigger
    monkeypatch.setattr(release, "_trigger", somebody_interferes)
    steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=2))
    steps.archive(store, "r", steps.archive_jobs(store, "r"))
    released = steps.release(store, "r")
    assert [one.base_offset for one in released.deleted] == names[:2]
    assert "It was set back to false" in said.text()
    assert log.names()[0] == names[2]


@pytest.mark.again
def test_what_people_remove_and_touch_is_archived_from_the_shield(
    log: LiveLog, store: ManagedStore, said: Said
) -> None:
    names = log.names()
    is_through = log.others_begin_to_clean()
    for base in names[:2]:
        log.path(base).unlink(missing_ok=True)
    for base in names[2 : 2 + FENCED]:
        if log.path(base).exists():
            os.utime(log.path(base), ns=(0, 0))
    is_through()
    until(lambda: is_all_kept(store, log), said)
    assert log.names()[0] > names[1]


@pytest.mark.again
def test_a_run_that_has_the_store_keeps_no_watch_from_mending_it(
    log: LiveLog, store: ManagedStore, said: Said
) -> None:
    """What a release does for minutes: read the lake, hash, wait for the broker."""
    names = log.names()
    with open_context(store).broker.lock():
        log.broker.client.update_config({"cleanFileForciblyEnable": "true"})
        until(lambda: log.broker.client.config()["cleanFileForciblyEnable"] == "false", said)
        log.path(names[0]).unlink()
        until(lambda: log.path(names[FENCED]).stat().st_mtime > time.time(), said)
    until(lambda: is_all_kept(store, log), said)


@pytest.mark.again
def test_above_the_warning_level_it_is_asked_who_let_the_broker_delete(
    log: LiveLog, disk: Disk, store: ManagedStore, said: Said
) -> None:
    disk.fill_to(93)
    log.broker.client.update_config({"cleanFileForciblyEnable": "true"})
    until(lambda: "free some space, and set it to false" in said.text(), said)
    assert log.broker.client.config()["cleanFileForciblyEnable"] == "true"
    assert DriftKind.SETTING_CHANGED in said.text()
    log.broker.client.update_config({"cleanFileForciblyEnable": "false"})
    until(lambda: is_all_kept(store, log), said)


@pytest.mark.again
def test_under_load_every_message_that_was_taken_is_served_or_in_the_lake(
    log: LiveLog, disk: Disk, store: ManagedStore, said: Said, name_server_port: int, tmp_path: Path
) -> None:
    names = log.names()
    with running_load(
        log.broker, name_server_port, tmp_path, topics=("orders",), rate=MESSAGES_A_SECOND
    ) as load:
        force(log, disk)
        until(lambda: log.names()[0] > names[0], said)
        until(lambda: log.broker.client.config()["cleanFileForciblyEnable"] == "false", said)
        until(lambda: "was set back to false" in said.text(), said)
        disk.fill_to(60)
        is_through = log.others_begin_to_clean()
        fence = log.names()[:FENCED]
        log.path(fence[0]).unlink()
        for base in fence[1:]:
            if log.path(base).exists():
                os.utime(log.path(base), ns=(0, 0))
        is_through()
        until(lambda: is_all_kept(store, log), said)
        load.stop()
    rows = receipts(open_lake(store.lake), store_id_of(store))
    kept = {*log.names(), *(row.base_offset for row in rows)}
    taken = [sent.physical_offset for sent in load.sent()]
    assert [offset for offset in taken if offset // SEGMENT_BYTES * SEGMENT_BYTES not in kept] == []
    assert len(taken) > MESSAGES_A_SECOND
    assert log.names()[0] > fence[0]
    assert_nothing_is_lost(store)


@pytest.mark.again
def test_what_a_killed_watch_left_goes_with_the_next_visit(
    live_log: LiveLog, disk: Disk, store: ManagedStore, begun: list[Watch], tmp_path: Path
) -> None:
    for ended in begun:
        end_watch(ended, store)
    # What is filled beside a watch may be fenced before it is old enough to be aged.
    hold_enough(live_log, disk, store)
    with watch_of(store, tmp_path / "said") as watch:
        begun.append(watch)
        until(lambda: is_shielded(store, live_log, 1), watch.said)
        watch.process.kill()
        watch.process.wait()
        live_log.path(live_log.names()[0]).unlink()
        end_watch(watch, store)
    monitor(store, "after-the-kill")
    assert look_at_shield(store.root).links == ()
    assert in_neither_place(store, live_log) == []


@pytest.mark.again
def test_without_a_shield_it_is_lost(
    log: LiveLog, disk: Disk, store: ManagedStore, begun: list[Watch], tmp_path: Path
) -> None:
    for watch in begun:
        end_watch(watch, store)
        monitor(store, "without-a-watch")
    assert look_at_shield(store.root).links == ()
    names = log.names()
    with watch_of(store, tmp_path / "said", "--no-shield") as watch:
        force(log, disk)
        until(lambda: len(log.names()) < len(names) - 10, watch.said)
        log.broker.client.update_config({"cleanFileForciblyEnable": "false"})
        assert len(in_neither_place(store, log)) > 10
    names = []
    while names != log.names():  # a pass that has begun goes on to its end
        names = log.names()
        time.sleep(A_PASS_SECONDS)
