"""Keeps in the journal what :mod:`storage_engine.retention.range_memory` remembers, in a table of its own.

It is made where a monitor has looked. Where it can't be read, lakes and journal are read from the beginning.
"""

from __future__ import annotations

import json
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

from storage_engine.exceptions import BadInputError
from storage_engine.journal.database import JournalDatabase
from storage_engine.model.jsonable import from_jsonable, to_jsonable
from storage_engine.retention.range_memory import RangeMemory
from storage_engine.untrusted import MALFORMED

_VERSION = 1
"""Of the memory's fields; what another version kept counts as nothing."""

_metadata = MetaData()

_memories = Table(
    "storage_engine_range_memories",
    _metadata,
    Column("store_id", String(36), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("memory", LargeBinary, nullable=False),
)
"""JSON, compressed by zlib."""


def kept_ranges(journal_url: str, store_id: str) -> RangeMemory:
    """Return what the last look at a store kept; nothing is made or changed.

    :raises StorageEngineError: the journal can't be read.
    """
    query = select(_memories.c.memory).where(
        _memories.c.store_id == store_id, _memories.c.version == _VERSION
    )

    def read(connection: Connection) -> bytes | None:
        return connection.execute(query).scalar() if inspect(connection).has_table(_memories.name) else None

    stored = JournalDatabase(journal_url, read_only=True).read(read)
    if stored is None:
        return RangeMemory()
    try:
        return from_jsonable(RangeMemory, json.loads(zlib.decompress(stored)))
    except (zlib.error, BadInputError, *MALFORMED):
        return RangeMemory()


def keep_ranges(journal_url: str, store_id: str, memory: RangeMemory) -> None:
    """Keep it for the next look, in place of what was kept.

    :raises StorageEngineError: the journal can't be written.
    """
    content = zlib.compress(json.dumps(to_jsonable(memory)).encode())

    def write(connection: Connection) -> None:
        _metadata.create_all(connection)
        connection.execute(delete(_memories).where(_memories.c.store_id == store_id))
        connection.execute(insert(_memories).values(store_id=store_id, version=_VERSION, memory=content))

    JournalDatabase(journal_url).write(write, reserve=False)
