from __future__ import annotations

import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import text

from storage_engine.exceptions import BadInputError, LakeUnavailableError
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake


def test_an_empty_lake_has_both_tables(lake: Lake) -> None:
    assert lake.messages().current_snapshot() is None
    assert lake.segments().current_snapshot() is None


def test_opening_again_changes_nothing(
    lake: Lake, tmp_path: Path, fingerprint: Callable[[Path], dict[str, str]]
) -> None:
    before = fingerprint(tmp_path)
    make_lake(lake.config)
    open_lake(lake.config)
    assert fingerprint(tmp_path) == before


def test_a_missing_lake_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(LakeUnavailableError, match=r"catalog\.db, found no such file"):
        open_lake(LakeConfig.local(tmp_path / "lake"))
    assert list(tmp_path.iterdir()) == []


def test_a_catalog_without_our_tables_is_refused(lake: Lake) -> None:
    lake.catalog.drop_table(("storage_engine", "segments"))
    with pytest.raises(LakeUnavailableError, match="expected the tables messages and segments"):
        open_lake(lake.config)


def test_an_empty_catalog_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").touch()
    with pytest.raises(LakeUnavailableError, match="expected the tables messages and segments"):
        open_lake(LakeConfig.local(tmp_path))


def test_a_file_that_is_no_catalog_is_refused(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(LakeUnavailableError, match=r"file is not a database.*move it away"):
        make_lake(LakeConfig.local(tmp_path))


def test_every_connection_to_sqlite_syncs_fully(lake: Lake) -> None:
    assert isinstance(lake.catalog, SqlCatalog)
    with lake.catalog.engine.connect() as first, lake.catalog.engine.connect() as second:
        for connection in (first, second):
            assert connection.execute(text("PRAGMA synchronous")).scalar() == 3


def test_a_table_with_other_columns_is_refused(lake: Lake) -> None:
    with lake.messages().update_schema() as update:
        update.rename_column("topic", "subject")
    with pytest.raises(LakeUnavailableError, match="expected column 9 topic string, found None"):
        open_lake(lake.config)


def test_a_catalog_in_memory_is_refused() -> None:
    config = LakeConfig("x", {"type": "sql", "uri": "sqlite://", "warehouse": "file:///nowhere"})
    with pytest.raises(BadInputError, match="found a database in memory"):
        make_lake(config)


def test_an_unknown_catalog_type_is_bad_input() -> None:
    with pytest.raises(BadInputError, match="not a valid CatalogType"):
        make_lake(LakeConfig("x", {"type": "nonsense"}))


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("postgres://u:S3CRET@h/db", "one whose scheme isn't among sqlite"),
        ("u:S3CRET@h/db", "one whose scheme isn't among sqlite"),
        ("postgresql://u:a?S3CRET=b@h/db", "an argument that isn't among"),
        ("postgresql://u:a?b&S3CRET=@h/db", "an argument that isn't among"),
    ],
)
def test_the_password_in_a_uri_that_no_catalog_takes_is_not_told(uri: str, found: str) -> None:
    with pytest.raises(
        BadInputError, match=f"lake property uri: expected a SQLAlchemy URL, found {found}"
    ) as raised:
        make_lake(LakeConfig("x", {"uri": uri}))
    assert "S3CRET" not in "".join(traceback.format_exception(raised.value))


def test_a_read_only_lake_can_be_read_but_not_made(mount_tmpfs: Callable[[int], Path]) -> None:
    disk = mount_tmpfs(4 << 20)
    config = LakeConfig.local(disk / "lake")
    make_lake(config)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert make_lake(config).messages().current_snapshot() is None
    with pytest.raises(LakeUnavailableError, match="Read-only file system"):
        make_lake(LakeConfig.local(disk / "other"))
