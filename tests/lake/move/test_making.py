"""A lake is made whole or not at all, however often its making was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage_engine.exceptions import LakeIdentityError, LakeMissingError
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import lake_id_of
from storage_engine.lake.move import making
from tests.rounds import rounds

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).parents[1] / "making_kill_runner.py"
KILLS = rounds("STORAGE_ENGINE_MAKING_KILLS", 4, 1_000)
"""At most so many; more than there are operations means every one of them."""


@pytest.mark.timeout(600 if KILLS < 100 else 3600)
def test_a_lake_whose_making_was_killed_is_made_when_it_is_asked_for_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(RUNNER), "make", str(tmp_path / "lake"), str(tmp_path / "work"), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["problems"] == [], done.stderr[-4000:]
    assert seen["kills"] >= min(KILLS, len(seen["operations"]))
    assert (seen["end"]["proven"], seen["end"]["one identity"], seen["end"]["marked"]) == (
        {},
        True,
        [True, True],
    )


def test_a_lake_that_another_process_makes_and_fills_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LakeConfig.local(tmp_path / "lake")
    made = making.make_lake(config)
    begun = Path(made.messages().location().removeprefix("file://")) / "data" / "0.parquet.partial"
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.write_bytes(b"PAR1")
    looks = 0

    def looked(config: LakeConfig) -> Lake:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise LakeMissingError("nobody had made it yet")
        return open_lake(config)

    monkeypatch.setattr(making, "open_lake", looked)
    assert lake_id_of(making.make_lake(config).segments()) == lake_id_of(made.segments())
    # Without a catalog that has it, these are another lake's files.
    (tmp_path / "lake" / "catalog.db").unlink()
    with pytest.raises(LakeIdentityError, match="expected an empty place"):
        making.make_lake(config)
