"""relocate, copy, promote and rebuild, killed anywhere and run again, end as if nobody had killed them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rounds import rounds

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).with_name("command_kill_runner.py")
KILLS = rounds("STORAGE_ENGINE_COMMAND_KILLS", 1, 1_000)
"""At most so many a command; more than it has operations means every one of them."""
CASES = [] if KILLS > 1 else ["relocate a plain copy", "copy what is new", "promote", "rebuild two branches"]
"""Each command where it has most to do; none means all that the script knows."""


@pytest.mark.timeout(600 if KILLS < 10 else 7200)
def test_a_killed_command_that_is_run_again_ends_as_an_undisturbed_one(
    segments: list[Path], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(RUNNER), str(segments[0].parent), str(tmp_path / "work"), str(KILLS), *CASES],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["problems"] == [], done.stderr[-4000:]
    assert seen["kills"].keys() >= set(CASES)
    assert all(count >= min(KILLS, 2) for count in seen["kills"].values())
