"""Locks of our directory in a store: who doesn't get one in time is told, and nobody waits without end."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY, PLAIN_STAMP, locked, take_from_all, writable_by_all
from storage_engine.exceptions import GateRefusedError, ShieldError, StoreBusyError
from storage_engine.model.hold import WatchLook
from storage_engine.retention.store.stamp import NAME, opened_places
from storage_engine.rocketmq.hold import hold_state, marker
from storage_engine.rocketmq.hold.heartbeat import watching
from storage_engine.same_bytes import own_acts
from storage_engine.shield import index
from storage_engine.shield.index import locked_shield, opened_shield

KEEPS_IT = """
import os, signal, sys
from storage_engine.core.durable import locked
with locked(sys.argv[1], sys.argv[2]):
    print("in", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""
WAIT_SECONDS = 0.05


@contextmanager
def kept_by_a_stopped_process(root: Path, name: str) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", KEEPS_IT, str(root), name], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        try:
            yield
        finally:
            other.kill()


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def make_own_files(root: Path) -> None:
    with locked(root, "a.lock"), own_acts.own_acts(root):
        pass
    marker.write_marker(root, "me", 1)
    with watching(root) as own:
        assert own is not None
        own.beat(WatchLook())
    with opened_places(str(root)) as (place,):
        durable.write_file(NAME, b"{}", dir_fd=place.directory, shared=True)


def modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode) for path in root.rglob("*")}


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("root_mode", [0o755, 0o777])
def test_nothing_of_ours_in_a_store_is_written_by_others(tmp_path: Path, root_mode: int) -> None:
    tmp_path.chmod(root_mode)
    make_own_files(tmp_path)
    made = modes(tmp_path)
    assert {DIRECTORY, f"{DIRECTORY}/a.lock", f"{DIRECTORY}/{NAME}", f"{DIRECTORY}/watch"} <= made.keys()
    assert marker.NAME in made
    assert [name for name, mode in made.items() if mode & 0o002] == []
    assert list(writable_by_all([tmp_path])) == []


def test_what_older_releases_left_open_to_all_is_taken_back_and_links_are_left_alone(tmp_path: Path) -> None:
    make_own_files(tmp_path)
    (tmp_path / "elsewhere").touch()
    (tmp_path / "elsewhere").chmod(0o666)
    (tmp_path / DIRECTORY / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / PLAIN_STAMP).touch()
    for path in (DIRECTORY, f"{DIRECTORY}/{NAME}", f"{DIRECTORY}/a.lock", PLAIN_STAMP, marker.NAME):
        (tmp_path / path).chmod(stat.S_IMODE((tmp_path / path).stat().st_mode) | 0o002)
    assert len(list(writable_by_all([tmp_path]))) == 5
    before = modes(tmp_path)
    take_from_all([tmp_path])
    assert list(writable_by_all([tmp_path])) == []
    taken = {name for name, mode in modes(tmp_path).items() if mode != before[name]}
    assert taken == {DIRECTORY, f"{DIRECTORY}/{NAME}", f"{DIRECTORY}/a.lock", PLAIN_STAMP, marker.NAME}
    assert modes(tmp_path)["elsewhere"] == 0o666


def test_a_lock_that_another_process_keeps_is_named_after_a_while(tmp_path: Path) -> None:
    with (
        kept_by_a_stopped_process(tmp_path, "a.lock"),
        pytest.raises(TimeoutError, match=r"more than 0\.05 s: .*/a\.lock") as raised,
        locked(tmp_path, "a.lock", wait_seconds=WAIT_SECONDS),
    ):
        pytest.fail("two at a time")
    assert raised.value.filename == str(tmp_path / DIRECTORY / "a.lock")
    with locked(tmp_path, "a.lock", wait_seconds=30):
        pass


def test_a_shield_that_another_process_keeps_is_an_error_after_a_while(tmp_path: Path) -> None:
    with opened_shield(tmp_path, makes=True):
        pass
    with (
        kept_by_a_stopped_process(tmp_path, index._LOCK),
        pytest.raises(ShieldError, match="another process has the lock"),
        locked_shield(tmp_path, wait_seconds=WAIT_SECONDS),
    ):
        pytest.fail("two at a time")


def test_a_hold_that_another_process_is_changing_is_an_error_after_a_while(tmp_path: Path) -> None:
    with (
        kept_by_a_stopped_process(tmp_path, marker._CHANGES_LOCK),
        pytest.raises(StoreBusyError, match="another process"),
        marker.changing(tmp_path, WAIT_SECONDS),
    ):
        pytest.fail("two at a time")


def test_the_record_of_a_hold_that_another_process_keeps_is_an_error_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Journal:
        def load(self) -> None:
            return None

        def save(self, state: object) -> None:
            pass

    settled = hold_state.lock_settled
    monkeypatch.setattr(hold_state, "lock_settled", lambda root: settled(root, wait_seconds=WAIT_SECONDS))
    memories = hold_state.HoldMemories(Journal(), tmp_path)
    with (
        kept_by_a_stopped_process(tmp_path, hold_state._LOCK),
        pytest.raises(GateRefusedError, match="another process has the lock"),
    ):
        memories.save({"manager": "me", "boot_timestamp_ms": 1})
