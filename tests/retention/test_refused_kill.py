"""A partly refused release that is killed and run again ends as one that nobody killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.retention.refused_kill_runner import FAULTS, SOUND
from tests.rounds import ALL
from tests.services.runners import told_by

RUNNER = Path(__file__).with_name("refused_kill_runner.py")


@pytest.mark.again
@pytest.mark.slow
@pytest.mark.timeout(600 if not ALL else 3600)
def test_a_killed_release_ends_with_the_same_logs_refused(tmp_path: Path) -> None:
    seen, said = told_by(RUNNER, tmp_path, "all" if ALL else "few")
    assert seen["problems"] == [], said[-4000:]
    assert seen["kills"] >= (50 if ALL else 2)
    end = seen["end"]
    assert [log for log, *_ in end["refused"]] == [log for log in FAULTS if log not in SOUND]
    assert [subject.partition("/")[0] for subject in end["results"] if subject] == [
        *("first",) * 2,
        *("last",) * 2,
        "went",
    ]
    ((drift, _),) = end["gone"]
    assert (drift["log"], drift["start_offset"]) == ("went", 0)
    assert set(end["results"].values()) == {1}
    assert end["end"][:3] == ["finished", "released-in-part", False]
    # Those of each log that goes on, of the one whose segment had gone too.
    assert len(end["dependents"]) == 2 * len(SOUND)
