"""What lies below the lake's tables, listed and read, and what is to become of each file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from pyiceberg.table import Table

from storage_engine.core.long_work import told_each
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.tables import DELETIONS
from storage_engine.lake.file.jobs import split_data_file_name
from storage_engine.lake.gc.garbage_evidence import Evidence
from storage_engine.lake.gc.garbage_files import Listing, Place, TableFile, TrashList, key_of, list_place
from storage_engine.lake.gc.garbage_kind import GarbageKind
from storage_engine.lake.gc.garbage_rule import Candidate, Contents, Standing, judge, kind_of
from storage_engine.lake.gc.live_twins import LiveTwins, ReadBack
from storage_engine.lake.gc.trash import in_trash

FOREIGN_GRACE_MS = 24 * 3_600_000
"""How long a data file that another program named is left alone, at least: a compaction that runs since then
may be about to commit it, and knows nothing of our lock."""

_METADATA_KINDS = (GarbageKind.MANIFEST, GarbageKind.MANIFEST_LIST, GarbageKind.METADATA)


@dataclass(frozen=True, slots=True)
class Waits:
    """:param settled_ns: files that were modified after this are young.
    :param foreign_ns: data files of other programs that were modified after this are young.
    :param due_ns: what went into the trash before this may go for good.
    """

    settled_ns: int
    foreign_ns: int
    due_ns: int

    @classmethod
    def at(cls, now: int, grace_ms: int, trash_ms: int) -> Waits:
        """
        :param now: nanoseconds since the epoch.
        """
        foreign_ms = max(grace_ms, FOREIGN_GRACE_MS)
        return cls(*(now - wait_ms * 1_000_000 for wait_ms in (grace_ms, foreign_ms, trash_ms)))


@dataclass(frozen=True, slots=True)
class Scene:
    """What lies below one table's location, listed once, and what was read of it so far."""

    place: Place
    listing: Listing
    trash: tuple[tuple[TrashList, TableFile], ...]
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Decided:
    """A file that the table doesn't need, and why it may go or is kept.

    :param twins: the live files that hold what it holds.
    :param listed: what took it; None: it isn't in the trash.
    """

    file: TableFile
    kind: GarbageKind
    reason: str
    twins: tuple[str, ...]
    listed: TrashList | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of one table's files.

    :param going: files that may go.
    :param orphans: files that are kept, those in the trash too.
    :param due: files that may go from the trash for good.
    :param over: passes that have nothing in the trash any more once that is done.
    :param waiting: files that have to stay in the trash for longer.
    """

    place: Place
    going: list[Decided] = field(default_factory=list)
    orphans: list[Decided] = field(default_factory=list)
    due: list[Decided] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    waiting: list[TableFile] = field(default_factory=list)
    young: list[TableFile] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def look(lake: Lake) -> list[Scene]:
    """List what lies below the tables' locations.

    :raises LakeUnavailableError: it can't be listed, or lacks a table's metadata.
    """
    messages, segments, *deletions = lake.every_table()
    scenes = [_look(table) for table in (messages, segments)]
    for table in deletions:
        # Nothing is refused for what is wrong with this one.
        with suppress(LakeUnavailableError):
            scenes.append(_look(table))
    return scenes


def _look(table: Table) -> Scene:
    place = Place.of(table)
    listing = list_place(place)
    if key_of(table.metadata_location) not in {file.key(place) for file in listing.files}:
        raise LakeUnavailableError(
            f"{table.location()}: expected the table's metadata {table.metadata_location} among its "
            "files, found it missing. Nothing was removed. Does the warehouse lie where the catalog "
            "says? If another engine puts metadata there, remove the table's property "
            "write.metadata.path; of a SQL catalog the next commit of storage-engine brings it back."
        )
    return Scene(place, listing, tuple(in_trash(place, listing)), Evidence(place))


def decide(lake: Lake, scenes: Sequence[Scene], read_back: ReadBack, waits: Waits) -> list[Decision]:
    """Decide about the files that were listed, by the tables as they are now.

    :raises LakeUnavailableError: what the tables need can't be read.
    """
    tables = {table.name()[-1]: table for table in lake.every_table()}
    twins = LiveTwins(*lake.tables(), read_back, tables.get(DELETIONS))
    decisions = []
    # A table of deletions that came or went since, or can't be read, is for the next pass.
    for scene in (it for it in scenes if it.place.name in tables):
        name = scene.place.name
        with suppress(LakeUnavailableError) if name == DELETIONS else nullcontext():
            decisions.append(_decide(tables[name], scene, twins, waits))
    return decisions


def _decide(table: Table, scene: Scene, twins: LiveTwins, waits: Waits) -> Decision:
    place = scene.place
    decision = Decision(place, unknown=list(scene.listing.linked))
    needed = scene.evidence.needed(table)
    lost = needed - {file.key(place) for file in scene.listing.files}
    due = {
        file: listed
        for listed, file in scene.trash
        if listed.since_ns <= waits.due_ns or file.key(place) in lost
    }
    waiting = {file for _, file in scene.trash} - set(due)
    if not place.is_local:
        # Such a file is where the table wants it, and off the list once that is done with.
        due = {file: listed for file, listed in due.items() if file.key(place) not in needed}
    decision.waiting.extend(waiting)
    in_place = [file for file in scene.listing.files if file not in waiting and file not in due]
    files = [file for file in in_place if file.key(place) not in needed] + list(due)
    candidates = [
        _candidate(table, scene, twins, waits, file, is_due=file in due, is_lost=file.key(place) in lost)
        for file in told_each(files, "Looking at files", "files")
    ]
    for file, candidate, verdict in zip(files, candidates, judge(candidates, needed), strict=True):
        if candidate.young:
            decision.young.append(file)
        elif verdict is None or candidate.kind is None:
            decision.unknown.append(file.path)
        else:
            listed = due.get(file)
            it = Decided(file, candidate.kind, verdict.reason, verdict.twins, listed)
            if verdict.standing is Standing.ORPHAN:
                decision.orphans.append(it)
            else:
                (decision.going if listed is None else decision.due).append(it)
    staying = {listed.moment for listed, file in scene.trash if file in waiting}
    if place.is_local:
        staying |= {it.listed.moment for it in decision.orphans if it.listed is not None}
    lists = [listed for listed in scene.listing.lists if listed.since_ns <= waits.due_ns]
    decision.over.extend(listed.moment for listed in lists if listed.moment not in staying)
    return decision


def _candidate(
    table: Table,
    scene: Scene,
    twins: LiveTwins,
    waits: Waits,
    file: TableFile,
    *,
    is_due: bool,
    is_lost: bool,
) -> Candidate:
    kind = kind_of(scene.place.name, file.inside)
    foreign = kind is GarbageKind.DATA_FILE and not split_data_file_name(file.inside.rpartition("/")[2])[0]
    young = not is_due and file.modified_ns > (waits.foreign_ns if foreign else waits.settled_ns)
    contents = None
    if is_lost:
        contents = Contents(keep="the table needs it again: run storage-engine gc --undo")
    elif kind in _METADATA_KINDS or (kind is not None and not young):
        contents = scene.evidence.of(table, twins, kind, file)
    return Candidate(file.key(scene.place), kind, contents, young)
