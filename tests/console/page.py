"""A browser on the console's page, for the tests of its views."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

DESK, TABLET, PHONE = 1440, 768, 318


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield Debian's Chromium."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "install chromium: the page is looked at in it"
    with sync_playwright() as playwright:
        # Root, as in containers, may not have Chromium's own sandbox; this page is ours.
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])


class Visit:
    """One visitor: what the page fetched, and what the browser complained about, is kept."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        theme, language = options.pop("theme", "light"), options.pop("language", "en")
        width = options.pop("width", DESK)
        self.address = address
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.context.add_init_script(
            f"localStorage.theme ??= {theme!r}; localStorage.i18nextLng ??= {language!r}"
        )
        self.fetched: list[str] = []
        self.said: list[str] = []
        self.page = self.new_page()

    def new_page(self) -> Page:
        page = self.context.new_page()
        page.on("request", lambda request: self.fetched.append(request.url))
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        return page

    def open(self, fragment: str, wait_for: str) -> Page:
        """Open a view, and wait for what shows that it is there."""
        self.page.goto(f"{self.address}{fragment}")
        self.page.wait_for_selector(wait_for)
        return self.page

    def close(self) -> None:
        self.context.close()
