"""What the released package wrote, today's code goes on from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from storage_engine.lake.config import LakeConfig
from storage_engine.model.validation import Status
from storage_engine.model.verification import VerifyLevel
from storage_engine.retention.verification import verify_lake
from tests.services.released import Released


def test_a_lake_of_the_released_package_is_verified(
    released: Released, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    store, lake = store_copy("edge-frames"), tmp_path / "lake"
    for segment in (store / "commitlog").iterdir():
        os.utime(segment, (0, 0))
    released.cli("archive", store, "--lake", lake)
    (found,) = verify_lake(LakeConfig.local(lake), f"sqlite:///{lake / 'journal.db'}", VerifyLevel.BYTES)
    assert (found.overall, found.receipt_count) == (Status.OK, 2)
