"""The site in a real browser, opened from a disk: it fits a phone, fetches files alone, and searches."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from hatch_build import build_site
from tests.docs.code_blocks import ROOT

pytestmark = [pytest.mark.again, pytest.mark.slow]

WIDTHS = (320, 390, 800, 1280)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    build_site(ROOT, directory)
    return directory


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "install chromium: the site is looked at in it"
    with sync_playwright() as playwright:
        # Root, as in containers, may not have Chromium's own sandbox; these pages are ours.
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page()
    yield opened
    opened.close()


def test_every_page_fits_and_fetches_files_alone(page: Page, site: Path) -> None:
    fetched: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    for path in sorted(site.glob("*.html")):
        page.goto(path.as_uri())
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path.name}: {width}"
    assert [url for url in fetched if not url.startswith(site.as_uri())] == []
    assert said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "quickstart", "troubleshooting", "query"])
def test_everyone_can_read_it(browser: Browser, site: Path, scheme: str, name: str) -> None:
    page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto((site / f"{name}.html").as_uri())
    found = Axe().run(page).response["violations"]
    assert [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in found] == []
    page.close()


def test_the_list_of_pages_is_folded_on_a_phone(page: Page, site: Path) -> None:
    for width, shown in ((1280, True), (390, False)):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto((site / "query.html").as_uri())
        assert page.get_by_role("link", name="Architecture", exact=True).is_visible() is shown


def test_search_finds_a_section_from_a_disk(page: Page, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    search = page.get_by_role("searchbox")
    search.fill("quarantine undo")
    page.get_by_role("search").get_by_role("link", name="Retention: Undo").wait_for()
    search.press("Enter")
    page.wait_for_url(f"{site.as_uri()}/*.html#*")
    search.fill("no such word anywhere")
    page.get_by_text("Nothing found.").wait_for()
    search.press("Escape")
    assert page.get_by_role("search").get_by_role("list").count() == 0
