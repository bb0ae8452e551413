"""A lake whose catalog is lost, older than the warehouse, or one of two, made whole from what lies there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import LakeIdentityError, LakeMissingError
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import MARK_NAME, copy_of, lake_id_of
from storage_engine.lake.catalog.tables import SCHEMA_VERSION_PROPERTY
from storage_engine.lake.move.copying import copy_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.rebuilding import Rebuilt, rebuild
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history
from storage_engine.model.proof.receipt import ChainHead
from tests.lake.lake_acts import archive, at, check, copy_tree, held, old_release, tree

pytestmark = pytest.mark.slow


def rebuilt(directory: Path, **options) -> Rebuilt:
    return rebuild(at(directory), options.pop("heads", {}), **options)


@pytest.fixture
def directory(lake: Lake, tmp_path: Path) -> Path:
    return tmp_path / "lake"


def lose_marks(directory: Path) -> None:
    for mark in directory.rglob(MARK_NAME):
        mark.unlink()


def branches(lake: Lake, directory: Path, make_jobs, segments: list[Path]) -> Path:
    """Two catalogs that both went on from the first segment; returns the one that isn't in place.

    The one in place has the third segment, the other one the second.
    """
    archive(make_jobs, lake, segments[0])
    shutil.copy2(directory / "catalog.db", directory.parent / "first.db")
    archive(make_jobs, lake, segments[1])
    other = directory.parent / "other.db"
    shutil.copy2(directory / "catalog.db", other)
    shutil.copy2(directory.parent / "first.db", directory / "catalog.db")
    with old_release():
        archive(make_jobs, open_lake(at(directory)), segments[2])
    return other


@pytest.mark.parametrize(
    "marks", [pytest.param(True, marks=pytest.mark.again), False], ids=["with marks", "without marks"]
)
def test_a_lost_catalog_is_made_again(
    filled: Callable[[int], Lake],
    directory: Path,
    segments: list[Path],
    make_jobs,
    tmp_path: Path,
    marks: bool,
) -> None:
    lake = filled(2)
    before = lake_id_of(lake.segments())
    (directory / "catalog.db").unlink()
    if not marks:
        lose_marks(directory)
    assert rebuilt(directory).lake_id == before
    check(directory, segments[:2], tmp_path)
    archive(make_jobs, open_lake(at(directory)), segments[2])
    check(directory, segments, tmp_path)


@pytest.mark.parametrize("runs", [1, pytest.param(3, marks=pytest.mark.again)])
def test_an_older_catalog_is_brought_up_to_the_warehouse(
    lake: Lake, directory: Path, segments: list[Path], make_jobs, tmp_path: Path, runs: int
) -> None:
    for segment in segments[:-runs]:
        archive(make_jobs, lake, segment)
    shutil.copy2(directory / "catalog.db", tmp_path / "yesterday.db")
    for segment in segments[-runs:]:
        archive(make_jobs, lake, segment)
    shutil.copy2(tmp_path / "yesterday.db", directory / "catalog.db")
    with pytest.raises(LakeIdentityError, match="storage-engine lake rebuild"):
        open_lake(at(directory))
    done = rebuilt(directory)
    assert done.brought == ()
    check(directory, segments, tmp_path)


def test_a_commit_whose_marks_were_not_written_counts(
    filled: Callable[[int], Lake], directory: Path, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    lake = filled(1)
    with old_release():
        archive(make_jobs, lake, segments[1])
    (directory / "catalog.db").unlink()
    rebuilt(directory)
    check(directory, segments[:2], tmp_path)


def test_of_two_branches_one_is_chosen_and_gets_what_the_other_had(
    lake: Lake, directory: Path, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    branches(lake, directory, make_jobs, segments)
    source = {path: path.stat() for path in segments}
    done = rebuilt(directory)
    # The mark is of the branch that isn't in the catalog: what the catalog has is brought in.
    assert [name.rpartition("/")[2].split("-")[2] for name in done.brought] == [segments[2].name]
    check(directory, segments, tmp_path)
    rows = receipt_history(open_lake(at(directory)), "store-1")
    check_chain(rows)
    last = max(rows, key=lambda row: row.sequence)
    # The other branch's receipt knew what the broker's file was.
    assert last.source_inode == source[segments[2]].st_ino
    assert rebuilt(directory).brought == ()


@pytest.mark.again
def test_the_branch_that_has_the_known_receipts_is_chosen_where_no_mark_is_left(
    lake: Lake, directory: Path, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    branches(lake, directory, make_jobs, segments)
    lose_marks(directory)
    with old_release():
        lake_of_third = open_lake(at(directory))
    head = ChainHead.of(receipt_history(lake_of_third, "store-1"))
    (directory / "catalog.db").unlink()
    done = rebuilt(directory, heads={"store-1": head})
    assert [name.rpartition("/")[2].split("-")[2] for name in done.brought] == [segments[1].name]
    assert done.unknown_heads == ()
    check(directory, segments, tmp_path)


def test_a_receipt_that_no_state_has_is_said(
    filled: Callable[[int], Lake],
    directory: Path,
) -> None:
    filled(1)
    done = rebuilt(directory, heads={"store-1": ChainHead(7, "f" * 64)})
    assert done.unknown_heads == ("store-1",)


def test_a_segment_is_proven_from_its_file_alone(
    lake: Lake, directory: Path, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    branches(lake, directory, make_jobs, segments)
    kept = {row.row_hash for row in receipt_history(lake, "store-1")}
    for path in directory.glob("**/segments/data/*/00000000000000000001-*.parquet"):
        if path.stat().st_mtime == max(p.stat().st_mtime for p in path.parent.iterdir()):
            path.unlink()
    lose_marks(directory)
    shutil.copy2(tmp_path / "other.db", directory / "catalog.db")
    rebuilt(directory)
    rows = receipt_history(open_lake(at(directory)), "store-1")
    last = max(rows, key=lambda row: row.sequence)
    assert (last.source_path, last.source_inode, last.row_hash in kept) == ("", 0, False)
    check(directory, segments, tmp_path)


def test_a_file_that_is_not_what_its_name_says_stays_an_orphan(
    filled: Callable[[int], Lake],
    directory: Path,
) -> None:
    filled(2)
    live = sorted(directory.glob("**/messages/data/*/*.parquet"))
    fake = live[0].with_name(f"0-commitlog-{5 << 20:020d}-{'a' * 16}.parquet")
    shutil.copy2(live[0], fake)
    torn = live[0].with_name(f"0-commitlog-{6 << 20:020d}-{'b' * 16}.parquet")
    torn.write_bytes(b"PAR1")
    done = rebuilt(directory)
    assert (len(done.refused), done.brought) == (2, ())
    assert held(directory) == [0, 1 << 20]
    assert fake.exists()
    assert torn.exists()


def test_other_bytes_under_a_proven_offset_are_kept_and_named(
    filled: Callable[[int], Lake],
    directory: Path,
) -> None:
    filled(1)
    (live,) = directory.glob("**/messages/data/*/*.parquet")
    other = live.with_name(live.name.rpartition("-")[0] + f"-{'c' * 16}.parquet")
    shutil.copy2(live, other)
    done = rebuilt(directory)
    assert [Path(name).name for name in done.conflicting] == [other.name]
    assert other.exists()


def test_a_dry_run_says_it_and_changes_nothing(
    lake: Lake, directory: Path, segments: list[Path], make_jobs
) -> None:
    branches(lake, directory, make_jobs, segments)
    (directory / "catalog.db").unlink()
    before = tree(directory)
    said = rebuilt(directory, dry_run=True)
    assert len(said.brought) == 1
    assert [chosen.before for chosen in said.tables] == [None, None, None]
    assert tree(directory) == before
    assert [chosen.now for chosen in rebuilt(directory).tables] == [chosen.now for chosen in said.tables]


def test_a_new_catalog_that_was_made_over_an_old_warehouse_gets_the_old_lakes_segments(
    filled: Callable[[int], Lake],
    directory: Path,
    segments: list[Path],
    make_jobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filled(2)
    (directory / "catalog.db").unlink()
    lose_marks(directory)
    with monkeypatch.context() as patch:
        # What releases before this one did.
        patch.setattr("storage_engine.lake.move.making._fault", lambda *_: "")
        new = make_lake(at(directory))
        archive(make_jobs, new, segments[2])
    assert len(rebuilt(directory).brought) == 2
    check(directory, segments, tmp_path)


def test_a_lake_of_version_1_is_taken_over(
    lake: Lake, directory: Path, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    def jobs_of_version_1(*args):
        return tuple(replace(job, trees=False) for job in make_jobs(*args))

    branches(lake, directory, jobs_of_version_1, segments)
    with old_release():
        for table in open_lake(at(directory)).tables():
            with table.transaction() as change:
                change.remove_properties("storage-engine.lake-id")
                change.set_properties({SCHEMA_VERSION_PROPERTY: "1.0"})
    lose_marks(directory)
    rebuilt(directory)
    assert lake_id_of(open_lake(at(directory)).segments()) is not None
    check(directory, segments, tmp_path)


def test_a_moved_lake_without_catalog_is_rebuilt_where_it_is(
    filled: Callable[[int], Lake], directory: Path, segments: list[Path], tmp_path: Path
) -> None:
    filled(1)
    moved = tmp_path / "moved"
    directory.rename(moved)
    (moved / "catalog.db").unlink()
    assert rebuilt(moved).copy_of is None
    check(moved, segments[:1], tmp_path)


def test_a_plain_copy_without_catalog_is_rebuilt_as_a_copy(
    filled: Callable[[int], Lake], directory: Path, segments: list[Path], tmp_path: Path
) -> None:
    lake = filled(1)
    copy = copy_tree(directory, tmp_path / "copy")
    (copy / "catalog.db").unlink()
    before = tree(directory)
    assert rebuilt(copy).copy_of == lake_id_of(lake.segments())
    assert tree(directory) == before
    check(copy, segments[:1], tmp_path)


def test_a_copy_that_lost_its_catalog_stays_a_copy(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path
) -> None:
    lake = filled(1)
    copy_lake(lake, at(tmp_path / "copy"))
    (tmp_path / "copy" / "catalog.db").unlink()
    rebuilt(tmp_path / "copy")
    assert copy_of(open_lake(at(tmp_path / "copy")).segments()) == lake_id_of(lake.segments())
    check(tmp_path / "copy", segments[:1], tmp_path)


def test_a_lake_that_lost_data_files_is_opened_again_and_says_which(
    filled: Callable[[int], Lake],
    directory: Path,
) -> None:
    filled(3)
    victim = sorted(directory.glob("**/messages/data/*/*.parquet"))[1]
    victim.unlink()
    (directory / "catalog.db").unlink()
    done = rebuilt(directory)
    assert [Path(name).name for name in done.missing] == [victim.name]
    assert held(directory) == [0, 1 << 20, 2 << 20]


def test_metadata_that_is_torn_is_passed_over(
    filled: Callable[[int], Lake], directory: Path, segments: list[Path], tmp_path: Path
) -> None:
    filled(2)
    newest = max(directory.glob("**/segments/metadata/*.metadata.json"))
    newest.write_bytes(newest.read_bytes()[:100])
    (directory / "catalog.db").unlink()
    done = rebuilt(directory)
    assert newest.name in done.tables[0].damaged
    check(directory, segments[:2], tmp_path)


class TestRefused:
    """Where no catalog is made."""

    def test_an_empty_place(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(LakeMissingError, match="init-lake"):
            rebuilt(tmp_path / "empty")
        assert list((tmp_path / "empty").iterdir()) == []

    def test_another_catalog_that_is_in_use(
        self, filled: Callable[[int], Lake], directory: Path, tmp_path: Path
    ) -> None:
        lake = filled(1)
        second = LakeConfig(
            "storage_engine",
            {
                "type": "sql",
                "uri": f"sqlite:///{tmp_path}/second.db",
                "warehouse": lake.config.properties["warehouse"],
            },
        )
        before = tree(tmp_path)
        with pytest.raises(LakeIdentityError, match="--take-over"):
            rebuild(second, {})
        assert tree(tmp_path) == before
        rebuild(second, {}, take_over=True)
        with pytest.raises(LakeIdentityError):
            open_lake(at(directory))

    def test_a_catalog_of_another_lake(
        self, filled: Callable[[int], Lake], directory: Path, segments: list[Path], make_jobs, tmp_path: Path
    ) -> None:
        filled(1)
        other = make_lake(at(tmp_path / "other"))
        archive(make_jobs, other, segments[1])
        shutil.copy2(tmp_path / "other" / "catalog.db", directory / "catalog.db")
        before = tree(directory)
        with pytest.raises(LakeIdentityError, match="two lakes"):
            rebuilt(directory)
        assert tree(directory) == before

    def test_a_copy_that_was_not_finished(
        self,
        filled: Callable[[int], Lake],
        segments: list[Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        lake = filled(3)

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("storage_engine.lake.move.copying.repoint", killed)
            with pytest.raises(KeyboardInterrupt):
                copy_lake(lake, at(tmp_path / "copy"))
        with pytest.raises(LakeIdentityError, match="an unfinished copy"):
            rebuilt(tmp_path / "copy")
        copy_lake(lake, at(tmp_path / "copy"))
        check(tmp_path / "copy", segments, tmp_path)

    def test_manifests_that_are_gone(
        self,
        filled: Callable[[int], Lake],
        directory: Path,
    ) -> None:
        filled(3)
        for manifest in directory.glob("**/*.avro"):
            manifest.unlink()
        (directory / "catalog.db").unlink()
        # Without a row the first metadata is all that can be read, and nothing in it is known to be newer.
        done = rebuilt(directory)
        assert len(done.brought) == 3
        assert held(directory) == [0, 1 << 20, 2 << 20]
