"""Killed anywhere and done again, a quarantine ends as one that nobody disturbed; no file is ever nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.journal.journal import clock_ms
from storage_engine.retention.quarantine.places import LEASED_KINDS
from storage_engine.same_bytes.trusted_times import mount_of
from tests.rounds import rounds
from tests.services.runners import told_by

pytestmark = [pytest.mark.slow, pytest.mark.again]

KILLS = rounds("STORAGE_ENGINE_UNDO_KILLS", 0, 2_000)
"""Of each; at most so many, more than there are operations means every one of them, 0 one of each kind."""


@pytest.mark.timeout(900 if KILLS < 100 else 7200)
@pytest.mark.parametrize("end", ["undo", "maintain"])
def test_a_killed_quarantine_ends_as_an_undisturbed_one(
    store_copy: Callable[[str], Path], tmp_path: Path, end: str
) -> None:
    pristine = store_copy("clean-stop")
    old_ns = clock_ms() * 10**6 - 100 * 3600 * 10**9
    for segment in (pristine / "commitlog").iterdir():
        os.utime(segment, ns=(old_ns, old_ns))
    seen, said = told_by(
        "-m",
        "tests.retention.quarantine.undo_kill_runner",
        end,
        pristine,
        tmp_path / "work",
        KILLS,
        cwd=Path(__file__).parents[3],
    )
    assert seen["problems"] == [], said[-4000:]
    assert seen["kills"] >= min(KILLS or 4, len(seen["operations"]))
    of_steps = list(dict.fromkeys(operation.partition(":")[0] for operation in seen["operations"]))
    assert of_steps == ["make_plan", "release", "clean_dependents", end]
    if end == "undo":
        assert seen["end"] == {"store": seen["pristine"], "quarantines": ["undone"]}
    else:
        assert seen["end"]["quarantines"] == ["emptied"]
        cuts = sum(operation.startswith("maintain: ftruncate") for operation in seen["operations"])
        mount = mount_of(tmp_path)
        assert cuts >= 3 or mount is None or mount.kind not in LEASED_KINDS
        assert seen["end"]["store"].items() < seen["pristine"].items()
