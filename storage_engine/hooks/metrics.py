"""Gives Airflow's metrics, where it sends any, what the journal knows of a store."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import Stats, conf

from storage_engine.core.clock import clock_ms
from storage_engine.hooks.storage_engine import StorageEngineHook

_ANSWER_SECONDS = 5
_log = logging.getLogger(__name__)


@contextmanager
def metrics_sent(conn_id: str) -> Iterator[None]:
    """Send a store's figures when its task ends, well or not; not while it waits, or its time is up.

    Nothing of the store is looked at, so that no disk that hangs holds the task up.

    :param conn_id: connection of the store.
    """
    try:
        yield
    except AirflowRescheduleException:
        # A sensor that looks again later.
        raise
    except Exception:
        _send(conn_id)
        raise
    _send(conn_id)


def _send(conn_id: str) -> None:
    """Send them. Plain StatsD drops tags: there the connection, and a disk's path, stand in the name.

    What fails is one warning: what the task did stands.
    """
    try:
        datadog, influxdb, statsd, otel = (
            conf.getboolean("metrics", name, fallback=False)
            for name in ("statsd_datadog_enabled", "statsd_influxdb_enabled", "statsd_on", "otel_on")
        )
        if not (datadog or statsd or otel):
            return
        drops_tags = statsd and not (datadog or influxdb)
        from storage_engine.console.metrics import read_samples
        from storage_engine.journal.reading.queries import JournalReader

        journal = JournalReader(StorageEngineHook(conn_id).journal_url, _ANSWER_SECONDS)
        for one in read_samples(journal, [conn_id], clock_ms()):
            tags = {"store": conn_id, **({"path": one.path} if one.path else {})}
            named = (re.sub(r"[^\w-]+", "_", it) for it in tags.values()) if drops_tags else ()
            Stats.gauge(".".join(["storage_engine", *named, one.metric]), one.value, tags=tags)
    except Exception as error:
        _log.warning("%s: metrics of the store are sent to nobody: %s", conn_id, error)
