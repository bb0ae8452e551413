"""The durable record of intents, results, samples and waivers. A run's state is stored only here.

Every method is one transaction that is on disk when it returns. Nothing here touches a store or a lake.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, ScalarSelect, and_, delete, insert, select, update

from storage_engine.commands import Command
from storage_engine.core.clock import ClockReading, clock_ms, read_clock
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.turns import take_turn, turn_wait_seconds
from storage_engine.exceptions import JournalConflictError, RunStateError, StoreBusyError
from storage_engine.journal.records import (
    Event,
    Extent,
    Phase,
    ReportRow,
    Run,
    RunState,
    Sample,
    Step,
    StoreRecord,
    Waiver,
)
from storage_engine.journal.stores import JournalStores
from storage_engine.journal.tables import rows as journal_rows
from storage_engine.journal.tables.database import JournalDatabase, reads, writes
from storage_engine.journal.tables.leases import Lease, give_up, is_taken, renew, take, take_cluster
from storage_engine.journal.tables.rows import (
    Slot,
    Subjects,
    heads_since,
    in_parts,
    put_topic_days,
    store_plan,
)
from storage_engine.journal.tables.schema import (
    cluster_leases,
    disks,
    events,
    findings,
    groups,
    holds,
    levels,
    reports,
    runs,
    samples,
    stores,
    waivers,
)
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import BrokerProgress, Drift, DriftKind, HoldMemory, HoldStatus
from storage_engine.model.lag import ArchiveLag, GroupLag
from storage_engine.model.plan import Plan, PlanRequest
from storage_engine.model.store import TopicDay

_ASK_AGAIN_SECONDS: Final = 0.5


class JournalHoldMemory:
    """Implements :class:`storage_engine.model.hold.HoldMemory`."""

    def __init__(
        self, database: JournalDatabase, store_id: str, record_drift: Callable[[Sequence[Drift]], None]
    ) -> None:
        self._database = database
        self._store_id = store_id
        self.record_drift = record_drift

    def load(self) -> Mapping[str, Any] | None:
        query = select(holds.c.state).where(holds.c.store_id == self._store_id)
        return self._database.read(lambda connection: connection.execute(query).scalar_one_or_none())

    def save(self, state: Mapping[str, Any] | None) -> None:
        def write(connection: Connection) -> None:
            connection.execute(delete(holds).where(holds.c.store_id == self._store_id))
            if state is not None:
                row = {"store_id": self._store_id, "state": to_jsonable(state), "at_ms": clock_ms()}
                connection.execute(insert(holds).values(**row))

        self._database.write(write)

    def of_others(self) -> Sequence[Mapping[str, Any]]:
        broker = select(stores.c.broker).where(stores.c.store_id == self._store_id).scalar_subquery()
        query = (
            select(holds.c.state)
            .join(stores, stores.c.store_id == holds.c.store_id)
            .where(holds.c.store_id != self._store_id, stores.c.broker == broker)
            .order_by(holds.c.store_id)
        )
        return self._database.read(lambda connection: connection.execute(query).scalars().all())

    @contextmanager
    def alone(self, cluster: str) -> Iterator[Callable[[], None]]:
        lease = self._cluster_lease(cluster)
        try:
            yield partial(self._database.write, lambda connection: renew(connection, lease, cluster_leases))
        finally:
            self._database.write(lambda connection: give_up(connection, lease, cluster_leases))

    def _cluster_lease(self, cluster: str) -> Lease:
        deadline = time.monotonic() + turn_wait_seconds()
        while True:
            try:
                return self._database.write(lambda connection: take_cluster(connection, cluster))
            except (StoreBusyError, JournalConflictError):
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_ASK_AGAIN_SECONDS)


def put_report(connection: Connection, run: Run, row: ReportRow) -> None:
    """Replace a run's report."""
    connection.execute(delete(reports).where(reports.c.run_id == run.run_id))
    connection.execute(
        insert(reports).values(
            **asdict(row)
            | {
                "run_id": run.run_id,
                "causes": ",".join(row.causes),
                "report": None if row.report is None else zlib.compress(row.report),
                "at_ms": clock_ms(),
            }
        )
    )


def put_findings(
    connection: Connection, store_id: str, new_findings: Mapping[str, Any], lags: Sequence[GroupLag] | None
) -> None:
    """Replace a store's findings.

    :param lags: lags of all consumer groups; None to keep the recorded lags.
    """
    at_ms = clock_ms()
    connection.execute(delete(findings).where(findings.c.store_id == store_id))
    row = {"store_id": store_id, "findings": to_jsonable(new_findings), "at_ms": at_ms}
    connection.execute(insert(findings).values(**row))
    if lags is None:
        return
    connection.execute(delete(groups).where(groups.c.store_id == store_id))
    rows = [{"store_id": store_id, "at_ms": at_ms, **asdict(lag)} for lag in lags]
    for row in rows:
        row["consumer_group"] = row.pop("group")
    if rows:
        connection.execute(insert(groups), rows)


def put_levels(connection: Connection, store_id: str, by_moment: Mapping[int, Sequence[DiskUsage]]) -> None:
    """Record the disks' levels at moments without levels. Of disks with one path, record the fullest.

    :param by_moment: the disks by the moment, in milliseconds since the epoch.
    :raises IntegrityError: another process recorded a path for the first time at the same time.
    """
    rows = []
    ids = _ids(connection, store_id)
    for at_ms, usages in by_moment.items():
        fullest = {disk.path: disk for disk in sorted(usages, key=lambda disk: disk.used_percent or 0)}
        for path, disk in fullest.items():
            if path not in ids:
                connection.execute(insert(disks).values(store_id=store_id, path=path))
                ids = _ids(connection, store_id)
            row = {"disk_id": ids[path], "at_ms": at_ms, **asdict(disk)}
            del row["path"]
            rows.append(row)
    if rows:
        connection.execute(insert(levels), rows)


def levels_at(connection: Connection, store_id: str, at_ms: int) -> tuple[DiskUsage, ...]:
    """Return the levels at one moment, by path."""
    query = (
        select(disks.c.path, levels)
        .join(levels, levels.c.disk_id == disks.c.id)
        .where(disks.c.store_id == store_id, levels.c.at_ms == at_ms)
        .order_by(disks.c.path)
    )
    return tuple(
        DiskUsage(row.path, row.used_percent, row.total_bytes, row.usable_bytes, row.error, row.device)
        for row in connection.execute(query)
    )


def delete_levels(connection: Connection, store_id: str, moments: Sequence[int] | ScalarSelect[Any]) -> None:
    disk_ids = select(disks.c.id).where(disks.c.store_id == store_id)
    connection.execute(delete(levels).where(levels.c.disk_id.in_(disk_ids), levels.c.at_ms.in_(moments)))


def _ids(connection: Connection, store_id: str) -> dict[str, int]:
    query = select(disks.c.path, disks.c.id).where(disks.c.store_id == store_id)
    return {row.path: row.id for row in connection.execute(query)}


__all__ = [
    "Event",
    "Extent",
    "Journal",
    "Phase",
    "ReportRow",
    "Run",
    "RunState",
    "Sample",
    "Step",
    "StoreRecord",
    "Waiver",
]


class Journal(JournalStores):
    """:param url: SQLAlchemy URL; the errors are those of :class:`JournalDatabase`.
    :param read_only: no table is made or upgraded, and every write fails.
    """

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        super().__init__(JournalDatabase(url, read_only=read_only))

    @property
    def name(self) -> str:
        """The journal's URL without a password."""
        return self._database.name

    # Leases

    @contextmanager
    def lease(self, store_id: str, *, waits: bool = True) -> Iterator[Lease]:
        """Hold the store's lease until the block ends, as the only process that changes the store.

        A lease expires by itself. :meth:`record` with the lease renews it.

        :param waits: whether to wait for another run that has the lease.
        :raises TurnTakenError: another living process has the lease.
        """

        def attempt() -> Lease:
            return self._database.write(lambda connection: take(connection, store_id))

        lease = take_turn(attempt) if waits else attempt()
        try:
            yield lease
        finally:
            self._database.write(lambda connection: give_up(connection, lease))

    is_leased = reads(is_taken)
    renew = writes(renew)

    def hold_memory(self, store_id: str, record_drift: Callable[[Sequence[Drift]], None]) -> HoldMemory:
        """Return the memory of the store's hold, for this module's function of the same name."""
        return JournalHoldMemory(self._database, store_id, record_drift)

    # Runs

    def begin_run(self, store_id: str, run_key: str, request: PlanRequest) -> Run:
        """Begin the run, or return it if it exists. Raise RunStateError if it exists with another request."""
        request_json = to_jsonable(request)

        def begin(connection: Connection) -> None:
            if journal_rows.find_run_row(connection, store_id, run_key) is None:
                connection.execute(
                    insert(runs).values(
                        store_id=store_id,
                        run_key=run_key,
                        state=RunState.OPEN.value,
                        request=request_json,
                        created_at_ms=clock_ms(),
                    )
                )

        self._twice(begin)
        run = self.run(store_id, run_key)
        if run.request != request:
            raise RunStateError(
                f"run {run_key!r}: expected the request it was begun with, {to_jsonable(run.request)}, found "
                f"{request_json}. Use another run key for another request."
            )
        return run

    def run_without_plan(self, store_id: str, run_key: str) -> Run:
        """Return a run that needs no plan, or begin it. Raise RunStateError if it has expired."""
        return self.find_run(store_id, run_key) or self.begin_run(store_id, run_key, PlanRequest())

    def find_run(self, store_id: str, run_key: str) -> Run | None:
        """Return a run of a store by its key, or None. Raise RunStateError if it has expired."""
        run = self.read(lambda connection: journal_rows.find_run_row(connection, store_id, run_key))
        if run is not None and run.state is RunState.EXPIRED:
            raise RunStateError(
                f"run {run_key!r} of store {store_id}: expected a run with all its details, found a run "
                "that ended long ago and whose details have expired. Nothing was changed. Use another key."
            )
        return run

    def run(self, store_id: str, run_key: str) -> Run:
        """Return a run of a store by its key. Raise RunStateError if there is none, or if it has expired."""
        run = self.find_run(store_id, run_key)
        if run is None:
            raise RunStateError(
                f"run {run_key!r} of store {store_id}: expected it in {self._database.name}, found no run of "
                "that name. ",
                Command("runs"),
                " lists the runs; a new one begins with its plan.",
            )
        return run

    def last_planned_run(self, store_id: str) -> Run | None:
        """Return a store's newest run that has a plan, or None. The plan may have expired."""
        query = (
            select(runs.c.run_key)
            .where(runs.c.store_id == store_id, runs.c.plan_digest.is_not(None))
            .order_by(runs.c.id.desc())
            .limit(1)
        )

        def read(connection: Connection) -> Run | None:
            run_key = connection.execute(query).scalar()
            return None if run_key is None else journal_rows.find_run_row(connection, store_id, run_key)

        return self.read(read)

    def runs_with_plan(self, store_id: str, digest: str) -> tuple[Run, ...]:
        """Return the runs of a store whose plan has this digest and is still stored, the newest first."""
        query = (
            select(runs.c.run_key)
            .where(runs.c.store_id == store_id, runs.c.plan_digest == digest)
            .where(runs.c.state != RunState.EXPIRED.value)
            .order_by(runs.c.id.desc())
        )
        keys = self.read(lambda connection: connection.execute(query).scalars().all())
        candidates = (self.find_run(store_id, key) for key in keys)
        return tuple(run for run in candidates if run is not None)

    def record_plan(self, run: Run, plan: Plan, payload: Mapping[str, Any]) -> Run:
        """Make ``plan`` the run's plan if the run has no plan yet. Return the run with its recorded plan.

        :param payload: the other data from which the plan was made.
        """
        digest = plan.digest

        def record(connection: Connection) -> bool:
            unplanned = select(runs.c.id).where(runs.c.id == run.run_id, runs.c.plan_digest.is_(None))
            if connection.execute(unplanned.with_for_update()).first() is None:
                return False
            stored = store_plan(connection, run, plan)
            connection.execute(
                update(runs)
                .where(runs.c.id == run.run_id)
                .values(plan=stored, plan_digest=digest, state=RunState.PLANNED.value)
            )
            journal_rows.insert_events(connection, run.run_id, Step.PLAN, Phase.RESULT, [("", payload)])
            return True

        if self._database.write(record):
            return replace(run, state=RunState.PLANNED, plan=plan, plan_digest=digest)
        return self.run(run.store_id, run.run_key)

    def finish_run(self, run: Run, payload: Mapping[str, Any]) -> None:
        """Mark the run as finished and record its report. A second call changes nothing."""

        def finish(connection: Connection) -> None:
            changed = connection.execute(
                update(runs)
                .where(runs.c.id == run.run_id, runs.c.state != RunState.FINISHED.value)
                .values(state=RunState.FINISHED.value, finished_at_ms=clock_ms())
            )
            if changed.rowcount:
                journal_rows.insert_events(connection, run.run_id, Step.REPORT, Phase.RESULT, [("", payload)])

        self._database.write(finish)

    # Events

    def record(
        self, run: Run, step: Step, phase: Phase, subjects: Subjects, *, lease: Lease | None = None
    ) -> None:
        """Record one event for each subject: all events or none.

        :param lease: if given, the lease is renewed in the same transaction. If another run has it by now,
            nothing is recorded.
        :raises StoreBusyError: another run has the lease by now.
        """

        def write(connection: Connection) -> None:
            if lease is not None:
                renew(connection, lease)
            journal_rows.insert_events(connection, run.run_id, step, phase, subjects)

        self._database.write(write)

    def events(self, run: Run, step: Step | None = None, phase: Phase | None = None) -> tuple[Event, ...]:
        """Return the run's events, oldest first."""
        return self._events(runs.c.id == run.run_id, step, phase)

    def store_events(self, store_id: str, step: Step, phase: Phase | None = None) -> tuple[Event, ...]:
        """Return the events of all runs of a store, oldest first."""
        return self._events(runs.c.store_id == store_id, step, phase)

    def results_of(self, store_id: str, step: Step, subjects: Sequence[str]) -> tuple[Event, ...]:
        """Return the results of a step for these subjects, in all runs of a store, oldest first."""
        results: list[Event] = []
        for batch in in_parts(subjects):
            where = and_(runs.c.store_id == store_id, events.c.subject.in_(batch))
            results += self._events(where, step, Phase.RESULT)
        return tuple(sorted(results, key=lambda event: event.event_id))

    def last_result(self, store_id: str, step: Step, *, of_plan: bool = False) -> Event | None:
        """Return the newest result of a step in all runs of a store.

        :param of_plan: whether to search only runs that have a plan.
        """
        return self._last(store_id, step, *([runs.c.plan_digest.is_not(None)] if of_plan else ()))

    def _last(self, store_id: str, step: Step, *where: ColumnElement[bool]) -> Event | None:
        query = journal_rows.last_result(store_id, step, *where)
        row = self.read(lambda connection: connection.execute(query).first())
        return None if row is None else journal_rows.to_event(row)

    lake_heads = reads(heads_since)

    def last_event_with(self, store_id: str, step: Step, field: str) -> Event | None:
        """Return a store's newest result of a step whose payload has true in this field."""
        return self._last(store_id, step, events.c.payload[field].as_boolean().is_(True))

    def _events(self, where: Any, step: Step | None, phase: Phase | None) -> tuple[Event, ...]:
        query = journal_rows.EVENTS.where(where)
        if step is not None:
            query = query.where(events.c.step == step.value)
        if phase is not None:
            query = query.where(events.c.phase == phase.value)
        ordered = query.order_by(events.c.id)
        return self.read(lambda c: tuple(map(journal_rows.to_event, c.execute(ordered))))

    # Reports and findings

    save_report = writes(put_report)
    save_findings = writes(put_findings)

    def save_topic_days(self, store_id: str, slots: Mapping[Slot, Sequence[TopicDay]]) -> None:
        """Record the bytes of archived segments by topic and day. The reserve for a full disk isn't used."""
        self._database.write(lambda connection: put_topic_days(connection, store_id, slots), reserve=False)

    # Samples and waivers

    def add_sample(
        self,
        store_id: str,
        disks: Sequence[DiskUsage],
        at_ms: int,
        archive_lag: ArchiveLag | None = None,
        progress: BrokerProgress | None = None,
        extent: Extent | None = None,
    ) -> None:
        """Record a sample, and the present time by this machine's clocks."""
        row = {
            "store_id": store_id,
            "levels": [],
            "at_ms": at_ms,
            "archive_lag": to_jsonable(archive_lag),
            "archive_lag_bytes": None if archive_lag is None else archive_lag.size_bytes,
            "clock": to_jsonable(read_clock()),
            "progress": to_jsonable(progress),
            **({} if extent is None else to_jsonable(extent)),
        }

        def write(connection: Connection) -> None:
            connection.execute(insert(samples).values(**row))
            # If there are two looks in one millisecond, the later one counts.
            delete_levels(connection, store_id, [at_ms])
            put_levels(connection, store_id, {at_ms: disks})

        self._twice(write)

    add_archive_lag = writes(journal_rows.put_archive_lag)

    def last_sample(self, store_id: str) -> Sample | None:
        query = (
            select(samples)
            .where(samples.c.store_id == store_id)
            .order_by(samples.c.at_ms.desc(), samples.c.id.desc())
            .limit(1)
        )

        def read(connection: Connection) -> Sample | None:
            row = connection.execute(query).first()
            if row is None:
                return None
            lag = None if row.archive_lag is None else from_jsonable(ArchiveLag, row.archive_lag)
            progress = None if row.progress is None else from_jsonable(BrokerProgress, row.progress)
            ends = (row.min_offset, row.max_offset, row.oldest_message_ms)
            extent = None if row.min_offset is None else Extent(*ends)
            row_levels = tuple(from_jsonable(DiskUsage, level) for level in row.levels)
            disk_levels = row_levels or levels_at(connection, store_id, row.at_ms)
            return Sample(row.store_id, row.at_ms, disk_levels, lag, progress, extent)

        return self.read(read)

    def max_offsets(self, store_id: str, since_ms: int) -> tuple[tuple[int, int], ...]:
        """Return each sample's time and the sum of the logs' max offsets, the oldest first."""
        query = (
            select(samples.c.at_ms, samples.c.max_offset)
            .where(samples.c.store_id == store_id, samples.c.at_ms >= since_ms)
            .where(samples.c.max_offset.is_not(None))
            .order_by(samples.c.at_ms)
        )
        rows = self.read(lambda connection: connection.execute(query).all())
        return tuple((row.at_ms, row.max_offset) for row in rows)

    def clock_readings(self, store_id: str, limit: int = 10_000) -> tuple[ClockReading, ...]:
        """Return the clocks' readings at a store's newest samples, the last one first."""
        query = (
            select(samples.c.clock)
            .where(samples.c.store_id == store_id, samples.c.clock.is_not(None))
            .order_by(samples.c.id.desc())
            .limit(limit)
        )
        rows = self.read(lambda connection: connection.execute(query).all())
        return tuple(from_jsonable(ClockReading, row.clock) for row in rows)

    def waive(self, plan_digest: str, person: str, reason: str) -> Waiver:
        """Record that the plan with this digest may run without receipts. The first decision is kept."""

        def write(connection: Connection) -> Waiver:
            waiver = journal_rows.find_waiver_row(connection, plan_digest)
            if waiver is None:
                waiver = Waiver(plan_digest, person, reason, clock_ms())
                connection.execute(insert(waivers).values(**to_jsonable(waiver)))
            return waiver

        return self._twice(write)

    find_waiver = reads(journal_rows.find_waiver_row)


WATCH_RUN: Final = "watch"
"""Key of the run in which drift is recorded if no other run found it."""

DONE = frozenset({DriftKind.FENCE_MENDED, DriftKind.FENCE_NOT_MENDED, DriftKind.GIVEN_UP})
"""Kinds of drift that record our actions between two runs, done or tried, after changes by other programs."""


def hold_memory(journal: Journal, store_id: str) -> HoldMemory:
    """Return the memory in which the store's broker package keeps the state of its hold."""

    def record(drifts: Sequence[Drift]) -> None:
        store = journal.store_with_id(store_id)
        if drifts and store is not None:
            record_under_watch(journal, store, drifts)

    return journal.hold_memory(store_id, record)


def record_under_watch(journal: Journal, record: StoreRecord, drifts: Sequence[Drift]) -> None:
    """Record drift under :data:`WATCH_RUN`, if it was not recorded since the last renewal of the hold."""
    record_drift(journal, record, journal.run_without_plan(record.store_id, WATCH_RUN), drifts)


def record_drift(journal: Journal, record: StoreRecord, run: Run, drifts: Sequence[Drift]) -> None:
    """Record drift that was not recorded since the last renewal of the hold.

    Call this before a renewal, because a renewal forgets the segments that are gone.
    """
    if not drifts:
        return
    recorded = {event.subject for event in _since_renewal(journal, record)}
    new = {
        _subject(drift): {"lineage": record.lineage_of(drift.log), "disturbance": to_jsonable(drift)}
        for drift in drifts
        if _subject(drift) not in recorded
    }
    journal.record(run, Step.DRIFT, Phase.RESULT, list(new.items()))


def untold_mends(journal: Journal, record: StoreRecord) -> tuple[Drift, ...]:
    """Return repairs and given-up segments that no record of the hold has reported yet.

    A run's record may lack drift that was recorded while the run checked the hold.
    """
    before, last = [None, None, *journal.store_events(record.store_id, Step.HOLD, Phase.RESULT)][-2:]
    reported = from_jsonable(HoldStatus, last.payload["result"]).disturbances if last else ()
    subjects = {_subject(drift) for drift in reported}
    drifts = []
    for event in journal.store_events(record.store_id, Step.DRIFT, Phase.RESULT):
        drift = from_jsonable(Drift, event.payload["disturbance"])
        is_new = last is None or event.event_id > last.event_id
        is_missed = before is None or event.event_id > before.event_id
        if drift.kind in DONE and (is_new or (is_missed and _subject(drift) not in subjects)):
            drifts.append(drift)
    return tuple(drifts)


def drift_since_renewal(journal: Journal, record: StoreRecord) -> tuple[Drift, ...]:
    """Return drift since a run last recorded the hold. Perhaps no report contains it yet."""
    events = _since_renewal(journal, record)
    return tuple(from_jsonable(Drift, event.payload["disturbance"]) for event in events)


def _since_renewal(journal: Journal, record: StoreRecord) -> list[Event]:
    renewed = journal.store_events(record.store_id, Step.HOLD, Phase.RESULT)
    since_ms = renewed[-1].at_ms if renewed else 0
    events = journal.store_events(record.store_id, Step.DRIFT, Phase.RESULT)
    return [event for event in events if event.at_ms >= since_ms]


def _subject(drift: Drift) -> str:
    """Return a text that identifies a drift. It stays the same even after the range was archived."""
    if drift.start_offset < 0:
        return f"{drift.kind.value}: {drift.detail}"
    return f"{drift.kind.value}: {drift.log} [{drift.start_offset}, {drift.end_offset})"
