"""What others did to a held store, recorded once between two renewals of its hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.journal.journal import Journal
from storage_engine.journal.records import Event, Phase, Run, Step, StoreRecord
from storage_engine.model.hold import Drift, DriftKind, HoldMemory, HoldStatus
from storage_engine.model.plan.plan import PlanRequest

WATCH_RUN: Final = "watch"
"""Run of a store under which looks that belong to no run record what they find."""

DONE = frozenset({DriftKind.FENCE_MENDED, DriftKind.FENCE_NOT_MENDED, DriftKind.GIVEN_UP})
"""What we did ourselves, or tried to, between two runs, about what others did."""


def hold_memory(journal: Journal, store_id: str) -> HoldMemory:
    """Return what the store's broker folder remembers of its hold on it."""

    def record(found: Sequence[Drift]) -> None:
        store = journal.store_with_id(store_id)
        if found and store is not None:
            record_under_watch(journal, store, found)

    return journal.hold_memory(store_id, record)


def record_under_watch(journal: Journal, record: StoreRecord, found: Sequence[Drift]) -> None:
    """Record drift under :data:`WATCH_RUN`, as far as it wasn't recorded since the hold was renewed last."""
    run = journal.find_run(record.store_id, WATCH_RUN)
    record_drift(journal, record, run or journal.begin_run(record.store_id, WATCH_RUN, PlanRequest()), found)


def record_drift(journal: Journal, record: StoreRecord, run: Run, found: Sequence[Drift]) -> None:
    """Record what was not recorded since the hold was renewed last. Before that is done: then each segment
    that went is forgotten there.
    """
    if not found:
        return
    known = {event.subject for event in _since_renewal(journal, record)}
    new = {
        _subject(one): {"lineage": record.lineage_of(one.log), "disturbance": to_jsonable(one)}
        for one in found
        if _subject(one) not in known
    }
    journal.record(run, Step.DRIFT, Phase.RESULT, list(new.items()))


def untold_mends(journal: Journal, record: StoreRecord) -> tuple[Drift, ...]:
    """Return what was mended or given up, and no record of the hold has told: no look finds all of it.

    What is recorded while a run looks at the hold is older than that run's record of it, and not in it.
    """
    before, last = [None, None, *journal.store_events(record.store_id, Step.HOLD, Phase.RESULT)][-2:]
    told = from_jsonable(HoldStatus, last.payload["result"]).disturbances if last else ()
    known = {_subject(drift) for drift in told}
    found = []
    for event in journal.store_events(record.store_id, Step.DRIFT, Phase.RESULT):
        drift = from_jsonable(Drift, event.payload["disturbance"])
        is_new = last is None or event.event_id > last.event_id
        is_missed = before is None or event.event_id > before.event_id
        if drift.kind in DONE and (is_new or (is_missed and _subject(drift) not in known)):
            found.append(drift)
    return tuple(found)


def drift_since_renewal(journal: Journal, record: StoreRecord) -> tuple[Drift, ...]:
    """Return what was recorded since a run recorded the hold last: nobody may have told it yet."""
    events = _since_renewal(journal, record)
    return tuple(from_jsonable(Drift, event.payload["disturbance"]) for event in events)


def _since_renewal(journal: Journal, record: StoreRecord) -> list[Event]:
    renewed = journal.store_events(record.store_id, Step.HOLD, Phase.RESULT)
    since_ms = renewed[-1].at_ms if renewed else 0
    events = journal.store_events(record.store_id, Step.DRIFT, Phase.RESULT)
    return [event for event in events if event.at_ms >= since_ms]


def _subject(drift: Drift) -> str:
    """The same for the same thing, whatever was made out of it since."""
    if drift.start_offset < 0:
        return f"{drift.kind.value}: {drift.detail}"
    return f"{drift.kind.value}: {drift.log} [{drift.start_offset}, {drift.end_offset})"
