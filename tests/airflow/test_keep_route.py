"""The page of what a store's lakes keep: closed, from the journal, and as lake keep says it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.wording import bytes_text
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from tests.airflow.web_client import Client, SomeDagsManager, client_of
from tests.services.command_line import run_command

# What Airflow and its dependencies warn about in their own code is not ours to mend.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

STORE = "a_store"


@pytest.fixture
def client(airflow_web: SomeDagsManager, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Client]:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", STORE)
    airflow_web.readable = frozenset({f"storage_retention__{STORE}"})
    return lambda role: client_of(airflow_web, role)


def test_a_store_s_page_says_what_lake_keep_says(
    client: Any, store_connection: Any, airflow_web: SomeDagsManager
) -> None:
    store_connection(STORE, deleteWhen="99")
    managed = StorageEngineHook(STORE).managed_store
    for segment in (Path(managed.root) / "commitlog").iterdir():
        os.utime(segment, (0, 0))
    steps.make_plan(managed, "r", PlanRequest(manual=True))
    steps.archive(managed, "r", steps.archive_jobs(managed, "r"))
    lake = ("--conn-id", STORE)
    asked = {"store": STORE}
    before = client("viewer").get("/keep", params=asked)
    assert (before.status_code, "There is no forecast yet" in before.text) == (200, True)
    assert run_command("lake", "keep", *lake, "--keep", "30 days").exit_code == 0
    (forecast,) = run_command("lake", "keep", *lake, "--price", 100, "--json").json["lakes"]
    found = client("viewer").get("/keep", params={**asked, "price": "100"})
    assert (found.status_code, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "form-action 'self'" in found.headers["Content-Security-Policy"]
    assert "<script" not in found.text
    assert forecast["topics"]
    for topic in forecast["topics"]:
        assert f'<td class="num">{bytes_text(topic["size_bytes"])}</td>' in found.text
        assert f'<td class="num">{topic["month_cost"]:.4g}</td>' in found.text
    for price in ("nan", "-1", "much"):
        assert client("viewer").get("/keep", params={**asked, "price": price}).status_code == 422
    assert client(None).get("/keep", params=asked).status_code == 401
    airflow_web.readable = frozenset()
    hidden = client("viewer").get("/keep", params=asked)
    unknown = client("viewer").get("/keep", params={"store": "no_such_store"})
    assert (hidden.status_code, hidden.text) == (unknown.status_code, unknown.text) == (404, unknown.text)
