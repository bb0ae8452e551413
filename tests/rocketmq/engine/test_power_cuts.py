"""Power cuts while messages are written or recovered. ``make stress`` cuts 300 times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rounds import rounds

ROOT = Path(__file__).parents[3]
CUTS = rounds("STORAGE_ENGINE_ENGINE_CUTS", 15, 60)


@pytest.mark.again
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_power_cut_breaks_a_promise() -> None:
    command = [sys.executable, "-m", "tests.rocketmq.engine.power_cuts", "--cuts", str(CUTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("cut ") == CUTS
