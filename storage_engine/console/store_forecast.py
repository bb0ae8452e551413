"""The forecast of a store, from its samples in the journal."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from storage_engine.brokers import find_broker
from storage_engine.console.forecast import SPAN_DAYS, Filled, Forecast, Room, forecast_of, forecast_of_disk
from storage_engine.console.rules import RecordedLevels, rules_of
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.sample_columns import (
    BucketSpan,
    Moment,
    disk_ids,
    last_moments,
    last_used_bytes,
)
from storage_engine.journal.reading.store_summaries import DiskLevel, StoreSummary


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
    if not find_broker(summary.broker).rows.offsets_count_bytes:
        looks = _hourly_looks(reader, summary, now_ms)
        return forecast_of_disk(looks, moments, _room(summary, moments), levels)
    return forecast_of(moments, _room(summary, moments), levels)


def hourly_moments(reader: JournalReader, store_id: str, days: int, now_ms: int) -> tuple[Moment, ...]:
    """Return the last sample of each hour that knows where the logs end."""
    span = BucketSpan(now_ms - days * DAY_MS, now_ms + 1, HOUR_MS)
    return reader.read(lambda connection: last_moments(connection, store_id, span))


def _hourly_looks(reader: JournalReader, summary: StoreSummary, now_ms: int) -> tuple[Filled, ...]:
    """Return the last look of each hour at the fullest disk."""
    fullest = _fullest(summary)
    if fullest is None:
        return ()
    span = BucketSpan(now_ms - SPAN_DAYS * DAY_MS, now_ms + 1, HOUR_MS)

    def read(connection: Connection) -> tuple[Filled, ...]:
        disk_id = disk_ids(connection, summary.store_id)[fullest.path]
        return tuple(Filled(*row) for row in last_used_bytes(connection, disk_id, span))

    return reader.read(read)


def _fullest(summary: StoreSummary) -> DiskLevel | None:
    known = [one for one in summary.levels if one.used_percent is not None]
    return max(known, key=lambda one: one.used_percent or 0, default=None)


def _room(summary: StoreSummary, moments: Sequence[Moment]) -> Room | None:
    fullest = _fullest(summary)
    if fullest is None or fullest.total_bytes is None or fullest.usable_bytes is None:
        return None
    log_bytes = (moments[-1].max_offset or 0) - (moments[-1].min_offset or 0) if moments else 0
    return Room(fullest.total_bytes, fullest.usable_bytes, log_bytes)
