"""The rule for which files below a lake's tables may be removed. Pure.

A file that no other file names isn't garbage yet: live files must provably have the same content. A data file
may be removed if each of its segments is also in a live file. A file of receipts may be removed if the table
has each of its rows. Metadata may be removed if each file that it names is needed, removed too, or gone. An
unreadable file is kept, and so are files that only it could name. A young file is kept for the grace (see
``garbage.py``). An orphan is an older file that the table doesn't need and that is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum, auto

from storage_engine.lake.catalog.tables import DELETIONS, SEGMENTS
from storage_engine.lake.file.jobs import split_data_file_name
from storage_engine.lake.file.staging import PARTIAL_SUFFIX
from storage_engine.lake.gc.garbage_kind import GarbageKind

_NAMED_BY = {
    GarbageKind.MANIFEST_LIST: GarbageKind.METADATA,
    GarbageKind.MANIFEST: GarbageKind.MANIFEST_LIST,
    GarbageKind.DATA_FILE: GarbageKind.MANIFEST,
    GarbageKind.RECEIPTS: GarbageKind.MANIFEST,
    GarbageKind.DELETIONS: GarbageKind.MANIFEST,
}
"""For each kind, the kind of file that names it. No file names a staged file."""

_SMALL_TABLES = {SEGMENTS: GarbageKind.RECEIPTS, DELETIONS: GarbageKind.DELETIONS}
"""The kind of the small tables' data files. Data files of the table of rows have rows of segments."""


class GarbageStanding(Enum):
    GARBAGE = auto()
    ORPHAN = auto()
    YOUNG = auto()


@dataclass(frozen=True, slots=True)
class Held:
    """A segment or a receipt in a file.

    :param twin: the live file that also has it; "" if no live file has it.
    :param fault: why no live file has it.
    """

    name: str
    twin: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class GarbageContents:
    """Contents of a file that the table doesn't need.

    :param names: keys of the files that it names.
    :param fault: why its content is unknown; "" if it is known.
    :param keep: why the file must stay, whatever is in it; "" for no such reason.
    :param empty: the file has no bytes: its writer was killed before it wrote any, or the file was damaged
        later.
    """

    held: tuple[Held, ...] = ()
    names: frozenset[str] = frozenset()
    fault: str = ""
    keep: str = ""
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file below a table's location that the table doesn't need.

    :param key: the name by which other files refer to it.
    :param kind: None if neither we nor Iceberg give such a name. Such a file is never removed.
    :param contents: None if the file was not read, because it is young or of unknown kind.
    :param young: whether it is so young that it may belong to work in progress.
    """

    key: str
    kind: GarbageKind | None
    contents: GarbageContents | None
    young: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision about one file.

    :param twins: live files with the same content, if the file may be removed.
    """

    standing: GarbageStanding
    reason: str
    twins: tuple[str, ...] = ()


def kind_of(table: str, inside: str) -> GarbageKind | None:
    """Return a file's kind by its name, or None if neither we nor Iceberg give such a name.

    :param inside: path of the file, relative to the table's location.
    """
    folder, _, _ = inside.partition("/")
    name = inside.rpartition("/")[2]
    if folder == "data":
        if name.endswith(PARTIAL_SUFFIX):
            return GarbageKind.STAGED
        if name.endswith(".parquet") or split_data_file_name(name)[0]:
            return _SMALL_TABLES.get(table, GarbageKind.DATA_FILE)
    if folder == "metadata":
        if name.endswith(".metadata.json"):
            return GarbageKind.METADATA
        if name.endswith(".avro"):
            return GarbageKind.MANIFEST_LIST if name.startswith("snap-") else GarbageKind.MANIFEST
    return None


def judge(candidates: Sequence[Candidate], needed: Set[str]) -> list[Verdict | None]:
    """Decide about each file below a table's location that the table doesn't need.

    :param needed: keys of the files that the table needs.
    :return: the verdicts, in the order of ``candidates``; None for a file of unknown kind.
    """
    candidates = list(_with_damage(candidates))
    by_key: dict[str, list[int]] = {}
    for number, candidate in enumerate(candidates):
        by_key.setdefault(candidate.key, []).append(number)
    hidden = _Hidden(candidates)
    verdicts: list[Verdict | None] = [None] * len(candidates)

    def is_garbage(number: int) -> bool:
        verdict = verdicts[number]
        return verdict is not None and verdict.standing is GarbageStanding.GARBAGE

    def kept_name(candidate: Candidate) -> str:
        """Return the key of the first named file that makes a candidate stay; "" if there is none."""
        for key in sorted(candidate.contents.names if candidate.contents else ()):
            # The table names a needed file itself. But only a delete file tells which rows are deleted.
            if key in needed:
                if candidate.kind is GarbageKind.DATA_FILE:
                    return key
            elif not all(map(is_garbage, by_key.get(key, ()))):
                return key
        return ""

    for kind in GarbageKind:
        of_kind = [number for number, candidate in enumerate(candidates) if candidate.kind is kind]
        # Delete files name data files, and so come after them.
        for number in sorted(of_kind, key=lambda n: bool((c := candidates[n].contents) and c.names)):
            candidate = candidates[number]
            verdicts[number] = _verdict(candidate, kept_name(candidate), hidden.namer_of(candidate))
    return verdicts


def _verdict(candidate: Candidate, kept: str, hidden_by: str) -> Verdict:
    """Decide about one file.

    :param kept: key of a kept file that this file names; "" if there is none.
    :param hidden_by: key of an unreadable file that may name this one; "" if there is none, or a readable
        file names it.
    """
    contents = candidate.contents
    if contents is None or candidate.young:
        return Verdict(GarbageStanding.YOUNG, "it is younger than the grace")
    if fault := contents.keep or contents.fault:
        return Verdict(GarbageStanding.ORPHAN, fault)
    for held in contents.held:
        if not held.twin:
            return Verdict(GarbageStanding.ORPHAN, f"{held.name}: {held.fault}")
    if kept:
        return Verdict(GarbageStanding.ORPHAN, f"it names {kept}, which is kept")
    if hidden_by:
        return Verdict(GarbageStanding.ORPHAN, f"only {hidden_by} could name it, and that can't be read")
    twins = tuple(sorted({held.twin for held in contents.held}))
    if twins:
        more = f" and {len(twins) - 1} more" if len(twins) > 1 else ""
        return Verdict(GarbageStanding.GARBAGE, f"{twins[0]}{more} holds the same", twins)
    if contents.names:
        return Verdict(
            GarbageStanding.GARBAGE, "all files that it names are in the table, are removed too, or are gone"
        )
    return Verdict(GarbageStanding.GARBAGE, "it holds and names nothing")


def _with_damage(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield the candidates. An empty file that another one names counts as damaged, not as garbage."""
    named = {key for candidate in candidates if candidate.contents for key in candidate.contents.names}
    for candidate in candidates:
        if candidate.contents and candidate.contents.empty and candidate.key in named:
            yield replace(candidate, contents=GarbageContents(fault="it is empty, though metadata names it"))
        else:
            yield candidate


class _Hidden:
    """The unreadable files, and the names in the readable ones."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._unreadable: dict[GarbageKind, str] = {}
        self._named: dict[GarbageKind, set[str]] = {}
        for candidate in candidates:
            kind, contents = candidate.kind, candidate.contents
            if kind is None or contents is None:
                continue
            if contents.fault:
                self._unreadable.setdefault(kind, candidate.key)
            else:
                self._named.setdefault(kind, set()).update(contents.names)

    def namer_of(self, candidate: Candidate) -> str:
        """Return the key of an unreadable file that may name this file, or "" if a readable one names it."""
        kind = None if candidate.kind is None else _NAMED_BY.get(candidate.kind)
        if kind is None or candidate.key in self._named.get(kind, ()):
            return ""
        return next((self._unreadable[above] for above in _list_above(kind) if above in self._unreadable), "")


def _list_above(kind: GarbageKind) -> Iterator[GarbageKind]:
    above: GarbageKind | None = kind
    while above is not None:
        yield above
        above = _NAMED_BY.get(above)
