"""What is said of a lake, also of one that no command opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.identity import lake_id_of
from storage_engine.lake.catalog.tables import SCHEMA_VERSION_PROPERTY
from storage_engine.lake.move.describing import describe
from storage_engine.lake.soundness.receipts import receipt_history
from storage_engine.model.proof.receipt import ChainHead
from tests.lake.lake_acts import archive, at, tree


@pytest.mark.slow
def test_a_lake_is_described_and_not_changed(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    lake = filled(1)
    archive(make_jobs, lake, segments[2])
    before = tree(tmp_path / "lake")
    found = describe(at(tmp_path / "lake"))
    assert (found.lake_id, found.refused, found.copy_of) == (lake_id_of(lake.segments()), "", None)
    receipts_table, _, _ = found.tables
    assert (receipts_table.name, receipts_table.file_count, receipts_table.row_count) == ("segments", 2, 2)
    assert {table.mark.metadata for table in found.tables if table.mark} == {
        table.metadata for table in found.tables
    }
    (store,) = found.stores
    assert store.ranges == (("commitlog", 0, 0, 1 << 20), ("commitlog", 0, 2 << 20, 3 << 20))
    head = ChainHead.of(receipt_history(lake, "store-1"))
    assert (store.head_sequence, store.head_hash) == (head.sequence, head.row_hash)
    assert tree(tmp_path / "lake") == before


def test_a_moved_lake_says_why_it_is_refused_and_what_it_has(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path
) -> None:
    filled(1)
    (tmp_path / "lake").rename(tmp_path / "moved")
    found = describe(at(tmp_path / "moved"))
    assert "storage-engine lake relocate" in found.refused
    assert found.stores[0].segment_count == 1
    assert found.tables[0].named_location == f"file://{tmp_path}/lake/warehouse/storage_engine/segments"


def test_a_lake_without_catalog_says_that(filled: Callable[[int], Lake], tmp_path: Path) -> None:
    filled(1)
    (tmp_path / "lake" / "catalog.db").unlink()
    found = describe(at(tmp_path / "lake"))
    assert (found.catalog, found.tables, "expected the catalog" in found.refused) == (None, (), True)
    assert not (tmp_path / "lake" / "catalog.db").exists()


def test_a_lake_of_a_newer_major_version_is_described_as_far_as_that_is_known(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path
) -> None:
    lake = filled(1)
    for table in lake.every_table():
        with table.transaction() as change:
            change.set_properties({SCHEMA_VERSION_PROPERTY: "4.0"})
    before = tree(tmp_path / "lake")
    found = describe(at(tmp_path / "lake"))
    assert "found 4.0" in found.refused
    assert (found.lake_id, found.catalog) == (lake_id_of(lake.segments()), lake.catalog_id)
    assert [(table.schema_version, table.file_count, table.fault) for table in found.tables] == [
        ("4.0", 1, ""),
        ("4.0", 1, ""),
        ("4.0", 0, ""),
    ]
    assert found.stores == ()
    assert tree(tmp_path / "lake") == before
