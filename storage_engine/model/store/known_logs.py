"""Logs by name and identity, and whether one that isn't here any more should be.

A log's name stands in receipts, journals, reports, messages and names of files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from storage_engine.model.store.store import Segment


@dataclass(frozen=True, slots=True)
class Lineages:
    """The lineage of each log: a number that rises when other bytes appear under its offsets.

    :param whole: the store's, which each log has that has none of its own.
    :param of_logs: by name, of logs that have got one since.
    """

    whole: int
    of_logs: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def archived(cls, newest: Mapping[str, int], stamped: Lineages | None) -> Lineages:
        """Return them as far as receipts and a stamp tell.

        Receipts alone don't tell whether the newest lineage is one log's or the whole store's: then it is
        taken for the store's, so that nothing which is over proves anything.

        :param newest: the newest lineage of each log of which something is archived.
        :param stamped: by the store's stamp; None: it has none.
        """
        if stamped is None:
            return Lineages(max(newest.values(), default=1))
        return _above(min(newest.values(), default=1), newest).merged(stamped)

    def of(self, log: str) -> int:
        """Return the lineage of a log."""
        return self.of_logs.get(log, self.whole)

    @property
    def newest(self) -> int:
        """The highest number that was given so far."""
        return max((self.whole, *self.of_logs.values()))

    def merged(self, other: Lineages) -> Lineages:
        """Return the newest of each log that either knows: no log goes back to an older one."""
        names = {*self.of_logs, *other.of_logs}
        return _above(
            max(self.whole, other.whole), {name: max(self.of(name), other.of(name)) for name in names}
        )

    def grouped(self, segments: Iterable[Segment]) -> Mapping[int, list[Segment]]:
        """Return segments by the lineages of their logs, in their order."""
        groups: dict[int, list[Segment]] = {}
        for segment in segments:
            groups.setdefault(self.of(segment.log), []).append(segment)
        return groups


def _above(whole: int, of_logs: Mapping[str, int]) -> Lineages:
    return Lineages(whole, {log: lineage for log, lineage in sorted(of_logs.items()) if lineage > whole})


MAX_NAME_BYTES = 260
"""A name of 249 bytes, a hyphen and a number of 32 bits; in a file's name it is shortened, see
:func:`in_file_name`."""

_DIGITS = 32
_SHORTENED = re.compile(f"~[0-9a-f]{{{_DIGITS}}}$")

_SEPARATORS = frozenset("/\\")


def log_name_fault(name: object) -> str:
    """Return what is wrong with a log's name, in words; "" where it may be stored and printed."""
    if type(name) is not str:
        return f"text, found {type(name).__name__}"
    if not name or name.isspace():
        return "at least one character, found none"
    if name in (".", ".."):
        return "a name, found the way to a directory"
    if not name.isprintable():
        return "printable characters alone"
    if not _SEPARATORS.isdisjoint(name):
        return "no / and no \\"
    # What is printable has no lone surrogate, so that it can be encoded.
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"at most {MAX_NAME_BYTES} bytes in UTF-8, found {len(name.encode())}"
    return ""


def in_file_name(log: str, max_bytes: int) -> str:
    """Return a log's name as a part of a file's name; a longer one is shortened, with a hash at its end.

    No two logs get the same: a name that looks as if it had been shortened gets a hash of its own.

    :param max_bytes: of the part, in UTF-8.
    """
    name = log.replace("/", "_")
    data = name.encode()
    if len(data) <= max_bytes and not _SHORTENED.search(name):
        return name
    begin = data[: max_bytes - 1 - _DIGITS].decode(errors="ignore")
    return f"{begin}~{hashlib.sha256(log.encode()).hexdigest()[:_DIGITS]}"


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which log it is, whatever has its name.

    :param log_id: as receipts have it; "": it can't be told.
    :param told_at: how far the broker's own knowledge of its logs reached; an earlier state tells nothing.
    """

    log_id: str = ""
    told_at: int = 0


NAMED: Final = "named:"
"""Begins an identity that is made of names alone, which change, and which other logs may have, too."""


def is_unique(log_id: str) -> bool:
    """Return whether an identity is of one log alone, for good."""
    return bool(log_id) and not log_id.startswith(NAMED)


def may_be_one(log_id: str, other_id: str) -> bool:
    """Return whether two identities may be of one log; "" is of any."""
    return log_id == other_id or not (is_unique(log_id) and is_unique(other_id))


def log_label(log: str, log_id: str) -> str:
    """Return what a log is called once another one has its name."""
    return f"{log} ({log_id})"


def name_in_label(called: str, log_id: str) -> str:
    """Return a log's name from its name or its :func:`log_label`."""
    return called.removesuffix(f" ({log_id})")


class IdentifiedRange(Protocol):
    """Belongs to a log, in one lineage of it."""

    @property
    def log(self) -> str:
        """Return the log's name."""

    @property
    def lineage(self) -> int:
        """Return its lineage; 0: it isn't known."""

    @property
    def log_id(self) -> str | None:
        """Return which log it is, as receipts have it; None or "": it isn't known."""


_NO_LOG = "none"
"""Stands for the identity of a log of which nothing is known but that it has a name."""


@dataclass(frozen=True, slots=True)
class LogNames:
    """What each log is called where several have had one name: the present one by it, others by a label.

    Two identities are matched here and nowhere else. What has none is of the log that its lineage's receipts
    are of, else of whatever has its name.

    :param present: by name, the identity of the log that has it, or had it last; "": it can't be told.
    :param of_lineages: by name and lineage, the identity of what was archived in it.
    :param ids: by what a log is called, its identity.
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
        """Return them by what is known of logs.

        :param present: by name, identities of the logs on disk. A name that none of them has is that of the
            log that went last, else of the one that was archived last.
        :param archived: oldest first.
        :param gone: what went of logs, oldest first.
        :param others: what went of logs whose names others have by now.
        """
        rows, went, replaced = ([row for row in ranges if row.log_id] for ranges in (archived, gone, others))
        not_present = {(row.log, row.log_id) for row in replaced}
        last = {
            **{row.log: _NO_LOG for row in replaced},
            **{
                row.log: str(row.log_id) for row in (*rows, *went) if (row.log, row.log_id) not in not_present
            },
            **present,
        }
        of_lineages = {(row.log, row.lineage): str(row.log_id) for row in rows}
        labels = {log_label(row.log, str(row.log_id)): str(row.log_id) for row in (*rows, *went, *replaced)}
        told = {log: log_id for log, log_id in last.items() if log_id not in ("", _NO_LOG)}
        return cls(last, of_lineages, labels | told)

    def is_label(self, called: str) -> bool:
        """Return whether a log is called by a label, as another one has its name."""
        return called in self.ids and called not in self.present

    def name_of(self, one: IdentifiedRange) -> str:
        """Return what the log is called that something belongs to."""
        log_id = one.log_id or self.of_lineages.get((one.log, one.lineage), "")
        if may_be_one(log_id, self.present.get(one.log, "")):
            return one.log
        return log_label(one.log, log_id)


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a log isn't here.

    :param is_right: it was deleted, or belongs elsewhere by now.
    :param why: a clause.
    :param is_unknown: nobody can tell whether it should be here, or it may lie where it isn't served from.
    """

    is_right: bool
    why: str
    is_unknown: bool = False
