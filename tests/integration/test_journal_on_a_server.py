"""Journals in PostgreSQL: they are brought up to date, and looked at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from sqlalchemy import NullPool, create_engine, inspect

from storage_engine.journal.answers import Incident, SegmentRow
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.journal.queries import JournalReader
from storage_engine.journal.schema import SCHEMA_VERSION, events
from storage_engine.model.plan import PlanRequest
from storage_engine.model.topic_days import TopicDay
from tests.integration.postgres import Postgres, postgres
from tests.journal.test_migrations import KILLED_UPGRADE

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


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
