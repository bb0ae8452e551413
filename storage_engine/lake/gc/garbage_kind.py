"""Kinds of files below a lake's tables, and how long removed files can be put back. Imports no library."""

from __future__ import annotations

from enum import StrEnum

from storage_engine.core.clock import DAY_MS

TRASH_MS = 7 * DAY_MS
"""Shortest time of a file in the trash if no other time is given."""


class GarbageKind(StrEnum):
    """Kind of a file below a table's location, by its name."""

    STAGED = "staged by an attempt that ended"
    DATA_FILE = "data file"
    RECEIPTS = "receipts"
    DELETIONS = "deletions"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest list"
    METADATA = "table metadata"
