"""What a task that is killed during a Spark job leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from storage_engine.retention.store.job_files import sweep_job_files

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

SECRET = "object-secret-0001"

SUBMIT = """
import sys
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.model.store.store import FileFacts
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
            submitted = psutil.Process(task.pid).children()
            time.sleep(0.01)
        (driver,) = submitted
        # Between fork and exec it still is a copy of its parent.
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


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
