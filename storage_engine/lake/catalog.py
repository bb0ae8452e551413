"""Opening a lake: its catalog, made durable, and its two tables."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError

from storage_engine.durable import fsync_path, make_dirs
from storage_engine.exceptions import BadInputError, LakeMissingError, LakeUnavailableError
from storage_engine.lake.catalog_connections import REST_CATALOG, sql_engine, sql_url
from storage_engine.lake.codecs import codec_for
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.errors import lake_errors, metadata_errors
from storage_engine.lake.tables import (
    COMMIT_RETRIES_PROPERTY,
    MESSAGES,
    SEGMENTS,
    SEGMENTS_PROPERTIES,
    check_messages_schema,
    check_version,
    evolve,
    first_messages_schema,
    messages_properties,
    messages_schema,
    missing_columns,
    partition_by_store,
    segments_schema,
)

CHANGE_LOCK = threading.Lock()
"""Held while this process changes a lake, so that what a failed attempt wrote is known to be its own."""

_BROKER = "rocketmq"

_UPGRADE_ATTEMPTS = 20

NO_CATALOG_TABLES = (OperationalError, ProgrammingError)
"""How SQLite and PostgreSQL, each in its way, say that a SQL catalog lacks its own tables, or has them."""


@dataclass(frozen=True, slots=True)
class Lake:
    """An open lake. Tables are loaded anew at each call: a handle that is kept shows the past."""

    config: LakeConfig
    catalog: Catalog

    @property
    def location(self) -> str:
        return self.config.location

    def messages(self) -> Table:
        """
        :raises LakeUnavailableError: when the catalog or the table can't be read.
        """
        return self._load(MESSAGES)

    def segments(self) -> Table:
        """
        :raises LakeUnavailableError: when the catalog or the table can't be read.
        """
        return self._load(SEGMENTS)

    def _load(self, name: str) -> Table:
        with metadata_errors(self.location, f"load table {self.config.namespace}.{name}"):
            return self.catalog.load_table((self.config.namespace, name))


def open_lake(config: LakeConfig, *, create: bool) -> Lake:
    """Open a lake's catalog and make sure that both tables are there and are ours.

    :param create: make what is missing; without it a missing lake is an error and nothing is written.
    :raises LakeMissingError: there is none, and none was to be made.
    :raises LakeUnavailableError: the lake can't be read or written, or isn't ours.
    :raises BadInputError: the configuration names no catalog that PyIceberg knows.
    """
    sqlite_file = _sqlite_file(config)
    with lake_errors(config.location, "open the catalog"):
        if sqlite_file is not None and not sqlite_file.exists():
            if not create:
                raise LakeMissingError(
                    f"lake {config.location}: expected the catalog {sqlite_file}, found no such file. "
                    "Name the directory of an existing lake, or archive into it first."
                )
            make_dirs(sqlite_file.parent)
        catalog = _load_catalog(config)
        lake = Lake(config, catalog)
        if create and not _tables_exist(lake):
            with CHANGE_LOCK:
                _create(lake, sqlite_file)
    _check(lake)
    if create:
        upgrade(lake)
    return lake


def upgrade(lake: Lake) -> None:
    """Give a lake that an older version made the columns of this one.

    Not to be called while :data:`CHANGE_LOCK` is held: it is taken where columns are added.

    :raises LakeUnavailableError: the lake can't be written, or isn't ours.
    """
    schema = messages_schema(codec_for(_BROKER).schema)
    for load, expected in ((lake.messages, schema), (lake.segments, segments_schema())):
        for _ in range(_UPGRADE_ATTEMPTS):
            with lake_errors(lake.location, "add columns"), suppress(CommitFailedException):
                if not missing_columns(load(), expected):
                    break
                with CHANGE_LOCK:
                    evolve(load(), expected)
        else:
            raise LakeUnavailableError(
                f"lake {lake.location}: {_UPGRADE_ATTEMPTS} attempts to add columns to "
                f"{load().location()} were overtaken by other writers. Nothing was changed. Run again "
                "when fewer write at once."
            )
    check_messages_schema(lake.messages().location(), schema, lake.messages().schema())


def _load_catalog(config: LakeConfig) -> Catalog:
    properties: dict[str, Any] = config.file_io_properties
    if properties.get("type") == "sql":
        # Creating its own tables is a write; it happens in _create, on durable connections.
        properties["init_catalog_tables"] = "false"
    elif properties.get("type", "rest") == "rest" and properties.get("uri", "").startswith("http"):
        properties.pop("type", None)
        properties.setdefault("py-catalog-impl", REST_CATALOG)
    try:
        catalog = load_catalog(config.name, **properties)
    except (ValueError, ArgumentError) as error:
        told = config.without_secrets(str(error))
        refusal = BadInputError(f"lake {config.location}: the catalog's properties don't work: {told}")
        if told == str(error):
            raise refusal from error
        raise refusal from None
    if isinstance(catalog, SqlCatalog):
        catalog.engine.dispose()
        catalog.engine = sql_engine(sql_url(config.properties["uri"]))
    return catalog


def _sqlite_file(config: LakeConfig) -> Path | None:
    uri = config.properties.get("uri", "")
    if not uri.startswith("sqlite"):
        return None
    database = make_url(uri).database
    if not database or database == ":memory:":
        raise BadInputError(f"lake catalog {uri}: expected a file, found a database in memory. Name a file.")
    return Path(database)


def _tables_exist(lake: Lake) -> bool:
    try:
        return all(lake.catalog.table_exists((lake.config.namespace, name)) for name in (MESSAGES, SEGMENTS))
    except NO_CATALOG_TABLES:
        return False


def _create(lake: Lake, sqlite_file: Path | None) -> None:
    catalog, namespace = lake.catalog, lake.config.namespace
    if isinstance(catalog, SqlCatalog):
        try:
            catalog.create_tables()
        except NO_CATALOG_TABLES as error:
            # Two processes may make the same new lake; both find the tables in the end.
            if "already exists" not in str(error):
                raise
    if sqlite_file is not None:
        fsync_path(sqlite_file)
        fsync_path(sqlite_file.parent)
    with suppress(NamespaceAlreadyExistsError, IntegrityError):
        catalog.create_namespace_if_not_exists(namespace)
    segments = segments_schema()
    for name, schema, properties in (
        (MESSAGES, first_messages_schema(codec_for(_BROKER).schema), messages_properties()),
        (SEGMENTS, segments, SEGMENTS_PROPERTIES),
    ):
        catalog.create_table_if_not_exists(
            (namespace, name),
            schema=schema,
            partition_spec=partition_by_store(schema),
            properties=properties,
        )


def _check(lake: Lake) -> None:
    try:
        tables = (lake.messages(), lake.segments())
    except LakeUnavailableError as error:
        if isinstance(error.__cause__, (NoSuchTableError, *NO_CATALOG_TABLES)):
            raise LakeMissingError(
                f"lake {lake.location}: expected the tables {MESSAGES} and {SEGMENTS} in namespace "
                f"{lake.config.namespace}, found at least one missing ({error.__cause__}). Nothing was "
                "changed. Name the directory of an existing lake, or archive into it first."
            ) from error
        raise
    for table in tables:
        check_version(table)
        retries = table.properties.get(COMMIT_RETRIES_PROPERTY)
        if retries != "0":
            raise LakeUnavailableError(
                f"lake table {table.location()}: expected property {COMMIT_RETRIES_PROPERTY}=0, found "
                f"{retries}: with built-in retries a segment could be committed twice. Set it back to 0."
            )
    check_messages_schema(
        tables[0].location(), messages_schema(codec_for(_BROKER).schema), tables[0].schema()
    )
