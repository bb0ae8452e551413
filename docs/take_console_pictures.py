"""Take the pictures of the console in docs/pictures: of a journal with a past of 90 days, without an Airflow.

It takes a minute, and needs Chromium. Look at the pictures before you commit them.

Usage: python -m docs.take_console_pictures
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from storage_engine.journal.reading.queries import JournalReader
from tests.console.page import Visit, chromium
from tests.services.console_journal import write_journal
from tests.services.console_server import Console, serve

PICTURES = Path(__file__).resolve().parent / "pictures"
NAMES = ("store_orders", "store_payments", "store_audit")
STORE = "#/store/store_orders"
SHOWN = {
    "console-stores": ("#/", "a.store-link", {}),
    "console-store": (f"{STORE}?range=30d", ".chart .mark", {}),
    "console-store-dark": (f"{STORE}?range=30d", ".chart .mark", {"theme": "dark", "language": "zh-CN"}),
    "console-forecast": (f"{STORE}/forecast", ".band-row", {}),
    "console-what-if": (f"{STORE}/what-if?s.fileReservedTime=168&factor=2", ".advice", {}),
    "console-quality": (f"{STORE}/quality", "button.day", {}),
}
"""By name: the view, what shows that it is there, and who looks."""
WIDTH, HEIGHT = 1_000, 850
_SETTLE_MS = 800


def take_all(directory: Path) -> None:
    """Write a journal and take every picture."""
    url = f"sqlite:///{directory}/journal.db"
    write_journal(url, NAMES)
    with serve(Console(JournalReader(url), NAMES)) as address, chromium() as browser:
        for name, (view, wait_for, options) in SHOWN.items():
            visit = Visit(browser, address, width=WIDTH, **options)
            page = visit.open(view, wait_for)
            height = min(HEIGHT, page.evaluate("document.documentElement.scrollHeight"))
            page.set_viewport_size({"width": WIDTH, "height": height})
            page.wait_for_timeout(_SETTLE_MS)
            page.screenshot(path=PICTURES / f"{name}.png")
            sys.stdout.write(f"{name}.png\n")
            visit.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        take_all(Path(made))
