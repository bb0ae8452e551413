"""A store at one moment: its logs, segments and disks.

Broker-neutral, standard library only. Log names are in receipts, journals, reports, messages and file names.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from storage_engine.exceptions import StoreLayoutError
from storage_engine.model.disk import DiskUsage


@dataclass(frozen=True, slots=True)
class TopicDay:
    """Messages of a topic whose store time is within a UTC day.

    :param topic: the topic's name; "" means several topics without their own rows.
    :param day: days since 1970-01-01.
    :param size_bytes: bytes as the broker stores them, with their framing.
    """

    topic: str
    day: int
    size_bytes: int
    messages: int


class OfLog(Protocol):
    """An item that belongs to a log of a store."""

    @property
    def log(self) -> str:
        """Return the log's name."""


Item = TypeVar("Item")
Key = TypeVar("Key")
One = TypeVar("One", bound=OfLog)
T = TypeVar("T")


def grouped(items: Iterable[Item], key_of: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return items grouped by a key, in their given order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key_of(item), []).append(item)
    return groups


def group_by_log(
    items: Iterable[One], name_of: Callable[[One], str] = attrgetter("log")
) -> dict[str, list[One]]:
    """Return items grouped by log, each group in its given order."""
    return grouped(items, name_of)


def split_runs(items: Iterable[T], follows: Callable[[T, T], bool]) -> Iterator[list[T]]:
    """Yield runs of neighbouring items in which each item follows the one before it."""
    run: list[T] = []
    for item in items:
        if run and not follows(run[-1], item):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The file system's facts about a file.

    If a file's facts at two times are equal, nobody wrote to it between these times. This holds only if the
    file was settled at the first time, and if its times can be trusted (:mod:`storage_engine.same_bytes`).
    """

    path: str
    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileFacts:
        """Read the facts of ``path``. A symbolic link isn't followed.

        :raises OSError: stat fails.
        """
        return cls.of_stat(path, Path(path).lstat())

    @classmethod
    def of_stat(cls, path: str | os.PathLike[str], stat: os.stat_result) -> FileFacts:
        times = (stat.st_mtime_ns, stat.st_ctime_ns)
        return cls(str(path), stat.st_dev, stat.st_ino, stat.st_size, *times)


class SegmentId(NamedTuple):
    """Identity of a segment within its store. It includes the log, since logs may share a base offset."""

    log: str
    base_offset: int


class SegmentState(StrEnum):
    SEALED = "sealed"
    """The whole segment is below the logical end of the log. The broker no longer writes to it."""
    ACTIVE = "active"
    """The segment has the logical end of the log, or was preallocated behind it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a log with its companion files. It covers the offsets [base_offset, end_offset).

    :param original_mtime_ns: the file's mtime before a hold changed it; None if no hold has.
    :param end: offset behind the segment's last offset; None if offsets count bytes. Then the file's size
        gives the end.
    :param companions: further files in its directory that its broker can't make again, sorted by name. They
        are proven and deleted with the segment.
    """

    log: str
    base_offset: int
    facts: FileFacts
    state: SegmentState
    original_mtime_ns: int | None = None
    end: int | None = None
    companions: tuple[FileFacts, ...] = ()

    def __post_init__(self) -> None:
        """:raises StoreLayoutError: the segment ends before it begins, or a companion isn't beside it."""
        if self.end is not None and self.end < self.base_offset:
            raise StoreLayoutError(
                f"{self.facts.path}: expected a segment that ends at {self.base_offset} or behind, found "
                f"one that ends at {self.end}. Nothing was changed. Report this fault of the broker's "
                "package."
            )
        if self.companions:
            object.__setattr__(self, "companions", _sort_companions(self.facts, self.companions))

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.log, self.base_offset)

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.facts.size_bytes if self.end is None else self.end

    @property
    def files(self) -> tuple[FileFacts, ...]:
        """Return all its files, its own file first."""
        return (self.facts, *self.companions)

    @property
    def disk_bytes(self) -> int:
        """Return the bytes of all its files."""
        return self.facts.size_bytes + sum([file.size_bytes for file in self.companions])

    @property
    def name(self) -> str:
        return Path(self.facts.path).name

    @property
    def mtime_ns(self) -> int:
        """Return the time of its last write, even if a hold has changed the file's mtime."""
        return self.facts.mtime_ns if self.original_mtime_ns is None else self.original_mtime_ns


@dataclass(frozen=True, slots=True)
class SegmentContext:
    """A broker's facts about a segment that aren't in its files, at the time of archiving.

    :param log_id: see ``Receipt``.
    :param evidence: the receipt's evidence, as JSON.
    :param codec: facts that the codec needs to make rows, in the codec's own format.
    """

    log_id: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    codec: str = ""


_path_of = attrgetter("path")


def _sort_companions(own: FileFacts, companions: Iterable[FileFacts]) -> tuple[FileFacts, ...]:
    """Return companions in the order of their paths.

    :raises StoreLayoutError: a companion is in another directory than the segment's file, or given twice.
    """
    ordered = tuple(sorted(companions, key=_path_of))
    paths = [file.path for file in ordered]
    directory = own.path.rpartition("/")[0]
    # Plans of many logs make 100,000 segments, and to make a Path takes as long as to make a segment.
    suspects = [path for path in paths if path.rpartition("/")[0] != directory or path.endswith(("/", "/."))]
    wrong = [path for path in suspects if Path(path).parent != Path(own.path).parent]
    if wrong or len({own.path, *paths}) <= len(paths):
        raise StoreLayoutError(
            f"{own.path}: expected companions in the directory of this segment file, each named once, and "
            f"without the segment file itself, found {', '.join(wrong or paths)}. Nothing was changed. "
            "Report this fault of the broker's package."
        )
    return ordered


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """A log's segments, oldest first and back to back.

    ``max_offset`` is the logical end. Every message below ``dispatched_offset`` is in its consume queue. A
    segment that ends above ``dispatched_offset`` must be kept.

    :param unread: why the active segment can't be read. Then ``max_offset`` is the least possible end.
    :param confirmed_offset: end of the bytes that all required replicas have. Behind it, the log may be cut
        off and written again. None if no other broker decides on the log's bytes.
    """

    name: str
    segments: tuple[Segment, ...]
    max_offset: int
    dispatched_offset: int
    unread: str = ""
    confirmed_offset: int | None = None

    @property
    def min_offset(self) -> int:
        return self.segments[0].base_offset if self.segments else self.max_offset

    @property
    def sealed(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.segments if s.state is SegmentState.SEALED)

    def is_confirmed(self, segment: Segment) -> bool:
        """Return whether a segment of the log remains unchanged, whichever replica becomes the master."""
        return self.confirmed_offset is None or segment.end_offset <= self.confirmed_offset


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Everything that a plan's decisions use, read at one moment.

    ``log_disks`` has one entry per configured commitlog path, ``dependents_disk`` is the consume queue's
    disk. ``crashed``: the broker did not stop cleanly. ``used_bytes``: bytes of the logs and their dependents
    together; None where they were not measured.
    """

    broker: str
    root: str
    taken_at_ms: int
    logs: tuple[LogSnapshot, ...]
    log_disks: tuple[DiskUsage, ...]
    dependents_disk: DiskUsage
    crashed: bool
    used_bytes: int | None = None

    @property
    def disks(self) -> tuple[DiskUsage, ...]:
        """Return the disks of all its directories, with one entry for each directory."""
        return tuple({disk.path: disk for disk in (*self.log_disks, self.dependents_disk)}.values())


WENT: Final = "files of it vanished while it was read: the next run reads it again"
"""The reason why a log that the broker is deleting from isn't archived now."""


@dataclass(frozen=True, slots=True)
class Archivable:
    """Segments of a store that may be archived by now.

    :param segments: sealed segments, oldest first in each log.
    :param kept_out: by log name, why the log's other sealed segments aren't archived, now or ever.
    :param refused: by log name, the fault or unknown fact that keeps the whole log out of the lake.
    :param is_all: all sealed segments may be archived, because this broker never excludes any.
    """

    segments: tuple[Segment, ...]
    kept_out: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    is_all: bool = False


@dataclass(frozen=True, slots=True)
class Lineages:
    """The lineage of each log: a number that rises when other bytes appear under its offsets.

    :param whole: the store's lineage. Each log without its own lineage has it.
    :param of_logs: by log name, the lineages of logs that later got a lineage of their own.
    """

    whole: int
    of_logs: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def archived(cls, newest: Mapping[str, int], stamped: Lineages | None) -> Lineages:
        """Return the lineages as far as receipts and a stamp say.

        Receipts alone don't say whether the newest lineage is one log's or the whole store's. Without a
        stamp it counts as the store's, so that no receipt of an older lineage proves anything.

        :param newest: the newest lineage of each log that has archived segments.
        :param stamped: lineages in the store's stamp; None without a stamp.
        """
        if stamped is None:
            return Lineages(max(newest.values(), default=1))
        return _lineages_above(min(newest.values(), default=1), newest).merged(stamped)

    def of(self, log: str) -> int:
        return self.of_logs.get(log, self.whole)

    @property
    def newest(self) -> int:
        """The highest lineage number so far."""
        return max((self.whole, *self.of_logs.values()))

    def merged(self, other: Lineages) -> Lineages:
        """Return the newer of both lineages for each log: no log returns to an older lineage."""
        names = {*self.of_logs, *other.of_logs}
        return _lineages_above(
            max(self.whole, other.whole), {name: max(self.of(name), other.of(name)) for name in names}
        )

    def grouped(self, segments: Iterable[Segment]) -> Mapping[int, list[Segment]]:
        """Return segments by the lineages of their logs, in their order."""
        groups: dict[int, list[Segment]] = {}
        for segment in segments:
            groups.setdefault(self.of(segment.log), []).append(segment)
        return groups


def _lineages_above(whole: int, of_logs: Mapping[str, int]) -> Lineages:
    return Lineages(whole, {log: lineage for log, lineage in sorted(of_logs.items()) if lineage > whole})


MAX_NAME_BYTES = 260
"""The longest log name: 249 bytes, a hyphen and a 32-bit number. For file names see :func:`in_file_name`."""

_DIGITS = 32
_SHORTENED = re.compile(f"~[0-9a-f]{{{_DIGITS}}}$")

_SEPARATORS = frozenset("/\\")


def log_name_fault(name: object) -> str:
    """Return the fault of a log's name, in words. "" if the name may be stored and printed."""
    if type(name) is not str:
        return f"text, found {type(name).__name__}"
    if not name or name.isspace():
        return "at least one character, found none"
    if name in (".", ".."):
        return "a name, found a path to a directory"
    if not name.isprintable():
        return "printable characters alone"
    if not _SEPARATORS.isdisjoint(name):
        return "no / and no \\"
    # What is printable has no lone surrogate, so that it can be encoded.
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"at most {MAX_NAME_BYTES} bytes in UTF-8, found {len(name.encode())}"
    return ""


def in_file_name(log: str, max_bytes: int) -> str:
    """Return a log's name as a part of a file's name. A longer name is shortened, with a hash at its end.

    Two logs never get the same part: a name that looks shortened gets its own hash.

    :param max_bytes: the most bytes of the part, in UTF-8.
    """
    name = log.replace("/", "_")
    data = name.encode()
    if len(data) <= max_bytes and not _SHORTENED.search(name):
        return name
    begin = data[: max_bytes - 1 - _DIGITS].decode(errors="ignore")
    return f"{begin}~{hashlib.sha256(log.encode()).hexdigest()[:_DIGITS]}"


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """A log's identity, which doesn't depend on its name.

    :param log_id: identity as in receipts; "" if unknown.
    :param told_at: end offset of the broker's metadata when the identity was read. Metadata with an earlier
        end may lack the identity.
    """

    log_id: str = ""
    told_at: int = 0


NAMED: Final = "named:"
"""Beginning of an identity made only of names. Names change, and other logs may have the same names."""


def is_unique(log_id: str) -> bool:
    """Return whether an identity belongs to only one log, for ever."""
    return bool(log_id) and not log_id.startswith(NAMED)


def may_be_one(log_id: str, other_id: str) -> bool:
    """Return whether two identities may belong to the same log. "" may belong to any log."""
    return log_id == other_id or not (is_unique(log_id) and is_unique(other_id))


def log_label(log: str, log_id: str) -> str:
    """Return the label of a log whose name another log has now."""
    return f"{log} ({log_id})"


def name_in_label(called: str, log_id: str) -> str:
    """Return the name in a log's :func:`log_label`, or the name itself."""
    return called.removesuffix(f" ({log_id})")


class IdentifiedRange(Protocol):
    """An item that belongs to one lineage of a log."""

    @property
    def log(self) -> str:
        """Return the log's name."""

    @property
    def lineage(self) -> int:
        """Return the log's lineage; 0 if not known."""

    @property
    def log_id(self) -> str | None:
        """Return the log's identity, as in receipts. None or "" if unknown."""


_NO_LOG = "none"
"""The identity of a log of which only the name is known."""


@dataclass(frozen=True, slots=True)
class LogNames:
    """Names of logs where several had the same name: the present log keeps it, the others have a label.

    Only this class compares two identities. An item without an identity belongs to the log of its lineage's
    receipts. Without such receipts it belongs to the present log of its name.

    :param present: for each name, the identity of the log that has the name or had it last; "" if unknown.
    :param of_lineages: for each name and lineage, the identity of the log that was archived in it.
    :param ids: identities by the logs' names and labels.
    """

    present: Mapping[str, str] = field(default_factory=dict)
    of_lineages: Mapping[tuple[str, int], str] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def known(
        cls,
        present: Mapping[str, str],
        archived: Iterable[IdentifiedRange],
        gone: Iterable[IdentifiedRange] = (),
        others: Iterable[IdentifiedRange] = (),
    ) -> LogNames:
        """Return the names from known ranges of logs.

        :param present: identities of the logs on disk, by name. Any other name belongs to the log
            that was deleted last, or else to the log that was archived last.
        :param archived: archived ranges, oldest first.
        :param gone: deleted ranges of logs, oldest first.
        :param others: deleted ranges of logs whose names other logs have by now.
        """
        rows, past, replaced = ([row for row in ranges if row.log_id] for ranges in (archived, gone, others))
        not_present = {(row.log, row.log_id) for row in replaced}
        last = {
            **{row.log: _NO_LOG for row in replaced},
            **{
                row.log: str(row.log_id) for row in (*rows, *past) if (row.log, row.log_id) not in not_present
            },
            **present,
        }
        of_lineages = {(row.log, row.lineage): str(row.log_id) for row in rows}
        labels = {log_label(row.log, str(row.log_id)): str(row.log_id) for row in (*rows, *past, *replaced)}
        ids = {log: log_id for log, log_id in last.items() if log_id not in ("", _NO_LOG)}
        return cls(last, of_lineages, labels | ids)

    def is_label(self, called: str) -> bool:
        """Return whether a log has a label, because another log has its name."""
        return called in self.ids and called not in self.present

    def name_of(self, item: IdentifiedRange) -> str:
        """Return the name of the log that an item belongs to."""
        log_id = item.log_id or self.of_lineages.get((item.log, item.lineage), "")
        if may_be_one(log_id, self.present.get(item.log, "")):
            return item.log
        return log_label(item.log, log_id)


@dataclass(frozen=True, slots=True)
class Absence:
    """The reason why a log is missing here.

    :param is_right: the log was deleted, or belongs elsewhere by now.
    :param why: the reason as a clause.
    :param is_unknown: it is unknown whether the log should be here, or its broker set its directory aside.
    """

    is_right: bool
    why: str
    is_unknown: bool = False
