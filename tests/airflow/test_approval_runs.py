"""Approval by a second person in an Airflow of four components, answered by its REST API."""

from __future__ import annotations

import configparser
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from demo.dag_run import DemoAirflow, RunsApi
from storage_engine.journal.journal import Journal, Step
from storage_engine.project.init import STORE_CONNECTION, Project, init_project
from storage_engine.project.up import ApiError, free_port, unpack_sample_store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800), pytest.mark.again]

DAG = f"storage_retention__{STORE_CONNECTION}"
USERS = ("admin", "ann", "bob", "eve")
WAITS = ("awaiting_input", "deferred")
SECONDS = 300


def configured(project: Project) -> None:
    """Give the project's Airflow several users, of whom two may approve."""
    config = configparser.RawConfigParser()
    config.read(project.home / "airflow.cfg")
    config["core"]["simple_auth_manager_users"] = ",".join(f"{user}:admin" for user in USERS)
    approvers = [{"id": user, "name": user} for user in ("ann", "bob")]
    config["storage_engine"]["stores"] = json.dumps([{"conn_id": STORE_CONNECTION, "approvers": approvers}])
    with (project.home / "airflow.cfg").open("w") as file:
        config.write(file)
    project.passwords_file.write_text(json.dumps(dict.fromkeys(USERS, "one password of the tests")))


def wait_for(airflow: DemoAirflow, found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline
        airflow.check_alive()
        time.sleep(0.5)
    return value


class Runs:
    """Runs of the store's DAG, as some user of this Airflow sees them."""

    def __init__(self, airflow: DemoAirflow, user: str) -> None:
        self.airflow = airflow
        self.api = RunsApi.log_in(airflow.address, user, airflow.password)

    def trigger(self) -> str:
        return self.api.trigger(DAG, {"manual": True})

    def states(self, run: str) -> dict[str, str | None]:
        return self.api.task_states(DAG, run)

    def wait_to_be_asked(self, run: str) -> None:
        wait_for(self.airflow, lambda: self.states(run).get("approve") in WAITS)
        # An answer before the scheduler knows from its executor that the task is parked costs it a try.
        wait_for(self.airflow, lambda: self._is_known_to_wait(run))

    def _is_known_to_wait(self, run: str) -> bool:
        lines = (self.airflow.project.logs / "scheduler.log").read_text().splitlines()
        mine = [line for line in lines if run in line and "task_id=approve" in line]
        told = [line for line in mine if "Pausing task" in line or "TaskInstance Finished" in line]
        return "TaskInstance Finished" in told[-1]

    def finish(self, run: str) -> str:
        wait_for(self.airflow, lambda: self.api.run_state(DAG, run) in ("success", "failed"))
        return self.api.run_state(DAG, run)

    def answer(self, run: str, option: str) -> int:
        """Answer the question of a run; gives the HTTP status."""
        path = f"/api/v2/dags/{DAG}/dagRuns/{quote(run, safe='')}/taskInstances/approve/-1/hitlDetails"
        try:
            self.api.patch(path, {"chosen_options": [option], "params_input": {}})
        except ApiError as error:
            return error.status or 0
        return 200

    def question(self, run: str) -> dict[str, Any]:
        path = f"/api/v2/dags/{DAG}/dagRuns/{quote(run, safe='')}/taskInstances/approve/-1/hitlDetails"
        found: dict[str, Any] = self.api.get(path)
        return found

    def mark_success(self, run: str) -> None:
        path = f"/api/v2/dags/{DAG}/dagRuns/{quote(run, safe='')}/taskInstances/approve"
        self.api.patch(path, {"new_state": "success"})

    def ask_again(self, run: str) -> None:
        asked = {"dag_run_id": run, "task_ids": ["approve"], "only_failed": False, "include_downstream": True}
        self.api.post(f"/api/v2/dags/{DAG}/clearTaskInstances", {"dry_run": False, **asked})
        self.wait_to_be_asked(run)


def test_a_plan_goes_only_by_another_users_answer(tmp_path: Path) -> None:
    sample = unpack_sample_store(tmp_path / "sample")
    project = init_project(
        tmp_path / "project",
        store_root=sample.root,
        broker_conf=sample.broker_conf,
        fields={"spark_conn_id": None, "approval": "always"},
    )
    configured(project)
    port = free_port()
    log = sorted((sample.root / "commitlog").iterdir())
    journal = Journal(project.journal_url)

    def replies() -> list[str]:
        (record,) = journal.all_stores()
        told = journal.store_events(record.store_id, Step.APPROVAL)
        return [event.payload["said"] for event in told if "said" in event.payload]

    def there() -> list[Path]:
        return sorted((sample.root / "commitlog").iterdir())

    with DemoAirflow(project, port, print) as airflow:
        ann, bob, eve = (Runs(airflow, user) for user in ("ann", "bob", "eve"))
        wait_for(airflow, lambda: DAG in json.dumps(ann.api.get("/api/v2/dags")))
        ann.api.unpause(DAG)
        first = ann.trigger()
        ann.wait_to_be_asked(first)
        body = ann.question(first)["body"]
        assert f"delete {len(sample.old)} segments" in body
        assert f"In the lake with proof: {len(sample.old)} segments" in body
        assert "unread messages" in body
        assert len(body.encode()) <= 4096
        # Who isn't on the list is refused by Airflow.
        assert eve.answer(first, "Approve") == 403
        # Marked as a success by hand, it leaves no record.
        ann.mark_success(first)
        assert ann.finish(first) == "failed"
        assert ann.states(first)["release"] == "failed"
        assert (there(), replies()) == (log, [])
        # Who began the run is refused by us, though on the list.
        ann.ask_again(first)
        assert ann.answer(first, "Approve") == 200
        assert ann.finish(first) == "failed"
        assert ann.states(first)["release"] == "skipped"
        assert (there(), replies()) == (log, ["refused"])
        # An open question holds up no archiving: the next run plans more, and archives it.
        ann.ask_again(first)
        os.utime(log[len(sample.old)], ns=(10**18, 10**18))
        second = bob.trigger()
        bob.wait_to_be_asked(second)
        assert f"In the lake with proof: {len(sample.old) + 1} segments" in bob.question(second)["body"]
        assert ann.states(first)["approve"] in WAITS
        assert ann.answer(second, "Reject") == 200
        assert ann.finish(second) == "failed"
        assert (there(), replies()) == (log, ["refused", "rejected"])
        # Scheduler and workers are killed; the answer comes while there is none.
        for process in airflow._tree.living():
            if "scheduler" in " ".join(process.cmdline()) or "executor" in " ".join(process.cmdline()):
                process.kill()
        assert bob.answer(first, "Approve") == 200
        assert bob.answer(first, "Approve") == 409
        assert (there(), replies()) == (log, ["refused", "rejected"])
        for process in airflow._tree.living():
            process.kill()
    with DemoAirflow(project, port, print) as airflow:
        bob = Runs(airflow, "bob")

        def is_asked() -> bool:
            waits = bob.states(first)["approve"] in WAITS
            return waits and not bob.question(first)["response_received"]

        # A task that could not begin, as the API server was not up yet, asks again: the answer of before
        # counts for nothing.
        wait_for(airflow, lambda: is_asked() or bob.api.run_state(DAG, first) != "running")
        if is_asked():
            assert (there(), replies()) == (log, ["refused", "rejected"])
            bob.wait_to_be_asked(first)
            assert bob.answer(first, "Approve") == 200
        assert bob.finish(first) == "success"
    assert there() == log[len(sample.old) :]
    assert replies() == ["refused", "rejected", "approved"]
    reports = [json.loads(path.read_text()) for path in project.reports.rglob("report.json")]
    told = sorted(report["approval"].partition(" at ")[0] for report in reports)
    assert told == ["Approved by bob (Airflow)", "REJECTED by ann (Airflow)"]
