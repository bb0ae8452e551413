"""What ordinary acts on a lake leave behind is never taken for garbage, even past every other defence.

Each history ends where the lake's identity is refused at once. Here the marks are removed and the checks of
opening passed by: what decides is the rule alone. Afterwards the newer state is put back, and is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import LakeIdentityError
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, connect, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.gc.garbage import undo
from storage_engine.lake.gc.garbage_kind import GarbageKind
from storage_engine.lake.move import making
from storage_engine.lake.move.making import make_lake
from tests.lake.conftest import MakeJobs
from tests.lake.garbage_helpers import check_whole, collected, names, root_of, unchecked

pytestmark = pytest.mark.slow

Archive = Callable[..., None]


@pytest.fixture
def archive(segments: list[Path], make_jobs: MakeJobs) -> Archive:
    """Archive the segments of these numbers, each in a run of its own."""

    def run(lake: Lake, *numbers: int, store_id: str = "store-1") -> None:
        for number in numbers:
            archive_all(lake, make_jobs(lake, segments[number], store_id=store_id))

    return run


@pytest.fixture
def wanted(segments: list[Path]) -> Callable[..., dict[str, bytes]]:
    def contents(*numbers: int, store_id: str = "store-1") -> dict[str, bytes]:
        return {f"{store_id}/{segments[n].name}": segments[n].read_bytes() for n in numbers}

    return contents


def _catalog(lake: Lake) -> Path:
    path = local_path(lake.config.properties["warehouse"])
    assert path is not None
    return path.with_name("catalog.db")


def _swap(lake: Lake, older: Path, newer: Path) -> Lake:
    """Keep the catalog as ``newer`` and put the older one in its place."""
    shutil.copyfile(_catalog(lake), newer)
    shutil.copyfile(older, _catalog(lake))
    return unchecked(lake.config)


def _put_back(lake: Lake, newer: Path) -> Lake:
    shutil.copyfile(newer, _catalog(lake))
    return connect(lake.config)


def test_a_catalog_that_is_one_run_older_is_refused_and_costs_nothing_even_if_it_were_not(
    lake: Lake, archive: Archive, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    archive(lake, 0)
    shutil.copyfile(_catalog(lake), tmp_path / "older.db")
    archive(lake, 1)
    newest = {Path(table.metadata_location).name for table in lake.tables()}
    shutil.copyfile(_catalog(lake), tmp_path / "newer.db")
    shutil.copyfile(tmp_path / "older.db", _catalog(lake))
    with pytest.raises(LakeIdentityError, match="older copy"):
        open_lake(lake.config)
    lake = unchecked(lake.config)
    found = collected(lake, delete=True)
    assert found.taken == ()
    assert newest <= names(found.orphans)
    (orphan,) = (file for file in found.orphans if file.kind is GarbageKind.DATA_FILE)
    assert "-00000000000001048576-" in orphan.location
    check_whole(_put_back(lake, tmp_path / "newer.db"), wanted(0, 1), tmp_path / "restored")


@pytest.mark.again
def test_a_catalog_that_is_one_run_older_and_goes_on_costs_nothing(
    lake: Lake, archive: Archive, wanted: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    """The journal may have been put back with it: nothing but the files tells of the lost run."""
    archive(lake, 1)
    shutil.copyfile(_catalog(lake), tmp_path / "older.db")
    archive(lake, 0)
    lake = _swap(lake, tmp_path / "older.db", tmp_path / "newer.db")
    archive(lake, 2)
    for trash_ms in (1 << 40, 0):
        assert collected(lake, delete=True, trash_ms=trash_ms).taken == ()
    check_whole(lake, wanted(1, 2), tmp_path / "restored-branch")
    check_whole(_put_back(lake, tmp_path / "newer.db"), wanted(0, 1), tmp_path / "restored")


@pytest.mark.parametrize(
    ("keep_bytes", "pattern"),
    [
        (0, "*.metadata.json"),
        (300, "snap-*.avro"),
        (300, "*-m0.avro"),
        *(
            pytest.param(*damage, marks=pytest.mark.again)
            for damage in ((300, "*.metadata.json"), (0, "snap-*.avro"), (0, "*-m0.avro"))
        ),
    ],
)
def test_newer_metadata_that_cannot_be_read_keeps_all_that_it_may_name(
    pattern: str,
    keep_bytes: int,
    lake: Lake,
    archive: Archive,
    wanted: Callable[..., dict[str, bytes]],
    tmp_path: Path,
) -> None:
    archive(lake, 0)
    before = {path for table in lake.tables() for path in root_of(table).glob(f"metadata/{pattern}")}
    shutil.copyfile(_catalog(lake), tmp_path / "older.db")
    archive(lake, 1)
    after = {path for table in lake.tables() for path in root_of(table).glob(f"metadata/{pattern}")}
    contents = {path: path.read_bytes() for path in after - before}
    assert contents
    lake = _swap(lake, tmp_path / "older.db", tmp_path / "newer.db")
    for path, content in contents.items():
        path.write_bytes(content[:keep_bytes])
    found = collected(lake, delete=True)
    # Nothing names table metadata, so that what has no byte is one whose writer died.
    unnamed = keep_bytes == 0 and "json" in pattern
    assert names(found.taken) == ({path.name for path in contents} if unnamed else set())
    assert GarbageKind.DATA_FILE in {file.kind for file in found.orphans}
    undo(lake.config)
    for path, content in contents.items():
        path.write_bytes(content)
    check_whole(_put_back(lake, tmp_path / "newer.db"), wanted(0, 1), tmp_path / "restored")


@pytest.mark.parametrize(
    "runs_in_copy",
    [pytest.param((), marks=pytest.mark.again), (0, 1)],
    ids=["as-it-was", "went-on-as-long"],
)
def test_gc_in_a_plain_copy_takes_nothing_of_the_original(
    runs_in_copy: tuple[int, ...],
    lake: Lake,
    archive: Archive,
    wanted: Callable[..., dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive(lake, 0)
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    archive(lake, 1, 2)
    config = LakeConfig.local(tmp_path / "copy")
    with pytest.raises(LakeIdentityError, match="plain copy"):
        open_lake(config)
    copy = unchecked(config)
    monkeypatch.setattr("storage_engine.lake.catalog.writing.check_identity", lambda *_: None)
    assert root_of(copy.messages()) == root_of(lake.messages())
    archive(copy, *runs_in_copy, store_id="store-2")
    assert collected(copy, delete=True).taken == ()
    check_whole(connect(lake.config), wanted(0, 1, 2), tmp_path / "restored")
    in_copy = {**wanted(0), **wanted(*runs_in_copy, store_id="store-2")}
    check_whole(copy, in_copy, tmp_path / "restored-copy")


@pytest.mark.parametrize("catalog_is_lost", [False, True])
def test_gc_by_a_second_catalog_over_one_warehouse_takes_nothing_of_the_first(
    catalog_is_lost: bool,
    lake: Lake,
    archive: Archive,
    wanted: Callable[..., dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two environments with one warehouse; or a new catalog that was made after the old one was lost."""
    archive(lake, 0, 1)
    if catalog_is_lost:
        _catalog(lake).rename(tmp_path / "lost.db")
        config = lake.config
    else:
        config = lake.config.with_properties({"uri": f"sqlite:///{tmp_path / 'second.db'}"})
    with pytest.raises(LakeIdentityError, match="expected an empty place"):
        make_lake(config)
    monkeypatch.setattr(making, "check_empty", lambda *_: None)
    second = make_lake(config)
    assert root_of(second.messages()) == root_of(lake.messages())
    archive(second, 2)
    unchecked(config)
    found = collected(second, delete=True)
    assert found.taken == ()
    assert len([file for file in found.orphans if file.kind is GarbageKind.DATA_FILE]) == 2
    check_whole(second, wanted(2), tmp_path / "restored-second")
    if catalog_is_lost:
        (tmp_path / "lost.db").replace(_catalog(lake))
    check_whole(connect(lake.config), wanted(0, 1), tmp_path / "restored")


def test_metadata_of_an_empty_table_of_another_catalog_is_kept(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = lake.config.with_properties({"uri": f"sqlite:///{tmp_path / 'second.db'}"})
    monkeypatch.setattr(making, "check_empty", lambda *_: None)
    make_lake(config)
    found = collected(unchecked(lake.config), delete=True)
    assert found.taken == ()
    assert all("another table" in file.reason for file in found.orphans)
    assert unchecked(config).messages()
