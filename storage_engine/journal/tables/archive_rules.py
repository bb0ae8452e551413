"""Archive rules of stores, none of which is changed or removed, and the newest act of each lake.

Their tables are made with the first row, so a journal without any stays one that older releases use.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    MetaData,
    String,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
)

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.journal.records import RecordedRule

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


def put_lake_act(connection: Connection, lake_id: str, act: str) -> None:
    """Record that a lake has an act, and so all before it."""
    _metadata.create_all(connection)
    connection.execute(delete(_lake_acts).where(_lake_acts.c.lake_id == lake_id))
    connection.execute(insert(_lake_acts).values(lake_id=lake_id, act=act))


def read_lake_acts(connection: Connection) -> Mapping[str, str]:
    """Return the act that was recorded last of each lake, by its id."""
    if not inspect(connection).has_table(_lake_acts.name):
        return {}
    rows = connection.execute(select(_lake_acts.c.lake_id, _lake_acts.c.act))
    return {row.lake_id: row.act for row in rows}


def put_archive_rule(connection: Connection, rule: RecordedRule) -> None:
    """Record a rule of a store, unless it is there: the first time counts."""
    _metadata.create_all(connection)
    if all(known.rule != rule.rule for known in read_archive_rules(connection, rule.store_id)):
        connection.execute(insert(_archive_rules).values(**to_jsonable(rule)))


def read_archive_rules(connection: Connection, store_id: str) -> tuple[RecordedRule, ...]:
    """Return the rules that were recorded of a store, whether a lake still has them or not."""
    if not inspect(connection).has_table(_archive_rules.name):
        return ()
    rows = connection.execute(select(_archive_rules).where(_archive_rules.c.store_id == store_id))
    return tuple(from_jsonable(RecordedRule, dict(row._mapping)) for row in rows)
