"""A fence before a real broker: no setting voids it, and a watch mends what others touch and remove."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.hooks.check import check_store
from storage_engine.model.hold import DriftKind
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.monitor.monitoring import monitor
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.hold.heartbeat import SILENT_SECONDS, no_watch
from storage_engine.rocketmq.hold.marker import NAME
from storage_engine.rocketmq.remoting.command import SUCCESS, UPDATE_BROKER_CONFIG
from tests.integration.broker import CLEANS_AT_ONCE, Broker, running_broker, start_broker
from tests.integration.live_store import SETTINGS, LiveLog, create_topic
from tests.services.command_line import run_command

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cleans_at_once")]

FENCED = 11
A_PASS = 10
SECONDS = 120
WATCH = "from storage_engine.cli.main import main; main()"


@pytest.fixture(scope="module")
def live_log(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[LiveLog]:
    work = tmp_path_factory.mktemp("fenced")
    with running_broker(
        work / "store", work, name_server_port, SETTINGS, main_class=CLEANS_AT_ONCE
    ) as broker:
        create_topic(broker.client)
        yield LiveLog(broker)


@pytest.fixture
def log(live_log: LiveLog) -> LiveLog:
    """More expired segments than a fence has, held by nobody."""
    if len([base for base in live_log.names() if base in live_log.sha256]) < FENCED + 5:
        live_log.fill(FENCED + 10)
    return live_log


@pytest.fixture
def store(log: LiveLog, tmp_path: Path) -> Iterator[ManagedStore]:
    store = log.managed(tmp_path / "managed")
    assert steps.hold(store).status.held
    yield store
    steps.unmanage(store)
    log.broker.client.update_config({"fileReservedTime": "48"})


@contextmanager
def watch_of(store: ManagedStore, said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A watch process; killed at the end, unless it has ended."""
    lake = str(Path(store.report_dir).parent)
    with said.open("wb") as file:
        words = [sys.executable, "-u", "-c", WATCH, "watch", store.root, "--lake", lake]
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
    try:
        until(lambda: "watching" in said.read_text() or process.poll() is not None)
        assert process.poll() is None, said.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        began = time.monotonic()
        if is_so():
            return
        assert time.monotonic() < deadline
        # Whoever tends the store each time takes a fifth of a processor.
        time.sleep(0.02 + 4 * (time.monotonic() - began))


def unwatched(store: ManagedStore) -> str:
    """What the hold says of a watch."""
    return " ".join(notice for notice in steps.hold(store).status.notices if "storage-engine watch" in notice)


def pause_after_each_file(log: LiveLog, interval_ms: int) -> None:
    body = f"deleteCommitLogFilesInterval={interval_ms}\n".encode()
    assert log.broker.client.call(UPDATE_BROKER_CONFIG, body=body).code == SUCCESS


@pytest.mark.again
def test_no_reserved_time_voids_a_hold(log: LiveLog, store: ManagedStore) -> None:
    names = log.names()
    for hours in (23, 0, -1):
        # An administrator, whose disk fills.
        log.broker.client.call(UPDATE_BROKER_CONFIG, body=f"fileReservedTime={hours}\n".encode())
        log.others_clean()
        assert log.names() == names
        status = steps.hold(store).status
        assert status.held
        (changed,) = status.disturbances
        assert changed.kind is DriftKind.SETTING_CHANGED
        assert f"found {hours}" in changed.detail
        assert ("Below 0" in changed.detail) == (hours < 0)
        assert status.ends_at_ms is not None
        assert status.deletes_from_ms == status.ends_at_ms + max(hours, 0) * 3_600_000


def test_a_watch_mends_what_is_touched_and_removed_while_the_broker_deletes(
    log: LiveLog, store: ManagedStore, tmp_path: Path
) -> None:
    assert "no watch is alive" in unwatched(store)
    names = log.names()
    said = tmp_path / "said"
    with watch_of(store, said) as watch:
        assert unwatched(store) == ""
        pause_after_each_file(log, 1000)  # a pass is long enough for a watch on a busy machine
        is_through = log.others_begin_to_clean()
        for base in names[:FENCED]:
            # It may be gone by now, and others behind it be touched in its place.
            if log.path(base).exists():
                os.utime(log.path(base), ns=(0, 0))
        is_through()
        pause_after_each_file(log, 100)
        log.others_clean()
        left = log.names()
        assert left == names[len(names) - len(left) :]
        assert len(names) - len(left) <= A_PASS, said.read_text()

        log.path(left[0]).unlink()
        until(lambda: "removed" in said.read_text())
        until(lambda: log.mtimes()[left[FENCED]] > time.time_ns())
        log.others_clean()
        assert log.names() == left[1:]

        mended: list[str] = []
        looks = itertools.count()

        def is_recorded(what: str) -> bool:
            # The watch says what it mended before it is on record.
            alarms = monitor(store, f"tended{next(looks)}").alarms
            mended.extend(alarm for alarm in alarms if alarm.startswith(DriftKind.FENCE_MENDED))
            return any(what in alarm for alarm in mended)

        until(lambda: is_recorded(f"{log.path(left[0])}: expected a segment of the hold's fence"))
        until(lambda: is_recorded("another program touched"))
        assert not [a for a in monitor(store, "again").alarms if a.startswith(DriftKind.FENCE_MENDED)]

        watch.send_signal(signal.SIGTERM)
        assert watch.wait(SECONDS) == 0
        assert "no watch is alive" in unwatched(store)


def test_a_watch_that_starts_when_the_whole_fence_is_gone_fences_what_is_there(
    log: LiveLog, store: ManagedStore, tmp_path: Path
) -> None:
    names = log.names()
    for base in names[:FENCED]:
        log.path(base).unlink()
    with watch_of(store, tmp_path / "said"):
        until(lambda: no_watch(Path(store.root)) == "")
        log.others_clean()
        assert log.names() == names[FENCED:]
        look = steps.hold(store).status.watch
        assert look is not None
        assert (0 < look.fenced <= FENCED, look.mended) == (True, FENCED)
    said = (tmp_path / "said").read_text()
    assert f"expected {FENCED} segments of the hold's fence, found them removed" in said
    assert f"the log's files begin at offset {names[FENCED]}." in said


@pytest.mark.again
def test_a_watch_that_was_killed_is_missed(log: LiveLog, store: ManagedStore, tmp_path: Path) -> None:
    with watch_of(store, tmp_path / "said") as watch:
        watch.kill()
    time.sleep(SILENT_SECONDS)
    lake = Path(store.report_dir).parent
    shutil.rmtree(lake / "lake")  # no lake may lie inside another one
    assert run_command("init-lake", "--lake", lake).exit_code == 0
    words = ("inspect", store.root, "--lake", lake, "--broker", log.broker.client.address)
    outcome = run_command(*words)
    assert f"the watch (process {watch.pid}" in outcome.out, outcome.err
    assert "was killed or hangs" in outcome.out
    with watch_of(store, tmp_path / "again"):
        assert unwatched(store) == ""


def test_first_times_outlive_the_journal(log: LiveLog, tmp_path: Path) -> None:
    before = log.mtimes()
    store = log.managed(tmp_path / "managed")
    steps.hold(store)
    shutil.rmtree(tmp_path / "managed")
    (log.broker.store / NAME).unlink()
    shutil.rmtree(log.broker.store / ".storage-engine" / "stamp.json", ignore_errors=True)
    store = log.managed(tmp_path / "managed")
    assert steps.hold(store).status.held
    (seen,) = open_context(store).broker.snapshot(time.time_ns() // 10**6).logs
    assert [one.mtime_ns for one in seen.sealed] == [before[one.base_offset] for one in seen.sealed]
    steps.unmanage(store)
    assert log.mtimes() == before
    assert log.broker.client.config()["cleanFileForciblyEnable"] == "true"


def test_what_a_hold_makes_the_broker_do_is_said_before(log: LiveLog, tmp_path: Path) -> None:
    lake = ("--lake", tmp_path / "lake")
    assert run_command("init-lake", *lake).exit_code == 0
    where = (log.broker.store, *lake, "--broker", log.broker.client.address)
    words = ("hold", *where, "--allow-same-disk", "--may-change-settings")
    outcome = run_command(*words)
    assert outcome.exit_code == 0, outcome.err
    assert "updateBrokerConfig, which makes the broker rewrite" in outcome.err
    assert "hold without may_change_settings" in outcome.err
    assert run_command(*words).err == ""
    assert run_command("unmanage", *words[1:]).exit_code == 0


def test_what_a_hold_makes_the_broker_do_is_said_wherever_one_begins(log: LiveLog, tmp_path: Path) -> None:
    said = "updateBrokerConfig, which makes the broker rewrite"
    store = log.managed(tmp_path / "managed")
    assert said in check_store(store)
    assert any(said in notice for notice in steps.sense(store).notices)
    steps.make_plan(store, "r", PlanRequest(manual=True))
    assert any(said in notice for notice in steps.recorded_plan(store, "r").notices)
    assert said not in " ".join(steps.hold(store).status.notices)
    steps.unmanage(store)
    begun = monitor(store, "tended").hold
    assert begun is not None
    assert said in " ".join(begun.notices)
    steps.unmanage(store)


@contextmanager
def moved(broker: Broker, work: Path, name_server_port: int, **settings: object) -> Iterator[Broker]:
    """The broker's store served at another port."""
    broker.client.close()
    broker.java.kill()
    again = start_broker(
        broker.store, work, name_server_port, {**SETTINGS, **settings}, main_class=CLEANS_AT_ONCE
    )
    try:
        yield again
    finally:
        again.client.close()
        again.java.kill()


@pytest.mark.again
def test_a_broker_at_another_address_goes_on_only_if_it_is_provably_the_same(
    log: LiveLog, tmp_path: Path, name_server_port: int
) -> None:
    store = log.managed(tmp_path / "managed")
    steps.hold(store)
    with moved(log.broker, tmp_path / "other", name_server_port, brokerName="other") as other:
        found = steps.hold(at(store, other)).status
        assert not found.held
        assert [one.kind for one in found.disturbances] == [DriftKind.ROLE_CHANGED]
        with moved(other, tmp_path / "same", name_server_port) as same:
            found = steps.hold(at(store, same)).status
            assert found.held
            kinds = [one.kind for one in found.disturbances]
            assert kinds[:2] == [DriftKind.BROKER_MOVED, DriftKind.BROKER_RESTARTED]
            names = log.names()
            LiveLog(same).others_clean()
            assert log.names() == names
            assert len(names) > FENCED
            assert steps.hold(at(store, same)).status.disturbances == ()


def at(store: ManagedStore, broker: Broker) -> ManagedStore:
    assert store.live is not None
    return replace(store, live=replace(store.live, address=broker.client.address))
