"""What a store's broker still owes: delayed messages, timers, half messages. Computed from files alone.

The broker does not look at them when it deletes segments, and a deletion loses them nearly silently. What
can't be read, is missing where something says that it was there, or ends too early, makes its kind unknown.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from storage_engine.exceptions import BadInputError
from storage_engine.model.owed import Owed, OwedKind
from storage_engine.model.store import StoreSnapshot
from storage_engine.rocketmq.delay_levels import waiting_in_levels
from storage_engine.rocketmq.half_messages import undecided
from storage_engine.rocketmq.layout import StoreLayout
from storage_engine.rocketmq.owed_queue import Longs
from storage_engine.rocketmq.store_times import LogFile
from storage_engine.rocketmq.timers import waiting_timers

_WHEEL_STOPS = (
    "asked for offset 0 once it is gone, the broker reads the first frame that is left, and the whole timer "
    "wheel stops, restarts included, until timerSkipUnknownError=true"
)


def owed(layout: StoreLayout, snapshot: StoreSnapshot) -> tuple[Owed, ...]:
    """What is owed, one item a kind.

    :param snapshot: of the same store; beside a running broker, taken before.
    """
    log = [
        LogFile(segment.facts.path, segment.base_offset, segment.facts.size_bytes)
        for segment in snapshot.logs[0].segments
    ]

    def halves() -> tuple[Longs, Longs]:
        return undecided(layout, log), np.empty(0, np.int64)

    return (
        _owed(OwedKind.DELAYED, log[0].base_offset, lambda: waiting_in_levels(layout)),
        _owed(OwedKind.TIMER, log[0].base_offset, lambda: waiting_timers(layout, log)),
        _owed(OwedKind.HALF, log[0].base_offset, halves),
    )


def _owed(kind: OwedKind, log_min_offset: int, read: Callable[[], tuple[Longs, Longs]]) -> Owed:
    """:param read: gives physical offsets, and due times of as many messages or of none."""
    try:
        offsets, due = read()
    except (BadInputError, OSError) as error:
        return Owed(kind, None, error=str(error))
    there = offsets >= log_min_offset
    timed = due[there][due[there] >= 0] if len(due) else due
    known = len(timed) == int(there.sum()) > 0
    stops = kind is OwedKind.TIMER and bool((offsets == 0).any())
    return Owed(
        kind,
        count=int(there.sum()),
        first_offset=int(offsets[there].min()) if there.any() else None,
        first_due_ms=int(timed.min()) if known else None,
        last_due_ms=int(timed.max()) if known else None,
        lost=int((~there).sum()),
        consequence=_WHEEL_STOPS if stops else "",
    )
