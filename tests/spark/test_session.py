"""What a Spark is started with; how it starts and ends is looked at in test_jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.spark.python_daemon import versions
from storage_engine.spark.session import (
    _start_error,
    local_directories,
    spark_environment,
    spark_settings,
)


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_environment_names_this_python_and_this_spark(master: str) -> None:
    environment = spark_environment(master)
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert Path(environment["SPARK_HOME"]) == Path(pyspark.__file__).parent
    assert (Path(environment["SPARK_HOME"]) / "bin" / "spark-submit").exists()
    assert (Path(environment["JAVA_HOME"]) / "bin" / "java").exists()
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_a_spark_connect_server_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInputError, match="sc://server:15002: expected Spark's master, such as"):
        spark_environment("sc://server:15002")
    # PySpark and spark-submit would turn to it, whatever the master.
    monkeypatch.setenv("SPARK_REMOTE", "sc://of-the-worker")
    with pytest.raises(BadInputError, match="sc://of-the-worker: expected Spark's master, such as"):
        spark_environment("local[2]")


def test_temporary_files_lie_where_spark_itself_looks_first() -> None:
    settings, environment = {"spark.local.dir": "/b"}, {"SPARK_LOCAL_DIRS": "/a,/c"}
    assert set(local_directories("local[2]", settings, environment).values()) == {Path("/a"), Path("/c")}
    assert set(local_directories("local", settings, {}).values()) == {Path("/b")}
    assert set(local_directories("local", {}, {}).values()) == {Path("/tmp")}
    assert local_directories("spark://cluster:7077", settings, environment) == {}


@pytest.mark.parametrize(
    ("master", "where", "is_cluster"),
    [
        ("local[2]", "master local[2]", False),
        ("spark://master:7077", "master spark://master:7077", True),
    ],
)
def test_a_cluster_of_another_line_is_thought_of_where_spark_does_not_start(
    master: str, where: str, is_cluster: bool
) -> None:
    said = str(_start_error("a job", master, RuntimeError("All masters are unresponsive!\n\tat …")))
    assert said.startswith(f"a job: Spark with {where} and Java ")
    assert "did not start: All masters are unresponsive!. Nothing was changed." in said
    assert (f"The cluster must have {versions()}, as this host has." in said) == is_cluster


@pytest.mark.parametrize("master", ["spark://master:7077", "yarn"])
def test_a_cluster_chooses_its_own_addresses_and_python(master: str) -> None:
    environment = spark_environment(master)
    assert "SPARK_LOCAL_IP" not in environment
    assert "PYSPARK_PYTHON" not in environment
    assert "spark.driver.host" not in spark_settings(master)
