"""The page of a run's report, from the journal that the store's connection names."""

from __future__ import annotations

from html import escape

from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.journal.queries import JournalReader
from storage_engine.pages.report import report_html

_NONE = (
    "This run has no report of its own. Either nothing was due, or its last task has not run yet, or the "
    "task belongs to no cleanup, as those of storage_monitor and storage_flush_checkpoint. A report that has "
    "expired is gone, too."
)


class NoSuchRunError(StorageEngineError):
    """There is no such store here."""


def report_of_run(conn_id: str, run_key: str) -> str:
    """Return the page of a run's report; where it has none, one that says so.

    :param conn_id: of the store's connection.
    :raises NoSuchRunError: there is no such store.
    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: a newer release wrote the journal or the report.
    """
    try:
        reader = JournalReader(StorageEngineHook(conn_id).journal_url)
    except BadInputError as error:
        raise NoSuchRunError(str(error)) from error
    for store in reader.stores():
        if store.name == conn_id and (found := reader.report(store.store_id, run_key)) is not None:
            return report_html(found.report, version=found.version)
    return message_html(run_key, _NONE)


def message_html(title: str, text: str) -> str:
    """Return a page of one sentence."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:45rem;"
        "margin:2rem auto;padding:0 1rem;color-scheme:light dark}h1{font-size:1.2rem;overflow-wrap:anywhere}"
        f"</style></head><body><main><h1>{escape(title)}</h1><p>{escape(text)}</p></main></body></html>"
    )
