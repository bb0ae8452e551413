"""Every view of the console's page in a real browser: readable by everyone, in both languages and themes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route

from storage_engine.console.chart import ChartAnswer, chart
from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.plugins.app import static_files
from tests.console.conftest import NOW_MS
from tests.console.page import DESK, PHONE, TABLET, Visit
from tests.services.console_server import Console, serve

pytestmark = [pytest.mark.again, pytest.mark.slow]

STORE = "#/store/store_orders"
CHART_RANGE = f"?from={NOW_MS - 30 * 86_400_000}&to={NOW_MS}"
VIEWS = {
    "all": ("#/", "a.store-link"),
    "now": (f"{STORE}{CHART_RANGE}", ".chart .mark"),
    "forecast": (f"{STORE}/forecast", ".band-row"),
    "what-if": (f"{STORE}/what-if", ".what-if .advice"),
    "quality": (f"{STORE}/quality", "button.day"),
    "none": ("#/store/nobody", ".notice-urgent"),
}


def faults(page: Page) -> list[tuple[str, str, object]]:
    found = Axe().run(page).response["violations"]
    return [(rule["id"], node["html"][:200], node["any"][:1]) for rule in found for node in rule["nodes"]]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "zh-CN")])
def test_a_view_fits_is_readable_by_everyone_and_fetches_nothing_from_elsewhere(
    browser: Browser, address: str, view: str, theme: str, language: str
) -> None:
    # The check for accessibility is a script, which the page itself forbids.
    visit = Visit(browser, address, theme=theme, language=language, bypass_csp=True)
    page = visit.open(*VIEWS[view])
    page.wait_for_timeout(300)
    assert faults(page) == []
    for width in (PHONE, TABLET, DESK):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, width
    origin = address.split("/base/")[0]
    assert [url for url in visit.fetched if not url.startswith(f"{origin}/base/storage-engine/")] == []
    visit.close()


@pytest.mark.parametrize("view", [name for name in VIEWS if name != "none"])
def test_the_policy_forbids_nothing_that_the_page_does(browser: Browser, address: str, view: str) -> None:
    visit = Visit(browser, address)
    page = visit.open(*VIEWS[view])
    page.mouse.move(700, 500)
    page.wait_for_timeout(500)
    assert visit.said == []
    visit.close()


def marked(route: Route) -> None:
    """Answer with words in brackets instead of English ones."""
    text = static_files().files[route.request.url.rpartition("/")[2]].content.decode()
    text = re.sub(
        r'^(  \w+: )(".*"),$',
        lambda it: f"{it[1]}{json.dumps(f'⟦{json.loads(it[2])}⟧', ensure_ascii=False)},",
        text,
        flags=re.MULTILINE,
    )
    route.fulfill(body=text, content_type="text/javascript; charset=utf-8")


TEXTS = """() => [...document.querySelectorAll('body *')].flatMap((one) => [
  ...[...one.childNodes].filter((child) => child.nodeType === 3).map((child) => child.data),
  ...['aria-label', 'title', 'placeholder'].map((name) => one.getAttribute(name) ?? ''),
])"""


@pytest.mark.parametrize("view", VIEWS)
def test_every_word_that_is_shown_comes_from_the_words(browser: Browser, address: str, view: str) -> None:
    visit = Visit(browser, address)
    answers: list[str] = []
    visit.page.on("response", lambda it: answers.append(it.text()) if "/api/" in it.url else None)
    visit.page.route("**/words_en*.js", marked)
    page = visit.open(*VIEWS[view])
    page.wait_for_timeout(300)
    known = " ".join([*answers, "GiB KiB MiB TiB UTC Asia/Shanghai nobody"])
    left = []
    for text in page.evaluate(TEXTS):
        rest = text
        while "⟦" in rest and (shorter := re.sub(r"⟦[^⟦⟧]*⟧", " ", rest)) != rest:
            rest = shorter
        left += [word for word in re.findall(r"[A-Za-z_]{2,}", rest) if word not in known]
    # Months are Intl's own.
    months = "January February March April May June July August September October November December"
    assert {word for word in left if word not in months} == set()
    visit.close()


def test_two_hundred_stores_are_shown_at_once(browser: Browser, console: Console, address: str) -> None:
    row = next(iter(json.loads(json.dumps(rows(console)))))
    console.extra["stores"] = lambda *_: {
        "now_ms": NOW_MS,
        "problem": "",
        "stores": [{**row, "store": f"store_{at:03d}"} for at in range(200)],
    }
    visit = Visit(browser, address)
    page = visit.open("#/", "a.store-link")
    assert page.locator("a.store-link").count() == 200
    # The browser's own processor time for all rows: this machine may be busy.
    session = visit.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_seconds() -> float:
        found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        return float(found["ScriptDuration"] + found["LayoutDuration"] + found["RecalcStyleDuration"])

    before = busy_seconds()
    page.evaluate(
        """() => { const input = document.querySelector('input[type=search]'); input.value = 'store';
        input.dispatchEvent(new Event('input')); document.body.offsetHeight; }"""
    )
    took = busy_seconds() - before
    assert 0 < took < 0.5
    visit.close()


def test_the_time_to_full_says_what_is_not_filling_and_what_is_unknown_and_sorts_so(
    browser: Browser, console: Console, address: str
) -> None:
    row = rows(console)[0]
    told = [("unknown", None), ("filling", 7_200_000), ("not-filling", None), ("filling", 0)]
    console.extra["stores"] = lambda *_: {
        "now_ms": NOW_MS,
        "problem": "",
        "stores": [
            {**row, "store": f"store_{at}", "filling": filling, "time_to_full_ms": time_ms}
            for at, (filling, time_ms) in enumerate(told)
        ],
    }
    visit = Visit(browser, address)
    page = visit.open("#/", "a.store-link")
    page.get_by_role("button", name="Time to full").click()
    page.wait_for_selector("th[aria-sort=ascending]")
    cells = page.locator("td[data-label='Time to full']").all_inner_texts()
    assert cells == ["full now", "2 h", "not filling", "unknown"]
    page.get_by_role("button", name="Time to full").click()
    page.wait_for_selector("th[aria-sort=descending]")
    cells = page.locator("td[data-label='Time to full']").all_inner_texts()
    assert cells == ["not filling", "2 h", "full now", "unknown"]
    visit.close()


def test_a_mark_of_many_cleanups_says_how_many_and_leads_to_each(
    browser: Browser, console: Console, address: str
) -> None:
    def together(_path: str, query: Mapping[str, str], _body: object) -> ChartAnswer:
        found = chart(console.reader, "store_orders", int(query["start_ms"]), int(query["end_ms"]))
        shown = next(one for one in found.cleanups if one.at_ms > NOW_MS - 20 * 86_400_000)
        many = replace(shown, runs=37, until_ms=shown.at_ms + 86_400_000)
        return replace(found, cleanups=(many,), drift=())

    console.extra["stores/store_orders/chart"] = together
    visit = Visit(browser, address)
    page = visit.open(f"{STORE}{CHART_RANGE}", ".chart .mark")
    mark = page.locator(".chart .mark")
    assert "37 cleanups" in (mark.get_attribute("aria-label") or "")
    mark.focus()
    assert "Press to zoom in." in page.locator(".tip").inner_text()
    before = page.url
    mark.click()
    page.wait_for_url(lambda url: url != before)
    assert page.url.startswith(before.partition("#")[0])
    visit.close()


def rows(console: Console) -> list[dict[str, object]]:
    return list(to_jsonable(console.answer("stores", {}, None))["stores"])


def test_the_first_paint_comes_within_a_second(browser: Browser, address: str) -> None:
    paints = []
    for _ in range(5):
        visit = Visit(browser, address)
        page = visit.open("#/", "a.store-link")
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        visit.close()
    assert min(paints) < 1_000


def test_a_command_that_an_alarm_names_is_code_and_a_click_selects_it(browser: Browser, address: str) -> None:
    visit = Visit(browser, address)
    page = visit.open(f"{STORE}{CHART_RANGE}", "code.typed")
    page.click("code.typed")
    assert page.evaluate("getSelection().toString()") == "storage-engine archive"
    assert " allows: storage-engine archive archives them" in page.inner_text("p:has(code.typed)")
    visit.close()


def test_what_the_page_is_made_of_is_small() -> None:
    sizes = {name: len(file.content) for name, file in static_files().files.items()}
    assert sum(sizes.values()) < 320_000, sizes


def test_stores_are_searched_and_sorted_by_keys(browser: Browser, address: str) -> None:
    visit = Visit(browser, address)
    page = visit.open("#/", "a.store-link")
    assert page.locator("a.store-link").all_inner_texts() == ["store_orders", "store_payments"]
    page.keyboard.press("/")
    page.keyboard.type("pay")
    page.wait_for_function("document.querySelectorAll('a.store-link').length === 1")
    assert "search=pay" in page.url
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('store_payments')")
    page.go_back()
    page.wait_for_selector("a.store-link")
    assert page.locator("input[type=search]").input_value() == "pay"
    page.fill("input[type=search]", "nothing like it")
    page.get_by_role("button", name="Clear the search").click()
    page.get_by_role("button", name="Store").focus()
    for expected in ("ascending", "descending"):
        page.keyboard.press("Enter")
        page.wait_for_selector(f"th[aria-sort={expected}]")
    assert page.locator("a.store-link").all_inner_texts() == ["store_payments", "store_orders"]
    visit.close()


def test_a_stores_page_has_one_answer_to_when_its_disk_is_full(browser: Browser, address: str) -> None:
    visit = Visit(browser, address)
    page = visit.open(f"{STORE}/forecast", ".band-row")
    head = page.locator(".facts .fact").filter(has_text="Time to full").locator("dd").first.inner_text()
    row = page.locator(".band-row").filter(has_text="refuses").first
    assert head == row.locator(".band-text b").inner_text()
    visit.close()


def test_a_store_of_several_logs_has_their_own_offsets_and_the_worst_first(
    browser: Browser, console: Console, address: str
) -> None:
    told: dict[str, Any] = to_jsonable(console.answer("stores/store_orders", {}, None))
    one = told["ranges"][0]
    told["ranges"] = [
        {
            **one,
            "log": f"topic-{n}",
            "start_offset": 7,
            "end_offset": 9_007,
            "where": "lost" if n == 40 else "both",
        }
        for n in range(50)
    ]
    told |= {"logs": 50, "totals": [{"place": "both", "ranges": 49, "segments": 98, "size_bytes": 9 << 30}]}
    console.extra["stores/store_orders"] = lambda *_: told
    visit = Visit(browser, address)
    page = visit.open(STORE, ".strip")
    assert page.locator(".strip-name").first.inner_text() == "topic-40"
    assert "LOST: offsets 7 – 9,007 of topic-40" in page.inner_text(".losses")
    page.wait_for_selector("figure.chart")
    tops = [page.locator(one).first.bounding_box() for one in (".losses", ".facts", "figure.chart", ".strip")]
    assert None not in tops
    assert tops == sorted(tops, key=lambda box: box["y"])  # type: ignore[index]
    assert page.locator(".strip:visible").count() == 12
    page.get_by_text("38 more logs").click()
    assert page.locator(".strip:visible").count() == 50
    assert page.get_by_text("First unread offset").count() == 0
    visit.close()


def test_runs_without_outcome_are_recorded_and_those_of_a_day_and_dag_fold(
    browser: Browser, console: Console, address: str
) -> None:
    told: dict[str, Any] = to_jsonable(console.answer("stores/store_orders/runs", {}, None))
    cleanup = told["runs"][0]
    hour = {**cleanup, "outcome": None, "state": "open", "finished_at_ms": None, "has_report": False}
    # As the page says days: in the zone of the store, which is Asia/Shanghai.
    midnight_ms = NOW_MS - 20 * 3_600_000
    dag = "storage_flush_checkpoint__store_orders"
    hours = [
        {**hour, "id": 1_000 - at, "run_key": f"{dag}/{at}", "dag_id": dag, "run_id": str(at)}
        | {"created_at_ms": midnight_ms - (at - 1) * 3_600_000}
        for at in range(48)
    ]
    by_hand = {**hour, "id": 900, "run_key": "archive-1", "dag_id": None, "run_id": None}
    told["runs"] = [*hours[:20], cleanup, *hours[20:], by_hand]
    console.extra["stores/store_orders/runs"] = lambda _path, query, _body: {"runs": []} if query else told
    visit = Visit(browser, address)
    page = visit.open(STORE, "table:has-text('Begun') details")
    shown = page.locator("table:has-text('Begun') tbody tr")
    assert shown.count() == 5
    outcomes = [shown.nth(at).locator("td").first.inner_text() for at in range(5)]
    assert [text.split(" since")[0].strip() for text in outcomes] == [
        "recorded: 2 runs",
        "recorded: 24 runs",
        "done",
        "recorded: 22 runs",
        "recorded",
    ]
    assert "running" not in page.inner_text("body")
    shown.nth(1).locator("summary").click()
    assert shown.nth(1).locator("a:has-text('DAG run'):visible").count() == 24 + 1
    visit.close()


def test_errors_and_emptiness_say_what_to_do(browser: Browser, console: Console, tmp_path: Path) -> None:
    empty = Console(JournalReader(f"sqlite:///{tmp_path}/none.db"), ["store_orders"], now_ms=NOW_MS)
    with serve(empty) as at:
        visit = Visit(browser, at)
        page = visit.open("#/", ".notice-urgent")
        assert "use PostgreSQL" in page.inner_text(".notice-urgent")
        assert page.locator("td[data-label='Last run']").all_inner_texts() == ["unknown"]
        visit.close()
    with serve(Console(console.reader, [], now_ms=NOW_MS)) as at:
        visit = Visit(browser, at)
        assert "[storage_engine] lists the stores" in visit.open("#/", ".empty").inner_text(".empty")
        page = visit.open("?dag=tutorial", ".empty")
        assert "manages no store" in page.inner_text(".empty")
        visit.close()


def test_what_is_wrong_is_said_in_the_page_s_language(browser: Browser, console: Console) -> None:
    late = Console(console.reader, ["store_orders", "nobody"], now_ms=NOW_MS + 5 * 3_600_000)
    with serve(late) as at:
        visit = Visit(browser, at, language="zh-CN")
        page = visit.open("#/", "a.store-link")
        lines = page.locator(".urgent-line").all_inner_texts()
        assert any("已有 5 小时 无人检查此存储" in line for line in lines), lines
        assert any("日志库中没有此名称的存储" in line for line in lines), lines
        # What is lost stands above in a block of its own.
        beside_losses = ".findings:not(.losses)"
        assert "无人检查此存储" in visit.open(STORE, beside_losses).inner_text(beside_losses)
        page = visit.open(f"{STORE}/what-if", ".what-if-form")
        page.get_by_label("diskMaxUsedSpaceRatio").fill("500")
        page.wait_for_selector("[role=status]:has-text('diskMaxUsedSpaceRatio')")
        assert re.search("应在|至少为", page.inner_text(".what-if-result [role=status]"))
        visit.close()


def test_a_dag_shows_its_store(browser: Browser, address: str) -> None:
    visit = Visit(browser, address)
    page = visit.open("?dag=storage_retention__store_payments", ".tabs")
    assert page.inner_text("h1").startswith("store_payments")
    visit.close()


def test_theme_and_language_follow_airflow_at_once(browser: Browser, address: str) -> None:
    visit = Visit(browser, address)
    page = visit.open(f"{STORE}/forecast", ".band-row")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    # As Airflow's own document does; the event comes to all the others.
    other = visit.new_page()
    other.goto(f"{address}#/")
    other.evaluate("localStorage.theme = 'dark'; localStorage.i18nextLng = 'zh-CN'")
    page.wait_for_selector("text=预测")
    page.wait_for_function(f"{ground} === 'rgb(0, 0, 0)'")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    visit.close()


def test_the_browsers_language_counts_where_airflow_has_none(browser: Browser, address: str) -> None:
    context = browser.new_context(locale="zh-CN")
    page = context.new_page()
    page.goto(f"{address}#/")
    page.wait_for_selector("text=所有存储")
    context.close()


def test_one_zone_is_shown_and_can_be_chosen(browser: Browser, address: str) -> None:
    visit = Visit(browser, address, timezone_id="America/New_York")
    page = visit.open(f"{STORE}{CHART_RANGE}", ".chart .mark")
    zone = page.get_by_label("Times in")
    assert zone.input_value() == "Asia/Shanghai"
    page.wait_for_selector("th:has-text('2026-11-24 04:05')")
    zone.select_option("America/New_York")
    page.wait_for_selector("th:has-text('2026-11-23 15:05')")
    page.reload()
    page.wait_for_selector("th:has-text('2026-11-23 15:05')")
    visit.close()


def test_airflows_address_bar_tells_where_the_frame_is(browser: Browser, address: str) -> None:
    visit = Visit(browser, address)
    page = visit.page
    inner = "/base/storage-engine/console/"
    page.goto(f"{address.split('/base/')[0]}/base/plugin/retention{inner}")
    frame = page.frame_locator("iframe")
    frame.locator("a.store-link").first.click()
    frame.locator(".tabs").wait_for()
    page.wait_for_url(f"**/plugin/retention{inner}#/store/store_orders*")
    frame.get_by_role("link", name="Forecast").click()
    page.wait_for_url("**/store_orders/forecast")
    page.go_back()
    frame.locator(".chart").wait_for()
    began = time.monotonic()
    while "forecast" in page.url and time.monotonic() - began < 120:
        page.wait_for_timeout(50)
    assert "forecast" not in page.url
    visit.close()
