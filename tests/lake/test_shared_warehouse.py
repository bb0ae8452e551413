"""One warehouse for two catalogs: the second to make a lake there is refused."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import LakeIdentityError, LakeMissingError
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import MARK_NAME, lake_id_of, read_mark
from storage_engine.lake.move.making import make_lake
from tests.lake.other_lakes import other_lake
from tests.rounds import rounds

pytestmark = pytest.mark.slow
MakeJobs = Callable[..., tuple[SegmentJob, ...]]
Fingerprint = Callable[[Path], dict[str, str]]
NOT_EMPTY = "expected an empty place for a new lake, found .*Nothing was created.*lake rebuild"
CLAIMED = (
    "expected no other catalog to make a lake there, found the claim of sqlite:/elsewhere/catalog.db in .*"
)


@pytest.fixture
def archived(filled: Callable[[int], Lake]) -> Lake:
    return filled(1)


class TestOneWarehouseForTwo:
    def test_a_second_catalog_is_refused_however_little_the_first_has(
        self, lake: Lake, tmp_path: Path, segments: list[Path], make_jobs: MakeJobs, fingerprint: Fingerprint
    ) -> None:
        staging = other_lake(tmp_path / "staging", tmp_path / "s.db", tmp_path / "lake" / "warehouse")
        for segment in (None, segments[0]):
            if segment is not None:
                archive_all(lake, make_jobs(lake, segment))
            before = fingerprint(tmp_path / "lake")
            with pytest.raises(LakeIdentityError, match=f"(?s){NOT_EMPTY}"):
                make_lake(staging)
            with pytest.raises(LakeMissingError):
                open_lake(staging)
            assert fingerprint(tmp_path / "lake") == before

    @pytest.mark.parametrize("left", ["the mark", "data", "metadata with a snapshot"])
    def test_a_place_where_a_lake_was_is_not_empty(
        self, left: str, archived: Lake, tmp_path: Path, fingerprint: Fingerprint
    ) -> None:
        """Its catalog, and even its marks, may be gone."""
        (tmp_path / "lake" / "catalog.db").unlink()
        warehouse = tmp_path / "lake" / "warehouse"
        keep = {"the mark": MARK_NAME, "data": "*.parquet", "metadata with a snapshot": "*.metadata.json"}
        kept = set(warehouse.rglob(keep[left]))
        for path in warehouse.rglob("*"):
            if path.is_file() and path not in kept:
                path.unlink()
        before = fingerprint(warehouse)
        places = [other_lake(tmp_path / "new", tmp_path / "new.db", warehouse)]
        if left != "the mark":
            places.append(archived.config)
        for place in places:
            with pytest.raises(LakeIdentityError, match=r"(?s)expected an empty place for a new lake"):
                make_lake(place)
            assert fingerprint(warehouse) == before

    def test_two_catalogs_that_are_made_at_one_moment_are_one_lake_at_most(self, tmp_path: Path) -> None:
        often = rounds("STORAGE_ENGINE_MAKING_RACES", 2, 20)
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(2)
        with context.Pool(2, _share, (barrier,)) as pool:
            first, second = (
                pool.apply_async(_make_all, (str(tmp_path), name, often)) for name in ("one", "two")
            )
            said = list(zip(first.get(300), second.get(300), strict=True))
        assert len(said) == often
        for number, pair in enumerate(said):
            made = [name for name, told in zip(("one", "two"), pair, strict=True) if not told]
            assert len(made) <= 1, pair
            for told in filter(None, pair):
                assert "expected no other catalog" in told or "expected an empty place" in told, told
            opened = []
            for name in ("one", "two"):
                try:
                    opened.append((name, open_lake(_one_of_two(tmp_path / str(number), name))))
                except LakeMissingError:
                    continue
            assert [name for name, _ in opened] == made
            # Whoever asks next makes it, and then it is whole.
            again = make_lake(_one_of_two(tmp_path / str(number), made[0] if made else "one"))
            assert [read_mark(table).catalog for table in again.tables()] == [again.catalog_id] * 2

    def test_a_claim_that_was_left_behind_is_named(self, tmp_path: Path, fingerprint: Fingerprint) -> None:
        """Whose catalog it was, its maker was killed."""
        config = LakeConfig.local(tmp_path / "lake")
        claim = (
            tmp_path / "lake" / "warehouse" / "storage_engine" / "segments" / ".storage-engine-claim-1.json"
        )
        claim.parent.mkdir(parents=True)
        claim.write_text("sqlite:/elsewhere/catalog.db")
        with pytest.raises(LakeIdentityError, match=f"(?s){CLAIMED}{claim.name}. Nothing was created"):
            make_lake(config)
        assert [path for path in fingerprint(tmp_path) if not path.endswith("catalog.db")] == [
            str(claim.relative_to(tmp_path))
        ]
        claim.unlink()
        assert lake_id_of(make_lake(config).segments())


def _share(barrier: object) -> None:
    global _barrier
    _barrier = barrier


def _one_of_two(directory: Path, name: str) -> LakeConfig:
    directory.mkdir(exist_ok=True)
    return other_lake(directory / name, directory / f"{name}.db", directory / "warehouse")


def _make_all(directory: str, name: str, often: int) -> list[str]:
    """What each attempt said; "" where it made the lake."""
    said = []
    for number in range(often):
        config = _one_of_two(Path(directory, str(number)), name)
        _barrier.wait(60)
        try:
            make_lake(config)
            said.append("")
        except LakeIdentityError as error:
            said.append(str(error))
    return said
