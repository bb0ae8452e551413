"""The journal's database: committed transactions are on disk, and a full disk does not stop it."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import quote
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, create_engine, event, insert, inspect, make_url, select, update
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from storage_engine.core import durable
from storage_engine.core.credentials import check_database_url, shown_url, url_secrets, without_secrets
from storage_engine.core.extras import POSTGRES
from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import lock_advice
from storage_engine.exceptions import BadInputError, JournalConflictError, JournalUnavailableError
from storage_engine.journal.tables.migrations import MIGRATIONS
from storage_engine.journal.tables.schema import SCHEMA_VERSION, metadata, schema_version


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """:param name: the URL without a password.
    :param secrets: texts that must not be in any message.
    :param file: SQLite's file; None if the journal is on a server.
    """

    name: str
    secrets: tuple[str, ...] = field(repr=False)
    file: Path | None

    @contextmanager
    def driver_errors(self) -> Iterator[None]:
        """Convert errors at loading the URL's driver to errors that name the package to install.

        :raises BadInputError: the URL's driver isn't installed.
        :raises MissingExtraError: the driver isn't installed, and an extra of this package has it.
        """
        try:
            yield
        except (ArgumentError, ImportError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name == POSTGRES.module:
                raise POSTGRES.missing(f"journal_url {self.name}") from None
            raise BadInputError(
                f"journal_url: expected a URL whose driver is installed, found {self.name} ({error})"
            ) from error


def place_of(url: str) -> JournalPlace:
    """Return a journal's place and secrets from its URL.

    :param url: SQLAlchemy URL.
    :raises BadInputError: the text is no URL, names a database in memory, or makes a driver load code.
    """
    try:
        name = shown_url(url)
        check_database_url(url)
    except ValueError as error:
        # The URL is not shown: if it can't be parsed, it may have a password anywhere.
        raise BadInputError(
            f"journal_url: expected an SQLAlchemy URL such as sqlite:////path/journal.db, found {error}. "
            "Nothing was changed. Write characters such as @ and / in a password as %40 and %2F."
        ) from None
    parsed = make_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite and parsed.database in (None, "", ":memory:"):
        raise BadInputError(f"journal_url: expected a file that remains after this process, found {name}")
    return JournalPlace(name, tuple(url_secrets(url)), Path(str(parsed.database)) if sqlite else None)


_READ_ONLY = {"storage_engine_read_only": True}


def read_only_engine(url: str, file: Path | None, answer_seconds: int | None = None) -> Engine:
    """Return an engine whose transactions read one consistent state of the journal.

    :param file: SQLite's file; None if the journal is on a server.
    :param answer_seconds: how long a server may take to accept a connection, and then to answer all queries
        on it; None means the driver's own limit.
    """
    if file is not None:
        # SQLite's own URI makes it read-only and never creates the file. SQLAlchemy would change the URI.
        uri = f"file:{quote(str(file.absolute()))}?mode=ro"
        return create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(uri, uri=True),
            poolclass=NullPool,
            execution_options=_READ_ONLY,
        )
    is_postgresql = make_url(url).get_backend_name() == "postgresql"
    arguments = {"connect_timeout": answer_seconds} if is_postgresql and answer_seconds else {}
    engine = create_engine(url, poolclass=NullPool, execution_options=_READ_ONLY, connect_args=arguments)

    def begin_read_only(connection: Connection) -> None:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if answer_seconds:
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {answer_seconds * 1000}")

    if is_postgresql:
        event.listen(engine, "begin", begin_read_only)
        if answer_seconds:
            _end_late(engine, answer_seconds)
    return engine


class _Deadline:
    """Closes a connection at a given time, because its driver would wait for ever for a server that hangs.

    A server's own limit has no effect if the server itself hangs or the network fails.
    """

    def __init__(self, fileno: int, seconds: float) -> None:
        # A descriptor of its own: once the driver has closed its number, another file may have it.
        self._socket = socket.socket(fileno=os.dup(fileno))
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        with suppress(OSError), self._socket:
            self._socket.shutdown(socket.SHUT_RDWR)

    def cancel(self) -> None:
        self._timer.cancel()
        self._socket.close()


def _end_late(engine: Engine, seconds: int) -> None:
    """Close each of an engine's connections that is still open after ``seconds``."""
    deadlines: WeakKeyDictionary[DBAPIConnection, _Deadline] = WeakKeyDictionary()

    def connect(
        dialect: Dialect, record: ConnectionPoolEntry, given: Any, named: dict[str, Any]
    ) -> DBAPIConnection:
        # Before SQLAlchemy's first query, which is part of making a connection.
        connection: Any = dialect.connect(*given, **named)
        deadlines[connection] = _Deadline(connection.fileno(), seconds)
        return connection  # type: ignore[no-any-return]

    def close(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        if (deadline := deadlines.pop(connection, None)) is not None:
            deadline.cancel()

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "close", close)


T = TypeVar("T")
P = ParamSpec("P")

UNREADABLE = (SQLAlchemyError, *MALFORMED)
"""Errors that reading a journal raises when its pages, rows or JSON are damaged."""

BUSY_TIMEOUT_MS = 30_000
RESERVE_BYTES = 1 << 20
"""Space for some thousand events: enough to record a cleanup on a disk without a free byte."""


class JournalDatabase:
    """Runs transactions. It makes and checks the tables when it is opened.

    :param url: SQLAlchemy URL.
    :param read_only: no table is made or upgraded, and nothing can be written.
    :raises BadInputError: the text is no URL, or this release doesn't know the schema version.
    :raises JournalUnavailableError: the database can't be reached, read or written.
    """

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        place = place_of(url)
        self.name, self._secrets, self._file = place.name, place.secrets, place.file
        if read_only:
            with place.driver_errors():
                self._engine = read_only_engine(url, self._file)
            self._check(self._run_guarded(_read_version, read_only=True, any_version=True))
            return
        with place.driver_errors():
            self._engine = _engine(url)
        if self._file is not None:
            try:
                durable.make_dirs(self._file.parent)
                durable.create_empty(self._file)
            except OSError as error:
                raise self._unavailable(error) from error
        self._prepare()
        # The journal also works without this reserve beside SQLite's file.
        if self._reserve is not None and not self._reserve.exists():
            with suppress(OSError):
                durable.write_file(self._reserve, bytes(RESERVE_BYTES))

    def write(self, work: Callable[[Connection], T], *, reserve: bool = True) -> T:
        """Run ``work`` in one transaction that is on disk when this returns.

        On a full disk, the reserve is deleted and ``work`` runs again. So ``work`` must only use its
        connection.

        :param reserve: whether this write may use the reserve.
        :raises JournalConflictError: a row that should be new exists already.
        :raises JournalUnavailableError: nothing was written.
        """
        try:
            return self._run(work, read_only=False)
        except UNREADABLE as error:
            file = self._reserve if reserve and sqlite_error(error) == "SQLITE_FULL" else None
            if file is None or not durable.unlink(file):
                raise self._unavailable(error) from error
        return self._run_guarded(work, read_only=False)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of ``work``, which changes nothing, on one consistent state."""
        return self._run_guarded(work, read_only=True)

    def _run(
        self,
        work: Callable[[Connection], T],
        *,
        read_only: bool,
        foreign_keys: bool = True,
        any_version: bool = False,
    ) -> T:
        """:param any_version: run even if another release has changed the journal's version meanwhile."""
        connection = self._engine.connect().execution_options(
            storage_engine_read_only=read_only, storage_engine_foreign_keys=foreign_keys
        )
        with connection, connection.begin():
            if not any_version:
                self._check(connection.execute(select(schema_version.c.version)).scalar_one_or_none())
            return work(connection)

    def _check(self, version: int | None) -> None:
        if version != SCHEMA_VERSION:
            raise BadInputError(
                f"{self.name}: expected journal schema version {SCHEMA_VERSION}, found {version}. "
                "Use the release of storage-engine that wrote it, or another journal_url."
            )

    def _run_guarded(
        self, work: Callable[[Connection], T], *, read_only: bool, any_version: bool = False
    ) -> T:
        try:
            return self._run(work, read_only=read_only, any_version=any_version)
        except UNREADABLE as error:
            raise self._unavailable(error) from error

    def _prepare(self) -> None:
        try:
            version = self._version()
            if version is None:
                self._create()
                version = self._version()
            if version in MIGRATIONS:
                self._upgrade()
                version = self._version()
        except UNREADABLE as error:
            raise self._unavailable(error) from error
        self._check(version)

    def _version(self) -> int | None:
        return self._run(_read_version, read_only=True, any_version=True)

    def _create(self) -> None:
        """Make the tables and record their version in one transaction, even if other processes do it, too."""

        def create(connection: Connection) -> None:
            metadata.create_all(connection)
            if connection.execute(select(schema_version.c.version)).first() is None:
                connection.execute(insert(schema_version).values(version=SCHEMA_VERSION))

        try:
            self._run(create, read_only=False, any_version=True)
        except (IntegrityError, ProgrammingError):
            if self._version() is None:
                raise

    def _upgrade(self) -> None:
        """Upgrade an older journal to our version in one transaction, even if other processes do it, too."""

        def upgrade(connection: Connection) -> None:
            # Locks the row, in a database that a transaction doesn't lock as a whole.
            connection.execute(update(schema_version).values(version=schema_version.c.version))
            version = connection.execute(select(schema_version.c.version)).scalar_one()
            metadata.create_all(connection)
            for number in range(version, SCHEMA_VERSION):
                MIGRATIONS[number](connection)
            _check_foreign_keys(connection)
            connection.execute(update(schema_version).values(version=SCHEMA_VERSION))

        self._run(upgrade, read_only=False, foreign_keys=False, any_version=True)

    @property
    def _reserve(self) -> Path | None:
        return None if self._file is None else self._file.with_name(self._file.name + ".reserve")

    def _unavailable(self, error: Exception) -> JournalUnavailableError:
        # The error for a server that is down has several lines. The first one says it.
        first_line = str(getattr(error, "orig", None) or error).partition("\n")[0].rstrip()
        cause = without_secrets(first_line, self._secrets)
        if isinstance(error, IntegrityError):
            return JournalConflictError(
                f"{self.name}: expected to add a new row, found that the journal has this row already "
                f"({cause}). Nothing was recorded. Run the same again."
            )
        is_damaged = sqlite_error(error).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
        or_without = f" {without_backup(self._file)}" if self._file is not None and is_damaged else ""
        advice = lock_advice(cause) or (
            "Make its database reachable and writable, bring it back from a backup if it is damaged, and run "
            f"the same again.{or_without}"
        )
        return JournalUnavailableError(
            f"{self.name}: the journal can't be read or written ({cause}). Nothing is done without the "
            f"journal. {advice}"
        )


class Reads(Protocol):
    """A connection that can read a journal."""

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which only reads."""


class HasDatabase:
    """Base of classes that work on a journal. Each method is one transaction."""

    def __init__(self, database: JournalDatabase) -> None:
        self._database = database
        self.read = database.read


def reads(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Reads, P], T]:
    """Return a method that runs a function on one consistent state. The function only reads."""

    def method(self: Reads, /, *args: P.args, **named: P.kwargs) -> T:
        return self.read(lambda connection: work(connection, *args, **named))

    return method


def writes(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[HasDatabase, P], T]:
    """Return a method that runs a function in a durable transaction; see :meth:`JournalDatabase.write`."""

    def method(self: HasDatabase, /, *args: P.args, **named: P.kwargs) -> T:
        return self._database.write(lambda connection: work(connection, *args, **named))

    return method


def _read_version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(schema_version.name):
        return None
    return connection.execute(select(schema_version.c.version)).scalar_one_or_none()


def without_backup(file: Path) -> str:
    """Return advice for a damaged journal without a backup."""
    return (
        f"Without a backup move {file} away: the next run makes a new journal. It recognizes each store by "
        "its stamp and by the lake's receipts. It doesn't know waivers, accepted losses and unfinished runs."
    )


def sqlite_error(error: Exception) -> str:
    """Return SQLite's name of an error; "" for any other error."""
    return str(getattr(getattr(error, "orig", None), "sqlite_errorname", ""))


def missing_sqlite_file(url: str) -> bool:
    """Return whether a URL names a SQLite file that doesn't exist yet."""
    if not url.startswith("sqlite"):
        return False
    database = make_url(url).database
    return database not in (None, "", ":memory:") and not Path(str(database)).exists()


@lru_cache(maxsize=32)
def _engine(url: str) -> Engine:
    """Return a URL's engine. Every call returns the same engine, which caches its compiled statements."""
    # Without a pool no connection outlives its transaction, so that no fork shares one.
    engine = create_engine(url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "foreign_keys=ON",
        "journal_mode=DELETE",
        # FULL, and the directory is fsynced after the rollback journal is unlinked as well. With FULL alone
        # a power loss could bring that file back, which would undo an intent whose segment is already gone.
        "synchronous=EXTRA",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get("storage_engine_foreign_keys", True):
        # Works only outside of a transaction and lasts as long as the connection. A table's rebuild needs it.
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
    connection.exec_driver_sql(
        "BEGIN" if options.get("storage_engine_read_only", False) else "BEGIN IMMEDIATE"
    )


def _check_foreign_keys(connection: Connection) -> None:
    """:raises IntegrityError: a row refers to a missing row."""
    if connection.dialect.name != "sqlite":
        return
    lost = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if lost is not None:
        raise IntegrityError(
            "PRAGMA foreign_key_check", None, ValueError(f"row {lost} refers to a missing row")
        )
