"""The last forecast of each lake of a store, kept in its journal.

Airflow's API server reads it for a page: nothing here imports modules that read segments or lakes.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.model.keep.expiry_rules import KeepForecast
from storage_engine.retention.proof.verification_memory import KeptRows

_VERSION = 1
_KEPT = KeptRows("storage_engine_keep_forecasts", "forecasts")


@dataclass(frozen=True, slots=True)
class KeptForecast:
    """:param at_ms: when the forecast was made, in milliseconds since the epoch."""

    at_ms: int
    forecast: KeepForecast


@dataclass(frozen=True, slots=True)
class _Forecasts:
    forecasts: tuple[KeptForecast, ...]


def keep_forecast(journal_url: str, forecast: KeepForecast, now_ms: int) -> None:
    """Keep a lake's forecast for each of its stores. The forecasts of the stores' other lakes stay.

    :raises StorageEngineError: the journal can't be read or written.
    """
    for store_id in {topic.store_id for topic in forecast.topics}:
        topics = tuple(topic for topic in forecast.topics if topic.store_id == store_id)
        others = (
            row
            for row in read_forecasts(JournalReader(journal_url), store_id)
            if row.forecast.location != forecast.location
        )
        kept = _Forecasts((*others, KeptForecast(now_ms, replace(forecast, topics=topics))))
        _KEPT.write(journal_url, store_id, _VERSION, json.dumps(to_jsonable(kept)))


def read_forecasts(reader: JournalReader, store_id: str) -> tuple[KeptForecast, ...]:
    """Return the last forecast of each lake of a store. A forecast that a newer release kept is left out.

    :raises JournalUnavailableError: the journal can't be read.
    """
    kept = reader.read(lambda connection: _KEPT.read_row(connection, store_id))
    if kept is None or kept[0] != _VERSION:
        return ()
    return from_jsonable(_Forecasts, json.loads(zlib.decompress(kept[1]))).forecasts
