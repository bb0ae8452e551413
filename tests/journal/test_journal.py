from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sqlalchemy import event

from storage_engine.core import host
from storage_engine.core.host import ANY_HOST
from storage_engine.exceptions import (
    BadInputError,
    JournalUnavailableError,
    RunStateError,
    StoreIdentityError,
)
from storage_engine.journal.journal import Extent, Journal, Phase, RunState, Step, hold_memory
from storage_engine.journal.tables.schema import runs
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import BrokerProgress
from storage_engine.model.lag import ArchiveLag
from storage_engine.model.plan import Decision, LogPlan, Plan, PlanRequest, Reason
from storage_engine.model.store import FileFacts, Segment, SegmentState
from tests.journal.older_journals import set_back

WRITE_MANY = """
import sys
from storage_engine.core import host
from storage_engine.core.host import ANY_HOST
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.model.plan import PlanRequest
journal = Journal(sys.argv[1])
store = journal.add_store("/s", "rocketmq")
run = journal.begin_run(store.store_id, "r", PlanRequest())
for i in range(20):
    journal.record(run, Step.RELEASE, Phase.INTENT, [(f"{sys.argv[2]}-{i}", {})])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.db"


@pytest.fixture
def journal(path: Path) -> Journal:
    return Journal(f"sqlite:///{path}")


def plan(base_offset: int = 0) -> Plan:
    facts = FileFacts(f"/s/commitlog/{base_offset:020d}", 1, 2, 3, 4, 5)
    segment = Segment("commitlog", base_offset, facts, SegmentState.SEALED)
    return Plan("/s", 7, (), (LogPlan("commitlog", (Decision(segment, Reason.EXPIRED, "old"),)),))


def test_a_store_keeps_its_identity(journal: Journal) -> None:
    first = journal.add_store("/s", "rocketmq")
    assert journal.add_store("/s", "rocketmq") == first == journal.find_store("/s")
    assert journal.add_store("/other", "rocketmq").store_id != first.store_id
    assert journal.find_store("/unknown") is None


def test_a_store_that_the_lake_knows_keeps_that_identity(journal: Journal) -> None:
    known = "5a5a5a5a-0000-4000-8000-000000000000"
    record = journal.add_store("/s", "rocketmq", store_id=known, lineage=3)
    assert (record.store_id, record.lineage) == (known, 3)


def test_a_new_lineage_is_the_next_one(journal: Journal) -> None:
    store = journal.add_store("/s", "rocketmq")
    assert journal.open_lineage(store.store_id, "ann", "log was cut").lineage == 2
    found = journal.find_store("/s")
    assert found is not None
    assert found.lineage == 2


def test_a_run_is_begun_once(journal: Journal) -> None:
    store_id = journal.add_store("/s", "rocketmq").store_id
    run = journal.begin_run(store_id, "r", PlanRequest(manual=True))
    assert journal.begin_run(store_id, "r", PlanRequest(manual=True)) == run
    with pytest.raises(RunStateError, match="run 'r': expected the request it was begun with"):
        journal.begin_run(store_id, "r", PlanRequest())
    with pytest.raises(RunStateError, match=r"run 'x' of store .* found no run"):
        journal.run(store_id, "x")


def test_the_first_plan_of_a_run_counts(journal: Journal) -> None:
    store_id = journal.add_store("/s", "rocketmq").store_id
    run = journal.begin_run(store_id, "r", PlanRequest())
    planned = journal.record_plan(run, plan(), {"disks": []})
    assert planned.plan == plan()
    assert planned.plan_digest == plan().digest
    assert planned.state is RunState.PLANNED
    assert journal.record_plan(run, plan(99), {"disks": []}) == planned
    assert len(journal.events(run, Step.PLAN)) == 1


def test_a_run_is_finished_once(journal: Journal) -> None:
    run = journal.begin_run(journal.add_store("/s", "rocketmq").store_id, "r", PlanRequest())
    journal.finish_run(run, {"report": "a"})
    finished = journal.run(run.store_id, "r")
    journal.finish_run(run, {"report": "b"})
    assert journal.run(run.store_id, "r") == finished
    assert finished.state is RunState.FINISHED
    assert [event.payload for event in journal.events(run, Step.REPORT)] == [{"report": "a"}]


def test_events_come_back_in_order_and_by_step(journal: Journal) -> None:
    store_id = journal.add_store("/s", "rocketmq").store_id
    run = journal.begin_run(store_id, "r", PlanRequest())
    journal.record(run, Step.RELEASE, Phase.INTENT, [("10", {"n": 1}), ("9", {"n": 2})])
    journal.record(run, Step.RELEASE, Phase.RESULT, [("10", {})])
    journal.record(run, Step.LAG, Phase.RESULT, [("", {})])
    assert [e.subject for e in journal.events(run, Step.RELEASE)] == ["10", "9", "10"]
    assert [e.payload for e in journal.events(run, Step.RELEASE, Phase.INTENT)] == [{"n": 1}, {"n": 2}]
    other = journal.begin_run(store_id, "r2", PlanRequest())
    journal.record(other, Step.RELEASE, Phase.RESULT, [("11", {})])
    released = journal.store_events(store_id, Step.RELEASE, Phase.RESULT)
    assert [(e.run_key, e.subject) for e in released] == [("r", "10"), ("r2", "11")]


def test_the_last_sample_tells_unknown_from_full(journal: Journal) -> None:
    store_id = journal.add_store("/s", "rocketmq").store_id
    assert journal.last_sample(store_id) is None
    unknown = DiskUsage("/cl", None, error="missing")
    journal.add_sample(store_id, [DiskUsage("/cl", 100, 10, 0)], 1)
    journal.add_sample(store_id, [unknown], 2)
    sample = journal.last_sample(store_id)
    assert sample is not None
    assert (sample.at_ms, sample.levels) == (2, (unknown,))


def test_the_first_waiver_of_a_plan_stands(journal: Journal) -> None:
    waiver = journal.waive("d", "ann", "lake is gone")
    assert journal.waive("d", "bob", "me too") == waiver == journal.find_waiver("d")
    assert journal.find_waiver("e") is None


@pytest.mark.slow
def test_several_processes_write_at_once(path: Path) -> None:
    url = f"sqlite:///{path}"
    writers = [subprocess.Popen([sys.executable, "-c", WRITE_MANY, url, str(n)]) for n in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    journal = Journal(url)
    store = journal.find_store("/s")
    assert store is not None
    subjects = [event.subject for event in journal.events(journal.run(store.store_id, "r"))]
    assert len(subjects) == len(set(subjects)) == 60


def test_a_journal_of_another_version_is_refused(path: Path, journal: Journal) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE storage_engine_schema SET version = 99")
    connection.close()
    with pytest.raises(BadInputError, match="expected journal schema version 11, found 99"):
        Journal(f"sqlite:///{path}")


def test_a_journal_of_the_first_version_is_brought_up_to_date(path: Path, journal: Journal) -> None:
    store = journal.add_store("/s", "rocketmq")
    journal.add_sample(store.store_id, [DiskUsage("/s", 50)], 7)
    set_back(path, 1)
    upgraded = Journal(f"sqlite:///{path}")
    assert upgraded.find_store("/s") == replace(store, host=None)
    sample = upgraded.last_sample(store.store_id)
    assert sample is not None
    assert (sample.levels, sample.archive_lag) == ((DiskUsage("/s", 50),), None)
    assert upgraded.clock_readings(store.store_id) == ()
    memory = hold_memory(upgraded, store.store_id)
    memory.save({"fence": 7})
    assert memory.load() == {"fence": 7}


def test_what_was_measured_before_is_read_as_it_was(path: Path, journal: Journal) -> None:
    store = journal.add_store("/s", "rocketmq")
    progress = BrokerProgress(5, 100, 900, 1, 0, 0, {}, None)
    lag = ArchiveLag(5, 2, 2048, 0, 60)
    journal.add_sample(store.store_id, [DiskUsage("/s", 50)], 5, lag, progress)
    set_back(path, 7)
    upgraded = Journal(f"sqlite:///{path}")
    sample = upgraded.last_sample(store.store_id)
    assert sample is not None
    assert (sample.levels, sample.archive_lag, sample.progress) == ((DiskUsage("/s", 50),), lag, progress)
    upgraded.add_sample(store.store_id, [DiskUsage("/s", 60)], 6, extent=Extent(1, 2, 3))
    sample = upgraded.last_sample(store.store_id)
    assert sample is not None
    assert (sample.levels, sample.extent) == ((DiskUsage("/s", 60),), Extent(1, 2, 3))


def test_a_journal_that_another_release_took_over_meanwhile_is_refused(path: Path, journal: Journal) -> None:
    store = journal.add_store("/s", "rocketmq")
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE storage_engine_schema SET version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(BadInputError, match="expected journal schema version 11, found 99"):
        journal.begin_run(store.store_id, "r", PlanRequest())
    with pytest.raises(BadInputError, match="found 99"):
        journal.find_store("/s")
    assert path.read_bytes() == before


def test_rows_name_their_store_still_when_its_table_was_made_anew(path: Path, journal: Journal) -> None:
    store = journal.add_store("/s", "rocketmq")
    journal.begin_run(store.store_id, "r", PlanRequest())
    set_back(path, 5)
    upgraded = Journal(f"sqlite:///{path}")
    assert upgraded.find_store("/s") == store
    assert upgraded.run(store.store_id, "r").run_key == "r"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys=ON")
    with pytest.raises(sqlite3.IntegrityError), connection:
        connection.execute("DELETE FROM storage_engine_stores")
    assert connection.execute("PRAGMA foreign_key_list(storage_engine_runs)").fetchone()[2] == (
        "storage_engine_stores"
    )
    connection.close()


def test_a_journal_whose_rows_name_a_lost_store_is_left_as_it_is(path: Path, journal: Journal) -> None:
    store = journal.add_store("/s", "rocketmq")
    journal.begin_run(store.store_id, "r", PlanRequest())
    set_back(path, 5)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DELETE FROM storage_engine_stores")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(JournalUnavailableError, match="refers to a missing row"):
        Journal(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_two_machines_have_each_a_store_at_one_path(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {}
    for machine in ("a", "b"):
        on_machine(machine, tmp_path, monkeypatch)
        assert journal.find_store("/s", machine) is None
        made[machine] = journal.add_store("/s", "rocketmq", host=machine)
    assert made["a"].store_id != made["b"].store_id
    for machine in ("a", "b"):
        on_machine(machine, tmp_path, monkeypatch)
        for stated in (machine, None, ANY_HOST):
            assert journal.find_store("/s", stated) == made[machine]
    on_machine("c", tmp_path, monkeypatch)
    assert journal.find_store("/s", "c") is None
    for stated in (None, ANY_HOST):
        with pytest.raises(StoreIdentityError, match=r"found those of machines a, b\. Nothing was changed"):
            journal.find_store("/s", stated)
    # Its stamp says that a's disk is here by now.
    moved = journal.add_store("/s", "rocketmq", store_id=made["a"].store_id, host="c")
    assert moved == replace(made["a"], host="c")


def test_a_machine_is_told_by_its_id_before_its_name(
    journal: Journal, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine may have had the name, and an image that was never started has no id."""
    monkeypatch.setattr(socket, "gethostname", lambda: "alpha")
    on_machine("uninitialized", tmp_path, monkeypatch)
    named = journal.add_store("/s", "rocketmq", host="alpha")
    assert named.host == "alpha"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "INSERT INTO storage_engine_stores SELECT 'by-id', real_path, broker, lineage, created_at_ms, "
            "'id-1', NULL FROM storage_engine_stores"
        )
    connection.close()
    on_machine("id-1", tmp_path, monkeypatch)
    found = journal.find_store("/s", "alpha")
    assert found is not None
    assert found.store_id == "by-id"


def on_machine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine-id").write_text(name)
    monkeypatch.setattr(host, "_MACHINE_ID", tmp_path / "machine-id")


@pytest.mark.parametrize("url", ["nonsense", "sqlite://", "sqlite:///:memory:", "nosuch:///x"])
def test_a_url_that_is_no_durable_database_is_refused(url: str) -> None:
    with pytest.raises(BadInputError, match="journal_url: expected"):
        Journal(url)


@pytest.mark.parametrize("url", ["nosuch://me:hunter2@db/x", "postgres me:hunter2@db"])
def test_a_refused_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(BadInputError) as raised:
        Journal(url)
    assert "hunter2" not in str(raised.value)


def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"precious" * 1000)
    with pytest.raises(JournalUnavailableError, match=r"journal\.db: the journal can't be read or written"):
        Journal(f"sqlite:///{path}")
    assert path.read_bytes() == b"precious" * 1000


def test_a_directory_that_can_not_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(JournalUnavailableError):
        Journal(f"sqlite:///{tmp_path / 'file' / 'journal.db'}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://127.0.0.1:1/journal?user=keeper&password=S3CR3T&connect_timeout=2",
        "postgresql+psycopg://keeper:S3CR3T@127.0.0.1:port/journal",
        "postgresql+psycopg://keeper:S3CR3T@R3T@127.0.0.1/journal",
    ],
)
def test_no_error_of_a_journal_shows_its_password(url: str) -> None:
    with pytest.raises((JournalUnavailableError, BadInputError)) as caught:
        Journal(url)
    assert "R3T" not in str(caught.value)


def test_commits_are_flushed_to_disk(journal: Journal) -> None:
    levels = journal._database.read(lambda c: c.exec_driver_sql("PRAGMA synchronous").scalar())
    assert levels == 3


def test_a_full_disk_gets_the_reserve_back(path: Path, journal: Journal) -> None:
    """A page limit that goes with the reserve stands for the full disk: SQLite fails in the same way."""
    run = journal.begin_run(journal.add_store("/s", "rocketmq").store_id, "r", PlanRequest())
    reserve = path.with_name("journal.db.reserve")
    assert reserve.stat().st_size == reserve.stat().st_blocks * 512 == 1 << 20

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        if reserve.exists():
            connection.execute("PRAGMA max_page_count=1")

    event.listen(journal._database._engine, "connect", limit)
    journal.record(run, Step.RELEASE, Phase.INTENT, [("0", {"a": "b" * 100_000})])
    assert [e.subject for e in journal.events(run)] == ["0"]
    assert not reserve.exists()
    event.listen(journal._database._engine, "connect", lambda c, _: c.execute("PRAGMA max_page_count=1"))
    with pytest.raises(JournalUnavailableError, match="full"):
        journal.record(run, Step.RELEASE, Phase.INTENT, [("1", {"a": "b" * 100_000})])


def test_no_connection_outlives_its_transaction(path: Path, journal: Journal) -> None:
    journal.add_store("/s", "rocketmq")
    assert str(path) not in {file.path for file in psutil.Process().open_files()}


def test_damaged_pages_are_an_unavailable_journal(journal: Journal, path: Path) -> None:
    store = journal.add_store("/s", "rocketmq")
    run = journal.begin_run(store.store_id, "r", PlanRequest())
    journal.record(run, Step.RELEASE, Phase.INTENT, [(f"{n}", {"x": "y" * 500}) for n in range(200)])
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    path.write_bytes(data)
    with pytest.raises(
        JournalUnavailableError, match="bring it back from a backup if it is damaged"
    ) as raised:
        journal.events(run)
    assert "SELECT" not in str(raised.value)
    with pytest.raises(JournalUnavailableError):
        Journal(f"sqlite:///{path}").add_store("/t", "rocketmq")
    assert f"Without a backup move {path} away" in str(raised.value)
    path.rename(path.with_name("damaged"))
    assert Journal(f"sqlite:///{path}").add_store("/t", "rocketmq").lineage == 1


@pytest.mark.parametrize("broken", ["{", "[1]", '{"manual": 7}', "9" * 5000])
def test_a_damaged_row_is_an_error_of_ours(journal: Journal, path: Path, broken: str) -> None:
    store = journal.add_store("/s", "rocketmq")
    journal.begin_run(store.store_id, "r", PlanRequest())
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {runs.name} SET request = ?", (broken,))
    with pytest.raises((JournalUnavailableError, BadInputError)):
        journal.run(store.store_id, "r")
