"""What the console's page keeps while it goes on: a person's place and selection, and the right zone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from storage_engine.core.jsonable import to_jsonable
from tests.console.conftest import NOW_MS
from tests.console.page import DESK, PHONE, Visit
from tests.services.console_server import Console

pytestmark = [pytest.mark.again, pytest.mark.slow]

STORE = "#/store/store_orders"
RANGE = f"?from={NOW_MS - 30 * 86_400_000}&to={NOW_MS}"


def visit(browser: Browser, address: str, **options: Any) -> Visit:
    return Visit(browser, address, bypass_csp=True, **options)


def told(console: Console, name: str = "store_orders") -> dict[str, Any]:
    """Return a store's answer as it comes."""
    found: dict[str, Any] = to_jsonable(console._of_store(name, "", {}, None, NOW_MS))
    return found


def look_again(page: Page) -> None:
    """Let the page ask again at once, as when somebody comes back to it."""
    with page.expect_response(lambda it: it.url.endswith("/api/stores/store_orders")):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(200)


def test_a_late_answer_of_a_view_that_was_left_changes_nothing(
    browser: Browser, console: Console, address: str
) -> None:
    def late(*_: Any) -> Any:
        time.sleep(2)
        return told(console)

    console.extra["stores/store_orders"] = late
    one = visit(browser, address, timezone_id="America/New_York")
    page = one.page
    page.goto(f"{address}{STORE}")
    page.wait_for_selector(".waiting")
    with page.expect_response(lambda it: it.url.endswith("/api/stores/store_orders")):
        page.evaluate("location.hash = '#/'")
        page.wait_for_selector("a.store-link")
    one.fetched.clear()
    page.wait_for_timeout(500)
    assert page.get_by_label("Times in").input_value() == "America/New_York"
    assert [url for url in one.fetched if "/stores/store_orders" in url] == []
    one.close()


def test_one_store_is_not_shown_in_the_zone_of_another(
    browser: Browser, console: Console, address: str
) -> None:
    answer = told(console, "store_payments")
    answer["rules"]["windows"]["time_zone"] = "Europe/Berlin"

    def late(*_: Any) -> Any:
        time.sleep(1)
        return answer

    console.extra["stores/store_payments"] = late
    one = visit(browser, address, timezone_id="America/New_York")
    page = one.open(STORE, ".chart")
    assert page.get_by_label("Times in").input_value() == "Asia/Shanghai"
    page.evaluate("location.hash = '#/store/store_payments'")
    page.wait_for_selector("h1:has-text('store_payments')")
    assert page.get_by_label("Times in").input_value() == "America/New_York"
    page.wait_for_selector(".chart")
    assert page.get_by_label("Times in").input_value() == "Europe/Berlin"
    one.close()


def test_the_zone_that_is_named_is_the_one_that_is_shown(browser: Browser, address: str) -> None:
    one = visit(browser, address, timezone_id="America/New_York")
    page = one.open(f"{STORE}{RANGE}", ".chart .mark")
    page.evaluate("localStorage['storage-engine.zone'] = 'Europe/Berlin'")
    page.reload()
    page.wait_for_selector("th:has-text('2026-11-23 21:05')")
    zone = page.get_by_label("Times in")
    assert zone.input_value() == "Europe/Berlin"
    names = zone.locator("option").evaluate_all("all => all.map((one) => one.value)")
    assert names == ["Asia/Shanghai", "America/New_York", "UTC", "Europe/Berlin"]
    zone.select_option("Asia/Shanghai")
    page.wait_for_selector("th:has-text('2026-11-24 04:05')")
    one.close()


def test_what_is_scrolled_and_selected_stays_when_an_answer_comes(
    browser: Browser, console: Console, address: str
) -> None:
    one = visit(browser, address, width=PHONE)
    page = one.open(f"{STORE}{RANGE}", ".chart .mark")
    page.locator("summary", has_text="Segments and the reasons why they are there").click()
    page.evaluate(
        """() => { for (const one of document.querySelectorAll('.scroll')) one.scrollLeft = 40;
        const heads = [...document.querySelectorAll('th')];
        getSelection().selectAllChildren(heads.find((one) => one.innerText === 'cg_billing')); }"""
    )
    scrolled = "[...document.querySelectorAll('.scroll')].map((one) => one.scrollLeft)"
    before = page.evaluate(scrolled)
    assert max(before) == 40
    console.now_ms = NOW_MS + 300_000
    look_again(page)
    assert page.evaluate(scrolled) == before
    assert page.evaluate("getSelection().toString()").strip() == "cg_billing"
    # What changed is shown, and stays where it was.
    changed = told(console)
    changed["groups"][0]["lag_messages"] = 777
    console.extra["stores/store_orders"] = lambda *_: changed
    look_again(page)
    assert "777" in page.inner_text(".columns")
    assert page.evaluate(scrolled) == before
    assert page.locator("details[data-key=segments][open]").count() == 1
    one.close()


def test_a_closed_dialog_asks_no_more(browser: Browser, console: Console, address: str) -> None:
    console.run_state = "running"
    one = visit(browser, address)
    page = one.open(f"{STORE}{RANGE}", ".chart .mark")
    page.get_by_role("button", name="Clean up now").click()
    page.get_by_role("button", name="Start a dry run").click()
    page.get_by_role("dialog").get_by_text("running").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_timeout(1_700)
    one.fetched.clear()
    page.wait_for_timeout(3_500)
    assert [url for url in one.fetched if "dagRuns" in url] == []
    one.close()


def test_a_disk_of_less_than_a_gibibyte_is_computed(browser: Browser, console: Console, address: str) -> None:
    settings = to_jsonable(console._of_store("store_orders", "what-if", {}, None, NOW_MS))
    console.extra["stores/store_orders/what-if"] = lambda path, query, body: (
        {**settings, "disk_bytes": 300 << 20}
        if body is None
        else console._of_store("store_orders", "what-if", query, {**body, "disk_bytes": 1 << 40}, NOW_MS)
    )
    one = visit(browser, address)
    page = one.open(f"{STORE}/what-if", ".what-if .advice")
    assert page.get_by_label("Disk size").input_value() == "0.293"
    page.get_by_text("14 days computed").wait_for()
    one.close()


@pytest.mark.parametrize(
    ("fragment", "sign"),
    [
        ("?from=1&to=9000000000000000", ".chart .mark"),
        ("?from=-5&to=1e400", ".chart"),
        ("/quality?year=99999", "button.day"),
        ("/quality?year=-3", "button.day"),
        ("/quality?year=2026.5", "button.day"),
    ],
)
def test_a_mistyped_address_leads_to_what_there_is(
    browser: Browser, address: str, fragment: str, sign: str
) -> None:
    one = visit(browser, address)
    page = one.open(f"{STORE}{fragment}", sign)
    page.wait_for_timeout(500)
    assert page.locator(".notice button").count() == 0
    one.close()


def test_a_long_name_breaks(browser: Browser, console: Console, address: str) -> None:
    answer = told(console)
    for one in answer["ranges"]:
        one["log"] = "x" * 200
    console.extra["stores/store_orders"] = lambda *_: answer
    for width in (PHONE, DESK):
        seen = visit(browser, address, width=width)
        page = seen.open(f"{STORE}{RANGE}", ".strip")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        seen.close()


def test_forced_colours_hide_no_figure(browser: Browser, address: str) -> None:
    one = visit(browser, address, forced_colors="active")
    page = one.open(f"{STORE}{RANGE}", ".chart .mark")
    colour = "(name) => getComputedStyle(document.querySelector(name)).backgroundColor"
    shown = {name: page.evaluate(colour, name) for name in (".part-archived", ".part-both", ".part-due")}
    assert len(set(shown.values())) == 3, shown
    assert page.evaluate(colour, ".meter-bar i") != page.evaluate(colour, ".meter-bar")
    tabs = "[...document.querySelectorAll('.tabs a')].map((one) => getComputedStyle(one).color)"
    assert len(set(page.evaluate(tabs))) == 2
    # The area below the level is drawn so thin that the lines are seen through it.
    fill = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--level-fill')")
    assert fill
    probe = page.evaluate(
        "[...document.querySelectorAll('body > i')].map((one) => getComputedStyle(one).color)"
    )
    assert all(value not in ("rgb(0, 0, 0)", "rgb(255, 255, 255)") for value in probe)
    one.close()
