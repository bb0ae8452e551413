"""A host's watch over several held stores: what it mends, and what it outlives."""

from __future__ import annotations

import errno
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from asyncinotify import Inotify, Mask, Watch

from storage_engine.core.durable import DIRECTORY
from storage_engine.journal.journal import Journal
from storage_engine.model.hold import Drift
from storage_engine.retention.monitor import store_watch
from storage_engine.retention.monitor.store_watch import FileChanges, HostWatch, ShieldWatch
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.hold import heartbeat
from storage_engine.rocketmq.hold.heartbeat import NAME, no_watch
from storage_engine.rocketmq.hold.hold_state import lock_settled
from storage_engine.rocketmq.live.fence_mending import FenceKeeper
from tests.retention.watched_stores import (
    SECONDS,
    Said,
    held,
    host_watch,
    is_mended,
    recorded,
    root_of,
    touch,
    until,
)
from tests.rocketmq.live.held_files import path_of


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


def test_all_stores_of_a_host_are_mended_and_it_is_recorded(
    tmp_path: Path, host: HostWatch, said: Said
) -> None:
    stores = [held(tmp_path, name) for name in ("a", "b", "c")]
    for store in stores:
        identify(store, Journal(store.journal_url))
        host.add(store)
    until(lambda: all(no_watch(root_of(store)) == "" for store in stores))
    for store in stores:
        touch(store)
    until(lambda: all(map(is_mended, stores)))
    until(lambda: all(map(recorded, stores)))
    for store in stores:
        (detail,) = recorded(store)
        assert str(path_of(root_of(store), 0)) in detail
        assert said.has(f"{store.root}: fence-mended: {detail}")


def test_changes_are_seen_before_the_next_look(
    store: ManagedStore, host: HostWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By inotify: without it nothing would be seen for an hour."""
    host.add(store)
    until(lambda: no_watch(root_of(store)) == "")
    time.sleep(2 * store_watch.LOOK_SECONDS)
    monkeypatch.setattr(store_watch, "LOOK_SECONDS", 3600.0)
    time.sleep(1)
    touch(store)
    until(lambda: is_mended(store))
    path_of(root_of(store), 1).unlink()
    until(lambda: is_mended(store, 4))


def test_a_store_without_inotify_is_looked_at_twice_a_second_and_the_others_keep_theirs(
    tmp_path: Path, host: HostWatch, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = held(tmp_path, "one"), held(tmp_path, "other")
    add_watch = Inotify.add_watch

    def refused(self: Inotify, path: Path, mask: Mask) -> Watch:
        if path.is_relative_to(one.root):
            raise OSError(errno.ENOSPC, "inotify watch limit reached")
        return add_watch(self, path, mask)

    monkeypatch.setattr(Inotify, "add_watch", refused)
    monkeypatch.setattr(store_watch, "RETRY_SECONDS", 0.0)
    host.add(one)
    until(lambda: said.has("one: changes aren't seen at once (inotify: "))
    for _ in range(2):
        touch(one)
        until(lambda: is_mended(one))
    monkeypatch.setattr(store_watch, "LOOK_SECONDS", 60.0)
    host.add(other)
    until(lambda: said.has("other: watching"))
    until(lambda: is_seen_at_once(other))
    assert len([line for line in said if "aren't seen at once" in line]) == 1


def is_seen_at_once(store: ManagedStore) -> bool:
    """Touch a file, and return whether that is mended long before the next look."""
    touch(store)
    time.sleep(0.2)
    return is_mended(store)


def test_a_watch_whose_inotify_broke_has_it_again_later(
    store: ManagedStore, host: HostWatch, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Event()

    def get(self: Inotify) -> None:
        broken.set()
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(store_watch, "RETRY_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(Inotify, "sync_get", get)
        host.add(store)
        until(broken.is_set)
    until(lambda: said.has("one: changes aren't seen at once"))
    until(lambda: is_seen_at_once(store))
    monkeypatch.setattr(store_watch, "LOOK_SECONDS", 60.0)
    touch(store)
    until(lambda: is_mended(store))
    until(lambda: is_seen_at_once(store))


def test_a_directory_that_can_not_be_looked_at_is_said_once_and_raises_nothing(
    tmp_path: Path, said: Said
) -> None:
    (tmp_path / "file").touch()
    changes = store_watch.FileChanges(said.append)
    for _ in range(2):
        changes.follow([tmp_path / "file" / "commitlog", tmp_path])
    changes.close()
    (line,) = said
    assert "aren't seen at once" in line


def test_a_watch_that_failed_for_whatever_reason_is_said_and_goes_on(
    store: ManagedStore, host: HostWatch, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([ZeroDivisionError("nobody thought of it")])

    def follow(self: FileChanges, directories: Sequence[Path]) -> None:
        for failure in failures:
            raise failure
        real(self, directories)

    real = FileChanges.follow
    monkeypatch.setattr(FileChanges, "follow", follow)
    monkeypatch.setattr(store_watch, "_STAND_BY_SECONDS", 0.1)
    host.add(store)
    until(
        lambda: said.has("the watch has failed and begins again: ZeroDivisionError: nobody thought of it (")
    )
    touch(store)
    until(lambda: is_mended(store))


@pytest.mark.parametrize("part", [ShieldWatch, FenceKeeper])
def test_a_part_of_a_watch_that_failed_for_whatever_reason_is_said_and_keeps_no_other_from_its_work(
    store: ManagedStore,
    host: HostWatch,
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
    part: type[ShieldWatch | FenceKeeper],
) -> None:
    may_work = threading.Event()

    def look(self: Any, *now_ms: int) -> tuple[Drift, ...]:
        if not may_work.is_set():
            raise ZeroDivisionError("nobody thought of it")
        return real(self, *now_ms)

    real: Any = part.look
    monkeypatch.setattr(part, "look", look)
    host.add(store)
    until(lambda: said.has("has failed, and is tried again: ZeroDivisionError: nobody thought of it ("))
    if part is FenceKeeper:
        # Alive, and without a look.
        until(lambda: "is alive, but hasn't seen the whole fence yet" in no_watch(root_of(store)))
        may_work.set()
    until(lambda: no_watch(root_of(store)) == "")
    touch(store)
    until(lambda: is_mended(store))
    assert not said.has("begins again")


def test_a_watch_that_can_not_say_anything_mends_and_records_all_the_same(
    store: ManagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with stdout on a full disk, or a pipe that nobody reads any more."""
    unsaid = Said()

    def say(text: str) -> None:
        unsaid.append(text)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_watch, "_STAND_BY_SECONDS", 0.1)
    monkeypatch.setattr(store_watch, "_AGAIN_SECONDS", 0.1)
    identify(store, Journal(store.journal_url))
    journal = Path(store.journal_url.removeprefix("sqlite:///"))
    away = journal.rename(journal.with_name("away"))
    journal.mkdir()
    root_of(store).rename(tmp_path / "unmounted")
    host = HostWatch(say)
    host.add(store)
    until(lambda: unsaid.has("is it mounted?"))
    (tmp_path / "unmounted").rename(root_of(store))
    until(lambda: no_watch(root_of(store)) == "")
    touch(store)
    until(lambda: unsaid.has("can't be recorded yet"))
    journal.rmdir()
    away.rename(journal)
    until(lambda: is_mended(store) and len(recorded(store)) == 1)
    assert host.dead == ()
    host.end(SECONDS)


def test_recording_that_failed_for_whatever_reason_is_said_and_goes_on(
    store: ManagedStore, host: HostWatch, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([ZeroDivisionError("nobody thought of it")])

    def record(store: ManagedStore, found: Sequence[Drift]) -> None:
        for failure in failures:
            raise failure
        real(store, found)

    real = store_watch.record_mends
    monkeypatch.setattr(store_watch, "record_mends", record)
    monkeypatch.setattr(store_watch, "_AGAIN_SECONDS", 0.1)
    identify(store, Journal(store.journal_url))
    host.add(store)
    until(lambda: no_watch(root_of(store)) == "")
    touch(store)
    until(lambda: said.has("can't be recorded yet: ZeroDivisionError: nobody thought of it"))
    until(lambda: len(recorded(store)) == 1)


def test_a_lock_that_a_stopped_process_has_is_said_and_the_watch_stays_alive(
    store: ManagedStore, host: HostWatch, said: Said
) -> None:
    host.add(store)
    until(lambda: said.has("watching"))
    with lock_settled(root_of(store)):
        touch(store)
        until(lambda: said.has("hold-record.lock"))
        began_at_ms = time.time_ns() // 1_000_000
        until(lambda: sign_of_life_ms(store) > began_at_ms)
        assert no_watch(root_of(store)) == ""
        assert not is_mended(store)
    until(lambda: is_mended(store))
    assert len([line for line in said if "hold-record.lock" in line]) == 1


def test_what_was_found_is_said_and_recorded_while_each_look_fails(
    store: ManagedStore, host: HostWatch, said: Said
) -> None:
    identify(store, Journal(store.journal_url))
    host.add(store)
    until(lambda: said.has("watching"))
    with lock_settled(root_of(store)):
        path_of(root_of(store), 0).unlink()
        until(lambda: said.has("fence-mended"))
        until(lambda: len(recorded(store)) == 1)


def sign_of_life_ms(store: ManagedStore) -> int:
    found: int = json.loads((root_of(store) / DIRECTORY / NAME).read_text())["at_ms"]
    return found


def test_what_can_not_be_recorded_yet_is_mended_and_recorded_later(
    store: ManagedStore, host: HostWatch, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "_AGAIN_SECONDS", 0.2)
    identify(store, Journal(store.journal_url))
    journal = Path(store.journal_url.removeprefix("sqlite:///"))
    away = journal.with_name("away")
    journal.rename(away)
    journal.write_bytes(b"no database" * 100)  # what is in its place can't be read
    host.add(store)
    until(lambda: no_watch(root_of(store)) == "")
    for number in (0, 1):
        touch(store, number)
        until(lambda number=number: is_mended(store, number))  # type: ignore[misc]
    until(lambda: said.has("can't be recorded yet"))
    # At once: a store whose journal is missing for a moment has none, and its mends are forgotten.
    away.replace(journal)
    # One look that finds both touches makes one record of them.
    names = {path_of(root_of(store), number).name for number in (0, 1)}
    until(lambda: all(name in str(recorded(store)) for name in names))


def test_a_journal_that_somebody_else_writes_to_keeps_nobody_from_mending(
    store: ManagedStore, host: HostWatch
) -> None:
    identify(store, Journal(store.journal_url))
    with sqlite3.connect(store.journal_url.removeprefix("sqlite:///")) as busy:
        busy.execute("BEGIN IMMEDIATE")
        host.add(store)
        until(lambda: no_watch(root_of(store)) == "")
        for number in (0, 1, 0):
            touch(store, number)
            until(lambda number=number: is_mended(store, number))  # type: ignore[misc]
    busy.close()
    until(lambda: len(recorded(store)) == 2)


def test_a_store_whose_disk_comes_and_goes_is_watched_when_it_is_there(
    store: ManagedStore, host: HostWatch, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "_STAND_BY_SECONDS", 0.1)
    away = tmp_path / "away"
    root_of(store).rename(away)
    host.add(store)
    until(lambda: said.has("is it mounted?"))
    away.rename(root_of(store))
    until(lambda: no_watch(root_of(store)) == "")
    root_of(store).rename(away)
    said.clear()
    until(lambda: said.has("is it mounted?"))
    assert not said.has("fence-mended")
    copy = tmp_path / "copy"
    shutil.copytree(away, copy)  # another file system, with other inodes
    copy.rename(root_of(store))  # whole: a watch that comes between would see a part of it
    # They are fenced all the same, and it is said: a broker goes by their names.
    until(lambda: said.has("watching") and said.has("expected 4 segments of the hold's fence"))
    assert all(is_mended(store, number) for number in range(4))
