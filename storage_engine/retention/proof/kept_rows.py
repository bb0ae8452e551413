"""Tables of their own in the journal with one row a store, which are made at the first write."""

from __future__ import annotations

import zlib

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    insert,
    inspect,
    select,
)

from storage_engine.journal.tables.database import JournalDatabase


class KeptRows:
    """Keeps a text of each store, compressed by zlib, with the version of what it says."""

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
        """Return a store's version and text, still compressed; None: nothing is kept. Nothing is changed.

        :raises StorageEngineError: the journal can't be read.
        """
        database = JournalDatabase(journal_url, read_only=True)
        return database.read(lambda connection: self.read_row(connection, store_id))

    def read_row(self, connection: Connection, store_id: str) -> tuple[int, bytes] | None:
        """Return the same of a journal that is read already."""
        rows = self.table.c
        if not inspect(connection).has_table(self.table.name):
            return None
        query = select(rows.version, rows[self._column]).where(rows.store_id == store_id)
        row = connection.execute(query).first()
        return None if row is None else (row[0], row[1])

    def write(
        self, journal_url: str, store_id: str, version: int, text: str, *, reserve: bool = True
    ) -> None:
        """Keep a store's text, in place of what was kept.

        :param reserve: see :meth:`storage_engine.journal.tables.database.JournalDatabase.write`.
        :raises StorageEngineError: the journal can't be written.
        """
        values = {"store_id": store_id, "version": version, self._column: zlib.compress(text.encode())}

        def write(connection: Connection) -> None:
            self._metadata.create_all(connection)
            connection.execute(delete(self.table).where(self.table.c.store_id == store_id))
            connection.execute(insert(self.table).values(values))

        JournalDatabase(journal_url).write(write, reserve=reserve)
