"""Keeps in the journal where logs were seen, in a table of its own that the first look makes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

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

from storage_engine.exceptions import RunStateError
from storage_engine.journal.database import JournalDatabase
from storage_engine.model.jsonable import from_jsonable, to_jsonable
from storage_engine.retention.seen_logs import SeenLog

_VERSION = 1

_metadata = MetaData()

_seen = Table(
    "storage_engine_seen_logs",
    _metadata,
    Column("store_id", String(36), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("logs", LargeBinary, nullable=False),
)
"""JSON, compressed by zlib."""


@dataclass(frozen=True, slots=True)
class _Logs:
    logs: tuple[SeenLog, ...]


def kept_logs(journal_url: str, store_id: str) -> tuple[SeenLog, ...] | None:
    """Return the logs of a store as they were seen; None: nothing was ever kept. Nothing is made or changed.

    :raises RunStateError: a newer release has kept it.
    :raises StorageEngineError: the journal can't be read.
    """
    query = select(_seen.c.version, _seen.c.logs).where(_seen.c.store_id == store_id)

    def read(connection: Connection) -> tuple[int, bytes] | None:
        if not inspect(connection).has_table(_seen.name):
            return None
        row = connection.execute(query).first()
        return None if row is None else (row.version, row.logs)

    found = JournalDatabase(journal_url, read_only=True).read(read)
    if found is None:
        return None
    version, content = found
    if version != _VERSION:
        raise RunStateError(
            f"store {store_id}: expected its logs as they were seen in version {_VERSION}, found version "
            f"{version}. Nothing was changed. Use the release of storage-engine that wrote it."
        )
    return from_jsonable(_Logs, json.loads(zlib.decompress(content))).logs


def keep_logs(journal_url: str, store_id: str, logs: Sequence[SeenLog]) -> None:
    """Keep them, in place of what was kept.

    :raises StorageEngineError: the journal can't be written.
    """
    content = zlib.compress(json.dumps(to_jsonable(_Logs(tuple(logs)))).encode())

    def write(connection: Connection) -> None:
        _metadata.create_all(connection)
        connection.execute(delete(_seen).where(_seen.c.store_id == store_id))
        connection.execute(insert(_seen).values(store_id=store_id, version=_VERSION, logs=content))

    JournalDatabase(journal_url).write(write)
