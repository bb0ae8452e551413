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
"""Version of a report's fields: it grows where an existing field changes its meaning, or is gone."""


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
    """Finished long ago: of its events only what is never thinned is left, and its plan is not."""


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """A store's identity: its UUID for ever, its lineage until its offsets carry other bytes.

    :param host: the machine on which it was first seen; None: not known.
    :param name: by which it is managed; None: it has none yet.
    :param log_lineages: by name, of logs that have a lineage of their own.
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
        """The lineage of each log."""
        return Lineages(self.lineage, self.log_lineages)

    def lineage_of(self, log: str) -> int:
        """Return the lineage of a log."""
        return self.lineages.of(log)

    def at_lineage(self, lineage: int, logs: Iterable[str]) -> StoreRecord:
        """Return the record with another lineage for some logs, such as an older one that is to be read."""
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

    :param subject: its subject: a segment's base offset, a file; "" for the step as a whole.
    :param event_id: grows with each event that is recorded, whatever the clock says.
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

    :param oldest_message_ms: None where that can't be told.
    """

    min_offset: int
    max_offset: int
    oldest_message_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The subject and the time of a look.

    :param archive_lag: None where the lakes were not asked.
    :param progress: None where no running broker was asked.
    :param extent: None where the logs were not looked at.
    """

    store_id: str
    at_ms: int
    levels: tuple[DiskUsage, ...]
    archive_lag: ArchiveLag | None
    progress: BrokerProgress | None = None
    extent: Extent | None = None


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A run's outcome, and its report as the journal keeps it.

    :param version: of the report's fields.
    :param causes: why the run deleted, such as ``time-up``.
    :param report: its JSON; None where another run's answers for it.
    :param unchanged_since: that run.
    :param validation: its verdict; "" where the run had none.
    :param lost_ranges: those that its validation found nowhere, and that no person had accepted.
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
    """A rule by which messages of a store don't enter its lakes.

    :param rule: SHA-256 of the act by which a lake has it.
    :param clock: of the machine on which it was recorded, at that moment; None: it has none.
    """

    store_id: str
    rule: str
    person: str
    at_ms: int
    clock: ClockReading | None = None


@dataclass(frozen=True, slots=True)
class Waiver:
    """A person's decision to let the plan with this digest go without receipts."""

    plan_digest: str
    person: str
    reason: str
    at_ms: int
