"""The route of reports: closed, and from the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.links import StorageEngineReportLink
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.report.finishing import finish
from tests.airflow.web_client import Client, SomeDagsManager, client_of

# What Airflow and its dependencies warn about in their own code is not ours to mend.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

STORE = "a_store"
DAG_ID = f"storage_retention__{STORE}"
RUN_ID = "manual__2026-11-24T10:58:43.747132+00:00"


@pytest.fixture
def client(airflow_web: SomeDagsManager, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Client]:
    """Ask the app as somebody: client("viewer"); client(None) is nobody."""
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", STORE)
    airflow_web.readable = frozenset({DAG_ID})
    return lambda role: client_of(airflow_web, role)


@pytest.fixture
def reported(store_connection: Any) -> Any:
    """A store with a run that has a report."""
    store = store_connection(STORE, deleteWhen="99")
    managed = StorageEngineHook(STORE).managed_store
    steps.make_plan(managed, f"{DAG_ID}/{RUN_ID}", PlanRequest(dry_run=True))
    finish(managed, f"{DAG_ID}/{RUN_ID}")
    return store


def asked(**others: str) -> dict[str, str]:
    return {"store": STORE, "dag_id": DAG_ID, "run_id": RUN_ID, **others}


def test_a_run_s_report_is_shown_to_who_may_read_its_dag(client: Any, reported: Any) -> None:
    found = client("viewer").get("/report", params=asked())
    assert (found.status_code, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert RUN_ID.partition("+")[0] in found.text
    assert "<script" not in found.text


def test_anonymous_is_401_everywhere(client: Any, reported: Any) -> None:
    nobody = client(None)
    assert nobody.get("/report", params=asked()).status_code == 401
    assert nobody.get("/report").status_code == 401
    for path in ("/docs", "/redoc", "/openapi.json", "/"):
        assert nobody.get(path).status_code in (401, 404)


def test_who_may_not_read_the_dag_is_told_what_who_asks_for_nothing_is(client: Any, reported: Any) -> None:
    other, unknown = (
        client("viewer").get("/report", params=asked(dag_id=dag_id))
        for dag_id in ("storage_retention__other", "no_such_dag")
    )
    assert (other.status_code, unknown.status_code) == (404, 404)
    assert other.text == unknown.text


def test_who_may_read_another_dag_is_told_nothing_of_a_store(
    client: Any, reported: Any, store_connection: Any, airflow_web: SomeDagsManager
) -> None:
    airflow_web.readable = frozenset({"own_dag"})
    # One whose journal is nowhere, one with a journal, and none at all.
    store_connection("b_store")
    told = {
        store: client("viewer").get("/report", params=asked(store=store, dag_id="own_dag"))
        for store in (STORE, "b_store", "no_such_store")
    }
    assert len({(one.status_code, one.text) for one in told.values()}) == 1
    assert "This run has no report of its own" in told[STORE].text


def test_a_dag_of_one_s_own_has_its_reports(client: Any, reported: Any, airflow_web: SomeDagsManager) -> None:
    managed = StorageEngineHook(STORE).managed_store
    steps.make_plan(managed, f"own_dag/{RUN_ID}", PlanRequest(dry_run=True))
    finish(managed, f"own_dag/{RUN_ID}")
    airflow_web.readable = frozenset({"own_dag"})
    found = client("viewer").get("/report", params=asked(dag_id="own_dag"))
    assert found.status_code == 200
    assert "no report" not in found.text


def test_a_run_without_a_report_gets_a_page_that_says_so(client: Any, reported: Any) -> None:
    found = client("viewer").get("/report", params=asked(run_id="<b>other</b>"))
    assert found.status_code == 200
    assert "This run has no report of its own" in found.text
    assert "<b>other</b>" not in found.text


def test_a_store_that_nobody_has_looked_at_yet_is_no_server_error(client: Any, store_connection: Any) -> None:
    store_connection(STORE)
    found = client("viewer").get("/report", params=asked())
    assert found.status_code == 503
    assert "expected a journal, found none" in found.text


@pytest.mark.parametrize("name", ["../../etc/passwd", "%2e%2e/x", "a\x00b", "x" * 300])
def test_names_are_no_paths(client: Any, reported: Any, name: str) -> None:
    found, unknown = (
        client("viewer").get("/report", params=asked(store=one)) for one in (name, "no_such_store")
    )
    assert found.status_code == 422 or found.text == unknown.text


@pytest.mark.parametrize(
    ("role", "params", "status"),
    [("viewer", {}, 200), (None, {}, 401), ("viewer", {"dag_id": "x"}, 404), ("viewer", {"store": ""}, 422)],
)
def test_each_answer_has_a_strict_policy(
    client: Any, reported: Any, role: str | None, params: dict[str, str], status: int
) -> None:
    found = client(role).get("/report", params=asked(**params))
    assert found.status_code == status
    assert_closed(found)


def test_a_server_error_has_it_too_and_says_nothing(
    client: Any, reported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("storage_engine.plugins.app.report_of_run", fail)
    found = client("viewer").get("/report", params=asked())
    assert (found.status_code, "secret" in found.text) == (500, False)
    assert_closed(found)


def assert_closed(found: Any) -> None:
    policy = found.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'self'" in policy
    assert "script-src" not in policy
    assert found.headers["x-content-type-options"] == "nosniff"


def test_a_link_leads_there_whatever_is_in_a_run_s_id(client: Any, reported: Any) -> None:
    class Key:
        dag_id, run_id = DAG_ID, RUN_ID

    class Task:
        storage_engine_conn_id = STORE

    link = StorageEngineReportLink().get_link(Task(), ti_key=Key())  # type: ignore[arg-type]
    assert link.startswith("/storage-engine/report?store=a_store&dag_id=")
    assert client("viewer").get(link.removeprefix("/storage-engine")).status_code == 200


def test_a_link_below_a_path_leads_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host.example/airflow/")

    class Key:
        dag_id, run_id = DAG_ID, RUN_ID

    class Task:
        storage_engine_conn_id = STORE

    link = StorageEngineReportLink().get_link(Task(), ti_key=Key())  # type: ignore[arg-type]
    assert link.startswith("/airflow/storage-engine/report?")
