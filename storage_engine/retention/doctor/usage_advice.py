"""What the last retention report of a store advises, as its journal has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from storage_engine.brokers import find_broker
from storage_engine.core.jsonable import from_jsonable
from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.course.course import SettingType
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.model.report.usage import DeletionHours, RetentionReport, hour_advice
from storage_engine.retention.store.broker_answers import ask

if TYPE_CHECKING:
    from storage_engine.journal.journal import Journal, StoreRecord


def deletion_hours(kind: str, broker: BrokerStore) -> DeletionHours | None:
    """Return the hours at which a broker deletes by age; None: at any hour."""
    rules = find_broker(kind).rules
    if rules is None:
        return None
    setting = next((one.name for one in rules.settings if one.type is SettingType.HOURS), None)
    if setting is None:
        return None
    hours = ask(kind, "tell its rules", lambda: rules.hours(rules.values(broker.rule_config())))
    return DeletionHours(setting, hours)


def usage_findings(
    kind: str, broker: BrokerStore, journal: Journal, record: StoreRecord
) -> Iterator[Finding]:
    """Yield what the last retention report says of the hours of deletion, as these are set now.

    :raises StorageEngineError: the journal can't be read.
    """
    from storage_engine.journal.journal import Step

    last = journal.last_result(record.store_id, Step.RETENTION_REPORT)
    if last is None:
        return
    quiet = from_jsonable(RetentionReport, last.payload["result"]).quiet
    advice = hour_advice(quiet, deletion_hours(kind, broker))
    if advice is not None:
        yield Finding(Severity.NOTE, "quiet-hour", advice.what, advice.advice)
