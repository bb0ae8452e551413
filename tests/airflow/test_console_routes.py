"""Routes of the console: whom they answer, what they serve, and with which headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.model.plan import PlanRequest
from storage_engine.plugins.static_files import static_files
from storage_engine.retention import steps
from storage_engine.retention.finishing import finish
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
    store_connection(OTHER)
    store_connection(MINE, deleteWhen="99")
    managed = StorageEngineHook(MINE).managed_store
    steps.make_plan(managed, f"{DAG_ID}/{RUN_ID}", PlanRequest(dry_run=True, manual=True))
    finish(managed, f"{DAG_ID}/{RUN_ID}")


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


def test_what_a_dry_run_would_take_is_told(client: Any, dry_run: None) -> None:
    asked = {"dag": DAG_ID, "run": RUN_ID}
    found = client("viewer").get(f"/console/api/stores/{MINE}/run", asked).json()
    assert (found["kind"], found["outcome"]) == ("run", "dry-run")
    assert found["story"]["headline"].startswith("This was a dry run: nothing was changed, and ")
    assert found["story"]["answers"][0]["question"] == "What would go"


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
    f"/console/api/dag?dag={DAG_ID}",
    f"/console/api/stores/{MINE}/run?dag={DAG_ID}&run=x",
    "/console/api/no-such-thing",
    "/console",
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_anonymous_is_let_in_nowhere(client: Any, dry_run: None, address: str) -> None:
    found = client(None).get(address)
    assert found.status_code in (401, 404, 307)
    assert_closed(found)


@pytest.mark.parametrize("address", ADDRESSES)
def test_each_answer_has_a_strict_policy(client: Any, dry_run: None, address: str) -> None:
    assert_closed(client("viewer").get(address))


def assert_closed(found: Any) -> None:
    policy = found.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'self'" in policy
    if "script-src" in policy:
        assert "unsafe" not in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    assert "no-store" in found.headers["cache-control"] or "private" in found.headers["cache-control"]
