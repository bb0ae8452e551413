"""Three stores of one Airflow, journal and lake: one hangs, one has lost its disk, one is well."""

from __future__ import annotations

import configparser
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from demo.dag_run import DemoAirflow, RunsApi
from storage_engine.project.init import STORE_CONNECTION, Project, init_project
from storage_engine.project.up import ApiError, free_port, unpack_sample_store
from tests.services.hanging_disk import hanging_disk

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

KINDS = ("retention", "archive", "monitor", "flush_checkpoint")
SECONDS = 600


def wait_for(found: Callable[[], Any], airflow: DemoAirflow) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline
        airflow.check_alive()
        time.sleep(0.5)
    return value


def project_of(directory: Path, roots: Mapping[str, Path], broker_conf: Path) -> Project:
    """A project with these stores, whose tasks do what Spark would."""
    project = init_project(directory, store_root=roots["healthy"], broker_conf=broker_conf)
    connections = json.loads(project.connections_file.read_text())
    made = connections.pop(STORE_CONNECTION)
    for name, root in roots.items():
        fields = {**json.loads(made["extra"]), "root": str(root), "spark_conn_id": None}
        if name != "healthy":
            fields["broker_conf"] = None
        connections[name] = {**made, "extra": json.dumps(fields)}
    project.connections_file.write_text(json.dumps(connections))
    settings = configparser.RawConfigParser()
    settings.read(project.settings_file)
    settings["storage_engine"]["stores"] = ", ".join(roots)
    with project.settings_file.open("w") as file:
        settings.write(file)
    return project


def said_by(project: Project, dag_id: str) -> str:
    """What the tasks of a DAG wrote into their logs."""
    return "\n".join(path.read_text() for path in project.logs.glob(f"dag_id={dag_id}/**/*.log"))


def is_known(api: RunsApi, dag_id: str) -> bool:
    try:
        return bool(api.get(f"/api/v2/dags/{dag_id}"))
    except ApiError as error:
        if error.status != 404:
            raise
        return False


@pytest.mark.again
def test_a_store_that_hangs_and_one_that_is_gone_keep_the_third_from_nothing(tmp_path: Path) -> None:
    sample = unpack_sample_store(tmp_path / "sample")
    with hanging_disk(tmp_path / "disk") as disk:
        roots = {"hanging": disk / "store", "broken": tmp_path / "unmounted", "healthy": sample.root}
        project = project_of(tmp_path / "project", roots, sample.broker_conf)
        dag_ids = {store: [f"storage_{kind}__{store}" for kind in KINDS] for store in roots}
        with DemoAirflow(project, free_port(0), print) as airflow:
            api = airflow.api()
            for store in roots:
                # A DAG that is off is told nothing: first those that are told, then the one that tells.
                for dag_id in dag_ids[store]:
                    wait_for(lambda dag_id=dag_id: is_known(api, dag_id), airflow)
                    api.unpause(dag_id)

            def state(dag_id: str) -> str:
                run_id = api.first_run(dag_id)
                return api.run_state(dag_id, run_id) if run_id else ""

            # Nothing is to be archived ahead, and nobody can tell what is due of a store that hangs.
            by_clock = ("retention", "monitor", "flush_checkpoint")
            for dag_id in (f"storage_{kind}__healthy" for kind in by_clock):
                wait_for(lambda dag_id=dag_id: state(dag_id) in ("success", "failed"), airflow)
                assert state(dag_id) == "success"
            assert state("storage_archive__healthy") == ""
            for dag_id in dag_ids["hanging"]:
                assert state(dag_id) in ("", "running", "failed")
            assert not any(path.exists() for path in sample.old)
            # Each of the others ends by itself, too, with what is wrong with it.
            for store, error in (("broken", "StoreNotFoundError"), ("hanging", "DiskUnavailableError")):
                monitor = f"storage_monitor__{store}"
                assert wait_for(lambda dag_id=monitor: state(dag_id) not in ("", "running"), airflow)
                assert state(monitor) == "failed"
                assert f'"{error}","exc_value":"{roots[store]}' in said_by(project, monitor)
