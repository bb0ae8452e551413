"""A database with several names gets a file of its own, or says why it can't."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog.catalog import break_hard_links, connect, read_pointers, repoint
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake


@pytest.fixture
def shared(tmp_path: Path) -> tuple[Path, Path]:
    """A database and its other name."""
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    with closing(sqlite3.connect(first)) as connection:
        connection.execute("CREATE TABLE t (x)")
    os.link(first, second)
    return first, second


def test_a_linked_database_stays_a_link(shared: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = shared
    link = tmp_path / "link.db"
    link.symlink_to(first.name)
    content = first.read_bytes()
    break_hard_links(link)
    assert link.is_symlink()
    assert not first.samefile(second)
    assert first.read_bytes() == content


def test_wal_mode_is_refused_with_the_way_out_of_it(shared: tuple[Path, Path]) -> None:
    first, second = shared
    with closing(sqlite3.connect(first)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    with pytest.raises(sqlite3.NotSupportedError, match="PRAGMA journal_mode=DELETE"):
        break_hard_links(second)
    assert first.samefile(second)


@pytest.mark.parametrize("fault", ["locked", "wal"])
def test_a_shared_catalog_that_cannot_be_parted_is_an_unavailable_lake(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LakeConfig.local(tmp_path / "lake")
    make_lake(config)
    lake = connect(config)
    assert isinstance(lake.catalog, SqlCatalog)
    file = tmp_path / "lake" / "catalog.db"
    os.link(file, tmp_path / "other.db")
    pointers = read_pointers(lake)
    opened = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **more: opened(*given, **{**more, "timeout": 0}))
    with closing(opened(file, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE" if fault == "locked" else "PRAGMA journal_mode=WAL")
        with pytest.raises(LakeUnavailableError, match="locked" if fault == "locked" else "WAL"):
            repoint(lake, {name: (location, location) for name, location in pointers.items()})
    assert file.samefile(tmp_path / "other.db")


def test_a_shared_file_that_is_no_database_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "no.db").write_bytes(b"no database" * 1000)
    os.link(tmp_path / "no.db", tmp_path / "other.db")
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        break_hard_links(tmp_path / "no.db")
