"""A broker, the task beside it, or both, killed at random moments: what isn't in the lake is in the store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rounds import rounds
from tests.services.runners import told_by

pytestmark = [pytest.mark.integration, pytest.mark.again]

KILLS = rounds("STORAGE_ENGINE_BESIDE_KILLS", 1, 20)
SEED = int(os.environ.get("STORAGE_ENGINE_SEED", "1"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900 if KILLS < 10 else 7200)
def test_killed_anywhere_nothing_unarchived_goes_and_the_run_ends_exactly(tmp_path: Path) -> None:
    runner = "tests.integration.live_kill_runner"
    seen, said = told_by("-m", runner, tmp_path / "work", KILLS, SEED, cwd=ROOT)
    assert seen["problems"] == [], said[-4000:]
    assert sum(seen["kills"].values()) >= KILLS
    assert seen["released"] >= seen["rounds"]
    assert seen["messages"] > 0
