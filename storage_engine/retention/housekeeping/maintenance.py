"""What of a store's history may go, and when: the policies of maintenance. Pure.

Never: results of releases, archiving and archiving ahead, stamps, what others did to a held store, accepted
losses, waivers, approvals, lineages, quarantines and what became of them, the last hold, and one day of clock
readings, for deletions are decided from them.
Nor anything of a run that is not finished, or that the newest report, plan or validation of a store rests on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from storage_engine.core.clock import DAY_MS, REMEMBERED_MS, ClockReading
from storage_engine.journal.records import RunState, Step

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
"""Steps whose events expire. Of all others, such as are added later, everything is kept but what the next two
name."""
KEPT_BY_SEGMENT = frozenset({Step.RELEASE, Step.ARCHIVE, Step.SEALED, Step.BROKER_TASK})
"""Steps of which what they came to as a whole expires."""
KEPT_BY_RESULT = frozenset({Step.ARCHIVE, Step.SEALED})
"""Steps of which intents and errors expire."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """How long each kind of history is kept, in days.

    :param report_days: reports, Data Docs, and the events and plans of runs that have a report.
    :param idle_run_days: runs that wrote no report, as nothing had changed, or that never had a plan.
    :param sample_days: every sample.
    :param daily_sample_days: of older samples, the last one of each day.
    """

    report_days: int = 90
    idle_run_days: int = 30
    sample_days: int = 90
    daily_sample_days: int = 730


@dataclass(frozen=True, slots=True)
class OldRun:
    """A run as far as its age is concerned.

    :param planned: it has a plan; a run without one is never finished, and ends with its last event.
    :param reported: it wrote a report of its own.
    :param last_ms: of its last event, its end or its beginning.
    """

    run_id: int
    run_key: str
    state: RunState
    planned: bool
    reported: bool
    last_ms: int


@dataclass(frozen=True, slots=True)
class OldSample:
    """A sample as far as its age is concerned."""

    sample_id: int
    at_ms: int
    clock: ClockReading | None


@dataclass(frozen=True, slots=True)
class OldReport:
    """A directory with a run's report.

    :param finished_at_ms: None: the run was not finished when it was written.
    """

    path: str
    store_id: str
    run_key: str
    finished_at_ms: int | None


def runs_to_expire(
    runs: Iterable[OldRun], protected: Collection[str], now_ms: int, expiry: Expiry
) -> tuple[OldRun, ...]:
    """Return the runs whose plan and events may go, but for what is never thinned.

    :param protected: keys of runs that something newer stands on.
    """

    def expired(run: OldRun) -> bool:
        ended = run.state is RunState.FINISHED or (run.state is RunState.OPEN and not run.planned)
        days = expiry.report_days if run.reported else expiry.idle_run_days
        return ended and run.run_key not in protected and run.last_ms < now_ms - days * DAY_MS

    return tuple(run for run in runs if expired(run))


def reports_to_expire(
    reports: Iterable[OldReport], protected: Collection[tuple[str, str]], now_ms: int, expiry: Expiry
) -> tuple[OldReport, ...]:
    """Return the reports that may go.

    :param protected: store and run key of those that something newer stands on.
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
    """Return the ids of samples that may go.

    :param samples: of one store, oldest first.
    :param newest: the store's last clock reading; those of the day before it stay, by the time since the
        machine was started.
    """
    full_ms = now_ms - expiry.sample_days * DAY_MS
    daily_ms = now_ms - expiry.daily_sample_days * DAY_MS
    last_of_day = {sample.at_ms // DAY_MS: sample.sample_id for sample in samples}

    def expired(sample: OldSample) -> bool:
        if sample.at_ms >= full_ms or _of_the_last_day(sample.clock, newest):
            return False
        return sample.at_ms < daily_ms or last_of_day[sample.at_ms // DAY_MS] != sample.sample_id

    return tuple(sample.sample_id for sample in samples if expired(sample))


def _of_the_last_day(reading: ClockReading | None, newest: ClockReading | None) -> bool:
    return (
        reading is not None
        and newest is not None
        and reading.boot_id == newest.boot_id
        and newest.boottime_ms - reading.boottime_ms <= REMEMBERED_MS
    )
