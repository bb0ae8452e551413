"""Locks of our directory in a store: who doesn't get one in time is told, and nobody waits without end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_engine.exceptions import GateRefusedError, ShieldError, StoreBusyError
from storage_engine.own_directory import DIRECTORY, locked
from storage_engine.rocketmq.live import local_hold, marker
from storage_engine.shield import index
from storage_engine.shield.index import locked_shield, opened_shield

KEEPS_IT = """
import os, signal, sys
from storage_engine.own_directory import locked
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

    settled = local_hold.settled
    monkeypatch.setattr(local_hold, "settled", lambda root: settled(root, wait_seconds=WAIT_SECONDS))
    memories = local_hold.HoldMemories(Journal(), tmp_path)
    with (
        kept_by_a_stopped_process(tmp_path, local_hold._LOCK),
        pytest.raises(GateRefusedError, match="another process has the lock"),
    ):
        memories.save({"manager": "me", "boot_timestamp_ms": 1})
