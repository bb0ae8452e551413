"""The lake's tables as this package works with them: it follows only the properties on its own list.

Only the configuration decides how files are opened and where this lake's files are written. Anyone who may
write to a table can set its properties and its location. PyIceberg would follow them to another file access,
host or directory, or to a Python class. A property that is not on our list stays in the metadata unchanged
and is never followed.

Functions raise LakeUnavailableError if a mark can't be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier, Properties

from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import Mark, is_below, is_same_catalog, mark_location, read_mark_at
from storage_engine.lake.catalog.tables import OWN_PROPERTIES
from storage_engine.lake.durable_io import may_open
from storage_engine.lake.storage.small_files import read_small_file

_OURS = "storage-engine."
_METRICS = "write.metadata.metrics."
_METRICS_MODE = re.compile(r"none|counts|full|truncate\([1-9]\d{0,8}\)")
_PARTITION = f"{_METRICS}column.store_id"
"""Property for the bounds of ``store_id``. PyIceberg takes a new file's partition from these bounds."""


def followed_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the table properties that are followed here: ours, and those for statistics. Pure."""
    return {
        **OWN_PROPERTIES,
        _PARTITION: "truncate(64)",
        **{key: value for key, value in properties.items() if _is_followed(key, value)},
    }


def ignored_properties(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of a table's properties that aren't followed here. Pure."""
    return tuple(
        sorted(
            key
            for key, value in properties.items()
            if not _is_followed(key, value) and value != OWN_PROPERTIES.get(key)
        )
    )


def _is_followed(key: str, value: str) -> bool:
    if key == _PARTITION and value in ("none", "counts"):
        return False
    return key.startswith(_OURS) or (key.startswith(_METRICS) and bool(_METRICS_MODE.fullmatch(value)))


class OwnTable(Table):
    """A loaded table with only the properties and the location that are followed here."""

    found: Mapping[str, str]

    def refresh(self) -> Table:
        fresh = self.catalog.load_table(self.name())
        self._check_uuid(self.metadata, fresh.metadata)
        vars(self).update(vars(fresh))
        return self


class OwnTables(Catalog):
    """Loads and commits tables for our catalogs. Each catalog needs :meth:`belong_to` before its first table.

    :param ignored: names of properties in a catalog server's answers that aren't followed here.
    """

    ignored: Set[str] = frozenset()
    _config: LakeConfig
    _catalog_id: str

    def belong_to(self, config: LakeConfig, catalog_id: str) -> None:
        """Set the lake's configuration and the catalog's identity, which determine a table's own location."""
        self._config, self._catalog_id = config, catalog_id

    def _load_file_io(self, properties: Properties | None = None, location: str | None = None) -> FileIO:
        """Open files only as the configuration says."""
        return super()._load_file_io({}, location)

    def own_table(
        self, identifier: Identifier, metadata: TableMetadata, location: str, config: dict[str, str]
    ) -> OwnTable:
        """Return a table with only the properties and the location that are followed here.

        :param config: values that the catalog's protocol needs.
        """
        file_io = self._load_file_io(location=location)
        own = self._own_metadata(identifier, metadata, file_io)
        table = OwnTable(identifier, own, location, file_io, self, config)
        table.found = metadata.properties
        return table

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        answer = super().commit_table(table, requirements, updates)  # type: ignore[safe-super]
        own = self._own_metadata(table.name(), answer.metadata, table.io)
        return answer.model_copy(update={"metadata": own})

    def _own_metadata(
        self, identifier: Identifier, metadata: TableMetadata, file_io: FileIO
    ) -> TableMetadata:
        place = own_place(self._config, self._catalog_id, identifier[-1], metadata, file_io)
        return metadata.model_copy(
            update={"properties": followed_properties(metadata.properties), "location": place}
        )


def usual_location(config: LakeConfig, name: str) -> str | None:
    """Return where a lake's table is made; None if the catalog decides it, as a REST catalog does. Pure."""
    warehouse = config.properties.get("warehouse", "")
    if "://" not in warehouse and not warehouse.lower().startswith(("/", "file:")):
        return None
    return f"{warehouse.rstrip('/')}/{config.namespace}/{name}"


def own_place(
    config: LakeConfig, catalog_id: str, name: str, metadata: TableMetadata, file_io: FileIO
) -> str:
    """Return the location of a table's own files.

    This is the location in the metadata, unless another engine has set that location. Then that location has
    no mark, and the result is the usual or an earlier location, which has this catalog's mark.
    """
    named = metadata.location.rstrip("/")
    usual = usual_location(config, name)
    logged = (entry.metadata_file.rpartition("/metadata/") for entry in reversed(metadata.metadata_log))
    places = dict.fromkeys([place for place, slash, _ in logged if slash] if usual is None else [usual])
    places.pop(named, None)
    for place in places:
        mark = _mark_at(config, place, file_io)
        if (
            mark is not None
            and mark.table_uuid == str(metadata.table_uuid)
            and is_same_catalog(mark.catalog, catalog_id)
            and not has_mark(config, named, file_io)
        ):
            return place
    return metadata.location


def is_own_metadata(
    config: LakeConfig, catalog_id: str, name: str, metadata_location: str, file_io: FileIO
) -> bool:
    """Return whether a metadata file outside of the warehouse is this lake's, put there by another engine.

    The file is not this lake's if the warehouse has no mark of this catalog, or has a file of that name. It
    is also not this lake's if the file's own location has a mark. At the file's location, only that mark is
    opened.
    """
    usual = usual_location(config, name)
    mark = None if usual is None else _mark_at(config, usual, file_io)
    if usual is None or mark is None or not is_same_catalog(mark.catalog, catalog_id):
        return False
    root, _, file_name = metadata_location.rpartition("/")
    if read_small_file(file_io, f"{usual}/metadata/{file_name}") is not None:
        return False
    table = root.removesuffix("/metadata")
    return table == usual or not has_mark(config, table, file_io)


def is_in_warehouse(config: LakeConfig, location: str) -> bool:
    """Return whether a location is below a lake's warehouse. True if the catalog decides on locations."""
    return usual_location(config, "") is None or is_below(location, config.properties.get("warehouse", ""))


def has_mark(config: LakeConfig, place: str, file_io: FileIO) -> bool:
    """Return whether a location has the mark of a lake's table."""
    return (
        may_open(config.file_io_properties, place)
        and read_small_file(file_io, mark_location(place)) is not None
    )


def _mark_at(config: LakeConfig, place: str, file_io: FileIO) -> Mark | None:
    return read_mark_at(file_io, place) if may_open(config.file_io_properties, place) else None


def found_properties(table: Table) -> Mapping[str, Any]:
    """Return all properties of a loaded table, including those that aren't followed."""
    return table.found if isinstance(table, OwnTable) else table.properties
