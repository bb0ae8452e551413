"""Archiving of segments on Spark. Executors read, write and prove segments. The driver commits them.

Small segments share a task, and in the task they share data files. For each segment, a task returns its proof
and the manifest's values for its data file. So the driver opens no data file.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.io import load_file_io

from storage_engine.core.host import user_name
from storage_engine.core.wording import bytes_text, count_text, reason_text
from storage_engine.exceptions import (
    LakeUnavailableError,
    SparkJobError,
    StorageEngineError,
    StoreNotFoundError,
)
from storage_engine.lake.archive.archive import archive_group, commit_proven, file_groups
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.agent_files import files_from, leave_agent, run_of
from storage_engine.lake.file.jobs import AgentAccess, AgentRun, ProvenSegment, SegmentJob
from storage_engine.lake.file.staging import PARTIAL_SUFFIX, discard
from storage_engine.lake.storage.errors import LAKE_FAILURES, lake_errors
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import FileFacts
from storage_engine.same_bytes.own_acts import read_own_acts
from storage_engine.spark.job_io import task_error, telling_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Sight:
    """Paths that every executor has to see.

    :param segments: one segment file of each directory, as the driver sees it.
    :param token: a file that the driver has just put into the lake.
    :param agent: agent that serves the segments, or None if executors see them as their own files.
    """

    driver: str
    segments: tuple[FileFacts, ...]
    store_roots: tuple[str, ...]
    lake: LakeConfig
    token: str
    content: bytes
    agent: AgentRun | None = None


@contextmanager
def visible_to_executors(
    spark: SparkSession, jobs: Sequence[SegmentJob], agent: AgentRun | None = None
) -> Iterator[Sight]:
    """Make sure that executors see store and lake. Paths that don't exist yet are not checked.

    :return: paths for a task to check again with :func:`check_sight`.
    :raises StoreNotFoundError: a host doesn't see the store's files, or sees other files at their paths.
    :raises AgentError: a host can't reach the agent.
    :raises LakeUnavailableError: a host can't see or write the lake, or the driver can't publish the file
        that a host wrote.
    """
    identity = uuid.uuid4().hex
    token = f"{jobs[0].data_file(identity).rpartition('/')[0]}/probe.{identity}{PARTIAL_SUFFIX}"
    by_directory = {str(Path(job.path).parent): job.facts for job in jobs}
    sight = Sight(
        driver=socket.gethostname(),
        segments=tuple(by_directory.values()),
        store_roots=tuple({job.store_root for job in jobs}),
        lake=jobs[0].lake,
        token=token,
        content=identity.encode(),
        agent=agent,
    )
    _write(sight, token)
    try:
        context = spark.sparkContext
        tasks = context.defaultParallelism
        context.setJobDescription("do executors see the store and the lake")
        probes = context.parallelize(range(tasks), tasks).map(lambda _: _probe(sight)).collect()
        written = [probe for probe in probes if isinstance(probe, str)]
        try:
            for error in probes:
                if isinstance(error, StorageEngineError):
                    raise error
            for location in written:
                _check_publishable(location)
        finally:
            for location in written:
                _remove(sight, location)
        yield sight
    finally:
        _remove(sight, token)


def check_sight(sight: Sight) -> None:
    """Make sure that this host sees the files that the driver sees.

    :raises StoreNotFoundError: this host doesn't see the store's files, or sees other files at their paths.
    :raises LakeUnavailableError: this host doesn't see the lake's files.
    """
    host = socket.gethostname()
    for expected in sight.segments:
        if sight.agent is not None:
            _check_served(sight.agent, expected)
            continue
        facts = _facts_here(expected.path)
        may_read = os.access(expected.path, os.R_OK)
        if facts is None or not may_read or not _is_same(facts, expected, sight.store_roots):
            text = "finds no file there" if facts is None else f"finds another file there: {facts}"
            if facts is not None and not may_read:
                text = f"may not read it as user {user_name(os.geteuid())}"
            raise StoreNotFoundError(
                f"{expected.path}: expected the segment file that the driver on host {sight.driver} sees, "
                f"{expected}; the executor on host {host} {text}. Nothing was committed or deleted. Mount "
                "the store at the same path on every executor, or let executors read it from an agent, or "
                "use local[N] on the host that has the store's disk."
            )
    file_io = load_file_io(sight.lake.file_io_properties, sight.token)
    with lake_errors(sight.token, f"look for the driver's file on {_here()}"):
        token = file_io.new_input(sight.token)
        if token.exists():
            with token.open() as stream:
                if stream.read() == sight.content:
                    return
    raise LakeUnavailableError(
        f"lake {sight.lake.location}: expected the file {sight.token}, which the driver on host "
        f"{sight.driver} wrote; the executor on host {host} doesn't see it. Nothing was committed or "
        "deleted. Mount the lake at the same path on every executor, or use a lake that is reached by URI."
    )


def _check_served(agent: AgentRun, expected: FileFacts) -> None:
    """:raises StoreNotFoundError: the agent serves another file, for example from another host.
    :raises AgentError: the agent can't be reached.
    """
    facts = files_from(agent).facts(expected.path)
    if (facts.inode, facts.size_bytes) != (expected.inode, expected.size_bytes):
        raise StoreNotFoundError(
            f"{expected.path}: expected the segment file that the driver sees, {expected}; agent "
            f"{agent.address} has another file: {facts}. Nothing was committed or deleted. Name the agent on "
            "the broker's host."
        )


def _probe(sight: Sight) -> str | StorageEngineError:
    """Return the file that this host wrote into the lake, or the error that prevented it."""
    path = f"{sight.token.removesuffix(PARTIAL_SUFFIX)}.{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
    try:
        check_sight(sight)
        _write(sight, path)
    except StorageEngineError as error:
        return error
    finally:
        leave_agent()
    return path


def _check_publishable(location: str) -> None:
    """Make sure that this process can give an executor's file another name, as a commit does.

    On Linux, linking another user's file needs the right to write it (protected_hardlinks in proc(5)).
    """
    path = local_path(location)
    if path is None:
        return
    published = path.with_suffix(f".published{PARTIAL_SUFFIX}")
    try:
        os.link(path, published)
        published.unlink()
    except OSError as error:
        writer = user_name(path.stat().st_uid)
        raise LakeUnavailableError(
            f"{path.parent}: expected to publish here the files that executors write, found that user "
            f"{user_name(os.geteuid())} can't publish a file of user {writer}: {reason_text(error)}. Nothing "
            "was committed or deleted. Run executors as the driver's user; or give the lake's directories a "
            "group with both users, and mode 2770."
        ) from error


def _remove(sight: Sight, location: str) -> None:
    with suppress(*LAKE_FAILURES):
        load_file_io(sight.lake.file_io_properties, location).delete(location)


def _write(sight: Sight, location: str) -> None:
    file_io = load_file_io(sight.lake.file_io_properties, location)
    with lake_errors(location, f"write a file on {_here()}"), file_io.new_output(location).create() as stream:
        stream.write(sight.content)


def _here() -> str:
    return f"host {socket.gethostname()} as user {user_name(os.geteuid())}"


def _facts_here(path: str) -> FileFacts | None:
    try:
        return FileFacts.of(path)
    except OSError:
        return None


def _is_same(facts: FileFacts, expected: FileFacts, store_roots: tuple[str, ...]) -> bool:
    # A disk that is mounted on several hosts has another device number on each.
    facts = replace(facts, device=expected.device)
    return facts == expected or any(read_own_acts(root).same_file(facts, expected) for root in store_roots)


TASK_BYTES = 1 << 30
"""Greatest number of bytes for one task, unless a segment is larger: a commitlog segment's usual size."""

SEGMENT_COST_BYTES = 4 << 20
"""Cost of opening, naming and syncing a segment's file: so many bytes are archived in the same time."""

SHARED_COST_BYTES = 256 << 10
"""The same cost for a segment that shares its file."""

TASKS_PER_CORE = 4
"""Tasks for each core, if there are enough segments. Then a slower core takes fewer tasks."""


def task_groups(jobs: Sequence[SegmentJob], cores: int) -> list[tuple[SegmentJob, ...]]:
    """Cut jobs into groups of about equal work, one for each task. No group is empty, and the order is kept.

    If there are at least as many segments as cores, and all have the same size, each core has a task.
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
    """The job's request: segments of one lake, usually of one store.

    :param agent: agent from which executors read segments, or None if they see the store.
    """

    jobs: tuple[SegmentJob, ...]
    agent: AgentAccess | None = None


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """Receipts, one for each job, in the order of the request. A job whose file vanished has none."""

    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a task: proven segments, and our own error if the task failed.

    If the task raised our error, Spark would only repeat the task and wrap the message.
    """

    proven: tuple[ProvenSegment, ...]
    error: StorageEngineError | None


def archive_request(spark: SparkSession, request: ArchiveRequest) -> ArchiveResult:
    """Run the job for its spark-submit entry point; see :func:`archive_segments`."""
    return ArchiveResult(archive_segments(spark, request.jobs, request.agent))


def archive_segments(
    spark: SparkSession, jobs: Sequence[SegmentJob], agent: AgentAccess | None = None
) -> tuple[Receipt, ...]:
    """Archive, prove and commit segments. If a task fails, no segment is committed.

    A segment that disappears meanwhile is left out. Copies that aren't committed are deleted. Executors need
    the store and the lake at the paths in the jobs, or with an agent only the lake.

    :return: receipts, one for each job, in their order. A job whose file vanished has none.
    :raises StoreNotFoundError: an executor doesn't see the store that the driver sees.
    :raises AgentError: the agent can't be reached, or its data isn't complete.
    :raises StorageEngineError: the first failed task's error, as the task raised it.
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
    """Divide the limit in bytes a second by the number of parallel tasks, so that together they keep it."""
    tasks = max(1, min(len(jobs), parallelism))
    limits = [None if job.bytes_per_second is None else max(1, job.bytes_per_second // tasks) for job in jobs]
    return [replace(job, bytes_per_second=limit) for job, limit in zip(jobs, limits, strict=True)]


def _attempt(sight: Sight, jobs: Sequence[SegmentJob]) -> _Outcome:
    proven: list[ProvenSegment] = []
    try:
        check_sight(sight)
        # Each attempt at a task has files of its own.
        run, served = uuid.uuid4().hex, [replace(job, agent=sight.agent) for job in jobs]
        for number, group in enumerate(file_groups(served, threads=1)):
            proven += archive_group(group, run, number)
    except StorageEngineError as error:
        discard(proven)
        return _Outcome((), error)
    finally:
        leave_agent()
    return _Outcome(tuple(proven), None)
