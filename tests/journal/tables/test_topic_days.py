from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import event

from storage_engine.exceptions import JournalUnavailableError
from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.model.store import TopicDay


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(f"sqlite:///{tmp_path}/journal.db")


def test_segments_come_together_by_topic_and_day_the_largest_first(tmp_path: Path, journal: Journal) -> None:
    mine, other = (journal.add_store(place, "rocketmq").store_id for place in ("/s", "/other"))
    reader = JournalReader(f"sqlite:///{tmp_path}/journal.db")
    assert reader.topic_days(mine, 0, 100) == ()
    journal.save_topic_days(
        mine,
        {
            ("log", 0): [TopicDay("orders", 7, 10, 1), TopicDay("orders", 8, 20, 2), TopicDay("", 8, 1, 1)],
            ("log", 10): [TopicDay("orders", 8, 30, 3), TopicDay("payments", 9, 1 << 60, 4)],
            ("other", 0): [TopicDay("payments", 8, 51, 1)],
        },
    )
    journal.save_topic_days(other, {("log", 0): [TopicDay("orders", 8, 1000, 1)]})
    days_7_and_8 = (
        TopicDay("payments", 8, 51, 1),
        TopicDay("orders", 8, 50, 5),
        TopicDay("orders", 7, 10, 1),
        TopicDay("", 8, 1, 1),
    )
    assert reader.topic_days(mine, 7, 9) == days_7_and_8
    assert reader.topic_days(mine, 7, 9, limit=2) == days_7_and_8[:2]
    assert reader.topic_days(mine, 9, 100) == (TopicDay("payments", 9, 1 << 60, 4),)


def test_a_segment_that_is_recorded_again_replaces_what_it_was(tmp_path: Path, journal: Journal) -> None:
    store_id = journal.add_store("/s", "rocketmq").store_id
    reader = JournalReader(f"sqlite:///{tmp_path}/journal.db")
    journal.save_topic_days(store_id, {("log", 0): [TopicDay("a", 7, 10, 1), TopicDay("b", 7, 10, 1)]})
    for _ in range(2):
        journal.save_topic_days(store_id, {("log", 0): [TopicDay("a", 7, 12, 2)]})
        assert reader.topic_days(store_id, 0, 100) == (TopicDay("a", 7, 12, 2),)
    journal.save_topic_days(store_id, {("log", 0): []})
    assert reader.topic_days(store_id, 0, 100) == ()


def test_a_full_disk_keeps_its_reserve_for_what_deletions_need(tmp_path: Path, journal: Journal) -> None:
    """A page limit stands for the full disk: SQLite fails in the same way."""
    store_id = journal.add_store("/s", "rocketmq").store_id

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count=1")

    event.listen(journal._database._engine, "connect", limit)
    with pytest.raises(JournalUnavailableError, match="full"):
        journal.save_topic_days(store_id, {("log", 0): [TopicDay("t" * 100_000, 7, 12, 2)]})
    assert (tmp_path / "journal.db.reserve").exists()
