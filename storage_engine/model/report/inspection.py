"""A store's description for a person, as text and as data, and the result of a recovery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_engine.commands import Command, Text
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import count_text, exact_bytes_text
from storage_engine.model.disk import DiskUsage
from storage_engine.model.store import StoreSnapshot


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table. A title that ends in ``#`` is of a column of numbers. ``~`` marks a column of long names."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Names:
    title: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Disks:
    levels: tuple[DiskUsage, ...]


Section = Paragraph | Table | Names | Disks


@dataclass(frozen=True, slots=True)
class Inspection:
    """A store as its broker describes it.

    :param data: the description as data for programs, JSON types only.
    :param data_paths: directories that the broker writes to.
    """

    data: Mapping[str, Any]
    sections: tuple[Section, ...]
    data_paths: tuple[Path, ...]


def plain_inspection(snapshot: StoreSnapshot) -> Inspection:
    """Describe the parts that every store has: logs, segments and disks."""
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
    """Result of a search for messages by one of their keys.

    :param offsets: ascending physical offsets of messages with this topic and key.
    :param unread: offsets that the index has for the same hash, but without a readable message in the log.
        The message is gone or damaged, and its key is unknown.
    """

    offsets: tuple[int, ...]
    unread: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreRecovery:
    """Result of a recovery, which cuts the log behind its last whole message and corrects the other files.

    :param crashed: whether the broker did not stop cleanly.
    :param log_end: offset behind the last whole message.
    :param cut_bytes: bytes behind ``log_end`` in the log's files; most of them were never written.
    :param cut_messages: whole messages among these bytes, behind a damaged message.
    :param deleted_files: the log's files that begin behind ``log_end``.
    :param dropped_index_files: index files that may lack entries, and are made again from the log.
    :param stray_entries: queue entries that point behind ``log_end``.
    :param missing_messages: messages that had no queue entry and get one.
    :param done: whether the recovery was done. If not, the fields say what a recovery would do.
    :param unindexed: range [first, end) of offsets whose messages are no longer found by key; None if the
        recovery takes no message out of the index.
    """

    root: str
    crashed: bool
    log_end: int
    cut_bytes: int
    cut_messages: int
    deleted_files: tuple[str, ...]
    dropped_index_files: tuple[str, ...]
    stray_entries: int
    missing_messages: int
    done: bool
    unindexed: tuple[int, int] | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the recovery as sentences."""
        would = "" if self.done else "would be "
        stopped = "was not stopped cleanly" if self.crashed else "was stopped cleanly"
        texts = [f"{self.root} {stopped}. Its log ends at offset {self.log_end}."]
        if self.cut_messages:
            cut = count_text(self.cut_messages, "whole message")
            texts.append(f"{cut} behind a damaged one {would}cut off.")
        for kind, files in (("log", self.deleted_files), ("index", self.dropped_index_files)):
            if files:
                verb = f"{would}deleted"
                texts.append(f"{count_text(len(files), 'file')} of the {kind} {verb}: {', '.join(files)}.")
        if self.stray_entries:
            texts.append(f"{count_text(self.stray_entries, 'stray queue offset')} {would}removed.")
        if self.missing_messages:
            texts.append(f"{count_text(self.missing_messages, 'message')} {would}put into queues.")
        if self.unindexed is not None:
            texts.append(Text(unindexed_text(*self.unindexed), " You can also recover with --index all."))
        if not self.done:
            texts.append(f"Behind the end lie {exact_bytes_text(self.cut_bytes)}. Nothing was changed.")
        return tuple(texts)


def unindexed_text(first_offset: int, end_offset: int) -> str:
    """Return a text for a person on messages at these offsets, which the index no longer has."""
    return Text(
        f"Messages at offsets [{first_offset}, {end_offset}) aren't found by key: a crash removed them from "
        "the index. ",
        Command("rebuild-queues"),
        ", while the store is stopped, completes the index again.",
    )
