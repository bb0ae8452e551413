"""A run of the retention DAG with each Python and each line of Airflow: a table of docs/upgrade.md.

Each pair gets an environment of its own with this package and that line's newest Airflow. Needs a network
and uv, which brings the interpreters. Ends with 1 where a pair that resolves doesn't run.

Usage: python -m tests.integration.airflow_matrix [PYTHON/AIRFLOW ...]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
AIRFLOWS = ("3.1", "3.2", "3.3")
BESIDE = {"3.2": ("cadwyn<8", "fastapi<0.137", "pydantic<2.13", "starlette<1")}
"""Where a line of Airflow admits newer ones, with which its tasks end before they begin."""
HEAD = "| Python | " + " | ".join(f"Airflow {line}" for line in AIRFLOWS) + " |\n|---|---|---|---|"

RUN = """
import json, os, sys, warnings
from importlib.metadata import version
from pathlib import Path
warnings.simplefilter("ignore")
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.project.up import unpack_sample_store
from storage_engine.resources import project_path
home = Path(sys.argv[1])
sample = unpack_sample_store(home / "sample")
make_lake(LakeConfig.local(home / "lake"))
extra = {
    "root": str(sample.root), "broker_conf": str(sample.broker_conf),
    "lake_directory": str(home / "lake"), "journal_url": f"sqlite:///{home / 'journal.db'}",
    "report_dir": str(home / "reports"),
}
os.environ["AIRFLOW_CONN_STORAGE_ENGINE_DEFAULT"] = json.dumps(
    {"conn_type": "storage_engine", "extra": extra}
)
# Before 3.2 a DAG is tested as its bundle has it.
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(project_path("dags"))
from airflow.utils.db import initdb
initdb()
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag
states = {}
for file, conf in (("storage_monitor.py", None), ("storage_retention.py", {"manual": True})):
    bag = DagBag(str(project_path("dags") / file))
    assert not bag.import_errors, bag.import_errors
    (dag,) = bag.dags.values()
    for task in dag.tasks:
        task.retries = 0
        if task.task_id == "sense":
            task.timeout = 0
    for one in dag.test(run_conf=conf).get_task_instances():
        states[one.task_id] = str(one.state)
states.pop("sense")
assert set(states.values()) == {"success"}, states
left = {path.name for path in (Path(sample.root) / "commitlog").iterdir()}
assert not left & {path.name for path in sample.old}
print("|" + json.dumps([version("apache-airflow"), len(sample.old)]))
"""


def cell(python: str, airflow: str, work: Path) -> str:
    """Try one pair; return what its cell says."""
    environment = work / "environment"
    interpreter = environment / "bin" / "python"
    wanted = (f"{ROOT}[airflow]", f"apache-airflow=={airflow}.*", *BESIDE.get(airflow, ()))
    made = _run("uv", "venv", "--quiet", "--python", python, environment)
    if made.returncode:
        return f"Python {python} is missing"
    installed = _run("uv", "pip", "install", "--quiet", "--python", interpreter, *wanted)
    if installed.returncode:
        sys.stderr.write(installed.stderr)
        return missing(installed.stderr)
    home = work / "home"
    home.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    variables |= {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "LD_PRELOAD": ""}
    done = _run(interpreter, "-c", RUN, home, env=variables)
    if done.returncode:
        sys.stderr.write(done.stdout[-4000:] + done.stderr[-4000:])
        return "resolves"
    version, _ = json.loads(done.stdout.rpartition("|")[2])
    return f"ran ({version})"


def missing(error: str) -> str:
    """Return which package a resolver names first that it can't have."""
    found = re.search(r"(?:Because|no version of|Failed to build `?) *([a-z][\w.\[\]-]+)", error)
    return f"{found[1] if found else 'a package'} is missing"


def _run(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [str(word) for word in words], capture_output=True, text=True, check=False, **options
    )


def main() -> int:
    wanted = sys.argv[1:]
    found: dict[str, list[str]] = {}
    for python in PYTHONS:
        for airflow in AIRFLOWS:
            if wanted and f"{python}/{airflow}" not in wanted:
                continue
            with tempfile.TemporaryDirectory(prefix="airflow-matrix-") as directory:
                found.setdefault(python, []).append(cell(python, airflow, Path(directory)))
            sys.stderr.write(f"{python} {airflow} {found[python][-1]}\n")
            sys.stderr.flush()
    rows = (f"| {python} | {' | '.join(cells)} |" for python, cells in found.items())
    sys.stdout.write("\n".join((HEAD, *rows)) + "\n")
    return int(any("resolves" in one for cells in found.values() for one in cells))


if __name__ == "__main__":
    sys.exit(main())
