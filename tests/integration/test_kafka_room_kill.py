"""Who makes room in a stopped node is killed at its operations, and the same run ends it: nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rounds import rounds
from tests.services.runners import told_by

pytestmark = [pytest.mark.integration, pytest.mark.again]

KILLS = rounds("STORAGE_ENGINE_KAFKA_ROOM_KILLS", 4, 16)
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(3600)
def test_killed_anywhere_no_file_goes_before_its_leader_begins_behind_it(tmp_path: Path) -> None:
    seen, said = told_by("-m", "tests.integration.kafka_room_kill_runner", tmp_path / "work", KILLS, cwd=ROOT)
    assert seen["problems"] == [], said[-4000:]
    assert sum(seen["kills"].values()) >= 4
    for what in ("ask for the deletion of records", "told of the deletion of records"):
        assert f"release: {what}" in seen["kills"]
