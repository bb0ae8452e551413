"""A clock that is off, seen by times that lie in the future. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage_engine.core.wording import count_text, duration_text, time_text
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.model.store.store import Segment

SLACK_MS = 60_000
"""Between the clocks of two machines that are well."""


def clock_findings(
    segments: Sequence[Segment],
    newest_message_ms: int | None,
    last_sample_ms: int | None,
    now_ms: int,
    jumped_ms: int = 0,
) -> Iterator[Finding]:
    """Yield times that are later than now, and a jump of the clock: reasons not to believe in ages.

    :param segments: with the times that they had before a hold.
    :param newest_message_ms: when the newest message was stored.
    :param last_sample_ms: when the journal's last sample was taken.
    :param jumped_ms: by how much this machine's clock was set forward within a day.
    """
    latest = now_ms + SLACK_MS
    future = [one for one in segments if one.mtime_ns // 1_000_000 > latest]
    advice = "put this machine's clock right (chronyc tracking), or find out who set the time"
    if jumped_ms:
        yield Finding(
            Severity.WARNING,
            "clock",
            f"this machine's clock was set forward by {duration_text(jumped_ms)} in the last day: segments "
            "look older than they are, and no run deletes by age before a day is over",
            advice,
        )
    if future:
        last_ms = max(one.mtime_ns for one in future) // 1_000_000
        yield Finding(
            Severity.WARNING,
            "clock",
            f"{count_text(len(future), 'segment')} written in the future, the latest {future[-1].name} at "
            f"{time_text(last_ms)}: nothing of them or behind them expires before",
            advice,
        )
    for at_ms, what in (
        (newest_message_ms, "newest message was stored"),
        (last_sample_ms, "last sample is of"),
    ):
        if at_ms is not None and at_ms > latest:
            yield Finding(
                Severity.WARNING,
                "clock",
                f"the {what} {time_text(at_ms)}, which is {duration_text(at_ms - now_ms)} after now: this "
                "clock or that one is off, and ages can't be believed",
                advice,
            )
