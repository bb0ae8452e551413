"""Many threads on one store for seconds. ``make stress`` does it for minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rocketmq.engine.crowding import SETTINGS

ROOT = Path(__file__).parents[3]


@pytest.mark.again
@pytest.mark.slow
def test_nothing_is_lost_where_all_work_at_once() -> None:
    # In a process of its own: a read of unmapped memory ends it.
    command = [sys.executable, "-m", "tests.rocketmq.engine.crowding", "--seconds", "0", "--round", "0.8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("round ") == len(SETTINGS)
