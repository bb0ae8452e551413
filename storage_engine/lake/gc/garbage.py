"""Garbage collection: find files that may be removed from the lake, put them into the trash, empty it later.

:mod:`storage_engine.lake.gc.garbage_rule` decides which files may be removed. This module reads the tables,
lists the files and carries out the decision. It decides twice. The first decision is made without the lock,
because live files are read back for it, which takes long. The second one is made under the lock, with tables
that are loaded again, while our commits wait.

Files that a hold covers stay in the trash until the hold is lifted.

It must never take a file because of tables that were loaded before the last commit. It must never remove a
file that was not in the trash before. It must never touch our own small files, or files whose names neither
we nor Iceberg give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestContent, ManifestFile, read_manifest_list
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table

from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.core.long_work import report_each
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError, LakeIdentityError, LakeUnavailableError
from storage_engine.lake.acts.act_files import HeldStores, read_acts, read_held_stores
from storage_engine.lake.catalog.catalog import Lake, connect, rows_table_among
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import read_mark
from storage_engine.lake.catalog.placed_table import careful_avro
from storage_engine.lake.catalog.tables import DELETIONS, IDENTITY_COLUMNS, SEGMENTS
from storage_engine.lake.catalog.writing import (
    TAKEN_OVER_PROPERTY,
    UNLOCKED_GRACE_MS,
    nobody_commits,
    ready_to_write,
)
from storage_engine.lake.file.jobs import is_own_name, split_data_file_name
from storage_engine.lake.file.scan import all_equal
from storage_engine.lake.file.staging import final_name
from storage_engine.lake.gc.garbage_kind import TRASH_MS, GarbageKind
from storage_engine.lake.gc.garbage_rule import Candidate, GarbageContents, GarbageStanding, judge, kind_of
from storage_engine.lake.gc.live_twins import RANGE_COLUMNS, LiveTwins, ReadBack
from storage_engine.lake.gc.trash import (
    Listing,
    Place,
    PutBack,
    TableFile,
    TrashList,
    empty,
    forget,
    in_trash,
    key_of,
    list_place,
    new_moment,
    now_ns,
    put_back,
    take,
)
from storage_engine.lake.storage.errors import is_file_failure, lake_errors, metadata_errors
from storage_engine.model.keep.acts import expired_files
from storage_engine.model.proof.receipt import ChainHead

_STORE_FOLDER = "store_id="

_POSITION_DELETES = ("file_path", "pos")

_Rows = tuple[tuple[Any, ...], ...]

_UNREADABLE = "it can't be read"


def _list_locations(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (file.statistics_path for file in metadata.statistics)
    yield from (file.statistics_path for file in metadata.partition_statistics)
    manifests: dict[str, ManifestFile] = {}
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        manifests.update((manifest.manifest_path, manifest) for manifest in snapshot.manifests(table.io))
    for location, manifest in manifests.items():
        yield location
        yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))


class Evidence:
    """Reads the files below one table's location. Each file is read only once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._read: dict[TableFile, GarbageContents | tuple[object, ...]] = {}
        self._needed: dict[str, frozenset[str]] = {}

    def needed(self, table: Table) -> frozenset[str]:
        """Return the keys of a loaded table's files in all snapshots, and of the metadata file in its mark.

        :raises LakeUnavailableError: the table can't be read.
        """
        if table.metadata_location not in self._needed:
            with metadata_errors(table.location(), "read the table's manifests"):
                self._needed[table.metadata_location] = frozenset(map(key_of, _list_locations(table)))
        mark = read_mark(table)
        marked = frozenset() if mark is None else frozenset({f"metadata/{mark.metadata}"})
        return self._needed[table.metadata_location] | marked

    def of(self, table: Table, twins: LiveTwins, kind: GarbageKind, file: TableFile) -> GarbageContents:
        """Return the contents of a file with their live twins, or the files that it names.

        :param table: the file's table, loaded now.
        :raises LakeUnavailableError: live files can't be read.
        """
        if file.size_bytes == 0:
            return GarbageContents(empty=True)
        if kind in (GarbageKind.METADATA, GarbageKind.MANIFEST_LIST, GarbageKind.MANIFEST):
            named: GarbageContents = self._read_once(
                file, lambda: _read_names(table, self._location(file), kind, file)
            )
            return named
        if kind is GarbageKind.RECEIPTS:
            values = self._read_once(file, lambda: self._column_values(file, ("row_hash",)))
            if isinstance(values, GarbageContents):
                return values
            return GarbageContents(tuple(twins.of_receipt(hash_) for (hash_,) in values))
        if kind is GarbageKind.DELETIONS:
            values = self._read_once(file, lambda: self._column_values(file, RANGE_COLUMNS))
            if isinstance(values, GarbageContents):
                return values
            return GarbageContents(tuple(map(twins.of_range, values)))
        return self._data_file_contents(table, twins, kind, file)

    def _data_file_contents(
        self, table: Table, twins: LiveTwins, kind: GarbageKind, file: TableFile
    ) -> GarbageContents:
        folder, _, name = file.inside.rpartition("/")
        if kind is GarbageKind.STAGED:
            name = final_name(name)
            footer = self._read_once(file, lambda: self._column_values(file, ()))
            if isinstance(footer, GarbageContents):
                # If it can be read and isn't a whole Parquet file, its writer was killed.
                return footer if footer.fault.startswith(_UNREADABLE) else GarbageContents()
        store = folder.rpartition("/")[2]
        prefix, digits = split_data_file_name(name)
        if prefix and store.startswith(_STORE_FOLDER):
            return GarbageContents((twins.of_content(store.removeprefix(_STORE_FOLDER), prefix, digits),))
        slots = self._read_once(file, lambda: self._read_slots(file))
        if isinstance(slots, GarbageContents):
            return slots
        return GarbageContents(tuple(twins.of_rows(table, self._location(file), slot) for slot in slots))

    def _read_slots(self, file: TableFile) -> GarbageContents | _Rows:
        """Return the segments with rows in a file. For a delete file, return the data files that it names."""
        slots = self._column_values(file, tuple(IDENTITY_COLUMNS.names))
        if not isinstance(slots, GarbageContents) or slots.fault.startswith(_UNREADABLE):
            return slots
        deletes = self._column_values(file, _POSITION_DELETES)
        if isinstance(deletes, GarbageContents):
            return slots
        return GarbageContents(names=frozenset(key_of(location) for location, _ in deletes))

    def _read_once(self, file: TableFile, read: Callable[[], Any]) -> Any:
        if file not in self._read:
            self._read[file] = read()
        return self._read[file]

    def _location(self, file: TableFile) -> str:
        return f"{self._place.location}/{file.found}"

    def _column_values(self, file: TableFile, columns: tuple[str, ...]) -> GarbageContents | _Rows:
        """Return the distinct values of some columns of a Parquet file, or why they can't be read."""
        try:
            with (
                self._place.file_system.open_input_file(file.path) as source,
                pq.ParquetFile(source) as parquet,
            ):
                if lacking := set(columns) - set(parquet.schema_arrow.names):
                    return GarbageContents(fault=f"its content isn't known without a column {min(lacking)}")
                values: dict[tuple[Any, ...], None] = {}
                for group in range(parquet.num_row_groups if columns else 0):
                    rows = parquet.read_row_group(group, columns=list(columns), use_threads=False)
                    rows = rows.group_by(list(columns), use_threads=False).aggregate([])
                    values.update(dict.fromkeys(zip(*(rows[c].to_pylist() for c in columns), strict=True)))
                return tuple(values)
        except (OSError, pa.ArrowException) as error:
            reason = _UNREADABLE if is_file_failure(error) else "it is no whole Parquet file"
            return GarbageContents(fault=f"{reason}: {reason_text(error)}")


def _read_names(table: Table, location: str, kind: GarbageKind, file: TableFile) -> GarbageContents:
    try:
        with careful_avro():
            if kind is GarbageKind.METADATA:
                metadata = FromInputFile.table_metadata(table.io.new_input(location))
                names = frozenset(key_of(snapshot.manifest_list) for snapshot in metadata.snapshots)
                other = f"it is metadata of another table, {metadata.table_uuid}: another lake is or was here"
                is_own = metadata.table_uuid == table.metadata.table_uuid
                return GarbageContents(names=names, keep="" if is_own else other)
            if kind is GarbageKind.MANIFEST_LIST:
                manifests = read_manifest_list(table.io.new_input(location))
                return GarbageContents(
                    names=frozenset(key_of(manifest.manifest_path) for manifest in manifests)
                )
            # Only the path and the length decide which files the manifest names.
            manifest = ManifestFile.from_args(
                manifest_path=location,
                manifest_length=file.size_bytes,
                partition_spec_id=0,
                content=ManifestContent.DATA,
                sequence_number=0,
                min_sequence_number=0,
                added_snapshot_id=0,
            )
            entries = manifest.fetch_manifest_entry(table.io)
            return GarbageContents(names=frozenset(key_of(entry.data_file.file_path) for entry in entries))
    except Exception as error:
        # On damaged bytes the parsers raise any kind of error.
        return GarbageContents(fault=f"{_UNREADABLE}: {type(error).__name__}: {error}")


FOREIGN_GRACE_MS = DAY_MS
"""How long a data file with another program's name is left alone at least. Another engine may have written it
and not committed it yet, and doesn't know our lock."""

_METADATA_KINDS = (GarbageKind.MANIFEST, GarbageKind.MANIFEST_LIST, GarbageKind.METADATA)


@dataclass(frozen=True, slots=True)
class Waits:
    """Times from which files are too young, in nanoseconds since the epoch.

    :param settled_ns: files that were modified after this time are young.
    :param foreign_ns: data files of other programs that were modified after this time are young.
    :param due_ns: files that entered the trash by this time may be removed for good.
    """

    settled_ns: int
    foreign_ns: int
    due_ns: int

    @classmethod
    def at(cls, now: int, grace_ms: int, trash_ms: int) -> Waits:
        """Return these times for ``now``, in nanoseconds since the epoch."""
        foreign_ms = max(grace_ms, FOREIGN_GRACE_MS)
        return cls(*(now - wait_ms * 1_000_000 for wait_ms in (grace_ms, foreign_ms, trash_ms)))


@dataclass(frozen=True, slots=True)
class Scene:
    """Files below one table's location, listed once, with the contents that were read so far."""

    place: Place
    listing: Listing
    trash: tuple[tuple[TrashList, TableFile], ...]
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class DecidedFile:
    """A file that its table doesn't need, with the reason for its removal or for keeping it.

    :param table: name of the table below whose location the file is.
    :param path: the file system's path, without a scheme.
    :param location: location at which the table's file access opens the file.
    :param reason: why its removal loses nothing; or what would be lost, or why that isn't known.
    """

    table: str
    path: str
    location: str
    kind: GarbageKind
    size_bytes: int
    modified_ns: int
    reason: str
    twins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A listed file with its decision.

    :param listed: the pass that put it into the trash; None if it isn't in the trash.
    """

    file: TableFile
    listed: TrashList | None
    decided: DecidedFile


@dataclass(frozen=True, slots=True)
class TableDecision:
    """Decision on one table's files.

    :param going: files that go into the trash.
    :param orphans: files that are kept, also those in the trash.
    :param due: files in the trash that may be removed for good.
    :param over: passes that have no file in the trash once ``due`` is removed.
    :param waiting: files that must stay in the trash for longer.
    :param young: files that are younger than the grace.
    :param unknown: paths of files that are never taken.
    """

    place: Place
    going: list[FoundFile] = field(default_factory=list)
    orphans: list[FoundFile] = field(default_factory=list)
    due: list[FoundFile] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    waiting: list[TableFile] = field(default_factory=list)
    young: list[TableFile] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def look(lake: Lake) -> list[Scene]:
    """List the files below the tables' locations.

    :raises LakeUnavailableError: a location can't be listed, or lacks a table's metadata.
    """
    messages, segments, *deletions = lake.every_table()
    scenes = [_list_table(table) for table in (messages, segments)]
    for table in deletions:
        # A fault of the table of deletions doesn't keep gc from the other tables.
        with suppress(LakeUnavailableError):
            scenes.append(_list_table(table))
    return scenes


def _list_table(table: Table) -> Scene:
    place = Place.of(table)
    listing = list_place(place)
    if key_of(table.metadata_location) not in {file.key(place) for file in listing.files}:
        raise LakeUnavailableError(
            f"{table.location()}: expected the table's metadata {table.metadata_location} among its files, "
            "found it missing. Nothing was removed. Is the warehouse at the place that the catalog names? "
            "If another engine puts metadata there, remove the table's property write.metadata.path. With "
            "a SQL catalog, the next commit of storage-engine brings the metadata back."
        )
    return Scene(place, listing, tuple(in_trash(place, listing)), Evidence(place))


def decide(lake: Lake, scenes: Sequence[Scene], read_back: ReadBack, waits: Waits) -> list[TableDecision]:
    """Decide about the listed files from the present tables.

    :raises LakeUnavailableError: files that the tables need can't be read.
    """
    tables = {table.name()[-1]: table for table in lake.every_table()}
    twins = LiveTwins(*lake.tables(), read_back, tables.get(DELETIONS))
    decisions = []
    # If the table of deletions was created or dropped since, or can't be read, this pass leaves it out.
    for scene in (item for item in scenes if item.place.name in tables):
        name = scene.place.name
        with suppress(LakeUnavailableError) if name == DELETIONS else nullcontext():
            decisions.append(_decide(tables[name], scene, twins, waits))
    return decisions


def _decide(table: Table, scene: Scene, twins: LiveTwins, waits: Waits) -> TableDecision:
    place = scene.place
    decision = TableDecision(place, unknown=list(scene.listing.linked))
    needed = scene.evidence.needed(table)
    lost = needed - {file.key(place) for file in scene.listing.files}
    due = {
        file: listed
        for listed, file in scene.trash
        if listed.since_ns <= waits.due_ns or file.key(place) in lost
    }
    waiting = {file for _, file in scene.trash} - set(due)
    if not place.is_local:
        # A needed file is at its place already. It leaves the trash when its pass's list is removed.
        due = {file: listed for file, listed in due.items() if file.key(place) not in needed}
    decision.waiting.extend(waiting)
    in_place = [file for file in scene.listing.files if file not in waiting and file not in due]
    files = [file for file in in_place if file.key(place) not in needed] + list(due)
    candidates = [
        _candidate(table, scene, twins, waits, file, is_due=file in due, is_lost=file.key(place) in lost)
        for file in report_each(files, "Looking at files", "files")
    ]
    for file, candidate, verdict in zip(files, candidates, judge(candidates, needed), strict=True):
        if candidate.young:
            decision.young.append(file)
        elif verdict is None or candidate.kind is None:
            decision.unknown.append(file.path)
        else:
            listed = due.get(file)
            decided = DecidedFile(
                place.name,
                file.path,
                f"{place.location}/{file.found}",
                candidate.kind,
                file.size_bytes,
                file.modified_ns,
                verdict.reason,
                verdict.twins,
            )
            it = FoundFile(file, listed, decided)
            if verdict.standing is GarbageStanding.ORPHAN:
                decision.orphans.append(it)
            else:
                (decision.going if listed is None else decision.due).append(it)
    staying = {listed.moment for listed, file in scene.trash if file in waiting}
    if place.is_local:
        staying |= {item.listed.moment for item in decision.orphans if item.listed is not None}
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
    foreign = kind is GarbageKind.DATA_FILE and not is_own_name(file.inside.rpartition("/")[2])
    young = not is_due and file.modified_ns > (waits.foreign_ns if foreign else waits.settled_ns)
    contents = None
    if is_lost:
        contents = GarbageContents(keep=Text("the table needs it again: run ", Command("gc --undo")))
    elif kind in _METADATA_KINDS or (kind is not None and not young):
        contents = scene.evidence.of(table, twins, kind, file)
    return Candidate(file.key(scene.place), kind, contents, young)


@dataclass(frozen=True, slots=True)
class Collection:
    """Result of a pass of garbage collection.

    :param garbage: files that may be removed and are older than the grace.
    :param taken: files of ``garbage`` that were put into the trash now.
    :param moment: name of the pass, for putting its files back; "" if no file was taken.
    :param orphans: files that the tables don't need and that are kept.
    :param due: files that have been in the trash for long enough.
    :param deleted: files of ``due`` that were removed for good now.
    :param waiting_count: number of files that must stay in the trash for longer.
    :param young_count: number of files that the tables don't need and that are younger than the grace.
    :param unknown: files that are never taken, because neither we nor Iceberg give their names, or because
        of a symbolic link.
    """

    garbage: tuple[DecidedFile, ...] = ()
    taken: tuple[DecidedFile, ...] = ()
    moment: str = ""
    orphans: tuple[DecidedFile, ...] = ()
    due: tuple[DecidedFile, ...] = ()
    deleted: tuple[DecidedFile, ...] = ()
    waiting_count: int = 0
    waiting_bytes: int = 0
    young_count: int = 0
    unknown: tuple[str, ...] = ()


def collect(
    lake: Lake,
    *,
    grace_ms: int,
    delete: bool,
    trash_ms: int = TRASH_MS,
    known_heads: Mapping[str, Sequence[ChainHead]] | None = None,
) -> Collection:
    """Find garbage. With ``delete``, put it into the trash, and remove files that were there for long enough.

    :param grace_ms: how long a file that the tables don't need is left alone, in milliseconds since its last
        modification. It protects other engines' commits, and on object stores our own. Elsewhere, the lock
        protects ours.
    :param trash_ms: how long a file is in the trash before it is removed for good, in milliseconds; on object
        stores at least the grace.
    :param known_heads: for each store, links that its chain of receipts is known to have had.
    :raises BadInputError: the grace is under ``UNLOCKED_GRACE_MS``, and files are to be taken from an
        object store.
    :raises LakeIdentityError: the lake is an unpromoted copy, lacks a known receipt, or its acts form no
        single chain.
    :raises LakeUnavailableError: the lake can't be read, listed or written; it got its identity within the
        grace; or other processes commit all the time. Files that were taken before the error were garbage.
    """
    unlocked = [place.location for place in map(Place.of, lake.tables()) if not place.is_local]
    if delete and unlocked and grace_ms < UNLOCKED_GRACE_MS:
        raise BadInputError(
            f"{unlocked[0]}: expected a grace of at least {UNLOCKED_GRACE_MS // HOUR_MS} hours, found "
            f"{grace_ms / HOUR_MS:g}: on object stores no lock keeps a commit's files from being removed. "
            "Nothing was removed. Use a grace that is longer than any job that writes to the lake."
        )
    _check_heads(lake, known_heads or {})
    if delete:
        ready_to_write(lake)
    # If the acts can't be read, fail before the slow listing.
    held = read_held_stores(lake)
    scenes = look(lake)
    now = now_ns([scene.place for scene in scenes], may_guess=not delete)
    waits = Waits.at(now, grace_ms, max(trash_ms, grace_ms) if unlocked else trash_ms)
    read_back = ReadBack()
    decisions = decide(lake, scenes, read_back, waits)
    if not delete:
        names = expired_files(read_acts(lake))
        return _collection([_left_alone(item, held, names) for item in decisions])
    _check_taken_over(lake, now // 1_000_000, grace_ms)
    with nobody_commits(lake):
        # A process that records a hold waits for this lock, or has recorded the hold by now.
        held = read_held_stores(lake)
        names = expired_files(read_acts(lake))
        decisions = [_left_alone(item, held, names) for item in decide(lake, scenes, read_back, waits)]
        moment = new_moment(now)
        trashed, deleted = set[str](), set[str]()
        for decision in decisions:
            going = [(item.file, f"{item.decided.kind}: {item.decided.reason}") for item in decision.going]
            trashed |= {file.path for file in take(decision.place, moment, going)}
            due = [(item.listed, item.file) for item in decision.due if item.listed is not None]
            deleted |= {file.path for file in empty(decision.place, due)}
            for over in decision.over:
                forget(decision.place, over)
    return _collection(decisions, trashed, deleted, moment if trashed else "")


def _left_alone(decision: TableDecision, held: HeldStores, names: Set[str]) -> TableDecision:
    """Return a decision without the files that acts name. Files that a hold covers stay in the trash."""
    if decision.place.name not in (SEGMENTS, DELETIONS):
        # Files that acts name are removed by expiry, never by gc.
        going, orphans = (
            [it for it in part if it.file.inside not in names] for part in (decision.going, decision.orphans)
        )
        decision = replace(decision, going=going, orphans=orphans)
    held_files = [item for item in decision.due if held.holds_file(item.file.inside)]
    staying = {item.listed.moment for item in held_files if item.listed is not None}
    return replace(
        decision,
        due=[item for item in decision.due if not held.holds_file(item.file.inside)],
        over=[moment for moment in decision.over if moment not in staying],
        waiting=[*decision.waiting, *(item.file for item in held_files)],
    )


def _check_heads(lake: Lake, known_heads: Mapping[str, Sequence[ChainHead]]) -> None:
    segments = lake.segments()
    for store_id, heads in known_heads.items():
        with metadata_errors(segments.location(), "read receipts"):
            where = all_equal({"store_id": store_id})
            rows = segments.scan(row_filter=where, selected_fields=("sequence", "row_hash")).to_arrow()
        hashes = dict(zip(rows["sequence"].to_pylist(), rows["row_hash"].to_pylist(), strict=True))
        for head in heads:
            if head.sequence >= 0 and hashes.get(head.sequence) != head.row_hash:
                raise LakeIdentityError(
                    f"lake {lake.location}: expected receipt number {head.sequence} of store {store_id} "
                    f"with the recorded hash {head.row_hash}, found "
                    f"{hashes.get(head.sequence, 'none of that number')}: the catalog was put back from an "
                    "older copy, or another copy of it was used. Nothing was removed. Run ",
                    Command("lake rebuild"),
                    ", which brings the catalog up to what the warehouse holds.",
                )


def _check_taken_over(lake: Lake, now_ms: int, grace_ms: int) -> None:
    for table in lake.tables():
        age_ms = now_ms - int(table.properties.get(TAKEN_OVER_PROPERTY, "0"))
        if age_ms < grace_ms:
            raise LakeUnavailableError(
                f"{table.location()}: expected a lake that has had its identity for {grace_ms / HOUR_MS:g} "
                f"hours, found a lake taken over from an older version {age_ms / HOUR_MS:.1f} hours ago. "
                "Processes on other hosts may not know this yet. Nothing was removed. Run gc again later."
            )


def undo(config: LakeConfig, moment: str | None = None) -> PutBack:
    """Put back the files that one pass took, or all files that are still in the trash.

    The tables needn't be readable, because a catalog may name files that are in the trash.

    :param moment: name of the pass; None for all passes.
    :raises BadInputError: there is no such pass.
    :raises LakeUnavailableError: the lake can't be reached, or its files can't be moved.
    """
    results = [put_back(place, moment) for place in _places(config)]
    moments = sorted({name for result in results for name in result.moments})
    if moment is not None and not moments:
        raise BadInputError(
            f"lake {config.location}: expected a pass {moment} in the trash, found none of that name. "
            "Nothing was changed. Name a pass that gc --delete has printed, or no pass to put back all files."
        )
    return PutBack(
        tuple(moments),
        tuple(path for result in results for path in result.paths),
        tuple(path for result in results for path in result.occupied),
    )


def _places(config: LakeConfig) -> list[Place]:
    lake = connect(config)
    try:
        rows = lake.rows_table
    except LakeUnavailableError:
        # The table ``segments`` can't be read.
        with lake_errors(lake.location, "list the catalog's tables"):
            rows = rows_table_among(name[-1] for name in lake.catalog.list_tables(config.namespace))
    places = []
    for name in (rows, SEGMENTS, DELETIONS):
        try:
            table = lake.deletions() if name == DELETIONS else lake.load(name)
            if table is not None:
                places.append(Place.of(table))
        except LakeUnavailableError:
            warehouse = config.properties.get("warehouse", "")
            if "://" not in warehouse and not warehouse.startswith("/"):
                raise
            location = f"{warehouse.rstrip('/')}/{config.namespace}/{name}"
            places.append(Place.at(name, location, load_file_io(config.file_io_properties, location)))
    return places


def _collection(
    decisions: Sequence[TableDecision],
    taken: Set[str] = frozenset(),
    deleted: Set[str] = frozenset(),
    moment: str = "",
) -> Collection:
    garbage = _sorted(item.decided for of in decisions for item in of.going)
    due = _sorted(item.decided for of in decisions for item in of.due)
    waiting = [file for of in decisions for file in of.waiting]
    return Collection(
        garbage=garbage,
        taken=tuple(file for file in garbage if file.path in taken),
        moment=moment,
        orphans=_sorted(item.decided for of in decisions for item in of.orphans),
        due=due,
        deleted=tuple(file for file in due if file.path in deleted),
        waiting_count=len(waiting),
        waiting_bytes=sum(file.size_bytes for file in waiting),
        young_count=sum(len(item.young) for item in decisions),
        unknown=tuple(sorted(path for item in decisions for path in item.unknown)),
    )


def _sorted(files: Iterable[DecidedFile]) -> tuple[DecidedFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path))
