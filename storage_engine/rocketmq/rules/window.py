"""The deleteWhen window: the hours of the day in which the broker cleans by age. Pure."""

from __future__ import annotations

from collections.abc import Collection
from zoneinfo import ZoneInfo

import tzlocal

from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import BadInputError
from storage_engine.model.course import hour_changes_ms

_SEARCH_MS = 8 * 24 * HOUR_MS
"""An hour that a day leaves out (a change of the clock, a skipped date) comes again within days."""


def time_zone(name: str | None) -> ZoneInfo:
    """The zone that a store's deleteWhen is meant in.

    :param name: IANA name; None: this machine's zone, with its rules for daylight saving time.
    :raises BadInputError: no such zone, or this machine's can't be made out.
    """
    try:
        return tzlocal.reload_localzone() if name is None else ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        what = "this machine's time zone" if name is None else f"time zone {name!r}"
        raise BadInputError(
            f"{what}: expected an IANA name such as Asia/Shanghai, found none with data ({error}). "
            "Set the store's time_zone."
        ) from error


def next_window_ms(now_ms: int, hours: Collection[int], zone: ZoneInfo) -> int | None:
    """Return when the window is next open: now if it is, else at the next beginning of one of its hours.

    An hour that a change of the clock leaves out has no window that day, one that comes twice has two.

    :return: milliseconds since the epoch; None when no clock ever shows one of the hours.
    """
    if not any(0 <= hour <= 23 for hour in hours):
        return None
    return next(hour_changes_ms(now_ms, now_ms + _SEARCH_MS, hours, zone), None)
