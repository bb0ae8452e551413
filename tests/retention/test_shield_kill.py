"""Tending a shield may be killed anywhere: what is removed from the log is in the shield or in the lake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rounds import rounds
from tests.services.runners import told_by

pytestmark = [pytest.mark.slow, pytest.mark.again]

ROOT = Path(__file__).resolve().parents[2]
KILLS = rounds("STORAGE_ENGINE_SHIELD_KILLS", 0, 1_000)
"""At most so many; more than there are operations means every one of them, 0 one of each kind."""


@pytest.mark.timeout(600 if KILLS < 100 else 7200)
def test_killed_anywhere_no_byte_is_homeless_and_the_next_call_ends_it(
    store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    pristine = store_copy("clean-stop")
    runner = "tests.retention.shield_kill_runner"
    seen, said = told_by("-m", runner, pristine, tmp_path / "work", KILLS, cwd=ROOT)
    assert seen["problems"] == [], said[-4000:]
    assert seen["kills"] >= (KILLS or 10) or KILLS >= 100
    assert [base for base, _ in seen["end"]["receipts"]][:2] == [0, 1 << 20]
    assert (seen["end"]["broken"], seen["end"]["shield"], seen["end"]["marked"]) == ([], False, False)
