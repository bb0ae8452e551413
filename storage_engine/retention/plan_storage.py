"""How a run's plan is stored: decisions that hardly change from run to run are stored once a store.

What a run has of its own (moment, causes, notices) is in its row, together with the number of a stored list
of decisions and with what differs from it. A plan of 1,000 segments that says what the one before it said
takes a few hundred bytes. Plans of older journals are whole in their run's row.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from storage_engine.model.jsonable import from_jsonable, to_jsonable
from storage_engine.model.plan import Plan
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.journal_records import Run
from storage_engine.retention.journal_schema import plans

CHANGES_AT_MOST = 8
"""With more decisions that differ from the stored list, a list of its own is stored."""

_Decisions = list[dict[str, Any]]


def store_plan(connection: Connection, run: Run, plan: Plan) -> dict[str, Any]:
    """Store a plan's decisions as far as they differ from the store's last list.

    :return: what the run's row has to keep; :func:`read_plan` makes the plan of it.
    """
    head = to_jsonable(plan)
    decisions: _Decisions = head.pop("decisions")
    last = connection.execute(
        select(plans).where(plans.c.store_id == run.store_id).order_by(plans.c.id.desc()).limit(1)
    ).first()
    changes = None if last is None else difference(_unpack(last.decisions), decisions)
    if last is not None and changes is not None:
        return {**head, "decisions_in": last.id, **changes}
    row = {
        "store_id": run.store_id,
        "run_key": run.run_key,
        "decisions": _pack(decisions),
        "at_ms": clock_ms(),
    }
    added = connection.execute(insert(plans).values(**row)).inserted_primary_key
    assert added is not None
    return {**head, "decisions_in": added[0], "skip": 0, "count": len(decisions), "changes": []}


def read_plan(connection: Connection, stored: Mapping[str, Any]) -> Plan:
    """Return the plan that a run's row keeps, whole or as :func:`store_plan` made it."""
    if "decisions" in stored:
        return from_jsonable(Plan, stored)
    head = dict(stored)
    number, skip, count = head.pop("decisions_in"), head.pop("skip"), head.pop("count")
    changes = head.pop("changes")
    packed = connection.execute(select(plans.c.decisions).where(plans.c.id == number)).scalar_one()
    decisions = [*_unpack(packed)[skip : skip + count]]
    for index, decision in changes:
        decisions[index : index + 1] = [decision]
    return from_jsonable(Plan, {**head, "decisions": decisions})


def difference(before: _Decisions, now: _Decisions) -> dict[str, Any] | None:
    """Return what makes ``now`` of ``before``: the first that is taken, how many, and those that differ.

    :return: None where more than :data:`CHANGES_AT_MOST` differ.
    """
    skip = next((i for i, one in enumerate(before) if now and _subject(one) == _subject(now[0])), 0)
    kept: Sequence[Any] = before[skip : skip + len(now)]
    changes = [[i, one] for i, one in enumerate(now) if i >= len(kept) or kept[i] != one]
    if len(changes) > CHANGES_AT_MOST:
        return None
    return {"skip": skip, "count": len(now), "changes": changes}


def _subject(decision: Mapping[str, Any]) -> tuple[str, int]:
    return decision["segment"]["log"], decision["segment"]["base_offset"]


def _pack(decisions: _Decisions) -> bytes:
    """Compressed, as decisions repeat each other: a tenth of their size."""
    return zlib.compress(json.dumps(decisions, separators=(",", ":")).encode())


def _unpack(packed: bytes) -> _Decisions:
    decisions: _Decisions = json.loads(zlib.decompress(packed))
    return decisions
