"""A lake's identity: three kinds of evidence, so that a copy or an older state is never taken for the lake.

A UUID distinguishes the lake from other lakes, but each copy has it, too. A **mark** below each table's
location says which catalog committed last, and which metadata file. A copied catalog, or a catalog from a
backup, contradicts the mark. And a table outside of its own warehouse belongs to a plain copy. The stores'
stamps are a fourth kind (:mod:`storage_engine.retention.store.stamp`).

The mark is written after each commit, before anything is deleted on the proof of that commit. A mark that is
older than the catalog is no contradiction: its writer was killed between the commit and the mark.

Functions raise LakeUnavailableError if a mark can't be read or written, or if its file isn't a mark.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import make_url, text

from storage_engine.commands import Command, Text
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import BadInputError, LakeIdentityError, LakeUnavailableError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.storage.small_files import HIDDEN_PREFIX, read_small_file, replace_small_file

LAKE_ID_PROPERTY = "storage-engine.lake-id"
"""Property of both tables, and of a new lake's namespace: the lake's UUID. A lake of version 1 has none."""

COPY_OF_PROPERTY = "storage-engine.copy-of"
"""Property of both tables of a copy that was not promoted: UUID of the lake that it was made from."""

ANCESTORS_PROPERTY = "storage-engine.ancestors"
"""Property of both tables of a promoted copy: JSON list of the UUIDs of the lakes that it replaces."""

COPIED_HEADS_PROPERTY = "storage-engine.copied-heads"
"""Property of a copy's tables, as JSON: sequence and hash of each store's last receipt when the copy was
made."""

PROMOTED_PROPERTY = "storage-engine.promoted"
"""Property of both tables of a promoted copy: JSON object that says who promoted it, when and why, and of
which lake it was a copy."""

MARK_NAME = f"{HIDDEN_PREFIX}mark.json"

_METADATA_FILE = re.compile(r"v?(\d+)(?:-.*)?\.metadata\.json")

_DENIED = re.compile(r"AWS Error ACCESS_DENIED|Azure Error: \[\w*\] 403")
"""PyArrow's texts for a file that this user may not see. Such errors have no error number."""

_POSTGRES = "postgresql:"
_REST = "rest:"

_POSTGRES_IDENTITY = text(
    "SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()), "
    "COALESCE((SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE pg_class.oid = to_regclass('iceberg_tables')), current_schema()) FROM pg_control_system()"
)
"""The identity names the schema that contains the catalog's tables. If there are none yet, it names the first
schema of the search path, where they will be made. Another schema may become the first one later."""

_SCHEMA = "schema="
"""Prefix of the schema's name. An identity without it names the schema that was first in the search path."""

_POSTGRES_SCHEMA = re.compile(rf"(?P<database>{_POSTGRES}\d+/\d+)/(?P<schema>.*)(?P<lake> \S+ \S+)")


@dataclass(frozen=True, slots=True)
class Mark:
    """The record below a table's location that says which lake the table belongs to.

    :param catalog: identity of the catalog that committed last.
    :param metadata: name of the table's metadata file that was committed last.
    :param pending: the lake is getting its identity; the table may not have it yet.
    :param act: SHA-256 of the newest known act of the lake, or ""; later acts may exist.
    """

    lake_id: str
    table_uuid: str
    catalog: str
    metadata: str
    pending: bool = False
    act: str = ""


def lake_id_of(table: Table) -> str | None:
    """Return the UUID of a loaded table's lake; None if only older versions have written to the lake."""
    return table.properties.get(LAKE_ID_PROPERTY)


def copy_of(table: Table) -> str | None:
    """Return the original's UUID if a table's lake is a copy that was not promoted; otherwise None."""
    return table.properties.get(COPY_OF_PROPERTY)


def ancestors_of(table: Table) -> tuple[str, ...]:
    """Return the UUIDs of the lakes that a loaded table's lake replaced when it was promoted."""
    return tuple(json.loads(table.properties.get(ANCESTORS_PROPERTY, "[]")))


def catalog_identity(config: LakeConfig, catalog: Catalog) -> str:
    """Return the identity by which a catalog differs from a copy of it at another place.

    For SQLite it is the file's real path. For PostgreSQL it is the cluster's identifier, which a dump
    restored elsewhere doesn't have. For a REST catalog it is the address, without a user's name and password.
    """
    uri = config.properties.get("uri", "")
    if isinstance(catalog, SqlCatalog):
        url = make_url(uri)
        if catalog.engine.dialect.name == "sqlite":
            return sqlite_identity(config, url.database or "")
        if catalog.engine.dialect.name == "postgresql":
            with catalog.engine.connect() as connection:
                cluster, database, schema = connection.execute(_POSTGRES_IDENTITY).one()
            where = f"{_POSTGRES}{cluster}/{database}/{_SCHEMA}{schema}"
        else:
            where = f"{url.get_backend_name()}:{url.host}:{url.port}/{url.database}"
        return f"{where} {config.name} {config.namespace}"
    prefix = config.properties.get("prefix", "")
    address = without_user(uri).rstrip("/")
    return f"{_REST}{address} {config.properties.get('warehouse', '')} {prefix} {config.namespace}"


def sqlite_identity(config: LakeConfig, file: str) -> str:
    """Return the identity of a catalog in a SQLite file. The file need not exist."""
    return f"sqlite:{os.path.realpath(file)} {config.name} {config.namespace}"


def without_user(uri: str) -> str:
    """Return an address without the user's name and password, and otherwise unchanged."""
    return re.sub(r"(?<=://)[^/?#]*@", "", uri, count=1)


def written_identity(identity: str) -> str:
    """Return a catalog's identity as read from a file, but without an older version's credentials."""
    if not identity.startswith(_REST):
        return identity
    address, space, rest = identity.partition(" ")
    return without_user(address) + space + rest


def is_same_catalog(written: str, catalog: str) -> bool:
    """Return whether an identity that was written earlier names this catalog.

    For PostgreSQL, older versions may have written a schema without the catalog's tables. So any schema in
    such an identity is accepted.

    :param catalog: identity of the catalog, by :func:`catalog_identity`.
    """
    if written == catalog:
        return True
    ours, theirs = _POSTGRES_SCHEMA.fullmatch(catalog), _POSTGRES_SCHEMA.fullmatch(written)
    return (
        ours is not None
        and theirs is not None
        and not theirs["schema"].startswith(_SCHEMA)
        and (ours["database"], ours["lake"]) == (theirs["database"], theirs["lake"])
    )


def read_mark(table: Table) -> Mark | None:
    """Return the mark below a loaded table's location; None if the table has none."""
    return read_mark_at(table.io, table.location())


def read_mark_at(file_io: FileIO, location: str) -> Mark | None:
    """Return the mark of the table at a location; None if the table has none."""
    path = mark_location(location)
    data = read_small_file(file_io, path)
    return None if data is None else parse_mark(data, path)


def known_mark_at(file_io: FileIO, location: str) -> Mark | None:
    """Return the mark at a location; None if there is no mark file, or if its content isn't a mark."""
    path = mark_location(location)
    data = read_small_file(file_io, path)
    with suppress(LakeUnavailableError):
        return None if data is None else parse_mark(data, path)
    return None


def parse_mark(data: bytes, location: str) -> Mark:
    """Parse the content of a mark's file. Raise LakeUnavailableError if it isn't a mark."""
    try:
        mark = from_jsonable(Mark, json.loads(data), location)
    except (ValueError, BadInputError) as error:
        raise LakeUnavailableError(
            f"{location}: expected a mark of storage-engine as JSON, found something else ({error}). "
            "Nothing was changed. Bring the file back from a backup, or run ",
            Command("lake relocate"),
            ", which checks every file and writes the mark again.",
        ) from error
    return replace(mark, catalog=written_identity(mark.catalog))


def write_mark(table: Table, lake_id: str, catalog: str, *, pending: bool = False, act: str = "") -> None:
    """Record in the mark that a catalog has committed a table's present state.

    A mark never goes back to an older state. Two processes may write at once, and the process that loaded the
    table first may write last. So each loads the table again after writing, until mark and table agree.

    :param act: SHA-256 of the lake's newest act; "" to keep the act that the mark names.
    :raises LakeIdentityError: the existing mark contradicts the table.
    """
    while True:
        check_mark(table, lake_id, catalog)
        before = read_mark(table)
        mark = mark_of(table, lake_id, catalog, pending=pending)
        mark = replace(mark, act=act or (before.act if before else ""))
        if before == mark:
            return
        put_mark(table.io, table.location(), mark)
        table.refresh()


def mark_of(table: Table, lake_id: str, catalog: str, *, pending: bool = False) -> Mark:
    return Mark(lake_id, str(table.metadata.table_uuid), catalog, _name(table.metadata_location), pending)


def put_mark(file_io: FileIO, table_location: str, mark: Mark) -> None:
    """Write a mark below a table's location, and replace an existing mark."""
    fields = to_jsonable(mark)
    if not mark.act:
        # A release that doesn't know the field must be able to read the mark of a lake without acts.
        del fields["act"]
    replace_small_file(file_io, mark_location(table_location), json.dumps(fields, indent=1).encode())


def mark_location(table_location: str) -> str:
    return f"{table_location.rstrip('/')}/{MARK_NAME}"


def check_containment(config: LakeConfig, table: Table) -> None:
    """Raise LakeIdentityError if a table is outside of its lake's warehouse: it was copied or moved."""
    check_below_warehouse(config, table.name()[-1], table.location())


def check_below_warehouse(config: LakeConfig, name: str, location: str) -> None:
    """Raise LakeIdentityError if the location of a table or its metadata file isn't below the warehouse."""
    warehouse = config.properties.get("warehouse", "")
    if "://" not in warehouse and not warehouse.lower().startswith(("/", "file:")):
        # A REST catalog's warehouse is a name.
        return
    if not is_below(location, warehouse):
        raise LakeIdentityError(
            f"lake {config.location}: expected its table {name} below the warehouse, found it at "
            f"{location}: this is a plain copy of the lake there, or the lake was moved. Nothing was "
            "changed. Run ",
            Command("lake relocate"),
            " on this one: it checks the files here and changes nothing at the other place; ",
            Command("lake copy"),
            " makes copies that need no such step.",
        )


def table_around(file_io: FileIO, location: str, namespace: str) -> str | None:
    """Return the location of another lake's table or warehouse that contains a table's location.

    :param namespace: namespace of the tables in that warehouse.
    :return: None if no such location is visible to this user.
    :raises LakeUnavailableError: a directory that contains the location can't be read now.
    """
    scheme, separator, path = location.rpartition("://")
    for number, parent in enumerate(PurePosixPath(path).parents):
        if str(parent) in (".", "/"):
            break
        around = f"{scheme}{separator}{parent}"
        # The first two are the table's own namespace and warehouse.
        others = (f"{around}/{namespace}/segments",) if number > 1 else ()
        for table in (around, *others):
            try:
                if read_small_file(file_io, mark_location(table)) is not None:
                    return around
            except LakeUnavailableError as error:
                cause = error.__cause__
                # The file can't exist, or this user may see only a part of the bucket.
                if not isinstance(cause, PermissionError | NotADirectoryError) and not _DENIED.search(
                    str(cause)
                ):
                    raise
    return None


def is_below(location: str, directory: str) -> bool:
    """Return whether a location is below another one, after symbolic links are followed."""
    inner, outer = local_path(location), local_path(directory)
    if (inner is None) != (outer is None):
        return False
    if inner is None or outer is None:
        return location.startswith(directory.rstrip("/") + "/")
    return os.path.realpath(inner).startswith(os.path.realpath(outer).rstrip("/") + "/")


def check_mark(table: Table, lake_id: str | None, catalog: str) -> None:
    """Compare the mark below a table's location with the table.

    :param table: the loaded table; it is loaded again if the mark contradicts it.
    :param lake_id: UUID of the lake according to its tables; None if they don't name it yet.
    :param catalog: identity of the catalog that the table was loaded from.
    :raises LakeIdentityError: the mark contradicts the catalog.
    """
    mark = read_mark(table)
    if mark_fault(mark, table, lake_id, catalog):
        # A table that is loaded after the mark was read must know the marked commit and the lake's UUID.
        table.refresh()
        if fault := mark_fault(mark, table, lake_id or lake_id_of(table), catalog):
            raise LakeIdentityError(f"{table.location()}: ", fault)


def mark_fault(mark: Mark | None, table: Table, lake_id: str | None, catalog: str) -> str:
    """Return the contradiction between a mark and a loaded table, with the remedy; "" if they agree."""
    if mark is None:
        if lake_id is None or lake_id_of(table) is None or table.current_snapshot() is None:
            return ""
        return Text(
            f"expected the mark of lake {lake_id}, found no file {MARK_NAME}: this is a copy that left "
            "hidden files out, or another program removed it. Nothing was changed. Bring the file back; "
            "or run ",
            Command("lake relocate"),
            ", which checks every file and writes the mark again.",
        )
    if mark.table_uuid != str(table.metadata.table_uuid) or (lake_id and mark.lake_id != lake_id):
        return (
            f"expected the mark of lake {lake_id or 'without a UUID'}, found that of lake {mark.lake_id}, "
            f"whose catalog is {mark.catalog}: two catalogs share one warehouse, or another lake was there "
            "before. Nothing was changed. Give each lake a warehouse or namespace of its own."
        )
    if not is_same_catalog(mark.catalog, catalog):
        return Text(
            f"expected the catalog {mark.catalog}, which committed last, found {catalog}: this catalog is a "
            "copy, or the catalog was moved. Nothing was changed. Use the catalog that committed last. If "
            "it is gone for good, run ",
            Command("lake relocate"),
            ", which makes this catalog the lake's catalog.",
        )
    if lake_id is None and not mark.pending:
        return _older(mark, table)
    return "" if knows(table.metadata, table.metadata_location, mark.metadata) else _older(mark, table)


def knows(metadata: TableMetadata, location: str, file_name: str) -> bool:
    """Return whether a table's metadata at ``location`` is the file of this name, or was committed later."""
    names = {_name(entry.metadata_file) for entry in metadata.metadata_log}
    if file_name == _name(location) or file_name in names:
        return True
    # There may have been so many commits since that the metadata log no longer names the file.
    return 0 <= metadata_version(file_name) < min(map(metadata_version, names), default=-1)


def metadata_version(location: str) -> int:
    """Return the number that a metadata file's name begins with; -1 for any other file."""
    match = _METADATA_FILE.fullmatch(_name(location))
    return int(match[1]) if match else -1


def _older(mark: Mark, table: Table) -> str:
    return Text(
        f"expected the catalog to know {mark.metadata}, which was committed last, found that it knows "
        f"nothing after {_name(table.metadata_location)}: the catalog was put back from an older copy, or "
        "another copy of it was used. Nothing was changed. Run ",
        Command("lake rebuild"),
        ", which brings the catalog up to what the warehouse holds.",
    )


def _name(location: str) -> str:
    return location.rpartition("/")[2]
