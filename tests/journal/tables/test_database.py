"""A journal of an older version gets what a new one has, also where who does it is killed half-way."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.journal.reading.answers import SegmentRow
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.tables.schema import SCHEMA_VERSION
from storage_engine.model.plan import PlanRequest
from tests.journal.older_journals import set_back
from tests.rounds import later

KILLED_UPGRADE = """
import os, sys
from storage_engine.journal.tables.migrations import MIGRATIONS
from storage_engine.journal.journal import Journal
last = max(MIGRATIONS)
migrate = MIGRATIONS[last]
def killed(connection):
    migrate(connection)
    os._exit(9)
MIGRATIONS[last] = killed
Journal(sys.argv[1])
"""


def indexes_and_tables(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    return {name for name in names if not name.startswith("sqlite_")}


@pytest.mark.parametrize("version", [1, *later(5, 8, 9), 10])
def test_an_older_journal_gets_what_a_new_one_has_after_a_kill_too(tmp_path: Path, version: int) -> None:
    path, url = tmp_path / "journal.db", f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    store_id = journal.add_store("/s", "rocketmq").store_id
    run = journal.begin_run(store_id, "r", PlanRequest())
    journal.record(run, Step.ARCHIVE, Phase.RESULT, [("log/7", {})])
    (event,) = journal.events(run)
    expected = indexes_and_tables(path)
    set_back(path, version)
    assert "storage_engine_cluster_leases" not in indexes_and_tables(path)
    done = subprocess.run([sys.executable, "-c", KILLED_UPGRADE, url], check=False, timeout=300)
    assert done.returncode == 9
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT version FROM storage_engine_schema").fetchone() == (version,)
    connection.close()
    Journal(url)
    assert indexes_and_tables(path) >= expected
    reader = JournalReader(url)
    assert reader.segments(store_id) == (SegmentRow("log", 7, "archived", "r", event.at_ms),)
    assert SCHEMA_VERSION == 11
