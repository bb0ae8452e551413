"""An Airflow that is served below a path, with the journal in PostgreSQL: its console in a browser."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from demo.dag_run import RunsApi
from storage_engine.project.init import init_project, store_definition, store_fields
from storage_engine.project.up import ProcessTree, component_environment, free_port
from tests.integration.postgres import postgres
from tests.services.console_journal import write_journal
from tests.walks.console_airflow import CONSOLE, PAST, chromium, console, log_in
from tests.walks.own_airflow import eventually

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(900)]

SOON_MS = 60_000
"""A busy machine's browser."""
BELOW = "/data/airflow"
STORE_VIEW = f"{CONSOLE}{BELOW}/storage-engine/console/#/store/{PAST[0]}"
"""Airflow's page of a plugin, and the whole path of the document in it."""
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an API server over stores whose journal only PostgreSQL has."""
    directory = tmp_path_factory.mktemp("below")
    project = init_project(directory / "project")
    port = free_port(0)
    found = f"http://127.0.0.1:{port}{BELOW}"
    tree = ProcessTree()
    with postgres() as database:
        write_journal(database.uri, PAST, days=45, every_ms=1_800_000)
        environment = component_environment(project) | {
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": found,
            "AIRFLOW__STORAGE_ENGINE__STORES": ",".join(PAST),
            "AIRFLOW__STORAGE_ENGINE__JOURNAL_URL": database.uri,
        }
        for name in PAST:
            fields = store_fields(Path("/data") / name, None, "Asia/Shanghai")
            environment[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps(store_definition(fields))
        project.passwords_file.write_text(json.dumps({"admin": "admin"}))
        project.logs.mkdir(exist_ok=True)
        log = project.logs / "all.log"
        airflow = [sys.executable, "-m", "airflow"]
        try:
            for step in ("db migrate", "dags reserialize"):
                tree.start(step, [*airflow, *step.split()], environment, log)
                assert tree.wait(step) == 0, log.read_text()[-3_000:]
            tree.start("api-server", [*airflow, "api-server", "--host", "127.0.0.1"], environment, log)
            api = RunsApi(found, None)
            eventually("the API server answers", lambda: api.get_once("/api/v2/monitor/health"))
            yield found
        finally:
            tree.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(address: str, browser: Browser) -> Iterator[Page]:
    expect.set_options(timeout=SOON_MS)
    opened = log_in(browser, address, "admin", width=1440)
    opened.set_default_timeout(SOON_MS)
    yield opened
    opened.close()


def test_every_request_stays_below_the_path_and_links_lead_there(address: str, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("link", name="Retention").first.click()
    frame = console(page)
    frame.get_by_role("link", name=PAST[0]).first.click()
    expect(frame.locator("h1")).to_contain_text(PAST[0])
    frame.locator(".chart .mark").first.wait_for()
    assert page.url.startswith(f"{address}{STORE_VIEW}")
    ours = [url for url in asked if "storage-engine" in url]
    assert len(ours) > 20
    assert [url for url in ours if not url.startswith(f"{address}/")] == []
    row = frame.get_by_role("row").filter(has_text="done")
    assert row.get_by_role("link", name="DAG run").first.get_attribute("href").startswith(f"{address}/dags/")
    row.get_by_role("link", name="Report").first.click()
    expect(frame.get_by_text("were archived, proven and deleted").first).to_be_visible()
    page.go_back()
    expect(console(page).locator("h1")).to_contain_text(PAST[0])


def shown_days(url: str) -> float:
    query = parse_qs(urlsplit(url).fragment.partition("?")[2])
    return (int(query["to"][0]) - int(query["from"][0])) / DAY_MS


def test_the_chart_is_zoomed_and_its_address_leads_back(address: str, page: Page) -> None:
    page.goto(f"{address}{STORE_VIEW}?range=30d")
    frame = console(page)
    frame.locator(".chart .mark").first.wait_for()
    marks = frame.locator(".chart .mark").count()
    box = frame.locator(".u-over").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, middle, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    assert shown_days(page.url) == pytest.approx(7.5, abs=0.4)
    frame.locator(".plot-area").focus()
    page.keyboard.press("+")
    eventually("the zoom", lambda: shown_days(page.url) == pytest.approx(3.75, abs=0.3))
    zoomed = page.url
    page.reload()
    frame = console(page)
    frame.locator(".chart").wait_for()
    expect(frame.locator(".reading-time")).to_be_visible()
    assert page.url == zoomed
    assert frame.locator(".chart .mark").count() < marks


def test_another_setting_is_computed_by_the_server(address: str, page: Page) -> None:
    page.goto(f"{address}{STORE_VIEW}/what-if")
    frame = console(page)
    frame.locator(".what-if .advice").wait_for()
    frame.get_by_label("fileReservedTime").fill("168")
    frame.locator("td", has_text="worse").first.wait_for()
    page.wait_for_url(re.compile(r"s\.fileReservedTime=168"))
    expect(frame.get_by_role("status").filter(has_text="14 days computed in")).to_be_visible()
    page.reload()
    frame = console(page)
    frame.locator("td", has_text="worse").first.wait_for()
    assert frame.get_by_label("fileReservedTime").input_value() == "168"


def test_every_view_and_route_reads_the_journal_in_postgresql(address: str, page: Page) -> None:
    for view, sign in (
        ("/forecast", ".band-row"),
        ("/quality", "button.day-passed"),
        ("", ".strip .part-archived"),
    ):
        page.goto(f"{address}{STORE_VIEW}{view}")
        page.reload()
        console(page).locator(sign).first.wait_for()
    api = RunsApi.log_in(address, "admin", "admin")
    stores = api.get("/storage-engine/console/api/stores")
    assert stores["problem"] == ""
    assert {row["store"] for row in stores["stores"] if row["levels"]} == set(PAST)
    runs = api.get(f"/storage-engine/console/api/stores/{PAST[0]}/runs")["runs"]
    assert len(runs) > 30
    assert {run["has_report"] for run in runs if run["outcome"]} == {True}
