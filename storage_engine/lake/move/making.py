"""Making a lake: only at a person's request, and never at the place of another lake.

Processes with two catalogs may make a lake in one warehouse at the same time. Each writes its own claim below
the tables' locations, lists all claims, and continues only if there is no claim of another catalog.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyarrow.fs import FileSelector, FileType
from pydantic_core import from_json
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from sqlalchemy.exc import DBAPIError, IntegrityError

from storage_engine.brokers import default_broker, find_broker
from storage_engine.commands import Command
from storage_engine.core.durable import create_empty, fsync_path, make_dirs
from storage_engine.exceptions import BadInputError, LakeIdentityError, LakeMissingError, LakeUnavailableError
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake, connect, make_catalog_tables, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import (
    LAKE_ID_PROPERTY,
    MARK_NAME,
    is_same_catalog,
    lake_id_of,
    mark_location,
    mark_of,
    metadata_version,
    parse_mark,
    put_mark,
    read_mark,
    sqlite_identity,
    table_around,
    write_mark,
    written_identity,
)
from storage_engine.lake.catalog.nesting import refuse_nested
from storage_engine.lake.catalog.own_tables import usual_location
from storage_engine.lake.catalog.place import is_catalog_there, own_directory, sqlite_file_of
from storage_engine.lake.catalog.tables import (
    BROKER_PROPERTY,
    SEGMENTS,
    SEGMENTS_PROPERTIES,
    make_rows_table,
    partition_by_store,
    segments_schema,
)
from storage_engine.lake.catalog.writing import open_intent, settle_broker
from storage_engine.lake.storage.errors import lake_errors, metadata_errors
from storage_engine.lake.storage.small_files import (
    HIDDEN_PREFIX,
    OWN_FOLDER,
    ListedFile,
    delete_small_file,
    file_system_of,
    list_files,
    read_small_file,
    replace_small_file,
)

_CLAIM_PREFIX = f"{HIDDEN_PREFIX}claim-"

_GZIP_BITS = 31
"""zlib's number for a gzip stream."""


def make_lake(config: LakeConfig, broker: str | None = None) -> Lake:
    """Make a lake if there is none yet, and open it. An existing lake is opened as it is.

    It is safe to kill at any instant and to run again.

    :param broker: the broker for whose segments the lake is made; "" for the broker of the first archived
        store; None for the default broker, or for any broker if the lake exists.
    :raises LakeIdentityError: another lake's files are at this place, or another catalog makes a lake there.
    :raises LakeUnavailableError: the place can't be read or written.
    :raises BadInputError: PyIceberg doesn't know the catalog's type; the place is inside a broker's store or
        another lake, or contains another lake; the broker isn't installed; or the existing lake is for
        another broker.
    """
    with suppress(LakeMissingError):
        lake = open_lake(config)
        _finish(lake)
        if broker:
            settle_broker(lake, broker)
        return lake
    broker = default_broker() if broker is None else broker
    refuse_nested(config)
    with CHANGE_LOCK, lake_errors(config.location, "make the lake"):
        try:
            _make(config, broker)
        except LakeIdentityError as error:
            # Another process may have made this lake meanwhile, and have begun to archive into it.
            try:
                open_lake(config)
            except LakeMissingError:
                raise error from None
    lake = open_lake(config)
    if broker:
        settle_broker(lake, broker)
    return lake


def make_sqlite_file(file: Path) -> None:
    """Make an empty catalog file and its directory, durably, unless they exist.

    :raises LakeUnavailableError: the file can't be made.
    """
    with lake_errors(str(file), "make the catalog"):
        make_dirs(file.parent)
        create_empty(file)
        fsync_path(file)
        fsync_path(file.parent)


def make_catalog(config: LakeConfig, lake_id: str | None) -> Lake:
    """Open a SQL catalog. If the catalog doesn't exist, make it first, without a lake's tables.

    :raises LakeUnavailableError: the catalog can't be made.
    """
    if (file := sqlite_file_of(config)) is not None:
        make_sqlite_file(file)
    lake = connect(config)
    make_catalog_tables(lake, lake_id)
    return lake


def _make(config: LakeConfig, broker: str) -> None:
    file = sqlite_file_of(config)
    lake = connect(config) if is_catalog_there(config) else None
    # A catalog's file is made last, because commands expect a lake where such a file is.
    catalog_id = sqlite_identity(config, str(file)) if lake is None else lake.catalog_id
    locations: dict[str, str] = {}
    if lake is None or isinstance(lake.catalog, SqlCatalog):
        names = (find_broker(broker or default_broker()).rows.table, SEGMENTS)
        locations = {name: place for name in names if (place := usual_location(config, name)) is not None}
    if lake is None and not locations:
        raise BadInputError(
            f"lake {config.location}: expected the property 'warehouse', because a new catalog needs it "
            "besides 'uri', found none. Nothing was created. Add 'warehouse' to the lake's configuration."
        )
    for location in locations.values():
        try:
            check_empty(config, location, catalog_id)
        except ValueError as error:
            raise BadInputError(
                f"lake {config.location}: expected a warehouse that can be written: {error}. Nothing was "
                "created."
            ) from error
    refuse_around(config)
    with _claim_place(config, catalog_id, locations.values()):
        if file is not None:
            make_sqlite_file(file)
        _make_tables(lake or connect(config), broker, locations)


def _finish(lake: Lake) -> None:
    """Finish the steps of an attempt that was killed after it had made its last table."""
    claim = _claim_name(lake.catalog_id)
    for table in lake.tables():
        if table.current_snapshot() is None and read_mark(table) is None and (own_id := lake_id_of(table)):
            put_mark(table.io, table.location(), mark_of(table, own_id, lake.catalog_id))
        location = f"{table.location()}/{claim}"
        if read_small_file(table.io, location) is not None:
            delete_small_file(table.io, location)


def _make_tables(lake: Lake, broker: str, locations: dict[str, str]) -> None:
    if isinstance(lake.catalog, SqlCatalog):
        try:
            lake.catalog.create_tables()
        except DBAPIError as error:
            # Another process may make the same lake at the same time.
            if "already exists" not in str(error):
                raise
    # The process that makes the namespace gives it the lake's UUID.
    made = {LAKE_ID_PROPERTY: str(uuid.uuid4())}
    with suppress(NamespaceAlreadyExistsError, IntegrityError):
        lake.catalog.create_namespace(lake.config.namespace, made)
    existing = lake.catalog.load_namespace_properties(lake.config.namespace).get(LAKE_ID_PROPERTY)
    # A namespace that was made by hand has no UUID. Then only the tables have the lake's UUID.
    lake_id = existing or made[LAKE_ID_PROPERTY]
    for table, is_new in _make_both_tables(lake, broker, lake_id, locations):
        if not locations:
            # A REST catalog chooses a table's location only when the table is made.
            _check_only(lake, table, is_new=is_new)
        own_id = lake_id_of(table) or lake_id
        if table.current_snapshot() is None:
            # It replaces the mark that a lost catalog may have left of a lake without rows.
            put_mark(table.io, table.location(), mark_of(table, own_id, lake.catalog_id))
        else:
            write_mark(table, own_id, lake.catalog_id)


def _make_both_tables(
    lake: Lake, broker: str, lake_id: str, locations: dict[str, str]
) -> Iterator[tuple[Table, bool]]:
    """Make both tables unless they exist. Yield each table, and whether this call made it."""
    catalog, namespace = lake.catalog, lake.config.namespace
    kind = find_broker(broker or default_broker())
    properties = {BROKER_PROPERTY: broker} if broker else {}
    for name in (SEGMENTS, kind.rows.table):
        is_new, location = False, locations.get(name)
        properties[LAKE_ID_PROPERTY] = lake_id
        # Creating would write metadata before the catalog refuses an existing table.
        if not catalog.table_exists((namespace, name)):
            if name == SEGMENTS:
                schema = segments_schema()
                with suppress(TableAlreadyExistsError):
                    catalog.create_table(
                        (namespace, name),
                        schema=schema,
                        location=location,
                        partition_spec=partition_by_store(schema),
                        properties={**SEGMENTS_PROPERTIES, **properties},
                    )
                    is_new = True
            else:
                is_new = make_rows_table(catalog, (namespace, name), kind.codec, location, properties)
        table = catalog.load_table((namespace, name))
        lake_id = lake_id_of(table) or lake_id
        yield table, is_new


def check_empty(config: LakeConfig, location: str, catalog_id: str | None) -> None:
    """Make sure that no lake is at a location. Files of a killed attempt to make a lake are allowed.

    :param catalog_id: identity of the catalog whose killed attempt may have left a mark; None if no mark is
        allowed.
    :raises LakeIdentityError: a lake is there.
    """
    file_io = load_file_io(config.file_io_properties, location)
    if (around := table_around(file_io, location, config.namespace)) is not None:
        raise LakeIdentityError(
            f"{location}: expected a place of its own for a new lake, found it inside {around}, a table of "
            "another lake, which would take the new lake's files for its own. Nothing was created. Choose "
            "another place."
        )
    if (intent := open_intent(file_io, location)) is not None:
        raise LakeIdentityError(
            f"{location}: expected an empty place for a new lake, found what ",
            Command(f"lake {intent.command}"),
            f" of lake {intent.copy_of or intent.lake_id} left when it was killed. Nothing was created. Run "
            "that command again with the same arguments, or choose another place.",
        )
    for file in list_files(file_io, location):
        if fault := _fault(file_io, catalog_id, location, file):
            raise LakeIdentityError(
                f"{location}: expected an empty place for a new lake, found {fault}. Nothing was "
                "created. If the lake there has lost its catalog, run ",
                Command("lake rebuild"),
                "; otherwise choose another warehouse or namespace: two catalogs must not share one.",
            )


def refuse_around(config: LakeConfig) -> None:
    """Make sure that no other lake is directly inside a lake's directory or warehouse.

    :raises BadInputError: another lake is directly inside. The other lake could no longer prove segments if
        this lake were made.
    :raises LakeUnavailableError: the place can't be listed.
    """
    segments = usual_location(config, SEGMENTS)
    if segments is None:
        return
    warehouse, directory = segments.removesuffix(f"/{config.namespace}/{SEGMENTS}"), own_directory(config)
    file_io = load_file_io(config.file_io_properties, segments)
    for place in (warehouse, *(() if directory is None else (f"file://{directory}",))):
        file_system, root = file_system_of(file_io, place)
        with lake_errors(place, "look for other lakes"):
            infos = file_system.get_file_info(FileSelector(root, allow_not_found=True))
        names = [info.base_name for info in infos if info.type is FileType.Directory]
        for inside in (f"{place}/{name}{below}" for name in names for below in ("", "/warehouse")):
            mark = mark_location(f"{inside}/{config.namespace}/{SEGMENTS}")
            if inside != warehouse and read_small_file(file_io, mark) is not None:
                raise BadInputError(
                    f"lake {config.location}: expected a place without other lakes in it, found the lake "
                    f"{inside} inside it: if the outer lake is lost, both are lost. Nothing was changed. "
                    "Name another directory."
                )


def _check_only(lake: Lake, table: Table, *, is_new: bool) -> None:
    """Make sure that no other lake is at a table's location, which a REST catalog has chosen.

    :param is_new: whether the table was just made here.
    :raises LakeIdentityError: another lake is there. A new table without rows was dropped again.
    """
    if table.current_snapshot() is not None:
        return
    try:
        check_empty(lake.config, table.location(), lake.catalog_id)
    except LakeIdentityError:
        if is_new and table.refresh().current_snapshot() is None:
            lake.catalog.drop_table(table.name())
        raise


def _fault(file_io: FileIO, catalog_id: str | None, location: str, file: ListedFile) -> str:
    name = file.inside.rpartition("/")[2]
    path = f"{location}/{file.inside}"
    if name == MARK_NAME:
        data = read_small_file(file_io, path)
        # A killed attempt with this catalog may have left the mark.
        if data is None or (catalog_id and is_same_catalog(parse_mark(data, path).catalog, catalog_id)):
            return ""
        return f"the mark {file.path}"
    if file.inside.startswith(f"{OWN_FOLDER}/"):
        return f"{file.path}, an act of a lake"
    if file.inside.startswith("data/") and not file.is_ours:
        return f"the data file {file.path}"
    if name.endswith(".metadata.json"):
        data = read_small_file(file_io, path)
        if data is not None and _has_rows(data, path):
            return f"{file.path}, metadata of a table with rows"
    return ""


def _has_rows(data: bytes, location: str) -> bool:
    """Return whether a metadata file has snapshots. An incomplete first file of a table has none."""
    with metadata_errors(location, "read the table's metadata"):
        if location.endswith(".gz.metadata.json"):
            # Unlike gzip, this returns the readable part of an incomplete file.
            data = zlib.decompressobj(wbits=_GZIP_BITS).decompress(data)
        if metadata_version(location) == 0:
            try:
                json.loads(data)
            except ValueError:
                begun = from_json(data, allow_partial="trailing-strings") if data else {}
                if isinstance(begun, dict) and not begun.get("snapshots"):
                    return False
        return bool(TableMetadataUtil.parse_raw(data.decode()).snapshots)


def _claim_name(catalog_id: str) -> str:
    """Return the name of a catalog's claim. After a kill, the next attempt replaces and removes the claim."""
    return f"{_CLAIM_PREFIX}{hashlib.sha256(catalog_id.encode()).hexdigest()[:16]}.json"


@contextmanager
def _claim_place(config: LakeConfig, catalog_id: str, locations: Iterable[str]) -> Iterator[None]:
    """Raise LakeIdentityError if another catalog is making a lake at the same place."""
    name = _claim_name(catalog_id)
    claims = []
    try:
        for location in locations:
            file_io = load_file_io(config.file_io_properties, location)
            claim = f"{location}/{name}"
            claims.append((file_io, claim))
            replace_small_file(file_io, claim, catalog_id.encode())
            for file in list_files(file_io, location):
                if not file.inside.startswith(_CLAIM_PREFIX) or file.inside == name:
                    continue
                data = read_small_file(file_io, f"{location}/{file.inside}")
                if data is None:
                    continue
                catalog = written_identity(data.decode(errors="replace"))
                if not is_same_catalog(catalog, catalog_id):
                    raise LakeIdentityError(
                        f"{location}: expected no other catalog to make a lake there, found the claim "
                        f"of {catalog} in {file.path}. Nothing was created. Choose another warehouse or "
                        "namespace; if that attempt was killed, remove the file and run again."
                    )
            check_empty(config, location, catalog_id)
        yield
    finally:
        for file_io, claim in claims:
            with suppress(LakeUnavailableError):
                delete_small_file(file_io, claim)
