from __future__ import annotations

import pytest

from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.model.store import FileFacts
from storage_engine.spark.archive_segments import SEGMENT_COST_BYTES, TASK_BYTES, TASKS_PER_CORE, task_groups

KIB, GIB = 1 << 10, 1 << 30


def _jobs(*sizes: int) -> list[SegmentJob]:
    return [
        SegmentJob(
            store_id="store-1",
            lineage=0,
            broker="rocketmq",
            store_root="/store",
            log="commitlog",
            base_offset=number,
            facts=FileFacts(f"/store/commitlog/{number}", 1, number, size, 0, 0),
            lake=LakeConfig("lake", {}),
            messages_location="file:///lake",
        )
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("cores", [1, 2, 64])
@pytest.mark.parametrize("sizes", [[64 * KIB] * 5000, [GIB] * 9, [64 * KIB, GIB, 64 * KIB, 3 * GIB], [0]])
def test_every_segment_is_in_one_task_and_in_its_order(cores: int, sizes: list[int]) -> None:
    jobs = _jobs(*sizes)
    groups = task_groups(jobs, cores)
    assert all(groups)
    assert [job for group in groups for job in group] == jobs


def test_a_segment_of_the_usual_size_has_a_task_of_its_own() -> None:
    assert [len(group) for group in task_groups(_jobs(*[GIB] * 5), 2)] == [1] * 5


def test_small_segments_share_tasks_of_bounded_work() -> None:
    groups = task_groups(_jobs(*[64 * KIB] * 10_000), 2)
    work = [sum(job.facts.size_bytes + SEGMENT_COST_BYTES for job in group) for group in groups]
    assert TASKS_PER_CORE * 2 <= len(groups) < 100
    assert max(work) <= TASK_BYTES + SEGMENT_COST_BYTES
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_no_core_is_idle_while_there_are_segments_for_it(count: int) -> None:
    assert len(task_groups(_jobs(*[64 * KIB] * count), 8)) >= min(count, 8)
