"""What a killed command meant counts until somebody has committed there: then the place is a lake's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, LakeIdentityError
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.identity import copy_of, lake_id_of
from storage_engine.lake.catalog.writing import INTENT_NAME
from storage_engine.lake.move.copying import copy_lake, promote
from storage_engine.lake.move.making import check_empty, make_lake
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.restore.export import Selection, export_messages
from tests.lake.lake_acts import archive, at, check, tree
from tests.services.restoring import restore

pytestmark = pytest.mark.slow

INTENT = f"warehouse/storage_engine/segments/{INTENT_NAME}"


class Killed(BaseException):
    """Stands for the death of the process."""


def killed_at(function: str, work: Callable[[], object]) -> None:
    """Do something until it calls a function."""

    def dies(*_: object, **__: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, dies)
        with pytest.raises(Killed):
            work()


def half_copied(lake: Lake, target: Path) -> None:
    killed_at("storage_engine.lake.move.copying.copy_file", lambda: copy_lake(lake, at(target)))
    assert (target / INTENT).exists()


@pytest.fixture
def outlived(lake: Lake, segments: list[Path], make_jobs, tmp_path: Path) -> Path:
    """A lake of its own, with a segment, in a place where the intent of a killed copy lies."""
    target = tmp_path / "target"
    archive(make_jobs, lake, segments[0])
    half_copied(lake, target)
    (target / INTENT).rename(tmp_path / "intent")
    archive(make_jobs, make_lake(at(target)), segments[1])
    shutil.copy(tmp_path / "intent", target / INTENT)
    return target


def test_no_lake_is_made_over_what_a_killed_copy_left(
    filled: Callable[[int], Lake], segments: list[Path], tmp_path: Path
) -> None:
    lake = filled(1)
    half_copied(lake, tmp_path / "target")
    before = tree(tmp_path / "target")
    with pytest.raises(LakeIdentityError, match=r"what storage-engine lake copy of lake .* left"):
        make_lake(at(tmp_path / "target"))
    assert tree(tmp_path / "target") == before
    copy_lake(lake, at(tmp_path / "target"))
    check(tmp_path / "target", segments[:1], tmp_path)


def test_a_lake_that_outlived_an_intent_stays_itself(
    outlived: Path, lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    own_id = lake_id_of(open_lake(at(outlived)).segments())
    (outlived / "catalog.db").unlink()
    before = tree(outlived)
    with pytest.raises(LakeIdentityError, match="empty place"):
        copy_lake(lake, at(outlived))
    assert tree(outlived) == before
    rebuild(at(outlived), {})
    found = open_lake(at(outlived)).segments()
    assert (lake_id_of(found), copy_of(found)) == (own_id, None)
    check(outlived, segments[1:2], tmp_path)


def test_a_lake_that_outlived_an_intent_moves_as_itself(
    outlived: Path, segments: list[Path], tmp_path: Path
) -> None:
    own_id = lake_id_of(open_lake(at(outlived)).segments())
    outlived.rename(tmp_path / "moved")
    relocate(at(tmp_path / "moved"))
    found = open_lake(at(tmp_path / "moved")).segments()
    assert (lake_id_of(found), copy_of(found)) == (own_id, None)
    check(tmp_path / "moved", segments[1:2], tmp_path)


def test_a_catalog_from_right_after_a_move_is_told_that_the_lake_went_on(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    filled(1)
    moved = tmp_path / "moved"
    (tmp_path / "lake").rename(moved)
    killed_at("storage_engine.lake.move.moving.end", lambda: relocate(at(moved)))
    shutil.copy(moved / "catalog.db", tmp_path / "backup.db")
    archive(make_jobs, open_lake(at(moved)), segments[1])
    shutil.copy(tmp_path / "backup.db", moved / "catalog.db")
    before = tree(moved / "warehouse")
    with pytest.raises(LakeIdentityError, match="older"):
        relocate(at(moved))
    assert tree(moved / "warehouse") == before
    rebuild(at(moved), {})
    check(moved, segments[:2], tmp_path)


def test_a_promoted_copy_is_no_unfinished_one(
    lake: Lake, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    archive(make_jobs, lake, segments[0])
    killed_at("storage_engine.lake.move.moving.end", lambda: copy_lake(lake, at(target)))
    promote(open_lake(at(target)), "ann", "the disk broke")
    archive(make_jobs, open_lake(at(target)), segments[1])
    assert (target / INTENT).exists()
    (target / "catalog.db").unlink()
    with pytest.raises(LakeIdentityError, match="empty place"):
        copy_lake(lake, at(target))
    rebuild(at(target), {})
    check(target, segments[:2], tmp_path)


def test_nothing_is_made_inside_a_lakes_table(filled: Callable[[int], Lake], tmp_path: Path) -> None:
    lake = filled(1)
    table = tmp_path / "lake" / "warehouse" / "storage_engine" / "messages"
    before = tree(tmp_path / "lake")
    inner = at(table / "inner")
    with pytest.raises(BadInputError, match=f"inside the lake {table}: .*Nothing was changed"):
        make_lake(inner)
    # In an object store the tables' own marks alone tell.
    with pytest.raises(LakeIdentityError, match="a table of another lake"):
        check_empty(inner, f"file://{table}/inner/warehouse/storage_engine/messages", None)
    with pytest.raises(BadInputError, match="outside of a lake's tables"):
        export_messages(lake, table / "data" / "mine.parquet", Selection())
    with pytest.raises(BadInputError, match="outside of a lake's tables"):
        restore(lake, "store-1", table / "data" / "back")
    assert tree(tmp_path / "lake") == before
