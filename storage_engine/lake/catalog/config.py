"""The configuration of a lake: everything needed to open its Iceberg catalog, as plain data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_engine.core.credentials import (
    check_database_url,
    property_secrets,
    shown_url,
    url_secrets,
    without_secrets,
)
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.wording import did_you_mean, reason_text
from storage_engine.exceptions import BadInputError, LakeUnavailableError
from storage_engine.lake.s3_defaults import S3_DEFAULTS

DESCRIPTION = "lake.json"
"""File in a lake's directory that says where catalog and warehouse are, if they are elsewhere."""

CATALOG_FILE = "catalog.db"
"""The SQLite catalog in the directory of a lake without ``lake.json``."""

DURABLE_FILE_IO = "storage_engine.lake.durable_io.DurableFileIO"


_CLASSES = {
    "py-io-impl": (DURABLE_FILE_IO,),
    "py-catalog-impl": (
        "pyiceberg.catalog.rest.RestCatalog",
        "pyiceberg.catalog.sql.SqlCatalog",
        "pyiceberg.catalog.hive.HiveCatalog",
        "pyiceberg.catalog.glue.GlueCatalog",
        "pyiceberg.catalog.dynamodb.DynamoDbCatalog",
        "pyiceberg.catalog.bigquery_metastore.BigQueryMetastoreCatalog",
    ),
    "s3.retry-strategy-impl": (
        S3_DEFAULTS["s3.retry-strategy-impl"],
        "pyarrow.fs.AwsStandardS3RetryStrategy",
        "pyarrow.fs.AwsDefaultS3RetryStrategy",
    ),
}
"""Every class that a lake's properties may name, because PyIceberg imports the class that it finds there."""

_S3_DEFAULT_REGION = "us-east-1"

_SQLITE_BUSY_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True, repr=False)
class LakeConfig:
    """A catalog and a namespace in it.

    :param name: catalog name; SQL catalogs keep it in their rows, so other engines must use the same name.
    :param properties: the arguments of ``pyiceberg.catalog.load_catalog``: type, uri, warehouse, credentials.
    :param namespace: Iceberg namespace of the lake's tables.
    """

    name: str
    properties: Mapping[str, str] = field(hash=False)
    namespace: str = "storage_engine"

    def __post_init__(self) -> None:
        """Refuse unsafe properties.

        :raises BadInputError: a part of the password in the catalog's URL would be read as its host; the URL
            has a scheme or an argument that isn't allowed; a class isn't allowed; or a path is relative.
        """
        uri = self.properties.get("uri", "")
        is_sql = self.properties.get("type") == "sql" or not uri.startswith(("http", "thrift"))
        if is_sql and ("://" in uri or "@" in uri):
            try:
                check_database_url(uri)
                if "@" in uri:
                    shown_url(uri)
            except ValueError as error:
                raise BadInputError(
                    f"lake property uri: expected a SQLAlchemy URL, found {error}. Nothing was changed. "
                    "Write characters such as @ and / in a password as %40 and %2F."
                ) from None
        _check_classes(self.properties)
        _check_places(self.properties)

    @classmethod
    def local(cls, directory: str | os.PathLike[str]) -> LakeConfig:
        """Return the configuration of the lake in a directory.

        Its ``lake.json`` has the configuration. Without this file it is the embedded default: a SQLite
        catalog and a warehouse below the directory.

        :raises BadInputError: ``lake.json`` is no lake's configuration, or others may read its secrets; or
            the path has a character that a file URI can't have.
        :raises LakeUnavailableError: it isn't known whether a ``lake.json`` exists.
        """
        root = Path(directory).resolve()
        # A link that leads nowhere counts, too: its target may be on a disk that isn't mounted.
        if _is_there(described := root / DESCRIPTION):
            return _read_config(described)
        if unusable := sorted({char for char in str(root) if char in "?#%"}):
            raise BadInputError(
                f"{root}: a lake's path can't contain {' '.join(unusable)}: it becomes part of a URI. "
                "Choose another directory."
            )
        return cls(
            name="storage_engine",
            properties={
                "type": "sql",
                "uri": f"sqlite:///{root / CATALOG_FILE}?timeout={_SQLITE_BUSY_TIMEOUT_SECONDS}",
                "warehouse": f"file://{root / 'warehouse'}",
            },
        )

    def __repr__(self) -> str:
        """Return the location, never credentials: a traceback may show a job, which has a configuration."""
        return f"LakeConfig({self.name!r} at {self.location!r}, namespace={self.namespace!r})"

    @property
    def file_io_properties(self) -> dict[str, str]:
        """Return the properties for file access. Those of the configuration override our defaults."""
        defaults = {"py-io-impl": DURABLE_FILE_IO, **S3_DEFAULTS}
        if "s3.endpoint" in self.properties and "client.region" not in self.properties:
            # Without a region AWS would be asked for it, but AWS doesn't know another provider's buckets.
            defaults["s3.region"] = _S3_DEFAULT_REGION
        return {**defaults, **self.properties}

    @property
    def secrets(self) -> frozenset[str]:
        """Return values that must not be shown in a log, a report or any file that others can read."""
        return property_secrets(self.properties)

    def without_secrets(self, text: str) -> str:
        """Return another program's error text, with ``***`` in the place of each of our secrets."""
        return without_secrets(text, self.secrets)

    def with_properties(self, properties: Mapping[str, str]) -> LakeConfig:
        """Return the same lake's configuration, with these properties added or replaced."""
        return replace(self, properties={**self.properties, **properties})

    @property
    def location(self) -> str:
        """Return the warehouse's or catalog's address for messages. It never has credentials."""
        warehouse = self.properties.get("warehouse", "")
        return without_secrets(warehouse, url_secrets(warehouse)) or f"catalog {self.name}"

    def to_json(self) -> str:
        return json.dumps(to_jsonable(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> LakeConfig:
        """Read a configuration that :meth:`to_json` wrote. Raise BadInputError for any other text."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            # Not quoted: it may hold credentials.
            raise BadInputError(f"lake configuration: expected JSON, found something else: {error}") from None
        return from_jsonable(cls, data, "lake")


def _is_there(path: Path) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise LakeUnavailableError(
            f"{path}: can't check whether this file exists: {error.strerror}. Nothing was changed. Check its "
            "disk and permissions."
        ) from error
    return True


def _read_config(path: Path) -> LakeConfig:
    if not path.is_file():
        raise BadInputError(
            f"{path}: expected a file with a JSON object of catalog properties, found no file. Nothing "
            "was changed. If this name is a link, mount the disk that it leads to. If the lake is in this "
            "directory, remove the entry of this name."
        )
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInputError(
            f"{path}: expected a JSON object of catalog properties: {reason_text(error)}. Nothing was "
            "changed. Correct the file."
        ) from None
    if not isinstance(data, dict):
        raise BadInputError(
            f"{path}: expected a JSON object of catalog properties, found {type(data).__name__}. "
            "Nothing was changed. Correct the file."
        )
    if odd := sorted(key for key, value in data.items() if value is None or isinstance(value, list | dict)):
        raise BadInputError(
            f"{path}: expected a text for {odd[0]}, found {type(data[odd[0]]).__name__}. "
            "Nothing was changed. Put the value in quotes."
        )
    config = LakeConfig("storage_engine", {str(key): str(value) for key, value in data.items()})
    if config.secrets and path.stat().st_mode & 0o077:
        raise BadInputError(
            f"{path}: expected a file that only its owner can read, as it holds credentials; found mode "
            f"{path.stat().st_mode & 0o777:o}. Run chmod 600 on it."
        )
    return config


def _check_classes(properties: Mapping[str, str]) -> None:
    """Raise BadInputError for a class that PyIceberg would import, unless it is on a fixed list."""
    for name, value in properties.items():
        if name != "auth" and not name.endswith("impl"):
            continue
        allowed = _CLASSES.get(name, ())
        if value not in allowed:
            expected = f"one of {', '.join(allowed)}" if allowed else "no property that names a class"
            hint = did_you_mean(value, allowed) if allowed else did_you_mean(name, _CLASSES)
            raise BadInputError(
                f"lake property {name}: expected {expected}, found {value!r}.{hint} Nothing was changed.",
                page="connection",
            )


def _check_places(properties: Mapping[str, str]) -> None:
    """Raise BadInputError for a relative path, which depends on the directory where a command is started."""
    uri, warehouse = properties.get("uri", ""), properties.get("warehouse", "")
    if "://" not in uri or uri.startswith("http"):
        # A REST catalog's warehouse is a name.
        return
    file = uri.partition("?")[0].partition(":///")[2] if uri.startswith("sqlite") else ""
    # SQLite's own URI stands after SQLAlchemy's three slashes.
    file = file.removeprefix("file:")
    if file not in ("", ":memory:") and not file.startswith("/"):
        raise BadInputError(
            f"lake property uri: expected an absolute path, such as sqlite:////lake/catalog.db, found {uri}. "
            "Nothing was changed."
        )
    scheme, separator, rest = warehouse.partition(":")
    if warehouse and (not separator or "/" in scheme or scheme == "file"):
        path = rest if separator and scheme == "file" else warehouse
        if not path.startswith("/") or (path.startswith("//") and not path.startswith("///")):
            raise BadInputError(
                "lake property warehouse: expected an absolute path, or a URI such as "
                f"file:///lake/warehouse, found {warehouse!r}. Nothing was changed."
            )
