"""The rules by which a store's broker deletes, as they were recorded; each in its caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select

from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.tables.schema import rules


@dataclass(frozen=True, slots=True)
class RulesRow:
    """The rules that held from a moment on, as JSON."""

    at_ms: int
    rules: Mapping[str, Any]


def put_rules(connection: Connection, store_id: str, found: Mapping[str, Any], at_ms: int) -> None:
    """Record rules, unless they are the last ones that were recorded; never before those."""
    mine = select(rules).where(rules.c.store_id == store_id).order_by(rules.c.at_ms.desc()).limit(1)
    last, now = connection.execute(mine).first(), to_jsonable(found)
    if last is not None and last.rules == now:
        return
    # A clock that was set back must not put new rules before old ones.
    from_ms = at_ms if last is None else max(at_ms, last.at_ms + 1)
    connection.execute(insert(rules).values(store_id=store_id, at_ms=from_ms, rules=now))


def read_rules(connection: Connection, store_id: str, start_ms: int, end_ms: int) -> tuple[RulesRow, ...]:
    """Return the rules that held between two moments, by time; the first may be older than that."""
    mine = rules.c.store_id == store_id
    first = select(func.max(rules.c.at_ms)).where(mine, rules.c.at_ms <= start_ms).scalar_subquery()
    query = (
        select(rules.c.at_ms, rules.c.rules)
        .where(mine, rules.c.at_ms >= func.coalesce(first, start_ms), rules.c.at_ms < end_ms)
        .order_by(rules.c.at_ms)
    )
    return tuple(RulesRow(row.at_ms, row.rules) for row in connection.execute(query))
