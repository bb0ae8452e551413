"""Operators with the console in a real Airflow: they look, follow a link, and start what they may start."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FrameLocator, Page, expect

from demo.dag_run import RunsApi
from storage_engine.project.init import STORE_CONNECTION
from storage_engine.project.up import ApiError
from tests.walks.console_airflow import (
    CONSOLE,
    FORCED,
    OTHERS_DAG,
    PAST,
    RETENTION,
    TAB,
    ConsoleAirflow,
    chromium,
    console,
    console_airflow,
    log_in,
)

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(900)]

SOON_MS = 60_000
"""A busy machine's browser."""
RUN_MS = 300_000
STORE_VIEW = f"{CONSOLE}/storage-engine/console/#/store/{STORE_CONNECTION}"
VIEWS = ("", "/forecast", "/what-if", "/quality")
NARROW = 382
"""Of a phone; Airflow's own navigation leaves 318 of it, less where it has its scroll bar."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleAirflow]:
    with console_airflow(tmp_path_factory.mktemp("console")) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(autouse=True)
def patience() -> None:
    expect.set_options(timeout=SOON_MS)


@pytest.fixture
def page(running: ConsoleAirflow, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Airflow as one who may start DAGs; ``parametrize`` says who else, or how wide."""
    asked = getattr(request, "param", {})
    opened = log_in(browser, running.address, asked.get("name", "uma"), width=asked.get("width", 1280))
    opened.set_default_timeout(SOON_MS)
    yield opened
    opened.close()


def title(frame: FrameLocator, text: str) -> None:
    expect(frame.locator("h1")).to_contain_text(text)


def test_the_navigation_leads_to_all_stores_and_each_to_its_page(page: Page) -> None:
    page.get_by_role("link", name="Retention").first.click()
    frame = console(page)
    title(frame, "All stores")
    frame.get_by_role("link", name=STORE_CONNECTION).first.click()
    title(frame, STORE_CONNECTION)
    assert page.url.endswith(STORE_VIEW)

    page.go_back()
    title(frame, "All stores")
    page.go_forward()
    title(frame, STORE_CONNECTION)
    page.reload()
    title(console(page), STORE_CONNECTION)


def test_each_view_has_an_address(running: ConsoleAirflow, page: Page) -> None:
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "console", lambda message: said.append(message.text) if "Content Security" in message.text else None
    )
    for view in VIEWS:
        page.goto(f"{running.address}{STORE_VIEW}{view}")
        page.reload()
        frame = console(page)
        title(frame, STORE_CONNECTION)
        expect(frame.locator(".tabs [aria-current=page]")).to_have_attribute("href", re.compile(f"{view}$"))
    assert [text for text in said if "sandbox" not in text] == []


def test_the_tab_of_a_dag_shows_its_store(running: ConsoleAirflow, page: Page) -> None:
    page.goto(f"{running.address}/dags/{RETENTION}")
    # The navigation has a link of the same name.
    page.locator(f"a[href$='{TAB}']").click()
    title(console(page), STORE_CONNECTION)
    assert page.url.endswith(f"/dags/{RETENTION}/{TAB}")


def test_the_tab_of_another_dag_says_that_it_manages_no_store(running: ConsoleAirflow, page: Page) -> None:
    page.goto(f"{running.address}/dags/{OTHERS_DAG}/{TAB}")
    expect(console(page).get_by_text(f"The DAG {OTHERS_DAG} manages no store.")).to_be_visible()


def test_theme_and_language_follow_airflow_s_at_once(running: ConsoleAirflow, page: Page) -> None:
    page.goto(f"{running.address}{CONSOLE}")
    frame = console(page)
    title(frame, "All stores")
    document = frame.locator("html")
    expect(document).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="User").click()
    page.get_by_role("menuitem", name="Appearance").hover()
    page.locator("[role=menuitem], [role=menuitemradio]").filter(has_text="Dark Mode").click()
    expect(document).to_have_attribute("data-theme", "dark")

    page.keyboard.press("Escape")
    page.get_by_role("button", name="User").click()
    page.get_by_role("menuitem", name="Select Language").click()
    page.get_by_role("dialog").get_by_role("combobox").click()
    page.get_by_role("option", name="简体中文").click()
    expect(document).to_have_attribute("lang", re.compile("^zh"))
    title(frame, "所有存储")


def test_a_run_opens_its_report(running: ConsoleAirflow, page: Page) -> None:
    page.goto(f"{running.address}{STORE_VIEW}")
    frame = console(page)
    row = frame.get_by_role("row").filter(has_text="done")
    row.get_by_role("link", name="Report").first.click()
    expect(frame.get_by_text("were archived, proven and deleted").first).to_be_visible()
    page.go_back()
    title(console(page), STORE_CONNECTION)


def test_a_run_opens_its_page_in_airflow(running: ConsoleAirflow, page: Page) -> None:
    page.goto(f"{running.address}{STORE_VIEW}")
    row = console(page).get_by_role("row").filter(has_text="done")
    row.get_by_role("link", name="DAG run").first.click()
    page.wait_for_url(re.compile(f"/dags/{RETENTION}/runs/"))
    page.get_by_text("clean_dependents").first.wait_for()


def test_a_dry_run_is_started_in_the_users_name_and_told(running: ConsoleAirflow, page: Page) -> None:
    page.goto(f"{running.address}{STORE_VIEW}")
    frame = console(page)
    frame.get_by_role("button", name="Clean up now").click()
    dialog = frame.get_by_role("dialog")
    expect(dialog).to_contain_text(RETENTION)
    # What deletes is not offered before a dry run has told what it would take.
    expect(dialog.get_by_role("button", name="Clean up", exact=True)).to_be_disabled()
    dialog.get_by_role("button", name="Start a dry run").click()
    expect(dialog).to_contain_text("This was a dry run: nothing was changed", timeout=RUN_MS)
    expect(dialog.get_by_role("button", name="Clean up", exact=True)).to_be_enabled()
    api = running.airflow.api()
    newest = api.get(f"/api/v2/dags/{RETENTION}/dagRuns?order_by=-id&limit=1")["dag_runs"][0]
    assert (newest["triggering_user_name"], newest["conf"]["dry_run"]) == ("uma", True)


def test_a_paused_dag_is_said(running: ConsoleAirflow, page: Page) -> None:
    page.goto(f"{running.address}{STORE_VIEW}")
    frame = console(page)
    frame.get_by_role("button", name="Forced cleanup").click()
    expect(frame.get_by_role("dialog")).to_contain_text(FORCED)
    expect(frame.get_by_role("dialog")).to_contain_text("paused")


@pytest.mark.parametrize("page", [{"name": "vera"}], indirect=True)
def test_who_may_only_look_has_no_button_and_no_right(running: ConsoleAirflow, page: Page) -> None:
    page.goto(f"{running.address}{STORE_VIEW}")
    frame = console(page)
    title(frame, STORE_CONNECTION)
    expect(frame.get_by_role("row").filter(has_text="done").first).to_be_visible()
    assert frame.locator(".actions button").count() == 0
    refused = frame.locator("body").evaluate(
        """(body, dag) => fetch(`/api/v2/dags/${dag}/dagRuns`, {method: "POST", body: "{}",
           headers: {"Content-Type": "application/json"}}).then((answer) => answer.status)""",
        RETENTION,
    )
    assert refused == 403


def test_nobody_is_shown_anything(running: ConsoleAirflow) -> None:
    stores = "/storage-engine/console/api/stores"
    for path in ("/storage-engine/console/", stores, f"{stores}/{STORE_CONNECTION}"):
        with pytest.raises(ApiError) as refused:
            RunsApi(running.address, None).get_once(path)
        assert refused.value.status == 401
    viewer = RunsApi.log_in(running.address, "vera", "vera")
    assert {row["store"] for row in viewer.get(stores)["stores"]} == {STORE_CONNECTION, *PAST}


@pytest.mark.parametrize("page", [{"name": "admin"}], indirect=True)
def test_no_view_is_hard_to_use(running: ConsoleAirflow, page: Page) -> None:
    for address in (CONSOLE, *(f"{STORE_VIEW}{view}" for view in VIEWS)):
        page.goto(f"{running.address}{address}")
        page.reload()
        console(page).locator("h1").wait_for()
        page.wait_for_load_state("networkidle")
        frame = next(one for one in page.frames if one.parent_frame is not None)
        frame.evaluate(Axe().axe_script)
        found = frame.evaluate("axe.run({resultTypes: ['violations']}).then((found) => found.violations)")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], address


@pytest.mark.parametrize("page", [{"width": NARROW}], indirect=True)
def test_every_view_fits_a_phone(running: ConsoleAirflow, page: Page) -> None:
    for address in (CONSOLE, *(f"{STORE_VIEW}{view}" for view in VIEWS)):
        page.goto(f"{running.address}{address}")
        page.reload()
        frame = console(page)
        frame.locator("h1").wait_for()
        page.wait_for_load_state("networkidle")
        inside, needed = frame.locator("html").evaluate("(page) => [innerWidth, page.scrollWidth]")
        assert needed <= inside <= NARROW, address
