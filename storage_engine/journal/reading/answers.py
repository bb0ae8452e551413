"""Answers of :mod:`storage_engine.journal.reading.queries`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage_engine.journal.records import Waiver


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in short.

    :param outcome: the run's outcome; None if the run has no report yet, or a report of an older release.
    :param deleted_segments: number of deleted segments; None in the same cases. Then the events of segments
        say what was deleted.
    :param unchanged_since: the run whose report is also this run's report, because nothing changed.
    :param has_report: whether the run's own report or that of ``unchanged_since`` is still stored.
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
    """:param version: version of the report's fields."""

    version: int
    written_at_ms: int
    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Incident:
    """A change to a store by another program, a loss that a person accepted, or a failed step."""

    run_key: str
    step: str
    subject: str
    at_ms: int
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The lag of a consumer group at a moment.

    :param lag_messages: its lag in the queues where its position was known.
    :param unknown_queues: number of queues where its position wasn't known.
    :param first_unread_offset: physical offset of its first unread message; None if it had read all messages.
    :param time_to_loss_ms: time until that message may be deleted by age; None if it had read all messages.
    """

    consumer_group: str
    lag_messages: int
    unknown_queues: int
    first_unread_offset: int | None
    time_to_loss_ms: int | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class DriftRow:
    """A change to a store by another program, or several changes shown as one.

    :param at_ms: time of the first change.
    :param details: details of the last change.
    :param times: number of changes.
    :param until_ms: time of the last change.
    """

    at_ms: int
    details: Mapping[str, Any]
    times: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of the last look at a store between two cleanups."""

    at_ms: int
    found: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """The last state that a run gave a segment.

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

    :param ends_at_ms: when the hold ends without a renewal; None if it has no end, or if there is no hold.
    :param described: the held segments, in words; "" unless the broker deletes by its own rules.
    """

    held: bool
    ends_at_ms: int | None
    run_key: str
    at_ms: int
    described: str = ""


@dataclass(frozen=True, slots=True)
class LossRow:
    """Lost bytes [start_offset, end_offset) of a log, and the person who accepted the loss."""

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    person: str
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """Remembered checks of a store's receipts, at any level.

    :param receipts: number of receipts; None if they weren't counted.
    :param oldest_ms: time of the oldest check. ``newest_ms`` is the time of the newest.
    :param faulty: number of receipts whose last check found a fault.
    """

    receipts: int | None
    oldest_ms: int
    newest_ms: int
    faulty: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A store's present state of work and decisions.

    :param worker: the process that has its lease, and so works on it; None if no process has it.
    :param waivers: waivers of its plans: a person permits the deletion of their segments without receipts.
    :param verified: the remembered checks; None if no check is remembered.
    """

    hold: HoldRow | None
    worker: str | None
    worker_until_ms: int | None
    waivers: tuple[Waiver, ...]
    losses: tuple[LossRow, ...]
    verified: VerifiedRow | None
