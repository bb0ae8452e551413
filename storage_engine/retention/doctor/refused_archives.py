"""Logs that no archive takes before somebody mends them: to archive again is no advice for these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import count_text, shortened
from storage_engine.journal.journal import Journal, Phase, Step, StoreRecord
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.model.store.store import Segment
from storage_engine.retention.proof.refusing import LOGS_SHOWN, REFUSED, RefusedLog

_WHY_WIDTH = 600


def refused_by_last_archive(
    journal: Journal | None, record: StoreRecord | None, unproven: Sequence[Segment]
) -> tuple[RefusedLog, ...]:
    """Return the logs with unproven segments that the last archive refused, by name.

    :param journal: None: there is none yet, so that nothing was archived; likewise the store's record.
    :raises StorageEngineError: the journal can't be read.
    """
    if journal is None or record is None or not unproven:
        return ()
    logs = {segment.log for segment in unproven}
    last = journal.last_result(record.store_id, Step.SEALED)
    found: dict[str, RefusedLog] = {}
    for event in journal.store_events(record.store_id, Step.SEALED, Phase.ERROR):
        is_last = last is None or event.event_id > last.event_id or event.run_key == last.run_key
        if is_last and event.subject in logs and REFUSED in event.payload:
            found[event.subject] = from_jsonable(RefusedLog, event.payload[REFUSED])
    return tuple(found[log] for log in sorted(found))


def refused_findings(refused: Sequence[RefusedLog]) -> Iterator[Finding]:
    """Yield each log with why it was refused, and what to do; of many the first."""
    for one in refused[:LOGS_SHOWN]:
        why = shortened(one.why, _WHY_WIDTH).rstrip(".")
        what = f"log {one.log} was refused by the last archive: {why}"
        yield Finding(Severity.WARNING, "archive-refused", what, one.remedy.rstrip("."))
    if (more := len(refused) - LOGS_SHOWN) > 0:
        what = f"the last archive refused {count_text(more, 'more log')}, as its report says"
        yield Finding(Severity.WARNING, "archive-refused", what)
