"""Spark's Python daemon (``spark.python.daemon.module``), which loads our tasks' modules before a fork.

So a worker starts in the time of a fork, and shares the modules' memory with the other workers. Between two
tasks, Spark makes a worker search all objects for garbage, and read the directories of all archives on its
path again. Together they take a third of a second of processor time, which this daemon saves.

The daemon ends if the executor has other versions than the driver, so no task begins there.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

# Nothing else of this package is imported before the archives are off the path: modules would remember them.
from storage_engine import __version__

DRIVER_VERSIONS = "STORAGE_ENGINE_DRIVER_VERSIONS"
"""Environment variable of an executor's Python. Its value is the driver's :func:`versions`."""

TASK_MODULE = "storage_engine.lake.archive.archive"


def versions() -> str:
    """Return the versions that driver and executors must share, because pickled objects pass between them."""
    import pyspark

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    spark = ".".join(pyspark.__version__.split(".")[:2])
    return f"Python {python}, PySpark {spark}, storage-engine {__version__}"


def check_versions(expected: str | None) -> None:
    """Make sure that this interpreter has the versions of the driver.

    :param expected: the driver's versions, or None if the session isn't ours.
    :raises SparkJobError: this interpreter has other versions.
    """
    if expected not in (None, actual := versions()):
        from storage_engine.exceptions import SparkJobError

        raise SparkJobError(
            f"{sys.executable} on host {socket.gethostname()}: expected {expected}, as the driver has, found "
            f"{actual}. Nothing was committed or deleted. Install the same versions there, or name another "
            "Python: in spark.pyspark.python, or at a shell in PYSPARK_PYTHON."
        )


def without_archives(path: list[str]) -> list[str]:
    """Return a module search path without archives of the installed pyspark, which is on the path anyway.

    Archives of another Spark stay, because a cluster's Python modules have to match its jars.
    """
    return [entry for entry in path if not _is_archive_of_installed(Path(entry), path)]


def _is_archive_of_installed(entry: Path, path: list[str]) -> bool:
    if entry.suffix not in (".zip", ".jar"):
        return False
    packages = [parent for parent in entry.parents if parent.name == "pyspark"]
    return any(str(package.parent) in path and (package / "__init__.py").exists() for package in packages)


def load_task_modules() -> None:
    """Load the modules of brokers' tasks. If a broker can't be loaded, only tasks of its own stores fail."""
    from storage_engine.brokers import broker_names, find_broker
    from storage_engine.exceptions import BadInputError

    for name in broker_names():
        with suppress(BadInputError):
            for module in find_broker(name).rows.task_modules:
                importlib.import_module(module)


def main() -> None:
    sys.path[:] = without_archives(sys.path)
    # Python has cached an importer for each archive, which would read the archive's directory again.
    sys.path_importer_cache.clear()
    check_versions(os.environ.get(DRIVER_VERSIONS))
    importlib.import_module(TASK_MODULE)
    load_task_modules()
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
