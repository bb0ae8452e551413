"""What a person does on the console's page: zooms, reads by key, asks what if, and starts runs."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page

from tests.console.conftest import NOW_MS
from tests.console.page import Visit
from tests.services.console_server import Console, serve

pytestmark = [pytest.mark.again, pytest.mark.slow]

DAY_MS = 86_400_000
STORE = "#/store/store_orders"
RANGE = f"?from={NOW_MS - 30 * DAY_MS}&to={NOW_MS}"


@pytest.fixture
def visit(browser: Browser, console: Console) -> Iterator[Visit]:
    with serve(console) as address:
        # The tests themselves evaluate expressions; test_page.py holds the page against its policy.
        made = Visit(browser, address, bypass_csp=True)
        yield made
        made.close()


def shown_days(page: Page) -> float:
    """Return how many days the chart's address names."""
    query = parse_qs(urlsplit(page.url).fragment.partition("?")[2])
    return (int(query["to"][0]) - int(query["from"][0])) / DAY_MS


def open_chart(visit: Visit) -> Page:
    return visit.open(f"{STORE}{RANGE}", ".chart .mark")


def test_a_drag_zooms_and_the_address_leads_back_there(visit: Visit) -> None:
    page = open_chart(visit)
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, middle, steps=4)
    page.mouse.up()
    page.wait_for_function("!location.hash.includes('range=')")
    assert shown_days(page) == pytest.approx(7.5, abs=0.3)
    linked = page.url
    page.reload()
    page.wait_for_selector(".chart .mark")
    assert page.url == linked


def test_wheel_buttons_and_keys_zoom_and_move(visit: Visit) -> None:
    page = open_chart(visit)
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 200, box["y"] + 40)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_timeout(100)
    assert shown_days(page) == pytest.approx(25, abs=0.3)
    # A plain wheel scrolls the page.
    page.mouse.wheel(0, 100)
    page.wait_for_timeout(100)
    assert shown_days(page) == pytest.approx(25, abs=0.3)
    page.locator(".plot-area").focus()
    page.keyboard.press("+")
    assert shown_days(page) == pytest.approx(12.5, abs=0.3)
    before = page.url
    page.keyboard.press("PageUp")
    assert page.url != before
    assert shown_days(page) == pytest.approx(12.5, abs=0.3)
    page.get_by_role("button", name="90 d").click()
    assert "range=90d" in page.url
    assert page.get_by_role("button", name="90 d").get_attribute("aria-pressed") == "true"


def test_the_chart_is_read_by_arrow_keys_and_as_a_table(visit: Visit) -> None:
    page = open_chart(visit)
    page.locator(".plot-area").focus()
    page.keyboard.press("Home")
    first = page.inner_text(".reading-time")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert page.inner_text(".reading-time") > first
    page.wait_for_function(
        "document.querySelector('.chart [aria-live]').textContent.includes('Retention time')"
    )
    assert page.inner_text(".reading-time") in page.inner_text(".chart [aria-live]")
    page.get_by_text("Data as a table").click()
    page.wait_for_selector(".chart-table tbody tr")
    assert page.locator(".chart-table tbody tr").count() > 500
    assert "Archive lag" in page.inner_text(".chart-table thead")


def test_a_cleanup_says_its_cause_and_what_went_and_opens_its_report(visit: Visit) -> None:
    page = open_chart(visit)
    page.locator(".mark[tabindex='0']").focus()
    tip = page.locator(".tip")
    assert "expired" in tip.inner_text()
    assert "9 segments deleted, 9 GiB" in tip.inner_text()
    texts = {tip.inner_text()}
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
        texts.add(tip.inner_text())
    assert any("disk too full" in text and "26 segments" in text for text in texts)
    page.keyboard.press("Enter")
    page.wait_for_url("**/storage-engine/report?*")
    page.go_back()
    page.wait_for_selector(".chart .mark")


def test_what_is_lost_due_and_archived_is_told(visit: Visit) -> None:
    page = open_chart(visit)
    strip = page.locator(".strip").first
    for place in ("archived", "both", "due", "local", "lost", "accepted"):
        assert strip.locator(f".part-{place}").count() > 0, place
    lost = strip.locator(".part-lost").bounding_box()
    assert lost is not None
    assert lost["width"] >= 50
    page.locator("summary", has_text="Segments and the reasons why they are there").click()
    table = page.inner_text("table:has-text('From offset')")
    assert "expired" in table
    assert "missing deleted by a run" in table
    assert "Give a reason" not in table


@pytest.mark.parametrize(
    ("view", "below"), [("", ".chart"), ("/forecast", ".band-row"), ("/quality", "button.day")]
)
def test_what_is_lost_stands_on_top_of_each_view_of_its_store(visit: Visit, view: str, below: str) -> None:
    page = visit.open(f"{STORE}{view}", below)
    loss = page.locator(".notice:has-text('LOST')")
    assert "neither on disk nor in a lake" in loss.inner_text()
    tops = [page.locator(one).first.bounding_box() for one in (".losses", ".facts", ".tabs", below)]
    places = [box["y"] for box in tops if box is not None]
    assert places == sorted(places)
    assert len(places) == 4


def test_a_loss_that_somebody_accepted_is_no_alarm_and_says_who_and_why(visit: Visit) -> None:
    page = open_chart(visit)
    accepted = page.locator(".strip").first.locator(".part-accepted")
    assert accepted.inner_text().startswith("accepted loss")
    assert "accepted by ann (the disk burnt" in str(accepted.get_attribute("title"))
    box = accepted.locator(".part-word").bounding_box()
    outer = accepted.bounding_box()
    assert box is not None
    assert outer is not None
    assert box["width"] <= outer["width"]
    # The one that nobody accepted is the only alarm.
    assert page.locator(".notice:has-text('LOST')").count() == 1
    assert page.locator(".strip-legend .is-lost").inner_text().startswith("LOST 1 range")
    page.locator("summary", has_text="Segments and the reasons why they are there").click()
    row = page.locator("table:has-text('From offset') tr", has_text="accepted loss").inner_text()
    assert "accepted as lost" in row
    assert "accepted by ann" in row


def test_another_setting_draws_another_course_and_advises(visit: Visit) -> None:
    page = visit.open(f"{STORE}/what-if", ".what-if .advice")
    figures = page.locator(".what-if-result table").last
    assert "worse" not in figures.inner_text()
    page.get_by_label("fileReservedTime").fill("168")
    page.wait_for_selector("td:has-text('worse')")
    assert "s.fileReservedTime=168" in page.url
    assert "Today: 72 h" in page.inner_text("[data-setting=fileReservedTime]")
    assert "does" in page.inner_text(".advice") or "don't fit" in page.inner_text(".advice")
    linked = page.url
    page.reload()
    page.wait_for_selector("td:has-text('worse')")
    assert page.url == linked
    assert page.get_by_label("fileReservedTime").input_value() == "168"
    page.get_by_role("button", name="Back to today's settings").click()
    page.wait_for_function("!document.querySelector('.what-if-result').innerText.includes('worse')")
    page.get_by_label("fileReservedTime").fill("")
    page.wait_for_selector("text=fileReservedTime: type a value.")
    page.get_by_label("deleteWhen").fill("4x")
    page.wait_for_selector("[role=status]:has-text('deleteWhen')")


def test_a_day_opens_its_reports(visit: Visit) -> None:
    page = visit.open(f"{STORE}/quality", "button.day")
    assert "gap or a loss" in page.inner_text(".view .notice-urgent")
    page.locator("button.day-failed").last.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_selector(".day-panel table")
    assert "day=2026-" in page.url
    page.locator(".day-panel a", has_text="Report").first.click()
    page.wait_for_url("**/storage-engine/report?*")


def test_a_cleanup_is_tried_before_it_is_done(visit: Visit, console: Console) -> None:
    page = open_chart(visit)
    page.get_by_role("button", name="Forced cleanup").click()
    dialog = page.get_by_role("dialog")
    assert "storage_forced_cleanup__store_orders" in dialog.inner_text()
    real = dialog.get_by_role("button", name="Delete by force")
    assert real.is_disabled()
    dialog.get_by_role("button", name="Start a dry run").click()
    dialog.get_by_text("Give a reason").wait_for()
    assert console.posted == []
    dialog.get_by_label("Reason").fill("the disk is full")
    dialog.get_by_label("Number of segments").fill("2")
    dialog.get_by_role("button", name="Start a dry run").click()
    dialog.get_by_text("2 segments would be deleted").wait_for()
    asked = {"segments": 2, "target_used_percent": None, "reason": "the disk is full"}
    path = "dags/storage_forced_cleanup__store_orders/dagRuns"
    assert console.posted == [(path, {"logical_date": None, "conf": {**asked, "dry_run": True}})]
    assert '"dry_run": false' in dialog.inner_text()
    real.click()
    dialog.get_by_text("Starting").wait_for(state="hidden")
    dialog.get_by_text("Open the report").wait_for()
    assert console.posted[1:] == [(path, {"logical_date": None, "conf": {**asked, "dry_run": False}})]
    # Other params were not tried yet.
    dialog.get_by_label("Number of segments").fill("3")
    assert real.is_disabled()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0


def test_what_is_typed_while_a_dry_run_goes_was_not_tried(visit: Visit, console: Console) -> None:
    console.run_state = "running"
    page = open_chart(visit)
    page.get_by_role("button", name="Forced cleanup").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("the disk is full")
    dialog.get_by_label("Number of segments").fill("1")
    dialog.get_by_role("button", name="Start a dry run").click()
    dialog.get_by_text("running").wait_for()
    dialog.get_by_label("Number of segments").fill("500")
    console.run_state = "success"
    dialog.get_by_text("Open the report").wait_for()
    assert dialog.get_by_role("button", name="Delete by force").is_disabled()
    assert '"dry_run": true' in dialog.inner_text()
    # As it was tried it may be done.
    dialog.get_by_role("button", name="Start a dry run").click()
    dialog.get_by_text("Starting").wait_for(state="hidden")
    dialog.get_by_text("Open the report").wait_for()
    assert dialog.get_by_role("button", name="Delete by force").is_enabled()
    assert [body["conf"]["segments"] for _, body in console.posted] == [1, 500]


def test_who_may_not_run_sees_no_button_and_a_paused_dag_is_said(visit: Visit, console: Console) -> None:
    console.is_paused = True
    page = open_chart(visit)
    page.get_by_role("button", name="Clean up now").click()
    page.get_by_text("storage_retention__store_orders is paused").wait_for()
    console.may_run = False
    page.reload()
    page.wait_for_selector(".chart .mark")
    assert page.locator(".actions button").count() == 0


def test_it_goes_on_while_it_is_open(visit: Visit, console: Console) -> None:
    page = visit.open("#/", "a.store-link")
    assert "store_orders" in page.inner_text("table")
    console.names = ["store_payments"]
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_function("document.querySelectorAll('a.store-link').length === 1")
