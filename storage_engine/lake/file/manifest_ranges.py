"""Which rows of which stores each manifest covers, so that a few are found without opening all.

Written by maintenance into a small file below the table's location, and read where a slot is looked up. A
manifest never changes under its name, so what is said of it stays true; any other manifest is opened. The
file may be missing, old or damaged: that costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog.tables import is_by_store
from storage_engine.lake.storage.small_files import (
    HIDDEN_PREFIX,
    FileMemory,
    read_small_file,
    replace_small_file,
)

RANGES_NAME = f"{HIDDEN_PREFIX}manifests.json"


class Range(NamedTuple):
    """What a manifest can have of a store.

    :param first: lowest base offset of a segment; ``last`` the highest.
    :param newest: highest sequence of a row.
    :param least_rows: no file has fewer.
    """

    first: int
    last: int
    newest: int
    least_rows: int


class WantedFiles(NamedTuple):
    """Which files of a store somebody looks for.

    :param first: those with segments of this base offset or a higher one, up to ``last``.
    :param since: those with rows of this sequence or a higher one.
    :param below_rows: those with fewer rows.
    """

    first: int = -(2**63)
    last: int = 2**63 - 1
    since: int = 0
    below_rows: int = 2**63 - 1


EVERYTHING = WantedFiles()

Ranges = Mapping[str, Range]
"""By store id."""

_VERSION = 2

_known: FileMemory[Mapping[str, Ranges]] = FileMemory(most=8)


def known_ranges(table: Table) -> Mapping[str, Ranges]:
    """Return what is known of manifests, by :func:`manifest_key`."""
    location = _location(table)
    return _known.get(location, lambda: _read(table, location))


def may_hold(ranges: Ranges | None, store_id: str, wanted: WantedFiles) -> bool:
    """Return whether a manifest can have files of a store that somebody looks for.

    :param ranges: None: nothing is known of it.
    """
    if ranges is None:
        return True
    it = ranges.get(store_id)
    return it is not None and (
        it.first <= wanted.last
        and it.last >= wanted.first
        and it.newest >= wanted.since
        and it.least_rows < wanted.below_rows
    )


def manifest_key(manifest: ManifestFile) -> str:
    """Return a manifest's name and length."""
    return f"{manifest.manifest_path.rpartition('/')[2]} {manifest.manifest_length}"


def write_ranges(
    table: Table, manifests: Iterable[ManifestFile], ranges_of: Callable[[ManifestFile], Ranges]
) -> None:
    """Write down what a table's manifests cover; where it is known already, nothing is written.

    :param manifests: of the current snapshot; what was said of others is dropped.
    :param ranges_of: opens a manifest.
    :raises LakeUnavailableError: the file can't be written.
    """
    known = known_ranges(table)
    # Another engine may have partitioned the table in another way: of such a manifest nothing is said.
    data = [
        manifest
        for manifest in manifests
        if manifest.content is ManifestContent.DATA and is_by_store(table, manifest.partition_spec_id)
    ]
    found = {manifest_key(it): known.get(manifest_key(it)) or ranges_of(it) for it in data}
    if found != known:
        content = {"version": _VERSION, "manifests": found}
        text = json.dumps({**content, "sha256": _checksum(content)})
        replace_small_file(table.io, _location(table), text.encode())


def _read(table: Table, location: str) -> Mapping[str, Ranges]:
    try:
        content = json.loads(read_small_file(table.io, location) or b"{}")
        if content.pop("sha256") != _checksum(content) or content["version"] != _VERSION:
            return {}
        return {
            key: {store_id: Range(*values) for store_id, values in ranges.items()}
            for key, ranges in content["manifests"].items()
        }
    except (LakeUnavailableError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _location(table: Table) -> str:
    return f"{table.location().rstrip('/')}/{RANGES_NAME}"
