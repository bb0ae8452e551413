"""Reaching a journal for reading alone: nothing is made or changed, not even a file beside it."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

_READ_ONLY = {"storage_engine_read_only": True}


def read_only_engine(url: str, file: Path | None, answer_seconds: int | None = None) -> Engine:
    """Return an engine that reads one state of the journal.

    :param file: SQLite's; None: a server has it.
    :param answer_seconds: how long a server may take to take a connection, and then for all that is asked by
        it; None: as long as its driver waits.
    """
    if file is not None:
        # Read only, and never made: by SQLite's own URI, since SQLAlchemy changes what it is given.
        uri = f"file:{quote(str(file.absolute()))}?mode=ro"
        return create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(uri, uri=True),
            poolclass=NullPool,
            execution_options=_READ_ONLY,
        )
    is_postgresql = make_url(url).get_backend_name() == "postgresql"
    said = {"connect_timeout": answer_seconds} if is_postgresql and answer_seconds else {}
    engine = create_engine(url, poolclass=NullPool, execution_options=_READ_ONLY, connect_args=said)

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
    """Ends a connection at a moment, as its driver waits for a server that hangs without an end.

    A server's own limit ends nothing where the server itself hangs, or where the network has gone.
    """

    def __init__(self, fileno: int, seconds: float) -> None:
        # Of its own, as a number that the driver has closed may already be another file's.
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
    """End each connection of an engine that has not been given back in time."""
    deadlines: WeakKeyDictionary[DBAPIConnection, _Deadline] = WeakKeyDictionary()

    def connect(
        dialect: Dialect, record: ConnectionPoolEntry, given: Any, named: dict[str, Any]
    ) -> DBAPIConnection:
        # Before SQLAlchemy asks its first question, which is part of making a connection.
        connection: Any = dialect.connect(*given, **named)
        deadlines[connection] = _Deadline(connection.fileno(), seconds)
        return connection  # type: ignore[no-any-return]

    def close(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        if (deadline := deadlines.pop(connection, None)) is not None:
            deadline.cancel()

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "close", close)
