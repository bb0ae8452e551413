"""Spark's Python daemon with what our tasks import loaded before it forks a worker.

``spark.python.daemon.module`` names it. A worker then starts in the time of a fork, shares that memory with
the others, and spends less between two tasks: Spark has it look through all objects for garbage and read
the directories of all archives on its path again, a third of a second of processor time in all.
"""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path

TASK_MODULE = "storage_engine.lake.archive.archive"


def without_archives(path: list[str]) -> list[str]:
    """A module search path without the archives of the pyspark that is installed on it anyway.

    Those of another Spark stay: a cluster's Python side has to match its jars.
    """
    return [entry for entry in path if not _is_archive_of_installed(Path(entry), path)]


def _is_archive_of_installed(entry: Path, path: list[str]) -> bool:
    if entry.suffix not in (".zip", ".jar"):
        return False
    packages = [parent for parent in entry.parents if parent.name == "pyspark"]
    return any(str(package.parent) in path and (package / "__init__.py").exists() for package in packages)


def main() -> None:
    sys.path[:] = without_archives(sys.path)
    # Python has looked into them for this module; what it keeps of that is what it would read again.
    sys.path_importer_cache.clear()
    importlib.import_module(TASK_MODULE)
    # Not before: what it imports would remember the archives.
    from storage_engine.brokers import broker_names, find_broker

    for name in broker_names():
        for module in find_broker(name).task_modules:
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
