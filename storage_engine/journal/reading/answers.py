"""Answers of :mod:`storage_engine.journal.reading.queries`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage_engine.journal.records import Waiver


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in short.

    :param outcome: None: the run has not come to its report, or an older release kept it elsewhere.
    :param deleted_segments: None likewise; the segments then tell what was deleted.
    :param unchanged_since: the run whose report answers for this one, which wrote none.
    :param has_report: its report, or the one that answers for it, is kept still.
    """

    run_id: int
    run_key: str
    state: str
    created_at_ms: int
    finished_at_ms: int | None
    outcome: str | None
    causes: tuple[str, ...]
    deleted_segments: int | None
    freed_bytes: int | None
    unchanged_since: str | None
    has_report: bool


@dataclass(frozen=True, slots=True)
class StoredReport:
    """:param version: of the report's fields."""

    version: int
    written_at_ms: int
    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Incident:
    """A change by others to a store, a loss that a person accepted, or a step that failed."""

    run_key: str
    step: str
    subject: str
    at_ms: int
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """How far a consumer group was behind at a moment.

    :param lag_messages: in the queues where its position was known.
    :param unknown_queues: where it wasn't.
    :param first_unread_offset: physical offset of its first unread message; None: it had read all.
    :param time_to_loss_ms: until that one may be deleted by age; None: it had read all.
    """

    consumer_group: str
    lag_messages: int
    unknown_queues: int
    first_unread_offset: int | None
    time_to_loss_ms: int | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class DriftRow:
    """A change by others to a store; or several of them, shown as one.

    :param at_ms: of several, the first one.
    :param details: of several, those of the last one.
    :param times: how many are told.
    :param until_ms: of several, the last one.
    """

    at_ms: int
    details: Mapping[str, Any]
    times: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of the last look between two cleanups."""

    at_ms: int
    found: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """The last that became of a segment by a run.

    :param state: archived or deleted.
    """

    log: str
    base_offset: int
    state: str
    run_key: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class HoldRow:
    """Findings of the last look at a store's hold, and the run that looked.

    :param ends_at_ms: when the hold ends by itself unless it is renewed; None: it doesn't, or isn't held.
    :param described: the segments held of a store that is left to its broker; "": it isn't left to it.
    """

    held: bool
    ends_at_ms: int | None
    run_key: str
    at_ms: int
    described: str = ""


@dataclass(frozen=True, slots=True)
class LossRow:
    """Bytes [start_offset, end_offset) that are nowhere, and who goes on without them."""

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    person: str
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """Checks of a store's receipts that are remembered, at any level.

    :param receipts: how many; None: they weren't counted.
    :param oldest_ms: when the one that was checked longest ago was; ``newest_ms`` likewise.
    :param faulty: receipts whose last check found a fault.
    """

    receipts: int | None
    oldest_ms: int
    newest_ms: int
    faulty: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Open decisions about a store.

    :param worker: who has its lease, and so works on it; None: nobody.
    :param waivers: of its plans, as a person allows their segments to be deleted without receipts.
    :param verified: None: no check is remembered.
    """

    hold: HoldRow | None
    worker: str | None
    worker_until_ms: int | None
    waivers: tuple[Waiver, ...]
    losses: tuple[LossRow, ...]
    verified: VerifiedRow | None
