"""Which Spark runs a job, and with which Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from storage_engine import __version__
from storage_engine.core.extras import SparkPair
from storage_engine.exceptions import BadInputError
from storage_engine.spark.session import (
    SparkInstallation,
    check_driver,
    driver_python,
    installed_spark,
    named_spark,
    spark_session,
)


def make_spark(home: Path, *versions: str) -> Path:
    """A directory with what a Spark is known by."""
    for path in (home / "bin" / "spark-submit", *(home / f"jars/spark-core_2.13-{v}.jar" for v in versions)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return home


def test_the_installed_spark_is_that_of_pyspark() -> None:
    spark = named_spark(None)
    assert (spark.home, spark.version) == (Path(pyspark.__file__).parent, pyspark.__version__)


@pytest.mark.parametrize(
    ("version", "line", "java"),
    [
        ("3.5.9", (3, 5), ("1.8", "11", "17")),
        ("4.0.0", (4, 0), ("17", "21")),
        ("4.10.1-SNAPSHOT", (4, 10), ("17", "21")),
    ],
)
def test_a_named_home_wins_and_is_known_by_its_jars(
    tmp_path: Path, version: str, line: tuple[int, int], java: tuple[str, ...]
) -> None:
    spark = named_spark(str(make_spark(tmp_path, version)))
    assert spark == SparkInstallation(tmp_path, version)
    assert (spark.line, spark.java_versions) == (line, java)


@pytest.mark.parametrize(
    ("versions", "found"), [((), "none"), (("4.0.0", "4.1.3"), "4.0.0, 4.1.3")], ids=["none", "two"]
)
def test_a_home_without_one_spark_is_refused(tmp_path: Path, versions: tuple[str, ...], found: str) -> None:
    home = make_spark(tmp_path, *versions)
    with pytest.raises(BadInputError, match=f"{home}: expected the home of a Spark.*found {found}. Nothing"):
        named_spark(str(home))


@pytest.mark.parametrize("version", ["2.4.8", "3.4.4", "5.0.0"])
def test_a_line_that_no_job_runs_on_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(BadInputError, match=f"expected a Spark of version 3.5 or 4, found {version}"):
        named_spark(str(make_spark(tmp_path, version)))


def test_an_environment_of_two_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkPair, "installed", lambda: SparkPair("4.1.4", "4.2.0"))
    command = "pip install --force-reinstall --no-deps pyspark==4.2.0 pyspark-client==4.2.0"
    refused = rf"found 4.1.4 and 4.2.0. Nothing was changed. Run: {command}"
    with pytest.raises(BadInputError, match=refused):
        installed_spark()
    # Its files need not fit together even to be imported.
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(BadInputError, match=refused), spark_session("test"):
        pass


@pytest.mark.parametrize(
    ("settings", "variables", "expected"),
    [
        ({}, {}, sys.executable),
        ({}, {"PYSPARK_PYTHON": "b"}, "b"),
        ({}, {"PYSPARK_PYTHON": "b", "PYSPARK_DRIVER_PYTHON": "a"}, "a"),
        ({"spark.pyspark.python": "d"}, {"PYSPARK_DRIVER_PYTHON": "a"}, "d"),
        ({"spark.pyspark.python": "d", "spark.pyspark.driver.python": "c"}, {}, "c"),
    ],
)
def test_a_driver_has_the_python_that_spark_submit_gives_it(
    settings: dict[str, str], variables: dict[str, str], expected: str
) -> None:
    assert driver_python(settings, variables) == expected


def test_a_driver_without_this_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the tests run there is a checkout.
    monkeypatch.chdir(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    lacks = "found: ModuleNotFoundError: No module named 'storage_engine'. Nothing was changed"
    with pytest.raises(
        BadInputError, match=f"{python}, the Python of Spark's driver: .*{__version__}, {lacks}"
    ):
        check_driver(str(python))
    with pytest.raises(BadInputError, match=f"{tmp_path}/none, .* found: .*No such file"):
        check_driver(f"{tmp_path}/none")


def test_a_driver_with_another_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/other")
    check_driver(PYTHON)
    monkeypatch.setattr("storage_engine.spark.session.__version__", "9.9")
    with pytest.raises(BadInputError, match=f"expected storage-engine 9.9, found: {__version__}"):
        check_driver(PYTHON)


PYTHON = sys.executable
