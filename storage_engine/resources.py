"""Finds the files that a project is made of: DAGs, Spark entry points, suites, sample store, Java programs.

The wheel carries them under ``storage_engine/project``; a checkout has them at their own place at the
top of the repository. Nothing else in the package may care which of the two it runs from.
"""

from __future__ import annotations

from pathlib import Path

from storage_engine.exceptions import BadInputError

_PACKAGED = Path(__file__).parent / "project"
_CHECKOUT = Path(__file__).parent.parent

_JAVA_CHECKOUT = "tests/java"

_SAMPLE_PACKAGED = "sample/rocketmq-store.tar.xz"
_SAMPLE_CHECKOUT = "tests/fixtures/rocketmq/clean-stop.tar.xz"


def project_path(name: str) -> Path:
    """Locate a bundled file or directory.

    :param name: relative path, such as ``dags`` or ``spark_jobs/archive_segments.py``.
    :raises BadInputError: when neither the installed package nor a checkout has it.
    """
    for candidate in (_PACKAGED / name, _CHECKOUT / name):
        if candidate.exists():
            return candidate
    raise BadInputError(
        f"{name}: not found in {_PACKAGED} nor in {_CHECKOUT}: expected one of them to hold the "
        "project's files. Install the package again."
    )


def sample_store_archive() -> Path:
    """Locate the archived sample store, which a real RocketMQ broker wrote and closed cleanly."""
    packaged = _PACKAGED / _SAMPLE_PACKAGED
    return packaged if packaged.exists() else project_path(_SAMPLE_CHECKOUT)


def java_path(name: str) -> Path:
    """Locate a Java program, or the Maven project that names the jars of a RocketMQ broker.

    :param name: such as ``pom.xml``.
    """
    packaged = _PACKAGED / "java" / name
    return packaged if packaged.exists() else project_path(f"{_JAVA_CHECKOUT}/{name}")
