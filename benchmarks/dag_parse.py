"""The DAG files of many stores, parsed and serialised: ``python -m benchmarks.dag_parse [--stores 200]``

Each file is taken as Airflow's DAG processor takes it: in a process of its own, forked from one that has
imported Airflow and frozen its objects. What is imported of this package counts, Airflow's own modules don't.
The limit is three seconds of a processor for all files together.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.common import Bench, report
from storage_engine.resources import project_path

STORES = 200
LIMIT_SECONDS = 3.0
AIRFLOW = (
    "airflow.dag_processing.processor",
    "airflow.providers.apache.spark.operators.spark_submit",
    "airflow.providers.common.compat.sdk",
    "airflow.sdk",
    "airflow.triggers.base",
    "asgiref.sync",
)
"""What of Airflow, and of what it requires, the DAG files come to import."""


def listed(stores: int) -> str:
    """The option that lists stores, each with a queue and a pool, ten a lake."""
    entries = [
        {"conn_id": f"store_{number:03}", "queue": f"host-{number}", "pool": f"pool-{number}"}
        | {"lake": f"lake-{number // 10}"}
        for number in range(stores)
    ]
    return json.dumps(entries)


def parse(file: Path, answer: Connection) -> None:
    """Send the number of a file's DAGs, and the processor seconds that it took."""
    import structlog
    from airflow.dag_processing.processor import DagFileParseRequest, _parse_file

    request = DagFileParseRequest(file=str(file), bundle_path=file.parent, bundle_name="dags-folder")
    began = time.process_time()
    result = _parse_file(request, structlog.get_logger())
    seconds = time.process_time() - began
    if result is None or result.import_errors:
        raise AssertionError(f"expected DAGs in {file}, found {result and result.import_errors}")
    answer.send((len(result.serialized_dags), seconds))


def run(stores: int = STORES) -> list[Bench]:
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__STORAGE_ENGINE__STORES": listed(stores),
        }
        for module in AIRFLOW:
            importlib.import_module(module)
        gc.freeze()
        forking = multiprocessing.get_context("fork")
        detail: dict[str, float | int | str] = {"stores": stores, "dags": 0}
        took = 0.0
        for file in sorted(project_path("dags").glob("*.py")):
            here, there = forking.Pipe()
            child = forking.Process(target=parse, args=(file, there))
            child.start()
            there.close()
            dags, seconds = here.recv()
            child.join()
            detail[f"{file.stem}_seconds"] = seconds
            detail["dags"] += dags
            took += seconds
    return [Bench("dag-parse", LIMIT_SECONDS / took, 1.0, {**detail, "seconds": took})]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=int, default=STORES)
    report(run(parser.parse_args().stores))


if __name__ == "__main__":
    main()
