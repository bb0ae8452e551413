"""The forecast of a store, from its samples in the journal."""

from __future__ import annotations

from collections.abc import Sequence

from storage_engine.console.forecast import DAY_MS, HOUR_MS, SPAN_DAYS, Forecast, Room, forecast_of
from storage_engine.console.rules import RecordedLevels, rules_of
from storage_engine.journal.queries import JournalReader
from storage_engine.journal.sample_columns import Moment, Span, last_moments
from storage_engine.journal.store_summaries import StoreSummary


def store_forecast(reader: JournalReader, name: str, now_ms: int) -> Forecast:
    """Return what is to be expected of a store at the rates of the last days.

    :param name: the id of its connection; of a store that the journal doesn't know nothing is told.
    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: it is of another version.
    """
    summary = next(iter(reader.summaries((name,), now_ms)), None)
    if summary is None:
        return forecast_of((), None, RecordedLevels())
    moments = hourly_moments(reader, summary.store_id, SPAN_DAYS, now_ms)
    levels = RecordedLevels() if summary.rules is None else rules_of(summary.rules).levels
    return forecast_of(moments, _room(summary, moments), levels)


def hourly_moments(reader: JournalReader, store_id: str, days: int, now_ms: int) -> tuple[Moment, ...]:
    """Return the last sample of each hour that knows where the logs end."""
    span = Span(now_ms - days * DAY_MS, now_ms + 1, HOUR_MS)
    return reader.read(lambda connection: last_moments(connection, store_id, span))


def _room(summary: StoreSummary, moments: Sequence[Moment]) -> Room | None:
    known = [one for one in summary.levels if one.used_percent is not None]
    fullest = max(known, key=lambda one: one.used_percent or 0, default=None)
    if fullest is None or fullest.total_bytes is None or fullest.usable_bytes is None or not moments:
        return None
    last = moments[-1]
    log_bytes = (last.max_offset or 0) - (last.min_offset or 0)
    return Room(fullest.total_bytes, fullest.usable_bytes, log_bytes)
