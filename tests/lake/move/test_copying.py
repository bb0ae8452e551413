"""A copy of a lake: it verifies on its own, takes nothing, gets what is new, and may be promoted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import (
    BadInputError,
    LakeIdentityError,
    LakeMissingError,
    LakeUnavailableError,
    ReceiptError,
)
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.identity import copy_of, lake_id_of
from storage_engine.lake.catalog.writing import INTENT_NAME
from storage_engine.lake.file.scan import live_data_files
from storage_engine.lake.move.copying import copy_lake, promote
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import relocate
from tests.lake.conftest import Fingerprint
from tests.lake.lake_acts import archive, at, check, copy_tree, held, old_release, tree

pytestmark = pytest.mark.slow


@pytest.fixture
def copy(lake: Lake, segments: list[Path], make_jobs, tmp_path: Path) -> Path:
    """A copy of a lake that has two segments."""
    archive(make_jobs, lake, *segments[:2])
    copy_lake(lake, at(tmp_path / "copy"))
    return tmp_path / "copy"


def test_a_copy_verifies_and_restores_without_its_original(
    lake: Lake, copy: Path, segments: list[Path], tmp_path: Path
) -> None:
    original, itself = lake_id_of(lake.segments()), open_lake(at(copy)).segments()
    assert copy_of(itself) == original
    assert lake_id_of(itself) not in (None, original)
    shutil.rmtree(tmp_path / "lake")
    check(copy, segments[:2], tmp_path)
    assert not list(copy.rglob(INTENT_NAME))


def test_copying_changes_nothing_in_the_lake(filled: Callable[[int], Lake], tmp_path: Path) -> None:
    lake = filled(3)
    before = tree(tmp_path / "lake")
    copy_lake(lake, at(tmp_path / "copy"))
    assert tree(tmp_path / "lake") == before


def test_nothing_is_archived_into_a_copy(copy: Path, segments: list[Path], make_jobs) -> None:
    with pytest.raises(LakeIdentityError, match="storage-engine lake promote"):
        archive(make_jobs, open_lake(at(copy)), segments[2])


def test_a_later_copy_brings_what_is_new(
    lake: Lake, copy: Path, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    before = open_lake(at(copy)).segments()
    archive(make_jobs, lake, segments[2])
    done = copy_lake(lake, at(copy))
    assert (done.file_count, done.receipt_count) == (2, 3)
    again = copy_lake(lake, at(copy))
    assert (again.file_count, again.lake_id) == (0, lake_id_of(before))
    check(copy, segments, tmp_path)


def test_a_copy_that_has_all_is_not_written(lake: Lake, copy: Path) -> None:
    before = tree(copy)
    copy_lake(lake, at(copy))
    assert tree(copy) == before


@pytest.mark.again
def test_metadata_of_older_copies_does_not_pile_up(
    lake: Lake, copy: Path, segments: list[Path], make_jobs
) -> None:
    def count() -> int:
        return len(list(copy.rglob("*.metadata.json")))

    for number in range(3):
        table = lake.messages()
        with table.transaction() as change:
            change.set_properties({"number": str(number)})
        archive(make_jobs, lake, segments[2])
        copy_lake(lake, at(copy))
    assert count() <= 6


def test_a_copy_of_a_copy_is_one_too(copy: Path, segments: list[Path], tmp_path: Path) -> None:
    copy_lake(open_lake(at(copy)), at(tmp_path / "third"))
    shutil.rmtree(copy)
    check(tmp_path / "third", segments[:2], tmp_path)


def test_a_copy_may_be_moved(copy: Path, lake: Lake, segments: list[Path], make_jobs, tmp_path: Path) -> None:
    copy.rename(tmp_path / "moved")
    relocate(at(tmp_path / "moved"))
    archive(make_jobs, lake, segments[2])
    copy_lake(lake, at(tmp_path / "moved"))
    check(tmp_path / "moved", segments, tmp_path)


class TestRefused:
    """What must not become a copy, or must not be replaced by one."""

    def test_a_lake_of_its_own(
        self, filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path
    ) -> None:
        lake = filled(1)
        other = make_lake(at(tmp_path / "other"))
        archive(make_jobs, other, segments[1])
        before = tree(tmp_path / "other")
        with pytest.raises(LakeIdentityError, match="a lake that is no copy"):
            copy_lake(lake, at(tmp_path / "other"))
        assert tree(tmp_path / "other") == before

    def test_a_copy_of_another_lake(
        self, copy: Path, segments: list[Path], make_jobs, tmp_path: Path
    ) -> None:
        other = make_lake(at(tmp_path / "other"))
        archive(make_jobs, other, segments[0])
        before = tree(copy)
        with pytest.raises(LakeIdentityError, match="a copy of lake"):
            copy_lake(other, at(copy))
        assert tree(copy) == before

    def test_a_promoted_copy(self, lake: Lake, copy: Path) -> None:
        promote(open_lake(at(copy)), "ann", "why")
        before = tree(copy)
        with pytest.raises(LakeIdentityError, match="no copy"):
            copy_lake(lake, at(copy))
        assert tree(copy) == before

    def test_a_place_inside_the_lake(self, filled: Callable[[int], Lake], tmp_path: Path) -> None:
        lake = filled(1)
        before = tree(tmp_path / "lake")
        for inside in ("lake", "lake/copy", "lake/warehouse/copy", "lake/warehouse/storage_engine/messages"):
            with pytest.raises(BadInputError, match="apart from the lake"):
                copy_lake(lake, at(tmp_path / inside))
        assert tree(tmp_path / "lake") == before

    def test_a_place_around_the_lake(
        self, segments: list[Path], make_jobs, tmp_path: Path, fingerprint: Fingerprint
    ) -> None:
        lake = make_lake(at(tmp_path / "copy/deep/lake"))
        archive(make_jobs, lake, segments[0])
        before = fingerprint(tmp_path)
        with pytest.raises(BadInputError, match="apart from the lake"):
            copy_lake(lake, at(tmp_path / "copy"))
        assert fingerprint(tmp_path) == before

    def test_a_place_below_a_stores_root(
        self, filled: Callable[[int], Lake], tmp_path: Path, fingerprint: Fingerprint
    ) -> None:
        lake = filled(1)
        (tmp_path / "store/consumequeue").mkdir()
        before = fingerprint(tmp_path)
        for below in ("store", "store/commitlog/copy", "store/copy", "store/backups/of/copy"):
            with pytest.raises(BadInputError, match=r"outside (a broker's store|of stores)"):
                copy_lake(lake, at(tmp_path / below))
        assert fingerprint(tmp_path) == before

    def test_somebody_elses_data_files(self, filled: Callable[[int], Lake], tmp_path: Path) -> None:
        lake = filled(1)
        copy_tree(tmp_path / "lake" / "warehouse", tmp_path / "full" / "warehouse")
        before = tree(tmp_path / "full")
        with pytest.raises(LakeIdentityError, match="empty place"):
            copy_lake(lake, at(tmp_path / "full"))
        assert tree(tmp_path / "full") == before

    def test_an_older_state_of_the_lake(
        self, lake: Lake, copy: Path, segments: list[Path], make_jobs, tmp_path: Path
    ) -> None:
        backup = tmp_path / "yesterday.db"
        shutil.copy2(tmp_path / "lake" / "catalog.db", backup)
        archive(make_jobs, lake, segments[2])
        copy_lake(lake, at(copy))
        before = tree(copy)
        shutil.copy2(backup, tmp_path / "lake" / "catalog.db")
        with old_release(), pytest.raises(ReceiptError):
            copy_lake(open_lake(at(tmp_path / "lake")), at(copy))
        assert tree(copy) == before

    def test_a_damaged_file_is_not_passed_on(
        self, lake: Lake, copy: Path, segments: list[Path], make_jobs, tmp_path: Path
    ) -> None:
        archive(make_jobs, lake, segments[2])
        (newest,) = (tmp_path / "lake").glob("**/*00002097152-*.parquet")
        content = bytearray(newest.read_bytes())
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
        with pytest.raises(LakeUnavailableError, match="damaged"):
            copy_lake(lake, at(copy))
        check(copy, segments[:2], tmp_path)
        assert not list(copy.glob("**/*00002097152*"))


def test_what_an_interrupted_copy_left_is_compared_and_used(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(3)

    def fails(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("storage_engine.lake.move.copying.write_table", fails)
        with pytest.raises(KeyboardInterrupt):
            copy_lake(lake, at(tmp_path / "copy"))
    with pytest.raises(LakeMissingError):
        open_lake(at(tmp_path / "copy"))
    first, second, _ = sorted((tmp_path / "copy").glob("**/messages/data/*/*.parquet"))
    first.write_bytes(b"torn")
    kept = second.stat().st_ino
    assert copy_lake(lake, at(tmp_path / "copy")).file_count == 1
    assert second.stat().st_ino == kept
    check(tmp_path / "copy", segments, tmp_path)


def test_a_file_that_waits_for_its_receipt_comes_with_it(
    filled: Callable[[int], Lake],
    segments: list[Path],
    make_jobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = filled(1)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("storage_engine.lake.archive.commit.prepare_receipts", killed)
        with pytest.raises(KeyboardInterrupt):
            archive(make_jobs, lake, segments[1])
    assert len(live_data_files(lake.messages(), "store-1")) == 2
    assert copy_lake(lake, at(tmp_path / "copy")).waiting == 1
    check(tmp_path / "copy", segments[:1], tmp_path)
    archive(make_jobs, lake, segments[1])
    assert copy_lake(lake, at(tmp_path / "copy")).waiting == 0
    assert held(tmp_path / "copy") == [0, 1 << 20]
    check(tmp_path / "copy", segments[:2], tmp_path)
