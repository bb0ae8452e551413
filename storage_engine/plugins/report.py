"""Reports of runs, from the journal that the store's connection names: a page, or the story in short."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from html import escape
from typing import Any

from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.journal.reading.answers import StoredReport
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.pages.report import report_html
from storage_engine.pages.story import of_any_release, tell
from storage_engine.pages.summary import LakeForecast, keep_page
from storage_engine.plugins.journals import journal_of
from storage_engine.retention.housekeeping.kept_forecasts import read_forecasts

_log = logging.getLogger(__name__)

_NONE = (
    "This run has no report of its own. Either nothing was due, or its last task has not run yet, or the "
    "task belongs to no cleanup, as those of storage_monitor and storage_flush_checkpoint. A report that has "
    "expired is gone, too."
)


class NoSuchStoreError(StorageEngineError):
    """There is no such store here."""


def report_of_run(conn_id: str, run_key: str) -> str:
    """Return the page of a run's report; where it has none, one that says so.

    :raises NoSuchStoreError: there is no such store.
    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: a newer release wrote the journal or the report.
    """
    try:
        reader = journal_of(conn_id)
    except BadInputError as error:
        raise NoSuchStoreError(str(error)) from error
    if (found := _stored(reader, conn_id, run_key)) is not None:
        return report_html(found.report, version=found.version)
    return message_html(run_key, _NONE)


def report_or_none(conn_id: str, run_key: str) -> str:
    """Return the page of a run's report; whatever keeps it from being shown, that there is none.

    :param conn_id: of a connection that who asks may know nothing of.
    """
    try:
        return report_of_run(conn_id, run_key)
    except StorageEngineError as error:
        _log.warning("report of %s: %s", run_key, error)
        return message_html(run_key, _NONE)


def keep_of_store(conn_id: str, price: float | None) -> str:
    """Return the page of what a store's lakes keep, as it was forecast last.

    :param price: of 10⁹ bytes for a month.
    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: there is no such store, or a newer release wrote its journal.
    """
    reader = journal_of(conn_id)
    store_id = reader.store_id(conn_id)
    kept = () if store_id is None else read_forecasts(reader, store_id)
    return keep_page(conn_id, tuple(LakeForecast(it.at_ms, it.forecast) for it in kept), price)


def run_in_short(conn_id: str, run_key: str) -> Mapping[str, Any]:
    """Return a run's outcome, in the words of its report's first screen.

    :return: as JSON; without a report, outcome and story are None.
    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: there is no such store, or a newer release wrote its journal.
    """
    found = _stored(journal_of(conn_id), conn_id, run_key)
    report = None if found is None else of_any_release(found.report)
    return {
        "run_key": run_key,
        "outcome": report and report["outcome"],
        "story": report and tell(report),
    }


def _stored(reader: JournalReader, conn_id: str, run_key: str) -> StoredReport | None:
    store_id = reader.store_id(conn_id)
    return None if store_id is None else reader.report(store_id, run_key)


def message_html(title: str, text: str) -> str:
    """Return a page of one sentence."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:45rem;"
        "margin:2rem auto;padding:0 1rem;color-scheme:light dark}h1{font-size:1.2rem;overflow-wrap:anywhere}"
        f"</style></head><body><main><h1>{escape(title)}</h1><p>{escape(text)}</p></main></body></html>"
    )
