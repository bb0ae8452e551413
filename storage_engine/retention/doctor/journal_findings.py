"""Findings from a store's journal: from the last retention report, and on logs that the last archive refused.

To archive such a log again is no advice before somebody mends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from storage_engine.brokers import find_broker
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import count_text, shortened
from storage_engine.journal.records import Phase, Step
from storage_engine.model.broker.broker_store import BrokerStore, course_of
from storage_engine.model.course import SettingType
from storage_engine.model.report.diagnosis import Finding
from storage_engine.model.report.usage import DeletionHours, RetentionReport, hour_advice
from storage_engine.model.store import Segment
from storage_engine.retention.proof.refusing import LOGS_SHOWN, REFUSED, RefusedLog
from storage_engine.retention.store.broker_answers import ask

if TYPE_CHECKING:
    from storage_engine.journal.journal import Journal, StoreRecord


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
        yield Finding.warning("archive-refused", what, one.remedy.rstrip("."))
    if (more := len(refused) - LOGS_SHOWN) > 0:
        what = f"the last archive refused {count_text(more, 'more log')}, as its report says"
        yield Finding.warning("archive-refused", what)


def deletion_hours(kind: str, broker: BrokerStore) -> DeletionHours | None:
    """Return the hours at which a broker deletes by age; None: at any hour."""
    rules = find_broker(kind).rules
    if rules is None:
        return None
    setting = next((one.name for one in rules.settings if one.type is SettingType.HOURS), None)
    if setting is None:
        return None
    hours = ask(
        kind,
        "tell its rules",
        lambda: rules.hours(rules.values(course_of(broker).rule_config())),
    )
    return DeletionHours(setting, hours)


def usage_findings(
    kind: str, broker: BrokerStore, journal: Journal, record: StoreRecord
) -> Iterator[Finding]:
    """Yield the last retention report's findings on the hours of deletion, as these are set now.

    :raises StorageEngineError: the journal can't be read.
    """
    last = journal.last_result(record.store_id, Step.RETENTION_REPORT)
    if last is None:
        return
    quiet = from_jsonable(RetentionReport, last.payload["result"]).quiet
    advice = hour_advice(quiet, deletion_hours(kind, broker))
    if advice is not None:
        yield Finding.note("quiet-hour", advice.what, advice.advice)
