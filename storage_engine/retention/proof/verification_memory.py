"""The journal's memory of verification, and its tables with one row for each store.

The memory has the time and the result of each receipt's last check, so checks can rotate through a whole
lake. If the journal is beside a lake's catalog, it may have been made for this memory alone.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    delete,
    false,
    func,
    insert,
    inspect,
    select,
)

from storage_engine.journal.tables.database import JournalDatabase
from storage_engine.model.report.validation import Check, VerifyLevel

_AT_A_TIME = 10_000
_LEVELS = {level.value: level for level in VerifyLevel}

_metadata = MetaData()

_verifications = Table(
    "storage_engine_verifications",
    _metadata,
    Column("lake_id", String(36), primary_key=True),
    Column("receipt_hash", String(64), primary_key=True),
    Column("level", String(16), primary_key=True),
    Column("store_id", Text, nullable=False),
    Column("lineage", Integer, nullable=False),
    Column("log", Text, nullable=False),
    Column("base_offset", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("fault", Text, nullable=False),
)
"""The last check of each receipt at each level.

The lake's key is the UUID of its ``segments`` table: a journal may serve several lakes with the same store.
"""


class VerificationMemory:
    """:param journal_url: SQLAlchemy URL of the journal; the errors are those of :class:`JournalDatabase`."""

    def __init__(self, journal_url: str) -> None:
        self._database = JournalDatabase(journal_url)
        self._database.write(_prepare)

    def recall(self, lake_id: str) -> tuple[Check, ...]:
        """Return the last check of each receipt at each level."""
        query = select(_verifications).where(_verifications.c.lake_id == lake_id)
        return self._database.read(lambda connection: tuple(map(_check, connection.execute(query))))

    def record(self, lake_id: str, checks: Sequence[Check]) -> None:
        """Record all checks or none. They replace earlier checks of the same receipts and levels."""
        newest = list({(check.receipt_hash, check.level.value): check for check in checks}.values())
        if not newest:
            return
        is_same_check = (
            (_verifications.c.lake_id == lake_id)
            & (_verifications.c.receipt_hash == bindparam("hash"))
            & (_verifications.c.level == bindparam("at_level"))
        )

        def write(connection: Connection) -> None:
            # As SQL parameters, checks take four times their own memory.
            for first in range(0, len(newest), _AT_A_TIME):
                rows = [
                    {
                        "lake_id": lake_id,
                        "receipt_hash": check.receipt_hash,
                        "level": check.level.value,
                        "store_id": check.store_id,
                        "lineage": check.lineage,
                        "log": check.log,
                        "base_offset": check.base_offset,
                        "at_ms": check.at_ms,
                        "fault": check.fault,
                    }
                    for check in newest[first : first + _AT_A_TIME]
                ]
                keys = [{"hash": row["receipt_hash"], "at_level": row["level"]} for row in rows]
                connection.execute(delete(_verifications).where(is_same_check), keys)
                connection.execute(insert(_verifications), rows)

        self._database.write(write)


def last_verified(journal_url: str, lake_id: str) -> tuple[int | None, int]:
    """Return when a lake's receipts were last checked, and how many of the last checks found a fault.

    Nothing is made or changed.

    :param lake_id: UUID of the lake's ``segments`` table.
    :return: time and number. The time is None if no check is remembered.
    :raises StorageEngineError: the journal can't be read.
    """
    faulty = func.count().filter(_verifications.c.fault != "")
    query = select(func.max(_verifications.c.at_ms), faulty).where(_verifications.c.lake_id == lake_id)

    def read(connection: Connection) -> tuple[int | None, int]:
        if not inspect(connection).has_table(_verifications.name):
            return None, 0
        at_ms, faults = connection.execute(query).one()
        return at_ms, faults

    return JournalDatabase(journal_url, read_only=True).read(read)


def checks_of_faulty(journal_url: str, lake_id: str) -> tuple[Check, ...]:
    """Return the last checks of faulty receipts in a lake, at all levels.

    A receipt is faulty if its last check at any level failed. Nothing is made or changed.

    :param lake_id: UUID of the lake's ``segments`` table.
    :raises StorageEngineError: the journal can't be read.
    """
    of_lake = _verifications.c.lake_id == lake_id
    faulty = select(_verifications.c.receipt_hash).where(of_lake, _verifications.c.fault != "")
    query = select(_verifications).where(of_lake, _verifications.c.receipt_hash.in_(faulty))

    def read(connection: Connection) -> tuple[Check, ...]:
        if not inspect(connection).has_table(_verifications.name):
            return ()
        return tuple(_check(row) for row in connection.execute(query))

    return JournalDatabase(journal_url, read_only=True).read(read)


def _check(row: Sequence[Any]) -> Check:
    # Access by position is quicker: 1,000,000 rows are read at once.
    _, receipt_hash, level, store_id, lineage, log, base_offset, at_ms, fault = row
    store_id, log, level = sys.intern(store_id), sys.intern(log), _LEVELS[level]
    return Check(store_id, lineage, log, base_offset, receipt_hash, level, at_ms, fault)


def _prepare(connection: Connection) -> None:
    _metadata.create_all(connection)
    # If the journal can't be written, this fails now, not after an hour's work.
    connection.execute(delete(_verifications).where(false()))


class KeptRows:
    """A journal table with one text for each store, compressed by zlib, and the version of its format.

    The table is made at the first write.
    """

    def __init__(self, table: str, column: str) -> None:
        self._metadata = MetaData()
        self._column = column
        self.table = Table(
            table,
            self._metadata,
            Column("store_id", String(36), primary_key=True),
            Column("version", Integer, nullable=False),
            Column(column, LargeBinary, nullable=False),
        )

    def read(self, journal_url: str, store_id: str) -> tuple[int, bytes] | None:
        """Return the version and the compressed text of a store, or None. Nothing is changed.

        :raises StorageEngineError: the journal can't be read.
        """
        database = JournalDatabase(journal_url, read_only=True)
        return database.read(lambda connection: self.read_row(connection, store_id))

    def read_row(self, connection: Connection, store_id: str) -> tuple[int, bytes] | None:
        """Return the same as :meth:`read`, in an open transaction."""
        rows = self.table.c
        if not inspect(connection).has_table(self.table.name):
            return None
        query = select(rows.version, rows[self._column]).where(rows.store_id == store_id)
        row = connection.execute(query).first()
        return None if row is None else (row[0], row[1])

    def write(
        self, journal_url: str, store_id: str, version: int, text: str, *, reserve: bool = True
    ) -> None:
        """Keep a store's text. It replaces the earlier one.

        :param reserve: see :meth:`storage_engine.journal.tables.database.JournalDatabase.write`.
        :raises StorageEngineError: the journal can't be written.
        """
        values = {"store_id": store_id, "version": version, self._column: zlib.compress(text.encode())}

        def write(connection: Connection) -> None:
            self._metadata.create_all(connection)
            connection.execute(delete(self.table).where(self.table.c.store_id == store_id))
            connection.execute(insert(self.table).values(values))

        JournalDatabase(journal_url).write(write, reserve=reserve)
