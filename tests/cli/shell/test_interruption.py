"""Ctrl-C, SIGTERM and a reader that goes away, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from storage_engine.cli.shell.interruption import INTERRUPTED

pytestmark = pytest.mark.slow

COMMAND = Path(sysconfig.get_path("scripts")) / "storage-engine"
SLOW = ("--archive-bytes-per-second", "1KB")
"""The first segment alone takes half an hour, in threads that wait for nobody."""


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start an archive of a store that takes half an hour, and wait until its threads read."""
    processes = []

    def start(store: Path, lake: Path) -> subprocess.Popen[str]:
        words = [str(COMMAND), "archive", str(store), "--lake", str(lake), *SLOW]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        deadline, seen = time.monotonic() + 60, 0
        while seen < 5:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            seen = seen + 1 if _reads(process.pid, store / "commitlog") else 0
            time.sleep(0.05)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def _reads(pid: int, directory: Path) -> bool:
    """Return whether a process has a file of a directory open."""
    opened = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            opened.append(fd.readlink())
    return any(path.parent == directory for path in opened)


def _ended(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, float, str]:
    """Send a signal; returns exit code, seconds that it took, and stderr."""
    began = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, time.monotonic() - began, err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.again)]
)
def test_a_signal_ends_a_command_in_time_and_it_goes_on(cli, started, store, lake, number, code) -> None:
    process = started(store, lake)
    ended, seconds, err = _ended(process, number)
    assert ended == code
    # A second, and what a loaded machine adds to it; to its end it would take half an hour.
    assert seconds < 20
    assert INTERRUPTED in err
    assert "Traceback" not in err
    assert len(cli("archive", store, "--lake", lake, "--json").json["archived"]) == 2


IN_A_CALLBACK = """
import ctypes, signal, time
from storage_engine.cli.shell.interruption import interruptible

with interruptible():
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()
    time.sleep(60)
"""


def test_a_signal_inside_a_callback_of_compiled_code_ends_a_command_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_CALLBACK], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, INTERRUPTED + "\n")


@pytest.mark.again
def test_a_reader_that_goes_away_ends_a_command_in_silence(store) -> None:
    for json in ((), ("--json",)):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [str(COMMAND), "inspect", str(store), *json],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (141, "")
