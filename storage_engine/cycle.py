"""The steps of a cleanup in their order. DAGs and the shell are built from it, and tests call it.

A plan says what *may* go, by the broker's rules. A lake's receipts say what is *proven*. ``release`` deletes
what is both, and judges it under the store's lock, right before. Every step may be killed at any instant and
done again: what it has done is in the journal.

A process opens its store once. A step looks again which store it is and asks its broker again for the
settings. Of a running broker a step asks also:

====================  ===================================================================================
plan                  what its hold rests on: drift is recorded, then the hold is renewed; disks, offsets
consumer_lag          each group's positions
archive               how long its puts take, once a minute
release               as plan; then to delete what was approved, and how far it is with that
clean_dependents      whether its queues and index files are gone
flush_checkpoint      how far it is behind with flush, dispatch, index and checkpoint
validate              the offsets that its queues begin and end at
report                nothing more
====================  ===================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_engine.model.plan import PlanRequest

if TYPE_CHECKING:
    from storage_engine.lake.file.jobs import SegmentJob
    from storage_engine.model.lag import ArchiveLag, LagSummary
    from storage_engine.model.plan import Starter
    from storage_engine.model.proof.receipt import Receipt
    from storage_engine.model.report.validation import ValidationResult
    from storage_engine.retention.report.finishing import FinishResult
    from storage_engine.retention.steps import (
        ArchiveResult,
        CheckpointResult,
        DependentsResult,
        LagQuestion,
        PlanResult,
        ReleaseResult,
    )
    from storage_engine.retention.store.context import AnyStore
    from storage_engine.spark.consumer_lag import ConsumerLagResult


def lag_here(cleanup: Cleanup, asked: LagQuestion) -> ConsumerLagResult:
    """Measure consumer lag in this process."""
    from storage_engine.retention.store.context import managed_of
    from storage_engine.spark.consumer_lag import lag_here

    return lag_here(managed_of(cleanup.store), asked.segments, asked.decided_at_ms)


def archive_here(jobs: Sequence[SegmentJob]) -> Sequence[Receipt]:
    """Copy, prove and commit segments in this process."""
    from storage_engine.lake.archive.archive import archive_all
    from storage_engine.lake.catalog.catalog import open_lake

    return archive_all(open_lake(jobs[0].lake), jobs)


def where_here(jobs: Sequence[SegmentJob]) -> str:
    """Say that this process archives, and with how many threads."""
    from storage_engine.retention.steps import where_here

    return where_here(jobs)


@dataclass(frozen=True, slots=True)
class Cleanup:
    """One run on one store, and by what means its heavy work is done.

    :param run_key: names the run in the journal; the same key goes on with it.
    :param request: the request beyond the store's own settings; None: nothing.
    :param measure_lag: measures consumer lag, here or in a Spark job.
    :param archive_with: copies, proves and commits segments, here or in a Spark job.
    :param where: says for the record where ``archive_with`` does that.
    :param starter: who begins the run; None: the account whose process this is.
    """

    store: AnyStore
    run_key: str
    request: PlanRequest | None = None
    measure_lag: Callable[[Cleanup, LagQuestion], ConsumerLagResult] = lag_here
    archive_with: Callable[[Sequence[SegmentJob]], Sequence[Receipt]] = archive_here
    where: Callable[[Sequence[SegmentJob]], str] = where_here
    starter: Starter | None = None


def plan(cleanup: Cleanup) -> PlanResult:
    """Decide for each segment whether it may go, and why; once a run."""
    from storage_engine.retention.steps import make_plan

    return make_plan(cleanup.store, cleanup.run_key, cleanup.request, starter=cleanup.starter)


def consumer_lag(cleanup: Cleanup) -> LagSummary:
    """Record consumer lag for the plan. After the first deletion the record is final.

    Where files go away while it is measured, it is measured again.
    """
    from storage_engine.exceptions import BadInputError, FileGoneError
    from storage_engine.retention.archive.archiving import LISTINGS
    from storage_engine.retention.steps import lag_question, record_lag

    for left in reversed(range(LISTINGS)):
        asked = lag_question(cleanup.store, cleanup.run_key)
        if asked.answered is not None:
            return asked.answered
        started_ns = time.monotonic_ns()
        try:
            found = cleanup.measure_lag(cleanup, asked)
            break
        except (BadInputError, FileGoneError, FileNotFoundError) as error:
            # What goes of the plan meanwhile is for the release to settle.
            is_new = asked.segments != lag_question(cleanup.store, cleanup.run_key).segments
            if not left or (isinstance(error, BadInputError) and not is_new):
                raise
    took_ms = (time.monotonic_ns() - started_ns) // 1_000_000
    rows, ran = found.at_risk, found.ran
    record_lag(cleanup.store, cleanup.run_key, found.summary, rows, found.logs, took_ms, ran)
    return found.summary


def archive(cleanup: Cleanup) -> ArchiveResult:
    """Bring into a lake, with proof, what the plan deletes and no lake has."""
    from storage_engine.retention.steps import archive_planned

    return archive_planned(cleanup.store, cleanup.run_key, cleanup.archive_with, where=cleanup.where)


def release(cleanup: Cleanup) -> ReleaseResult:
    """Delete the planned segments that pass the gate: the only step that deletes messages."""
    from storage_engine.retention.steps import release

    return release(cleanup.store, cleanup.run_key)


def clean_dependents(cleanup: Cleanup) -> DependentsResult:
    """Delete the consume queue and index files that point only at what is gone."""
    from storage_engine.retention.steps import clean_dependents

    return clean_dependents(cleanup.store, cleanup.run_key)


def flush_checkpoint(cleanup: Cleanup) -> CheckpointResult:
    """Flush files after the cleanup, and look at the broker's checkpoint."""
    from storage_engine.retention.steps import flush_checkpoint

    return flush_checkpoint(cleanup.store, cleanup.run_key)


def validate(cleanup: Cleanup, *, full: bool = False) -> ValidationResult:
    """Check that store and lake together still have every byte.

    :param full: check every frame and archived row instead of the boundaries of changed ranges.
    """
    from storage_engine.quality.validate import validate_store

    return validate_store(cleanup.store, cleanup.run_key, full=full)


def report(cleanup: Cleanup) -> FinishResult:
    """Write the run's report and end the run, whatever became of its steps."""
    from storage_engine.retention.report.finishing import finish

    return finish(cleanup.store, cleanup.run_key)


CLEANUP = (plan, consumer_lag, archive, release, clean_dependents, flush_checkpoint, validate, report)
"""The cycle that deletes. A step's name is its task's id; ``report`` runs whatever failed before it."""


def archive_sealed(cleanup: Cleanup) -> ArchiveResult:
    """Archive sealed segments ahead of their deletion, as many as the policy allows a run."""
    from storage_engine.retention.steps import archive_sealed
    from storage_engine.retention.store.context import managed_of

    budget_bytes, where = managed_of(cleanup.store).policy.archive_budget_bytes, cleanup.where
    return archive_sealed(
        cleanup.store, cleanup.run_key, cleanup.archive_with, budget_bytes=budget_bytes, where=where
    )


def archive_lag(cleanup: Cleanup) -> ArchiveLag | None:
    """Record the sealed segments that no lake has yet; None where the policy is not to archive."""
    from storage_engine.retention.steps import record_archive_lag

    return record_archive_lag(cleanup.store, cleanup.run_key)


AHEAD = (archive_sealed, report)
"""The shorter cycle, which runs beside the other one and keeps no deletion waiting."""
