"""What the tests of collecting garbage share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pyiceberg.table import Table

from storage_engine.lake.catalog.catalog import Lake, connect
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import lake_id_of, mark_of, put_mark
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.gc.garbage import Collection, collect
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.proof.receipt import Receipt
from tests.services.restoring import restore

DAY_SECONDS = 86_400


def collected(lake: Lake, *, delete: bool = False, trash_ms: int = 1 << 40) -> Collection:
    """Without a grace: everything counts as old."""
    return collect(lake, grace_ms=0, delete=delete, trash_ms=trash_ms)


def root_of(table: Table) -> Path:
    root = local_path(table.location())
    assert root is not None
    return root


def local(location: str) -> Path:
    path = local_path(location)
    assert path is not None
    return path


def names(files: object) -> set[str]:
    """The last parts of the paths of garbage or orphans."""
    return {Path(file.path).name for file in files}  # type: ignore[attr-defined]


def make_old(path: Path, days: int = 2) -> None:
    found = path.stat()
    os.utime(path, ns=(0, found.st_mtime_ns - days * DAY_SECONDS * 10**9))


def expire_snapshots(table: Table) -> None:
    """All but the current one."""
    current = table.current_snapshot()
    old = [snapshot.snapshot_id for snapshot in table.metadata.snapshots if snapshot != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()


def unchecked(config: LakeConfig) -> Lake:
    """A lake that is opened without a look at whose it is, with marks that agree with its catalog."""
    lake = connect(config)
    for table in lake.tables():
        put_mark(table.io, table.location(), mark_of(table, lake_id_of(table) or "", lake.catalog_id))
    return lake


def check_whole(lake: Lake, wanted: dict[str, bytes], target: Path) -> None:
    """Make sure that every receipt holds, and that these segments, by store and name, come back."""
    found = {}
    for store in list_stores(lake):
        rows = receipts(lake, store.store_id)
        assert broken_receipts(lake, rows, Depth.FILES) == {}
        for file in restore(lake, store.store_id, target / store.store_id, files_only=True):
            path = Path(file.path)
            found[f"{store.store_id}/{path.name}"] = path.read_bytes()
    assert found == wanted


def data_file(lake: Lake, row: Receipt) -> Path:
    return local(data_file_of(lake.messages(), row))


def second_copy(lake: Lake, row: Receipt, attempt: str = "01234567") -> Path:
    """A copy of a segment's data file as another attempt would have named it."""
    file = data_file(lake, row)
    copy = file.with_name(f"{file.stem}-{attempt}.parquet")
    shutil.copyfile(file, copy)
    return copy
