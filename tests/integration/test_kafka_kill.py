"""A release beside a real broker, killed at its operations: what isn't in the lake is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.kafka_broker import VERSIONS
from tests.rounds import rounds
from tests.services.runners import told_by

pytestmark = [pytest.mark.integration, pytest.mark.again]

KILLS = rounds("STORAGE_ENGINE_KAFKA_KILLS", 4, 24)
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", VERSIONS)
def test_killed_anywhere_nothing_unproven_goes_and_the_run_ends_exactly(tmp_path: Path, version: str) -> None:
    runner = "tests.integration.kafka_kill_runner"
    seen, said = told_by("-m", runner, tmp_path / "work", version, KILLS, cwd=ROOT)
    assert seen["problems"] == [], said[-4000:]
    assert sum(seen["kills"].values()) >= min(KILLS, 4)
    assert "release: ask for the deletion of records" in seen["kills"]
    assert "release: told of the deletion of records" in seen["kills"]
