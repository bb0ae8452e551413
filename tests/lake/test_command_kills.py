"""relocate, copy, promote, rebuild and a hold, killed and run again, end as if nobody had killed them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rounds import rounds
from tests.services.runners import told_by

pytestmark = [pytest.mark.slow, pytest.mark.again]

RUNNER = Path(__file__).with_name("command_kill_runner.py")
KILLS = rounds("STORAGE_ENGINE_COMMAND_KILLS", 1, 1_000)
"""At most so many a command; more than it has operations means every one of them."""
CASES = (
    []
    if KILLS > 1
    else ["hold", "relocate a plain copy", "copy what is new", "promote", "rebuild two branches"]
)
"""Each command where it has most to do; none means all that the script knows."""


@pytest.mark.timeout(600 if KILLS < 10 else 7200)
def test_a_killed_command_that_is_run_again_ends_as_an_undisturbed_one(
    segments: list[Path], tmp_path: Path
) -> None:
    seen, said = told_by(
        RUNNER,
        segments[0].parent,
        tmp_path / "work",
        KILLS,
        *CASES,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert seen["problems"] == [], said[-4000:]
    assert seen["kills"].keys() >= set(CASES)
    assert all(count >= min(KILLS, 2) for count in seen["kills"].values())
