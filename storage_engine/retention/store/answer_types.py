"""The types that a broker package's answers are of, and the error about what they aren't.

They are checked column by column: a store may have 100,000 segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from operator import attrgetter
from types import NoneType
from typing import Any, Final, NoReturn

from storage_engine.exceptions import BrokerPackageError
from storage_engine.model.plan.plan import Reason
from storage_engine.model.store.store import DiskUsage, FileFacts, Segment, SegmentState

Types = Mapping[str, Set[type]]

MEND: Final = "Mend the package that brings the broker."
UNCHANGED: Final = f"Nothing was changed. {MEND}"
_INT: Final[Set[type]] = frozenset({int})
_TEXT: Final[Set[type]] = frozenset({str})
_MAYBE_INT: Final[Set[type]] = frozenset({int, NoneType})
SNAPSHOT: Final[Types] = {
    "root": _TEXT,
    "taken_at_ms": _INT,
    "logs": {tuple},
    "log_disks": {tuple},
    "dependents_disk": {DiskUsage},
    "crashed": {bool},
    "used_bytes": _MAYBE_INT,
}
DISK: Final[Types] = {
    "path": _TEXT,
    "used_percent": _MAYBE_INT,
    "total_bytes": _MAYBE_INT,
    "usable_bytes": _MAYBE_INT,
    "error": _TEXT,
    "device": _MAYBE_INT,
}
LOG: Final[Types] = {"segments": {tuple}, "max_offset": _INT, "dispatched_offset": _INT}
SEGMENT: Final[Types] = {
    "log": _TEXT,
    "base_offset": _INT,
    "facts": {FileFacts},
    "state": {SegmentState},
    "original_mtime_ns": _MAYBE_INT,
    "end": _MAYBE_INT,
    "companions": {tuple},
}
FACTS: Final[Types] = {
    "path": _TEXT,
    "device": _INT,
    "inode": _INT,
    "size_bytes": _INT,
    "mtime_ns": _INT,
    "ctime_ns": _INT,
}
PLAN: Final[Types] = {
    "store_root": _TEXT,
    "decided_at_ms": _INT,
    "triggers": {tuple},
    "logs": {tuple},
    "notices": {tuple},
}
DECISION: Final[Types] = {"segment": {Segment}, "reason": {Reason}, "detail": _TEXT}


def check_all(things: Sequence[Any], of: type, where: Callable[[Any], str]) -> None:
    """Make sure that all are of this class; one derived from it could say something else each time."""
    if not set(map(type, things)) <= {of}:
        wrong = next(one for one in things if type(one) is not of)
        refuse(where(things[0]), f"each of type {of.__name__}", f"{wrong!r:.400}")


def check_each(things: Sequence[Any], of: type, types: Types, where: Callable[[Any], str]) -> None:
    """Make sure that all have this class, and their fields these types."""
    if not set(map(type, things)) <= {of}:
        wrong = next(one for one in things if type(one) is not of)
        refuse(f"answer of type {type(wrong).__name__}", f"type {of.__name__}", f"{wrong!r:.400}")
    for name, allowed in types.items():
        if not set(map(type, map(attrgetter(name), things))) <= allowed:
            wrong = next(one for one in things if type(getattr(one, name)) not in allowed)
            names = " or ".join(sorted(one.__name__ for one in allowed))
            refuse(f"{where(wrong)}: {name}", f"type {names}", f"{getattr(wrong, name)!r:.400}")


def refuse(where: str, expected: str, found: str = "", then: str = UNCHANGED) -> NoReturn:
    said = f"{expected}, found {found}" if found else expected
    raise BrokerPackageError(f"{where}: expected {said}. {then}")
