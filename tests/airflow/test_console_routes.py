"""Routes of the console: whom they answer, what they serve, and with which headers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage_engine.console.forecast import what_if
from storage_engine.core.clock import clock_ms
from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.model.plan import PlanRequest
from storage_engine.plugins.app import static_files
from storage_engine.retention import steps
from storage_engine.retention.report.finishing import finish
from tests.airflow.web_client import Client, SomeDagsManager, client_of

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

MINE, OTHER = "a_store", "b_store"
DAG_ID = f"storage_retention__{MINE}"
RUN_ID = "manual__2026-11-24T10:58:43.747132+00:00"


@pytest.fixture
def client(airflow_web: SomeDagsManager, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], Client]:
    """Ask as somebody who may read one store of two: client("viewer"); client(None) is nobody."""
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", f"{MINE}, {OTHER}")
    airflow_web.readable = frozenset({DAG_ID, "others_dag"})
    return lambda role: client_of(airflow_web, role)


@pytest.fixture
def dry_run(store_connection: Any) -> None:
    """Two stores; the first has had a dry run."""
    store_connection(OTHER, make_lake=False)
    store_connection(MINE, deleteWhen="99")
    managed = StorageEngineHook(MINE).managed_store
    steps.make_plan(managed, f"{DAG_ID}/{RUN_ID}", PlanRequest(dry_run=True, manual=True))
    finish(managed, f"{DAG_ID}/{RUN_ID}")


@pytest.fixture
def known_dags(airflow_database: Path) -> Iterator[None]:
    """What Airflow has parsed of both stores."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    ids = [f"storage_{kind}__{store}" for kind in ("retention", "monitor") for store in (MINE, OTHER)]
    with create_session() as session:
        session.merge(DagBundleModel(name="console-tests"))
        session.flush()
        for one in ids:
            session.merge(DagModel(dag_id=one, bundle_name="console-tests", is_paused=True, is_stale=False))
    yield
    with create_session() as session:
        for one in ids:
            session.delete(session.get(DagModel, one))


def test_only_readable_stores_are_listed(client: Any, dry_run: None) -> None:
    found = client("viewer").get("/console/api/stores").json()
    assert (found["kind"], found["version"]) == ("stores", 1)
    assert [row["store"] for row in found["stores"]] == [MINE]
    assert found["stores"][0]["last_run"]["outcome"] == "dry-run"


def test_a_store_is_shown_with_its_dags(client: Any, dry_run: None, known_dags: None) -> None:
    found = client("viewer").get(f"/console/api/stores/{MINE}").json()
    assert (found["kind"], found["row"]["store"]) == ("store", MINE)
    dag = {"purpose": "retention", "dag_id": DAG_ID, "is_paused": True, "may_run": False}
    assert found["dags"] == [dag]
    (dag,) = client("user").get(f"/console/api/stores/{MINE}").json()["dags"]
    assert dag["may_run"] is True


@pytest.mark.parametrize(
    ("changed", "kind"), [({}, "monitor-paused"), ({"is_paused": False, "is_stale": True}, "monitor-gone")]
)
def test_a_monitor_that_looks_at_nothing_is_the_most_urgent(
    client: Any, airflow_web: SomeDagsManager, dry_run: None, known_dags: None, changed: Any, kind: str
) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    monitor = f"storage_monitor__{MINE}"
    viewer = client("viewer")
    before = viewer.get("/console/api/stores").json()["stores"][0]
    # Who may not read that DAG isn't told of it.
    assert before["problem_kind"] == ""
    with create_session() as session:
        session.merge(DagModel(dag_id=monitor, **changed))
    airflow_web.readable = frozenset({DAG_ID, monitor})
    (listed,) = viewer.get("/console/api/stores").json()["stores"]
    assert (listed["state"], listed["problem_kind"], listed["urgent"]["severity"]) == (
        "urgent",
        kind,
        "urgent",
    )
    assert monitor in listed["problem"]
    assert viewer.get(f"/console/api/stores/{MINE}").json()["row"] == listed
    with create_session() as session:
        session.merge(DagModel(dag_id=monitor, is_paused=False, is_stale=False))
    assert viewer.get("/console/api/stores").json()["stores"] == [before]


def test_a_store_that_one_may_not_read_is_as_one_that_is_not_there(client: Any, dry_run: None) -> None:
    for what in (
        "",
        "/runs",
        "/chart?start_ms=0&end_ms=9",
        "/run?dag=x&run=x",
        "/what-if",
        "/forecast",
        "/calendar?year=2026",
    ):
        other = client("viewer").get(f"/console/api/stores/{OTHER}{what}")
        unknown = client("viewer").get(f"/console/api/stores/no_such{what}")
        found = (other.status_code, other.text)
        assert found == (unknown.status_code, unknown.text) == (404, unknown.text), what


def test_runs_and_chart_come_from_the_journal(client: Any, dry_run: None) -> None:
    (run,) = client("viewer").get(f"/console/api/stores/{MINE}/runs").json()["runs"]
    assert (run["dag_id"], run["run_id"], run["has_report"]) == (DAG_ID, RUN_ID, True)
    older = client("viewer").get(f"/console/api/stores/{MINE}/runs", {"before_id": str(run["id"])})
    assert older.json()["runs"] == []
    asked = {"start_ms": str(clock_ms() - 86_400_000), "end_ms": str(clock_ms())}
    assert client("viewer").get(f"/console/api/stores/{MINE}/chart", asked).json()["kind"] == "chart"


def test_no_error_names_a_store_that_one_may_not_read(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither store has a connection.
    for path in ("/console/api/stores", f"/console/api/stores/{MINE}", f"/console/api/stores/{MINE}/runs"):
        said = client("viewer").get(path)
        assert "expected a connection of this Airflow, found none" in said.text
        assert OTHER not in said.text
    for option in (
        f'[{{"conn_id": "{MINE}"}}, {{"{OTHER}": 5}}]',
        f'[{{"conn_id": "{OTHER}"}}',
        f'["{OTHER}"]',
    ):
        monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", option)
        for path in ("/console/api/stores", f"/console/api/stores/{MINE}"):
            said = client("viewer").get(path)
            assert said.status_code == 503
            assert "See the API server's log" in said.json()["detail"]
            assert OTHER not in said.text


def test_a_span_that_is_none_is_refused(client: Any, dry_run: None) -> None:
    for span in ("start_ms=-1&end_ms=5", "start_ms=0&end_ms=x", "start_ms=0", "start_ms=0&end_ms=1e99"):
        asked = client("viewer").get(f"/console/api/stores/{MINE}/chart?{span}")
        assert asked.status_code == 422, span


def test_stores_whose_journal_is_elsewhere_say_what_it_takes(client: Any, store_connection: Any) -> None:
    store_connection(MINE)
    found = client("viewer").get("/console/api/stores").json()
    assert "expected a journal, found none" in found["stores"][0]["problem"]
    assert "PostgreSQL" in found["problem"]


def test_a_store_without_a_connection_is_listed_with_what_is_wrong(client: Any) -> None:
    (row,) = client("viewer").get("/console/api/stores").json()["stores"]
    assert "expected a connection of this Airflow, found none" in row["problem"]
    said = client("viewer").get(f"/console/api/stores/{MINE}")
    assert said.status_code == 503
    assert "expected a connection of this Airflow" in said.json()["detail"]


def test_many_stores_of_one_journal_ask_it_once(
    client: Any, airflow_web: SomeDagsManager, dry_run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [MINE, *(f"store{number}" for number in range(199))]
    for name in names:
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", os.environ[f"AIRFLOW_CONN_{MINE.upper()}"])
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", ",".join(names))
    airflow_web.readable = frozenset(f"storage_retention__{name}" for name in names)
    asked = []
    summaries = JournalReader.summaries
    monkeypatch.setattr(JournalReader, "summaries", lambda *given: asked.append(1) or summaries(*given))
    viewer = client("viewer")
    airflow_web.readable = frozenset(f"storage_retention__{name}" for name in names)
    viewer.get("/console/api/stores")
    began = time.process_time()
    found = viewer.get("/console/api/stores").json()
    assert time.process_time() - began < 1
    assert len(found["stores"]) == len(names)
    assert len(asked) == 2


def test_a_store_with_a_slash_in_its_id_has_a_page(
    client: Any, airflow_web: SomeDagsManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", "dc1/orders")
    (store,) = configured_stores()
    airflow_web.readable = frozenset({f"storage_retention__{store.in_dag_ids}"})
    for what in ("", "/runs"):
        assert client("viewer").get(f"/console/api/stores/dc1%2Forders{what}").status_code == 503


def test_the_head_of_each_page_can_be_asked_for(client: Any, dry_run: None) -> None:
    for address in ("/console/", "/console/static/icon.svg", "/console/api/stores"):
        assert client("viewer").ask("HEAD", address).status_code == 200
        assert client(None).ask("HEAD", address).status_code == 401
    assert client("viewer").ask("HEAD", f"/console/api/stores/{OTHER}").status_code == 404


def test_a_dag_leads_to_its_store(client: Any) -> None:
    viewer = client("viewer")
    of = [viewer.get("/console/api/dag", {"dag": dag}).json()["store"] for dag in (DAG_ID, "others_dag")]
    assert of == [MINE, None]
    for purpose in ("forced_cleanup", "archive", "monitor", "flush_checkpoint"):
        found = viewer.get("/console/api/dag", {"dag": f"storage_{purpose}__{MINE}"}).json()
        assert found == {"kind": "dag", "version": 1, "store": MINE}


def test_a_dag_of_a_store_that_one_may_not_read_leads_nowhere(client: Any) -> None:
    found = client("viewer").get("/console/api/dag", {"dag": f"storage_retention__{OTHER}"})
    assert found.json()["store"] is None


@pytest.fixture
def looked_at(dry_run: None) -> None:
    """Also, the monitor has looked at the first store."""
    steps.monitor(StorageEngineHook(MINE).managed_store, f"storage_monitor__{MINE}/m")


WHAT_IF = f"/console/api/stores/{MINE}/what-if"


def test_other_settings_are_tried_beside_today_s(client: Any, looked_at: None) -> None:
    viewer = client("viewer")
    offered = viewer.get(WHAT_IF).json()
    assert (offered["kind"], offered["can"]) == ("what-if-settings", True)
    asked = {"values": {"fileReservedTime": "1", "deleteWhen": "04"}, "days": 2}
    found = viewer.ask("POST", WHAT_IF, json=asked).json()
    assert found["kind"] == "what-if"
    assert found["changed"]["summary"] != found["today"]["summary"]


def test_what_is_no_question_is_refused(client: Any, looked_at: None) -> None:
    viewer = client("viewer")
    for options, status, reason in (
        ({"json": {"values": {"no_such": "1"}}}, 422, "no_such"),
        ({"json": {"days": 10_000}}, 422, "what-if.days"),
        ({"json": [1]}, 422, "a JSON object"),
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 422, "a JSON object"),
        ({"content": b'{"days": NaN}', "headers": {"Content-Type": "application/json"}}, 422, "JSON"),
        ({"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "application/json"),
        ({"json": {"values": {"x" * 40_000: "1"}}}, 413, "bytes"),
    ):
        answer = viewer.ask("POST", WHAT_IF, **options)
        assert (answer.status_code, reason in answer.json()["detail"]) == (status, True), options


def test_a_question_that_takes_too_long_is_given_up(
    client: Any, looked_at: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = partial(what_if, limit_seconds=0.0)
    monkeypatch.setattr("storage_engine.plugins.app.what_if", limited)
    found = client("viewer").ask("POST", WHAT_IF, json={"days": 90, "ingest": {"bytes_per_day": 1 << 36}})
    assert (found.status_code, "processor time" in found.json()["detail"]) == (503, True)


def test_a_what_if_changes_nothing(client: Any, looked_at: None, tmp_path: Path) -> None:
    def kept() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    before = kept()
    assert client("viewer").ask("POST", WHAT_IF, json={"disk_bytes": 1 << 40}).status_code == 200
    assert kept() == before


def test_no_other_route_takes_anything(client: Any, looked_at: None) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for address in (*ADDRESSES, *([WHAT_IF] if method != "POST" else [])):
            assert client("user").ask(method, address, json={}).status_code in (307, 404, 405)


def test_what_a_dry_run_would_take_is_told(client: Any, dry_run: None) -> None:
    asked = {"dag": DAG_ID, "run": RUN_ID}
    found = client("viewer").get(f"/console/api/stores/{MINE}/run", asked).json()
    assert (found["kind"], found["outcome"]) == ("run", "dry-run")
    assert found["story"]["headline"].startswith("This was a dry run: nothing was changed, and ")
    assert found["story"]["answers"][0]["question"] == "What would be deleted"


def test_a_run_that_has_no_report_yet_has_no_story(client: Any, dry_run: None) -> None:
    found = client("viewer").get(f"/console/api/stores/{MINE}/run", {"dag": DAG_ID, "run": "other"})
    assert (found.status_code, found.json()["outcome"], found.json()["story"]) == (200, None, None)


def test_a_run_of_another_store_or_dag_is_not_there(client: Any, dry_run: None) -> None:
    viewer = client("viewer")
    other = viewer.get(f"/console/api/stores/{OTHER}/run", {"dag": DAG_ID, "run": RUN_ID})
    unknown = viewer.get("/console/api/stores/no_such/run", {"dag": DAG_ID, "run": RUN_ID})
    elsewhere = viewer.get(f"/console/api/stores/{MINE}/run", {"dag": "others_dag", "run": RUN_ID})
    assert [one.status_code for one in (other, unknown, elsewhere)] == [404, 404, 404]
    assert other.text == unknown.text == elsewhere.text


def test_what_has_not_changed_is_not_sent_again(client: Any, dry_run: None) -> None:
    asked = {"dag": DAG_ID, "run": RUN_ID}
    first = client("viewer").get(f"/console/api/stores/{MINE}/run", asked)
    again = client("viewer").get(
        f"/console/api/stores/{MINE}/run", asked, headers={"If-None-Match": first.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


def test_a_journal_that_is_elsewhere_is_no_server_error(client: Any, store_connection: Any) -> None:
    store_connection(MINE)
    found = client("viewer").get(f"/console/api/stores/{MINE}/run", {"dag": DAG_ID, "run": RUN_ID})
    assert found.status_code == 503
    assert "expected a journal, found none" in found.json()["detail"]


@pytest.mark.parametrize(
    "name",
    [
        "../app.py",
        "../../../../../etc/passwd",
        "%2e%2e/app.py",
        "/etc/passwd",
        "__init__.py",
        "a%00b",
        "x" * 5000,
    ],
)
def test_only_the_pages_own_files_are_served(client: Any, name: str) -> None:
    digest = static_files().digest
    assert client("viewer").get(f"/console/static/{name}").status_code in (404, 422)
    assert client("viewer").get(f"/console/static/{digest}/{name}").status_code in (404, 422)


def test_a_file_is_kept_by_the_browser_where_its_address_changes_with_it(client: Any) -> None:
    files = static_files()
    assert "icon.svg" in files.files
    for name, file in files.files.items():
        found = client("viewer").get(f"/console/static/{files.digest}/{name}")
        assert (found.status_code, found.content) == (200, file.content)
        assert "immutable" in found.headers["cache-control"]
        assert "immutable" not in client("viewer").get(f"/console/static/{name}").headers["cache-control"]
    icon = client("viewer").get("/console/static/icon.svg")
    assert icon.headers["content-type"].startswith("image/svg+xml")


ADDRESSES = (
    "/console/",
    "/console/static/icon.svg",
    "/console/api/stores",
    f"/console/api/stores/{MINE}",
    f"/console/api/stores/{OTHER}",
    f"/console/api/dag?dag={DAG_ID}",
    f"/console/api/stores/{MINE}/run?dag={DAG_ID}&run=x",
    "/console/api/no-such-thing",
    "/console",
)


def test_anonymous_is_let_in_nowhere_and_each_answer_has_a_strict_policy(client: Any, dry_run: None) -> None:
    for address in ADDRESSES:
        found = client(None).get(address)
        assert found.status_code in (401, 404, 307), address
        assert_closed(found)
        assert_closed(client("viewer").get(address))


def assert_closed(found: Any) -> None:
    policy = found.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'self'" in policy
    if "script-src" in policy:
        assert "unsafe" not in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    assert "no-store" in found.headers["cache-control"] or "private" in found.headers["cache-control"]
