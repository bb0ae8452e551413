"""A run killed anywhere and run again ends as one that nobody killed, and no byte is ever homeless."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.journal.journal import clock_ms
from tests.rounds import rounds
from tests.services.runners import told_by

RUNNER = Path(__file__).with_name("kill_runner.py")
KILLS = rounds("STORAGE_ENGINE_KILLS", 0, 1_000)
"""At most so many; more than there are operations means every one of them, 0 one of each kind."""
STEPS = [
    "init_lake",
    "sense",
    "make_plan",
    "archive",
    "record_lag",
    "release",
    "clean_dependents",
    "flush_checkpoint",
    "finish",
]


@pytest.mark.slow
@pytest.mark.timeout(900 if KILLS < 100 else 7200)
def test_a_killed_run_ends_as_an_undisturbed_one(store_copy: Callable[[str], Path], tmp_path: Path) -> None:
    pristine = store_copy("clean-stop")
    old_ns = clock_ms() * 10**6 - 100 * 3600 * 10**9
    for segment in (pristine / "commitlog").iterdir():
        os.utime(segment, ns=(old_ns, old_ns))
    work = tmp_path / "work"
    seen, said = told_by(RUNNER, pristine, work, KILLS)
    assert seen["problems"] == [], said[-4000:]
    assert seen["kills"] >= min(KILLS or len(STEPS) + 11, len(seen["operations"]))
    assert list(dict.fromkeys(operation.partition(":")[0] for operation in seen["operations"])) == STEPS
    end = seen["end"]
    assert (end["run"], end["outcome"], end["broken"], end["left_over"]) == ("finished", "done", [], [])
    assert [receipt[2] for receipt in end["receipts"]] == [0, 1 << 20]
    # One row, and the stamp has the SHA-256 of its run's events.
    assert [row[1:5] for row in end["deletions"]] == [["commitlog", 0, 2 << 20, "released"]]
    assert end["stamped"] is True
    assert end["deleted"] == ["", f"commitlog/{0:020d}", f"commitlog/{1 << 20:020d}"]
