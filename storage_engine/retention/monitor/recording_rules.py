"""Record by which rules a store's broker deletes, for pages that can't ask it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage_engine.brokers import find_broker
from storage_engine.core.jsonable import to_jsonable
from storage_engine.model.course.course import CourseStart, RuleLevels
from storage_engine.model.store.store import StoreSnapshot
from storage_engine.retention.doctor.levels import levels_of
from storage_engine.retention.store.broker_answers import ask
from storage_engine.retention.store.context import Context


def record_rules(context: Context, snapshot: StoreSnapshot, now_ms: int) -> CourseStart | None:
    """Record the rules in effect where they changed, and return what a simulation starts from.

    :return: None: that isn't known, or the broker can't be simulated.
    :raises StorageEngineError: the rules can't be told, or not be recorded.
    :raises OSError: a file can't be read.
    """
    kind = context.store.broker
    start = ask(kind, "say what a simulation starts from", lambda: context.broker.course_start(snapshot))
    found = rules_of(context, snapshot, None if start is None else start.time_zone, now_ms)
    context.journal.save_rules(context.record.store_id, found)
    return start


def rules_of(
    context: Context, snapshot: StoreSnapshot, time_zone: str | None, now_ms: int
) -> Mapping[str, Any]:
    """Return settings, levels and windows. Of the settings only those that a simulation can change.

    :param time_zone: IANA name, in which windows are meant; None: not known, and so are they.
    """
    kind = context.store.broker
    rules = find_broker(kind).rules
    if rules is None:
        # A level is told as the lowest at which something begins; here, as that above which it does.
        lowest = levels_of(context.broker, snapshot, now_ms)
        above = {"cleans_percent": lowest.cleans_percent, "forces_percent": lowest.forces_percent}
        levels = {name: None if percent is None else percent - 1 for name, percent in above.items()}
        return {"settings": {}, "levels": levels, "windows": None, "unsupported": ""}

    def tell() -> tuple[dict[str, str], RuleLevels, tuple[int, ...], str]:
        config = context.broker.rule_config()
        values = rules.values(config)
        return values, rules.levels(values), rules.hours(values), rules.unsupported(config)

    values, known, hours, unsupported = ask(kind, "tell its rules", tell)
    windows = None if time_zone is None else {"hours": hours, "time_zone": time_zone}
    told = {"settings": values, "levels": to_jsonable(known), "windows": windows}
    return {**told, "unsupported": unsupported}
