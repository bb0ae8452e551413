"""The plugin: what it adds to Airflow's pages, that it is loaded once, and how little it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.model.plan import PlanRequest
from storage_engine.plugins import storage_engine as plugin
from storage_engine.plugins.storage_engine import StorageEnginePlugin, has_views
from storage_engine.retention import steps
from storage_engine.retention.report.finishing import finish
from tests.airflow.conftest import REPOSITORY

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

HEAVY = ["great_expectations", "numba", "numpy", "pandas", "pyarrow", "pyiceberg", "pyspark"]
WEB = ["fastapi", "starlette"]
FOLDER = REPOSITORY / "plugins"


def run(code: str, environment: Mapping[str, str] = os.environ) -> Any:
    """Run code in a process of its own, and return the JSON of its last line."""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=dict(environment))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_navigation_and_each_dag_have_an_entry() -> None:
    nav, tab = StorageEnginePlugin().external_views
    assert (nav["destination"], nav["nav_top_level"], nav["href"]) == ("nav", True, "storage-engine/console/")
    assert (tab["destination"], tab["href"]) == ("dag", "storage-engine/console/?dag={DAG_ID}")
    assert tab["applies_to"] == {"dag_tags": ["storage-engine"]}
    assert nav["url_route"] != tab["url_route"]


def test_airflow_takes_the_views_as_they_are() -> None:
    from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse

    for view in StorageEnginePlugin().external_views:
        assert ExternalViewResponse(**view).icon == "storage-engine/console/static/icon.svg"


def test_an_option_leaves_the_tab_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = (
        one for one in (REPOSITORY / "docs" / "airflow.md").read_text().split("\n") if "dag_tab =" in one
    )
    assert line == "dag_tab = False"
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__DAG_TAB", "False")
    assert [view["destination"] for view in StorageEnginePlugin().external_views] == ["nav"]


@pytest.mark.parametrize(
    ("version", "has"),
    [
        ("3.1.0", False),
        ("3.3.1", False),
        ("3.3.2", True),
        ("3.3.2rc1", True),
        ("3.10.0", True),
        ("4.0.0.dev0", True),
    ],
)
def test_views_need_an_airflow_that_keeps_their_address(version: str, has: bool) -> None:
    assert has_views(version) is has


def test_an_older_airflow_has_reports_and_no_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "airflow_version", "3.3.1")
    older = StorageEnginePlugin()
    assert older.external_views == []
    (described,) = older.fastapi_apps
    assert [route.path for route in described["app"].routes] == ["/report", "/keep"]


def test_a_task_that_loads_the_plugin_imports_no_web_framework() -> None:
    code = f"""
import json, sys
import airflow.plugins_manager
before = set(sys.modules)
from storage_engine.plugins.storage_engine import StorageEnginePlugin
StorageEnginePlugin()
print(json.dumps(sorted((set(sys.modules) - before) & set({WEB + HEAVY}))))
"""
    assert run(code) == []


def test_the_application_imports_nothing_that_reads_segments_or_lakes() -> None:
    code = f"""
import json, sys
import storage_engine.plugins.app
print(json.dumps(sorted({set(HEAVY)!r} & set(sys.modules))))
"""
    assert run(code) == []


STORE, DAG_ID = "a_store", "storage_retention__a_store"
OF_STORE = f"/console/api/stores/{STORE}"
OF_RUN = f"dag_id={DAG_ID}&run_id=r&store={STORE}"
ASKED = {
    "/report": f"/report?{OF_RUN}",
    "/keep": f"/keep?store={STORE}",
    "/console/": "/console/",
    "/console/static/{name:path}": "/console/static/icon.svg",
    "/console/api/dag": f"/console/api/dag?dag={DAG_ID}",
    "/console/api/stores": "/console/api/stores",
    "/console/api/stores/{store:path}": OF_STORE,
    "/console/api/stores/{store:path}/run": f"{OF_STORE}/run?dag={DAG_ID}&run=r",
    "/console/api/stores/{store:path}/runs": f"{OF_STORE}/runs",
    "/console/api/stores/{store:path}/chart": f"{OF_STORE}/chart?start_ms=0&end_ms=86400000",
    "/console/api/stores/{store:path}/forecast": f"{OF_STORE}/forecast",
    "/console/api/stores/{store:path}/calendar": f"{OF_STORE}/calendar?year=2026",
    "/console/api/stores/{store:path}/what-if": f"{OF_STORE}/what-if",
}
"""Each route that there is, with what is asked of it."""
POSTED = {f"{OF_STORE}/what-if": {"values": {"fileReservedTime": "48"}}}
"""Likewise, with what is sent."""

ANSWERED = f"""
import json, sys
import airflow.api_fastapi.app as airflow_app
from tests.airflow.web_client import SomeDagsManager, client_of
from storage_engine.plugins.app import make_app
manager = airflow_app._AuthManagerState.instance = SomeDagsManager()
manager.readable = frozenset({{{DAG_ID!r}}})
routes = {{route.path for route in make_app(has_console=True).routes}}
viewer = client_of(manager, "viewer")
statuses = {{path: viewer.get(address).status_code for path, address in {ASKED!r}.items()}}
for address, body in {POSTED!r}.items():
    statuses[address] = viewer.ask("POST", address, json=body).status_code
heavy = sorted({set(HEAVY)!r} & set(sys.modules))
print(json.dumps([sorted(routes), statuses, heavy]))
"""


@pytest.mark.again
def test_answering_imports_nothing_that_reads_segments_or_lakes(
    store_connection: Any, airflow_web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", STORE)
    store_connection(STORE, deleteWhen="99")
    managed = StorageEngineHook(STORE).managed_store
    steps.make_plan(managed, f"{DAG_ID}/r", PlanRequest(dry_run=True))
    finish(managed, f"{DAG_ID}/r")
    steps.monitor(managed, "storage_monitor__a_store/m")
    routes, statuses, heavy = run(ANSWERED, {**os.environ, "PYTHONPATH": str(REPOSITORY)})
    assert routes == sorted(ASKED)
    assert {path: status for path, status in statuses.items() if status != 200} == {}
    assert heavy == []


WITHOUT_PROVIDER = """
import importlib.metadata, importlib_metadata
for module in (importlib.metadata, importlib_metadata):
    def distributions(find=module.distributions, **asked):
        return (one for one in find(**asked) if one.metadata["Name"] != "airflow-provider-storage-engine")
    module.distributions = distributions
"""
"""As where only the code is on the path: the entry point is in the provider's metadata."""
LOADED = """
import json, logging
from airflow import plugins_manager
plugins, found = plugins_manager._get_plugins()
# Airflow tells as an error that a plugin which a provider names is loaded by its entry point already.
errors = {name: error for name, error in found.items() if "storage_engine" in f"{name} {error}"}
ours = [str(one.source) for one in plugins if one.name == "storage_engine"]
views = [view["url_route"] for view in plugins_manager._get_ui_plugins()[0]]
apps = [app["url_prefix"] for app in plugins_manager.get_fastapi_plugins()[0]]
print(json.dumps([ours, errors, views.count("storage-engine"), apps.count("/storage-engine")]))
"""


@pytest.mark.again
@pytest.mark.parametrize("is_lazy", ["True", "False"])
def test_the_folder_of_a_checkout_and_the_provider_yield_to_the_entry_point(is_lazy: str) -> None:
    """Where it loads providers at once, Airflow loads the plugins that they name as well."""
    lazy = {"AIRFLOW__CORE__LAZY_DISCOVER_PROVIDERS": is_lazy}
    environment = {**os.environ, **lazy, "AIRFLOW__CORE__PLUGINS_FOLDER": str(FOLDER)}
    (source,), errors, views, apps = run(LOADED, environment)
    assert "airflow-provider-storage-engine==" in source
    assert (errors, views, apps) == ({}, 1, 1)


@pytest.mark.again
def test_the_folder_of_a_checkout_brings_the_plugin_where_no_provider_is_installed() -> None:
    environment = {**os.environ, "AIRFLOW__CORE__PLUGINS_FOLDER": str(FOLDER)}
    (source,), errors, views, apps = run(WITHOUT_PROVIDER + LOADED, environment)
    assert source == "$PLUGINS_FOLDER/storage_engine_console.py"
    assert (errors, views, apps) == ({}, 1, 1)


def test_a_project_has_the_folder_of_plugins(tmp_path: Path) -> None:
    from storage_engine.project.init import init_project

    project = init_project(tmp_path / "project")
    assert [path.name for path in (project.home / "plugins").iterdir()] == ["storage_engine_console.py"]
