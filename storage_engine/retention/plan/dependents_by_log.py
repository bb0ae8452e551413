"""What goes after segments, found so that one log's broken queues or index hide nothing of another log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from storage_engine.exceptions import BadInputError, FileGoneError
from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.plan.plan import DependentFile
from storage_engine.model.store.store import StoreSnapshot
from storage_engine.retention.store.broker_answers import ask, list_dependents

_NAMED: Final = 3
"""So many files that can't be read are named."""
Unreadable = dict[str, BadInputError | FileGoneError | OSError]
"""By name of the log, why its dependents can't be told."""


def find_dependents(
    broker: BrokerStore, snapshot: StoreSnapshot, min_offsets: Mapping[str, int]
) -> tuple[tuple[DependentFile, ...], Unreadable]:
    """Find the files that point only below these offsets, and the logs of which that can't be told.

    :param snapshot: of the store as it is.
    :param min_offsets: by name, where logs are to begin.
    """
    if not min_offsets:
        return (), {}
    try:
        return list_dependents(broker, snapshot, min_offsets), {}
    except (BadInputError, FileGoneError, OSError) as error:
        unreadable = _unreadable(broker, snapshot, min_offsets, error)
        if not unreadable:
            raise
    readable = {log: offset for log, offset in min_offsets.items() if log not in unreadable}
    found, more = find_dependents(broker, snapshot, readable)
    return found, {**unreadable, **more}


def unread_dependents_notices(broker: BrokerStore, broker_name: str) -> tuple[str, ...]:
    """Say which files were left out when dependents were found last: they stay, as they can't be read."""
    doing = "tell what it left out of segments' dependents"
    unread = ask(broker_name, doing, lambda: [*map(str, broker.unread_dependents)])
    if not unread:
        return ()
    more = f", and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
    return (f"what depends on segments and can't be read stays: {'; '.join(unread[:_NAMED])}{more}",)


def _unreadable(
    broker: BrokerStore,
    snapshot: StoreSnapshot,
    min_offsets: Mapping[str, int],
    error: BadInputError | FileGoneError | OSError,
) -> Unreadable:
    """:param error: what is wrong with all of them together."""
    if len(min_offsets) == 1:
        return dict.fromkeys(min_offsets, error)
    found: Unreadable = {}
    for log, offset in min_offsets.items():
        try:
            list_dependents(broker, snapshot, {log: offset})
        except (BadInputError, FileGoneError, OSError) as of_log:
            found[log] = of_log
    return found
