"""A SQL catalog's rows: which metadata file each of the lake's tables has. Both change in one transaction.

A SQLite file is written through no other name of it: hard links are broken before.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from sqlalchemy import insert, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from storage_engine.core.durable import replacing
from storage_engine.exceptions import BadInputError, CommitStateUnknownError, LakeUnavailableError
from storage_engine.lake.catalog.catalog import Lake, tables_are_missing
from storage_engine.lake.catalog.catalog_connections import metadata_locations
from storage_engine.lake.catalog.identity import LAKE_ID_PROPERTY
from storage_engine.lake.catalog.place import sqlite_file_of
from storage_engine.lake.storage.errors import lake_errors


def break_hard_links(path: Path) -> None:
    """Give a SQLite database that has other names (hard links) a file of its own, with the same content.

    A backup may be made of hard links. A change through one name would reach the other one's lake. Where the
    path is a symbolic link, its target is given the new file.

    :raises OSError: it can't be written.
    :raises sqlite3.Error: it is locked, damaged, or in WAL mode.
    """
    path = path.resolve()
    before = path.stat()
    if before.st_nlink == 1:
        return
    with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=rw", uri=True)) as connection:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            # There, a connection that is open already doesn't notice that its file was replaced.
            command = shlex.join(["sqlite3", str(path), "PRAGMA journal_mode=DELETE"])
            raise sqlite3.NotSupportedError(
                "expected a rollback journal, found WAL mode. End every program that uses the database, then "
                f"checkpoint it and leave WAL mode: {command}"
            )
        # Nobody commits meanwhile, and what a killed writer left is rolled back.
        connection.execute("BEGIN IMMEDIATE")
        with replacing(path) as file:
            file.write(connection.serialize())
            os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            if os.geteuid() == 0:
                os.fchown(file.fileno(), before.st_uid, before.st_gid)


def sql_catalog(lake: Lake) -> SqlCatalog:
    """Return a lake's catalog, whose rows can be changed.

    :raises BadInputError: the lake's catalog is none whose rows can be changed.
    """
    if not isinstance(lake.catalog, SqlCatalog):
        raise BadInputError(
            f"lake {lake.location}: expected a catalog in SQLite or PostgreSQL, found "
            f"{type(lake.catalog).__name__}. Nothing was changed. With another catalog, register each "
            "table's metadata file by that catalog's own means."
        )
    return lake.catalog


def read_pointers(lake: Lake) -> dict[str, str]:
    """Return the location of each table's metadata file, by the table's name: of all in the lake's namespace.

    :raises LakeUnavailableError: the catalog can't be read.
    """
    catalog = sql_catalog(lake)
    try:
        with lake_errors(lake.location, "read the catalog"):
            return metadata_locations(catalog, lake.config.namespace)
    except LakeUnavailableError as error:
        if tables_are_missing(error.__cause__):
            return {}
        raise


def make_catalog_tables(lake: Lake, lake_id: str | None) -> None:
    """Make a catalog's own tables and the lake's namespace, where they are missing.

    :raises LakeUnavailableError: the catalog can't be written.
    """
    catalog = sql_catalog(lake)
    with lake_errors(lake.location, "make the catalog"):
        try:
            catalog.create_tables()
        except DBAPIError as error:
            if "already exists" not in str(error):
                raise
        given = {} if lake_id is None else {LAKE_ID_PROPERTY: lake_id}
        with suppress(NamespaceAlreadyExistsError, IntegrityError):
            catalog.create_namespace(lake.config.namespace, {"exists": "true", **given})


def repoint(lake: Lake, changes: Mapping[str, tuple[str | None, str]]) -> None:
    """Give tables other metadata files, all or none.

    :param changes: by table, the location that its row has (None: there is no row) and the one that it gets.
    :raises LakeUnavailableError: a row is another by now; nothing was changed.
    :raises CommitStateUnknownError: the catalog didn't answer; run again to find out.
    """
    catalog, namespace = sql_catalog(lake), lake.config.namespace
    if (file := sqlite_file_of(lake.config)) is not None:
        with lake_errors(lake.location, "part the catalog from its other names"):
            break_hard_links(file)
    try:
        with Session(catalog.engine) as session:
            for name, (expected, new) in changes.items():
                if expected is None:
                    row = catalog._create_table_row(namespace, name, new)
                    session.execute(insert(IcebergTables).values(**row))
                    continue
                changed = session.execute(
                    update(IcebergTables)
                    .where(
                        IcebergTables.catalog_name == catalog.name,
                        IcebergTables.table_namespace == namespace,
                        IcebergTables.table_name == name,
                        IcebergTables.metadata_location == expected,
                    )
                    .values(metadata_location=new, previous_metadata_location=None)
                )
                if changed.rowcount != 1:  # type: ignore[attr-defined]
                    raise _overtaken(lake, name, expected)
            session.commit()
    except IntegrityError as error:
        raise _overtaken(lake, "tables", "no row") from error
    except DBAPIError as error:
        if read_pointers(lake) == {
            **read_pointers(lake),
            **{name: new for name, (_, new) in changes.items()},
        }:
            return
        raise CommitStateUnknownError(
            f"lake {lake.location}: can't change the catalog: {error.orig}. Whether "
            "it was changed is not known. Run again: what was done is found."
        ) from error


def _overtaken(lake: Lake, name: str, expected: str) -> LakeUnavailableError:
    return LakeUnavailableError(
        f"lake {lake.location}: expected the catalog to name {expected} for {name}, found that another "
        "program changed it meanwhile. Nothing was changed. Run again when no process writes to the lake."
    )
