"""Archiving, collecting garbage and restoring, killed at random instants, lose, repeat and leave nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rounds import rounds

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).with_name("random_kill_runner.py")
ROUNDS = rounds("STORAGE_ENGINE_KILL_ROUNDS", 1, 20)
SEED = int(os.environ.get("STORAGE_ENGINE_SEED", "1"))


@pytest.mark.again
@pytest.mark.timeout(600 if ROUNDS < 10 else 7200)
def test_killed_anywhere_each_segment_is_in_the_lake_once_and_comes_back(
    segments: list[Path], tmp_path: Path
) -> None:
    command = [sys.executable, str(RUNNER), str(segments[0].parent), str(tmp_path / "work")]
    done = subprocess.run([*command, str(ROUNDS), str(SEED)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert seen["rounds"] == ROUNDS
    assert sum(seen["kills"].values()) >= ROUNDS
