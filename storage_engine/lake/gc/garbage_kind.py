"""Kinds of files below a lake's tables, and the trash's default time. Imports no library."""

from __future__ import annotations

from enum import StrEnum

from storage_engine.core.clock import DAY_MS

TRASH_MS = 7 * DAY_MS
"""How long a file stays in the trash at least, unless the caller gives another time."""


class GarbageKind(StrEnum):
    """Kind of a file, by its name. For the garbage rule, a kind comes after the kinds that its files name."""

    STAGED = "staged by an attempt that ended"
    DATA_FILE = "data file"
    RECEIPTS = "receipts"
    DELETIONS = "deletions"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest list"
    METADATA = "table metadata"
