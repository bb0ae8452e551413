"""Archiving segments on Spark: read, written and proven by its executors; committed on the driver.

Small segments share a task, and in it data files. What a task gives back of a segment is its proof and what
the manifest says of its data file, so that the driver opens no data file.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from storage_engine.core.wording import bytes_text, count_text
from storage_engine.exceptions import SparkJobError, StorageEngineError
from storage_engine.lake.archive.archive import archive_group, commit_proven, file_groups
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.file.agent_files import leave_agent, run_of
from storage_engine.lake.file.jobs import AgentAccess, ProvenSegment, SegmentJob
from storage_engine.lake.file.staging import discard
from storage_engine.model.proof.receipt import Receipt
from storage_engine.spark.job_io import task_error, telling_progress
from storage_engine.spark.visibility import Sight, check_sight, visible_to_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 1 << 30
"""What a task is given at most, unless one segment has more: a commitlog segment of the usual size."""

SEGMENT_COST_BYTES = 4 << 20
"""What opening, naming and syncing a segment's file costs, as bytes that take as long to archive."""

SHARED_COST_BYTES = 256 << 10
"""The same of a segment that shares its file."""

TASKS_PER_CORE = 4
"""Where there are segments enough: a slower core then takes fewer of them."""


def task_groups(jobs: Sequence[SegmentJob], cores: int) -> list[tuple[SegmentJob, ...]]:
    """Cut jobs into runs of about equal work, one a task; none is empty, the order stays.

    As many segments as there are cores are never in fewer tasks than that, if they are of one size.
    """
    weights = [
        job.facts.size_bytes + (SEGMENT_COST_BYTES if job.shares is None else SHARED_COST_BYTES)
        for job in jobs
    ]
    total = sum(weights)
    tasks = min(len(jobs), max(-(-total // TASK_BYTES), TASKS_PER_CORE * cores))
    groups: list[list[SegmentJob]] = [[] for _ in range(tasks)]
    before = 0
    for job, weight in zip(jobs, weights, strict=True):
        groups[(2 * before + weight) * tasks // (2 * total)].append(job)
        before += weight
    return [tuple(group) for group in groups if group]


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    """What the job is asked: segments of one lake, usually of one store.

    :param agent: that executors read them from; None: they see the store.
    """

    jobs: tuple[SegmentJob, ...]
    agent: AgentAccess | None = None


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """One receipt a job, in the order of the request, but for those whose files went away."""

    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a task ended. Our own error is a result: Spark would only retry it and wrap its message."""

    proven: tuple[ProvenSegment, ...]
    error: StorageEngineError | None


def archive_request(spark: SparkSession, request: ArchiveRequest) -> ArchiveResult:
    """The job as its spark-submit entry point runs it; see :func:`archive_segments`."""
    return ArchiveResult(archive_segments(spark, request.jobs, request.agent))


def archive_segments(
    spark: SparkSession, jobs: Sequence[SegmentJob], agent: AgentAccess | None = None
) -> tuple[Receipt, ...]:
    """Archive, prove and commit segments; none of them where a task fails. One that goes away meanwhile keeps
    no other out.

    Executors need the store and the lake at the paths that the jobs name; with an agent, the lake alone. What
    was proven when another task failed is thrown away, as nothing of it has been committed.

    :param agent: that executors read the segments from.
    :return: one receipt a job, in order, but for those whose files went away.
    :raises StoreNotFoundError: an executor doesn't see the store that the driver sees.
    :raises AgentError: the agent can't be reached, or what came from it isn't whole.
    :raises StorageEngineError: the first failed task's error, as it was raised there.
    :raises SparkJobError: Spark itself failed.
    """
    if not jobs:
        return ()
    lake = open_lake(jobs[0].lake)
    outcomes = _run(spark, jobs, agent)
    proven = [segment for outcome in outcomes for segment in outcome.proven]
    try:
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return commit_proven(lake, proven, jobs)
    finally:
        discard(proven)


def _run(spark: SparkSession, jobs: Sequence[SegmentJob], agent: AgentAccess | None) -> list[_Outcome]:
    context = spark.sparkContext
    segments, size = count_text(len(jobs), "segment"), bytes_text(sum(job.facts.size_bytes for job in jobs))
    context.setJobGroup("archive", f"archive {segments}")
    proven, proven_bytes = context.accumulator(0), context.accumulator(0)

    def attempt(group: Sequence[SegmentJob]) -> _Outcome:
        outcome = _attempt(sight, group)
        proven.add(len(outcome.proven))
        proven_bytes.add(sum(segment.size_bytes for segment in outcome.proven))
        return outcome

    def progress() -> str:
        return (
            f"Archived with proof: {proven.value} of {segments}, {bytes_text(proven_bytes.value)} of {size}"
        )

    try:
        with (
            nullcontext() if agent is None else run_of(agent, jobs) as run,
            visible_to_executors(spark, jobs, run) as sight,
            telling_progress(progress),
        ):
            context.setJobDescription(f"archive {segments}, {size}, with proof")
            groups = task_groups(_at_one_limit(jobs, context.defaultParallelism), context.defaultParallelism)
            tasks = context.parallelize(groups, len(groups))
            outcomes: list[_Outcome] = tasks.map(attempt).collect()
    except StorageEngineError:
        raise
    except Exception as error:
        if (of_task := task_error(error)) is not None:
            raise of_task from error
        reason = str(getattr(error, "java_exception", None) or error).strip().splitlines()[0]
        raise SparkJobError(
            f"Spark could not archive {count_text(len(jobs), 'segment')}: {reason}. Nothing was committed or "
            "deleted. See the driver's log for the rest; running it again is safe."
        ) from error
    return outcomes


def _at_one_limit(jobs: Sequence[SegmentJob], parallelism: int) -> list[SegmentJob]:
    """Each task is a process with a pace of its own: together they keep to what one was allowed."""
    tasks = max(1, min(len(jobs), parallelism))
    return [
        job
        if job.bytes_per_second is None
        else replace(job, bytes_per_second=max(1, job.bytes_per_second // tasks))
        for job in jobs
    ]


def _attempt(sight: Sight, jobs: Sequence[SegmentJob]) -> _Outcome:
    proven: list[ProvenSegment] = []
    try:
        check_sight(sight)
        # Each attempt at a task has files of its own.
        run, seen = uuid.uuid4().hex, [replace(job, agent=sight.agent) for job in jobs]
        for number, group in enumerate(file_groups(seen, threads=1)):
            proven += archive_group(group, run, number)
    except StorageEngineError as error:
        discard(proven)
        return _Outcome((), error)
    finally:
        leave_agent()
    return _Outcome(tuple(proven), None)
