"""The rules of a broker in the journal: a row only where they changed."""

from __future__ import annotations

from pathlib import Path

from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.tables.rows import RulesRow
from tests.services.console_course import clock_at


def test_rules_are_told_from_the_moment_at_which_they_changed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal, reader = Journal(url), JournalReader(url)
    store_id = journal.add_store("/s", "rocketmq").store_id
    other_id = journal.add_store("/t", "rocketmq").store_id
    # A clock that was set back puts no rules before older ones.
    for at_ms, hours in ((10, 72), (20, 72), (30, 48), (5, 24)):
        with clock_at(at_ms):
            journal.save_rules(store_id, {"settings": {"hours": hours}, "windows": (4,)})
    rows = [
        RulesRow(at, {"settings": {"hours": h}, "windows": [4]}) for at, h in ((10, 72), (30, 48), (31, 24))
    ]
    assert reader.rules(store_id, 0, 100) == tuple(rows)
    assert reader.rules(store_id, 29, 31) == tuple(rows[:2])
    assert reader.rules(store_id, 30, 31) == (rows[1],)
    assert reader.rules(store_id, 50, 60) == (rows[2],)
    assert reader.rules(store_id, 0, 10) == ()
    assert reader.rules(other_id, 0, 100) == ()
