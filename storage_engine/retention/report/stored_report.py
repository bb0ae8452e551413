"""A report as the journal keeps it, made one again."""

from __future__ import annotations

from storage_engine.core.jsonable import from_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.answers import StoredReport
from storage_engine.journal.records import REPORT_VERSION
from storage_engine.retention.report.report import Report


def report_of(stored: StoredReport) -> Report:
    """Make it.

    :raises BadInputError: it is of a release whose reports have other fields.
    """
    fields = {name: value for name, value in stored.report.items() if name != "ok"}
    run = fields.get("run_key", "")
    if stored.version != REPORT_VERSION:
        raise BadInputError(
            f"run {run}: expected a report of version {REPORT_VERSION}, found version {stored.version}. "
            "Nothing was changed. Use the release that wrote it; --json shows it as it is."
        )
    return from_jsonable(Report, fields, f"report of run {run}")
