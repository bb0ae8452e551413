"""The whole job on a lake that isn't local: archive, gate, verify, restore; and what must hold after it."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.file.scan import live_data_files
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake.verify.verify import verify
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore
from tests.lakes import make_lakes
from tests.services.restoring import restore

_EXPIRED_HOURS = 100
RUN = "r"


def lake_on(properties: Mapping[str, str], work: Path) -> LakeConfig:
    """A lake in an object store, with its catalog in a local SQLite file; each ``work`` has its own."""
    work.mkdir(parents=True, exist_ok=True)
    catalog = {"type": "sql", "uri": f"sqlite:///{work}/catalog.db?timeout=60"}
    warehouse = {"warehouse": f"{properties['warehouse']}/{work.name}"}
    return LakeConfig("storage_engine", {**catalog, **properties, **warehouse})


def expired_store(root: Path, work: Path, lake: LakeConfig) -> ManagedStore:
    """A managed store whose segments are all past their reserved time, and its lake."""
    old = time.time() - _EXPIRED_HOURS * 3600
    for segment in (root / "commitlog").iterdir():
        os.utime(segment, (old, old))
    return make_lakes(ManagedStore.local("s", str(root), work / "managed", lake=lake, time_zone="UTC"))


def archive_some(config: LakeConfig, root: Path, first: int, end: int) -> None:
    """Archive some of a store's segments, as store ``s``."""
    chosen = [
        Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED)
        for path in sorted((root / "commitlog").iterdir())[first:end]
    ]
    lake = open_lake(config)
    archive_all(
        lake,
        segment_jobs(lake, chosen, store_id="s", lineage=0, broker="rocketmq", store_root=str(root)),
    )


def contents(root: Path) -> dict[str, str]:
    """Name → SHA-256 of a store's segments."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((root / "commitlog").iterdir())
        if path.is_file()
    }


def plan(store: ManagedStore, max_segments: int | None = None) -> None:
    """Plan the deletion of what has expired, at most so many segments."""
    assert steps.make_plan(store, RUN, PlanRequest(manual=True, max_segments=max_segments)).delete_offsets


def archive(store: ManagedStore) -> None:
    """Archive what the plan deletes."""
    steps.archive(store, RUN, steps.archive_jobs(store, RUN))


def finish(store: ManagedStore, before: Mapping[str, str], restored: Path) -> tuple[Receipt, ...]:
    """Release, verify and restore, and check the outcome of each.

    :param before: :func:`contents` of the store when it was whole.
    """
    lake = open_lake(store.lake)
    check_exactly_once(lake)
    released = steps.release(store, RUN)
    assert not released.kept
    (summary,) = list_stores(lake)
    proven = receipts(lake, summary.store_id)
    gone = set(before) - set(contents(Path(store.root)))
    assert gone == {f"{receipt.base_offset:020d}" for receipt in proven}
    (verified,) = verify(lake, VerifyLevel.BYTES)
    assert verified.overall is Status.OK, verified
    restore(lake, summary.store_id, restored, files_only=True)
    assert contents(restored) == {name: before[name] for name in gone}
    return proven


def check_exactly_once(lake: Lake) -> None:
    """Each receipted segment's rows are in the table once, in the very file that its receipt names."""
    for summary in list_stores(lake):
        proven = receipts(lake, summary.store_id)
        assert len({receipt.base_offset for receipt in proven}) == len(proven)
        table = lake.messages()
        live = Counter(file.location for file in live_data_files(table, summary.store_id))
        assert live == Counter(data_file_of(table, receipt) for receipt in proven)
