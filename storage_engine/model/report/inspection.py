"""What a store looks like to a person: paragraphs, tables and lists in order, and the same as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_engine.core.jsonable import to_jsonable
from storage_engine.model.store.store import DiskUsage, StoreSnapshot


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Lines of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table. A column that ends in ``#`` has numbers, one that ends in ``~`` long names."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Names:
    """A list of names."""

    title: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Disks:
    """Levels of disks."""

    levels: tuple[DiskUsage, ...]


Section = Paragraph | Table | Names | Disks


@dataclass(frozen=True, slots=True)
class Inspection:
    """A store as its broker describes it.

    :param data: the same for programs, JSON types only.
    :param data_paths: directories that the broker writes to.
    """

    data: Mapping[str, Any]
    sections: tuple[Section, ...]
    data_paths: tuple[Path, ...]


def plain_inspection(snapshot: StoreSnapshot) -> Inspection:
    """Describe what every store has: logs, segments and disks."""
    rows = tuple(
        (log.name, segment.name, segment.base_offset, segment.facts.size_bytes, segment.state.value)
        for log in snapshot.logs
        for segment in log.segments
    )
    columns = ("log~", "segment~", "base offset#", "bytes#", "state")
    sections = (Disks(snapshot.disks), Table("Segments", columns, rows))
    return Inspection(to_jsonable(snapshot), sections, (Path(snapshot.root),))


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """Messages that were looked for by one of their keys.

    :param offsets: physical ones, ascending, of messages whose topic and key are those.
    :param unread: that the index lists under the same hash, and at which the log has no message that can be
        read: it is gone, or damaged. What it was isn't known.
    """

    offsets: tuple[int, ...]
    unread: tuple[int, ...] = ()
