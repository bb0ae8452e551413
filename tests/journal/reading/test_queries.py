"""What the journal answers to who only looks, of runs that really were."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, delete

from storage_engine import cycle
from storage_engine.cli.output.lag import in_process_lag
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError, JournalUnavailableError
from storage_engine.journal.journal import Extent, Journal
from storage_engine.journal.reading.queries import JournalReader, Moment, disk_ids, read_levels, read_moments
from storage_engine.journal.records import REPORT_VERSION
from storage_engine.journal.tables.schema import reports
from storage_engine.model.disk import DiskUsage
from storage_engine.model.lag import ArchiveLag
from storage_engine.model.settings.policy import Policy
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.report.report import Outcome
from storage_engine.retention.steps import monitor
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.journal.older_journals import set_back
from tests.retention.conftest import MANUAL

MINUTE_MS = 60_000
HEAVY = ("pyarrow", "pyiceberg", "pyspark", "great_expectations", "numpy", "pandas", "numba", "airflow")

Managed = Callable[..., ManagedStore]


@pytest.fixture
def reader(tmp_path: Path) -> JournalReader:
    return JournalReader(f"sqlite:///{tmp_path}/journal.db")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(f"sqlite:///{tmp_path}/journal.db")


@pytest.mark.again
def test_a_run_is_told_with_its_report_and_segments(managed: Managed) -> None:
    store = managed(overrides={"deleteWhen": "99"})
    with opened(store) as once:
        cleanup = cycle.Cleanup(once, "r", MANUAL)
        finished = [step(cleanup) for step in cycle.CLEANUP if step is not cycle.validate][-1]
        monitor(once, "m")
    reader = JournalReader(store.journal_url)
    (row,) = reader.stores()
    assert (row.real_path, row.name, row.broker) == (store.real_root, None, "rocketmq")
    (summary,) = reader.summaries(None, clock_ms())
    assert [level.used_percent for level in summary.levels if level.used_percent is not None]
    assert summary.oldest_message_ms is not None

    (run,) = reader.runs(row.store_id)
    assert (run.run_key, run.outcome, run.causes) == ("r", Outcome.DONE.value, ("manual",))
    assert (run.deleted_segments, run.freed_bytes) == (7, 7 << 20)
    report = reader.report(row.store_id, "r")
    assert report is not None
    assert report.version == REPORT_VERSION
    assert report.report == json.loads(Path(finished.report_json).read_text())
    assert reader.report(row.store_id, "another") is None

    segments = reader.segments(row.store_id)
    assert [(one.base_offset >> 20, one.state) for one in segments] == [
        (number, "deleted") for number in reversed(range(7))
    ]
    found = reader.findings(row.store_id)
    assert found is not None
    assert (found.found["crashed"], found.found["lag_error"]) == (False, "")
    assert found.found["page_errors"] == []
    assert found.found["start"]["disk_bytes"] > 0
    (rules,) = reader.rules(row.store_id, 0, found.at_ms + 1)
    assert rules.rules["settings"]["deleteWhen"] == "99"
    assert rules.rules["windows"]["hours"] == [99]
    assert rules.rules["levels"]["cleans_percent"] == 75
    kinds = [one["kind"] for one in found.found["doctor"]]
    assert "no-broker-conf" in kinds
    assert "unreadable" not in kinds


def test_groups_come_with_what_they_lose_first(managed: Managed) -> None:
    store = managed()
    with opened(store) as once:
        monitor(once, "m")
    reader = JournalReader(store.journal_url)
    rows = {row.consumer_group: row for row in reader.groups(reader.stores()[0].store_id)}
    seen = preview_lag(store)
    assert rows.keys() == {row["group"] for row in seen}
    for name, row in rows.items():
        of_group = [one for one in seen if one["group"] == name]
        known = [one["lag_messages"] for one in of_group if one["lag_messages"] is not None]
        assert (row.lag_messages, row.unknown_queues) == (sum(known), len(of_group) - len(known))
        unread = [one["next_physical_offset"] for one in of_group if one["next_physical_offset"] is not None]
        assert row.first_unread_offset == min(unread, default=None)
    assert any(row.lag_messages for row in rows.values())


def preview_lag(store: ManagedStore) -> list[dict[str, Any]]:
    return [row for table in in_process_lag(store, ()) for row in table.to_pylist()]


def test_levels_and_extents_come_by_time(journal: Journal, reader: JournalReader) -> None:
    store = journal.add_store("/s", "rocketmq")
    other = journal.add_store("/other", "rocketmq")
    journal.add_sample(other.store_id, [DiskUsage("/s", 99)], MINUTE_MS, extent=Extent(1, 2, 3))
    for number in range(6):
        disks = [DiskUsage("/s", 10 + number), DiskUsage("/t", None, error="gone")]
        lag = ArchiveLag(0, 1, 5, 0, 1) if number == 4 else None
        extent = Extent(number * 100, 1_000 + number * 300, 7 + number)
        journal.add_sample(store.store_id, disks, number * MINUTE_MS, lag, extent=extent)
    span = (MINUTE_MS * 4, MINUTE_MS * 6)

    def read(connection: Connection) -> dict[str, Any]:
        disks = disk_ids(connection, store.store_id)
        return {path: read_levels(connection, disk_id, *span) for path, disk_id in disks.items()}

    assert reader.read(read) == {
        "/s": ((4 * MINUTE_MS, 14), (5 * MINUTE_MS, 15)),
        "/t": ((4 * MINUTE_MS, None), (5 * MINUTE_MS, None)),
    }
    assert reader.read(lambda connection: read_moments(connection, store.store_id, *span)) == (
        Moment(4 * MINUTE_MS, 11, 400, 2_200, 5),
        Moment(5 * MINUTE_MS, 12, 500, 2_500, None),
    )


def test_runs_come_page_by_page(journal: Journal, reader: JournalReader) -> None:
    store = journal.add_store("/s", "rocketmq")
    for number in range(5):
        journal.begin_run(store.store_id, f"r{number}", MANUAL)
    first = reader.runs(store.store_id, limit=2)
    assert [run.run_key for run in first] == ["r4", "r3"]
    rest = reader.runs(store.store_id, before_id=first[-1].run_id)
    assert [run.run_key for run in rest] == ["r2", "r1", "r0"]
    assert {run.outcome for run in rest} == {None}


def test_a_step_that_failed_is_an_incident(managed: Managed) -> None:
    store = managed()
    with opened(store) as once:
        cleanup = cycle.Cleanup(once, "r", MANUAL)
        cycle.plan(cleanup)
        Path(store.root, "commitlog", f"{0:020d}").unlink()
        with pytest.raises(Exception, match="LOST"):
            cycle.release(cleanup)
    reader = JournalReader(store.journal_url)
    incidents = reader.incidents(reader.stores()[0].store_id)
    assert {(incident.run_key, incident.step) for incident in incidents} == {
        ("r", "disturbed"),
        ("r", "release"),
    }


def test_where_there_is_no_journal_none_is_made(tmp_path: Path, reader: JournalReader) -> None:
    with pytest.raises(JournalUnavailableError, match="expected a journal, found none"):
        reader.stores()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a#b.db", "a?b.db", "%41.db", "p%23q.db", "with space.db", "ä.db"])
def test_the_journal_of_that_very_name_is_read(tmp_path: Path, name: str) -> None:
    Journal(f"sqlite:///{tmp_path}/A.db").add_store("/decoy", "rocketmq")
    made = Journal(f"sqlite:///{tmp_path}/made.db")
    made.add_store("/s", "rocketmq")
    (tmp_path / "made.db").rename(tmp_path / name)
    before = sorted(tmp_path.iterdir())
    url = URL.create("sqlite", database=str(tmp_path / name)).render_as_string()
    assert [store.real_path for store in JournalReader(url).stores()] == ["/s"]
    assert sorted(tmp_path.iterdir()) == before


def test_an_undone_run_deleted_nothing_and_an_idle_one_names_whose_report_answers(managed: Managed) -> None:
    store = managed(policy=Policy(undo_window_hours=1))
    with opened(store) as once:
        cleanup = cycle.Cleanup(once, "r", MANUAL)
        for step in cycle.CLEANUP:
            if step is not cycle.validate:
                step(cleanup)
        undo(store, "r", "me")
        cycle.report(cleanup)
    reader = JournalReader(store.journal_url)
    store_id = reader.stores()[0].store_id
    (run,) = reader.runs(store_id)
    assert (run.outcome, run.deleted_segments) == (Outcome.UNDONE.value, 0)
    assert {one.state for one in reader.segments(store_id)} == {"archived"}

    idle = replace(store, overrides={**store.overrides, "fileReservedTime": "7200"})
    for key in ("first", "second"):
        with opened(idle) as once:
            cleanup = cycle.Cleanup(once, key)
            cycle.plan(cleanup)
            cycle.report(cleanup)
    second, first, _ = reader.runs(store_id)
    assert (first.unchanged_since, second.unchanged_since) == (None, "first")
    assert reader.report(store_id, "second") == reader.report(store_id, "first")
    assert (first.has_report, second.has_report) == (True, True)
    # The one whose report answers may go first.
    gone = delete(reports).where(reports.c.run_id == first.run_id)
    Journal(store.journal_url)._database.write(lambda connection: connection.execute(gone))
    second, first, _ = reader.runs(store_id)
    assert (second.outcome, second.has_report, first.has_report) == ("nothing-to-do", False, False)
    assert reader.report(store_id, "second") is None


@pytest.mark.parametrize("url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "none://u:p@h/d"])
def test_a_url_of_no_journal_is_bad_input(url: str) -> None:
    with pytest.raises(BadInputError, match="journal_url: expected"):
        JournalReader(url)


def test_a_reader_changes_nothing(tmp_path: Path, journal: Journal, reader: JournalReader) -> None:
    journal.add_store("/s", "rocketmq")
    path = tmp_path / "journal.db"
    before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir()))
    assert len(reader.stores()) == 1
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir())) == before


def test_an_older_journal_is_left_as_it_is(tmp_path: Path, journal: Journal, reader: JournalReader) -> None:
    journal.add_store("/s", "rocketmq")
    set_back(tmp_path / "journal.db", 7)
    before = (tmp_path / "journal.db").read_bytes()
    with pytest.raises(BadInputError, match="expected journal schema version 11, found 7"):
        reader.stores()
    assert (tmp_path / "journal.db").read_bytes() == before


def test_a_newer_journal_says_which_release_reads_it(
    tmp_path: Path, journal: Journal, reader: JournalReader
) -> None:
    journal.add_store("/s", "rocketmq")
    set_back(tmp_path / "journal.db", 12)
    with pytest.raises(
        BadInputError, match=r"found 12\. Nothing was changed\. A newer release wrote it: install"
    ):
        reader.stores()


KILLED_WRITER = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size=1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE storage_engine_stores SET name = 'half'")
connection.execute("CREATE TABLE filler (bytes)")
connection.execute("INSERT INTO filler VALUES (randomblob(1000000))")
os._exit(9)
"""


def test_what_a_killed_writer_left_half_done_is_named_with_what_to_do(
    tmp_path: Path, journal: Journal, reader: JournalReader
) -> None:
    journal.add_store("/s", "rocketmq")
    path, half_done = tmp_path / "journal.db", tmp_path / "journal.db-journal"
    subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path)], check=False)
    before = path.read_bytes(), half_done.read_bytes()
    with pytest.raises(JournalUnavailableError, match="which a killed writer left") as raised:
        reader.stores()
    assert f"found {half_done}," in str(raised.value)
    assert (path.read_bytes(), half_done.read_bytes()) == before
    Journal(f"sqlite:///{path}")
    assert [store.name for store in reader.stores()] == [None]


def test_it_needs_no_data_library() -> None:
    script = (
        "import sys, storage_engine.journal.reading.queries\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
