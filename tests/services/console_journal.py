"""A journal of stores that have run for months, written by the journal's own calls.

``python -m tests.services.console_journal sqlite:////tmp/journal.db [STORES]`` writes one to look at.

The first store has had all that pages show: a sawtooth of daily cleanups, a load that rose until its broker
deleted whatever the age and then refused writes, a gap without samples, drift, a failed validation, an
accepted loss, a waiver, a hold. The others are quiet, each a little fuller than the one before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, event, insert

from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable, to_recorded
from storage_engine.journal.journal import (
    Extent,
    Journal,
    Phase,
    ReportRow,
    Run,
    Step,
    put_levels,
    record_drift,
)
from storage_engine.journal.records import REPORT_VERSION
from storage_engine.journal.tables.schema import samples
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import Drift, DriftKind, HoldStatus
from storage_engine.model.lag import ArchiveLag, GroupLag
from storage_engine.model.plan import Cause, Decision, LogPlan, Plan, PlanRequest, Reason, Trigger, Urgency
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.model.report.validation import Status
from storage_engine.model.simulation import CourseStart, Ingest, SegmentRun
from storage_engine.model.store import FileFacts, Segment, SegmentState, TopicDay
from storage_engine.retention.ranges.deleted_ranges import AcceptedLoss, record_loss
from storage_engine.retention.ranges.offset_ranges import OffsetRange, Place
from storage_engine.retention.report.finishing import report_json
from storage_engine.retention.report.report import Fate, Outcome, SegmentReport
from tests.pages.reports import DONE, archived, validation
from tests.services.console_course import (
    DAY_MS,
    DISK_BYTES,
    GAP_DAYS,
    GIB,
    HOUR_MS,
    LOG,
    MINUTE_MS,
    PLATEAU_DAYS,
    RESERVED_MS,
    WINDOW_UTC_HOUR,
    Look,
    clock_at,
    course,
    rules,
)

_TASKS_MS = (0, 700)
"""The two tasks of a look, monitor and sense, take a sample each; only the first one asks the lakes."""


def write_journal(
    url: str,
    names: Sequence[str] = ("store_orders", "store_payments", "store_audit"),
    *,
    now_ms: int | None = None,
    days: int = 90,
    every_ms: int = 10 * MINUTE_MS,
) -> tuple[str, ...]:
    """Write a journal with so many stores.

    :param now_ms: the moment up to which the past goes; None: this machine's clock.
    :return: the ids of the stores.
    """
    journal = Journal(url)
    _wait_for_no_disk(journal)
    now_ms = clock_ms() if now_ms is None else now_ms
    ids = []
    for number, name in enumerate(names):
        with clock_at(now_ms - days * DAY_MS):
            record = journal.add_store(f"/data/{name}", "rocketmq", host=f"broker-{number}", name=name)
        ids.append(record.store_id)
        with clock_at(now_ms - days * DAY_MS):
            journal.save_rules(record.store_id, rules("72"))
        if number == 0:
            with clock_at(now_ms - 25 * DAY_MS):
                journal.save_rules(record.store_id, rules("48"))
            with clock_at(now_ms - 6 * DAY_MS):
                journal.save_rules(record.store_id, rules("72"))
        looks = tuple(course(number, now_ms, days, every_ms))
        _write_samples(journal, record.store_id, name, looks)
        _write_state(journal, record.store_id, number, now_ms, looks[-1])
        _write_cleanups(journal, record.store_id, name, number, now_ms, days)
    return tuple(ids)


def _wait_for_no_disk(journal: Journal) -> None:
    """Let commits be written when the system likes: a past that is lost is made again."""

    def configure(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    engine = journal._database._engine
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", configure)


def _write_samples(journal: Journal, store_id: str, name: str, looks: Sequence[Look]) -> None:
    """Write them in one transaction, as one each would take minutes; the last by the journal's own call."""
    *past, last = looks
    rows = [
        {
            "store_id": store_id,
            "levels": [],
            "at_ms": one.at_ms + at,
            "min_offset": one.min_offset,
            "max_offset": one.max_offset,
            "oldest_message_ms": one.oldest_message_ms,
            "archive_lag_bytes": one.lag_bytes if at == 0 else None,
        }
        for one in past
        for at in _TASKS_MS
    ]

    def write(connection: Connection) -> None:
        connection.execute(insert(samples), rows)
        put_levels(
            connection, store_id, {one.at_ms + at: _disks(name, one) for one in past for at in _TASKS_MS}
        )

    journal._database.write(write)
    lag = ArchiveLag(last.at_ms, last.lag_bytes // GIB, last.lag_bytes, None, 7200)
    extent = Extent(last.min_offset, last.max_offset, last.oldest_message_ms)
    for before in reversed(_TASKS_MS):
        at_ms = last.at_ms - before
        journal.add_sample(store_id, _disks(name, last), at_ms, lag if before else None, extent=extent)


def _disks(name: str, look: Look) -> tuple[DiskUsage, ...]:
    usable = DISK_BYTES * (100 - look.used_percent) // 100
    log = DiskUsage(f"/data/{name}/commitlog", look.used_percent, DISK_BYTES, usable)
    queues = DiskUsage(f"/data/{name}/consumequeue", 31, DISK_BYTES // 10, DISK_BYTES * 69 // 1000)
    return log, queues


def _write_cleanups(journal: Journal, store_id: str, name: str, number: int, now_ms: int, days: int) -> None:
    today = now_ms - (now_ms - WINDOW_UTC_HOUR * HOUR_MS) % DAY_MS
    for day in range(days - 1, -1, -1):
        began_ms = today - day * DAY_MS + 5 * MINUTE_MS
        ago = (now_ms - began_ms) / DAY_MS
        if number == 0 and GAP_DAYS[1] >= ago >= GAP_DAYS[0]:
            continue
        forced = number == 0 and PLATEAU_DAYS[1] <= ago <= PLATEAU_DAYS[0]
        failed = number == 0 and day in (30, 9)
        _write_run(journal, store_id, name, days - day, began_ms, forced=forced, failed=failed)


def _write_run(
    journal: Journal, store_id: str, name: str, day: int, began_ms: int, *, forced: bool, failed: bool
) -> Run:
    """Write a cleanup with its plan, its segments and its report."""
    count = 26 if forced else 9
    kind = "forced_cleanup" if forced else "retention"
    moment = f"scheduled__day-{day:03d}"
    run_key = f"storage_{kind}__{name}/{moment}"
    trigger = (
        Trigger(
            Cause.SPACE_FULL, Urgency.FORCED, "86 % is above diskSpaceCleanForciblyRatio 85", at_once=True
        )
        if forced
        else Trigger(Cause.TIME_UP, Urgency.ORDINARY, "04 h is in deleteWhen 04 (Asia/Shanghai)")
    )
    segments = tuple(_segment(name, day * 100 + at, began_ms) for at in range(count))
    reason = Reason.FORCED if forced else Reason.EXPIRED
    decisions = tuple(Decision(one, reason, "older than 72 h") for one in segments)
    plan = Plan(f"/data/{name}", began_ms, (trigger,), (LogPlan(LOG, decisions),), (), store_id, 1)
    with clock_at(began_ms):
        run = journal.begin_run(store_id, run_key, PlanRequest())
        run = journal.record_plan(run, plan, {})
        # What a cleanup deletes was archived ahead, by the run that planned it here.
        subjects = [(f"{LOG}/{one.base_offset:020d}", {"lineage": 1}) for one in segments]
        journal.record(run, Step.ARCHIVE, Phase.RESULT, subjects)
        journal.record(run, Step.RELEASE, Phase.RESULT, subjects)
        held = HoldStatus(True, ends_at_ms=began_ms + 3 * DAY_MS)
        journal.record(run, Step.HOLD, Phase.RESULT, [("", {"result": to_jsonable(held)})])
        if failed:
            error = {"error": "ProofError: read back other bytes than were written"}
            journal.record(run, Step.VALIDATE, Phase.ERROR, [("", error)])
    ended_ms = began_ms + 9 * MINUTE_MS
    report = replace(
        DONE,
        outcome=Outcome.FAILED if failed else Outcome.DONE,
        store=name,
        store_id=store_id,
        root=f"/data/{name}",
        run_key=run_key,
        began_at_ms=began_ms,
        finished_at_ms=ended_ms,
        plan_digest=plan.digest,
        decided_at_ms=began_ms,
        triggers=(trigger,),
        segments=tuple(_fate(one, reason) for one in segments),
        archived=tuple(archived(at) for at in range(2)),
        freed_bytes=count * GIB,
        new_min_offset=segments[-1].end_offset,
        validation=validation(Status.FAILURE if failed else Status.OK),
    )
    row = ReportRow(
        REPORT_VERSION,
        report.outcome.value,
        (trigger.cause.value,),
        count,
        report.freed_bytes,
        json.dumps(report_json(report)).encode(),
        validation="FAILURE" if failed else "OK",
    )
    with clock_at(ended_ms):
        if not failed:
            journal.finish_run(run, {"result": report.outcome.value})
        journal.save_report(run, row)
    return run


def _segment(name: str, number: int, at_ms: int) -> Segment:
    path = f"/data/{name}/{LOG}/{number * GIB:020d}"
    written_ns = (at_ms - RESERVED_MS) * 1_000_000
    return Segment(
        LOG, number * GIB, FileFacts(path, 1, number, GIB, written_ns, written_ns), SegmentState.SEALED
    )


def _fate(segment: Segment, reason: Reason) -> SegmentReport:
    return SegmentReport(
        segment.log,
        segment.base_offset,
        segment.facts.path,
        GIB,
        True,
        Fate.DELETED,
        reason,
        "older than 72 h",
        "proven",
        "as it was",
        "ab" * 32,
        "data/x.parquet",
    )


def ranges(look: Look, *, troubled: bool) -> tuple[OffsetRange, ...]:
    """Return where bytes are, as the monitor records it: a loss in the past of a store that had one."""
    first, end = look.min_offset // GIB, look.max_offset // GIB
    lost = [
        (0, 300, Place.ARCHIVED, "", ""),
        (300, 303, Place.LOST, "accepted", "accepted by ann (the disk burnt; a replica has them): gone"),
        (303, 304, Place.LOST, "missing", "deleted by a run, and no lake has it"),
    ]
    rows = [
        *(lost if troubled else []),
        (304 if troubled else 0, first, Place.ARCHIVED, "", ""),
        (first, first + 6, Place.DUE, "expired", "last written 75 h ago; a lake has it"),
        (first + 6, end - 12, Place.BOTH, "not-expired", "expires in 3 h"),
        (end - 12, end, Place.LOCAL, "not-expired", "expires in 60 h"),
    ]
    found = [
        OffsetRange(LOG, 1, begin * GIB, until * GIB, until - begin, (until - begin) * GIB, *told)
        for begin, until, *told in rows
    ]
    active = OffsetRange(LOG, 1, end * GIB, look.max_offset, 1, GIB, Place.LOCAL, "active", "")
    return tuple(
        replace(one, segments=0, size_bytes=0) if one.where is Place.LOST else one for one in (*found, active)
    )


def start(look: Look, daily_gib: int) -> CourseStart:
    """Return what a simulation starts from, as the monitor records it."""
    segments = (look.max_offset - look.min_offset) // GIB
    each_ms = (look.at_ms - look.oldest_message_ms) // max(1, segments)
    first_ms = look.oldest_message_ms + each_ms
    used_bytes = DISK_BYTES * look.used_percent // 100
    return CourseStart(
        now_ms=look.at_ms,
        disk_bytes=DISK_BYTES,
        other_bytes=max(0, used_bytes - segments * GIB),
        segment_bytes=GIB,
        runs=(SegmentRun(segments, GIB, first_ms, first_ms + each_ms * (segments - 1)),),
        active_bytes=GIB // 3,
        oldest_message_ms=look.oldest_message_ms,
        time_zone="Asia/Shanghai",
        ingest=Ingest(daily_gib * GIB),
    )


def _write_state(journal: Journal, store_id: str, number: int, now_ms: int, look: Look) -> None:
    """Write what is known of the store now, and what happened to the first one."""
    with clock_at(now_ms - 30 * MINUTE_MS):
        today = now_ms // DAY_MS
        for day in range(14):
            held = [
                TopicDay(topic, today - day, (20 - 3 * at) * GIB, 4_000_000 - 500_000 * at)
                for at, topic in enumerate(("orders", "payments", "audit", "RMQ_SYS_TRACE_TOPIC"))
            ]
            journal.save_topic_days(store_id, {(LOG, (9_000 + day) * GIB): held})
    doctor: tuple[Finding, ...] = (
        Finding(Severity.NOTE, "hold", "the hold ends in 3 d unless it is renewed"),
    )
    alarms: tuple[str, ...] = ()
    if number == 0:
        _write_trouble(journal, store_id, now_ms)
        behind = "12 segments are sealed and in no lake, more than archive_lag_segments allows: "
        alarms = (Text(behind, Command("archive"), " archives them"),)
        doctor = (
            Finding(
                Severity.URGENT,
                "consumer-loses",
                "group cg_billing loses 51 messages of orders within a day",
                "let it read on, or raise fileReservedTime",
            ),
            Finding(
                Severity.WARNING,
                "dag-paused",
                "DAG storage_archive__store_orders is paused: nothing is archived before it has expired",
                "unpause it",
            ),
            *doctor,
        )
    found = {
        "alarms": to_recorded(alarms),
        "notices": ("the disk is above its notice level of 70 %",) if number == 0 else (),
        "causes": [],
        "crashed": False,
        "held": True,
        "hold_notices": (),
        "progress": None,
        "lag_error": "",
        "doctor": doctor,
        "ranges": ranges(look, troubled=number == 0),
        "lost": "",
        "lost_ranges": 0,
        "due": {"size_bytes": 3 * GIB, "unproven_bytes": GIB},
        "start": start(look, 90 + 25 * number),
        "shield": {
            "mode": "on",
            "segments": 3,
            "size_bytes": 3 * GIB,
            "gone_segments": 1,
            "gone_bytes": GIB,
            "foreign_files": 0,
        },
        "page_errors": (),
    }
    lags = [
        GroupLag("cg_billing", 51_000, 0, 9_100 * GIB, 5 * HOUR_MS if number == 0 else 3 * DAY_MS),
        GroupLag("cg_search", 120, 1, 9_400 * GIB, 60 * HOUR_MS),
        GroupLag("cg_done", 0, 0, None, None),
    ]
    with clock_at(now_ms):
        journal.save_findings(store_id, found, lags)


def _write_trouble(journal: Journal, store_id: str, now_ms: int) -> None:
    record = journal.store_with_id(store_id)
    assert record is not None
    with clock_at(now_ms - 21 * DAY_MS):
        watch = journal.begin_run(store_id, "watch", PlanRequest())
        gone = Drift(
            DriftKind.SEGMENT_GONE,
            "expected 3 segments that the hold kept, found none: somebody deleted them",
            LOG,
            300 * GIB,
            303 * GIB,
            ("orders",),
        )
        record_drift(journal, record, watch, [gone])
    with clock_at(now_ms - 20 * DAY_MS):
        person = journal.begin_run(store_id, "accept-loss-1", PlanRequest(reason="disk fault"))
        loss = AcceptedLoss(LOG, 1, 300 * GIB, 303 * GIB, "ann", "the disk burnt; a replica has them")
        record_loss(journal, person, loss)
    with clock_at(now_ms - 2 * DAY_MS):
        name = record.name or ""
        run = journal.begin_run(
            store_id, f"storage_retention__{name}/manual__waived", PlanRequest(manual=True)
        )
        segment = _segment(name, 9_999, now_ms)
        logs = (LogPlan(LOG, (Decision(segment, Reason.EXPIRED, "older than 72 h"),)),)
        run = journal.record_plan(run, Plan(record.real_path, now_ms, (), logs, (), store_id, 1), {})
        journal.waive(str(run.plan_digest), "ben", "a replica's export has this segment")


if __name__ == "__main__":
    url, *count = sys.argv[1:]
    names = [f"store_{number:03d}" for number in range(int(count[0]))] if count else None
    write_journal(url, names) if names else write_journal(url)
