"""The rules of a broker as the monitor recorded them: settings, levels of the disk, windows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class LevelState(StrEnum):
    """What a broker does at the level of a disk."""

    OK = "ok"
    NOTICE = "notice"
    CLEANS = "cleans"
    FORCES = "forces"
    REFUSES = "refuses"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RuleLevels:
    """Whole percent of a disk; above each something begins; None: at no level.

    :param notice_percent: a person is told.
    :param cleans_percent: the broker deletes what has expired, at any hour.
    :param forces_percent: it deletes the oldest, whatever their age.
    :param refuses_percent: it takes no message.
    """

    notice_percent: int | None = None
    cleans_percent: int | None = None
    forces_percent: int | None = None
    refuses_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Windows:
    """The hours of a day in which a broker deletes what has expired, in its time zone."""

    hours: tuple[int, ...] = ()
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that held from a moment on.

    :param settings: by the broker's own names, as text.
    :param windows: None: the broker has none.
    """

    at_ms: int
    settings: Mapping[str, str] = field(default_factory=dict)
    levels: RuleLevels = RuleLevels()
    windows: Windows | None = None


def level_state(used_percent: int | None, rules: Rules | None) -> LevelState:
    """Return what a broker does at a level.

    :param used_percent: a whole percent, rounded up; None: not known.
    """
    if used_percent is None or rules is None:
        return LevelState.UNKNOWN
    levels = rules.levels
    for state, above in (
        (LevelState.REFUSES, levels.refuses_percent),
        (LevelState.FORCES, levels.forces_percent),
        (LevelState.CLEANS, levels.cleans_percent),
        (LevelState.NOTICE, levels.notice_percent),
    ):
        if above is not None and used_percent > above:
            return state
    return LevelState.OK
