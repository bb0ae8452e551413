"""Which offsets of which stores each manifest covers, so that one slot is found without opening all.

Written by maintenance into a small file below the table's location, and read where a slot is looked up. A
manifest never changes under its name, so what is said of it stays true; any other manifest is opened. The
file may be missing, old or damaged: that costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.storage.small_files import (
    HIDDEN_PREFIX,
    FileMemory,
    read_small_file,
    replace_small_file,
)

RANGES_NAME = f"{HIDDEN_PREFIX}manifests.json"

Ranges = Mapping[str, tuple[int, int]]
"""By store id, the first and last base offset that a manifest can have files of."""

_VERSION = 1

_known: FileMemory[Mapping[str, Mapping[str, tuple[int, int]]]] = FileMemory(most=8)


def known_ranges(table: Table) -> Mapping[str, Ranges]:
    """Return what is known of manifests, by :func:`manifest_key`."""
    location = _location(table)
    return _known.get(location, lambda: _read(table, location))


def may_hold(ranges: Ranges | None, store_id: str, base_offsets: tuple[int, int]) -> bool:
    """Return whether a manifest can have files of a store's segments at these offsets.

    :param ranges: None: nothing is known of it.
    """
    if ranges is None:
        return True
    first, last = ranges.get(store_id, (1, 0))
    return first <= last and first <= base_offsets[1] and last >= base_offsets[0]


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
    data = [manifest for manifest in manifests if manifest.content is ManifestContent.DATA]
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
            key: {store_id: (first, last) for store_id, (first, last) in ranges.items()}
            for key, ranges in content["manifests"].items()
        }
    except (LakeUnavailableError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _location(table: Table) -> str:
    return f"{table.location().rstrip('/')}/{RANGES_NAME}"
