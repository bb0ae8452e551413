"""Killed anywhere, the deletion of a segment with a companion is finished by whichever run comes next."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.runners import told_by


@pytest.mark.again
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_deletion_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    ends, said = told_by(
        "-m", "tests.retention.companion_kill_runner", tmp_path, cwd=Path(__file__).parents[2]
    )
    for end, seen in ends.items():
        assert seen["problems"] == [], said[-4000:]
        # Both files of the segment were removed, its own first and durably.
        acts = [one for one in seen["operations"] if one.startswith("release: ")]
        verb = "rename" if end == "undo" else "unlink"
        removed = [at for at, one in enumerate(acts) if one.startswith(f"release: {verb} {0:020d}.")]
        assert [Path(acts[at]).suffix for at in removed] == [".txt", ".count"]
        assert any("fsync" in one for one in acts[removed[0] : removed[1]])
        kinds = {Path(name).suffix for name in seen["end"]["store"] if f"{0:020d}." in name}
        assert kinds == ({".txt", ".count", ".index"} if end == "undo" else set())
