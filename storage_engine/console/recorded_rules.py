"""The rules of a broker as the monitor recorded them: settings, disk levels, windows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from storage_engine.core.clock import hour_spans_ms
from storage_engine.core.jsonable import filled
from storage_engine.journal.tables.rows import RulesRow

Spans = tuple[tuple[int, int], ...]


class LevelState(StrEnum):
    """What the broker does at a disk's level."""

    OK = "ok"
    NOTICE = "notice"
    CLEANS = "cleans"
    FORCES = "forces"
    REFUSES = "refuses"
    NO_LEVEL = "no-level"
    """The broker does nothing, however full the disk is."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RecordedLevels:
    """Levels of a disk in whole percent; None if there is no such level, or it was not recorded.

    :param notice_percent: above it, a person gets a notice.
    :param cleans_percent: above it, the broker deletes expired segments at any hour.
    :param forces_percent: above it, the broker deletes the oldest segments, whatever their age.
    :param refuses_percent: above it, the broker refuses messages.
    :param accepts_percent: at or below it, the broker accepts messages again.
    """

    notice_percent: int | None = None
    cleans_percent: int | None = None
    forces_percent: int | None = None
    refuses_percent: int | None = None
    accepts_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Windows:
    """The hours of a day in which a broker deletes expired segments, in its time zone."""

    hours: tuple[int, ...] = ()
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that were in effect from a moment on.

    :param settings: values as text, under the broker's own names.
    :param windows: the hours of deletion by age; None if the broker has no such hours.
    :param unsupported: why a store with these settings can't be simulated; "" if it can.
    """

    at_ms: int
    settings: Mapping[str, str] = field(default_factory=dict)
    levels: RecordedLevels = RecordedLevels()
    windows: Windows | None = None
    unsupported: str = ""


def rules_of(row: RulesRow) -> Rules:
    """Return recorded rules. Fields that only a newer release knows are left out."""
    levels, windows = row.rules.get("levels") or {}, row.rules.get("windows")
    return Rules(
        row.at_ms,
        row.rules.get("settings") or {},
        filled(RecordedLevels, levels),
        None if windows is None else Windows(tuple(windows["hours"]), windows["time_zone"]),
        row.rules.get("unsupported") or "",
    )


def rules_at(rules: Sequence[Rules], at_ms: int) -> Rules | None:
    """Return the rules in effect at a moment; None if no rules were recorded yet.

    :param rules: rules in the order of time.
    """
    return next((entry for entry in reversed(rules) if entry.at_ms <= at_ms), None)


def level_state(used_percent: int | None, rules: Rules | None) -> LevelState:
    """Return what the broker does at a disk's level.

    :param used_percent: a whole percent, rounded up; None if unknown.
    """
    if used_percent is None or rules is None:
        return LevelState.UNKNOWN
    levels = rules.levels
    if levels == RecordedLevels():
        return LevelState.NO_LEVEL
    for state, above in (
        (LevelState.REFUSES, levels.refuses_percent),
        (LevelState.FORCES, levels.forces_percent),
        (LevelState.CLEANS, levels.cleans_percent),
        (LevelState.NOTICE, levels.notice_percent),
    ):
        if above is not None and used_percent > above:
            return state
    return LevelState.OK


def window_spans(windows: Windows, start_ms: int, end_ms: int) -> Spans:
    """Return the windows between two moments in the order of time, cut at the span's beginning and end.

    An hour outside 0 to 23 gives no window. With only such hours, the broker never deletes by age alone.
    """
    try:
        zone = ZoneInfo(windows.time_zone)
    except (ZoneInfoNotFoundError, ValueError):
        return ()
    return hour_spans_ms(start_ms, end_ms, windows.hours, zone)
