"""Both jobs in one Spark session; tests/integration submits each to a Spark of its own."""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from storage_engine.exceptions import (
    BadInputError,
    CorruptFileError,
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
from storage_engine.model.jsonable import from_jsonable, to_jsonable
from storage_engine.model.lag import QueueLag
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention.lag_table import lag_part, merge, read_lag_table
from storage_engine.rocketmq.lag import queue_lags
from storage_engine.spark.archive_segments import archive_segments
from storage_engine.spark.consumer_lag import (
    ConsumerLagRequest,
    ConsumerLagResult,
    consumer_lag,
    prepare,
)
from storage_engine.spark.job_io import read_result, run_job, write_request
from storage_engine.spark.session import spark_session
from tests.lakes import path_of
from tests.services.command_line import run_command

ROOT = Path(__file__).parents[2]
NOW_MS = 1_900_000_000_000
GOING = (0, 1 << 20, 2 << 20, 3 << 20, 4 << 20)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session("test jobs") as session:
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


@pytest.mark.integration
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


@pytest.mark.integration
def test_tasks_keep_to_one_limit_together(spark: Any, lake: Lake, segments: list[Path]) -> None:
    jobs = [replace(job, bytes_per_second=4 << 20) for job in _jobs(lake, segments)]
    began = time.monotonic()
    rows = archive_segments(spark, jobs)
    seconds = time.monotonic() - began
    # Each process may catch up on a tenth of a second.
    assert seconds > sum(row.size_bytes + 3 * row.data_file_bytes for row in rows) / (4 << 20) - 0.4


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
def test_an_executor_that_cannot_see_the_store_is_one_clear_error(
    spark: Any, lake: Lake, segments: list[Path]
) -> None:
    jobs = _jobs(lake, segments)
    segments[0].parent.rename(segments[0].parent.with_name("elsewhere"))
    with pytest.raises(StoreNotFoundError, match="Mount the store at the same path on every executor"):
        archive_segments(spark, jobs)


@pytest.mark.integration
def test_a_missing_lake_is_told_before_any_task_runs(
    spark: Any, lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    jobs = _jobs(lake, segments)
    (tmp_path / "lake").rename(tmp_path / "moved")
    with pytest.raises(LakeUnavailableError, match="found no such file"):
        archive_segments(spark, jobs)


@pytest.mark.integration
def test_a_spark_that_fails_is_not_mistaken_for_a_refusal(
    spark: Any, lake: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.spark.archive_segments._attempt", _die)
    with pytest.raises(SparkJobError, match="Spark could not archive 3 segments"):
        archive_segments(spark, _jobs(lake, segments))
    assert receipts(lake, "store-1") == ()


def _die(*_: object) -> None:
    os._exit(7)


@pytest.mark.integration
def test_the_command_archives_with_spark_and_its_stdout_is_json_alone(
    spark: Any, store_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters: list[str] = []

    def session(name: str, master: str) -> Any:
        masters.append(master)
        return nullcontext(spark)

    monkeypatch.setattr("storage_engine.spark.session.spark_session", session)
    make_lake(LakeConfig.local(tmp_path / "lake"))
    words = ("archive", store_copy("edge-frames"), "--lake", tmp_path / "lake")
    done = run_command(*words, "--spark", "local[1]", "--json")
    assert done.exit_code == 0, done.err
    assert masters == ["local[1]"]
    assert [row["base_offset"] for row in done.json["archived"]] == [0, 1 << 20]
    assert run_command(*words).out.startswith("Nothing to archive")


def make_request(root: Path, tmp_path: Path, **settings: object) -> ConsumerLagRequest:
    return ConsumerLagRequest(
        store_root=str(root),
        table_path=str(tmp_path / "lag"),
        time_zone="UTC",
        plan_base_offsets=GOING,
        now_ms=NOW_MS,
        **settings,  # type: ignore[arg-type]
    )


def test_request_crosses_as_json(tmp_path: Path) -> None:
    request = make_request(tmp_path, tmp_path, overrides={"deleteWhen": "05"})
    assert from_jsonable(ConsumerLagRequest, to_jsonable(request)) == request


@pytest.mark.integration
def test_lag_is_what_the_files_say(
    spark: Any, store_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.spark.session.spark_session", lambda name: nullcontext(spark))
    request = make_request(store_copy("clean-stop"), tmp_path)
    paths = [str(tmp_path / "request.json"), str(tmp_path / "result.json")]
    write_request(paths[0], request)
    assert run_job(paths, "test", ConsumerLagRequest, consumer_lag) == 0
    result = read_result(paths[1], paths[0], ConsumerLagResult)

    table = queue_lags(*prepare(request))
    written = read_lag_table(request.table_path)
    assert sorted(map(str, written.to_pylist())) == sorted(map(str, table.to_pylist()))
    assert result == ConsumerLagResult(*merge([lag_part(table)]), request.table_path)
    assert "cg_orders" in result.summary.at_risk_groups
    assert result.summary.unknown == 1
    assert result.summary.groups == 5


@pytest.mark.integration
def test_job_can_be_run_again_and_names_what_it_cannot_read(
    spark: Any, store_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.spark.session.spark_session", lambda name: nullcontext(spark))
    root = store_copy("clean-stop")
    damaged = root / "consumequeue" / "orders" / "0" / f"{0:020d}"

    def job(spark: SparkSession, request: ConsumerLagRequest) -> ConsumerLagResult:
        first = consumer_lag(spark, request)
        assert consumer_lag(spark, request) == first
        frame = spark.read.parquet(request.table_path)
        assert frame.columns == list(QueueLag.__dataclass_fields__)
        assert frame.filter("at_risk").count() == len(first.at_risk)
        no_plan = ConsumerLagRequest(str(root), str(tmp_path / "other"))
        assert consumer_lag(spark, no_plan).summary.at_risk_groups == ()
        damaged.write_bytes(damaged.read_bytes()[:-1])
        return consumer_lag(spark, request)

    write_request(tmp_path / "request.json", make_request(root, tmp_path))
    paths = [str(tmp_path / "request.json"), str(tmp_path / "result.json")]
    assert run_job(paths, "test", ConsumerLagRequest, job) == 1
    with pytest.raises(CorruptFileError, match=str(damaged)):
        read_result(paths[1], paths[0], ConsumerLagResult)


def test_store_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="nothing"):
        prepare(make_request(tmp_path / "nowhere", tmp_path))


def test_job_that_never_ran_left_no_result(tmp_path: Path) -> None:
    write_request(tmp_path / "request.json", make_request(tmp_path, tmp_path))
    with pytest.raises(SparkJobError, match="left no result"):
        read_result(tmp_path / "result.json", tmp_path / "request.json", ConsumerLagResult)
