"""Rebuilding: making or repairing the catalog of a warehouse that has a lake.

The catalog may be lost, or older than the warehouse, or two copies of it may both have been used. Marks and
known receipts decide which state of the lake counts. Segments that only other states have are proven again
from their data files, and get new receipts at the end of the chain. No file is removed.

Orphans are data files that no receipt in force names. A data file's path has the store, lineage, log, offset
and first digits of the segment's SHA-256. The file is the segment only if the SHA-256 of its encoded rows
begins with these digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO, load_file_io

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.long_work import report_work
from storage_engine.exceptions import (
    BadInputError,
    LakeConflictError,
    LakeIdentityError,
    LakeMissingError,
    LakeUnavailableError,
    ProofError,
)
from storage_engine.lake.archive.commit import SharedFileError, SharedWithOthersError, commit_segments
from storage_engine.lake.catalog.catalog import (
    CHANGE_LOCK,
    Lake,
    broker_in,
    connect,
    open_lake,
    read_pointers,
    repoint,
    rows_table_of,
)
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import COPY_OF_PROPERTY, Mark, known_mark_at, knows, sqlite_identity
from storage_engine.lake.catalog.own_tables import own_place
from storage_engine.lake.catalog.place import is_catalog_there, sqlite_file_of
from storage_engine.lake.catalog.placed_table import PlacedTable, live_files, rows_of, with_own_place
from storage_engine.lake.catalog.tables import (
    DELETIONS,
    IDENTITY_COLUMNS,
    SEGMENTS,
    check_version_of,
    has_trees,
)
from storage_engine.lake.catalog.writing import (
    give_identity,
    may_have_landed,
    nobody_commits_at,
    open_intent,
    read_intent,
)
from storage_engine.lake.durable_io import sha256_of_file
from storage_engine.lake.file.data_file import (
    RowCounter,
    SegmentPart,
    SegmentRows,
    copy_rows,
    opened_file,
    segment_bytes,
    segments_in,
)
from storage_engine.lake.file.jobs import (
    ProvenSegment,
    data_file_name,
    is_shared_name,
    new_attempt,
    slot_prefix,
    split_data_file_name,
)
from storage_engine.lake.file.segment_tree import tree_of_file
from storage_engine.lake.file.table_entries import packed_facts
from storage_engine.lake.gc.segment_expiry import finish_acts
from storage_engine.lake.move.making import make_catalog
from storage_engine.lake.move.moving import (
    all_receipts,
    check_other_catalog,
    check_same_lake,
    finish,
    is_usable,
    lake_id_of_tables,
    move_tables,
    own_location,
    placed_table,
    placed_tables,
)
from storage_engine.lake.soundness.chain import row_fault
from storage_engine.lake.soundness.metadata_ends import (
    Chosen,
    TableState,
    choose,
    find_metadata,
    of_one_table,
)
from storage_engine.lake.soundness.receipts import by_store, current, is_relative, receipts_of_files
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.lake.storage.small_files import list_files
from storage_engine.model.broker.codec import offsets_count_bytes
from storage_engine.model.proof.receipt import (
    ChainHead,
    Receipt,
    SegmentIdentity,
    proof_version_of,
    row_groups_text,
)
from storage_engine.model.store import grouped

_PARTITION = "store_id="


@dataclass(frozen=True, slots=True)
class Orphan:
    """A segment in a data file that no receipt in force names.

    :param slot: the result of :func:`~storage_engine.lake.file.jobs.slot_prefix` for the segment.
    :param digest: first 16 digits of the segment's SHA-256 in the file's name; "" for a shared file.
    :param part: in a shared file, the segment and its row groups.
    """

    location: str
    store_id: str
    slot: str
    digest: str
    part: tuple[SegmentIdentity, range] | None = None


@dataclass(frozen=True, slots=True)
class Orphans:
    """Orphans of a lake.

    :param found: segments without a sound receipt. Expired segments aren't among them.
    :param conflicting: data files of segments with other bytes than a receipt in force for the same offset.
    :param foreign: Parquet files that the table lacks and whose names have another program's form. Shared
        files that can't be read are included.
    """

    found: tuple[Orphan, ...]
    conflicting: tuple[str, ...]
    foreign: tuple[str, ...]


def find_orphans(messages: PlacedTable, rows: Iterable[Receipt]) -> Orphans:
    """Compare the data files below the table of rows with those that receipts name.

    :param messages: the table of rows, in the state that counts.
    :param rows: all receipts of that state.
    :raises LakeUnavailableError: the files can't be listed, or the manifests can't be read.
    """
    live = live_files(messages)
    listed = list_files(messages.io, f"{messages.location}/data")
    present = {f"{messages.location}/data/{file.inside}" for file in listed}
    live_names = {split_data_file_name(location.rpartition("/")[2]) for location in live}
    counting: dict[tuple[str, str], str] = {}
    named: dict[str, int] = {}
    for store, of_store in by_store(rows).items():
        for row in current(of_store):
            files = {_present_location(messages, file.location) for file in row.proven_files}
            row_name = slot_prefix(row.identity), row.sha256[:16]
            # Between the two commits of an expiry of some streams, the table still has the old file.
            is_replaced = not row.is_whole and row_name in live_names
            if not row.has_rows or is_replaced or (files <= live.keys() and files <= present):
                counting[store, row_name[0]] = row_name[1]
                if row.row_groups is not None and row.moved_to is None:
                    (at,) = files
                    named[at] = named.get(at, 0) + row.row_count
    orphans: list[Orphan] = []
    conflicting, foreign = [], []
    for file in listed:
        folder, _, name = file.inside.rpartition("/")
        location = f"{messages.location}/data/{file.inside}"
        slot, digest = split_data_file_name(name)
        if is_shared_name(name) and folder.startswith(_PARTITION):
            if location not in live or live[location].record_count != named.get(location):
                try:
                    orphans += _find_shared(messages, location, folder.removeprefix(_PARTITION), counting)
                except ProofError:
                    # Its segments can't be read. ``verify`` reports those that have receipts.
                    foreign.append(location)
            continue
        if not slot:
            if name.endswith(".parquet") and location not in live:
                foreign.append(location)
            continue
        store = folder.removeprefix(_PARTITION)
        proven = counting.get((store, slot))
        if proven is None:
            orphans.append(Orphan(location, store, slot, digest))
        elif proven != digest:
            conflicting.append(location)
    # Of several files of one segment, the file that the table has comes first.
    orphans.sort(key=lambda o: (o.store_id, o.slot, o.digest, o.location not in live, o.location))
    return Orphans(tuple(orphans), tuple(sorted(conflicting)), tuple(sorted(foreign)))


def _find_shared(
    messages: PlacedTable, location: str, store: str, counting: Mapping[tuple[str, str], str]
) -> Iterator[Orphan]:
    """Yield a shared file's segments that have no sound receipt."""
    for identity, groups in segments_in(messages.io, location).items():
        slot = slot_prefix(identity)
        if identity.store_id == store and (store, slot) not in counting:
            yield Orphan(location, store, slot, "", (identity, groups))


def _present_location(messages: PlacedTable, name: str) -> str:
    inside = name if is_relative(name) else messages.inside(name)
    return name if inside is None else f"{messages.location}/{inside}"


def prove_orphan(
    messages: PlacedTable,
    orphan: Orphan,
    earlier: Mapping[SegmentIdentity, Receipt],
    *,
    trees: bool,
    beside: ProvenSegment | None = None,
) -> ProvenSegment:
    """Prove that a file is the segment in its name, or that a shared file has the expected segment.

    :param earlier: sound receipts of all states of the lake, by segment. They describe the broker's files.
    :param beside: another segment that was just proven in the same file, so that the file isn't hashed again.
    :raises ProofError: the file isn't the segment, or neither the file nor a receipt has the segment's end
        offset.
    :raises LakeUnavailableError: the file can't be read.
    """
    broker = broker_in(messages.metadata.properties)
    codec = find_broker(broker).codec
    counter, digest = RowCounter(codec.columns), hashlib.sha256()
    with opened_file(messages.io, orphan.location) as (stored, parquet):
        rows: SegmentRows = parquet
        if orphan.part is not None:
            rows = SegmentPart(parquet, *orphan.part, orphan.location)
        lineage, log, base_offset, end = _read_identity(orphan, rows)
        origin = codec.origin(base_offset)
        size_bytes = end - origin
        leaves = tree_of_file(parquet, codec.columns, orphan.location, trees=trees)
        for _, chunk in segment_bytes(rows, codec, origin, size_bytes, orphan.location, counter, tree=leaves):
            digest.update(chunk)
        identity = SegmentIdentity(orphan.store_id, lineage, log, base_offset, digest.hexdigest())
        if slot_prefix(identity) != orphan.slot or not identity.sha256.startswith(orphan.digest):
            raise ProofError(
                f"{orphan.location}: expected rows of the segment in its name, found those of "
                f"{slot_prefix(identity)}{identity.sha256[:16]}. Nothing was committed; the file is left "
                "alone."
            )
        tree = None if leaves is None else leaves.tree(base_offset, size_bytes, identity.sha256)
        facts = packed_facts(parquet.metadata, codec) if beside is None else beside.manifest_facts
        stored_sha256 = sha256_of_file(stored) if beside is None else beside.data_file_sha256
        stored_bytes = stored.size()
    receipt = earlier.get(identity)
    if receipt is None and not offsets_count_bytes(codec):
        raise ProofError(
            f"{orphan.location}: expected a receipt with the end of its segment in some state of the lake, "
            "because its broker's offsets don't count bytes; found none. Nothing was committed; the file is "
            "left alone. Archive the segment again while it is on the broker's disk."
        )
    return ProvenSegment(
        store_id=orphan.store_id,
        lineage=lineage,
        log=log,
        base_offset=base_offset,
        size_bytes=size_bytes,
        sha256=identity.sha256,
        broker=broker,
        store_root=receipt.store_root if receipt else "",
        **asdict(counter.stats()),
        # Without a receipt, the broker's file isn't known, and a release hashes the file that it finds.
        source_path=receipt.source_path if receipt else "",
        source_device=receipt.source_device if receipt else 0,
        source_inode=receipt.source_inode if receipt else 0,
        source_mtime_ns=receipt.source_mtime_ns if receipt else 0,
        source_ctime_ns=receipt.source_ctime_ns if receipt else 0,
        data_file=orphan.location,
        data_file_bytes=stored_bytes,
        data_file_sha256=stored_sha256,
        proof_version=proof_version_of(None if tree is None else tree.root),
        proven_at_ms=clock_ms(),
        staged_file=orphan.location,
        manifest_facts=facts,
        store_name=receipt.store_name if receipt else None,
        store_host=receipt.store_host if receipt else None,
        log_id=receipt.log_id if receipt else None,
        evidence=receipt.evidence if receipt else None,
        end_offset=receipt.end_offset if receipt else None,
        files=receipt.files if receipt else None,
        root=None if tree is None else tree.root,
        streams=None if tree is None else tree.streams,
        row_groups=None if orphan.part is None else row_groups_text(orphan.part[1]),
    )


def take_out_orphan(messages: PlacedTable, orphan: Orphan, proven: ProvenSegment) -> Orphan:
    """Copy a segment of a shared file into a file of its own. It isn't proven yet, and nothing refers to it.

    :raises LakeUnavailableError: the lake can't be read or written.
    """
    assert orphan.part is not None
    part, old = orphan.part, orphan.location
    location = f"{old.rpartition('/')[0]}/{data_file_name(proven.identity, new_attempt())}"
    columns = find_broker(proven.broker).codec.columns
    copy_rows(messages.io, old, location, columns, lambda parquet: SegmentPart(parquet, *part, old))
    return Orphan(location, orphan.store_id, orphan.slot, proven.sha256[:16])


def _read_identity(orphan: Orphan, parquet: SegmentRows) -> tuple[int, str, int, int]:
    """Return lineage, log, base offset and end by the rows. Raise ProofError for several segments."""
    columns = [*IDENTITY_COLUMNS.names, "physical_offset", "size"]
    rows = parquet.read_row_groups(list(range(parquet.num_row_groups)), columns=columns)
    values: list[list[Any]] = [pc.unique(rows[name]).to_pylist() for name in IDENTITY_COLUMNS.names]
    if any(len(column) != 1 for column in values) or values[0] != [orphan.store_id]:
        raise ProofError(
            f"{orphan.location}: expected rows of one segment of store {orphan.store_id}, found {values}. "
            "Nothing was committed; the file is left alone."
        )
    (_, (lineage,), (log,), (base_offset,)) = values
    ends = pc.add(rows["physical_offset"], rows["size"].cast(pa.int64()))
    end: Any = pc.max(ends).as_py()
    return int(lineage), str(log), int(base_offset), int(end)


_TOGETHER = 16
"""Number of segments that are committed at a time. After a kill, at most so many must be proven again."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Result of a rebuild, done or planned.

    :param copy_of: UUID of the original if this is a copy; otherwise None. No segment is added to a copy.
    :param other_catalog: the catalog that this one replaced, or None.
    :param brought: data files of the segments that were proven again, or that a dry run would try.
    :param refused: why other data files weren't added, with their names.
    :param conflicting: as in :class:`Orphans`.
    :param foreign: as in :class:`Orphans`.
    :param missing: data files of the table that don't exist. ``verify`` names their segments.
    :param unknown_heads: stores of which the lake lacks a known receipt.
    """

    location: str
    dry_run: bool
    lake_id: str | None
    copy_of: str | None
    other_catalog: str | None
    tables: tuple[Chosen, ...]
    brought: tuple[str, ...]
    refused: tuple[str, ...]
    conflicting: tuple[str, ...]
    foreign: tuple[str, ...]
    missing: tuple[str, ...]
    unknown_heads: tuple[str, ...]


def rebuild(
    config: LakeConfig,
    known_heads: Mapping[str, ChainHead],
    *,
    dry_run: bool = False,
    take_over: bool = False,
) -> Rebuilt:
    """Make a lake's catalog name the lake's right state, and add segments that only other states have.

    It is safe to kill at any instant and to run again.

    :param known_heads: for each store, a receipt that its chain is known to have had.
    :param take_over: a person has decided that another catalog of the same files is not to be used any more.
    :raises LakeMissingError: there is no lake in the warehouse.
    :raises LakeIdentityError: another catalog is in use, or the files belong to several lakes.
    :raises LakeUnavailableError: the lake can't be read or written.
    """
    work = _Rebuild(config, known_heads)
    work.look(take_over=take_over)
    if dry_run:
        locations = dict.fromkeys(orphan.location for orphan in work.orphans.found)
        return work.result(dry_run=True, brought=list(locations))
    with CHANGE_LOCK, nobody_commits_at(rows_of(work.tables).location):
        work.look(take_over=take_over)
        lake = work.register()
    if work.copy_of is not None:
        return work.result(dry_run=False)
    if has_trees(work.tables[SEGMENTS].metadata.properties):
        finish_acts(lake, rebuilt=True)
    brought, refused = _bring_in(lake, work)
    return work.result(dry_run=False, brought=brought, refused=refused)


class _Rebuild:
    """One rebuild: the right state of the lake in a warehouse."""

    def __init__(self, config: LakeConfig, known_heads: Mapping[str, ChainHead]) -> None:
        self._config = config
        self._known_heads = known_heads
        self._pointers: dict[str, str] = {}
        self._chosen: tuple[Chosen, ...] = ()
        self._other: str | None = None
        self._landed = False
        self._receipts_by_state: dict[str, list[Receipt] | None] = {}
        self.tables: dict[str, PlacedTable] = {}
        self.rows: list[Receipt] = []
        self.orphans = Orphans((), (), ())

    @property
    def copy_of(self) -> str | None:
        return self.tables[SEGMENTS].metadata.properties.get(COPY_OF_PROPERTY)

    def look(self, *, take_over: bool) -> None:
        """Find out the lake's right state, without writing."""
        self._pointers = read_pointers(connect(self._config)) if is_catalog_there(self._config) else {}
        self.tables, skip = {}, self._list_unfinished()
        segments = self._state_of(SEGMENTS, skip, self._count_known_receipts)
        self.tables[SEGMENTS] = segments.chosen
        self.rows = self._read_receipts(segments.chosen) or []
        # Only a property of ``segments`` tells the name of the table of rows.
        messages = self._state_of(
            rows_table_of(segments.chosen.metadata.properties), skip, self._count_proven_files
        )
        self.tables[messages.chosen.name] = messages.chosen
        states = [segments, messages]
        with suppress(LakeMissingError, LakeUnavailableError, BadInputError):
            deletions = self._state_of(DELETIONS, skip, _count_rows)
            if is_usable(deletions.chosen, self.tables):
                self.tables[DELETIONS] = deletions.chosen
                states.append(deletions)
        check_same_lake(self.tables)
        for table in self.tables.values():
            check_version_of(table.location, table.metadata.properties)
        marks = [state.mark for state in states[:2] if state.mark is not None]
        self._other = self._check_catalogs(marks, take_over)
        self._chosen = tuple(state.told(self._pointers.get(state.chosen.name)) for state in states)
        self.orphans = find_orphans(rows_of(self.tables), self.rows)

    def _state_of(
        self, name: str, skip: Sequence[str], worth: Callable[[PlacedTable], int | None]
    ) -> TableState:
        """Return a table's right state by the warehouse's files. ``worth`` is higher for a better state."""
        location = own_location(self._config, name, self._pointers.get(name))
        file_io = load_file_io(self._config.file_io_properties, location)
        files = find_metadata(file_io, name, location, skip)
        files.readable.update(self._find_named_elsewhere(name, location, file_io))
        if not files.readable:
            raise LakeMissingError(
                f"{location}: expected the metadata of a lake's table {name}, found none that can be "
                "read. Nothing was created. Mount the warehouse, or bring its metadata directory back "
                "from a copy; a new lake is made by ",
                Command("init-lake"),
                ".",
            )
        mark = known_mark_at(file_io, location)
        pointer = _file_name(self._pointers.get(name))
        chosen = choose(of_one_table(files, mark, pointer), worth, mark, pointer)
        place = own_place(self._config, self._catalog_id(), name, chosen.metadata, file_io)
        chosen = with_own_place(chosen, place)
        files.readable[chosen.file_name] = chosen
        return TableState(files, mark, chosen)

    def _find_named_elsewhere(self, name: str, location: str, file_io: FileIO) -> dict[str, PlacedTable]:
        """Return the catalog's metadata by file name, if another engine has put it at another place."""
        pointer = self._pointers.get(name)
        if pointer is None or pointer.startswith(f"{location}/metadata/"):
            return {}
        try:
            table = placed_table(connect(self._config), name, pointer)
        except LakeUnavailableError:
            # It is lost, or is at the place of a copy's original. The files here count.
            return {}
        return {table.file_name: table}

    def register(self) -> Lake:
        """Make catalog and marks name the chosen state."""
        lake = make_catalog(self._config, lake_id_of_tables(self.tables))
        segments = self.tables[SEGMENTS]
        intent = read_intent(segments.io, segments.location)
        if any(table.is_elsewhere for table in self.tables.values()):
            move_tables(lake, self.tables, self._pointers, self.rows, "rebuild")
        else:
            changes = {
                name: (self._pointers.get(name), table.metadata_location)
                for name, table in self.tables.items()
                if self._pointers.get(name) != table.metadata_location
            }
            if changes:
                repoint(lake, changes)
            if lake_id_of_tables(self.tables) is None:
                give_identity(lake)
            finish(lake, placed_tables(lake), intent)
        self.tables = placed_tables(lake)
        return open_lake(self._config)

    def earlier_receipts(self) -> list[Receipt]:
        """Return sound receipts of all states, also superseded ones. The receipts that count come last."""
        segments = self.tables[SEGMENTS]
        live = set(live_files(segments))
        rows: list[Receipt] = []
        for file in list_files(segments.io, f"{segments.location}/data"):
            location = f"{segments.location}/data/{file.inside}"
            if file.inside.endswith(".parquet") and location not in live:
                try:
                    rows += receipts_of_files(segments.io, [location])
                except LakeUnavailableError:
                    # A killed writer or a fault left the file incomplete. Its receipts aren't necessary.
                    continue
        return [row for row in (*rows, *self.rows) if not row_fault(row)]

    def result(self, *, dry_run: bool, brought: Sequence[str] = (), refused: Sequence[str] = ()) -> Rebuilt:
        messages = rows_of(self.tables)
        files = {f"{messages.location}/{file.inside}" for file in list_files(messages.io, messages.location)}
        row_keys = {(row.store_id, row.sequence, row.row_hash) for row in self.rows}
        return Rebuilt(
            self._config.location,
            dry_run,
            lake_id_of_tables(self.tables),
            self.copy_of,
            self._other,
            self._chosen,
            tuple(brought),
            tuple(refused),
            self.orphans.conflicting,
            self.orphans.foreign,
            # ``verify`` reports missing files outside of the table's location.
            tuple(sorted(file for file in set(live_files(messages)) - files if messages.inside(file))),
            tuple(
                sorted(
                    store
                    for store, head in self._known_heads.items()
                    if head.sequence >= 0 and (store, head.sequence, head.row_hash) not in row_keys
                )
            ),
        )

    def _list_unfinished(self) -> tuple[str, ...]:
        """Return the UUIDs of a killed command's attempts; () if the catalog names metadata of an attempt.

        :raises LakeIdentityError: the lake is a copy that was never completed.
        """
        location = own_location(self._config, SEGMENTS, self._pointers.get(SEGMENTS))
        file_io = load_file_io(self._config.file_io_properties, location)
        intent = read_intent(file_io, location)
        pointer = self._pointers.get(SEGMENTS) or ""
        self._landed = (
            intent is not None
            and pointer.startswith(f"{location}/")
            and may_have_landed(file_io, location, intent, pointer.rpartition("/")[2])
        )
        if intent is None or self._landed or intent != open_intent(file_io, location):
            return ()
        if intent.command == "copy":
            raise LakeIdentityError(
                f"{location}: expected a lake, found an unfinished copy of lake {intent.copy_of}. Nothing "
                "was changed. To finish the copy, run ",
                Command("lake copy"),
                " again, with this directory as its target.",
            )
        return intent.attempts

    def _check_catalogs(self, marks: Sequence[Mark], take_over: bool) -> str | None:
        for name, table in self.tables.items():
            if (pointer := self._pointers.get(name)) is None or name == DELETIONS:
                continue
            inside = own_location(self._config, name, pointer) == pointer.rpartition("/metadata/")[0]
            if not inside and not knows(table.metadata, table.file_name, _file_name(pointer) or ""):
                raise LakeIdentityError(
                    f"lake {self._config.location}: expected a catalog of the lake at {table.location}, "
                    f"found one that names {pointer} for {name}: catalog and warehouse are of two lakes. "
                    "Nothing was changed. Bring together the catalog and the warehouse of one lake; if "
                    "this warehouse's catalog is lost, move a SQLite catalog's file away, or name an empty "
                    "database, and run ",
                    Command("lake rebuild"),
                    ".",
                )
        if self._landed or any(table.is_elsewhere for table in self.tables.values()):
            # Marks of moved files are of their former place, and don't tell of a second catalog here.
            return None
        return check_other_catalog(self._config.location, self._catalog_id(), marks, take_over=take_over)

    def _catalog_id(self) -> str:
        file = sqlite_file_of(self._config)
        return connect(self._config).catalog_id if file is None else sqlite_identity(self._config, str(file))

    def _read_receipts(self, segments: PlacedTable) -> list[Receipt] | None:
        """Return the receipts of a state, or None if they can't be read."""
        if segments.file_name not in self._receipts_by_state:
            try:
                with metadata_errors(segments.metadata_location, "read receipts"):
                    self._receipts_by_state[segments.file_name] = all_receipts(segments)
            except LakeUnavailableError:
                self._receipts_by_state[segments.file_name] = None
        return self._receipts_by_state[segments.file_name]

    def _count_known_receipts(self, segments: PlacedTable) -> int | None:
        """Return how many of the known receipts a state has, or None if it can't be read."""
        rows = self._read_receipts(segments)
        if rows is None:
            return None
        row_keys = {(row.store_id, row.sequence, row.row_hash) for row in rows}
        heads = self._known_heads.items()
        return sum((store, head.sequence, head.row_hash) in row_keys for store, head in heads)

    def _count_proven_files(self, messages: PlacedTable) -> int | None:
        """Return how many proven files a state has, or None if the state can't be read."""
        try:
            live = {location.removeprefix(f"{messages.location}/") for location in live_files(messages)}
        except LakeUnavailableError:
            return None
        named = {file.location for row in self.rows for file in row.proven_files}
        return sum((messages.inside(name) or name) in live for name in named)


def _count_rows(deletions: PlacedTable) -> int | None:
    with suppress(LakeUnavailableError):
        return sum(file.record_count for file in live_files(deletions).values())
    return None


def _sort_likeliest_first(orphans: Iterable[Orphan], earlier: Iterable[Receipt]) -> list[Orphan]:
    # Of two contents for one offset, one that had a receipt is likelier to be the broker's.
    digests = {(row.store_id, row.sha256[:16]) for row in earlier}
    return sorted(orphans, key=lambda o: (o.store_id, o.slot, (o.store_id, o.digest) not in digests))


def _bring_in(lake: Lake, work: _Rebuild) -> tuple[list[str], list[str]]:
    """Prove orphans and commit them. Return the added data files, and why others weren't added."""
    every_receipt = work.earlier_receipts()
    earlier = {row.identity: row for row in every_receipt}
    expired = {
        (row.store_id, slot_prefix(row.identity), row.sha256[:16]): row
        for row in current(every_receipt)
        if not row.has_rows
    }
    orphans = _sort_likeliest_first(work.orphans.found, every_receipt)
    brought, refused = list[str](), list[str]()
    done: set[tuple[str, str, str]] = set()
    waiting: list[ProvenSegment] = []
    messages = rows_of(work.tables)
    trees = has_trees(work.tables[SEGMENTS].metadata.properties)

    def commit() -> None:
        try:
            commit_segments(lake, waiting)
            brought.extend(segment.data_file for segment in waiting)
        except (LakeConflictError, SharedWithOthersError):
            for segment in waiting:
                try:
                    commit_segments(lake, [segment])
                    brought.append(segment.data_file)
                except (LakeConflictError, SharedWithOthersError) as error:
                    refused.append(Text(error))
        waiting.clear()

    def bring_in_shared(location: str, of_file: Sequence[Orphan]) -> None:
        """Add a shared file. If the lake has some of its segments, give the others files of their own."""
        proven: list[ProvenSegment] = []
        for orphan in of_file:
            try:
                beside = proven[-1] if proven else None
                segment = prove_orphan(messages, orphan, earlier, trees=trees, beside=beside)
            except ProofError as error:
                refused.append(Text(error))
                continue
            key = (orphan.store_id, orphan.slot, segment.sha256[:16])
            if key in expired:
                refused.append(_ended_text(location, expired[key]))
            elif key not in done:
                done.add(key)
                proven.append(segment)
        try:
            commit_segments(lake, proven)
            brought.extend([location] if proven else ())
        except (SharedFileError, LakeConflictError):
            parts = {orphan.slot: orphan for orphan in of_file}
            for segment in proven:
                single = take_out_orphan(messages, parts[slot_prefix(segment.identity)], segment)
                waiting.append(prove_orphan(messages, single, earlier, trees=trees))
                commit()

    sizes = _sizes(messages, orphans)
    shared = grouped((it for it in orphans if it.part is not None), lambda orphan: orphan.location)
    with report_work("Proving", sum(sizes.values())) as advance:
        # Shared files come first, because they may be in the table already, without receipts.
        for location, of_file in shared.items():
            bring_in_shared(location, of_file)
            advance(sizes[location])
        for orphan in (it for it in orphans if it.part is None):
            key = (orphan.store_id, orphan.slot, orphan.digest)
            if key in expired:
                refused.append(_ended_text(orphan.location, expired[key]))
            elif key not in done:
                try:
                    waiting.append(prove_orphan(messages, orphan, earlier, trees=trees))
                    done.add(key)
                except ProofError as error:
                    refused.append(Text(error))
            advance(sizes[orphan.location])
            if len(waiting) == _TOGETHER:
                commit()
        commit()
    return brought, refused


def _ended_text(location: str, row: Receipt) -> str:
    return (
        f"{location}: expected a segment that the lake should have, found a segment whose receipt says: "
        f"{row.end_text}. Nothing was committed; the file is left alone."
    )


def _sizes(messages: PlacedTable, orphans: Sequence[Orphan]) -> dict[str, int]:
    listed = list_files(messages.io, messages.location)
    sizes = {f"{messages.location}/{file.inside}": file.size_bytes for file in listed}
    return {orphan.location: sizes.get(orphan.location, 0) for orphan in orphans}


def _file_name(location: str | None) -> str | None:
    return None if location is None else location.rpartition("/")[2]
