from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from storage_engine.exceptions import BadInputError, CorruptFileError, SparkJobError
from storage_engine.model.jsonable import from_jsonable, to_jsonable
from storage_engine.model.lag import QueueLag
from storage_engine.retention.lag_table import lag_part, merge, read_lag_table
from storage_engine.rocketmq.lag import queue_lags
from storage_engine.spark.consumer_lag import (
    ConsumerLagRequest,
    ConsumerLagResult,
    consumer_lag,
    prepare,
)
from storage_engine.spark.job_io import read_result, run_job, write_request
from storage_engine.spark.session import spark_environment, spark_settings

JOB = Path(__file__).parents[2] / "spark_jobs" / "consumer_lag.py"
NOW_MS = 1_900_000_000_000
GOING = (0, 1 << 20, 2 << 20, 3 << 20, 4 << 20)


@pytest.fixture
def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose only Java is the bundled one."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java.parent), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make_request(root: Path, tmp_path: Path, **settings: object) -> ConsumerLagRequest:
    return ConsumerLagRequest(
        store_root=str(root),
        table_path=str(tmp_path / "lag"),
        time_zone="UTC",
        plan_base_offsets=GOING,
        now_ms=NOW_MS,
        **settings,  # type: ignore[arg-type]
    )


def submit(request_path: Path, result_path: Path) -> subprocess.CompletedProcess[str]:
    environment = spark_environment()
    command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", "local[2]"]
    for setting in spark_settings().items():
        command += ["--conf", "=".join(setting)]
    return subprocess.run(
        [*command, str(JOB), str(request_path), str(result_path)],
        env={**os.environ, **environment},
        cwd=tempfile.mkdtemp(dir=request_path.parent),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_request_crosses_as_json(tmp_path: Path) -> None:
    request = make_request(tmp_path, tmp_path, overrides={"deleteWhen": "05"})
    assert from_jsonable(ConsumerLagRequest, to_jsonable(request)) == request


@pytest.mark.integration
def test_submitted_job_on_the_bundled_java_finds_what_the_files_say(
    store_copy: Callable[[str], Path], tmp_path: Path, without_java: None
) -> None:
    assert spark_environment()["JAVA_HOME"].startswith(str(tmp_path / "cache"))
    request = make_request(store_copy("clean-stop"), tmp_path)
    write_request(tmp_path / "request.json", request)
    ended = submit(tmp_path / "request.json", tmp_path / "result.json")
    assert ended.returncode == 0, ended.stderr
    result = read_result(tmp_path / "result.json", tmp_path / "request.json", ConsumerLagResult)

    table = queue_lags(*prepare(request))
    written = read_lag_table(request.table_path)
    assert sorted(map(str, written.to_pylist())) == sorted(map(str, table.to_pylist()))
    assert result == ConsumerLagResult(*merge([lag_part(table)]), request.table_path)
    assert "cg_orders" in result.summary.at_risk_groups
    assert result.summary.unknown == 1
    assert result.summary.groups == 5


@pytest.mark.integration
def test_job_can_be_run_again_and_names_what_it_cannot_read(
    store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
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
