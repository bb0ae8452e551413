from __future__ import annotations

import json
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import (
    CorruptFrameError,
    LakeUnavailableError,
    SparkJobError,
    StoreNotFoundError,
)
from storage_engine.lake.archive import segment_jobs
from storage_engine.lake.catalog import Lake
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.jobs import SegmentJob
from storage_engine.lake.making import make_lake
from storage_engine.lake.receipts import broken_receipts, receipts
from storage_engine.lake.restore import restore
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.spark.archive_segments import ArchiveRequest, ArchiveResult, archive_segments
from storage_engine.spark.job_io import read_result, write_request
from storage_engine.spark.session import spark_environment, spark_session
from tests.lakes import path_of

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session("test archive_segments") as session:
        yield session


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(LakeConfig.local(tmp_path / "lake"))


@pytest.fixture
def segments(tmp_path: Path) -> list[Path]:
    directory = tmp_path / "store" / "commitlog"
    directory.mkdir(parents=True)
    names = [f"{number << 20:020d}" for number in range(3)]
    with tarfile.open(ROOT / "tests" / "fixtures" / "rocketmq" / "clean-stop.tar.xz") as archive:
        for name in names:
            (directory / name).write_bytes(archive.extractfile(f"A/commitlog/{name}").read())
    return [directory / name for name in names]


def _jobs(lake: Lake, paths: list[Path]) -> tuple[SegmentJob, ...]:
    chosen = [Segment("commitlog", int(p.name), FileFacts.of(p), SegmentState.SEALED) for p in paths]
    return segment_jobs(
        lake, chosen, store_id="store-1", lineage=0, broker="rocketmq", store_root=str(paths[0].parents[1])
    )


def _staged(lake: Lake) -> list[str]:
    root = local_path(lake.messages().location())
    assert root is not None
    return [path.name for path in root.rglob("*.partial")]


def test_segments_are_archived_by_tasks_and_committed_together(
    spark: Any, lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    jobs = _jobs(lake, segments)
    rows = archive_segments(spark, jobs)
    assert [row.base_offset for row in rows] == [job.base_offset for job in jobs]
    assert rows == receipts(lake, "store-1")
    assert len(lake.messages().metadata.snapshots) == 1
    assert _staged(lake) == []
    restored = restore(lake, "store-1", tmp_path / "restored")
    assert [Path(s.path).read_bytes() for s in restored] == [path.read_bytes() for path in segments]
    assert archive_segments(spark, jobs) == rows
    assert archive_segments(spark, []) == ()


def test_tasks_keep_to_one_limit_together(spark: Any, lake: Lake, segments: list[Path]) -> None:
    jobs = [replace(job, bytes_per_second=4 << 20) for job in _jobs(lake, segments)]
    began = time.monotonic()
    rows = archive_segments(spark, jobs)
    seconds = time.monotonic() - began
    # Each process may catch up on a tenth of a second.
    assert seconds > sum(row.size_bytes + 3 * row.data_file_bytes for row in rows) / (4 << 20) - 0.4


def test_lost_and_damaged_data_files_are_replaced_by_archiving_again(
    spark: Any, lake: Lake, segments: list[Path]
) -> None:
    first, second, _ = archive_segments(spark, _jobs(lake, segments))
    lost, damaged = path_of(lake, first), path_of(lake, second)
    lost.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    again = archive_segments(spark, _jobs(lake, segments))
    assert again == receipts(lake, "store-1")
    assert broken_receipts(lake, again, read_files=True) == {}
    assert len(list(lake.messages().scan().plan_files())) == 3


def test_a_tasks_error_is_raised_as_it_was_and_nothing_is_committed(
    spark: Any, lake: Lake, segments: list[Path]
) -> None:
    data = bytearray(segments[1].read_bytes())
    data[88] ^= 1
    segments[1].write_bytes(data)
    with pytest.raises(CorruptFrameError) as raised:
        archive_segments(spark, _jobs(lake, segments))
    assert str(raised.value).startswith(f"{segments[1]}: bad frame at physical offset {1 << 20}")
    assert receipts(lake, "store-1") == ()
    assert _staged(lake) == []


def test_an_executor_that_cannot_see_the_store_is_one_clear_error(
    spark: Any, lake: Lake, segments: list[Path]
) -> None:
    jobs = _jobs(lake, segments)
    segments[0].parent.rename(segments[0].parent.with_name("elsewhere"))
    with pytest.raises(StoreNotFoundError, match="Mount the store at the same path on every executor"):
        archive_segments(spark, jobs)


def test_a_missing_lake_is_told_before_any_task_runs(
    spark: Any, lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    jobs = _jobs(lake, segments)
    (tmp_path / "lake").rename(tmp_path / "moved")
    with pytest.raises(LakeUnavailableError, match="found no such file"):
        archive_segments(spark, jobs)


def test_a_spark_that_fails_is_not_mistaken_for_a_refusal(
    spark: Any, lake: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.spark.archive_segments._attempt", _die)
    with pytest.raises(SparkJobError, match="Spark could not archive 3 segments"):
        archive_segments(spark, _jobs(lake, segments))
    assert receipts(lake, "store-1") == ()


def _die(*_: object) -> None:
    os._exit(7)


def test_spark_submit_runs_the_entry_point(lake: Lake, segments: list[Path], tmp_path: Path) -> None:
    request, result = tmp_path / "request.json", tmp_path / "result.json"
    write_request(request, ArchiveRequest(_jobs(lake, segments)))
    script = ROOT / "spark_jobs" / "archive_segments.py"
    environment = {**os.environ, **spark_environment("local[2]")}
    submit = [str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"), "--master", "local[2]"]
    subprocess.run(
        [*submit, str(script), str(request), str(result)], env=environment, check=True, timeout=300
    )
    answer = read_result(result, request, ArchiveResult)
    assert answer.receipts == receipts(lake, "store-1")
    assert json.loads(result.read_text())["result"]["receipts"][0]["store_id"] == "store-1"
