"""Where a lake is: everything it takes to open its Iceberg catalog, as plain data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from storage_engine.exceptions import BadInputError
from storage_engine.model.jsonable import from_jsonable, to_jsonable

DURABLE_FILE_IO = "storage_engine.lake.durable_io.DurableFileIO"

_SQLITE_BUSY_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class LakeConfig:
    """A catalog and a namespace in it.

    :param name: catalog name; SQL catalogs keep it in their rows, so other engines must use the same.
    :param properties: what ``pyiceberg.catalog.load_catalog`` takes: type, uri, warehouse, credentials.
    :param namespace: Iceberg namespace of the two tables.
    """

    name: str
    properties: Mapping[str, str] = field(hash=False)
    namespace: str = "storage_engine"

    @classmethod
    def local(cls, directory: str | os.PathLike[str]) -> LakeConfig:
        """The embedded default: a SQLite catalog and a warehouse below one directory.

        :raises BadInputError: when the path has a character that can't stand in a file URI.
        """
        root = Path(directory).resolve()
        if unusable := sorted({char for char in str(root) if char in "?#%"}):
            raise BadInputError(
                f"{root}: a lake's path can't contain {' '.join(unusable)}: it becomes part of a URI. "
                "Choose another directory."
            )
        return cls(
            name="storage_engine",
            properties={
                "type": "sql",
                "uri": f"sqlite:///{root / 'catalog.db'}?timeout={_SQLITE_BUSY_TIMEOUT_SECONDS}",
                "warehouse": f"file://{root / 'warehouse'}",
            },
        )

    @property
    def file_io_properties(self) -> dict[str, str]:
        """Properties for reading and writing files, with ours as the default implementation."""
        return {"py-io-impl": DURABLE_FILE_IO, **self.properties}

    @property
    def location(self) -> str:
        """The warehouse or catalog address, for messages; never holds credentials."""
        return self.properties.get("warehouse") or f"catalog {self.name}"

    def to_json(self) -> str:
        return json.dumps(to_jsonable(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> LakeConfig:
        """
        :raises BadInputError: when the text is not a lake's configuration.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise BadInputError(f"lake configuration: expected JSON, found {text[:80]!r}: {error}") from None
        return from_jsonable(cls, data, "lake")
