"""What a person decides at a shell about a store of Airflow: by its connection, in its journal and lake."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.journal.journal import Journal
from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from tests.services.command_line import run_command

pytestmark = pytest.mark.slow

NO_LAG = LagSummary(0, 0, 0, 0, 0, (), 0)


@pytest.fixture
def connected(store_connection: Any) -> Any:
    """A store with a connection; its journal is not in its lake's directory."""
    store = store_connection()
    for segment in (store.root / "commitlog").iterdir():
        os.utime(segment, (10**9, 10**9))
    return store


def _archive(conn_id: str, run_key: str) -> None:
    store = StorageEngineHook(conn_id).managed_store
    steps.make_plan(store, run_key, PlanRequest(manual=True, max_segments=1))
    steps.record_lag(store, run_key, NO_LAG, ())
    steps.archive_planned(store, run_key, lambda jobs: steps.archive(store, run_key, jobs))
    steps.release(store, run_key)


def _below(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


def test_decisions_by_a_connection_are_in_its_journal(connected: Any) -> None:
    _archive(connected.conn_id, "one")
    words = ("--conn-id", connected.conn_id, "--reason", "a test", "--json")
    (record,) = Journal(f"sqlite:///{connected.directory / 'journal.db'}").all_stores()
    assert run_command("adopt", "--force", *words).json["lineage"] == 2
    stamped = run_command("stamp", *words).json
    assert (stamped["store_id"], stamped["lineage"]) == (record.store_id, 2)
    refused = run_command("accept-loss", "--from", 0, "--to", 1, *words)
    assert (refused.exit_code, "LOST" in refused.out) == (2, True)
    assert run_command("waive", "0" * 64, *words).exit_code == 0
    journal = Journal(f"sqlite:///{connected.directory / 'journal.db'}")
    assert journal.find_waiver("0" * 64) is not None
    assert not (connected.directory / "lake" / "journal.db").exists()


def test_a_connection_and_what_it_says_itself_exclude_each_other(connected: Any) -> None:
    lake, named = connected.directory / "lake", ("--conn-id", connected.conn_id)
    before = _below(connected.directory)
    for words, said in (
        (("adopt", connected.root, *named), "found STORE"),
        (("stamp", "--lake", lake, *named), "found --lake"),
        (("stamp", connected.root), "found no --lake"),
        (("adopt", "--lake", lake), "found no STORE"),
        (("waive", "0" * 64, "--lake", lake, *named), "either --lake"),
        (("waive", "0" * 64), "either --lake"),
    ):
        refused = run_command(*words, "--reason", "a test")
        assert (refused.exit_code, said in refused.err) == (2, True), refused.err
    for command in (("gc",), ("lake", "rebuild")):
        assert "--lake DIRECTORY or --conn-id" in run_command(*command).err
        both = run_command(*command, *named, "--journal", "sqlite:////j.db")
        assert (both.exit_code, "either --journal" in both.err) == (2, True)
        missing = connected.directory / "missing.db"
        refused = run_command(*command, "--lake", lake, "--journal", f"sqlite:///{missing}")
        assert (refused.exit_code, "no such file" in refused.err) == (2, True)
    assert _below(connected.directory) == before


@pytest.mark.usefixtures("airflow_database")
def test_a_connection_that_is_not_there_is_named() -> None:
    refused = run_command("adopt", "--conn-id", "nobody", "--reason", "a test")
    assert (refused.exit_code, "connection nobody: expected a connection" in refused.err) == (2, True)


@pytest.mark.again
@pytest.mark.usefixtures("airflow_database")
def test_a_connection_that_airflow_itself_keeps_is_found(
    store_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    store_connection("kept")
    fields = json.loads(os.environ["AIRFLOW_CONN_KEPT"])["extra"]
    monkeypatch.delenv("AIRFLOW_CONN_KEPT")
    with create_session() as session:
        session.add(Connection("kept", "storage_engine", extra=json.dumps(fields)))
    shell = [sys.executable, "-c", "from storage_engine.cli.main import main; main()"]
    command = [*shell, "lake", "info", "--conn-id", "kept", "--json"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["broker"] == "rocketmq"


@pytest.mark.again
def test_gc_and_rebuild_hear_a_journal_that_is_not_in_the_lakes_directory(connected: Any) -> None:
    lake = connected.directory / "lake"
    _archive(connected.conn_id, "one")
    shutil.copytree(lake, lake.with_name("older"))
    _archive(connected.conn_id, "two")
    shutil.rmtree(lake)
    lake.with_name("older").rename(lake)
    journal = f"sqlite:///{connected.directory / 'journal.db'}"
    deaf = ("--lake", lake)
    assert run_command("gc", *deaf).exit_code == 0
    assert run_command("lake", "rebuild", "--dry-run", "--json", *deaf).json["unknown_heads"] == []
    for words in (("--conn-id", connected.conn_id), (*deaf, "--journal", journal)):
        refused = run_command("gc", "--delete", *words)
        assert (refused.exit_code, "expected receipt number" in refused.err) == (1, True)
        rebuilt = run_command("lake", "rebuild", "--dry-run", "--json", *words)
        assert (rebuilt.exit_code, len(rebuilt.json["unknown_heads"])) == (1, 1)
