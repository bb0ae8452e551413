from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from storage_engine.exceptions import SparkJobError
from storage_engine.spark.session import (
    local_directories,
    spark_environment,
    spark_session,
    spark_settings,
)


@pytest.fixture
def process() -> Iterator[psutil.Process]:
    """This process, which must end the test with no children and connections but those it began with."""
    process = psutil.Process()
    children = {child.pid for child in process.children(recursive=True)}
    connections = {connection.laddr for connection in process.net_connections()}
    yield process
    gc.collect()
    assert {child.pid for child in process.children(recursive=True)} <= children
    # What tests before this one left open may close meanwhile.
    assert {connection.laddr for connection in process.net_connections()} <= connections


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_environment_names_this_python_and_this_spark(master: str) -> None:
    environment = spark_environment(master)
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert Path(environment["SPARK_HOME"]) == Path(pyspark.__file__).parent
    assert (Path(environment["SPARK_HOME"]) / "bin" / "spark-submit").exists()
    assert (Path(environment["JAVA_HOME"]) / "bin" / "java").exists()
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_temporary_files_lie_where_spark_itself_looks_first() -> None:
    settings, environment = {"spark.local.dir": "/b"}, {"SPARK_LOCAL_DIRS": "/a,/c"}
    assert set(local_directories("local[2]", settings, environment).values()) == {Path("/a"), Path("/c")}
    assert set(local_directories("local", settings, {}).values()) == {Path("/b")}
    assert set(local_directories("local", {}, {}).values()) == {Path("/tmp")}
    assert local_directories("spark://cluster:7077", settings, environment) == {}


@pytest.mark.parametrize("master", ["spark://master:7077", "yarn"])
def test_a_cluster_chooses_its_own_addresses_and_python(master: str) -> None:
    environment = spark_environment(master)
    assert "SPARK_LOCAL_IP" not in environment
    assert "PYSPARK_PYTHON" not in environment
    assert "spark.driver.host" not in spark_settings(master)


@pytest.mark.integration
def test_session_works_quietly_on_loopback_and_leaves_nothing(
    process: psutil.Process,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    of_other_tests = set(process.children(recursive=True))
    with spark_session("test") as spark:
        squares = spark.sparkContext.parallelize(range(10), 2).map(lambda number: (number**2, sys.executable))
        assert squares.collect() == [(number**2, sys.executable) for number in range(10)]
        assert spark.range(3).toArrow().column("id").to_pylist() == [0, 1, 2]
        assert spark.sparkContext.master == "local[2]"
        assert spark.sparkContext.uiWebUrl is None
        listening = {
            connection.laddr.ip
            for each in {process, *process.children(recursive=True)} - of_other_tests
            for connection in each.net_connections()
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        with pytest.raises(SparkJobError, match="no running Spark session"), spark_session("second"):
            pass
        assert spark.range(1).count() == 1
    assert dict(os.environ) == before
    assert list(tmp_path.iterdir()) == []
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.replace("WARNING: Using incubator modules: jdk.incubator.vector\n", "") == ""


@pytest.mark.integration
def test_session_that_does_not_start_says_so_and_leaves_nothing(
    process: psutil.Process, capfd: pytest.CaptureFixture[str]
) -> None:
    before = dict(os.environ)
    refused = pytest.raises(SparkJobError, match=r"Spark with master local\[none\].*did not start")
    with refused, spark_session("test", master="local[none]"):
        pass
    assert dict(os.environ) == before
    capfd.readouterr()
