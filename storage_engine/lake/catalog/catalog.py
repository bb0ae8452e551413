"""Opening a lake: its durable catalog, its tables, and checks that it is the right lake.

The rows of a SQL catalog name the metadata file of each table. The rows of both tables change in one
transaction. Before a SQLite file is written, its other hard links are separated, so that they don't change.

Functions raise LakeUnavailableError if the catalog or a table can't be read or written.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
)
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import insert, make_url, update
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from storage_engine.brokers import broker_names, default_broker, find_broker
from storage_engine.commands import Command
from storage_engine.core.durable import replacing
from storage_engine.core.extras import POSTGRES
from storage_engine.exceptions import (
    BadInputError,
    CommitStateUnknownError,
    LakeIdentityError,
    LakeMissingError,
    LakeUnavailableError,
)
from storage_engine.lake.catalog.catalog_connections import (
    REST_CATALOG,
    SQL_CATALOG,
    metadata_locations,
    sql_engine,
    sql_url,
)
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import (
    COPY_OF_PROPERTY,
    LAKE_ID_PROPERTY,
    catalog_identity,
    check_below_warehouse,
    check_containment,
    check_mark,
    lake_id_of,
)
from storage_engine.lake.catalog.own_tables import OwnTables, is_in_warehouse, is_own_metadata
from storage_engine.lake.catalog.place import check_catalog_file, make_advice, sqlite_file_of
from storage_engine.lake.catalog.tables import (
    BROKER_PROPERTY,
    DELETIONS,
    SEGMENTS,
    check_messages_schema,
    check_segments_schema,
    check_version,
    messages_schema,
)
from storage_engine.lake.storage.errors import lake_errors, metadata_errors, reason_of

CHANGE_LOCK = threading.Lock()
"""A thread holds this lock while it changes a lake. So it knows which files its failed attempt has left."""


@dataclass(frozen=True, slots=True)
class Lake:
    """An open lake.

    Each call asks the catalog again, because a table that was loaded earlier shows the past. A metadata file
    that this process has parsed already is not parsed again.

    :param catalog_id: the identity that distinguishes the lake's catalog from a copy of that catalog.
    """

    config: LakeConfig
    catalog: Catalog
    catalog_id: str
    _names: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def location(self) -> str:
        return self.config.location

    @property
    def broker(self) -> str:
        """Return the name of the broker whose segments the lake has."""
        return broker_in(self.segments().properties)

    @property
    def rows_table(self) -> str:
        """Return the name of the table of rows, by the properties of ``segments``.

        Once they name a broker, they aren't read again.

        :raises BadInputError: the lake's broker isn't installed.
        """
        return self._names[0] if self._names else self.name_rows(self.segments().properties)

    def name_rows(self, properties: Mapping[str, str]) -> str:
        """Do the same as :attr:`rows_table`, by these properties of ``segments``."""
        name = rows_table_of(properties)
        if BROKER_PROPERTY in properties:
            self._names[:] = [name]
        return name

    def messages(self) -> Table:
        """Load the table of rows. Raise BadInputError if the lake's broker isn't installed."""
        return self.load(self.rows_table)

    def segments(self) -> Table:
        """Load the table of receipts."""
        return self.load(SEGMENTS)

    def tables(self) -> tuple[Table, Table]:
        """Return the table of rows and ``segments``."""
        return self.messages(), self.segments()

    def has_deletions(self) -> bool:
        """Return whether the catalog has a table of deletions, even if it can't be used."""
        with lake_errors(self.location, f"look for table {DELETIONS}"):
            if isinstance(self.catalog, SqlCatalog):
                return DELETIONS in metadata_locations(self.catalog, self.config.namespace)
            return self.catalog.table_exists((self.config.namespace, DELETIONS))

    def deletions(self) -> Table | None:
        """Load the table of deletions; None if the catalog has none.

        :raises LakeUnavailableError: the table can't be read, is another lake's, or is in an older state.
        :raises BadInputError: a newer release made it.
        """
        if not self.has_deletions():
            return None
        if isinstance(self.catalog, SqlCatalog):
            with lake_errors(self.location, "read the catalog"):
                pointer = metadata_locations(self.catalog, self.config.namespace).get(DELETIONS)
            if pointer is None:
                return None
            _check_pointer(self, DELETIONS, pointer)
        table, lake_id = self.load(DELETIONS), lake_id_of(self.segments())
        check_version(table)
        if lake_id_of(table) != lake_id:
            raise LakeIdentityError(
                f"{table.location()}: expected a table of lake {lake_id}, found one of lake "
                f"{lake_id_of(table)}. Nothing was changed. Drop the table from the catalog: the next run "
                "makes it again from the journal."
            )
        check_containment(self.config, table)
        check_mark(table, lake_id, self.catalog_id)
        return table

    def every_table(self) -> tuple[Table, ...]:
        """Return :meth:`tables`, and the table of deletions if it is this lake's and can be read."""
        tables = self.tables()
        with suppress(LakeUnavailableError, BadInputError):
            if (deletions := self.deletions()) is not None:
                return (*tables, deletions)
        return tables

    def load(self, name: str) -> Table:
        with metadata_errors(self.location, f"load table {self.config.namespace}.{name}"):
            return self.catalog.load_table((self.config.namespace, name))


def broker_in(properties: Mapping[str, str]) -> str:
    """Return the name of a lake's broker from a table's properties."""
    return properties.get(BROKER_PROPERTY) or default_broker()


def rows_table_of(properties: Mapping[str, str]) -> str:
    """Return the name of the table of rows. Raise BadInputError if the lake's broker isn't installed."""
    return find_broker(broker_in(properties)).rows.table


def rows_table_among(names: Iterable[str]) -> str:
    """Return the name of a lake's table of rows, given the names of all of its tables.

    The result is the default broker's table if the lake has that table, or has no table of rows. Call this
    for a lake whose ``segments`` can't be read.
    """
    default = find_broker(default_broker()).rows.table
    existing = set(names)
    if default in existing:
        return default
    tables = set()
    for name in broker_names():
        with suppress(BadInputError):
            tables.add(find_broker(name).rows.table)
    return min(tables & existing, default=default)


def takes_any_broker(segments: TableMetadata, rows: TableMetadata) -> bool:
    """Return whether a lake takes the first store of any kind of broker. Pure.

    A lake of version 1, which has no UUID, was made for the default broker.
    """
    properties = segments.properties
    return (
        BROKER_PROPERTY not in properties
        and COPY_OF_PROPERTY not in properties
        and LAKE_ID_PROPERTY in properties
        and segments.current_snapshot() is None
        and rows.current_snapshot() is None
    )


def has_no_broker(lake: Lake) -> bool:
    """Return whether a lake has no kind of broker yet, and takes the first store of any kind."""
    segments = lake.segments()
    # A lake that has a kind isn't asked for its table of rows.
    return BROKER_PROPERTY not in segments.properties and takes_any_broker(
        segments.metadata, lake.messages().metadata
    )


def check_broker(lake: Lake, broker: str) -> None:
    """Make sure that a lake takes a broker's segments.

    A lake without a kind of broker takes them, too. But it has the default broker's table of rows. So it
    doesn't take another broker whose table of rows has the same name.

    :raises BadInputError: the lake is for another broker's segments.
    """
    may_take = find_broker(broker).rows.table != lake.rows_table and has_no_broker(lake)
    if (actual := lake.broker) != broker and not may_take:
        raise BadInputError(
            f"lake {lake.location}: expected a lake for segments of {broker}, found one for those of "
            f"{actual}. Nothing was changed. Name another lake, or make one: ",
            Command("init-lake", f"--broker-type {broker} --lake DIRECTORY"),
        )


def open_lake(config: LakeConfig) -> Lake:
    """Open a lake's catalog, and check both tables as in :func:`check_lake`.

    Nothing is written, and nothing is made.

    :raises LakeMissingError: there is no lake.
    :raises LakeIdentityError: the lake is a plain copy, its catalog is an older state or a copy, or another
        lake is in its place.
    :raises LakeUnavailableError: the lake can't be read, or another program made its tables.
    :raises BadInputError: the configuration names no catalog that PyIceberg knows.
    """
    lake = connect(config)
    check_lake(lake)
    return lake


def connect(config: LakeConfig) -> Lake:
    """Open a lake's catalog without a check of its contents.

    :raises LakeMissingError: the catalog is a file, and this file doesn't exist.
    :raises BadInputError: the configuration names no catalog that PyIceberg knows.
    """
    check_catalog_file(config)
    with lake_errors(config.location, "open the catalog"):
        catalog = _load_catalog(config)
        catalog_id = catalog_identity(config, catalog)
        if isinstance(catalog, OwnTables):
            catalog.belong_to(config, catalog_id)
        return Lake(config, catalog, catalog_id)


def tables_are_missing(error: BaseException | None) -> bool:
    """Return whether an error says that a catalog lacks its own tables or the lake's tables.

    A catalog that doesn't answer is a different error.
    """
    if isinstance(error, NoSuchTableError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    undefined_table = getattr(error.orig, "sqlstate", None) == "42P01"
    return undefined_table or "no such table" in str(error.orig)


def _load_catalog(config: LakeConfig) -> Catalog:
    properties: dict[str, Any] = config.file_io_properties
    if properties.get("type") == "sql" and "py-catalog-impl" not in properties:
        del properties["type"]
        properties["py-catalog-impl"] = SQL_CATALOG
        # Creating its own tables is a write; it happens where a lake is made, on durable connections.
        properties["init_catalog_tables"] = "false"
    elif properties.get("type", "rest") == "rest" and properties.get("uri", "").startswith("http"):
        properties.pop("type", None)
        properties.setdefault("py-catalog-impl", REST_CATALOG)
    try:
        is_sql = "uri" in properties and properties.get("py-catalog-impl") == SQL_CATALOG
        if is_sql and make_url(config.properties["uri"]).get_driver_name() == POSTGRES.module:
            # PyIceberg would say that the catalog's class is missing.
            POSTGRES.require(f"lake {config.location}")
        catalog = load_catalog(config.name, **properties)
    except (ValueError, TypeError, ArgumentError, NotInstalledError, NoSuchPropertyException) as error:
        message = config.without_secrets(str(error))
        refusal = BadInputError(f"lake {config.location}: the catalog's properties don't work: {message}")
        if message == str(error):
            raise refusal from error
        raise refusal from None
    if isinstance(catalog, SqlCatalog):
        if "uri" not in config.properties:
            raise BadInputError(
                f"lake {config.location}: expected the property uri of its catalog, found none. Nothing was "
                "changed. Name its database or server by uri, or by airflow.catalog-conn-id."
            )
        catalog.engine.dispose()
        catalog.engine = sql_engine(sql_url(config.properties["uri"]))
    return catalog


def check_lake(lake: Lake) -> None:
    """Make sure that both tables exist, were made by Storage Engine, and belong to this lake.

    :raises LakeMissingError: at least one of these tables is missing.
    :raises LakeIdentityError: as in :func:`open_lake`.
    :raises LakeUnavailableError: as in :func:`open_lake`.
    """
    locations: Mapping[str, str] = {}
    rows = ""
    try:
        if isinstance(lake.catalog, SqlCatalog):
            # Before the metadata is opened: a plain copy names the original's files, which may be missing.
            with lake_errors(lake.location, "read the catalog"):
                locations = metadata_locations(lake.catalog, lake.config.namespace)
            if SEGMENTS in locations:
                _check_pointer(lake, SEGMENTS, locations[SEGMENTS])
        segments = lake.segments()
        rows = lake.name_rows(segments.properties)
        if rows in locations:
            _check_pointer(lake, rows, locations[rows])
        messages = lake.messages()
    except LakeUnavailableError as error:
        if tables_are_missing(error.__cause__):
            raise LakeMissingError(
                f"lake {lake.location}: expected the tables {rows or rows_table_among(locations)} and "
                f"{SEGMENTS} in namespace {lake.config.namespace}, found at least one missing "
                f"({reason_of(error.__cause__)}). Nothing was created. ",
                make_advice(lake.config),
            ) from error
        raise
    for table in (messages, segments):
        check_version(table)
    codec = find_broker(broker_in(segments.properties)).codec
    check_messages_schema(messages.location(), messages_schema(codec.schema), messages.schema())
    check_segments_schema(segments.location(), segments.schema())
    check_identity(lake, messages, segments)


def _check_pointer(lake: Lake, name: str, metadata_location: str) -> None:
    """Raise LakeIdentityError if an unopened metadata file is another lake's, as after a plain copy."""
    if not is_in_warehouse(lake.config, metadata_location):
        file_io = load_file_io(lake.config.file_io_properties, metadata_location)
        if not is_own_metadata(lake.config, lake.catalog_id, name, metadata_location, file_io):
            check_below_warehouse(lake.config, name, metadata_location)


def id_in_catalog(lake: Lake) -> str | None:
    """Return the UUID of the lake according to its namespace in the catalog; None if the namespace names no
    UUID.
    """
    with lake_errors(lake.location, "read the lake's name in its catalog"):
        return lake.catalog.load_namespace_properties(lake.config.namespace).get(LAKE_ID_PROPERTY)


def name_in_catalog(lake: Lake, lake_id: str) -> None:
    """Record a lake's UUID in the properties of its namespace in the catalog."""
    if id_in_catalog(lake) != lake_id:
        with lake_errors(lake.location, "name the lake in its catalog"):
            lake.catalog.update_namespace_properties(
                lake.config.namespace, updates={LAKE_ID_PROPERTY: lake_id}
            )


def check_identity(lake: Lake, messages: Table, segments: Table) -> None:
    """Raise LakeIdentityError if loaded tables don't belong to the lake; see :func:`open_lake`."""
    lake_id = lake_id_of(segments)
    if (rows_id := lake_id_of(messages)) not in (None, lake_id):
        raise LakeIdentityError(
            f"lake {lake.location}: expected both tables of lake {lake_id}, found {messages.name()[-1]} of "
            f"lake {rows_id}. Nothing was changed. Bring the catalog back from a backup of one lake."
        )
    for table in (messages, segments):
        check_containment(lake.config, table)
        check_mark(table, lake_id, lake.catalog_id)


def break_hard_links(path: Path) -> None:
    """Separate a SQLite database from its other hard links: it gets a new file with the same content.

    A backup may consist of hard links, and a change through one name would also change the backup. If the
    path is a symbolic link, its target gets the new file.

    :raises OSError: the new file can't be written.
    :raises sqlite3.Error: the database is locked, damaged, or in WAL mode.
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
        # Nobody else can commit now, and an unfinished transaction of a killed writer is rolled back.
        connection.execute("BEGIN IMMEDIATE")
        with replacing(path) as file:
            file.write(connection.serialize())
            os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            if os.geteuid() == 0:
                os.fchown(file.fileno(), before.st_uid, before.st_gid)


def sql_catalog(lake: Lake) -> SqlCatalog:
    """Return a lake's catalog. Raise BadInputError if it isn't a SQL catalog, whose rows can be changed."""
    if not isinstance(lake.catalog, SqlCatalog):
        raise BadInputError(
            f"lake {lake.location}: expected a catalog in SQLite or PostgreSQL, found "
            f"{type(lake.catalog).__name__}. Nothing was changed. With another catalog, register each "
            "table's metadata file by that catalog's own means."
        )
    return lake.catalog


def read_pointers(lake: Lake) -> dict[str, str]:
    """Return the location of the metadata file of each table in the lake's namespace, by the table's name."""
    catalog = sql_catalog(lake)
    try:
        with lake_errors(lake.location, "read the catalog"):
            return metadata_locations(catalog, lake.config.namespace)
    except LakeUnavailableError as error:
        if tables_are_missing(error.__cause__):
            return {}
        raise


def make_catalog_tables(lake: Lake, lake_id: str | None) -> None:
    """Make a catalog's own tables and the lake's namespace, where they are missing."""
    catalog = sql_catalog(lake)
    with lake_errors(lake.location, "make the catalog"):
        try:
            catalog.create_tables()
        except DBAPIError as error:
            if "already exists" not in str(error):
                raise
        properties = {} if lake_id is None else {LAKE_ID_PROPERTY: lake_id}
        with suppress(NamespaceAlreadyExistsError, IntegrityError):
            catalog.create_namespace(lake.config.namespace, {"exists": "true", **properties})


def repoint(lake: Lake, changes: Mapping[str, tuple[str | None, str]]) -> None:
    """Change which metadata file the catalog names for each table, for all tables or for none.

    :param changes: for each table, the location in its row now (None if it has no row), and the new one.
    :raises LakeUnavailableError: a row was changed meanwhile; nothing was changed here.
    :raises CommitStateUnknownError: the catalog didn't answer; run again to find out.
    """
    catalog, namespace = sql_catalog(lake), lake.config.namespace
    if (file := sqlite_file_of(lake.config)) is not None:
        with lake_errors(lake.location, "separate the catalog from its other hard links"):
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
        pointers = read_pointers(lake)
        if all(pointers.get(name) == new for name, (_, new) in changes.items()):
            return
        raise CommitStateUnknownError(
            f"lake {lake.location}: can't change the catalog: {error.orig}. Whether it was changed is not "
            "known. Run again: the command finds out."
        ) from error


def _overtaken(lake: Lake, name: str, expected: str) -> LakeUnavailableError:
    return LakeUnavailableError(
        f"lake {lake.location}: expected the catalog to name {expected} for {name}, found that another "
        "program changed it meanwhile. Nothing was changed. Run again when no process writes to the lake."
    )
