"""The stores that a journal knows: their identities, places, names, lineages and rules.

The table of archive rules and the table of lakes' newest acts are made when a first row is written. So
older releases can use a journal without such rows.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    String,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
    update,
)

from storage_engine.brokers import store_text
from storage_engine.commands import Command
from storage_engine.core.clock import clock_ms, read_clock
from storage_engine.core.host import ANY_HOST, is_this_host, this_host
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import JournalConflictError, RunStateError, StoreIdentityError
from storage_engine.journal.records import Phase, RecordedRule, Run, Step, StoreRecord
from storage_engine.journal.tables.database import HasDatabase, reads, writes
from storage_engine.journal.tables.rows import insert_events, put_rules, read_stores
from storage_engine.journal.tables.schema import leases, lineages, log_lineages, stores
from storage_engine.model.store import Lineages

_OF_AIRFLOW = "A store of Airflow is named by --conn-id."


def moved_error(place: str, store_id: str, known_at: str, name: str) -> StoreIdentityError:
    """Return the error for a stamped store that is found at another place than recorded.

    :param known_at: the recorded place and its source, as a clause that follows "where".
    :param name: the name that the store gets here.
    """
    return StoreIdentityError(
        f"{place}: expected store {store_id} where {known_at}, found it here: it was moved, or is a copy. "
        "Nothing was changed. If it was moved, run ",
        move_command(name),
        " on it; if it is a copy, ",
        Command("stamp --new"),
        f". {_OF_AIRFLOW}",
    )


def named_anew(place: str, store_id: str, known_at: str, name: str) -> StoreIdentityError:
    """Return the error for a store's directories that a second configuration file names.

    The parameters are as for :func:`moved_error`.
    """
    return StoreIdentityError(
        f"{place}: expected store {store_id} where {known_at}, found that this file names the store's "
        "directories, too. Nothing was changed. If this file replaces the other one, run ",
        move_command(name),
        f" on it; otherwise name the store by the other file. {_OF_AIRFLOW}",
    )


def no_copy(place: str, store_id: str, stamped_at: str, name: str) -> StoreIdentityError:
    """Return the error for a new store in directories that already are a known store, and no copy of it.

    The parameters are as for :func:`moved_error`.
    """
    return StoreIdentityError(
        f"{place}: expected a copy of a store, found the original directories of store {store_id}, stamped "
        f"at {stamped_at}: the same files would be two stores. Nothing was changed. Run ",
        move_command(name),
        f" on it. {_OF_AIRFLOW}",
    )


def renamed_error(place: str, known: str | None, name: str) -> StoreIdentityError:
    """Return the error for a known store that is given another name than the recorded one."""
    return StoreIdentityError(
        f"{place}: expected the name that the store has in the journal, {known!r}, found the name {name!r}. "
        "Nothing was changed. If the store was renamed, run ",
        move_command(name),
        " on it, with --conn-id if it is a store of Airflow; otherwise use its present name.",
    )


def name_taken(place: str, name: str, other: StoreRecord) -> StoreIdentityError:
    """Return the error for a name that another store has in the journal."""
    return _taken_error(place, name, other.store_id, f"at {other.real_path}")


def name_taken_in_lake(place: str, name: str, store_id: str, root: str) -> StoreIdentityError:
    """Return the error for a name that another store has in a lake."""
    return _taken_error(place, name, store_id, f"of which the lake has segments from {root}")


def _taken_error(place: str, name: str, store_id: str, where: str) -> StoreIdentityError:
    return StoreIdentityError(
        f"{place}: expected a name that no other store has, found {name!r}, the name of store {store_id}, "
        f"{where}. Nothing was changed. If this is another store, give it a name of its own: by --name at a "
        "shell, in Airflow as the id of its connection. If it is that store, and its stamp was lost, run ",
        Command("stamp", f"--store-id {store_id}"),
        " on it.",
    )


def move_command(name: str) -> Command:
    """Return the command that records a store's name and place, without its place argument."""
    return Command(f"move {shlex.quote(name)}")


_metadata = MetaData()
_archive_rules = Table(
    "storage_engine_archive_rules",
    _metadata,
    Column("store_id", String(36), primary_key=True),
    Column("rule", String(64), primary_key=True),
    Column("person", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("clock", JSON(none_as_null=True)),
)


_lake_acts = Table(
    "storage_engine_lake_acts",
    _metadata,
    Column("lake_id", String(36), primary_key=True),
    Column("act", String(64), nullable=False),
)


def read_archive_rules(connection: Connection, store_id: str) -> tuple[RecordedRule, ...]:
    """Return the archive rules recorded for a store, even if no lake has them any more."""
    if not inspect(connection).has_table(_archive_rules.name):
        return ()
    rows = connection.execute(select(_archive_rules).where(_archive_rules.c.store_id == store_id))
    return tuple(from_jsonable(RecordedRule, dict(row._mapping)) for row in rows)


T = TypeVar("T")


def _store_at(connection: Connection, real_path: str, host: str | None = ANY_HOST) -> StoreRecord | None:
    """Return the store at a path of this machine; None if the journal has none.

    If a setting says that the store is on this machine, records of other machines don't count.

    :param host: the store's host in its settings: this machine, ``ANY_HOST``, or None if not set.
    :raises StoreIdentityError: the journal has stores of several other machines at this path, and no setting
        says which of these stores is meant.
    """
    rows = read_stores(connection, stores.c.real_path == real_path)
    # A machine's id identifies it better than its name, which another machine may have had.
    here = sorted((row for row in rows if is_this_host(row.host)), key=lambda row: row.host != this_host())
    if here:
        return here[0]
    if host not in (None, ANY_HOST):
        rows = tuple(row for row in rows if row.host is None)
    if len(rows) > 1:
        hosts = ", ".join(sorted(row.host or "unknown" for row in rows))
        raise StoreIdentityError(
            f"{real_path}: expected the journal to have one store at this path, found those of machines "
            f"{hosts}. Nothing was changed. Set store_host in the store's connection to the machine that "
            "the store is on."
        )
    return rows[0] if rows else None


class JournalStores(HasDatabase):
    """The part of a journal for stores. Each method is one transaction."""

    find_store = reads(_store_at)
    all_stores = reads(read_stores)

    def store_with_id(self, store_id: str) -> StoreRecord | None:
        """Return the store with this id, at any place; None if the journal has none."""
        return self.read(lambda connection: _find(connection, stores.c.store_id == store_id))

    def store_named(self, name: str) -> StoreRecord | None:
        """Return the store with this name; None if the journal has none."""
        return self.read(lambda connection: _find(connection, stores.c.name == name))

    def add_store(
        self,
        real_path: str,
        broker: str,
        *,
        store_id: str | None = None,
        lineage: int = 1,
        host: str | None = ANY_HOST,
        name: str | None = None,
        log_lineages: Mapping[str, int] | None = None,
    ) -> StoreRecord:
        """Give the store at ``real_path`` an identity, or return the identity that it has already.

        :param store_id: its UUID if the lake knows the store already; None for a new UUID.
        :param host: as for :meth:`find_store`.
        :param name: the name given by a person, if any.
        :param log_lineages: lineages of single logs. All other logs have ``lineage``.
        :raises StoreIdentityError: the store with this id is at another place, or another store has the name.
        """
        new_id = store_id or str(uuid.uuid4())

        def add(connection: Connection) -> StoreRecord:
            record = _store_at(connection, real_path, host)
            if record is not None:
                return record
            new = StoreRecord(
                new_id, real_path, broker, lineage, clock_ms(), this_host(), name, log_lineages or {}
            )
            return _insert(connection, new)

        return self._twice(add)

    def name_store(self, store_id: str, name: str) -> StoreRecord:
        """Record a store's name. Raise StoreIdentityError if another store has it."""

        def give(connection: Connection) -> StoreRecord:
            _check_name(connection, name, _require_store(connection, store_id))
            return _update(connection, store_id, name=name)

        return self._twice(give)

    def move_store(self, store_id: str, real_path: str) -> StoreRecord:
        """Record a store's new place on this machine.

        :raises RunStateError: there is no such store.
        :raises StoreIdentityError: another store is at this place.
        """
        return self._twice(lambda connection: _move(connection, store_id, real_path))

    def end_move(self, run: Run, real_path: str, name: str | None, move: Mapping[str, Any]) -> StoreRecord:
        """Record a store's new place on this machine and its name, together with the event of the move.

        :param name: the new name; None to keep the name.
        :param move: the event's payload.
        :raises StoreIdentityError: another store is at this place, or has the name.
        """

        def end(connection: Connection) -> StoreRecord:
            moved = _move(connection, run.store_id, real_path)
            insert_events(connection, run.run_id, Step.MOVE, Phase.RESULT, [("", move)])
            if name is None:
                return moved
            _check_name(connection, name, moved)
            return _update(connection, run.store_id, name=name)

        return self._twice(end)

    def open_lineage(self, store_id: str, person: str, reason: str, log: str | None = None) -> StoreRecord:
        """Open a new lineage, so that offsets may have other bytes. Its number is new for the store.

        :param log: open it only for this log; None for the whole store with all its logs.
        """

        def adopt(connection: Connection) -> StoreRecord:
            current = _require_store(connection, store_id).lineages
            opened = current.newest + 1
            row = {"store_id": store_id, "lineage": opened, "log": log, "opened_at_ms": clock_ms()}
            connection.execute(insert(lineages).values(**row, person=person, reason=reason))
            if log is None:
                return _put_lineages(connection, store_id, Lineages(opened))
            of_log = Lineages(current.whole, {log: opened})
            return _put_lineages(connection, store_id, current.merged(of_log))

        return self._database.write(adopt)

    def follow_lineages(self, store_id: str, newer: Lineages) -> StoreRecord:
        """Record newer lineages that a store was found to have. Who opened them isn't recorded."""

        def follow(connection: Connection) -> StoreRecord:
            current = _require_store(connection, store_id).lineages
            return _put_lineages(connection, store_id, current.merged(newer))

        return self._database.write(follow)

    save_rules = writes(put_rules)
    archive_rules = reads(read_archive_rules)

    def record_archive_rule(self, store_id: str, rule: str, person: str) -> None:
        """Record that a rule keeps messages of a store out of its lakes. An earlier record of the rule stays.

        :param rule: SHA-256 of the rule's act.
        """
        record = RecordedRule(store_id, rule, person, clock_ms(), read_clock())

        def put(connection: Connection) -> None:
            _metadata.create_all(connection)
            if all(recorded.rule != rule for recorded in read_archive_rules(connection, store_id)):
                connection.execute(insert(_archive_rules).values(**to_jsonable(record)))

        self._twice(put)

    def record_lake_act(self, lake_id: str, act: str) -> None:
        """Record the SHA-256 of a lake's newest act. This SHA-256 covers all earlier acts, too."""

        def put(connection: Connection) -> None:
            _metadata.create_all(connection)
            connection.execute(delete(_lake_acts).where(_lake_acts.c.lake_id == lake_id))
            connection.execute(insert(_lake_acts).values(lake_id=lake_id, act=act))

        self._twice(put)

    def lake_acts(self) -> Mapping[str, str]:
        """Return the last recorded act of each lake, by the lake's id."""

        def read(connection: Connection) -> Mapping[str, str]:
            if not inspect(connection).has_table(_lake_acts.name):
                return {}
            rows = connection.execute(select(_lake_acts.c.lake_id, _lake_acts.c.act))
            return {row.lake_id: row.act for row in rows}

        return self.read(read)

    def _twice(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``. If another process adds the same row, run it again: ``work`` then finds the row."""
        try:
            return self._database.write(work)
        except JournalConflictError:
            return self._database.write(work)


def _find(connection: Connection, where: ColumnElement[bool]) -> StoreRecord | None:
    return next(iter(read_stores(connection, where)), None)


def _require_store(connection: Connection, store_id: str) -> StoreRecord:
    """:raises RunStateError: there is no such store."""
    record = _find(connection, stores.c.store_id == store_id)
    if record is None:
        raise RunStateError(f"store {store_id}: expected this store in the journal, found none with this id")
    return record


def _update(connection: Connection, store_id: str, **values: Any) -> StoreRecord:
    connection.execute(update(stores).where(stores.c.store_id == store_id).values(**values))
    return _require_store(connection, store_id)


def _insert(connection: Connection, made: StoreRecord) -> StoreRecord:
    """:raises StoreIdentityError: the store with this id is elsewhere, or another store has its name."""
    other = _find(connection, stores.c.store_id == made.store_id)
    if other is not None and other.real_path == made.real_path:
        # The stamp identifies the store: its disk is on another machine by now.
        return _move(connection, made.store_id, made.real_path)
    if other is not None:
        known_at = f"the journal knows it at {other.real_path}"
        name = store_text(made.name or other.name, made.broker, made.real_path)
        raise moved_error(made.real_path, made.store_id, known_at, name)
    if made.name is not None:
        _check_name(connection, made.name, made)
    row = {column.name: getattr(made, column.name) for column in stores.columns}
    connection.execute(insert(stores).values(**row))
    connection.execute(insert(leases).values(store_id=made.store_id, owner="", expires_at_ms=0))
    return _put_lineages(connection, made.store_id, made.lineages) if made.log_lineages else made


def _put_lineages(connection: Connection, store_id: str, newer: Lineages) -> StoreRecord:
    connection.execute(delete(log_lineages).where(log_lineages.c.store_id == store_id))
    rows = [{"store_id": store_id, "log": log, "lineage": lineage} for log, lineage in newer.of_logs.items()]
    if rows:
        connection.execute(insert(log_lineages), rows)
    return _update(connection, store_id, lineage=newer.whole)


def _move(connection: Connection, store_id: str, real_path: str) -> StoreRecord:
    """:raises StoreIdentityError: another store is at this place."""
    other = _store_at(connection, real_path, this_host())
    if other is not None and other.store_id != store_id:
        raise StoreIdentityError(
            f"{real_path}: expected a place without a store in the journal, found store {other.store_id}. "
            f"The record of store {store_id} was not changed. Manage that store with its own lake and "
            "journal."
        )
    _require_store(connection, store_id)
    return _update(connection, store_id, real_path=real_path, host=this_host())


def _check_name(connection: Connection, name: str, record: StoreRecord) -> None:
    """:raises StoreIdentityError: another store has the name."""
    other = _find(connection, stores.c.name == name)
    if other is not None and other.store_id != record.store_id:
        raise name_taken(record.real_path, name, other)
