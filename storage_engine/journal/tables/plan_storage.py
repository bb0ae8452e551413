"""How a run's plan is stored: decisions that hardly change from run to run are stored once a store.

What a run has of its own (moment, causes, notices) is in its row, together with the number of a stored list
of decisions and with what differs from it. A plan of 1,000 segments that says what the one before it said
takes a few hundred bytes. Plans of older journals have one log, and the oldest are whole in their run's row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, insert, select

from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.journal.records import Run
from storage_engine.journal.tables.plan_columns import pack, read_decisions, unpack
from storage_engine.journal.tables.schema import plans
from storage_engine.model.plan.plan import Decision, LogPlan, Plan

CHANGES_AT_MOST = 8
"""With more decisions that differ from the stored list, a list of its own is stored."""


def store_plan(connection: Connection, run: Run, plan: Plan) -> dict[str, Any]:
    """Store a plan's decisions as far as they differ from the store's last list.

    :return: what the run's row has to keep; :func:`read_plan` makes the plan of it.
    """
    head = to_jsonable(replace(plan, logs=()))
    head["logs"] = [[log.log, len(log.decisions)] for log in plan.logs]
    decisions = plan.decisions
    packed = pack(decisions)
    whole = {"skip": 0, "count": len(decisions), "changes": []}
    last = connection.execute(
        select(plans).where(plans.c.store_id == run.store_id).order_by(plans.c.id.desc()).limit(1)
    ).first()
    if last is not None:
        same = bytes(last.decisions) == packed
        changes = whole if same else difference(unpack(last.decisions), decisions)
        if changes is not None:
            return {**head, "decisions_in": last.id, **changes}
    row = {"store_id": run.store_id, "run_key": run.run_key, "decisions": packed, "at_ms": clock_ms()}
    added = connection.execute(insert(plans).values(**row)).inserted_primary_key
    assert added is not None
    return {**head, "decisions_in": added[0], **whole}


def read_plan(connection: Connection, stored: Mapping[str, Any]) -> Plan:
    """Return the plan that a run's row keeps, whole or as :func:`store_plan` made it."""
    head = dict(stored)
    if "decisions" in head:
        decisions = list(read_decisions(head.pop("decisions")))
    else:
        number, skip, count = head.pop("decisions_in"), head.pop("skip"), head.pop("count")
        changes = [(index, from_jsonable(Decision, row)) for index, row in head.pop("changes")]
        packed = connection.execute(select(plans.c.decisions).where(plans.c.id == number)).scalar_one()
        decisions = unpack(packed)[skip : skip + count]
        for index, decision in changes:
            decisions[index : index + 1] = [decision]
    # A plan of an older journal has one log, and names it.
    logs = head.pop("logs") if "logs" in head else [(head.pop("log"), len(decisions))]
    return replace(from_jsonable(Plan, {**head, "logs": []}), logs=_by_log(logs, decisions))


def _by_log(logs: Sequence[tuple[str, int]], decisions: Sequence[Decision]) -> tuple[LogPlan, ...]:
    """
    :raises ValueError: the counts don't sum up, or a decision is on another log's segment.
    """
    if sum(count for _, count in logs) != len(decisions):
        raise ValueError(f"expected the decisions of {logs}, found {len(decisions)}")
    plans_of_logs = []
    start = 0
    for name, count in logs:
        plans_of_logs.append(LogPlan(name, tuple(decisions[start : start + count])))
        start += count
    return tuple(plans_of_logs)


def difference(before: Sequence[Decision], now: Sequence[Decision]) -> dict[str, Any] | None:
    """Return what makes ``now`` of ``before``: the first that is taken, how many, and those that differ.

    :return: None where more than :data:`CHANGES_AT_MOST` differ.
    """
    skip = next((i for i, one in enumerate(before) if now and one.segment.id == now[0].segment.id), 0)
    kept = before[skip : skip + len(now)]
    changes: list[list[Any]] = []
    for i, one in enumerate(now):
        if i >= len(kept) or kept[i] != one:
            changes.append([i, to_jsonable(one)])
            if len(changes) > CHANGES_AT_MOST:
                return None
    return {"skip": skip, "count": len(now), "changes": changes}
