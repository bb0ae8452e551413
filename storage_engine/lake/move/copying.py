"""Copying a lake: the copy has its own UUID, catalog and names, and can be verified without the original.

Data files are copied first. Each is compared with its receipt and synced to disk before it gets its final
name. Then the metadata is written, as in a relocation, and then the catalog's rows. The copy is read-only. If
the original is lost, a person can promote the copy to a lake of its own. If the lake is copied again,
only new data files are copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import fsync_path, unlink
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.long_work import report_work
from storage_engine.exceptions import BadInputError, LakeIdentityError, LakeUnavailableError
from storage_engine.lake.acts.act_files import copy_acts, lacks_acts
from storage_engine.lake.archive.table_writer import Target, write_table
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake, connect, open_lake, read_pointers, repoint
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import (
    ANCESTORS_PROPERTY,
    COPIED_HEADS_PROPERTY,
    COPY_OF_PROPERTY,
    LAKE_ID_PROPERTY,
    PROMOTED_PROPERTY,
    ancestors_of,
    is_below,
    lake_id_of,
)
from storage_engine.lake.catalog.nesting import refuse_nested
from storage_engine.lake.catalog.place import is_catalog_there, own_directory, sqlite_file_of
from storage_engine.lake.catalog.placed_table import PlacedTable, live_files
from storage_engine.lake.catalog.tables import DELETIONS, SEGMENTS
from storage_engine.lake.catalog.writing import (
    Intent,
    begin,
    committing,
    mark_commits,
    mark_deletions,
    nobody_commits,
    nobody_commits_at,
    open_intent,
    read_intent,
)
from storage_engine.lake.durable_io import local_path, open_data_file, sha256_of_file
from storage_engine.lake.file.data_file import segments_in
from storage_engine.lake.file.jobs import file_name, is_own_name, slot_prefix, split_data_file_name
from storage_engine.lake.file.staging import PARTIAL_SUFFIX, staged_location
from storage_engine.lake.move.making import check_empty, make_catalog, refuse_around
from storage_engine.lake.move.moving import (
    Tables,
    all_receipts,
    finish,
    has_landed,
    heads_text,
    lake_id_of_tables,
    own_location,
    placed_tables,
)
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import by_store, current, file_fault, proven_hashes
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.lake.storage.small_files import delete_small_file, list_files
from storage_engine.model.proof.receipt import PARTIAL, ChainHead, Receipt


@dataclass(frozen=True, slots=True)
class Promotion:
    """The record of a copy's promotion.

    :param copy_of: UUID of the original.
    :param lake_id: the copy's own UUID.
    """

    lake_id: str
    copy_of: str
    person: str
    reason: str
    at_ms: int


def promote(lake: Lake, person: str, reason: str) -> Promotion:
    """Make a copy writable, and record who decided that, and why. The UUID stays.

    It is safe to kill at any instant and to run again. A promoted copy isn't changed.

    :raises BadInputError: the lake is no copy and never was one; or person or reason is empty.
    :raises LakeUnavailableError: the lake can't be written.
    """
    if not person.strip() or not reason.strip():
        raise BadInputError(
            "lake promote: expected a person and a reason, found an empty one. Nothing was changed. Give "
            "both, because the lake records them."
        )
    with CHANGE_LOCK, nobody_commits(lake):
        messages, segments = lake.tables()
        text = segments.properties.get(PROMOTED_PROPERTY) or messages.properties.get(PROMOTED_PROPERTY)
        original = segments.properties.get(COPY_OF_PROPERTY)
        if original is None and text is None:
            raise BadInputError(
                f"lake {lake.location}: expected a copy, found a lake that isn't one. Nothing was changed. "
                "The lake can be written without a promotion."
            )
        if text is None or (original is not None and PROMOTED_PROPERTY not in messages.properties):
            lake_id = lake_id_of(segments)
            assert lake_id is not None
            assert original is not None
            text = json.dumps(to_jsonable(Promotion(lake_id, original, person, reason, clock_ms())))
        deletions = [table for table in lake.every_table() if table.name()[-1] == DELETIONS]
        for table in deletions:
            with suppress(LakeUnavailableError):
                _promote(lake, table, text)
                mark_deletions(lake)
        # Each write checks the property of these two tables, so that they are promoted last.
        for table in (messages, segments):
            _promote(lake, table, text)
        mark_commits(lake)
        return from_jsonable(Promotion, json.loads(text), lake.location)


def _promote(lake: Lake, table: Table, text: str) -> None:
    if COPY_OF_PROPERTY in table.properties:
        with lake_errors(lake.location, "promote the copy"), table.transaction() as change:
            # A journal's known receipts of these lakes are also expected in the promoted copy.
            ancestors = list(dict.fromkeys((*ancestors_of(table), json.loads(text)["copy_of"])))
            change.remove_properties(COPY_OF_PROPERTY)
            change.set_properties({PROMOTED_PROPERTY: text, ANCESTORS_PROPERTY: json.dumps(ancestors)})


_BLOCK_BYTES = 1 << 20


def copy_file(
    source_io: FileIO,
    source: str,
    target_io: FileIO,
    target: str,
    size_bytes: int,
    sha256: str | None,
    advance: Callable[[int], None],
) -> bool:
    """Copy a file. If the target exists already and is equal, it stays.

    :param size_bytes: the file's size in the table.
    :param sha256: the file's hash in hex, from its receipt; None if no receipt has it.
    :return: whether the file was copied now.
    :raises LakeUnavailableError: source or target can't be read or written, or the source is damaged.
    """
    with lake_errors(target, "look for a data file"):
        exists = target_io.new_input(target).exists()
    final = local_path(target)
    if exists and _is_copied(source_io, source, target_io, target, size_bytes, sha256):
        if final is not None:
            # The attempt that made it may have been killed before it synced the directory.
            fsync_path(final.parent)
        advance(size_bytes)
        return False
    staged = target if final is None else staged_location(target)
    digest, copied = hashlib.sha256(), 0
    try:
        with (
            lake_errors(source, "copy a data file"),
            open_data_file(source_io, source) as stored,
            # A local file is created, never opened, so that no existing file or link is overwritten.
            target_io.new_output(staged).create(overwrite=final is None) as sink,
        ):
            while block := stored.read_buffer(_BLOCK_BYTES):
                digest.update(block)
                sink.write(block.to_pybytes())
                copied += len(block)
                advance(len(block))
        if copied != size_bytes or (sha256 is not None and digest.hexdigest() != sha256):
            raise LakeUnavailableError(
                f"{source}: expected {size_bytes} bytes with SHA-256 {sha256 or 'unknown'}, read {copied} "
                f"with {digest.hexdigest()}: the file is damaged. It was not copied; files that were copied "
                "before stay. Run ",
                Command("verify"),
                " on the lake, and bring the file back as that command says.",
            )
        path = local_path(staged)
        if final is not None and path is not None:
            with lake_errors(target, "publish a data file"):
                if exists:
                    # The existing file is an earlier copy that was damaged since.
                    path.replace(final)
                else:
                    os.link(path, final)
                fsync_path(final.parent)
    except LakeUnavailableError:
        if final is None and not exists:
            target_io.delete(target)
        raise
    finally:
        if final is not None and (path := local_path(staged)) is not None:
            unlink(path)
    return True


def _is_copied(
    source_io: FileIO, source: str, target_io: FileIO, target: str, size_bytes: int, sha256: str | None
) -> bool:
    with lake_errors(target, "read a data file"):
        if len(target_io.new_input(target)) != size_bytes:
            return False
        if sha256 is None:
            with open_data_file(source_io, source) as stored:
                sha256 = sha256_of_file(stored)
        with open_data_file(target_io, target) as stored:
            return sha256_of_file(stored) == sha256


@dataclass(frozen=True, slots=True)
class Copied:
    """Result of copying a lake.

    :param lake_id: UUID of the copy.
    :param copy_of: UUID of the lake that was copied.
    :param file_count: number of data files that were copied now.
    :param receipt_count: number of receipts in the copy now.
    :param waiting: number of data files that are left for the next copying, because their segments had no
        receipts yet.
    """

    location: str
    lake_id: str
    copy_of: str
    file_count: int
    file_bytes: int
    receipt_count: int
    waiting: int


def copy_lake(lake: Lake, to: LakeConfig) -> Copied:
    """Copy a lake, or bring an existing copy up to date. It is safe to kill at any instant and to run again.

    :raises BadInputError: the copy's place is inside the lake, another lake or a broker's store, or contains
        a lake.
    :raises LakeIdentityError: files that aren't a copy of this lake are at that place.
    :raises LakeUnavailableError: lake or copy can't be read or written, or a data file has changed since its
        proof.
    :raises ProofError: a data file that no receipt names is damaged.
    :raises ReceiptError: a receipt of the copy is missing in the lake or differs there.
    """
    _check_apart(lake, to)
    refuse_nested(to)
    refuse_around(to)
    _read_target(lake, to)
    with CHANGE_LOCK, nobody_commits_at(own_location(to, lake.rows_table)), committing(lake):
        existing, intent = _read_target(lake, to)
        # The receipts' table is loaded first: when a receipt is there, its data file is in the other table.
        source = _load_tables(lake)
        rows = all_receipts(source[SEGMENTS])
        _check_continues(existing, rows)
        messages = source[lake.rows_table]
        hashes = proven_hashes(messages, rows)
        # A killed compaction may have left the only rows of segments with receipts in an unnamed file.
        slots = {row.slot for row in rows}
        waiting = frozenset(
            location
            for location in live_files(messages)
            if location not in hashes
            and is_own_name(file_name(location))
            and slots.isdisjoint(segments_in(messages.io, location))
        )
        work = _Work(lake, to, source, existing, rows, hashes, waiting)
        if not work.is_done():
            known_id = None if existing is None else lake_id_of_tables(existing)
            intent = intent or Intent("copy", known_id or str(uuid.uuid4()), _original_id(lake))
            work.do(intent)
        return work.result()


class _Work:
    """One run of copying: the lake's present files, and those that the copy lacks.

    :param existing: the copy's tables; None if no table is copied yet.
    :param hashes: SHA-256 of each file on which a receipt's proof depends, by location.
    :param waiting: data files of the lake whose segments have no receipts yet.
    """

    def __init__(
        self,
        lake: Lake,
        to: LakeConfig,
        source: Tables,
        existing: Tables | None,
        rows: Sequence[Receipt],
        hashes: Mapping[str, str],
        waiting: frozenset[str],
    ) -> None:
        self._lake, self._to, self._source, self._existing = lake, to, source, existing
        self._rows, self._hashes, self._waiting = rows, hashes, waiting
        self._acts = _acts_place(source[SEGMENTS])
        self._copied_count = self._copied_bytes = 0
        self._wanted = {name: self._file_sizes(table) for name, table in source.items()}
        files = self._wanted[lake.rows_table]
        live = {split_data_file_name(file_name(inside)) for inside in files}
        for of_store in by_store(rows).values():
            for row in current(of_store):
                # Between the two commits of an expiry of some streams, the table still has the old file.
                if row.state == PARTIAL and (slot_prefix(row.identity), row.sha256[:16]) in live:
                    files[row.data_file] = row.data_file_bytes
        self._had = {name: self._file_sizes(table) for name, table in (existing or {}).items()}

    def is_done(self) -> bool:
        if self._existing is None or lacks_acts(self._acts, _acts_place(self._existing[SEGMENTS])):
            return False
        properties = self._existing[SEGMENTS].metadata.properties
        return self._wanted == self._had and properties.get(COPIED_HEADS_PROPERTY) == heads_text(self._rows)

    def do(self, intent: Intent) -> None:
        """Copy the missing files, write the metadata, and make the copy's catalog name it."""
        locations = {name: own_location(self._to, name) for name in self._source}
        ios = {name: load_file_io(self._to.file_io_properties, place) for name, place in locations.items()}
        intent = begin(ios[SEGMENTS], locations[SEGMENTS], intent)
        # Acts are copied first, so that a new hold counts in the copy before its new files.
        copy_acts(self._acts, (ios[SEGMENTS], locations[SEGMENTS]))
        self._copy_files(locations, ios)
        properties: dict[str, str | None] = {
            LAKE_ID_PROPERTY: intent.lake_id,
            COPY_OF_PROPERTY: intent.copy_of,
            COPIED_HEADS_PROPERTY: heads_text(self._rows),
            PROMOTED_PROPERTY: None,
        }
        written = {}
        for name, table in self._source.items():
            before = (self._existing or {}).get(name)
            target = Target(
                locations[name],
                ios[name],
                intent.attempt,
                (before.file_name,) if before else (),
                before.metadata.table_uuid if before else uuid.uuid4(),
            )
            written[name] = write_table(table, target, properties, self._is_copied_file(table))
        copy = make_catalog(self._to, intent.lake_id)
        pointers = read_pointers(copy)
        changes = {name: (pointers.get(name), table.metadata_location) for name, table in written.items()}
        repoint(copy, changes)
        finish(copy, placed_tables(copy), intent)
        _sweep(written.values(), self._existing)
        self._existing = written

    def result(self) -> Copied:
        assert self._existing is not None
        properties = self._existing[SEGMENTS].metadata.properties
        return Copied(
            self._to.location,
            properties[LAKE_ID_PROPERTY],
            properties[COPY_OF_PROPERTY],
            self._copied_count,
            self._copied_bytes,
            len(self._rows),
            len(self._waiting),
        )

    def _is_copied_file(self, table: PlacedTable) -> Callable[[DataFile], bool]:
        return lambda file: table.here(file.file_path) not in self._waiting

    def _file_sizes(self, table: PlacedTable) -> dict[str, int]:
        return {
            location.removeprefix(f"{table.location}/"): file.file_size_in_bytes
            for location, file in live_files(table).items()
            if location not in self._waiting
        }

    def _copy_files(self, locations: Mapping[str, str], ios: Mapping[str, FileIO]) -> None:
        new = [
            (name, inside, size_bytes)
            for name in self._source
            for inside, size_bytes in self._wanted[name].items()
            if inside not in self._had.get(name, {})
        ]
        with report_work("Copying", sum(size_bytes for _, _, size_bytes in new)) as advance:
            for name, inside, size_bytes in new:
                table = self._source[name]
                source, target = f"{table.location}/{inside}", f"{locations[name]}/{inside}"
                sha256 = self._hashes.get(source) if name != SEGMENTS else None
                if copy_file(table.io, source, ios[name], target, size_bytes, sha256, advance):
                    self._copied_count += 1
                    self._copied_bytes += size_bytes


def _acts_place(segments: PlacedTable) -> tuple[FileIO, str]:
    return segments.io, segments.location


def _load_tables(lake: Lake) -> dict[str, PlacedTable]:
    messages, segments, *deletions = lake.every_table()
    tables = {}
    for table in (segments, messages, *deletions):
        name, file = table.name()[-1], table.metadata_location.rpartition("/")[2]
        placed = PlacedTable(name, table.metadata, file, table.location().rstrip("/"), table.io)
        if name != DELETIONS or _is_whole(placed):
            tables[name] = placed
    return tables


def _is_whole(deletions: PlacedTable) -> bool:
    """Return whether a table of deletions can be copied. If not, the lake is copied without it."""
    with suppress(LakeUnavailableError):
        files = live_files(deletions).items()
        return not any(file_fault(deletions.io, at, file.file_size_in_bytes, None) for at, file in files)
    return False


def _original_id(lake: Lake) -> str:
    segments = lake.segments()
    return lake_id_of(segments) or f"table {segments.metadata.table_uuid}"


def _check_apart(lake: Lake, to: LakeConfig) -> None:
    """Raise BadInputError if a part of the copy would be inside the lake, or a part of the lake inside it."""
    warehouse = to.properties.get("warehouse", "")
    if "://" not in warehouse:
        raise BadInputError(
            f"lake {to.location}: expected a warehouse with a location for the copy, found "
            f"{warehouse or 'none'}. Nothing was created. Name a warehouse in the copy's lake.json, such as "
            "file:///backup/warehouse."
        )
    tables = [table.location().rstrip("/") for table in lake.tables()]
    held = [*tables, *_catalog_file(lake.config)]
    nestings = (
        ((warehouse, *_catalog_file(to)), (*tables, own_directory(lake.config))),
        (held, (warehouse, own_directory(to))),
    )
    for inners, outers in nestings:
        for inner, outer in product(inners, outers):
            if outer is not None and is_below(f"{inner}/", f"{outer}/"):
                raise BadInputError(
                    f"lake {to.location}: expected a place apart from the lake, found that the copy "
                    f"would share {outer} with the lake: if that directory is lost, both are lost. Nothing "
                    "was created. Name another directory, on another disk."
                )


def _catalog_file(config: LakeConfig) -> tuple[Path, ...]:
    file = sqlite_file_of(config)
    return () if file is None else (file,)


def _read_target(lake: Lake, to: LakeConfig) -> tuple[dict[str, PlacedTable] | None, Intent | None]:
    """Return an existing copy's tables and a killed attempt's intent, or raise LakeIdentityError."""
    location = own_location(to, SEGMENTS)
    file_io = load_file_io(to.file_io_properties, location)
    intent = read_intent(file_io, location)
    original = _original_id(lake)
    if intent is not None and (intent.command, intent.copy_of) != ("copy", original):
        raise _target_error(
            to,
            Text("what ", Command(f"lake {intent.command}"), f" left of {intent.copy_of or 'a lake'}"),
            original,
        )
    copy = connect(to) if is_catalog_there(to) else None
    names = (SEGMENTS, lake.rows_table)
    if copy is None or read_pointers(copy).keys().isdisjoint(names):
        if intent != open_intent(file_io, location):
            intent = None
        if intent is None:
            for name in names:
                check_empty(to, own_location(to, name), None)
        return None, intent
    tables = placed_tables(copy)
    if intent is not None and has_landed(intent, tables):
        finish(copy, tables, intent)
        intent = None
    elif intent != open_intent(file_io, location):
        intent = None
    copied = open_lake(to).segments().properties.get(COPY_OF_PROPERTY)
    if copied not in (original, f"table {lake.segments().metadata.table_uuid}"):
        actual = "a lake that is no copy" if copied is None else Text("a copy of lake ", copied)
        raise _target_error(to, actual, original)
    return tables, intent


def _target_error(to: LakeConfig, actual: str, original: str) -> LakeIdentityError:
    return LakeIdentityError(
        f"lake {to.location}: expected an empty place, or a copy of lake {original} that was "
        "not promoted, found ",
        actual,
        ". Nothing was changed. Name another directory.",
    )


def _check_continues(tables: Tables | None, rows: Sequence[Receipt]) -> None:
    """Raise ReceiptError if a lake lacks a receipt of its copy: an older state must not replace the copy."""
    stores = by_store(rows)
    copied = by_store(all_receipts(tables[SEGMENTS])) if tables is not None else {}
    for store in {*stores, *copied}:
        check_chain(stores.get(store, []), [ChainHead.of(copied.get(store, []))])


def _sweep(written: Iterable[PlacedTable], before: Tables | None) -> None:
    """Remove incomplete files, and all metadata except that of this run and the previous run."""
    # No other program writes into a copy.
    for table in written:
        earlier = (before or {}).get(table.name)
        kept = [table.file_name] if earlier is None else [table.file_name, earlier.file_name]
        attempts = [name.partition("-")[2].removesuffix(".metadata.json") for name in kept]
        for file in list_files(table.io, table.location):
            folder, _, name = file.inside.rpartition("/")
            older = folder == "metadata" and name.endswith((".avro", ".metadata.json"))
            if (older and not any(attempt in name for attempt in attempts)) or name.endswith(PARTIAL_SUFFIX):
                delete_small_file(table.io, f"{table.location}/{file.inside}")
