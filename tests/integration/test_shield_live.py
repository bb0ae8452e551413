"""A shield before a real broker: what it deletes by force, and people by hand, is in the log or the lake."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.lake.catalog import open_lake
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.receipts import broken_receipts, receipts
from storage_engine.model.hold import DisturbanceKind
from storage_engine.model.plan import PlanRequest
from storage_engine.model.verification import VerifyLevel
from storage_engine.retention import steps
from storage_engine.retention.journal import Journal
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.steps.context import open_context
from storage_engine.retention.steps.tending import tend
from storage_engine.retention.verification import verify_store
from storage_engine.rocketmq.beside import release
from storage_engine.rocketmq.beside.heartbeat import no_watch
from storage_engine.rocketmq.beside.hold_state import HoldState
from storage_engine.rocketmq.beside.store import BesideStore
from storage_engine.shield.index import shield_path
from storage_engine.shield.seen import look_at_shield
from tests.fixture_stores import file_sha256
from tests.integration.broker import CLEANS_AT_ONCE, running_broker
from tests.integration.live_store import SEGMENT_BYTES, SETTINGS, LiveLog, create_topic
from tests.integration.load import running_load
from tests.integration.test_levels_live import DISK_BYTES, Disk
from tests.lakes import make_lakes

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cleans_at_once")]

SEGMENTS = 24
FENCED = 11
A_PASS_SECONDS = 1.5
"""Ten segments, each 100 ms after the one before."""
ABOVE_FORCE = 88
SECONDS = 180
MESSAGES_A_SECOND = 100
WATCH = "from storage_engine.cli import main; main()"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    target = tmp_path_factory.mktemp("shielded") / "disk"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(target)], check=True)
    yield Disk(target)
    subprocess.run(["umount", "--lazy", str(target)], check=True)


@pytest.fixture(scope="module")
def live_log(disk: Disk, name_server_port: int) -> Iterator[LiveLog]:
    store, work = disk.path / "store", disk.path.parent
    with running_broker(store, work, name_server_port, SETTINGS, main_class=CLEANS_AT_ONCE) as broker:
        create_topic(broker.client)
        yield LiveLog(broker)


@pytest.fixture
def log(disk: Disk, live_log: LiveLog) -> LiveLog:
    """So many expired segments, held by nobody."""
    live_log.wait_until_idle()
    live_log.sha256 = {base: live_log.sha256[base] for base in live_log.names() if base in live_log.sha256}
    if len(live_log.sha256) < SEGMENTS:
        live_log.fill(SEGMENTS - len(live_log.sha256))
    return live_log


@pytest.fixture
def store(log: LiveLog, disk: Disk, tmp_path: Path) -> Iterator[ManagedStore]:
    directory = tmp_path / "managed"
    # Where the command line has its lake.
    store = make_lakes(replace(log.managed(directory), lake=LakeConfig.local(str(directory))))
    assert steps.hold(store).status.held
    yield store
    disk.fill_to(60)
    log.wait_until_idle()
    steps.unmanage(store)
    assert not shield_path(store.root).exists()


@contextmanager
def watch_of(store: ManagedStore, said: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A watch process; killed at the end, unless it has ended."""
    assert store.live is not None
    lake = str(Path(store.report_dir).parent)
    words = ["watch", store.root, "--lake", lake, "--broker", store.live.address, "--allow-same-disk"]
    with said.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", WATCH, *words, "--may-change-settings", *more],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: "watching" in said.read_text() or process.poll() is not None, said)
        assert process.poll() is None, said.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def until(is_so: Callable[[], bool], said: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        began = time.monotonic()
        if is_so():
            return
        assert time.monotonic() < deadline, said.read_text()
        # Whoever reads the lake or the shield each time takes a fifth of a processor.
        time.sleep(0.05 + 4 * (time.monotonic() - began))


def is_shielded(store: ManagedStore, log: LiveLog) -> bool:
    """Whether every sealed segment has a link whose bytes were read."""
    links = look_at_shield(store.root).links
    kept = {seen.link.base_offset for seen in links if seen.link.sha256 and seen.is_same}
    return kept >= set(log.sha256) & set(log.names())


def in_neither_place(store: ManagedStore, log: LiveLog) -> list[int]:
    """Segments whose bytes are not in the log, nor provably in the lake."""
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    lake = open_lake(store.lake)
    rows = receipts(lake, record.store_id)
    assert broken_receipts(lake, rows, read_files=True) == {}
    archived = {row.base_offset: row.sha256 for row in rows}

    def is_here(base: int) -> bool:
        try:
            return file_sha256(log.path(base)) == log.sha256[base]
        except FileNotFoundError:
            return False

    return [base for base in log.sha256 if archived.get(base) != log.sha256[base] and not is_here(base)]


def is_all_kept(store: ManagedStore, log: LiveLog) -> bool:
    """Whether nothing is in the shield alone, and every segment in the log or the lake, byte for byte."""
    return not look_at_shield(store.root).gone and not in_neither_place(store, log)


def force(log: LiveLog, disk: Disk) -> None:
    """An administrator switches on what deletes whatever its age, above the level where it does."""
    disk.fill_to(ABOVE_FORCE)
    log.broker.client.update_config({"cleanFileForciblyEnable": "true"})


def test_what_is_deleted_by_force_is_archived_from_the_shield_and_force_is_set_back(
    log: LiveLog, disk: Disk, store: ManagedStore, tmp_path: Path
) -> None:
    names, said = log.names(), tmp_path / "said"
    with watch_of(store, said):
        until(lambda: is_shielded(store, log), said)
        force(log, disk)
        until(lambda: log.names() != names, said)
        until(lambda: log.broker.client.config()["cleanFileForciblyEnable"] == "false", said)
        until(lambda: is_all_kept(store, log), said)
        until(lambda: "was set back to false" in said.read_text(), said)
    (verified,) = verify_store(store, VerifyLevel.BYTES)
    assert {row.where.value for row in verified.ranges} == {"LOCAL", "ARCHIVED"}
    assert not [one for one in tend(store, "t").alarms if "LOST" in one]


def test_without_a_shield_it_is_lost(log: LiveLog, disk: Disk, store: ManagedStore, tmp_path: Path) -> None:
    names, said = log.names(), tmp_path / "said"
    with watch_of(store, said, "--no-shield"):
        force(log, disk)
        until(lambda: len(log.names()) < len(names) - 10, said)
        log.broker.client.update_config({"cleanFileForciblyEnable": "false"})
        assert len(in_neither_place(store, log)) > 10
    names = []
    while names != log.names():  # a pass that has begun goes on to its end
        names = log.names()
        time.sleep(A_PASS_SECONDS)


def test_force_that_is_switched_on_while_a_release_waits_for_the_broker_is_set_back(
    log: LiveLog, store: ManagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, said = log.names(), tmp_path / "said"

    def somebody_interferes(beside: BesideStore) -> HoldState:
        log.broker.client.update_config({"cleanFileForciblyEnable": "true"})
        until(lambda: log.broker.client.config()["cleanFileForciblyEnable"] == "false", said)
        return trigger(beside)

    trigger = release._trigger
    monkeypatch.setattr(release, "_trigger", somebody_interferes)
    with watch_of(store, said):
        until(lambda: is_shielded(store, log), said)
        steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=2))
        steps.archive(store, "r", steps.archive_jobs(store, "r"))
        released = steps.release(store, "r")
        assert [one.base_offset for one in released.deleted] == names[:2]
        assert "It was set back to false" in said.read_text()
    assert log.names()[0] == names[2]


def test_what_people_remove_and_touch_is_archived_from_the_shield(
    log: LiveLog, store: ManagedStore, tmp_path: Path
) -> None:
    names, said = log.names(), tmp_path / "said"
    with watch_of(store, said):
        until(lambda: is_shielded(store, log), said)
        is_through = log.others_begin_to_clean()
        for base in names[:2]:
            log.path(base).unlink(missing_ok=True)
        for base in names[2 : 2 + FENCED]:
            if log.path(base).exists():
                os.utime(log.path(base), ns=(0, 0))
        is_through()
        until(lambda: is_all_kept(store, log), said)
        assert log.names()[0] > names[1]


def test_a_run_that_has_the_store_keeps_no_watch_from_mending_it(
    log: LiveLog, store: ManagedStore, tmp_path: Path
) -> None:
    """What a release does for minutes: read the lake, hash, wait for the broker."""
    names, said = log.names(), tmp_path / "said"
    with watch_of(store, said):
        until(lambda: is_shielded(store, log), said)
        with open_context(store).broker.hold():
            log.broker.client.update_config({"cleanFileForciblyEnable": "true"})
            until(lambda: log.broker.client.config()["cleanFileForciblyEnable"] == "false", said)
            log.path(names[0]).unlink()
            until(lambda: log.path(names[FENCED]).stat().st_mtime > time.time(), said)
        until(lambda: is_all_kept(store, log), said)


def test_above_the_warning_level_it_is_asked_who_let_the_broker_delete(
    log: LiveLog, disk: Disk, store: ManagedStore, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    with watch_of(store, said):
        until(lambda: is_shielded(store, log), said)
        disk.fill_to(93)
        log.broker.client.update_config({"cleanFileForciblyEnable": "true"})
        until(lambda: "free some space, and set it to false" in said.read_text(), said)
        assert log.broker.client.config()["cleanFileForciblyEnable"] == "true"
        assert DisturbanceKind.SETTING_CHANGED in said.read_text()
        log.broker.client.update_config({"cleanFileForciblyEnable": "false"})
        until(lambda: is_all_kept(store, log), said)


def test_what_a_killed_watch_left_goes_with_the_next_visit(
    log: LiveLog, store: ManagedStore, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    with watch_of(store, said) as watch:
        until(lambda: is_shielded(store, log), said)
        watch.kill()
        watch.wait()
    log.path(log.names()[0]).unlink()
    until(lambda: bool(no_watch(Path(store.root))), said)
    tend(store, "t")
    assert look_at_shield(store.root).links == ()
    assert in_neither_place(store, log) == []


def test_under_load_every_message_that_was_taken_is_served_or_in_the_lake(
    log: LiveLog, disk: Disk, store: ManagedStore, name_server_port: int, tmp_path: Path
) -> None:
    names, said, work = log.names(), tmp_path / "said", tmp_path / "load"
    with (
        watch_of(store, said),
        running_load(log.broker, name_server_port, work, topics=("orders",), rate=MESSAGES_A_SECOND) as load,
    ):
        until(lambda: is_shielded(store, log), said)
        force(log, disk)
        until(lambda: log.names()[0] > names[0], said)
        until(lambda: log.broker.client.config()["cleanFileForciblyEnable"] == "false", said)
        disk.fill_to(60)
        is_through = log.others_begin_to_clean()
        fence = log.names()[:FENCED]
        log.path(fence[0]).unlink()
        for base in fence[1:]:
            os.utime(log.path(base), ns=(0, 0))
        is_through()
        until(lambda: is_all_kept(store, log), said)
        load.stop()
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    kept = {*log.names(), *(row.base_offset for row in receipts(open_lake(store.lake), record.store_id))}
    taken = [sent.physical_offset for sent in load.sent()]
    assert [offset for offset in taken if offset // SEGMENT_BYTES * SEGMENT_BYTES not in kept] == []
    assert len(taken) > MESSAGES_A_SECOND
    assert log.names()[0] > fence[0]
