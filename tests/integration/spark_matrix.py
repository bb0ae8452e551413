"""Both jobs on a local cluster of every Spark line, by the provider's operator: the table of docs/upgrade.md.

Each line gets an environment of its own with this package and its newest PySpark, without Airflow. Needs a
network, uv, and an Airflow in this interpreter. Ends with 1 where a line fails.

Usage: python -m tests.integration.spark_matrix [LINE ...]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINES = ("3.5", "4.0", "4.1", "4.2", "4.3")
MASTER = "local-cluster[2,1,1024]"
OF_THE_LINE = ("pyspark", "py4j")
"""Distributions whose versions are the line's, whatever the constraints say."""

HEAD = "| Spark | Python | Java | archive | consumer lag | seconds |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Environment:
    """An interpreter with this package and the PySpark of a line."""

    home: Path

    @classmethod
    def make(cls, home: Path, line: str) -> Environment:
        constraints = home.with_suffix(".constraints")
        pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        constraints.write_text("".join(pin for pin in pins if pin.partition("==")[0] not in OF_THE_LINE))
        _run("uv", "venv", "--quiet", "--python", sys.executable, home)
        package = ("--editable", f"{ROOT}[spark]", f"pyspark=={line}.*", "setuptools")
        _run("uv", "pip", "install", "--quiet", "--python", cls(home).python, "-c", constraints, *package)
        return cls(home)

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def spark_home(self) -> Path:
        (package,) = self.home.glob("lib/python*/site-packages/pyspark")
        return package


@dataclass(frozen=True)
class Events:
    """What Spark itself wrote of an application."""

    rows: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, directory: Path) -> Events:
        # Hadoop puts a file of checksums beside each, whose name begins with a dot.
        files = [path for path in directory.rglob("[!.]*") if path.is_file()]
        lines = (line for path in files for line in path.read_text(encoding="utf-8").splitlines())
        return cls(tuple(row for line in lines if isinstance(row := json.loads(line), dict)))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["Event"] == f"SparkListener{kind}"]

    @property
    def spark(self) -> set[str]:
        return {row["Spark Version"] for row in self.of("LogStart")}

    @property
    def java(self) -> set[str]:
        return {row["JVM Information"]["Java Version"].split()[0] for row in self.of("EnvironmentUpdate")}


@contextmanager
def airflow_home() -> Iterator[Path]:
    """Give this process an Airflow of its own, before anything imports Airflow."""
    for name in [name for name in os.environ if name.startswith(("AIRFLOW", "_AIRFLOW", "SPARK_"))]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="spark-matrix-") as directory:
        os.environ |= {"AIRFLOW_HOME": directory, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        yield Path(directory)


def measure(environment: Environment, line: str, work: Path) -> str:
    """Run both jobs and check what they made; return the line's row."""
    events = work / "events"
    events.mkdir(parents=True)
    extra = {
        "spark_home": str(environment.spark_home),
        "spark.pyspark.python": str(environment.python),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    os.environ["AIRFLOW_CONN_SPARK"] = json.dumps({"conn_type": "spark", "host": MASTER, "extra": extra})
    started = time.monotonic()
    segments, groups = _archive(work), _lag(work)
    seconds = time.monotonic() - started
    found = Events.read(events)
    (spark,), (java,) = found.spark, found.java
    assert spark.startswith(f"{line}."), spark
    assert len(found.of("ExecutorAdded")) == 4, "two executors a job"
    python = _run(environment.python, "-c", "import platform; print(platform.python_version())").strip()
    return f"| {spark} | {python} | {java} | {segments} segments proven | {groups} groups | {seconds:.0f} |"


def _archive(work: Path) -> int:
    """Archive the sample store's sealed segments; return how many came back byte for byte."""
    from storage_engine.lake.archive.archive import segment_jobs
    from storage_engine.lake.catalog.config import LakeConfig
    from storage_engine.lake.move.making import make_lake
    from storage_engine.lake.restore.restore import choose_segments, write_segments
    from storage_engine.model.store import FileFacts, Segment, SegmentState
    from storage_engine.operators.spark_job import StorageEngineArchiveOperator
    from storage_engine.spark.archive_segments import ArchiveRequest, ArchiveResult

    root, conn_id = _store(work / "archive")
    lake = make_lake(LakeConfig.local(work / "archive" / "lake"))
    paths = sorted((root / "commitlog").iterdir())[:-1]
    sealed = [Segment("commitlog", int(p.name), FileFacts.of(p), SegmentState.SEALED) for p in paths]
    jobs = segment_jobs(
        lake, sealed, store_id="s", lineage=0, broker="rocketmq", store_root=os.path.realpath(root)
    )
    task = StorageEngineArchiveOperator(task_id="archive", storage_engine_conn_id=conn_id)
    done = task.submit({}, ArchiveRequest(jobs), ArchiveResult)
    restored = write_segments(choose_segments(lake, "s", files_only=True), work / "restored")
    assert [receipt.base_offset for receipt in done.receipts] == [int(path.name) for path in paths]
    assert [Path(file.path).read_bytes() for file in restored] == [path.read_bytes() for path in paths]
    return len(restored)


def _lag(work: Path) -> int:
    """Measure the sample store's lag; return of how many groups it is what this process finds."""
    from dataclasses import replace

    from storage_engine.operators.spark_job import StorageEngineConsumerLagOperator
    from storage_engine.spark.consumer_lag import ConsumerLagRequest, ConsumerLagResult, lag_without_spark

    _, conn_id = _store(work / "lag")
    task = StorageEngineConsumerLagOperator(task_id="consumer_lag", storage_engine_conn_id=conn_id)
    request = ConsumerLagRequest.of(task.store, str(work / "table"), (), time.time_ns() // 1_000_000)
    done = task.submit({}, request, ConsumerLagResult)
    here = lag_without_spark(replace(request, table_path=str(work / "here")), None)
    assert here is not None
    assert done.summary == here.summary
    return done.summary.groups


def _store(directory: Path) -> tuple[Path, str]:
    """Unpack the sample store and name it by a connection."""
    from storage_engine.project.up import unpack_sample_store

    directory.mkdir()
    sample = unpack_sample_store(directory)
    conn_id = f"store_{directory.name}"
    extra = {
        "root": str(sample.root),
        "broker_conf": str(sample.broker_conf),
        "lake_directory": str(directory / "lake"),
        "journal_url": f"sqlite:///{directory / 'journal.db'}",
        "report_dir": str(directory / "reports"),
        "spark_conn_id": "spark",
    }
    definition = {"conn_type": "storage_engine", "extra": extra}
    os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(definition)
    return sample.root, conn_id


def _run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


def main(lines: list[str]) -> int:
    rows, failed = [HEAD], False
    with airflow_home() as directory:
        for line in lines or LINES:
            home = directory / line
            try:
                rows.append(measure(Environment.make(home, line), line, directory / f"work-{line}"))
            except Exception as error:
                rows.append(f"| {line} | fails: {error} |")
                failed = True
            shutil.rmtree(home, ignore_errors=True)
    sys.stdout.write("\n".join(rows) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
