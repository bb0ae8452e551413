"""A journal with a past, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.journal.queries import JournalReader
from tests.services.console_journal import write_journal

NOW_MS = 1_795_521_600_000
"""2026-11-24 12:00:00Z."""
NAMES = ("store_orders", "store_payments")


@pytest.fixture(scope="session")
def past_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("past") / "journal.db"
    url = f"sqlite:///{path}"
    write_journal(url, NAMES, now_ms=NOW_MS, days=45, every_ms=1_800_000)
    return url


@pytest.fixture
def past(past_url: str) -> JournalReader:
    return JournalReader(past_url)
