"""What is pending in a store: delayed messages, timers, half messages. Computed from files alone.

The broker does not look at them when it deletes segments, and a deletion loses them nearly silently. What
can't be read, is missing where something says that it was there, or ends too early, makes its kind unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError, StoreBusyError
from storage_engine.model.broker.pending import Pending, PendingKind
from storage_engine.rocketmq.codec.store_times import LogFile
from storage_engine.rocketmq.codec.stored_messages import Longs
from storage_engine.rocketmq.format.layout import LOG, StoreLayout, list_segments
from storage_engine.rocketmq.format.rereading import reread
from storage_engine.rocketmq.pending.delay_levels import waiting_in_levels
from storage_engine.rocketmq.pending.half_messages import undecided
from storage_engine.rocketmq.pending.rocksdb_traces import refuse_halves_in_rocksdb, refuse_timers_in_rocksdb
from storage_engine.rocketmq.pending.timers import waiting_timers

_Reader: TypeAlias = Callable[[Sequence[LogFile]], tuple[Longs, Longs]]
"""Of a kind: physical offsets, and due times of as many messages or of none."""

_WHEEL_STOPS = (
    "asked for offset 0 once it is gone, the broker reads the first frame that is left, and the whole timer "
    "wheel stops, restarts included, until timerSkipUnknownError=true"
)


def pending(layout: StoreLayout, *, attempts: int = 1) -> tuple[Pending, ...]:
    """Return what is pending, one item a kind.

    Of a kind's files those that say how far the broker is are read first: what it does meanwhile is pending
    still, by them. What comes in while they are read may be missing; it lies behind any segment that was
    sealed before.

    :param attempts: how often files are read that don't fit together; beside a running broker more than one.
    """

    def timers(log: Sequence[LogFile]) -> tuple[Longs, Longs]:
        refuse_timers_in_rocksdb(layout)
        return waiting_timers(layout, log)

    def halves(log: Sequence[LogFile]) -> tuple[Longs, Longs]:
        refuse_halves_in_rocksdb(layout, log[0].base_offset)
        return undecided(layout, log), np.empty(0, np.int64)

    readers: dict[PendingKind, _Reader] = {
        PendingKind.DELAYED: lambda _: waiting_in_levels(layout),
        PendingKind.TIMER: timers,
        PendingKind.HALF: halves,
    }
    return tuple(_pending(kind, layout, reader, attempts) for kind, reader in readers.items())


def _pending(kind: PendingKind, layout: StoreLayout, reader: _Reader, attempts: int) -> Pending:
    def read() -> tuple[int, Longs, Longs]:
        log = [LogFile(str(file.path), file.base_offset, file.size_bytes) for file in list_segments(layout)]
        return log[0].base_offset, *reader(log)

    try:
        log_min_offset, offsets, due = reread(read, attempts)
    except (BadInputError, StoreBusyError, OSError) as error:
        return Pending(kind, None, error=reason_text(error), log=LOG)
    there = offsets >= log_min_offset
    timed = due[there][due[there] >= 0] if len(due) else due
    known = len(timed) == int(there.sum()) > 0
    stops = kind is PendingKind.TIMER and bool((offsets == 0).any())
    return Pending(
        kind,
        count=int(there.sum()),
        first_offset=int(offsets[there].min()) if there.any() else None,
        first_due_ms=int(timed.min()) if known else None,
        last_due_ms=int(timed.max()) if known else None,
        lost=int((~there).sum()),
        consequence=_WHEEL_STOPS if stops else "",
        log=LOG,
    )
