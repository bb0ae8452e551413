"""The power goes right after a deletion: the bytes are in the store or in the lake, and a new run goes on.

When it goes right after a restore, everything is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.core.clock import clock_ms
from tests.rounds import rounds
from tests.services.power_loss import compiled_recorder
from tests.services.runners import told_by

OTHER_CUTS = rounds("STORAGE_ENGINE_POWER_CUTS", 0, 40)
"""Beside those with each loss after each deletion, or only after the last where there are no others."""


@pytest.mark.again
@pytest.mark.integration
@pytest.mark.timeout(900 if OTHER_CUTS < 10 else 7200)
def test_after_a_power_loss_every_segment_is_where_it_was_or_in_the_lake(
    store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    pristine = store_copy("clean-stop")
    old_ns = clock_ms() * 10**6 - 100 * 3600 * 10**9
    for segment in (pristine / "commitlog").iterdir():
        os.utime(segment, ns=(old_ns, old_ns))
    work = tmp_path / "work"
    seen, said = told_by(
        "-m",
        "tests.retention.power_loss_runner",
        pristine,
        work,
        OTHER_CUTS,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "LD_PRELOAD": str(compiled_recorder(tmp_path))},
    )
    assert seen["problems"] == [], said[-4000:]
    deletions = [f"U store/commitlog/{0:020d}", f"U store/commitlog/{1 << 20:020d}"]
    assert [event for event in seen["events"] if event.startswith("U store/commitlog/")] == deletions
    after_deletions = [event for event in deletions[-2 if OTHER_CUTS else -1 :] for _ in range(3)]
    assert [event for event, _ in seen["cuts"]][: len(after_deletions)] == after_deletions
    assert len(seen["cuts"]) >= len(after_deletions) + min(OTHER_CUTS, len(seen["events"]))
    assert seen["end"]["outcome"] == "done"
