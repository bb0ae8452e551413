"""Removal of expired reports and journal records.

The order of removal is: expired quarantines; files of dead jobs; reports with their Data Docs; runs
with their plans and events; samples; lists of decisions that no run's plan uses. Reports are removed before
the events that they are made from. Each step may be killed at any instant and run again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from operator import add
from pathlib import Path

from sqlalchemy import Connection, and_, delete, func, or_, select, update

from storage_engine.brokers import store_text
from storage_engine.commands import Text
from storage_engine.core import durable
from storage_engine.core.clock import (
    DAY_MS,
    REMEMBERED_MS,
    ClockReading,
    clock_ms,
    jumped_forward_ms,
    read_clock,
)
from storage_engine.core.host import this_host
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import duration_text
from storage_engine.exceptions import StoreBusyError
from storage_engine.journal.journal import Journal, Phase, RunState, Step, StoreRecord, delete_levels
from storage_engine.journal.tables.database import JournalDatabase, missing_sqlite_file
from storage_engine.journal.tables.rows import last_result
from storage_engine.journal.tables.schema import events, plans, reports, runs, samples, stores, topic_days
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.gc.compaction import maintain_compaction
from storage_engine.lake.gc.snapshot_expiry import LakeMaintenance, LakePolicy, maintain_lake
from storage_engine.retention.housekeeping.lake_expiry import maintain_expiry
from storage_engine.retention.quarantine.emptying import Keeper, empty_expired
from storage_engine.retention.ranges.recording_deletions import write_deletions
from storage_engine.retention.report.finishing import SINCE
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import (
    DATA_DOCS_DIRECTORY,
    REPORT_JSON,
    RUN_FILES,
    ManagedStore,
    sweep_job_files,
)

EXPIRING_STEPS = frozenset(
    {
        Step.HOLD,
        Step.PLAN,
        Step.LAG,
        Step.ARCHIVE_LAG,
        Step.DEPENDENTS,
        Step.CHECKPOINT,
        Step.VALIDATE,
        Step.REPORT,
        Step.RETENTION_REPORT,
    }
)
"""Steps whose events expire. Events of all other steps are kept, with the exceptions below."""
KEPT_BY_SEGMENT = frozenset({Step.RELEASE, Step.ARCHIVE, Step.SEALED, Step.BROKER_TASK})
"""Steps whose event about the whole step expires; events about single segments are kept."""
KEPT_BY_RESULT = frozenset({Step.ARCHIVE, Step.SEALED})
"""Steps whose intents and errors expire; their results are kept."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """Number of days for which each kind of history is kept.

    :param report_days: reports, Data Docs, and the events and plans of runs that have a report.
    :param idle_run_days: runs that wrote no report because nothing had changed, or that never had a plan.
    :param sample_days: every sample.
    :param daily_sample_days: the last sample of each day, after all others of the day expired.
    """

    report_days: int = 90
    idle_run_days: int = 30
    sample_days: int = 90
    daily_sample_days: int = 730


@dataclass(frozen=True, slots=True)
class OldRun:
    """The facts about a run that decide whether it has expired.

    :param planned: the run has a plan. A run without one is never finished, and ends with its last event.
    :param last_ms: time of its last event, its end or its beginning, whichever is latest.
    """

    run_id: int
    run_key: str
    state: RunState
    planned: bool
    reported: bool
    last_ms: int


@dataclass(frozen=True, slots=True)
class OldSample:
    """The facts about a sample that decide whether it has expired."""

    sample_id: int
    at_ms: int
    clock: ClockReading | None


@dataclass(frozen=True, slots=True)
class OldReport:
    """A directory with a run's report.

    :param finished_at_ms: end of the run, or None if the run was not finished when the report was written.
    """

    path: str
    store_id: str
    run_key: str
    finished_at_ms: int | None


def runs_to_expire(
    runs: Iterable[OldRun], protected: Collection[str], now_ms: int, expiry: Expiry
) -> tuple[OldRun, ...]:
    """Return the runs whose plan and events have expired. Some events stay: see :data:`EXPIRING_STEPS`.

    :param protected: keys of runs that newer records still need.
    """

    def is_expired(run: OldRun) -> bool:
        ended = run.state is RunState.FINISHED or (run.state is RunState.OPEN and not run.planned)
        days = expiry.report_days if run.reported else expiry.idle_run_days
        return ended and run.run_key not in protected and run.last_ms < now_ms - days * DAY_MS

    return tuple(run for run in runs if is_expired(run))


def reports_to_expire(
    reports: Iterable[OldReport], protected: Collection[tuple[str, str]], now_ms: int, expiry: Expiry
) -> tuple[OldReport, ...]:
    """Return the reports that have expired.

    :param protected: store id and run key of runs that newer records still need.
    """
    before_ms = now_ms - expiry.report_days * DAY_MS
    return tuple(
        report
        for report in reports
        if report.finished_at_ms is not None
        and report.finished_at_ms < before_ms
        and (report.store_id, report.run_key) not in protected
    )


def samples_to_expire(
    samples: Sequence[OldSample], newest: ClockReading | None, now_ms: int, expiry: Expiry
) -> tuple[int, ...]:
    """Return the ids of samples that have expired.

    :param samples: samples of one store, oldest first.
    :param newest: the store's last clock reading. Samples of the same boot stay if they were taken at most a
        day of uptime before this reading.
    """
    full_ms = now_ms - expiry.sample_days * DAY_MS
    daily_ms = now_ms - expiry.daily_sample_days * DAY_MS
    last_of_day = {sample.at_ms // DAY_MS: sample.sample_id for sample in samples}

    def is_expired(sample: OldSample) -> bool:
        if sample.at_ms >= full_ms or (
            sample.clock is not None
            and newest is not None
            and sample.clock.boot_id == newest.boot_id
            and newest.boottime_ms - sample.clock.boottime_ms <= REMEMBERED_MS
        ):
            return False
        return sample.at_ms < daily_ms or last_of_day[sample.at_ms // DAY_MS] != sample.sample_id

    return tuple(sample.sample_id for sample in samples if is_expired(sample))


BATCH = 200
"""Number of runs in one transaction: few enough that no other process waits for the journal."""
_SAMPLE_BATCH = 5_000


@dataclass(frozen=True, slots=True)
class ExpiredRows:
    """Numbers of rows that were removed or would be."""

    runs: int = 0
    events: int = 0
    samples: int = 0
    plans: int = 0
    topic_days: int = 0

    def __add__(self, other: ExpiredRows) -> ExpiredRows:
        return ExpiredRows(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Result of one transaction: last run that it read, removed rows, and runs that lost their plan."""

    last_id: int = 0
    gone: ExpiredRows = ExpiredRows()
    thinned: frozenset[int] = frozenset()


class JournalExpiry:
    """:param url: SQLAlchemy URL of the journal; the errors are those of :class:`JournalDatabase`."""

    def __init__(self, url: str) -> None:
        self._database = JournalDatabase(url)

    def store_ids(self) -> tuple[str, ...]:
        query = select(stores.c.store_id).order_by(stores.c.created_at_ms)
        return tuple(self._database.read(lambda connection: connection.execute(query).scalars().all()))

    def protected_runs(self, store_id: str) -> frozenset[str]:
        """Return the keys of runs that stay whole.

        They are the last planned, reported and validated runs, and the runs whose report or validation counts
        for these. Runs whose quarantine was neither emptied nor brought back stay, too.
        """
        return self._database.read(lambda connection: _read_protected(connection, store_id))

    def expire(self, store_id: str, now_ms: int, expiry: Expiry, *, dry_run: bool = False) -> ExpiredRows:
        """Remove a store's expired runs and events, samples, bytes by topic and day, and unused plans.

        :param dry_run: only count the rows.
        """
        transaction = self._database.read if dry_run else self._database.write
        removed, thinned = ExpiredRows(), set[int]()
        batch: _Batch | None = _Batch()
        while batch is not None:
            step = partial(_expire_runs, store_id=store_id, after=batch, now_ms=now_ms, expiry=expiry)
            batch = transaction(partial(step, dry_run=dry_run))
            if batch is not None:
                removed += batch.gone
                thinned |= batch.thinned
        old = self._database.read(partial(_old_samples, store_id=store_id, now_ms=now_ms, expiry=expiry))
        for start in range(0, 0 if dry_run else len(old), _SAMPLE_BATCH):
            batch_ids = old[start : start + _SAMPLE_BATCH]
            self._database.write(partial(_delete_samples, store_id=store_id, sample_ids=batch_ids))
        topic_rows = 0
        for day in self._database.read(partial(_old_days, store_id=store_id, now_ms=now_ms, expiry=expiry)):
            topic_rows += transaction(partial(_expire_day, store_id=store_id, day=day, dry_run=dry_run))
        plans_gone = partial(_expire_plans, store_id=store_id, thinned=thinned, now_ms=now_ms)
        unnamed = transaction(partial(plans_gone, dry_run=dry_run))
        return removed + ExpiredRows(samples=len(old), plans=unnamed, topic_days=topic_rows)


def _read_protected(connection: Connection, store_id: str) -> frozenset[str]:
    planned = (
        select(runs.c.run_key)
        .where(runs.c.store_id == store_id, runs.c.plan_digest.is_not(None))
        .order_by(runs.c.id.desc())
        .limit(1)
    )
    keys = set(connection.execute(planned).scalars())
    for step in (Step.REPORT, Step.VALIDATE):
        last = connection.execute(last_result(store_id, step)).first()
        if last is not None:
            keys |= {last.run_key, str(last.payload.get(SINCE) or last.run_key)}
    # A quarantine that was neither emptied nor brought back still needs its run's events.
    with_events = (
        select(runs.c.run_key).join(events, events.c.run_id == runs.c.id).where(runs.c.store_id == store_id)
    )
    ended = with_events.where(
        events.c.step.in_([Step.EMPTY_QUARANTINE.value, Step.UNDO.value]),
        events.c.phase == Phase.RESULT.value,
    )
    begun = with_events.where(events.c.step == Step.QUARANTINE.value)
    keys |= {*connection.execute(begun).scalars()} - {*connection.execute(ended).scalars()}
    return frozenset(keys)


def _expire_runs(
    connection: Connection, store_id: str, after: _Batch, now_ms: int, expiry: Expiry, dry_run: bool
) -> _Batch | None:
    """Remove expired events of the next batch of runs, and return the result; None if no run is left."""
    batch = _old_runs(connection, store_id, after.last_id, now_ms, expiry)
    if not batch:
        return None
    expired = runs_to_expire(batch, _read_protected(connection, store_id), now_ms, expiry)
    ids = [run.run_id for run in expired]
    expiring = or_(
        events.c.step.in_([step.value for step in EXPIRING_STEPS]),
        and_(events.c.step.in_([step.value for step in KEPT_BY_SEGMENT]), events.c.subject == ""),
        and_(
            events.c.step.in_([step.value for step in KEPT_BY_RESULT]), events.c.phase != Phase.RESULT.value
        ),
    )
    last_hold = connection.execute(last_result(store_id, Step.HOLD)).first()
    expires = expiring if last_hold is None else and_(expiring, events.c.id != last_hold.id)
    of_runs = events.c.run_id.in_(ids)
    count = connection.execute(select(func.count()).select_from(events).where(of_runs, expires)).scalar_one()
    with_kept = set(connection.execute(select(events.c.run_id).where(of_runs, ~expires).distinct()).scalars())
    # A run without a plan may continue under its key, such as the run of accepted losses.
    thinned = {run.run_id for run in expired if run.planned and run.run_id in with_kept}
    emptied = [number for number in ids if number not in with_kept]
    if not dry_run:
        connection.execute(delete(events).where(of_runs, expires))
        connection.execute(delete(reports).where(reports.c.run_id.in_(ids)))
        connection.execute(delete(runs).where(runs.c.id.in_(emptied)))
        values = {"state": RunState.EXPIRED.value, "plan": None}
        connection.execute(update(runs).where(runs.c.id.in_(thinned)).values(**values))
    rows = ExpiredRows(runs=len(thinned) + len(emptied), events=count)
    return _Batch(batch[-1].run_id, rows, frozenset({*thinned, *emptied}))


def _old_runs(
    connection: Connection, store_id: str, after: int, now_ms: int, expiry: Expiry
) -> tuple[OldRun, ...]:
    before_ms = now_ms - min(expiry.idle_run_days, expiry.report_days) * DAY_MS
    last = select(func.max(events.c.at_ms)).where(events.c.run_id == runs.c.id).scalar_subquery()
    query = (
        select(
            runs.c.id,
            runs.c.run_key,
            runs.c.state,
            runs.c.plan_digest,
            runs.c.created_at_ms,
            runs.c.finished_at_ms,
            last.label("event_ms"),
        )
        .where(runs.c.store_id == store_id, runs.c.id > after)
        .where(runs.c.created_at_ms < before_ms, runs.c.state != RunState.EXPIRED.value)
        .order_by(runs.c.id)
        .limit(BATCH)
        .with_for_update(of=runs)
    )
    rows = connection.execute(query).all()
    report_query = (
        select(events.c.run_id, events.c.payload)
        .where(events.c.run_id.in_([row.id for row in rows]))
        .where(events.c.step == Step.REPORT.value, events.c.phase == Phase.RESULT.value)
    )
    reported = {row.run_id for row in connection.execute(report_query) if not row.payload.get(SINCE)}
    return tuple(
        OldRun(
            run_id=row.id,
            run_key=row.run_key,
            state=RunState(row.state),
            planned=row.plan_digest is not None,
            reported=row.id in reported,
            last_ms=max(row.created_at_ms, row.finished_at_ms or 0, row.event_ms or 0),
        )
        for row in rows
    )


def _old_samples(connection: Connection, store_id: str, now_ms: int, expiry: Expiry) -> Sequence[int]:
    query = select(samples.c.id, samples.c.at_ms, samples.c.clock).where(samples.c.store_id == store_id)
    old = query.where(samples.c.at_ms < now_ms - expiry.sample_days * DAY_MS).order_by(samples.c.id)
    newest = query.where(samples.c.clock.is_not(None)).order_by(samples.c.id.desc()).limit(1)
    last = connection.execute(newest).first()
    stored = [OldSample(row.id, row.at_ms, _clock(row.clock)) for row in connection.execute(old)]
    return samples_to_expire(stored, _clock(last.clock) if last else None, now_ms, expiry)


def _delete_samples(connection: Connection, store_id: str, sample_ids: Sequence[int]) -> None:
    condition = samples.c.id.in_(sample_ids)
    delete_levels(connection, store_id, select(samples.c.at_ms).where(condition).scalar_subquery())
    connection.execute(delete(samples).where(condition))


def _clock(stored: object) -> ClockReading | None:
    return None if stored is None else from_jsonable(ClockReading, stored)


def _old_days(connection: Connection, store_id: str, now_ms: int, expiry: Expiry) -> Sequence[int]:
    before = (now_ms - expiry.sample_days * DAY_MS) // DAY_MS
    query = select(topic_days.c.day).where(topic_days.c.store_id == store_id, topic_days.c.day < before)
    return connection.execute(query.distinct()).scalars().all()


def _expire_day(connection: Connection, store_id: str, day: int, dry_run: bool) -> int:
    conditions = topic_days.c.store_id == store_id, topic_days.c.day == day
    count = connection.execute(select(func.count()).select_from(topic_days).where(*conditions)).scalar_one()
    if not dry_run:
        connection.execute(delete(topic_days).where(*conditions))
    return count


def _expire_plans(
    connection: Connection, store_id: str, thinned: Collection[int], now_ms: int, dry_run: bool
) -> int:
    """Remove lists of decisions that no run's plan uses.

    The last list stays, because the next run's plan may use it. Lists younger than a day stay as well: a run
    that is being recorded may just have read one.

    :param thinned: runs that lost their plan, or would lose it, and so use no list.
    """
    own_plans = select(plans.c.id).where(plans.c.store_id == store_id)
    last = connection.execute(own_plans.order_by(plans.c.id.desc()).limit(1)).scalar()
    plans_of_runs = select(runs.c.id, runs.c.plan["decisions_in"].as_integer()).where(
        runs.c.store_id == store_id, runs.c.plan.is_not(None)
    )
    in_use = {number for run_id, number in connection.execute(plans_of_runs) if run_id not in thinned}
    old = own_plans.where(plans.c.at_ms < now_ms - DAY_MS, plans.c.id != last)
    unnamed = [number for number in connection.execute(old).scalars() if number not in in_use]
    if unnamed and not dry_run:
        connection.execute(delete(plans).where(plans.c.id.in_(unnamed)))
    return len(unnamed)


def old_reports(stores: Iterable[Path], now_ms: int, expiry: Expiry) -> Iterator[OldReport]:
    """Yield reports that were written more than ``report_days`` ago, except each store's newest report.

    Directories without one of our reports and symbolic links are skipped.

    :param stores: directories that have one directory for each run.
    """
    before_ns = (now_ms - expiry.report_days * DAY_MS) * 10**6
    for store in stores:
        written = {path: path.stat().st_mtime_ns for path in store.glob(f"*/{REPORT_JSON}") if _is_ours(path)}
        newest = max(written, key=written.__getitem__, default=None)
        for path in sorted(path for path, at_ns in written.items() if at_ns < before_ns and path != newest):
            report = _read(path)
            if report is not None:
                yield report


def emptied_directories(stores: Iterable[Path], now_ms: int, expiry: Expiry) -> Iterator[Path]:
    """Find the directories that :func:`remove_report` emptied before it was killed."""
    before_ns = (now_ms - expiry.report_days * DAY_MS) * 10**6
    for directory in sorted(path for store in stores for path in store.glob("*")):
        if directory.is_dir() and not directory.is_symlink() and directory.stat().st_mtime_ns < before_ns:
            yield from () if any(directory.iterdir()) else (directory,)


def remove_report(directory: Path) -> None:
    """Remove the files that we wrote to a directory, then the directory if it is empty.

    The report itself is removed last, so that after a kill the report still leads to the directory.
    """
    data_docs = directory / DATA_DOCS_DIRECTORY
    if data_docs.is_dir() and not data_docs.is_symlink():
        shutil.rmtree(data_docs)
    for name in RUN_FILES:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            durable.unlink(path)
    durable.fsync_path(directory)
    durable.unlink(directory / REPORT_JSON)
    if not any(directory.iterdir()):
        directory.rmdir()


def _is_ours(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()


def _read(path: Path) -> OldReport | None:
    """Read a report from its JSON, or return None if it isn't one of our reports."""
    try:
        content = json.loads(path.read_bytes())
        ended = content["finished_at_ms"]
        return OldReport(
            path=str(path.parent),
            store_id=str(content["store_id"]),
            run_key=str(content["run_key"]),
            finished_at_ms=None if ended is None else int(ended),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class MaintainResult:
    """Files and records that were removed, or would be.

    :param job_directories: directories of Spark jobs whose process is dead.
    :param report_directories: directories of reports, each with its Data Docs.
    :param notices: things that were left alone, and why.
    :param quarantines: sentences on the expired quarantines, each with its result.
    """

    dry_run: bool
    job_directories: tuple[str, ...]
    report_directories: tuple[str, ...]
    rows: ExpiredRows
    notices: tuple[str, ...]
    quarantines: tuple[str, ...] = ()


def maintain_store(
    store: ManagedStore, now_ms: int | None = None, expiry: Expiry | None = None, *, dry_run: bool = False
) -> MaintainResult:
    """Remove expired quarantines, reports and journal records of one store.

    :param now_ms: the present time, or None for this machine's clock.
    """
    now_ms = clock_ms() if now_ms is None else now_ms
    journal = Journal(store.journal_url)
    record = identify(store, journal)
    emptied = _empty(Keeper(journal, record, store.lakes), now_ms, dry_run)
    # Deletions are written before the events that they are made from expire.
    unwritten = () if dry_run else write_deletions(store.archive_lakes, store.journal_url, record)
    result = _maintain(store.journal_url, Path(store.report_dir), {record.store_id}, now_ms, expiry, dry_run)
    return replace(result, quarantines=emptied, notices=(*result.notices, *unwritten))


def maintain_lakes(
    store: ManagedStore, now_ms: int | None = None, *, compact: bool = False
) -> tuple[LakeMaintenance, ...]:
    """In a store's lakes, expire segments that the rules no longer keep, and snapshots of no further use.

    If stores share a lake, the call for the first store does the work.

    :param now_ms: the present time, or None for this machine's clock.
    :param compact: also rewrite the store's small data files into larger ones.
    :raises StorageEngineError: the same errors as of ``open_lake`` and ``maintain_lake``.
    """
    now_ms = clock_ms() if now_ms is None else now_ms
    journal = Journal(store.journal_url)
    record = identify(store, journal)
    all_heads = known_heads(journal, record)
    results = []
    for config in store.lakes:
        lake = open_lake(config)
        heads = {record.store_id: all_heads.of(lake, lake.segments())}
        expired = maintain_expiry(lake, store.journal_url)
        compacted = maintain_compaction(lake, record.store_id) if compact else ()
        maintained = maintain_lake(lake, LakePolicy(), now_ms, known_heads=heads)
        results.append(replace(maintained, notices=(*maintained.notices, *expired, *compacted)))
    return tuple(results)


def maintain_directory(
    journal_url: str,
    reports: Path,
    now_ms: int | None = None,
    expiry: Expiry | None = None,
    *,
    dry_run: bool = False,
    lakes: Sequence[LakeConfig] = (),
) -> MaintainResult:
    """Remove expired records of all stores in a journal. Without a journal there is nothing to do.

    :param reports: directory that has one directory for each store.
    :param lakes: lakes that may prove files in quarantines. An unproven file stays in its quarantine.
    """
    if missing_sqlite_file(journal_url):
        return MaintainResult(dry_run, (), (), ExpiredRows(), ())
    now_ms = clock_ms() if now_ms is None else now_ms
    journal = Journal(journal_url)
    # Quarantines on another machine's disk are left to that machine.
    records = [record for record in journal.all_stores() if record.host in (None, this_host())]
    emptied = [line for record in records for line in _empty(Keeper(journal, record, lakes), now_ms, dry_run)]
    store_ids = JournalExpiry(journal_url).store_ids()
    unwritten = [
        line
        for record in journal.all_stores()
        if not dry_run
        for line in write_deletions(lakes, journal_url, record)
    ]
    result = _maintain(journal_url, reports, store_ids, now_ms, expiry, dry_run)
    return replace(result, quarantines=tuple(emptied), notices=(*result.notices, *unwritten))


def _empty(keeper: Keeper, now_ms: int, dry_run: bool) -> tuple[str, ...]:
    try:
        return empty_expired(keeper, now_ms, dry_run=dry_run)
    except StoreBusyError as error:
        return (Text(f"no quarantine of store {_store_title(keeper.record)} was emptied: ", error),)


def _store_title(record: StoreRecord) -> str:
    return store_text(record.name, record.broker, record.real_path)


def _maintain(
    journal_url: str,
    reports: Path,
    store_ids: Collection[str],
    now_ms: int,
    expiry: Expiry | None,
    dry_run: bool,
) -> MaintainResult:
    expiry = expiry or Expiry()
    journal, rows = JournalExpiry(journal_url), ExpiredRows()
    names = {record.store_id: _store_title(record) for record in Journal(journal_url).all_stores()}
    jumped = {store_id: _clock_fault(journal_url, store_id) for store_id in store_ids}
    trusted = [store_id for store_id in store_ids if not jumped[store_id]]
    jobs = sweep_job_files(reports, dry_run=dry_run)
    protected = {(store_id, key) for store_id in trusted for key in journal.protected_runs(store_id)}
    directories = sorted(path for path in reports.glob("*") if path.is_dir() and not path.is_symlink())
    old = [report for report in old_reports(directories, now_ms, expiry) if report.store_id in trusted]
    expired = reports_to_expire(old, protected, now_ms, expiry)
    if not dry_run:
        for report in expired:
            remove_report(Path(report.path))
        for directory in emptied_directories(directories, now_ms, expiry):
            directory.rmdir()
    for store_id in trusted:
        rows += journal.expire(store_id, now_ms, expiry, dry_run=dry_run)
    return MaintainResult(
        dry_run=dry_run,
        job_directories=tuple(map(str, jobs)),
        report_directories=tuple(report.path for report in expired),
        rows=rows,
        notices=tuple(f"store {names[store_id]}: {reason}" for store_id, reason in jumped.items() if reason),
    )


def _clock_fault(journal_url: str, store_id: str) -> str:
    """Return why nothing of a store may expire now, or "" if the clock can be trusted."""
    ahead_ms = jumped_forward_ms(read_clock(), Journal(journal_url).clock_readings(store_id))
    if not ahead_ms:
        return ""
    return (
        f"nothing expires, as the clock was set forward by {duration_text(ahead_ms)} within the last day. "
        "If the clock is right, expiry continues a day after it was set."
    )
