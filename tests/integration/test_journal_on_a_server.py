"""Journals in PostgreSQL: they are brought up to date, and looked at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from sqlalchemy import NullPool, create_engine, inspect

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import JournalUnavailableError
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.journal.reading.answers import Incident, SegmentRow
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.run_rows import Deletion, deletions_after, journal_ends
from storage_engine.journal.tables.schema import SCHEMA_VERSION, events
from storage_engine.lake.coverage.coverage import ReleasedSpan
from storage_engine.model.plan import PlanRequest
from storage_engine.model.store import TopicDay
from storage_engine.plugins.journals import WebJournal
from storage_engine.retention.ranges.range_memory import (
    DeletedMemory,
    RangeMemory,
    keep_ranges,
    kept_ranges,
)
from tests.integration.postgres import Postgres, postgres
from tests.journal.tables.test_database import KILLED_UPGRADE

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.mark.again
def test_a_journal_of_version_8_is_brought_up_to_date_after_a_kill_too(database: Postgres) -> None:
    journal = Journal(database.uri)
    store_id = journal.add_store("/s", "rocketmq").store_id
    run = journal.begin_run(store_id, "r", PlanRequest())
    journal.record(run, Step.ARCHIVE, Phase.RESULT, [("log/7", {}), ("log/8", {})])
    journal.record(run, Step.RELEASE, Phase.RESULT, [("log/7", {})])
    journal.record(run, Step.RELEASE, Phase.ERROR, [("log/8", {"why": "a test"})])
    at_ms = [event.at_ms for event in journal.events(run)]
    engine = create_engine(database.uri, poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE storage_engine_topic_days")
        connection.exec_driver_sql("DROP TABLE storage_engine_rules")
        connection.exec_driver_sql("DROP INDEX storage_engine_runs_by_store")
        for column in ("validation", "lost_ranges"):
            connection.exec_driver_sql(f"ALTER TABLE storage_engine_reports DROP COLUMN {column}")
        connection.exec_driver_sql("DROP INDEX storage_engine_events_incidents")
        connection.exec_driver_sql("DROP INDEX storage_engine_events_of_segments")
        connection.exec_driver_sql("UPDATE storage_engine_schema SET version = 8")
    command = [sys.executable, "-c", KILLED_UPGRADE, database.uri]
    assert subprocess.run(command, check=False, timeout=300).returncode == 9
    with engine.begin() as connection:
        assert not inspect(connection).has_table("storage_engine_topic_days")
    Journal(database.uri)
    with engine.begin() as connection:
        assert inspect(connection).has_table("storage_engine_topic_days")
        assert inspect(connection).has_table("storage_engine_rules")
        names = {index["name"] for index in inspect(connection).get_indexes(events.name)}
        version = connection.exec_driver_sql("SELECT version FROM storage_engine_schema").scalar_one()
    assert names >= {"storage_engine_events_incidents", "storage_engine_events_of_segments"}
    assert version == SCHEMA_VERSION
    reader = JournalReader(database.uri)
    assert reader.segments(store_id) == (
        SegmentRow("log", 7, "deleted", "r", at_ms[2]),
        SegmentRow("log", 8, "archived", "r", at_ms[1]),
    )
    assert reader.segments(store_id, limit=1) == (SegmentRow("log", 7, "deleted", "r", at_ms[2]),)
    assert reader.incidents(store_id) == (Incident("r", "release", "log/8", at_ms[3], {"why": "a test"}),)


def test_bytes_by_topic_and_day_come_as_whole_numbers(database: Postgres) -> None:
    journal = Journal(database.uri)
    store_id = journal.add_store("/topics", "rocketmq").store_id
    held = [TopicDay("orders", 7, 1 << 40, 2), TopicDay("", 8, 1, 1)]
    for _ in range(2):
        journal.save_topic_days(store_id, {("log", 0): held, ("log", 10): held[:1]})
    found = JournalReader(database.uri).topic_days(store_id, 0, 100)
    assert found == (TopicDay("orders", 7, 1 << 41, 4), TopicDay("", 8, 1, 1))
    assert {type(one.size_bytes) for one in found} == {int}


def deletion(log: str, base_offset: int, **others: object) -> tuple[str, dict[str, object]]:
    payload = {"facts": {"size_bytes": 1 << 30}, "receipt_hash": None, "passage_detail": "waived by ann"}
    return f"{log}/{base_offset:020d}", {**payload, **others}


def test_what_runs_deleted_is_read_from_one_event_on(database: Postgres) -> None:
    journal, reader = Journal(database.uri), JournalReader(database.uri)
    mine, other = (journal.add_store(path, "rocketmq").store_id for path in ("/deleted", "/other"))
    far = 1 << 45
    first = journal.begin_run(mine, "first", PlanRequest())
    journal.record(first, Step.RELEASE, Phase.RESULT, [deletion("a/b", far, receipt_hash="x", lineage=2)])
    undone = journal.begin_run(mine, "undone", PlanRequest())
    journal.record(undone, Step.RELEASE, Phase.RESULT, [deletion("a/b", 0)])
    theirs = journal.begin_run(other, "theirs", PlanRequest())
    journal.record(theirs, Step.RELEASE, Phase.RESULT, [deletion("a/b", 0)])

    def found(after: int = 0) -> tuple[Deletion, ...]:
        return reader.read(lambda connection: deletions_after(connection, mine, after))

    gone = Deletion("a/b", far, far + (1 << 30), "", 2)
    assert found() == (gone, Deletion("a/b", 0, 1 << 30, "waived by ann", 0))
    ends = reader.read(lambda connection: journal_ends(connection, mine, clock_ms()))
    assert ends.last_undo == 0
    journal.record(undone, Step.UNDO, Phase.RESULT, [("", {})])
    assert found() == (gone,)
    later = reader.read(lambda connection: journal_ends(connection, mine, clock_ms() + 3_600_000))
    assert later.known_id == later.last_undo > ends.known_id
    assert found(later.known_id) == ()
    journal.record(first, Step.RELEASE, Phase.RESULT, [deletion("c", 5, end=9)])
    assert found(later.known_id) == (Deletion("c", 5, 9, "waived by ann", 0),)

    assert kept_ranges(database.uri, mine) == RangeMemory()
    spans = (ReleasedSpan("a/b", far, far + 5, lineage=2),)
    memory = RangeMemory(deleted=DeletedMemory(1, later.known_id, spans))
    for _ in range(2):
        keep_ranges(database.uri, mine, memory)
    assert kept_ranges(database.uri, mine) == memory
    assert kept_ranges(database.uri, other) == RangeMemory()


def test_a_question_that_takes_too_long_is_given_up(database: Postgres) -> None:
    Journal(database.uri)
    journal = WebJournal(database.uri, answer_seconds=1)
    with pytest.raises(JournalUnavailableError, match=r"statement timeout|an answer within 1 seconds"):
        journal.read(lambda connection: connection.exec_driver_sql("SELECT pg_sleep(60)").all())
