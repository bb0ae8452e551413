"""SIGKILL while messages are written. ``make stress`` kills 500 times."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_no_kill_breaks_a_promise() -> None:
    runs = os.environ.get("STORAGE_ENGINE_ENGINE_KILLS", "5")
    command = [sys.executable, "-m", "tests.rocketmq.engine.killing", "--runs", runs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("run ") == int(runs)
