"""Another engine: PyIceberg's own SQL catalog, which follows what tables say."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.update import SetLocationUpdate

from storage_engine.lake.catalog.config import LakeConfig


class _Engine(SqlCatalog):
    """With file access of its own, as an engine on the JVM has."""

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> FileIO:
        return load_file_io(self.properties, location)


def stock_table(config: LakeConfig, name: str) -> Table:
    """Load a table of a lake as another engine does."""
    properties = {**config.properties, "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    return _Engine(config.name, **properties).load_table((config.namespace, name))


def set_properties(config: LakeConfig, properties: dict[str, str], *names: str) -> None:
    """Set properties of tables as another engine does."""
    for name in names or ("messages", "segments"):
        with stock_table(config, name).transaction() as transaction:
            transaction.set_properties(properties)


def set_location(config: LakeConfig, name: str, location: str) -> None:
    """Give a table another location as another engine does: its files stay where they are."""
    transaction = stock_table(config, name).transaction()
    transaction._apply((SetLocationUpdate(location=location),))
    transaction.commit_transaction()
