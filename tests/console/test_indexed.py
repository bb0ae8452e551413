"""Each question of the console goes by an index; and none of its answers has a secret."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert

from storage_engine.console.chart import chart
from storage_engine.console.forecast import question_of, store_forecast, what_if, what_if_settings
from storage_engine.console.store import one_store, runs_page
from storage_engine.console.stores import all_stores, validation_calendar
from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.journal import Journal, put_levels
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.tables.schema import samples
from storage_engine.model.disk import DiskUsage
from tests.console.conftest import NAMES, NOW_MS
from tests.rounds import later

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NAME = NAMES[0]
ANSWERS: dict[str, Callable[[JournalReader], Any]] = {
    "stores": lambda reader: all_stores(reader, NAMES, NOW_MS),
    "store": lambda reader: one_store(reader, NAME, NOW_MS),
    "runs": lambda reader: runs_page(reader, NAME, 60),
    "chart of a day": lambda reader: chart(reader, NAME, NOW_MS - DAY_MS, NOW_MS),
    "chart of all": lambda reader: chart(reader, NAME, 0, NOW_MS),
    "forecast": lambda reader: store_forecast(reader, NAME, NOW_MS),
    "calendar": lambda reader: validation_calendar(reader, NAME, 2026),
    "what-if settings": lambda reader: what_if_settings(reader, NAME, NOW_MS),
    "what-if": lambda reader: what_if(reader, NAME, question_of({}), NOW_MS),
}
SMALL = {"storage_engine_schema"}
"""Tables of one row."""


@pytest.mark.parametrize("answer", ANSWERS)
def test_no_answer_scans_a_table(past: JournalReader, past_url: str, answer: str) -> None:
    asked: list[tuple[str, Any]] = []

    def note(*told: Any) -> None:
        asked.append((told[2], told[3]))

    event.listen(past._engine, "before_cursor_execute", note)
    ANSWERS[answer](past)
    assert len(asked) > 2
    connection = sqlite3.connect(past_url.removeprefix("sqlite:///"))
    for statement, values in asked:
        if statement.lstrip().upper().startswith("PRAGMA"):
            continue
        steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        tables = {step.split()[1] for step in steps if step.startswith("SCAN")}
        scanned = {name for name in tables if name not in SMALL} & every_name(connection, statement)
        assert not scanned, f"{steps}\n{statement}"
    connection.close()


def every_name(connection: sqlite3.Connection, statement: str) -> set[str]:
    """Return the journal's tables and what a statement calls them."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    words = statement.replace(",", " ").split()
    aliases = {
        words[at + 2].strip('"')
        for at, word in enumerate(words[:-2])
        if word in tables and words[at + 1].upper() == "AS"
    }
    return tables | aliases


def test_no_answer_has_a_secret_or_settings_that_nobody_can_change(past: JournalReader) -> None:
    text = json.dumps([to_jsonable(answer(past)) for answer in ANSWERS.values()])
    for word in ("password", "secret", "accessKey", '"body"', "journal_url", "data/x.parquet"):
        assert word not in text


@pytest.mark.parametrize("answer", ["stores", *later("store", "forecast", "runs", "what-if settings")])
def test_ten_times_as_many_samples_are_no_more_work(tmp_path: Path, answer: str) -> None:
    """A search by the store alone, which a plan of the database doesn't tell from one that ends at once."""
    few, many = (
        steps_of(tmp_path / str(every_ms), every_ms, ANSWERS[answer]) for every_ms in (HOUR_MS, HOUR_MS // 10)
    )
    assert 0 < many < 1.5 * few + 20


def steps_of(path: Path, every_ms: int, answer: Callable[[JournalReader], Any]) -> int:
    """Return how many hundreds of steps SQLite takes to answer, with samples of 60 days."""
    url = f"sqlite:///{path}"
    journal = Journal(url)
    store_id = journal.add_store("/s", "rocketmq", name=NAME).store_id
    moments = range(NOW_MS - 60 * DAY_MS, NOW_MS, every_ms)
    rows = [
        {
            "store_id": store_id, "levels": [], "at_ms": at_ms, "min_offset": at_ms // 9, "max_offset": at_ms,
            "oldest_message_ms": at_ms - DAY_MS, "archive_lag_bytes": 1,
        }
        for at_ms in moments
    ]  # fmt: skip
    levels = {at_ms: [DiskUsage("/s", 50, 1 << 40, 1 << 39)] for at_ms in moments}

    def write(connection: Connection) -> None:
        connection.execute(insert(samples), rows)
        put_levels(connection, store_id, levels)

    journal._database.write(write)
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    reader = JournalReader(url)
    event.listen(reader._engine, "connect", lambda connection, _: connection.set_progress_handler(step, 100))
    answer(reader)
    return count
