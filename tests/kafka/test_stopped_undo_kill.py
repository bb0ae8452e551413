"""An undo of a stopped node, killed anywhere and done again, ends as one that nobody killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rounds import ALL
from tests.services.runners import told_by

pytestmark = [pytest.mark.slow, pytest.mark.again]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("end", ["undo", "maintain"])
def test_a_killed_quarantine_of_a_node_ends_as_an_undisturbed_one(tmp_path: Path, end: str) -> None:
    seen, said = told_by(
        "-m",
        "tests.kafka.stopped_undo_kill_runner",
        end,
        tmp_path,
        "every" if ALL else "few",
        cwd=Path(__file__).parents[2],
    )
    assert seen["problems"] == [], said[-4000:]
    assert seen["kills"] > 3
    moved = [one for one in seen["operations"] if one.startswith("release: rename") and one.endswith(".log")]
    assert len(moved) == 4
    if end == "undo":
        assert (seen["end"]["quarantines"], seen["end"]["aside"]) == (["undone"], [])
        assert len([name for name in seen["end"]["store"] if name.endswith(".log")]) == 7
    else:
        assert (seen["end"]["quarantines"], seen["end"]["aside"]) == (["emptied"], [])
