"""SIGKILL at deletions of the cleanup loop, without and with a lake. ``make stress`` kills more often."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rounds import rounds

ROOT = Path(__file__).parents[3]
KILLS = rounds("STORAGE_ENGINE_CLEANUP_KILLS", 4, 12)

pytestmark = [pytest.mark.slow, pytest.mark.again]


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("how", "kills"), [((), KILLS), (("--proven",), KILLS // 4)], ids=["alone", "with a lake"]
)
def test_no_kill_at_a_deletion_breaks_a_promise(how: tuple[str, ...], kills: int) -> None:
    command = [sys.executable, "-m", "tests.rocketmq.engine.killing_cleanup", "--runs", str(kills), *how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_100, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("run ") == kills
