"""The database under the journal: what is committed is on disk, and a full disk does not stop it.

SQLite is opened so that a commit survives a power loss, and several processes may write at once: each
transaction takes the write lock when it begins and waits for it, instead of failing half-way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, insert, inspect, make_url, select, update
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from storage_engine.core import durable
from storage_engine.core.credentials import without_secrets
from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import lock_advice
from storage_engine.exceptions import BadInputError, JournalConflictError, JournalUnavailableError
from storage_engine.journal.tables.migrations import MIGRATIONS
from storage_engine.journal.tables.place import place_of
from storage_engine.journal.tables.read_only import read_only_engine
from storage_engine.journal.tables.schema import SCHEMA_VERSION, metadata, schema_version

T = TypeVar("T")

UNREADABLE = (SQLAlchemyError, *MALFORMED)
"""What reading a journal raises whose pages, rows or JSON are damaged."""

BUSY_TIMEOUT_MS = 30_000
RESERVE_BYTES = 1 << 20
"""Room for some thousand events: what it takes to record a cleanup on a disk without a free byte."""


class JournalDatabase:
    """Runs transactions; makes and checks the tables when it is opened.

    :param url: SQLAlchemy URL.
    :param read_only: nothing is made or brought up to date, and nothing can be written.
    :raises BadInputError: not a URL, or a schema version that this code doesn't know.
    :raises JournalUnavailableError: the database can't be reached, read or written.
    """

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        place = place_of(url)
        self.name, self._secrets, self._file = place.name, place.secrets, place.file
        if read_only:
            with place.driver_errors():
                self._engine = read_only_engine(url, self._file)
            self._check(self._known_version())
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
        self._set_reserve_aside()

    def write(self, work: Callable[[Connection], T], *, reserve: bool = True) -> T:
        """Run ``work`` in one transaction that is on disk when this returns.

        On a full disk the reserve is given back and ``work`` runs once more, so it must only use its
        connection.

        :param reserve: False: this isn't what the reserve is for.
        :raises JournalConflictError: a row that was to be new is there already.
        :raises JournalUnavailableError: nothing of it was written.
        """
        try:
            return self._run(work, read_only=False)
        except UNREADABLE as error:
            if not (reserve and _disk_full(error) and self._give_reserve_back()):
                raise self._unavailable(error) from error
        return self._guarded(work, read_only=False)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which changes nothing, on one consistent state."""
        return self._guarded(work, read_only=True)

    def _run(
        self,
        work: Callable[[Connection], T],
        *,
        read_only: bool,
        foreign_keys: bool = True,
        any_version: bool = False,
    ) -> T:
        """
        :param any_version: also where another release has made it a journal of its own meanwhile.
        """
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

    def _guarded(self, work: Callable[[Connection], T], *, read_only: bool) -> T:
        try:
            return self._run(work, read_only=read_only)
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

    def _known_version(self) -> int | None:
        try:
            return self._version()
        except UNREADABLE as error:
            raise self._unavailable(error) from error

    def _version(self) -> int | None:
        def read(connection: Connection) -> int | None:
            if not inspect(connection).has_table(schema_version.name):
                return None
            return connection.execute(select(schema_version.c.version)).scalar_one_or_none()

        return self._run(read, read_only=True, any_version=True)

    def _create(self) -> None:
        """Make the tables and record their version in one transaction; another process may do the same."""

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
        """Make this version of an older one, in one transaction; another process may do the same."""

        def upgrade(connection: Connection) -> None:
            # Locks the row where a transaction doesn't lock the whole database.
            connection.execute(update(schema_version).values(version=schema_version.c.version))
            version = connection.execute(select(schema_version.c.version)).scalar_one()
            metadata.create_all(connection)
            for number in range(version, SCHEMA_VERSION):
                MIGRATIONS[number](connection)
            _check_foreign_keys(connection)
            connection.execute(update(schema_version).values(version=SCHEMA_VERSION))

        self._run(upgrade, read_only=False, foreign_keys=False, any_version=True)

    def _way_without_backup(self, error: Exception) -> str:
        return "" if self._file is None or not _is_damaged(error) else f" {without_backup(self._file)}"

    @property
    def _reserve(self) -> Path | None:
        return None if self._file is None else self._file.with_name(self._file.name + ".reserve")

    def _set_reserve_aside(self) -> None:
        """Keep RESERVE_BYTES beside SQLite's file. Having none is no reason not to work."""
        if self._reserve is None or self._reserve.exists():
            return
        try:
            durable.write_file(self._reserve, bytes(RESERVE_BYTES))
        except OSError:
            return

    def _give_reserve_back(self) -> bool:
        return self._reserve is not None and durable.unlink(self._reserve)

    def _unavailable(self, error: Exception) -> JournalUnavailableError:
        # A server that is down is told in several lines, the first of which says it.
        first_line = str(getattr(error, "orig", None) or error).partition("\n")[0].rstrip()
        cause = without_secrets(first_line, self._secrets)
        if isinstance(error, IntegrityError):
            return JournalConflictError(
                f"{self.name}: expected to record something new, found it there already ({cause}). Nothing "
                "of it was recorded. Run the same again."
            )
        advice = lock_advice(cause) or (
            "Make its database reachable and writable, bring it back from a backup if it is damaged, and run "
            f"the same again.{self._way_without_backup(error)}"
        )
        return JournalUnavailableError(
            f"{self.name}: the journal can't be read or written ({cause}). Nothing is done without it. "
            f"{advice}"
        )


def without_backup(file: Path) -> str:
    """Say what to do with a journal's damaged file that nobody has a copy of."""
    return (
        f"Without a backup move {file} away: the next run makes a new journal. It knows each store again by "
        "its stamp and by the lake's receipts, but no waiver, accepted loss or unfinished run."
    )


def _is_damaged(error: Exception) -> bool:
    name = getattr(getattr(error, "orig", None), "sqlite_errorname", "")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def missing_sqlite_file(url: str) -> bool:
    """Return whether a URL names a SQLite file that is not there yet."""
    if not url.startswith("sqlite"):
        return False
    database = make_url(url).database
    return database not in (None, "", ":memory:") and not Path(str(database)).exists()


@lru_cache(maxsize=32)
def _engine(url: str) -> Engine:
    """One a URL, since an engine remembers the statements that it compiled."""
    # Without a pool no connection outlives its transaction: nothing to share by accident across a fork.
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
        # a power loss could bring that file back, and with it undo an intent whose segment is already gone.
        "synchronous=EXTRA",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get("storage_engine_foreign_keys", True):
        # Only outside of a transaction, and for as long as the connection: a table can't be rebuilt else.
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
    connection.exec_driver_sql(
        "BEGIN" if options.get("storage_engine_read_only", False) else "BEGIN IMMEDIATE"
    )


def _check_foreign_keys(connection: Connection) -> None:
    """
    :raises IntegrityError: a row names one that isn't there.
    """
    if connection.dialect.name != "sqlite":
        return
    lost = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if lost is not None:
        raise IntegrityError("PRAGMA foreign_key_check", None, ValueError(f"row {lost} names a lost one"))


def _disk_full(error: Exception) -> bool:
    return getattr(getattr(error, "orig", None), "sqlite_errorname", "") == "SQLITE_FULL"
