"""A lake on local disk, and segments of real stores to put into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.lake.archive import SegmentJob, segment_jobs
from storage_engine.lake.catalog import Lake, open_lake
from storage_engine.lake.config import LakeConfig
from storage_engine.model.store import FileFacts, Segment, SegmentState

STORE_ID = "6f6c1b4e-7a52-4bb8-9a53-0d6f5f3f3c10"

MakeJobs = Callable[..., tuple[SegmentJob, ...]]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(LakeConfig.local(tmp_path / "lake"), create=True)


@pytest.fixture
def make_jobs() -> MakeJobs:
    """Jobs for segment files, by their names; the caller says which lake."""

    def make(
        lake: Lake,
        *paths: Path,
        lineage: int = 0,
        store_id: str = STORE_ID,
        accept_damage: bool = False,
    ) -> tuple[SegmentJob, ...]:
        segments = [
            Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED) for path in paths
        ]
        return segment_jobs(
            lake,
            segments,
            store_id=store_id,
            lineage=lineage,
            broker="rocketmq",
            store_root=str(paths[0].parents[1]),
            accept_damage=accept_damage,
        )

    return make
