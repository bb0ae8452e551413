"""Archiving segments on Spark: a task a segment, wherever its executors are; one commit on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_engine.exceptions import SparkJobError, StorageEngineError
from storage_engine.lake.archive import archive_segment
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.commit import commit_segments
from storage_engine.lake.jobs import ProvenSegment, SegmentJob
from storage_engine.lake.staging import discard
from storage_engine.model.receipt import Receipt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    """What the job is asked: segments of one lake, usually of one store."""

    jobs: tuple[SegmentJob, ...]


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """One receipt a job, in the order of the request."""

    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a task ended. An error of ours is a result: Spark would only retry it and wrap its message."""

    proven: ProvenSegment | None
    error: StorageEngineError | None


def archive_request(spark: SparkSession, request: ArchiveRequest) -> ArchiveResult:
    """The job as its spark-submit entry point runs it; see :func:`archive_segments`."""
    return ArchiveResult(archive_segments(spark, request.jobs))


def archive_segments(spark: SparkSession, jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
    """Archive, prove and commit segments; all or none of them.

    Executors need the store and the lake at the paths that the jobs name. What was proven when another
    task failed is thrown away, as nothing of it has been committed.

    :return: one receipt a job, in order.
    :raises StorageEngineError: the first failed task's error, as it was raised there.
    :raises SparkJobError: Spark itself failed.
    """
    if not jobs:
        return ()
    lake = open_lake(jobs[0].lake, create=False)
    outcomes = _run(spark, jobs)
    proven = [outcome.proven for outcome in outcomes if outcome.proven is not None]
    try:
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return commit_segments(lake, proven)
    finally:
        discard(proven)


def _run(spark: SparkSession, jobs: Sequence[SegmentJob]) -> list[_Outcome]:
    try:
        outcomes: list[_Outcome] = spark.sparkContext.parallelize(jobs, len(jobs)).map(_attempt).collect()
    except Exception as error:
        reason = str(getattr(error, "java_exception", None) or error).strip().splitlines()[0]
        raise SparkJobError(
            f"Spark could not run {len(jobs)} archive tasks: {reason}. Nothing was committed or deleted. See "
            "the driver's log for the rest; running it again is safe."
        ) from error
    return outcomes


def _attempt(job: SegmentJob) -> _Outcome:
    try:
        return _Outcome(archive_segment(job), None)
    except StorageEngineError as error:
        return _Outcome(None, error)
