"""What somebody who waits for a cleanup's cause looks at: cheap enough to be asked every few seconds."""

from __future__ import annotations

from dataclasses import dataclass

from storage_engine.model.plan.plan import Trigger
from storage_engine.model.store.store import DiskUsage


@dataclass(frozen=True, slots=True)
class Watch:
    """The causes that hold now, by clock and disks alone; no segment was looked at.

    :param levels: every disk of the log, then the dependents' disk.
    :param deciding_percent: the highest of the levels that the broker's rules compare with its
        thresholds; None when all of them are unknown.
    :param ordinary_percent: above this level the broker cleans because of space; None: not known.
    :param next_window_ms: when the time of day is next a cause; the present while it is; None: never.
    :param known: False: the broker that has to say it couldn't be asked, as a notice tells: no cause holds,
        and none has ended.
    """

    watched_at_ms: int
    triggers: tuple[Trigger, ...]
    notices: tuple[str, ...]
    levels: tuple[DiskUsage, ...]
    deciding_percent: int | None
    ordinary_percent: int | None
    next_window_ms: int | None
    known: bool = True
