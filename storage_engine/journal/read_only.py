"""Reaching a journal for reading alone: nothing is made or changed, not even a file beside it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.pool import NullPool

_READ_ONLY = {"storage_engine_read_only": True}


def read_only_engine(url: str, file: Path | None, answer_seconds: int | None = None) -> Engine:
    """Return an engine that reads one state of the journal.

    :param file: SQLite's; None: a server has it.
    :param answer_seconds: how long a server may take to take a connection, and for each question; None: as
        long as its driver waits.
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
    return engine
