"""Preparation of a lake for writing: locks, checks, and the properties that older lakes lack.

A lake of version 1 is taken over once: it gets a UUID and marks, and its tables' major version is raised, so
that an older release on another host refuses it. This is safe to kill at any instant and to run again.

A lake that was made without a kind of broker has the default broker's table of rows, as older releases
expect. Its ``segments`` have no property for the kind. If two first archives run at the same time, only one
of them can commit that property, and so decides the kind. Later, an archive drops the empty table of rows
that belongs to another broker.

This module also makes the lake's table of deletions, and makes it again if it is lost: its rows come from the
journal. The caller holds :data:`~storage_engine.lake.catalog.catalog.CHANGE_LOCK` and the commit lock.

It also keeps the intent of a command that makes a lake's metadata, in a file beside the tables, until the
command is done. If the command was killed and is run again, the intent says which UUID it gave and which
files its earlier attempts wrote. These files are removed only after the catalog names another attempt's
files. The intent is void once the mark below the table says that another process has committed later. Then
the lake is complete.

Functions raise LakeUnavailableError if the lake can't be read or written.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from storage_engine.brokers import broker_names, find_broker
from storage_engine.commands import Command
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.core.durable import make_dirs, open_lock
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.turns import flock_holders, turn_wait_seconds
from storage_engine.exceptions import BadInputError, LakeIdentityError, LakeUnavailableError
from storage_engine.lake.catalog.catalog import (
    CHANGE_LOCK,
    Lake,
    broker_in,
    check_broker,
    check_identity,
    has_no_broker,
    id_in_catalog,
    name_in_catalog,
)
from storage_engine.lake.catalog.identity import (
    COPY_OF_PROPERTY,
    LAKE_ID_PROPERTY,
    check_mark,
    is_below,
    is_same_catalog,
    known_mark_at,
    lake_id_of,
    mark_location,
    mark_of,
    put_mark,
    read_mark,
    read_mark_at,
    table_around,
    write_mark,
)
from storage_engine.lake.catalog.nesting import proves_nothing, refuse_nested_proof
from storage_engine.lake.catalog.own_tables import found_properties
from storage_engine.lake.catalog.placed_table import parse_metadata
from storage_engine.lake.catalog.tables import (
    BROKER_PROPERTY,
    DELETIONS,
    DELETIONS_PROPERTIES,
    SCHEMA_VERSION,
    SCHEMA_VERSION_PROPERTY,
    check_messages_schema,
    deletions_schema,
    evolve,
    has_trees,
    make_rows_table,
    messages_schema,
    missing_columns,
    missing_comments,
    missing_properties,
    partition_by_store,
    segments_schema,
    version_to_write,
)
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.storage.errors import is_damage, lake_errors, metadata_errors
from storage_engine.lake.storage.small_files import (
    HIDDEN_PREFIX,
    delete_small_file,
    list_files,
    read_small_file,
    replace_small_file,
)


def make_deletions(lake: Lake) -> None:
    """Make the table of deletions if the catalog has none.

    It is safe to kill at any instant and to run again.

    :raises LakeUnavailableError: the table exists and can't be used, or can't be made.
    :raises BadInputError: a newer release made it.
    """
    table = lake.deletions()
    if table is None:
        table = _create(lake)
    lake_id = lake_id_of(table)
    if lake_id is not None and table.current_snapshot() is None and read_mark(table) is None:
        put_mark(table.io, table.location(), mark_of(table, lake_id, lake.catalog_id))


def mark_deletions(lake: Lake) -> None:
    """Write the mark of the table of deletions, if the lake has one.

    :raises LakeIdentityError: the mark names another catalog, or a later commit. It stays as it is.
    :raises LakeUnavailableError: the table or its mark can't be read or written.
    """
    table = lake.deletions()
    if table is not None and (lake_id := lake_id_of(table)) is not None:
        write_mark(table, lake_id, lake.catalog_id)


def drop_damaged(lake: Lake, error: LakeUnavailableError) -> bool:
    """Drop a lost or damaged table of deletions from the catalog, so that it is made again. Its files stay.

    :return: False if the lake can't be reached or the table belongs to another lake. Then the table stays.
    """
    if not is_damage(error.__cause__):
        return False
    with lake_errors(lake.location, f"drop table {DELETIONS}"), suppress(NoSuchTableError):
        lake.catalog.drop_table((lake.config.namespace, DELETIONS))
    return True


def _create(lake: Lake) -> Table:
    # The lake may have moved: the table is made beside the receipts.
    segments = lake.segments()
    schema = deletions_schema()
    location = f"{segments.location().rstrip('/').rpartition('/')[0]}/{DELETIONS}"
    with lake_errors(location, "make the table"):
        remove_old_mark(lake, segments, location)
        properties = {name: segments.properties.get(name) for name in (LAKE_ID_PROPERTY, BROKER_PROPERTY)}
        with suppress(TableAlreadyExistsError):
            lake.catalog.create_table(
                (lake.config.namespace, DELETIONS),
                schema=schema,
                location=location,
                partition_spec=partition_by_store(schema),
                properties={
                    **DELETIONS_PROPERTIES,
                    **{name: value for name, value in properties.items() if value is not None},
                },
            )
    table = lake.deletions()
    if table is None:
        raise LakeUnavailableError(
            f"lake {lake.location}: expected the table {DELETIONS} that was made a moment ago, found that "
            "another program dropped it. Run again: it is made again from the journal."
        )
    return table


def remove_old_mark(lake: Lake, segments: Table, location: str) -> None:
    """Remove the mark of a lost table, so that a new table can be made at its location.

    Raise LakeIdentityError if the mark belongs to another lake or another catalog.
    """
    mark = read_mark_at(segments.io, location)
    if mark is None:
        return
    if mark.lake_id != lake_id_of(segments) or not is_same_catalog(mark.catalog, lake.catalog_id):
        raise LakeIdentityError(
            f"{location}: expected a place for a table of lake {lake_id_of(segments)}, found "
            f"the mark of lake {mark.lake_id}, whose catalog is {mark.catalog}. Nothing was changed. Give "
            "each lake a warehouse or namespace of its own."
        )
    delete_small_file(segments.io, mark_location(location))


LOCK_NAME = f"{HIDDEN_PREFIX}commit.lock"

_ACTS_LOCK_NAME = f"{HIDDEN_PREFIX}acts.lock"

UNLOCKED_GRACE_MS = DAY_MS
"""Minimum age at which a file without any reference is removed from a lake without a lock."""

UNLOCKED_PROOF_MS = UNLOCKED_GRACE_MS // 2
"""Maximum age of a proof that is committed to a lake without a lock, so that the proven file still exists."""

_OTHERS = {
    (LOCK_NAME, fcntl.LOCK_EX): "commits to it",
    (LOCK_NAME, fcntl.LOCK_SH): "removes files from it",
    (_ACTS_LOCK_NAME, fcntl.LOCK_EX): "records an act in it",
}


def committing(lake: Lake) -> AbstractContextManager[None]:
    """Keep other processes from removing files while the block runs.

    A commit needs this from the first look at the tables until the catalog has answered.

    :raises LakeUnavailableError: another process has the lock for too long, or it can't be taken.
    """
    return _hold_lock(lake.messages().location(), fcntl.LOCK_SH)


def nobody_commits(lake: Lake) -> AbstractContextManager[None]:
    """Keep other processes from committing while the block runs. The errors are as for :func:`committing`."""
    return nobody_commits_at(lake.messages().location())


def nobody_commits_at(location: str) -> AbstractContextManager[None]:
    """Do the same as :func:`nobody_commits` by the location of a table of rows that may be unreadable."""
    return _hold_lock(location, fcntl.LOCK_EX)


@contextmanager
def recording_acts(lake: Lake) -> Iterator[None]:
    """Keep other processes from removing files and recording acts while the block runs; they may commit.

    The errors are as for :func:`committing`.
    """
    with committing(lake), _hold_lock(lake.segments().location(), fcntl.LOCK_EX, _ACTS_LOCK_NAME):
        yield


@contextmanager
def _hold_lock(location: str, operation: int, name: str = LOCK_NAME) -> Iterator[None]:
    root = local_path(location)
    if root is None:
        yield
        return
    path = root / name
    with lake_errors(str(path), "lock the lake"):
        make_dirs(root)
        descriptor = open_lock(path)
    try:
        seconds = turn_wait_seconds()
        deadline = time.monotonic() + seconds
        while not _lock(descriptor, operation, str(path)):
            if time.monotonic() > deadline:
                # It imports psutil, which a lake needs only for this message.
                from storage_engine.core.file_users import run_text

                holders = ", ".join(map(run_text, flock_holders(descriptor))) or "somebody"
                others = f"{holders} {_OTHERS[name, operation]}"
                raise LakeUnavailableError(
                    f"{path}: expected to get the lake's lock within {seconds:g} s, found that {others}. "
                    "Another process of a user with write access may also keep the file locked. Nothing was "
                    "changed. Run again when that process has ended; --wait sets how long to wait for it."
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, operation: int, path: str) -> bool:
    with lake_errors(path, "lock the lake"):
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def settle_broker(lake: Lake, broker: str) -> None:
    """Settle a lake's kind of broker. A lake that takes any kind gets this kind; any other lake must have it.

    It is safe to kill at any instant and to run again, for the same broker or another one.

    :raises BadInputError: the lake is for another broker's segments, perhaps since a moment ago.
    """
    check_broker(lake, broker)
    if has_no_broker(lake):
        with CHANGE_LOCK, nobody_commits(lake):
            if has_no_broker(lake):
                _set_broker(lake, broker)
    check_broker(lake, broker)
    _drop_others(lake)


def _set_broker(lake: Lake, broker: str) -> None:
    segments, rows = lake.segments(), find_broker(broker).rows.table
    if rows != lake.rows_table:
        _make_rows(lake, segments, broker)
    with lake_errors(lake.location, f"make it one for segments of {broker}"):
        try:
            with segments.transaction() as transaction:
                transaction.set_properties({BROKER_PROPERTY: broker})
        except CommitFailedException:
            # There is no lock on an object store: another archive came first, and its kind counts.
            return
    write_mark(segments.refresh(), segments.properties[LAKE_ID_PROPERTY], lake.catalog_id)


def _make_rows(lake: Lake, segments: Table, broker: str) -> None:
    kind = find_broker(broker)
    codec, name = kind.codec, (lake.config.namespace, kind.rows.table)
    lake_id = segments.properties[LAKE_ID_PROPERTY]
    location = f"{segments.location().rstrip('/').rpartition('/')[0]}/{kind.rows.table}"
    properties = {LAKE_ID_PROPERTY: lake_id, BROKER_PROPERTY: broker}
    with lake_errors(location, "make the table"):
        if not lake.catalog.table_exists(name):
            remove_old_mark(lake, segments, location)
            make_rows_table(lake.catalog, name, codec, location, properties)
        table = lake.catalog.load_table(name)
        if read_mark(table) is None:
            put_mark(table.io, table.location(), mark_of(table, lake_id, lake.catalog_id))


def _drop_others(lake: Lake) -> None:
    """Drop this lake's empty tables of rows for other brokers. The tables' directories and locks stay."""
    lake_id = lake_id_of(lake.segments())
    with lake_errors(lake.location, "list the catalog's tables"):
        names = {name[-1] for name in lake.catalog.list_tables(lake.config.namespace)}
    for broker in broker_names():
        with suppress(BadInputError, LakeUnavailableError, NoSuchTableError):
            name = find_broker(broker).rows.table
            if name not in names or name == lake.rows_table:
                continue
            table = lake.load(name)
            if lake_id is None or lake_id_of(table) != lake_id or table.current_snapshot() is not None:
                continue
            delete_small_file(table.io, mark_location(table.location()))
            with lake_errors(table.location(), "drop the table"):
                lake.catalog.drop_table((lake.config.namespace, name))
            delete_small_file(table.io, table.metadata_location)


TAKEN_OVER_PROPERTY = "storage-engine.taken-over-at-ms"
"""Property of the tables of an older lake: when it got its identity, in milliseconds since the epoch."""

_ATTEMPTS = 20


def ready_to_write(lake: Lake) -> None:
    """Make sure that a lake may be written, and has this version's identity, marks, columns and comments.

    A table of deletions that can't be made is no fault, because nothing depends on it. A write to it raises
    the error. Don't call this while :data:`CHANGE_LOCK` is held: it is taken here for any change.

    :raises LakeIdentityError: the lake is a copy that was not promoted, or lies inside a store or another
        lake; or a lake of version 1 has a catalog that is older than its warehouse or isn't the
        warehouse's only catalog.
    :raises LakeUnavailableError: the lake can't be written, or another program made its tables.
    """
    refuse_nested_proof(lake.config)
    messages, segments = lake.tables()
    # Local directories were checked above. In a bucket, the marks of other lakes show where they are.
    if local_path(place := segments.location()) is None and (
        around := table_around(segments.io, place, lake.config.namespace)
    ):
        raise proves_nothing(lake.config, f"the lake {around}")
    # Checked again: the catalog may have been put back since the lake was opened.
    check_identity(lake, messages, segments)
    if (original := segments.properties.get(COPY_OF_PROPERTY)) is not None:
        raise LakeIdentityError(
            f"lake {lake.location}: expected a lake that may be written, found a copy of {original}. "
            "Nothing was changed. Use that lake; if it is gone for good, run ",
            Command("lake promote"),
            " on this one.",
        )
    if _lacks_identity(messages, segments):
        with CHANGE_LOCK, nobody_commits(lake):
            # Another process may have taken it over while this one waited.
            if _lacks_identity(*lake.tables()):
                _take_over(lake)
        messages, segments = lake.tables()
    for table in _bring_up_to_date(lake, messages, segments):
        if table.current_snapshot() is None and read_mark(table) is None:
            write_mark(table, _lake_id(table), lake.catalog_id)
    with suppress(LakeUnavailableError, BadInputError):
        if not lake.has_deletions():
            with CHANGE_LOCK, committing(lake):
                make_deletions(lake)


def _lacks_identity(messages: Table, segments: Table) -> bool:
    return lake_id_of(segments) is None or lake_id_of(messages) is None


def mark_commits(lake: Lake) -> None:
    """Write the marks of both tables after a commit. Call this before anything relies on the commit.

    :raises LakeIdentityError: a mark names another catalog, or a later commit. It stays as it is.
    """
    messages, segments = lake.tables()
    check_identity(lake, messages, segments)
    for table in (messages, segments):
        write_mark(table, _lake_id(table), lake.catalog_id)


def _lake_id(table: Table) -> str:
    lake_id = lake_id_of(table)
    assert lake_id is not None, table.location()
    return lake_id


def _schemas(messages: Table, segments: Table, *, trees: bool) -> tuple[tuple[Table, Schema], ...]:
    codec = find_broker(broker_in(segments.properties)).codec
    rows = messages_schema(codec.schema, codec.columns.comments, trees=trees)
    return ((segments, segments_schema(trees=trees)), (messages, rows))


def _bring_up_to_date(lake: Lake, messages: Table, segments: Table) -> tuple[Table, Table]:
    """Give both tables this version's columns, comments and properties, and return them."""
    for _ in range(_ATTEMPTS):
        lacking = [
            (table, schema)
            for table, schema in _schemas(messages, segments, trees=has_trees(segments.properties))
            if missing_columns(table, schema) or missing_comments(table, schema) or _list_missing(lake, table)
        ]
        if not lacking:
            break
        adding = lake_errors(lake.location, "add columns")
        with CHANGE_LOCK, committing(lake), adding, suppress(CommitFailedException):
            for table, schema in lacking:
                evolve(table.refresh(), schema, _list_missing(lake, table))
        messages, segments = lake.tables()
    else:
        raise _overtaken(lake, "add columns")
    _, (_, rows) = _schemas(messages, segments, trees=has_trees(segments.properties))
    check_messages_schema(messages.location(), rows, messages.schema())
    return messages, segments


def _list_missing(lake: Lake, table: Table) -> dict[str, str]:
    """Return the properties that a loaded table lacks.

    If another engine has put the metadata elsewhere, the result is never empty: the commit that sets the
    properties brings the metadata back.
    """
    missing = missing_properties(found_properties(table))
    is_ours = table.metadata_location.startswith(f"{table.location().rstrip('/')}/metadata/")
    if not is_ours and isinstance(lake.catalog, SqlCatalog):
        return {SCHEMA_VERSION_PROPERTY: version_to_write(table.properties), **missing}
    return missing


def _take_over(lake: Lake) -> None:
    messages, segments = lake.tables()
    for inner, outer in ((messages, segments), (segments, messages)):
        if is_below(f"{inner.location()}/", outer.location()):
            raise LakeIdentityError(
                f"{inner.location()}: expected two tables beside each other, found one inside "
                f"{outer.location()}. Nothing was changed. Archive into another warehouse."
            )
    for table in (messages, segments):
        # Another catalog may have taken over these tables since this lake was opened.
        check_mark(table, lake_id_of(segments), lake.catalog_id)
        _check_only_catalog(table)
    give_identity(lake)


def give_identity(lake: Lake) -> None:
    """Give a lake of version 1 its UUID, marks and columns. Call this while nobody else commits."""
    for _ in range(_ATTEMPTS):
        lake_id = _chosen_id(lake)
        # First the catalog, so that an attempt after a killed one finds the same UUID.
        name_in_catalog(lake, lake_id)
        for table, schema in _schemas(*lake.tables(), trees=False):
            if lake_id_of(table) is not None:
                continue
            write_mark(table, lake_id, lake.catalog_id, pending=True)
            properties = {LAKE_ID_PROPERTY: lake_id, TAKEN_OVER_PROPERTY: str(clock_ms())}
            with lake_errors(lake.location, "take the lake over"), suppress(CommitFailedException):
                evolve(table, schema, properties)
            if lake_id_of(table.refresh()) != lake_id:
                # Another process committed, or takes the lake over now: the next attempt finds its identity.
                break
        else:
            break
    else:
        raise _overtaken(lake, "take the lake over")
    mark_commits(lake)


def upgrade(lake: Lake) -> tuple[str, str]:
    """Raise a lake to this version. Segments that are archived from then on get trees.

    It is safe to kill at any instant and to run again: the lake has the version of ``segments``, which is
    raised last. No data file is touched. A release that doesn't know this version refuses the lake.

    :return: the schema version before, and the version now.
    :raises LakeIdentityError: as :func:`ready_to_write` does.
    """
    before = lake.segments().properties[SCHEMA_VERSION_PROPERTY]
    ready_to_write(lake)
    with CHANGE_LOCK, nobody_commits(lake):
        for _ in range(_ATTEMPTS):
            schemas = reversed(_schemas(*lake.tables(), trees=True))
            lacking = [(table, schema) for table, schema in schemas if not has_trees(table.properties)]
            if not lacking:
                break
            with lake_errors(lake.location, "upgrade the lake"), suppress(CommitFailedException):
                for table, schema in lacking:
                    evolve(table, schema, {SCHEMA_VERSION_PROPERTY: SCHEMA_VERSION})
        else:
            raise _overtaken(lake, "upgrade the lake")
        mark_commits(lake)
    return before, lake.segments().properties[SCHEMA_VERSION_PROPERTY]


def _chosen_id(lake: Lake) -> str:
    """Return the UUID that a lake gets: the one of a killed attempt, or a new one."""
    segments = lake.segments()
    if (lake_id := lake_id_of(segments)) is not None:
        return lake_id
    mark = read_mark(segments)
    return mark.lake_id if mark is not None else id_in_catalog(lake) or str(uuid.uuid4())


def _check_only_catalog(table: Table) -> None:
    """Make sure that the files below a table's location belong to this catalog and aren't newer than it.

    :raises LakeIdentityError: metadata of another table was found; or metadata that this catalog doesn't know
        names data files that the catalog lacks.
    """
    files = {file.inside: file for file in list_files(table.io, table.location())}
    names = {table.metadata_location.rpartition("/")[2]}
    names |= {entry.metadata_file.rpartition("/")[2] for entry in table.metadata.metadata_log}
    current: set[str] | None = None
    for inside in files:
        folder, _, name = inside.rpartition("/")
        if folder != "metadata" or not name.endswith(".metadata.json") or name in names:
            continue
        location = f"{table.location()}/{inside}"
        metadata = _metadata(table, location)
        if not metadata.snapshots:
            # A failed attempt to make a lake left this file.
            continue
        if metadata.table_uuid != table.metadata.table_uuid:
            raise LakeIdentityError(
                f"{location}: expected metadata of table {table.metadata.table_uuid}, found that of "
                f"{metadata.table_uuid}: two catalogs share this place. Nothing was changed. Give each a "
                "warehouse or namespace of its own."
            )
        current = set(_data_files(table, table.metadata)) if current is None else current
        for file in _data_files(table, metadata):
            if file in current or f"data/{file.rpartition('/data/')[2]}" not in files:
                continue
            raise LakeIdentityError(
                f"{location}: expected metadata without data files that the catalog lacks, found that it "
                f"names {file}: the catalog was put back from an older copy, or a commit failed there. "
                "Nothing was changed. Run ",
                Command("lake rebuild"),
                ", which adds such files to the catalog.",
            )


def _metadata(table: Table, location: str) -> TableMetadata:
    with metadata_errors(location, "read the table's metadata"):
        data = read_small_file(table.io, location)
        return parse_metadata(data or b"", location)


def _data_files(table: Table, metadata: TableMetadata) -> Iterator[str]:
    with metadata_errors(table.location(), "read the table's manifests"):
        for snapshot in metadata.snapshots:
            for manifest in snapshot.manifests(table.io):
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield entry.data_file.file_path


def _overtaken(lake: Lake, doing: str) -> LakeUnavailableError:
    return LakeUnavailableError(
        f"lake {lake.location}: {_ATTEMPTS} attempts to {doing} were overtaken by other writers. Run again "
        "when fewer processes write at once."
    )


INTENT_NAME = f"{HIDDEN_PREFIX}intent.json"


@dataclass(frozen=True, slots=True)
class Intent:
    """The intent of a command that makes a lake's metadata.

    :param command: ``relocate``, ``copy`` or ``rebuild``.
    :param lake_id: the UUID that the lake has when the command is done.
    :param copy_of: UUID of the original if the lake is a copy then; None if it is no copy.
    :param attempts: a UUID for each attempt, the last one last. It is in the names of the attempt's files.
    :param began_at: metadata file in the mark of ``segments`` when the attempt began; "" without a mark.
    """

    command: str
    lake_id: str | None
    copy_of: str | None
    attempts: tuple[str, ...] = ()
    began_at: str = ""

    @property
    def attempt(self) -> str:
        return self.attempts[-1]


def read_intent(file_io: FileIO, location: str) -> Intent | None:
    """Return the intent of a command that was killed; None without such an intent."""
    path = f"{location}/{INTENT_NAME}"
    data = read_small_file(file_io, path)
    if data is None:
        return None
    try:
        return from_jsonable(Intent, json.loads(data), path)
    except (ValueError, BadInputError) as error:
        raise LakeUnavailableError(
            f"{path}: expected the intent of a command as JSON, found something else ({error}). Nothing was "
            "changed. Move the file away and run the command again."
        ) from error


def open_intent(file_io: FileIO, location: str) -> Intent | None:
    """Return the intent of a killed command; None without an intent, or if another process has committed
    later.
    """
    intent = read_intent(file_io, location)
    return intent if intent is not None and intent.began_at == _read_mark(file_io, location) else None


def may_have_landed(file_io: FileIO, location: str, intent: Intent, named: str) -> bool:
    """Return whether the catalog's last commit may be that of one of an intent's attempts.

    :param named: name of the metadata file that the catalog names.
    """
    by_attempt = any(attempt in named for attempt in intent.attempts)
    return by_attempt and _read_mark(file_io, location) in (intent.began_at, named)


def begin(file_io: FileIO, location: str, intent: Intent) -> Intent:
    """Record an intent with a new attempt durably, and return it."""
    attempts = (*intent.attempts, str(uuid.uuid4()))
    intent = replace(intent, attempts=attempts, began_at=_read_mark(file_io, location))
    replace_small_file(
        file_io, f"{location}/{INTENT_NAME}", json.dumps(to_jsonable(intent), indent=1).encode()
    )
    return intent


def _read_mark(file_io: FileIO, location: str) -> str:
    """Return the metadata file's name in a mark; "" without a mark file, or if its content isn't a mark."""
    mark = known_mark_at(file_io, location)
    return "" if mark is None else mark.metadata


def end(file_io: FileIO, location: str, intent: Intent) -> None:
    """Remove the file of an intent that was carried out."""
    delete_small_file(file_io, f"{location}/{INTENT_NAME}")


def sweep_attempts(file_io: FileIO, tables: Iterable[str], intent: Intent, named: Iterable[str]) -> None:
    """Remove files of attempts that failed.

    Call this before other processes can commit: until then the catalog names the files of the attempt that
    succeeded. If it names no attempt's files, nothing is removed.

    :param tables: locations of the tables.
    :param named: names of the metadata files that the catalog has now.
    """
    named = tuple(named)
    landed = {attempt for attempt in intent.attempts if any(attempt in name for name in named)}
    if not landed:
        return
    for table in tables:
        for file in list_files(file_io, f"{table}/metadata"):
            if any(attempt in file.inside for attempt in set(intent.attempts) - landed):
                delete_small_file(file_io, f"{table}/metadata/{file.inside}")
