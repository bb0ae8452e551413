"""A lake whose directory, catalog or mark isn't where it was, and what brings it back into use."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import LakeIdentityError, LakeMissingError, LakeUnavailableError
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import MARK_NAME, copy_of, lake_id_of
from storage_engine.lake.catalog.tables import SCHEMA_VERSION_PROPERTY
from storage_engine.lake.catalog.writing import INTENT_NAME
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.verify.verify import verify
from storage_engine.model.report.validation import Status, VerifyLevel
from tests.lake.lake_acts import archive, at, check, copy_tree, tree
from tests.lake.other_lakes import other_lake
from tests.other_engine import delete_position
from tests.rounds import again_but

pytestmark = pytest.mark.slow


def refused(directory: Path) -> str:
    """Why a lake is not opened."""
    with pytest.raises(LakeIdentityError) as caught:
        open_lake(at(directory))
    return str(caught.value)


def identity(directory: Path) -> tuple[str | None, str | None]:
    segments = open_lake(at(directory)).segments()
    return lake_id_of(segments), copy_of(segments)


def test_a_lake_that_was_moved_is_itself_at_its_new_place(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    filled(2)
    before = identity(tmp_path / "lake")
    moved = tmp_path / "moved"
    (tmp_path / "lake").rename(moved)
    assert "storage-engine lake relocate" in refused(moved)
    done = relocate(at(moved))
    assert (done.changed, done.copy_of, done.file_count) == (True, None, 4)
    assert identity(moved) == before
    check(moved, segments[:2], tmp_path)
    archive(make_jobs, open_lake(at(moved)), segments[2])
    check(moved, segments, tmp_path)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    "command", [relocate, lambda config: rebuild(config, {})], ids=["relocate", "rebuild"]
)
def test_a_warehouse_that_was_moved_without_its_catalog_is_used_at_its_new_place(
    segments: list[Path], make_jobs, tmp_path: Path, command: Callable[[LakeConfig], object]
) -> None:
    config = other_lake(tmp_path / "d", tmp_path / "catalog" / "c.db", tmp_path / "warehouse")
    archive(make_jobs, make_lake(config), segments[0])
    (tmp_path / "warehouse").rename(tmp_path / "moved")
    config = other_lake(tmp_path / "d", tmp_path / "catalog" / "c.db", tmp_path / "moved")
    command(config)
    archive(make_jobs, open_lake(config), segments[1])
    assert {one.status for found in verify(open_lake(config), VerifyLevel.BYTES) for one in found.ranges} == {
        Status.OK
    }


@pytest.mark.parametrize("command", again_but(["relocate", "rebuild"], "relocate"))
def test_a_copy_of_hard_links_is_relocated_alone(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path, command: str
) -> None:
    filled(1)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "lake", copy, copy_function=os.link)
    (tmp_path / "lake/catalog.db").chmod(0o640)
    before, original = tree(tmp_path / "lake"), identity(tmp_path / "lake")
    if command == "relocate":
        relocate(at(copy))
    else:
        rebuild(at(copy), {})
    assert tree(tmp_path / "lake") == before
    assert identity(tmp_path / "lake") == original
    assert identity(copy)[1] == original[0]
    assert (copy / "catalog.db").stat().st_mode & 0o777 == 0o640
    archive(make_jobs, open_lake(at(tmp_path / "lake")), segments[1])
    check(copy, segments[:1], tmp_path)


def test_the_same_directory_under_another_name_is_no_copy(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    """As in a container that has the lake at another path, beside the path of its host."""
    filled(1)
    before = identity(tmp_path / "lake")
    (other := tmp_path / "other").mkdir()
    if subprocess.run(["mount", "--bind", str(tmp_path / "lake"), str(other)], check=False).returncode:
        pytest.skip("no bind mounts are allowed here")
    try:
        assert "storage-engine lake relocate" in refused(other)
        assert relocate(at(other)).copy_of is None
        assert identity(other) == before
        archive(make_jobs, open_lake(at(other)), segments[1])
        assert relocate(at(tmp_path / "lake")).copy_of is None
    finally:
        subprocess.run(["umount", "--lazy", str(other)], check=True)
    assert identity(tmp_path / "lake") == before
    check(tmp_path / "lake", segments[:2], tmp_path)


def test_it_is_moved_back_and_forth(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path
) -> None:
    filled(1)
    for place, before in (("moved", "lake"), ("lake", "moved"), ("third", "lake")):
        (tmp_path / before).rename(tmp_path / place)
        relocate(at(tmp_path / place))
    check(tmp_path / "third", segments[:1], tmp_path)


@pytest.mark.parametrize(
    "goes_on", [pytest.param(0, marks=pytest.mark.again), 1], ids=["as it was", "after the original went on"]
)
def test_a_plain_copy_becomes_a_copy_and_the_original_is_not_touched(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path, goes_on: int
) -> None:
    lake = filled(2)
    copy = copy_tree(tmp_path / "lake", tmp_path / "copy")
    archive(make_jobs, lake, *segments[: 2 + goes_on])
    original = tree(tmp_path / "lake")
    assert "storage-engine lake relocate" in refused(copy)
    done = relocate(at(copy))
    assert done.copy_of == lake_id_of(lake.segments())
    assert done.lake_id not in (None, done.copy_of)
    assert tree(tmp_path / "lake") == original
    with pytest.raises(LakeIdentityError, match="found a copy of"):
        archive(make_jobs, open_lake(at(copy)), segments[2])
    shutil.rmtree(tmp_path / "lake")
    check(copy, segments[:2], tmp_path)


def test_no_commit_in_a_relocated_lake_reaches_the_old_place(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path
) -> None:
    filled(1)
    shutil.copytree(tmp_path / "lake", tmp_path / "kept")
    moved = tmp_path / "moved"
    (tmp_path / "lake").rename(moved)
    relocate(at(moved))
    # Another disk is mounted where the lake was: its old metadata is the first that would be removed.
    (tmp_path / "kept").rename(tmp_path / "lake")
    there = tree(tmp_path / "lake")
    table = open_lake(at(moved)).segments()
    with table.transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "1"})
    with table.transaction() as change:
        change.set_properties({"some": "value"})
    assert tree(tmp_path / "lake") == there


@pytest.mark.again
def test_two_branches_of_one_lake_are_each_told_apart(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    lake = filled(1)
    copy = copy_tree(tmp_path / "lake", tmp_path / "copy")
    archive(make_jobs, lake, segments[1])
    relocate(at(copy))
    check(copy, segments[:1], tmp_path)
    check(tmp_path / "lake", segments[:2], tmp_path)


def test_receipts_with_whole_locations_are_read_where_their_files_are_now(
    lake: Lake, segments: list[Path], make_jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.lake.archive.commit.relative_name", lambda _table, location: location)
    archive(make_jobs, lake, segments[0])
    moved = tmp_path / "moved"
    (tmp_path / "lake").rename(moved)
    relocate(at(moved))
    check(moved, segments[:1], tmp_path)


def test_a_moved_lake_of_version_1_stays_one_until_it_is_written_to(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    lake = filled(1)
    for table in lake.tables():
        with table.transaction() as change:
            change.remove_properties("storage-engine.lake-id")
            change.set_properties({SCHEMA_VERSION_PROPERTY: "1.0"})
        Path(table.location().removeprefix("file://"), MARK_NAME).unlink()
    moved = tmp_path / "moved"
    (tmp_path / "lake").rename(moved)
    assert relocate(at(moved)).lake_id is None
    check(moved, segments[:1], tmp_path)
    archive(make_jobs, open_lake(at(moved)), segments[1])
    assert identity(moved)[0] is not None
    check(moved, segments[:2], tmp_path)


def test_a_file_that_is_not_as_it_was_archived_refuses_all(
    filled: Callable[[int], Lake], tmp_path: Path
) -> None:
    filled(2)
    moved = tmp_path / "moved"
    (tmp_path / "lake").rename(moved)
    victim = sorted((moved / "warehouse").glob("*/messages/data/*/*.parquet"))[1]
    sound = victim.read_bytes()
    middle = len(sound) // 2
    for damaged in (None, sound[:-1], sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :]):
        victim.unlink()
        if damaged is not None:
            victim.write_bytes(damaged)
        before = tree(moved)
        with pytest.raises(LakeUnavailableError, match=victim.name):
            relocate(at(moved))
        assert tree(moved) == before
        victim.write_bytes(sound)


def test_a_lost_mark_is_written_again(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path
) -> None:
    filled(1)
    for mark in (tmp_path / "lake").rglob(MARK_NAME):
        mark.unlink()
    assert "storage-engine lake relocate" in refused(tmp_path / "lake")
    assert relocate(at(tmp_path / "lake")).changed
    check(tmp_path / "lake", segments[:1], tmp_path)
    assert not relocate(at(tmp_path / "lake")).changed


class TestAnotherCatalog:
    """One warehouse, two catalogs."""

    @pytest.fixture
    def second(self, lake: Lake, segments: list[Path], make_jobs, tmp_path: Path) -> Path:
        """A directory whose catalog is a copy of the lake's, over the same warehouse."""
        archive(make_jobs, lake, segments[0])
        directory = tmp_path / "second"
        directory.mkdir()
        shutil.copy2(tmp_path / "lake" / "catalog.db", directory / "catalog.db")
        (directory / "lake.json").write_text(
            f'{{"type": "sql", "uri": "sqlite:///{directory}/catalog.db", '
            f'"warehouse": "file://{tmp_path}/lake/warehouse"}}'
        )
        return directory

    def test_it_is_refused_while_the_first_is_there(self, second: Path, tmp_path: Path) -> None:
        assert "storage-engine lake relocate" in refused(second)
        before = tree(tmp_path / "lake")
        with pytest.raises(LakeIdentityError, match="--take-over"):
            relocate(at(second))
        assert tree(tmp_path / "lake") == before

    def test_a_person_may_take_the_first_ones_place(
        self, second: Path, segments: list[Path], tmp_path: Path
    ) -> None:
        done = relocate(at(second), take_over=True)
        assert done.other_catalog is not None
        check(second, segments[:1], tmp_path)
        assert "catalog" in refused(tmp_path / "lake")

    def test_it_takes_the_place_of_one_that_is_gone(
        self, second: Path, segments: list[Path], tmp_path: Path
    ) -> None:
        (tmp_path / "lake" / "catalog.db").unlink()
        relocate(at(second))
        check(second, segments[:1], tmp_path)

    def test_an_older_one_is_sent_to_rebuild(
        self, lake: Lake, second: Path, segments: list[Path], make_jobs, tmp_path: Path
    ) -> None:
        archive(make_jobs, lake, segments[1])
        before = tree(tmp_path)
        with pytest.raises(LakeIdentityError, match="storage-engine lake rebuild"):
            relocate(at(second), take_over=True)
        assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("place", "torn"),
    [pytest.param("lake", False, marks=pytest.mark.again), ("copy", False), ("moved", True)],
)
def test_without_marks_a_catalog_that_is_older_is_sent_to_rebuild(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path, place: str, torn: bool
) -> None:
    """As after ``rsync --exclude '.*'`` of a lake and a catalog from the backup before."""
    lake = filled(1)
    shutil.copy2(tmp_path / "lake" / "catalog.db", tmp_path / "older.db")
    archive(make_jobs, lake, segments[1])
    here = tmp_path / place
    if place == "moved":
        (tmp_path / "lake").rename(here)
    elif place == "copy":
        copy_tree(tmp_path / "lake", here)
    shutil.copy2(tmp_path / "older.db", here / "catalog.db")
    for mark in here.rglob(MARK_NAME):
        mark.unlink()
    if torn:
        for metadata in here.rglob("metadata"):
            max(metadata.glob("*.metadata.json")).write_bytes(b"{")
    before = tree(tmp_path)
    with pytest.raises(LakeIdentityError, match="storage-engine lake rebuild"):
        relocate(at(here))
    assert tree(tmp_path) == before
    rebuild(at(here), {})
    check(here, segments[:2], tmp_path)


def test_without_marks_a_move_that_was_killed_goes_on(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(1)
    (tmp_path / "lake").rename(moved := tmp_path / "moved")
    for mark in moved.rglob(MARK_NAME):
        mark.unlink()
    with monkeypatch.context() as patch:
        patch.setattr("storage_engine.lake.move.moving.repoint", _killed)
        with pytest.raises(KeyboardInterrupt):
            relocate(at(moved))
    relocate(at(moved))
    check(moved, segments[:1], tmp_path)


def test_without_marks_what_lost_a_race_does_not_count(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path
) -> None:
    """Metadata of a commit that another was faster than has the other's number."""
    filled(1)
    for metadata in tmp_path.rglob("metadata"):
        last = max(metadata.glob("*.metadata.json"))
        shutil.copy2(last, last.with_name(f"{last.name[:6]}{'f' * 8}-lost.metadata.json"))
    for mark in tmp_path.rglob(MARK_NAME):
        mark.unlink()
    assert relocate(at(tmp_path / "lake")).changed
    check(tmp_path / "lake", segments[:1], tmp_path)


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_warehouse_of_another_lake_is_refused(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    filled(1)
    other = make_lake(at(tmp_path / "other"))
    archive(make_jobs, other, segments[1])
    mixed = copy_tree(tmp_path / "other", tmp_path / "mixed")
    shutil.copy2(tmp_path / "lake" / "catalog.db", mixed / "catalog.db")
    before = tree(mixed)
    with pytest.raises(LakeUnavailableError, match="catalog and warehouse"):
        relocate(at(mixed))
    assert tree(mixed) == before


def test_a_catalog_without_tables_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    sqlite3.connect(tmp_path / "lake" / "catalog.db").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(LakeMissingError, match="storage-engine lake rebuild"):
        relocate(at(tmp_path / "lake"))


def test_rows_that_count_as_deleted_by_position_are_refused(
    lake: Lake, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    (receipt,) = archive_all(lake, make_jobs(lake, segments[0]))
    delete_position(lake, receipt, 0)
    moved = tmp_path / "moved"
    (tmp_path / "lake").rename(moved)
    before = tree(moved)
    with pytest.raises(LakeUnavailableError, match="rewrite_data_files"):
        relocate(at(moved))
    assert tree(moved) == before


def test_what_an_earlier_move_left_does_not_count_for_the_next(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(1)
    (tmp_path / "lake").rename(tmp_path / "second")
    with monkeypatch.context() as patch:
        patch.setattr("storage_engine.lake.move.moving.end", lambda *_: None)
        relocate(at(tmp_path / "second"))
    (tmp_path / "second").rename(tmp_path / "third")
    assert relocate(at(tmp_path / "third")).former is not None
    check(tmp_path / "third", segments[:1], tmp_path)


def test_nothing_is_left_of_what_was_meant(filled: Callable[[int], Lake], tmp_path: Path) -> None:
    filled(1)
    moved = tmp_path / "moved"
    (tmp_path / "lake").rename(moved)
    relocate(at(moved))
    assert not list(moved.rglob(INTENT_NAME))
