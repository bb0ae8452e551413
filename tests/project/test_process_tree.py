"""Every process that was started ends, however far down it was started and whoever died in between."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from storage_engine.project.up import ProcessTree

_SLEEP = "import time; time.sleep(600)"
_DAEMON = f"""
import os, subprocess, sys, time
# A child in a session of its own, whose parent dies at once: found by no parent id, by no group.
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-c", {_SLEEP!r}], start_new_session=True)
    os._exit(0)
os.wait()
"""
_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _has_orphan(tree: ProcessTree) -> bool:
    """Whether what was started last is there, and who started it is gone."""
    living = tree.living()
    known = {process.pid for process in living}
    with suppress(psutil.NoSuchProcess):
        return any(one.cmdline()[-1:] == [_SLEEP] and one.ppid() not in known for one in living)
    return False


@pytest.fixture
def tree() -> Iterator[ProcessTree]:
    tree = ProcessTree()
    yield tree
    tree.stop()


def test_an_orphan_in_its_own_session_is_found_and_ended(tree: ProcessTree, tmp_path: Path) -> None:
    tree.start("parent", [sys.executable, "-c", _DAEMON + _SLEEP], os.environ, tmp_path / "log")
    try:
        _wait_until(lambda: _has_orphan(tree) and len(tree.living()) == 2)
    except AssertionError:
        living = [(process.pid, process.ppid(), process.cmdline()) for process in tree.living()]
        pytest.fail(f"living {living}, ended {tree.ended()}, said {(tmp_path / 'log').read_text()!r}")
    tree.stop()
    assert tree.living() == []


def test_an_orphan_is_ended_even_when_the_started_process_is_gone(tree: ProcessTree, tmp_path: Path) -> None:
    tree.start("parent", [sys.executable, "-c", _DAEMON], os.environ, tmp_path / "log")
    _wait_until(lambda: tree.ended() == ("parent",) and _has_orphan(tree) and len(tree.living()) == 1)
    tree.stop()
    assert tree.living() == []


def test_a_process_that_ignores_the_request_is_killed(
    tree: ProcessTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.project.up._ASK_SECONDS", 0.5)
    tree.start("stubborn", [sys.executable, "-c", _STUBBORN], os.environ, tmp_path / "log")
    _wait_until(lambda: len(tree.living()) == 1)
    time.sleep(0.3)
    tree.stop()
    assert tree.living() == []


def test_two_trees_leave_each_other_alone(tmp_path: Path) -> None:
    one, other = ProcessTree(), ProcessTree()
    try:
        one.start("a", [sys.executable, "-c", _SLEEP], os.environ, tmp_path / "a")
        other.start("b", [sys.executable, "-c", _SLEEP], os.environ, tmp_path / "b")
        _wait_until(lambda: len(one.living()) == 1 and len(other.living()) == 1)
        one.stop()
        assert len(other.living()) == 1
    finally:
        other.stop()


def test_exit_status_and_output_of_a_process_that_ends_are_kept(tree: ProcessTree, tmp_path: Path) -> None:
    tree.start("p", [sys.executable, "-c", "print('said'); raise SystemExit(3)"], {}, tmp_path / "log")
    assert tree.wait("p") == 3
    assert (tmp_path / "log").read_text() == "said\n"
