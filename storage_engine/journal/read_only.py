"""Reaching a journal for reading alone: nothing is made or changed, not even a file beside it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

_READ_ONLY = {"storage_engine_read_only": True}


def read_only_engine(url: str, file: Path | None) -> Engine:
    """Return an engine that reads one state of the journal.

    :param file: SQLite's; None: a server has it.
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
    engine = create_engine(url, poolclass=NullPool, execution_options=_READ_ONLY)
    if engine.dialect.name == "postgresql":
        event.listen(engine, "begin", _begin_read_only)
    return engine


def _begin_read_only(connection: Connection) -> None:
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
