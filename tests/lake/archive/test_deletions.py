"""The lake's table of deletions: it goes where the lake goes, and no lake is less of one for its loss."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.brokers import find_broker
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.archive.deletions import add_deletions, drop_unreadable, read_deletions
from storage_engine.lake.catalog import catalog, tables, writing
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.identity import MARK_NAME, read_mark
from storage_engine.lake.catalog.writing import ready_to_write
from storage_engine.lake.gc.garbage_kind import GarbageKind
from storage_engine.lake.gc.snapshot_expiry import LakePolicy, maintain_lake
from storage_engine.lake.move.copying import copy_lake, promote
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.storage.small_files import forget_files
from storage_engine.lake.verify.verify import verify
from storage_engine.model.proof.deleted_range import DeletedRange
from storage_engine.model.report.validation import Status, VerifyLevel
from tests.lake.garbage_helpers import collected, expire_snapshots, root_of
from tests.lake.lake_acts import archive, at, copy_tree
from tests.rounds import again_but

pytestmark = pytest.mark.slow

ROW = DeletedRange(
    "store-1", 0, "commitlog", 0, 1 << 20, "r", 1, "released", "expired", "old", "who", 2, 3, "f" * 64
)


def row(number: int) -> DeletedRange:
    return replace(ROW, start_offset=number << 20, end_offset=(number + 1) << 20, event_id=number)


def write(lake: Lake, *rows: DeletedRange) -> None:
    def missing(known: Sequence[DeletedRange]) -> list[DeletedRange]:
        return [row for row in rows if row not in known]

    add_deletions(lake, "store-1", missing)


@pytest.fixture
def lake(filled: Callable[[int], Lake]) -> Lake:
    lake = filled(1)
    write(lake, row(0))
    return lake


def rows_at(directory: Path) -> list[DeletedRange]:
    return list(read_deletions(open_lake(at(directory)), "store-1"))


def test_every_column_of_every_table_has_a_comment(lake: Lake) -> None:
    for table in lake.every_table():
        assert [field.name for field in table.schema().fields if not field.doc] == []
    assert len(lake.every_table()) == 3
    for broker in ("rocketmq", "kafka"):
        columns = find_broker(broker).codec
        assert set(columns.columns.comments) == set(columns.schema.names)


def test_a_lake_without_comments_gets_them_and_the_table_from_the_next_writer(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    with monkeypatch.context() as older:
        for module in (tables, writing, catalog):
            if hasattr(module, "missing_comments"):
                older.setattr(module, "missing_comments", lambda _table, _schema: [])
        for table in lake.tables():
            with table.transaction() as change, change.update_schema() as update:
                for field in table.schema().fields:
                    update.update_column(field.name, doc="")
        lake.catalog.drop_table(lake.deletions().name())
        shutil.rmtree(tmp_path / "lake/warehouse/storage_engine/deletions")
    versions = [table.properties[tables.SCHEMA_VERSION_PROPERTY] for table in lake.tables()]
    ids = [[field.field_id for field in table.schema().fields] for table in lake.tables()]
    for table in lake.tables():
        assert not any(field.doc for field in table.schema().fields)
    archive(make_jobs, lake, segments[1])
    test_every_column_of_every_table_has_a_comment(lake)
    assert [table.properties[tables.SCHEMA_VERSION_PROPERTY] for table in lake.tables()] == versions
    assert [[field.field_id for field in table.schema().fields] for table in lake.tables()] == ids
    before = [table.metadata_location for table in lake.every_table()]
    ready_to_write(lake)
    assert [table.metadata_location for table in lake.every_table()] == before


def test_it_has_the_lakes_identity_and_a_mark_of_its_own(lake: Lake) -> None:
    table = lake.deletions()
    assert table is not None
    mark = read_mark(table)
    assert mark is not None
    assert mark.metadata == table.metadata_location.rpartition("/")[2]
    assert mark.lake_id == lake.segments().properties["storage-engine.lake-id"]


def test_it_goes_where_the_lake_goes(lake: Lake, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy_lake(lake, at(copy))
    assert rows_at(copy) == [row(0)]
    write(lake, row(1))
    copy_lake(lake, at(copy))
    assert rows_at(copy) == [row(0), row(1)]
    copy.rename(tmp_path / "moved")
    relocate(at(tmp_path / "moved"))
    assert rows_at(tmp_path / "moved") == [row(0), row(1)]
    promote(open_lake(at(tmp_path / "moved")), "ann", "the data centre burnt")
    write(open_lake(at(tmp_path / "moved")), row(2))
    (tmp_path / "moved/catalog.db").unlink()
    assert rebuild(at(tmp_path / "moved"), {}).tables[-1].table == "deletions"
    assert rows_at(tmp_path / "moved") == [row(0), row(1), row(2)]
    plain = copy_tree(tmp_path / "lake", tmp_path / "plain")
    rebuild(at(plain), {})
    assert rows_at(plain) == [row(0), row(1)]


def test_its_small_files_are_merged_and_the_old_ones_are_garbage(lake: Lake) -> None:
    for number in range(1, 6):
        write(lake, row(number))
    table = lake.deletions()
    assert table is not None
    assert len(list(table.scan().plan_files())) < 4
    expire_snapshots(table)
    files = set(root_of(table).rglob("data/**/*.parquet"))
    taken = collected(lake, delete=True).taken
    assert [file.kind for file in taken if file.table == "deletions"].count(GarbageKind.DELETIONS) == 4
    left = set(root_of(table).rglob("data/**/*.parquet")) & files
    assert len(left) == len(list(table.scan().plan_files()))
    assert list(read_deletions(lake, "store-1")) == [row(number) for number in range(6)]


def test_its_snapshots_expire(lake: Lake) -> None:
    for number in range(1, 4):
        write(lake, row(number))
    few = LakePolicy(snapshot_age_ms=0, least_snapshots=1, most_snapshots=1)
    done = maintain_lake(lake, few, 1 << 50)
    assert [(it.table, it.left) for it in done.tables][-1] == ("deletions", 1)
    assert len(read_deletions(lake, "store-1")) == 4


LOSSES = {
    "the catalog's row": lambda lake, root: lake.catalog.drop_table(lake.deletions().name()),
    "all": lambda lake, root: shutil.rmtree(root),
    "its metadata": lambda lake, root: shutil.rmtree(root / "metadata"),
    "its data": lambda lake, root: shutil.rmtree(root / "data"),
    "its mark": lambda lake, root: (root / MARK_NAME).unlink(),
    "sense in its data": lambda lake, root: spoil(root, "*.parquet"),
    "sense in its metadata": lambda lake, root: spoil(root, "*.metadata.json"),
    "sense in its manifests": lambda lake, root: spoil(root, "*.avro"),
    "sense in its mark": lambda lake, root: spoil(root, MARK_NAME),
}
MENDED_BY_HAND = ("its mark", "sense in its mark")
"""What relocate mends, as for the other tables."""


def spoil(root: Path, pattern: str) -> None:
    for file in root.rglob(pattern):
        file.write_bytes(b"{" + bytes(file.stat().st_size - 1))


@pytest.mark.parametrize("lost", again_but(LOSSES, "sense in its manifests"))
def test_no_lake_is_refused_for_its_loss_and_it_is_made_again(
    lake: Lake, segments: list[Path], make_jobs, tmp_path: Path, lost: str
) -> None:
    LOSSES[lost](lake, tmp_path / "lake/warehouse/storage_engine/deletions")
    forget_files()
    lake = open_lake(at(tmp_path / "lake"))
    archive(make_jobs, lake, segments[1])
    (found,) = verify(lake, VerifyLevel.FILES)
    assert (found.overall, found.findings) == (Status.OK, ())
    collected(lake, delete=True)
    maintain_lake(lake, LakePolicy(), 1 << 50)
    copy_lake(lake, at(tmp_path / "copy"))
    relocate(at(copy_tree(tmp_path / "lake", tmp_path / "plain")))
    rebuild(at(copy_tree(tmp_path / "lake", tmp_path / "again")), {})
    if lost in MENDED_BY_HAND:
        relocate(at(tmp_path / "lake"))
    drop_unreadable(open_lake(at(tmp_path / "lake")), "store-1")
    write(open_lake(at(tmp_path / "lake")), row(0), row(1))
    assert rows_at(tmp_path / "lake") == [row(0), row(1)]


def test_a_sound_table_stays_where_another_one_is_damaged(lake: Lake) -> None:
    def missing(_known: Sequence[DeletedRange]) -> Sequence[DeletedRange]:
        raise LakeUnavailableError("receipts") from FileNotFoundError("a file of receipts")

    with pytest.raises(LakeUnavailableError, match="receipts"):
        add_deletions(lake, "store-1", missing)
    assert drop_unreadable(lake, "store-1") == ""
    assert list(read_deletions(lake, "store-1")) == [row(0)]


def test_who_drops_a_damaged_table_says_why(lake: Lake, tmp_path: Path) -> None:
    LOSSES["its data"](lake, tmp_path / "lake/warehouse/storage_engine/deletions")
    forget_files()
    assert "deletions/data" in drop_unreadable(lake, "store-1")
    assert lake.deletions() is None
