"""A broker, the task beside it, or both, killed at random moments: what isn't in the lake is in the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rounds import rounds

pytestmark = pytest.mark.integration

KILLS = rounds("STORAGE_ENGINE_BESIDE_KILLS", 1, 20)
SEED = int(os.environ.get("STORAGE_ENGINE_SEED", "1"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900 if KILLS < 10 else 7200)
def test_killed_anywhere_nothing_unarchived_goes_and_the_run_ends_exactly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.beside_kill_runner", str(tmp_path / "work")]
    done = subprocess.run(
        [*command, str(KILLS), str(SEED)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert seen["problems"] == [], done.stderr[-4000:]
    assert sum(seen["kills"].values()) >= KILLS
    assert seen["released"] >= seen["rounds"]
    assert seen["messages"] > 0
