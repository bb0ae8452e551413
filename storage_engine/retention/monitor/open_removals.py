"""Removals of a broker's left-overs that a killed run meant and has no result of, settled by what is there.

That all is gone doesn't prove that we removed it: a broker that was started meanwhile does the same. Where
the disk itself may be missing, not even that is certain, and the removal stays open.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import StoreBusyError, StoreCrashedError
from storage_engine.journal.journal import Event, Phase, Run, Step
from storage_engine.journal.tables.leases import Lease
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.retention.store.broker_answers import ask
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.stamp import missing_stamps

UNKNOWN = "gone, by whom is unknown"
Notes = Mapping[str, Sequence[str]]
"""By task, clauses of what was settled and of what stays open."""


def open_removals(context: Context, tasks: Collection[str]) -> tuple[Event, ...]:
    """Return the intents of these tasks that have no result, and of whose files none is found."""
    events = context.journal.store_events(context.record.store_id, Step.BROKER_TASK)
    ended = {(event.run_key, event.subject) for event in events if event.phase is Phase.RESULT}
    found: dict[tuple[str, str], Event] = {}
    for event in events:
        key = (event.run_key, event.subject)
        if event.phase is Phase.INTENT and key not in ended and event.payload["task"] in tasks:
            # A run that was killed in the middle says less the second time.
            found.setdefault(key, event)
    return tuple(event for event in found.values() if _is_gone(event))


def settle_removals(context: Context, run: Run, tasks: Collection[str], lease: Lease) -> Notes:
    """Record of what is gone that it is, durably. Called while the store is held.

    :param run: the one that settles; of another one's removals it says so itself.
    """
    lacking = missing_stamps(context.store.real_root)
    notes: dict[str, list[str]] = {}
    for event in open_removals(context, tasks):
        said = notes.setdefault(event.payload["task"], [])
        if why := _flushed(context, event, lacking):
            said.append(_stays_open(event, why))
            continue
        result = {"size_bytes": event.payload["size_bytes"], "said": UNKNOWN}
        context.journal.record(
            context.run(event.run_key),
            Step.BROKER_TASK,
            Phase.RESULT,
            [(event.subject, result)],
            lease=lease,
        )
        if event.run_key != run.run_key:
            said.append(f"{event.subject}: {UNKNOWN}: run {event.run_key} was killed while it removed it")
    return notes


def settle_alone(context: Context, run: Run, tasks: Collection[str], now_ms: int) -> Notes:
    """Settle where nothing else is to be removed: what keeps from it is told, and ends nothing."""
    broker = context.broker
    if broker.is_live or ask(context.store.broker, "tell whether it runs", lambda: broker.used_by):
        why = "its broker runs"
    else:
        try:
            with context.changing(now_ms) as held:
                return settle_removals(context, run, tasks, held.lease)
        except (StoreBusyError, StoreCrashedError) as error:
            why = reason_of(error)
    notes: dict[str, list[str]] = {}
    for event in open_removals(context, tasks):
        notes.setdefault(event.payload["task"], []).append(_stays_open(event, why))
    return notes


def _stays_open(event: Event, why: str) -> str:
    return f"{event.subject}: whether run {event.run_key} removed it stays open: {why}"


def _is_gone(event: Event) -> bool:
    directory = event.payload["directory"]
    return not any(map(_may_be_there, (*event.payload["files"], *((directory,) if directory else ()))))


def _may_be_there(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _flushed(context: Context, event: Event, lacking: Collection[Path]) -> str:
    """Flush what is left above the files; return why it isn't certain that they are gone, "" where it is."""
    path = Path(event.payload["directory"] or event.payload["files"][0]).parent
    home = max((one for one in context.data_paths if path.is_relative_to(one)), key=_depth, default=None)
    if home is None:
        return f"{path} is in no directory of the store any more"
    if not ask(context.store.broker, "tell its directories", lambda: context.broker.is_present(home)):
        return f"{home} isn't what it was: is its disk mounted?"
    if home in lacking:
        return f"{home} lacks the store's stamp: was its disk replaced?"
    try:
        while not path.is_dir():
            path = path.parent
        durable.fsync_path(path)
    except OSError as error:
        return f"{path} can't be flushed: {reason_text(error)}"
    return ""


def _depth(path: Path) -> int:
    return len(path.parts)
