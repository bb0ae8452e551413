"""Rebuilding: making or repairing the catalog of a warehouse that has a lake.

The catalog may be lost, or older than the warehouse, or two copies of it may both have been used. Marks and
known receipts decide which state of the lake counts. Segments that only other states have are proven again
from their data files, and get new receipts at the end of the chain. No file is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.io import FileIO, load_file_io

from storage_engine.commands import Command, Text
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
from storage_engine.lake.catalog.tables import DELETIONS, SEGMENTS, check_version_of, has_trees
from storage_engine.lake.catalog.writing import (
    give_identity,
    may_have_landed,
    nobody_commits_at,
    open_intent,
    read_intent,
)
from storage_engine.lake.file.jobs import ProvenSegment, slot_prefix
from storage_engine.lake.gc.orphans import Orphan, Orphans, find_orphans, prove_orphan, take_out_orphan
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
from storage_engine.lake.soundness.receipts import current, receipts_of_files
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.lake.storage.small_files import list_files
from storage_engine.model.proof.receipt import ChainHead, Receipt
from storage_engine.model.store import grouped

_TOGETHER = 16
"""Number of segments that are committed at a time. After a kill, at most so many must be proven again."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Result of a rebuild, done or planned.

    :param copy_of: UUID of the original, if this is a copy, to which no segment is added; otherwise None.
    :param other_catalog: the catalog that this one replaced, or None.
    :param brought: data files of the segments that were proven again, or that a dry run would try.
    :param refused: why other data files weren't added, with their names.
    :param conflicting: data files with other bytes than a receipt proves for the same offset.
    :param foreign: data files of another program that the table doesn't have.
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
        """Return the UUIDs of a killed command's attempts, if the catalog names none of them.

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
        """Return how many files of receipts a state has, or None if it can't be read."""
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
        """Add a shared file. If the lake has some of its segments, add each other segment in its own file."""
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
