"""What the last retention report of a store advises, as its journal has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from storage_engine.core.jsonable import from_jsonable
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.model.report.usage import RetentionReport

if TYPE_CHECKING:
    from storage_engine.journal.journal import Journal, StoreRecord


def usage_findings(journal: Journal, record: StoreRecord) -> Iterator[Finding]:
    """Yield what the last retention report says of the hours of deletion; nothing where there is none.

    :raises StorageEngineError: the journal can't be read.
    """
    from storage_engine.journal.journal import Step

    last = journal.last_result(record.store_id, Step.RETENTION_REPORT)
    if last is None:
        return
    advice = from_jsonable(RetentionReport, last.payload["result"]).advice
    if advice is not None:
        yield Finding(Severity.NOTE, "quiet-hour", advice.what, advice.advice)
