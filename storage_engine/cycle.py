"""The steps of a cleanup in their order. DAGs and the shell are built from them, and tests call them.

A plan names the segments that *may* be deleted by the broker's rules. A lake's receipts say which are
*proven*. ``release`` deletes the segments that may be deleted and are proven, and checks this once more under
the store's lock, right before the deletion. Every step may be killed at any instant and repeated: the journal
has its results.

A process opens its store once. Each step checks again which store it is, and asks its broker again for the
settings. In addition, a step asks a running broker for:

====================  ===================================================================================
plan                  the state of its hold: drift is recorded, then the hold is renewed; disks, offsets
consumer_lag          each group's positions
archive               the duration of its puts, once a minute
release               the same as plan; then it requests the approved deletion, and asks for its progress
clean_dependents      whether its queues and index files are gone
flush_checkpoint      its progress with flush, dispatch, index and checkpoint
validate              the first and last offsets of its queues
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


def lag_here(cleanup: Cleanup, question: LagQuestion) -> ConsumerLagResult:
    """Measure consumer lag in this process."""
    from storage_engine.retention.store.context import managed_of
    from storage_engine.spark.consumer_lag import lag_here

    return lag_here(managed_of(cleanup.store), question.segments, question.decided_at_ms)


def archive_here(jobs: Sequence[SegmentJob]) -> Sequence[Receipt]:
    """Copy, prove and commit segments in this process."""
    from storage_engine.lake.archive.archive import archive_all
    from storage_engine.lake.catalog.catalog import open_lake

    return archive_all(open_lake(jobs[0].lake), jobs)


def where_here(jobs: Sequence[SegmentJob]) -> str:
    """Return words that say that this process archives, and with how many threads."""
    from storage_engine.retention.steps import where_here

    return where_here(jobs)


@dataclass(frozen=True, slots=True)
class Cleanup:
    """One run on one store, with the functions for its heavy work.

    :param run_key: name of the run in the journal. The same key continues the run.
    :param request: the request in addition to the store's own settings.
    :param measure_lag: measures consumer lag, here or in a Spark job.
    :param archive_with: copies, proves and commits segments, here or in a Spark job.
    :param where: returns the place where ``archive_with`` works, in words for the record.
    :param starter: the starter of the run; None for the account of this process.
    """

    store: AnyStore
    run_key: str
    request: PlanRequest | None = None
    measure_lag: Callable[[Cleanup, LagQuestion], ConsumerLagResult] = lag_here
    archive_with: Callable[[Sequence[SegmentJob]], Sequence[Receipt]] = archive_here
    where: Callable[[Sequence[SegmentJob]], str] = where_here
    starter: Starter | None = None


def plan(cleanup: Cleanup) -> PlanResult:
    """Decide for each segment whether it may be deleted, with the reason. Done once per run."""
    from storage_engine.retention.steps import make_plan

    return make_plan(cleanup.store, cleanup.run_key, cleanup.request, starter=cleanup.starter)


def consumer_lag(cleanup: Cleanup) -> LagSummary:
    """Record consumer lag for the plan. After the first deletion the record is final. The measurement is
    repeated if files vanish meanwhile.
    """
    from storage_engine.exceptions import BadInputError, FileGoneError
    from storage_engine.retention.archive.archiving import LISTINGS
    from storage_engine.retention.steps import lag_question, record_lag

    for retries in reversed(range(LISTINGS)):
        question = lag_question(cleanup.store, cleanup.run_key)
        if question.answered is not None:
            return question.answered
        started_ns = time.monotonic_ns()
        try:
            result = cleanup.measure_lag(cleanup, question)
            break
        except (BadInputError, FileGoneError, FileNotFoundError) as error:
            # The release handles planned segments that are deleted meanwhile.
            is_new = question.segments != lag_question(cleanup.store, cleanup.run_key).segments
            if not retries or (isinstance(error, BadInputError) and not is_new):
                raise
    took_ms = (time.monotonic_ns() - started_ns) // 1_000_000
    rows, ran = result.at_risk, result.ran
    record_lag(cleanup.store, cleanup.run_key, result.summary, rows, result.logs, took_ms, ran)
    return result.summary


def archive(cleanup: Cleanup) -> ArchiveResult:
    """Archive the planned segments that no lake has, and prove each copy."""
    from storage_engine.retention.steps import archive_planned

    return archive_planned(cleanup.store, cleanup.run_key, cleanup.archive_with, where=cleanup.where)


def release(cleanup: Cleanup) -> ReleaseResult:
    """Delete the planned segments that the gate permits. This is the only step that deletes messages."""
    from storage_engine.retention.steps import release

    return release(cleanup.store, cleanup.run_key)


def clean_dependents(cleanup: Cleanup) -> DependentsResult:
    """Delete the consume queue and index files that point only to deleted segments."""
    from storage_engine.retention.steps import clean_dependents

    return clean_dependents(cleanup.store, cleanup.run_key)


def flush_checkpoint(cleanup: Cleanup) -> CheckpointResult:
    """Flush files after the cleanup, and read the broker's checkpoint."""
    from storage_engine.retention.steps import flush_checkpoint

    return flush_checkpoint(cleanup.store, cleanup.run_key)


def validate(cleanup: Cleanup, *, full: bool = False) -> ValidationResult:
    """Check that store and lake together still have every byte.

    :param full: check every frame and archived row, instead of only the boundaries of changed ranges.
    """
    from storage_engine.quality.validate import validate_store

    return validate_store(cleanup.store, cleanup.run_key, full=full)


def report(cleanup: Cleanup) -> FinishResult:
    """Write the run's report and end the run, even if steps failed."""
    from storage_engine.retention.report.finishing import finish

    return finish(cleanup.store, cleanup.run_key)


CLEANUP = (plan, consumer_lag, archive, release, clean_dependents, flush_checkpoint, validate, report)
"""The cycle that deletes. A step's name is its task's id. ``report`` also runs after a failed step."""


def archive_sealed(cleanup: Cleanup) -> ArchiveResult:
    """Archive sealed segments ahead of their deletion, at most as many as the policy permits in one run."""
    from storage_engine.retention.steps import archive_sealed
    from storage_engine.retention.store.context import managed_of

    budget_bytes, where = managed_of(cleanup.store).policy.archive_budget_bytes, cleanup.where
    return archive_sealed(
        cleanup.store, cleanup.run_key, cleanup.archive_with, budget_bytes=budget_bytes, where=where
    )


def archive_lag(cleanup: Cleanup) -> ArchiveLag | None:
    """Record the archive lag: sealed segments that no lake has yet. None if the policy doesn't archive."""
    from storage_engine.retention.steps import record_archive_lag

    return record_archive_lag(cleanup.store, cleanup.run_key)


AHEAD = (archive_sealed, report)
"""The cycle that archives ahead. It runs beside the cycle that deletes, which never waits for it."""
