"""A cleanup of a stopped node, killed anywhere and run again, ends as one that nobody killed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.kafka.stopped_nodes import LOGS
from tests.services.power_loss import compiled_recorder
from tests.services.runners import told_by


def kill(tmp_path: Path, which: str) -> None:
    seen, said = told_by(
        "-m", "tests.kafka.stopped_kill_runner", tmp_path, which, cwd=Path(__file__).parents[2]
    )
    assert seen["problems"] == [], said[-4000:]
    assert seen["end"]["outcome"] == "done"
    assert seen["end"]["broken"] == []
    assert len([subject for subject in seen["end"]["deleted"] if subject]) == 4
    # Of each segment its own file goes first, durably, and the next one goes after all of it.
    acts = [one.removeprefix("release: ") for one in seen["operations"] if one.startswith("release: ")]
    removed = [at for at, one in enumerate(acts) if re.match(r"unlink [0-9]{20}\.", one)]
    assert [acts[at].removeprefix("unlink ") for at in removed] == [
        f"{base:020d}.{suffix}"
        for _ in LOGS
        for base, suffixes in ((0, ("log", "txnindex")), (2, ("log", "snapshot", "txnindex")))
        for suffix in suffixes
    ]
    assert all("fsync" in acts[at + 1] for at in removed)
    assert seen["kills"] > 3


@pytest.mark.timeout(300)
def test_a_killed_cleanup_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    kill(tmp_path, "few")


@pytest.mark.again
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_it_does_wherever_it_is_killed(tmp_path: Path) -> None:
    kill(tmp_path, "every")


@pytest.mark.again
@pytest.mark.integration
@pytest.mark.timeout(3600)
def test_after_a_power_loss_each_segment_is_where_it_was_or_in_the_lake(tmp_path: Path) -> None:
    seen, said = told_by(
        "-m",
        "tests.kafka.stopped_power_runner",
        tmp_path / "work",
        cwd=Path(__file__).parents[2],
        env={**os.environ, "LD_PRELOAD": str(compiled_recorder(tmp_path))},
    )
    assert seen["problems"] == [], said[-4000:]
    assert len(seen["removed"]) == 18
    assert seen["cuts"] == 3 * 10
