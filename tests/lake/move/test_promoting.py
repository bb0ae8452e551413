"""A copy that a person makes a lake of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, LakeIdentityError
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.identity import lake_id_of
from storage_engine.lake.move.copying import promote
from storage_engine.lake.move.moving import relocate
from tests.lake.lake_acts import archive, at, check, copy_tree, tree


@pytest.fixture
def copy(lake: Lake, segments: list[Path], make_jobs, tmp_path: Path) -> Path:
    """A plain copy of a lake with two segments, relocated."""
    archive(make_jobs, lake, *segments[:2])
    copy = copy_tree(tmp_path / "lake", tmp_path / "copy")
    relocate(at(copy))
    return copy


@pytest.mark.slow
def test_a_promoted_copy_is_written_and_says_who_decided_that(
    copy: Path, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    with pytest.raises(LakeIdentityError, match="storage-engine lake promote"):
        archive(make_jobs, open_lake(at(copy)), segments[2])
    before, original = lake_id_of(open_lake(at(copy)).segments()), tree(tmp_path / "lake")
    done = promote(open_lake(at(copy)), "ann", "the data centre burnt")
    assert (done.person, done.reason, done.lake_id) == ("ann", "the data centre burnt", before)
    assert promote(open_lake(at(copy)), "bob", "again") == done
    archive(make_jobs, open_lake(at(copy)), segments[2])
    check(copy, segments, tmp_path)
    assert tree(tmp_path / "lake") == original


@pytest.mark.parametrize("reason", ["", "  "])
def test_a_decision_needs_a_reason(copy: Path, reason: str) -> None:
    before = tree(copy)
    with pytest.raises(BadInputError, match="expected a person and a reason"):
        promote(open_lake(at(copy)), "ann", reason)
    assert tree(copy) == before


def test_only_a_copy_is_promoted(filled: Callable[[int], Lake], tmp_path: Path) -> None:
    lake = filled(1)
    before = tree(tmp_path / "lake")
    with pytest.raises(BadInputError, match="expected a copy"):
        promote(lake, "ann", "why")
    assert tree(tmp_path / "lake") == before
