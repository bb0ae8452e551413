"""``storage-engine lake``: what an operator does when a lake was moved, copied, or has lost its catalog."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from storage_engine.cli.lake import lakes
from storage_engine.lake.move import moving, rebuilding

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Where store and lake of all these tests lie, and where they are kept as they were first."""
    base = tmp_path_factory.mktemp("lakes")
    return base / "here", base / "kept"


@pytest.fixture
def cleaned(
    places: tuple[Path, Path],
    cli: Any,
    unpack: Callable[[str, Path], Path],
    expire: Callable[[Path], None],
    plainly: None,
) -> Iterator[tuple[Path, Path]]:
    """A store whose first two segments are in a lake, and nowhere else.

    They are put back as they were where they were: at another place a lake would be a copy.
    """
    here, kept = places
    store, lake = here / "A", here / "lake"
    if kept.exists():
        shutil.copytree(kept, here)
    else:
        assert unpack("clean-stop", here) == store
        expire(store)
        clean(cli, store, lake)
        shutil.copytree(here, kept)
    yield store, lake
    shutil.rmtree(here)


def clean(cli: Any, store: Path, lake: Path) -> None:
    if not lake.exists():
        assert cli("init-lake", "--lake", lake).exit_code == 0
    done = cli("clean", store, "--lake", lake, "--manual", "--max-segments", 2, "--json")
    assert done.exit_code == 0, done.out


def verified(cli: Any, lake: Path) -> tuple[int, int]:
    done = cli("verify", "--lake", lake, "--json")
    return done.exit_code, done.json["stores"][0]["receipt_count"]


@pytest.mark.again
def test_a_lake_is_moved_and_cleaning_goes_on(cli: Any, cleaned: tuple[Path, Path], tmp_path: Path) -> None:
    store, lake = cleaned
    moved = tmp_path / "moved"
    lake.rename(moved)
    refused = cli("clean", store, "--lake", moved, "--manual", "--json")
    assert refused.exit_code == 1
    assert "storage-engine lake relocate" in refused.out
    info = cli("lake", "info", "--lake", moved, "--json")
    assert info.exit_code == 1
    assert "storage-engine lake relocate" in info.json["refused"]
    assert info.json["stores"][0]["segment_count"] == 2
    done = cli("lake", "relocate", "--lake", moved)
    assert (done.exit_code, "Relocated: 3 files" in done.out) == (0, True), done.err
    assert cli("lake", "relocate", "--lake", moved, "--json").json["changed"] is False
    clean(cli, store, moved)
    assert verified(cli, moved) == (0, 4)


@pytest.mark.parametrize("command", ["relocate", pytest.param("rebuild", marks=pytest.mark.again)])
def test_a_copy_of_hard_links_gets_a_journal_of_its_own(
    cli: Any, cleaned: tuple[Path, Path], tmp_path: Path, command: str
) -> None:
    store, lake = cleaned
    copy = shutil.copytree(lake, tmp_path / "copy", copy_function=os.link)
    assert cli("lake", command, "--lake", copy).exit_code == 0
    assert not (copy / "journal.db").samefile(lake / "journal.db")
    assert (copy / "journal.db").read_bytes() == (lake / "journal.db").read_bytes()
    clean(cli, store, lake)
    assert verified(cli, lake) == (0, 4)


@pytest.mark.parametrize("command", ["relocate", "rebuild"])
def test_the_journal_is_parted_whatever_a_killed_call_had_done(
    cli: Any, cleaned: tuple[Path, Path], tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, lake = cleaned
    copy = shutil.copytree(lake, tmp_path / "copy", copy_function=os.link)
    with monkeypatch.context() as killed:
        module = {"relocate": moving, "rebuild": rebuilding}[command]
        killed.setattr(module, command, _interrupted_after(getattr(module, command)))
        with pytest.raises(_Killed):
            lakes.lake([command, "--lake", str(copy)], standalone_mode=False)
    assert not (copy / "journal.db").samefile(lake / "journal.db")
    (copy / "journal.db").unlink()
    (copy / "journal.db").hardlink_to(lake / "journal.db")
    assert cli("lake", command, "--lake", copy).exit_code == 0
    assert not (copy / "journal.db").samefile(lake / "journal.db")


class _Killed(BaseException):
    pass


def _interrupted_after(done: Callable[..., object]) -> Callable[..., None]:
    def act(*given: Any, **options: Any) -> None:
        done(*given, **options)
        raise _Killed

    return act


def test_a_shared_journal_that_cannot_be_parted_stops_the_command_with_an_error(
    cli: Any, cleaned: tuple[Path, Path], tmp_path: Path
) -> None:
    _, lake = cleaned
    copy = shutil.copytree(lake, tmp_path / "copy", copy_function=os.link)
    with closing(sqlite3.connect(lake / "journal.db")) as connection:
        assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    refused = cli("lake", "relocate", "--lake", copy, "--json")
    assert (refused.exit_code, refused.json["error"]["type"]) == (1, "JournalUnavailableError")
    assert "PRAGMA journal_mode=DELETE" in refused.json["error"]["message"]
    assert (copy / "journal.db").samefile(lake / "journal.db")


@pytest.mark.again
def test_a_copy_is_a_backup_and_no_second_lake(cli: Any, cleaned: tuple[Path, Path], tmp_path: Path) -> None:
    store, lake = cleaned
    copy = tmp_path / "copy"
    assert cli("lake", "copy", "--lake", lake, "--to", copy, "--json").json["receipt_count"] == 2
    info = cli("lake", "info", "--lake", copy)
    assert (info.exit_code, "read-only" in info.out) == (0, True)
    # The lake can't be asked: nothing is archived into its copy, and nothing is deleted on the copy's proof.
    (lake / "catalog.db").write_bytes(b"not a database")
    before = sorted(path.name for path in (store / "commitlog").iterdir())
    refused = cli("clean", store, "--lake", lake, "--second-lake", copy, "--manual", "--json")
    assert refused.exit_code == 1
    assert "found a copy of lake" in refused.out
    assert sorted(path.name for path in (store / "commitlog").iterdir()) == before
    assert verified(cli, copy) == (0, 2)
    shutil.rmtree(lake)
    assert cli("archive", store, "--lake", copy, "--json").exit_code == 1
    back = cli("restore", "--lake", copy, "--to", tmp_path / "back", "--json")
    assert back.exit_code == 0, back.out
    promoted = cli("lake", "promote", "--lake", copy, "--reason", "the original burnt")
    assert (promoted.exit_code, "the original burnt" in promoted.out) == (0, True)
    assert cli("archive", store, "--lake", copy, "--json").exit_code == 0
    assert "the original burnt" in cli("lake", "info", "--lake", copy).out


@pytest.mark.again
def test_a_copy_as_second_lake_fails_the_end_of_what_is_done(
    cli: Any, cleaned: tuple[Path, Path], tmp_path: Path
) -> None:
    store, lake = cleaned
    second = tmp_path / "copy"
    assert cli("lake", "copy", "--lake", lake, "--to", second).exit_code == 0
    found, cure = "found a copy of lake", "Name the original, or a second lake of its own"
    lakes = ("--lake", lake, "--second-lake", second)
    archived = cli("archive", store, *lakes)
    assert (archived.exit_code, "Archived and proven" in archived.out) == (1, True)
    assert archived.err.count(found) == 1
    assert (cure in archived.err, "Note:" in archived.err) == (True, False)
    before = len(list((store / "commitlog").iterdir()))
    done = cli("clean", store, *lakes, "--manual", "--max-segments", 2)
    assert (done.exit_code, len(list((store / "commitlog").iterdir()))) == (1, before - 2)
    assert (done.out + done.err).count(found) == 1
    assert (f"FAILED lake {second.as_uri()}" in done.out, cure in done.out) == (True, True)
    shown = cli("clean", store, *lakes, "--manual", "--max-segments", 1, "--json")
    assert (shown.exit_code, shown.json["error"]["type"]) == (1, "LakeIdentityError")
    assert cure in shown.json["error"]["message"]
    assert cli("clean", store, "--lake", lake, "--manual", "--max-segments", 1).exit_code == 0


@pytest.mark.again
def test_a_catalog_from_yesterday_is_brought_up_to_the_warehouse(
    cli: Any, cleaned: tuple[Path, Path], tmp_path: Path
) -> None:
    store, lake = cleaned
    shutil.copy2(lake / "catalog.db", tmp_path / "yesterday.db")
    clean(cli, store, lake)
    shutil.copy2(tmp_path / "yesterday.db", lake / "catalog.db")
    assert "storage-engine lake rebuild" in cli("verify", "--lake", lake).err
    said = cli("lake", "rebuild", "--lake", lake, "--dry-run")
    assert (said.exit_code, "would name" in said.out) == (0, True)
    assert cli("lake", "rebuild", "--lake", lake).exit_code == 0
    assert verified(cli, lake) == (0, 4)
    clean(cli, store, lake)


def test_a_catalog_and_a_journal_that_are_lost_cost_nothing(
    cli: Any, cleaned: tuple[Path, Path], tmp_path: Path
) -> None:
    store, lake = cleaned
    for path in lake.iterdir():
        if path.is_file():
            path.unlink()
    refused = cli("clean", store, "--lake", lake, "--manual")
    assert (refused.exit_code, "lake" in refused.err) == (2, True)
    assert cli("lake", "info", "--lake", lake).exit_code == 1
    assert cli("lake", "rebuild", "--lake", lake).exit_code == 0
    assert not (lake / "journal.db").exists()
    assert verified(cli, lake) == (0, 2)
    back = cli("restore", "--lake", lake, "--to", tmp_path / "back", "--json")
    assert back.exit_code == 0, back.out


@pytest.mark.again
def test_the_journal_chooses_between_two_branches(
    cli: Any, cleaned: tuple[Path, Path], tmp_path: Path
) -> None:
    store, lake = cleaned
    other = tmp_path / "other"
    shutil.copytree(lake, other)
    clean(cli, store, lake)
    for mark in lake.rglob(".storage-engine-mark.json"):
        mark.unlink()
    (lake / "catalog.db").unlink()
    done = cli("lake", "rebuild", "--lake", lake, "--json")
    assert done.exit_code == 0, done.out
    assert done.json["unknown_heads"] == []
    assert verified(cli, lake) == (0, 4)


def test_a_copy_goes_into_a_directory_whose_parent_is_there(
    cli: Any, cleaned: tuple[Path, Path], tmp_path: Path
) -> None:
    _, lake = cleaned
    refused = cli("lake", "copy", "--lake", lake, "--to", tmp_path / "away" / "copy")
    assert (refused.exit_code, "mount its disk" in refused.err) == (2, True)
    assert not (tmp_path / "away").exists()
