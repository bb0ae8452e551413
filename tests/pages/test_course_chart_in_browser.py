"""The picture of a simulation in a real browser: nothing is cut off, nothing overlaps, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import combinations
from typing import Literal
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from storage_engine.model.simulation import RuleLevels
from storage_engine.pages.course_chart import course_svg
from tests.pages.test_course_chart import chart

pytestmark = [pytest.mark.again, pytest.mark.slow]

TEXTS = """() => [...document.querySelectorAll('svg text')].map(one => {
  const box = one.getBoundingClientRect();
  return {text: one.textContent, left: box.left, right: box.right, top: box.top, bottom: box.bottom,
          fill: getComputedStyle(one).fill, size: parseFloat(getComputedStyle(one).fontSize)};
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield found
        found.close()


def shown(browser: Browser, svg: str, scheme: Literal["light", "dark"]) -> Page:
    page = browser.new_page(viewport={"width": 640, "height": 600}, color_scheme=scheme)
    page.set_content(f"<style>body {{ margin: 0 }}</style>{svg}")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("days", [1, 4, 14, 90, 366])
@pytest.mark.parametrize("levels", [RuleLevels(70, 75, 85, 90, 85), RuleLevels(70, 71, 72, 73, 72)])
def test_no_word_is_cut_off_or_lies_on_another(
    browser: Browser, scheme: Literal["light", "dark"], days: int, levels: RuleLevels
) -> None:
    courses = chart("today", days=days, levels=levels), chart("changed", days=days, levels=levels)
    title = "14 days of store: fileReservedTime 48, disk 3.0 TiB, ingest 18.6 GiB a day, deleteWhen 02;14;18"
    page = shown(browser, course_svg(title, *courses, ZoneInfo("America/Argentina/Buenos_Aires")), scheme)
    texts = page.evaluate(TEXTS)
    assert len(texts) > 20
    assert [one["text"] for one in texts if one["left"] < 0 or one["right"] > 640] == []
    assert [
        (one["text"], other["text"])
        for one, other in combinations(texts, 2)
        if one["left"] < other["right"] - 1
        and other["left"] < one["right"] - 1
        and one["top"] < other["bottom"] - 4
        and other["top"] < one["bottom"] - 4
    ] == []
    light = [sum(map(int, one["fill"][4:-1].split(","))) > 3 * 150 for one in texts]
    assert all(light) if scheme == "dark" else not any(light)
    page.close()
