"""A journal with a past, written once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from storage_engine.journal.reading.queries import JournalReader
from tests.console.page import chromium
from tests.services.console_journal import write_journal
from tests.services.console_server import Console, serve

NOW_MS = 1_795_521_600_000
"""2026-11-24 12:00:00Z."""
NAMES = ("store_orders", "store_payments")


@pytest.fixture(scope="session")
def past_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Written by the first worker that needs it, while others wait; nobody changes it."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "past"
    directory.mkdir(exist_ok=True)
    path, unfinished = directory / "journal.db", directory / "unfinished.db"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished.unlink(missing_ok=True)
            write_journal(f"sqlite:///{unfinished}", NAMES, now_ms=NOW_MS, days=45, every_ms=1_800_000)
            unfinished.rename(path)
    return f"sqlite:///{path}"


@pytest.fixture
def past(past_url: str) -> JournalReader:
    return JournalReader(past_url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def console(past: JournalReader) -> Console:
    return Console(past, NAMES, now_ms=NOW_MS)


@pytest.fixture
def address(console: Console) -> Iterator[str]:
    with serve(console) as found:
        yield found
