"""Every page in a real browser: no wider than a phone, nothing fetched, no error, readable by everyone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from storage_engine.model.plan import Cause, Reason, Trigger, Urgency
from storage_engine.model.report.validation import Status
from storage_engine.pages.report import render_page, report_html
from storage_engine.pages.summary import summary_html
from storage_engine.retention.report.report import Fate, Outcome, StepReport
from storage_engine.retention.store.managed_store import DATA_DOCS, PAGE
from tests.pages import test_lakes as keep
from tests.pages.reports import DONE, NOTHING, plain, segment, unread, validation
from tests.quality.cases import make_case, open_case

pytestmark = [pytest.mark.again, pytest.mark.slow]

EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))
LONG = "%RETRY%cg_" + "g" * 245
PHONES = (318, 390)
DESK = 1280

ANY_HOUR = (Trigger(Cause.TIME_UP, Urgency.ORDINARY, f"12 h is in deleteWhen {EVERY_HOUR}"),)
BAD = {
    "outcome": Outcome.FAILED,
    "validation": validation(Status.FAILURE),
    "steps": (StepReport("release", False, 1, f"GateRefusedError: /{'x' * 300}: refused"),),
}
LOSS = {
    "unread": unread(group=LONG),
    "unread_lines": (f"x; to get them: storage-engine export --topic {LONG}",),
}
STAY = tuple(segment(number, Fate.KEPT, Reason.NOT_EXPIRED) for number in range(300))
HTML = {
    "done": report_html(plain(triggers=ANY_HOUR), links={"Data Docs": "great_expectations/index.html"}),
    "loss": report_html(plain(**LOSS)),
    "failed": report_html(plain(**BAD, store="<b>" + "s" * 90)),
    "dry-run": report_html(plain(**LOSS, outcome=Outcome.DRY_RUN)),
    "nothing": report_html(plain(replace(NOTHING, segments=STAY))),
    "by-hand": render_page(None, DONE.validation, links={}),
    "keep": keep.PAGE,
    "mail": summary_html(plain(**BAD, **LOSS), link="https://example.org/report"),
}


BROKEN_WORDS = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), broken = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode())
    for (const word of node.data.matchAll(/(?<!\\S)[A-Za-z_]{2,20}(?!\\S)/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
  return broken;
}"""


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a validation that Great Expectations has made."""
    base = tmp_path_factory.mktemp("case")
    make_case(base)
    case = open_case(base)
    case.validate()
    return case.output


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "install chromium: the pages are looked at in it"
    with sync_playwright() as playwright:
        # Root, as in containers, may not have Chromium's own sandbox; these pages are ours.
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])


@pytest.fixture(params=["light", "dark"])
def open_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    # The check for accessibility is a script, which the pages themselves forbid.
    context = browser.new_context(color_scheme=request.param, bypass_csp=True)
    yield context.new_page()
    context.close()


def look(page: Page, path: Path) -> tuple[list[str], list[str]]:
    """Open a page with all that folds; return what it fetched, and what the browser complained about."""
    fetched: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(path.as_uri())
    page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
    return fetched, said


def is_too_wide(page: Page, width: int) -> Any:
    page.set_viewport_size({"width": width, "height": 800})
    return page.evaluate("document.documentElement.scrollWidth") > width


@pytest.mark.parametrize("name", HTML)
def test_a_page_fits_fetches_nothing_and_is_readable_by_everyone(
    open_page: Page, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "page.html"
    path.write_text(HTML[name])
    assert look(open_page, path) == ([path.as_uri()], [])
    assert [width for width in (*PHONES, DESK) if is_too_wide(open_page, width)] == []
    found = Axe().run(open_page).response["violations"]
    assert [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in found] == []


def test_scripts_are_forbidden_by_the_page_itself(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(HTML["done"].replace("</main>", "<script>document.title = 'ran'</script></main>"))
    page = browser.new_page()
    _, said = look(page, path)
    assert page.title() == "orders · Done"
    assert "Content Security Policy" in said[0]


def test_data_docs_fit_a_phone_and_break_no_word(open_page: Page, docs: Path) -> None:
    pages = [docs / PAGE, *sorted((docs / DATA_DOCS).parent.rglob("*.html"))]
    assert len(pages) > 15
    fetched, said = look(open_page, pages[0])
    for path in pages:
        open_page.goto(path.as_uri())
        assert [width for width in (*PHONES, DESK) if is_too_wide(open_page, width)] == [], path
        is_too_wide(open_page, PHONES[0])
        assert open_page.evaluate(BROKEN_WORDS) == [], path
    assert set(fetched) == {path.as_uri() for path in pages}
    assert said == []
