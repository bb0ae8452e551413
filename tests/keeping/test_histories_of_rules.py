"""Rules, holds, expiries, undos and removals that are killed, or whose machine loses its power."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rounds import rounds
from tests.services.moved_clock import with_moved_clock
from tests.services.power_loss import compiled_recorder
from tests.services.runners import told_by

CASES = rounds("STORAGE_ENGINE_RULE_CASES", 7, 1000)


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_what_was_to_stay_proves_itself_and_what_is_gone_has_its_record(tmp_path: Path) -> None:
    done, said = told_by(
        "-m",
        "tests.keeping.history_runner",
        tmp_path / "work",
        CASES,
        os.environ.get("STORAGE_ENGINE_SEED", "1"),
        cwd=Path(__file__).parents[2],
        env=with_moved_clock(tmp_path, compiled_recorder(tmp_path)),
    )
    assert done["killed"] + done["cut"] > CASES // 3, said[-4000:]
    assert {"expire", "undo", "trash-days", "hold", "lift", "keep"} <= set(done)
