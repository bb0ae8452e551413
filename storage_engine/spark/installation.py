"""The Spark that runs a job: its home, its version, the Java that fits it, and the Python of its driver."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from storage_engine import __version__
from storage_engine.core.extras import SPARK, SparkPair
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError

OLDEST_LINE = (3, 5)

_JAVA_VERSIONS = {3: ("1.8", "11", "17"), 4: ("17", "21")}
"""By Spark's major version, as its documentation names them; newer ones lack what Hadoop's client calls."""

VECTOR_MODULE_FLAG = "--add-modules=jdk.incubator.vector"
"""Spark 4 passes this to every JVM; a Java whose image lacks the module refuses to start with it."""

_CORE = "jars/spark-core_*.jar"

_PYTHONS = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")

_ANSWER_SECONDS = 60


@dataclass(frozen=True, slots=True)
class SparkInstallation:
    """A directory with ``bin/spark-submit`` and Spark's jars.

    :param version: such as 4.1.3.
    """

    home: Path
    version: str

    @classmethod
    def at(cls, home: str | Path) -> SparkInstallation:
        """
        :raises BadInputError: there is no Spark, or one of a line that no job runs on.
        """
        path = Path(home)
        versions = [jar.stem.rpartition("_")[2].partition("-")[2] for jar in path.glob(_CORE)]
        if len(versions) != 1 or not (path / "bin" / "spark-submit").is_file():
            raise BadInputError(
                f"{path}: expected the home of a Spark, with bin/spark-submit and {_CORE}, found "
                f"{'none' if not versions else ', '.join(versions)}. Nothing was changed. Name another home, "
                "or none, to use the PySpark that is installed here.",
                page="spark",
            )
        spark = cls(path, versions[0])
        if spark.line < OLDEST_LINE or spark.line[0] not in _JAVA_VERSIONS:
            raise BadInputError(
                f"{path}: expected a Spark of version 3.5 or 4, found {spark.version}. Nothing was changed.",
                page="spark",
            )
        return spark

    @property
    def line(self) -> tuple[int, int]:
        """Driver and executors need the same one."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def java_versions(self) -> tuple[str, ...]:
        """Return those that this Spark runs on, as Java's ``java.specification.version`` says them."""
        return _JAVA_VERSIONS[self.line[0]]

    @property
    def java_flags(self) -> tuple[str, ...]:
        """Return what this Spark starts each Java with, beyond what every Java takes."""
        return (VECTOR_MODULE_FLAG,) if self.line[0] >= 4 else ()


def installed_spark() -> SparkInstallation:
    """Return the Spark of the PySpark that this interpreter has.

    :raises MissingExtraError: it has none.
    :raises BadInputError: another version of pyspark-client was installed over it.
    """
    SPARK.require("A Spark job")
    pair = SparkPair.installed()
    if pair.is_unequal:
        raise BadInputError(f"{pair.what}. Nothing was changed. Run: {pair.install}", page="spark")
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SPARK.missing("A Spark job")
    return SparkInstallation.at(Path(spec.origin).parent)


def named_spark(home: str | None) -> SparkInstallation:
    """
    :param home: of the Spark that a connection names; None: the installed PySpark's is used.
    :raises MissingExtraError: there is none.
    :raises BadInputError: it can't be used.
    """
    return SparkInstallation.at(home) if home else installed_spark()


def driver_python(settings: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """Return a driver's interpreter by the rule of Spark's PythonRunner; this one where none is named.

    :param settings: Spark's, as for ``--conf``.
    :param variables: environment variables of ``spark-submit``, beyond this process's.
    """
    named = (settings.get("spark.pyspark.driver.python"), settings.get("spark.pyspark.python"))
    return next(filter(None, (*named, *map(variables.get, _PYTHONS))), sys.executable)


def check_driver(python: str) -> None:
    """Make sure that an interpreter has this release, whose requests it is to read.

    :raises BadInputError: it can't be started, lacks this package, or has another release of it.
    """
    if python == sys.executable:
        return
    question = "import storage_engine; print(storage_engine.__version__)"
    try:
        # Not in this directory, where a checkout may lie that the driver doesn't look into.
        answer = subprocess.run(
            [python, "-c", question],
            cwd=os.sep,
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        found = reason_text(error)
    else:
        found = (answer.stdout or answer.stderr).strip().rpartition("\n")[2]
    if found != __version__:
        raise BadInputError(
            f"{python}, the Python of Spark's driver: expected storage-engine {__version__}, found: {found}. "
            f"Nothing was changed. Run: {python} -m pip install 'storage-engine=={__version__}'",
            page="spark",
        )
