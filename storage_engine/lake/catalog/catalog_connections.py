"""Connections to a catalog's database. Each wait has a limit, and no connection is kept for later use."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy import URL, Engine, NullPool, create_engine, event, inspect, make_url, select
from sqlalchemy.orm import Session

from storage_engine.lake.catalog.own_tables import OwnTables
from storage_engine.lake.storage.small_files import FileMemory

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

_metadata: FileMemory[TableMetadata] = FileMemory(most=30_000)
"""Parsed metadata files. The limit counts their snapshots, which take some 3 KB each."""

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60

_POSTGRES_DEFAULTS = {
    "connect_timeout": str(CONNECT_SECONDS),
    # A vanished host is noticed after a minute, whether we wait for its answer or it waits for our request.
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "4",
    "tcp_user_timeout": str(ANSWER_SECONDS * 1000),
}


def sql_url(uri: str) -> URL:
    """Return a SQL catalog's address. For PostgreSQL it limits waiting, unless it has limits already."""
    url = make_url(uri)
    if url.get_backend_name() != "postgresql" or url.get_driver_name() not in ("psycopg", "psycopg2"):
        return url
    return url.update_query_dict({k: v for k, v in _POSTGRES_DEFAULTS.items() if k not in url.query})


@lru_cache(maxsize=32)
def sql_engine(url: URL) -> Engine:
    """Return an engine without a pool of connections.

    So no connection outlives its use or is shared with a forked process. SQLite's commits are made durable.
    There is one engine for each URL, because an engine remembers the statements that it has compiled.
    """
    engine = create_engine(url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "do_connect", _connect_existing)
        event.listen(engine, "connect", _make_durable)
    elif engine.dialect.driver == "psycopg":
        event.listen(engine, "do_connect", _connect_limited)
    return engine


def _connect_existing(_dialect: Any, _record: Any, arguments: Any, keywords: Any) -> sqlite3.Connection:
    """Connect to a file that exists.

    SQLite itself would make a missing file, even below an unmounted disk.
    """
    path = quote(str(Path(arguments[0].removeprefix("file:")).absolute()))
    connection: sqlite3.Connection = sqlite3.connect(f"file:{path}?mode=rw", **{**keywords, "uri": True})
    return connection


def _make_durable(connection: Any, _record: Any) -> None:
    """Set synchronous=EXTRA. Unlike FULL, it fsyncs the directory after the rollback journal is removed.

    Otherwise a power cut may bring the journal back, which rolls a committed transaction back.
    """
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=EXTRA")
    cursor.close()


def _connect_limited(_dialect: Any, _record: Any, arguments: Any, keywords: Any) -> psycopg.Connection[Any]:
    """Connect to PostgreSQL so that neither side waits for the other without end.

    TCP's own limits only notice a host that is gone. A server or proxy that hangs keeps its connections open.
    The server ends a transaction whose client is gone, so that no transaction waits for it.
    """
    import psycopg

    class LimitedConnection(psycopg.Connection[Any]):
        def wait(self, gen: Generator[Any, Any, T], *options: Any, **more: Any) -> T:
            try:
                return super().wait(_limit_wait(gen, time.monotonic() + ANSWER_SECONDS), *options, **more)
            except TimeoutError as error:
                # Otherwise a rollback would wait as long again.
                self.pgconn.finish()
                raise psycopg.OperationalError(str(error)) from None

    connection = LimitedConnection.connect(*arguments, **{**keywords, "autocommit": True})
    # The server gives up before we do, so its answer says that nothing was done.
    connection.execute(f"SET lock_timeout = {ANSWER_SECONDS * 500}")
    connection.execute(f"SET idle_in_transaction_session_timeout = {ANSWER_SECONDS * 1000}")
    connection.autocommit = bool(keywords.get("autocommit", False))
    return connection


def _limit_wait(gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """Wrap psycopg's generator for an answer, and raise an error after the deadline.

    While no answer comes, psycopg resumes this generator several times a second.
    """
    try:
        state = next(gen)
        while True:
            ready = yield state
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server has not answered for {ANSWER_SECONDS} s")
            state = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


def metadata_locations(catalog: SqlCatalog, namespace: str) -> dict[str, str]:
    """Return the location of the metadata file of each table in a namespace, by the table's name.

    :raises SQLAlchemyError: the catalog can't be read, or lacks its own tables.
    """
    with Session(catalog.engine) as session:
        rows = session.execute(
            select(IcebergTables.table_name, IcebergTables.metadata_location).where(
                IcebergTables.catalog_name == catalog.name, IcebergTables.table_namespace == namespace
            )
        ).all()
    return {str(name): str(location) for name, location in rows if location}


class RememberingSqlCatalog(OwnTables, SqlCatalog):
    """PyIceberg's SQL catalog, which parses no metadata file twice in a process.

    It asks the database each time. Only a metadata file's content is remembered, as it can't change.
    """

    def _init_catalog(self) -> None:
        """Look for the catalog's own tables. PyIceberg itself would take any failure for missing tables.

        :raises SQLAlchemyError: the database is locked, down or damaged.
        """
        with sql_engine(sql_url(self.properties["uri"])).connect() as connection:
            inspect(connection).has_table(IcebergTables.__tablename__)
        super()._init_catalog()

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location
        if not location:
            return super()._convert_orm_to_iceberg(orm_table)
        identifier = (*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        return self.own_table(identifier, self._read(location), location, {})

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """Apply a commit to the table's metadata, and write the result among this lake's own files."""
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        if current_table is not None:
            before = self._read(current_table.metadata_location)
            properties = dict(before.properties)
            for update in updates:
                if isinstance(update, SetPropertiesUpdate):
                    properties |= update.updates
                elif isinstance(update, RemovePropertiesUpdate):
                    properties = {k: v for k, v in properties.items() if k not in update.removals}
            staged.metadata = staged.metadata.model_copy(
                update={"properties": properties, "location": before.location}
            )
        return staged

    def _read(self, location: str) -> TableMetadata:
        def parse() -> TableMetadata:
            file = self._load_file_io(location=location).new_input(location)
            return FromInputFile.table_metadata(file)

        return _metadata.get(location, parse, lambda it: len(it.snapshots) + 10)


SQL_CATALOG = f"{RememberingSqlCatalog.__module__}.{RememberingSqlCatalog.__qualname__}"

REST_CATALOG = "storage_engine.lake.catalog.rest_catalog.PatientRestCatalog"
"""Only the class's name: the class imports HTTP libraries, which takes a tenth of a second."""
