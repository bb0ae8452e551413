from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from storage_engine.exceptions import StoreBusyError
from storage_engine.model.plan import PlanRequest
from storage_engine.retention.journal import Journal, Phase, Step

TAKE_AND_DIE = """
import os, signal, sys
from storage_engine.retention.journal import Journal
journal = Journal(sys.argv[1])
with journal.lease(journal.find_store("/s").store_id):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'journal.db'}"


@pytest.fixture
def journal(url: str) -> Journal:
    return Journal(url)


@pytest.fixture
def store_id(journal: Journal) -> str:
    return journal.add_store("/s", "rocketmq").store_id


def change(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_a_lease_has_one_owner(journal: Journal, store_id: str) -> None:
    with (
        journal.lease(store_id),
        pytest.raises(StoreBusyError, match="found it with"),
        journal.lease(store_id),
    ):
        pass


def test_a_lease_is_free_after_its_owner_failed(journal: Journal, store_id: str) -> None:
    with pytest.raises(ZeroDivisionError), journal.lease(store_id):
        raise ZeroDivisionError
    with journal.lease(store_id):
        pass


def test_the_lease_of_a_killed_process_is_taken_over(url: str, journal: Journal, store_id: str) -> None:
    subprocess.run([sys.executable, "-c", TAKE_AND_DIE, url], check=False)
    with journal.lease(store_id):
        pass


@pytest.mark.parametrize("column", ["owner = 'elsewhere:1:1.0'", "token = token"])
def test_the_lease_of_who_may_live_stays_until_it_runs_out(
    url: str, journal: Journal, store_id: str, column: str
) -> None:
    with journal.lease(store_id):
        change(url, f"UPDATE storage_engine_leases SET {column}")
        with pytest.raises(StoreBusyError), journal.lease(store_id):
            pass
        change(url, "UPDATE storage_engine_leases SET expires_at_ms = 1")
        with journal.lease(store_id):
            pass


def test_nothing_is_recorded_under_a_lease_that_ran_out(url: str, journal: Journal, store_id: str) -> None:
    run = journal.begin_run(store_id, "r", PlanRequest())
    with journal.lease(store_id) as lease:
        journal.record(run, Step.RELEASE, Phase.INTENT, [("0", {})], lease=lease)
        change(url, "UPDATE storage_engine_leases SET expires_at_ms = 1")
        with pytest.raises(StoreBusyError, match="ran out before it was renewed"):
            journal.record(run, Step.RELEASE, Phase.INTENT, [("1", {})], lease=lease)
    assert [event.subject for event in journal.events(run)] == ["0"]
