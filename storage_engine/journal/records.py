"""The journal's rows as dataclasses: stores, runs, events, samples and waivers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from storage_engine.core.clock import ClockReading
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import BrokerProgress
from storage_engine.model.lag import ArchiveLag
from storage_engine.model.plan import Plan, PlanRequest
from storage_engine.model.store import Lineages

REPORT_VERSION = 1
"""Version of a report's fields. It increases when an existing field changes its meaning or is removed."""


class Step(StrEnum):
    HOLD = "hold"
    DRIFT = "disturbed"
    SHIELD = "shield"
    ACCEPT_LOSS = "accept-loss"
    PLAN = "plan"
    ARCHIVE = "archive"
    SEALED = "archive-sealed"
    REPLICA = "archived-by-replica"
    ARCHIVE_LAG = "archive-lag"
    APPROVAL = "approval"
    LAG = "lag"
    STAMP = "stamp"
    MOVE = "move"
    UNMANAGE = "unmanage"
    RELEASE = "release"
    DEPENDENTS = "dependents"
    QUARANTINE = "quarantine"
    EMPTY_QUARANTINE = "empty-quarantine"
    UNDO = "undo"
    CHECKPOINT = "checkpoint"
    BROKER_TASK = "broker-task"
    VALIDATE = "validate"
    RETENTION_REPORT = "retention-report"
    REPORT = "report"


class Phase(StrEnum):
    INTENT = "intent"
    RESULT = "result"
    ERROR = "error"


class RunState(StrEnum):
    OPEN = "open"
    PLANNED = "planned"
    FINISHED = "finished"
    EXPIRED = "expired"
    """A run finished long ago. Its plan and most events have expired; only events that never expire stay."""


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """A store's identity. Its UUID never changes. Its lineage changes when other bytes get its offsets.

    :param host: the machine on which the store was first seen; None if not known.
    :param name: the name by which it is managed; None if no name is recorded yet.
    :param log_lineages: lineages of single logs, by the log's name. All other logs have the store's lineage.
    """

    store_id: str
    real_path: str
    broker: str
    lineage: int
    created_at_ms: int
    host: str | None = None
    name: str | None = None
    log_lineages: Mapping[str, int] = field(default_factory=dict)

    @property
    def lineages(self) -> Lineages:
        return Lineages(self.lineage, self.log_lineages)

    def lineage_of(self, log: str) -> int:
        return self.lineages.of(log)

    def at_lineage(self, lineage: int, logs: Iterable[str]) -> StoreRecord:
        """Return the record with another lineage for some logs, for example to read an older lineage."""
        return replace(self, log_lineages={**self.log_lineages, **dict.fromkeys(logs, lineage)})


@dataclass(frozen=True, slots=True)
class Run:
    run_id: int
    store_id: str
    run_key: str
    state: RunState
    request: PlanRequest
    plan: Plan | None
    plan_digest: str | None
    created_at_ms: int
    finished_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """A step's intent, result or failure.

    :param subject: a segment's base offset, or a file; "" for the step as a whole.
    :param event_id: a number that increases with each recorded event, whatever the clock says.
    """

    run_key: str
    step: str
    phase: Phase
    subject: str
    payload: Mapping[str, Any]
    at_ms: int
    event_id: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Extent of a store's logs: sums over its logs, and the time of the oldest message.

    :param oldest_message_ms: when the oldest message was stored; None if unknown.
    """

    min_offset: int
    max_offset: int
    oldest_message_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The results of one look at a store.

    :param archive_lag: archive lag; None if the lakes were not asked.
    :param progress: a running broker's progress; None if no running broker was asked.
    :param extent: extent of the logs; None if the logs were not read.
    """

    store_id: str
    at_ms: int
    levels: tuple[DiskUsage, ...]
    archive_lag: ArchiveLag | None
    progress: BrokerProgress | None = None
    extent: Extent | None = None


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A run's outcome, and its report as the journal stores it.

    :param version: version of the report's fields.
    :param causes: why the run deleted, such as ``time-up``.
    :param report: the report's JSON; None if an earlier run's report counts for this run, too.
    :param unchanged_since: key of that earlier run; None if this run has its own report.
    :param validation: the validation's verdict; "" where the run had none.
    :param lost_ranges: number of lost ranges that the validation found, without accepted losses.
    """

    version: int
    outcome: str
    causes: tuple[str, ...]
    deleted_segments: int
    freed_bytes: int
    report: bytes | None
    unchanged_since: str | None = None
    validation: str = ""
    lost_ranges: int = 0


@dataclass(frozen=True, slots=True)
class RecordedRule:
    """A rule that keeps messages of a store out of its lakes.

    :param rule: SHA-256 of the act that records the rule in a lake.
    :param clock: the recording machine's clock reading at ``at_ms``; None without such a reading.
    """

    store_id: str
    rule: str
    person: str
    at_ms: int
    clock: ClockReading | None = None


@dataclass(frozen=True, slots=True)
class Waiver:
    """A person's decision that the plan with this digest may be executed without receipts."""

    plan_digest: str
    person: str
    reason: str
    at_ms: int
