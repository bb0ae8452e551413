"""Reports as a journal has them, made of the engine's own dataclasses, so that no field is made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from storage_engine.model.lag import Unread, UnreadMessages
from storage_engine.model.plan import Cause, PlanRequest, Reason, Trigger, Urgency
from storage_engine.model.report.validation import CheckResult, RangeStatus, Status, ValidationResult, Where
from storage_engine.retention.report.finishing import report_json
from storage_engine.retention.report.report import (
    ArchivedSegment,
    Fate,
    Outcome,
    Report,
    SegmentReport,
    StepReport,
)

MIB = 1 << 20
NOON_MS = 1_795_521_600_000
"""2026-11-24 12:00:00Z."""
SHA = "ab" * 32


def segment(
    number: int, fate: Fate, reason: Reason, detail: str = "because", log: str = "commitlog"
) -> SegmentReport:
    offset = number * MIB
    gone = fate is Fate.DELETED
    return SegmentReport(
        log=log,
        base_offset=offset,
        path=f"/store/{log}/{offset:020d}",
        size_bytes=MIB,
        planned=fate is not Fate.KEPT,
        fate=fate,
        reason=reason,
        detail=detail,
        proof="proven" if gone else "",
        proof_detail="as it was" if gone else "",
        sha256=SHA if gone else None,
        data_file="data/x.parquet" if gone else None,
    )


def archived(number: int, log: str = "commitlog") -> ArchivedSegment:
    return ArchivedSegment(
        log=log,
        base_offset=number * MIB,
        size_bytes=MIB,
        sha256=SHA,
        message_count=1000,
        row_count=1000,
        damaged_bytes=0,
        data_file=f"data/{number}.parquet",
        data_file_bytes=MIB // 4,
        proven_at_ms=NOON_MS + 1000,
        by_this_run=True,
        lake="file:///lake/warehouse",
        first_stored_at_ms=NOON_MS - 86_400_000 + number * 60_000,
        last_stored_at_ms=NOON_MS - 86_400_000 + (number + 1) * 60_000,
    )


def unread(messages: int | None = 51, group: str = "cg_orders") -> Unread:
    return Unread(rows=(UnreadMessages(group, "orders", messages, 8, NOON_MS - 3_600_000),))


def validation(status: Status = Status.OK, expectation: str = "ExpectNoLostRanges") -> ValidationResult:
    check = CheckResult("across_ranges", expectation, "Nothing is lost.", status, 3, 1, ("commitlog: lost",))
    ranges = (
        RangeStatus("commitlog", 0, 2 * MIB, Where.ARCHIVED, Status.OK, ("0",), "in the lake"),
        RangeStatus("commitlog", 2 * MIB, 3 * MIB, Where.LOCAL, Status.OK, ("2",), "on disk"),
    )
    return ValidationResult("/store", "id", "run-1", "boundaries", NOON_MS, 1500, ranges, (check,))


DONE = Report(
    outcome=Outcome.DONE,
    store="orders",
    store_id="9b8ba77a",
    lineage=1,
    broker="rocketmq",
    root="/store",
    run_key="run-1",
    request=PlanRequest(),
    began_at_ms=NOON_MS,
    finished_at_ms=NOON_MS + 9_200,
    plan_digest="cd" * 32,
    decided_at_ms=NOON_MS,
    triggers=(Trigger(Cause.TIME_UP, Urgency.ORDINARY, "12 h is in deleteWhen 12 (UTC)"),),
    hold=None,
    levels=(),
    crashed=False,
    segments=(
        segment(0, Fate.DELETED, Reason.EXPIRED),
        segment(1, Fate.DELETED, Reason.EXPIRED),
        segment(2, Fate.KEPT, Reason.ACTIVE),
    ),
    archived=(archived(0), archived(1)),
    unproven=(),
    archived_ahead=0,
    archive_lag=None,
    alarms=(),
    waiver=None,
    freed_bytes=2 * MIB,
    new_min_offset=2 * MIB,
    dependents=(),
    lag=None,
    lagging=(),
    lag_policy="warn",
    owed=(),
    pending_policy="warn",
    archive_mode="required",
    checkpoint=None,
    validation=validation(),
    notices=(),
    steps=(
        StepReport("plan", True, None, ""),
        StepReport("archive", True, 441, ""),
        StepReport("release", True, 1_860, ""),
        StepReport("validate", True, 61_000, ""),
    ),
    lake="file:///lake/warehouse",
    second_lake=None,
    journal="sqlite:////lake/journal.db",
    lake_directory="/lake",
)
"""A run that archived and deleted two segments of three."""

NOTHING = replace(
    DONE,
    outcome=Outcome.NOTHING_TO_DO,
    segments=(segment(0, Fate.KEPT, Reason.NOT_EXPIRED), segment(1, Fate.KEPT, Reason.ACTIVE)),
    archived=(),
    freed_bytes=0,
    validation=None,
)
"""A run for which nothing was due."""


def plain(report: Report = DONE, **changes: Any) -> dict[str, Any]:
    """Return a report as JSON, with fields changed before."""
    return report_json(replace(report, **changes))
