"""The journal's record of a store's quarantines: their runs, their windows, and how each ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import QuarantineError
from storage_engine.journal.journal import Event, Journal, Phase, Run, Step
from storage_engine.journal.tables.leases import Lease
from storage_engine.model.store import Lineages
from storage_engine.retention.quarantine.places import Place

WHOLE = ""
"""Subject of events about a quarantine as a whole."""
_STAYS = "stays"
"""Subject of the event that says why a quarantine was not emptied."""
_ENDED = "ended"
"""Subject of the event that says why an undo can't be continued."""
STAYS_MS = 24 * HOUR_MS
"""Time in which a quarantine that had to stay starts no run by itself. If space is short, it is one hour."""


class QuarantineState(StrEnum):
    KEPT = "kept"
    EMPTYING = "emptying"
    EMPTIED = "emptied"
    UNDOING = "undoing"
    UNDONE = "undone"
    UNDO_ENDED = "undo-ended"
    """An undo was begun, and the rest can't come back because the broker has run after the deletion."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Files that a run has set aside.

    :param places: one for each file system.
    :param lineage: the store's lineage when the files were set aside.
    :param log_lineages: by log, the lineages then that differ from the store's.
    :param until_ms: end of its window, in milliseconds since the epoch.
    :param state_at_ms: time since which it is in this state.
    :param detail: why it was emptied, who undid the run, or why the undo can't be continued.
    :param stayed_at_ms: when it was last to be emptied and had to stay, or None if never.
    :param stayed_because: why it had to stay, as words of a sentence.
    :param came_back: an undo was begun, so some of its files may be back, whatever happened to the rest.
    :param signs: facts of files that show whether the broker has run since, or {} if that doesn't matter.
    """

    run_key: str
    places: tuple[Place, ...]
    lineage: int
    set_aside_at_ms: int
    until_ms: int
    state: QuarantineState = QuarantineState.KEPT
    state_at_ms: int = 0
    detail: str = ""
    log_lineages: Mapping[str, int] = field(default_factory=dict)
    stayed_at_ms: int | None = None
    stayed_because: str = ""
    signs: Mapping[str, str] = field(default_factory=dict)
    came_back: bool = False

    def stayed_lately(self, now_ms: int, *, space_is_short: bool) -> bool:
        """Return whether the quarantine had to stay so lately that it starts no run by itself.

        If the recorded time is in the future, the quarantine is checked again.
        """
        wait_ms = HOUR_MS if space_is_short else STAYS_MS
        return self.stayed_at_ms is not None and 0 <= now_ms - self.stayed_at_ms < wait_ms

    @property
    def there(self) -> bool:
        """Return whether the quarantine may have files."""
        return self.state not in (QuarantineState.EMPTIED, QuarantineState.UNDONE)


def quarantines(journal: Journal, store_id: str) -> tuple[Quarantine, ...]:
    """Return the quarantines of a store's runs, the oldest first."""
    events = list(journal.store_events(store_id, Step.QUARANTINE))
    if not events:
        return ()
    events += [
        event for step in (Step.EMPTY_QUARANTINE, Step.UNDO) for event in journal.store_events(store_id, step)
    ]
    by_run: dict[str, list[Event]] = {}
    for event in sorted(events, key=lambda event: event.event_id):
        by_run.setdefault(event.run_key, []).append(event)
    parsed = (_quarantine(run_key, of_run) for run_key, of_run in by_run.items())
    return tuple(quarantine for quarantine in parsed if quarantine is not None)


def known_directories(journal: Journal, store_id: str) -> frozenset[str]:
    """Return the directories of a store's quarantines that may have files according to the journal."""
    recorded = quarantines(journal, store_id)
    return frozenset(str(place.directory) for q in recorded if q.there for place in q.places)


def quarantine_of(journal: Journal, run: Run) -> Quarantine | None:
    """Return the quarantine of a run, or None."""
    steps = (Step.QUARANTINE, Step.EMPTY_QUARANTINE, Step.UNDO)
    return _quarantine(run.run_key, [event for event in journal.events(run) if event.step in steps])


def record_place(
    journal: Journal,
    run: Run,
    place: Place,
    *,
    lineages: Lineages,
    signs: Mapping[str, str],
    now_ms: int,
    until_ms: int,
    lease: Lease,
) -> None:
    """Record a place before any file is moved there."""
    payload = {
        "place": to_jsonable(place),
        "lineage": lineages.whole,
        "log_lineages": dict(lineages.of_logs),
        "set_aside_at_ms": now_ms,
        "until_ms": until_ms,
        **({"signs": dict(signs)} if signs else {}),
    }
    journal.record(run, Step.QUARANTINE, Phase.INTENT, [(str(place.directory), payload)], lease=lease)


def record_undo_ended(journal: Journal, run: Run, why: str, lease: Lease) -> None:
    """Record that an undo can't be continued. The remaining files are removed after the window."""
    payload = {"type": QuarantineError.__name__, "message": why}
    journal.record(run, Step.UNDO, Phase.ERROR, [(_ENDED, payload)], lease=lease)


def record_stays(
    journal: Journal, run: Run, quarantine: Quarantine, why: str, now_ms: int, lease: Lease
) -> None:
    """Record that a quarantine had to stay, at most once an hour for the same reason."""
    if not (quarantine.stayed_lately(now_ms, space_is_short=True) and quarantine.stayed_because == why):
        payload = {"type": QuarantineError.__name__, "message": why, "at_ms": now_ms}
        journal.record(run, Step.EMPTY_QUARANTINE, Phase.ERROR, [(_STAYS, payload)], lease=lease)


def _quarantine(run_key: str, events: Iterable[Event]) -> Quarantine | None:
    """Return the quarantine that a run's events record, or None.

    :param events: events of one run, the oldest first.
    """
    quarantine: Quarantine | None = None
    for event in events:
        payload = event.payload
        if event.step == Step.QUARANTINE:
            place = from_jsonable(Place, payload["place"])
            if quarantine is None:
                quarantine = Quarantine(
                    run_key=run_key,
                    places=(),
                    lineage=payload["lineage"],
                    log_lineages=payload.get("log_lineages", {}),
                    set_aside_at_ms=payload["set_aside_at_ms"],
                    until_ms=payload["until_ms"],
                    state_at_ms=payload["set_aside_at_ms"],
                )
            if place not in quarantine.places:
                quarantine = replace(quarantine, places=(*quarantine.places, place))
            # The first signs count: if the broker ran before the run continued, no undo is possible.
            quarantine = replace(quarantine, signs={**payload.get("signs", {}), **quarantine.signs})
        elif quarantine is not None and (event.subject, event.phase) == (_STAYS, Phase.ERROR):
            quarantine = replace(
                quarantine, stayed_at_ms=int(payload["at_ms"]), stayed_because=str(payload["message"])
            )
        elif quarantine is not None and (event.subject, event.phase) == (_ENDED, Phase.ERROR):
            detail = str(payload["message"])
            ended = QuarantineState.UNDO_ENDED
            quarantine = replace(quarantine, state=ended, state_at_ms=event.at_ms, detail=detail)
        elif quarantine is not None and event.subject == WHOLE and event.phase is not Phase.ERROR:
            over = event.phase is Phase.RESULT
            if event.step == Step.UNDO:
                state = QuarantineState.UNDONE if over else QuarantineState.UNDOING
            else:
                state = QuarantineState.EMPTIED if over else QuarantineState.EMPTYING
            detail = str(payload.get("detail", quarantine.detail))
            came_back = quarantine.came_back or event.step == Step.UNDO
            quarantine = replace(
                quarantine, state=state, state_at_ms=event.at_ms, detail=detail, came_back=came_back
            )
    return quarantine
