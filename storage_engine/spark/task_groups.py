"""How segments are dealt out to Spark tasks."""

from __future__ import annotations

from collections.abc import Sequence

from storage_engine.lake.file.jobs import SegmentJob

TASK_BYTES = 1 << 30
"""What a task is given at most, unless one segment has more: a commitlog segment of the usual size."""

SEGMENT_COST_BYTES = 4 << 20
"""What opening, naming and syncing a segment's file costs, as bytes that take as long to archive."""

TASKS_PER_CORE = 4
"""Where there are segments enough: a slower core then takes fewer of them."""


def task_groups(jobs: Sequence[SegmentJob], cores: int) -> list[tuple[SegmentJob, ...]]:
    """Cut jobs into runs of about equal work, one a task; none is empty, the order stays.

    As many segments as there are cores are never in fewer tasks than that, if they are of one size.
    """
    weights = [job.facts.size_bytes + SEGMENT_COST_BYTES for job in jobs]
    total = sum(weights)
    tasks = min(len(jobs), max(-(-total // TASK_BYTES), TASKS_PER_CORE * cores))
    groups: list[list[SegmentJob]] = [[] for _ in range(tasks)]
    before = 0
    for job, weight in zip(jobs, weights, strict=True):
        groups[(2 * before + weight) * tasks // (2 * total)].append(job)
        before += weight
    return [tuple(group) for group in groups if group]
