"""Three topics in one log are kept for no day, 30 days and seven years: what goes when, and what stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rounds import rounds
from tests.services.moved_clock import with_moved_clock
from tests.services.runners import told_by

ROUNDS = rounds("STORAGE_ENGINE_DAYS_OF_A_YEAR", 6, 366)


@pytest.mark.slow
@pytest.mark.timeout(9000)
def test_each_day_what_is_past_leaves_with_a_record_and_the_rest_proves_itself(tmp_path: Path) -> None:
    days = max(1, 60 // ROUNDS)
    seen, said = told_by(
        "-m",
        "tests.keeping.year_runner",
        tmp_path / "work",
        ROUNDS,
        days,
        cwd=Path(__file__).parents[2],
        env=with_moved_clock(tmp_path),
    )
    *year, _, _, last = seen["states"]
    assert len(year) == ROUNDS, said[-4000:]
    assert year[-1]["expired"] > ROUNDS // 3, "those of topics that are kept for no day, or for a month"
    assert last["left out"] == 2 * (ROUNDS // 6), "those with a topic that isn't archived"
    left = [states.get("whole", 0) + states.get("partial", 0) for states in (year[-1], last)]
    assert left[0] >= ROUNDS // 3, "those with a topic that is kept for years, or for ever"
    assert left[1] == ROUNDS // 6, json.dumps(seen)
