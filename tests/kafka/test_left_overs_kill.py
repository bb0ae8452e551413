"""The removal of what a stopped broker left, killed anywhere and run again, ends as one nobody killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.services.power_loss import compiled_recorder
from tests.services.runners import told_by


def tried(tmp_path: Path, which: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    seen, said = told_by(
        "-m",
        "tests.kafka.task_kill_runner",
        tmp_path / "work",
        which,
        cwd=Path(__file__).parents[2],
        env=env or {**os.environ},
    )
    assert seen["problems"] == [], said[-4000:]
    assert len([name for name in seen["removed"] if not name.endswith("-delete")]) == 8
    assert seen["end"]["open"] == []
    assert [files for files, _ in seen["end"]["results"].values()] == [4, 0, 0, 0, 4]
    found: dict[str, Any] = seen
    return found


@pytest.mark.timeout(300)
def test_a_killed_removal_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    assert tried(tmp_path, "few")["tried"] == 2


@pytest.mark.again
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_it_does_wherever_it_is_killed(tmp_path: Path) -> None:
    assert tried(tmp_path, "every")["tried"] > 30


@pytest.mark.again
@pytest.mark.integration
@pytest.mark.timeout(3600)
def test_after_a_power_loss_each_file_is_where_it_was_or_in_the_lake(tmp_path: Path) -> None:
    recorder = {**os.environ, "LD_PRELOAD": str(compiled_recorder(tmp_path))}
    assert tried(tmp_path, "power", recorder)["tried"] == 3 * 9
