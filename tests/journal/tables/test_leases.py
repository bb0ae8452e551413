from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from storage_engine.exceptions import StoreBusyError
from storage_engine.journal.journal import Journal, Phase, Step, hold_memory
from storage_engine.journal.tables.leases import Owner, is_dead, this_process
from storage_engine.model.plan import PlanRequest

TAKE_AND_DIE = """
import os, signal, sys
from storage_engine.journal.journal import Journal
journal = Journal(sys.argv[1])
with journal.lease(journal.find_store("/s").store_id):
    os.kill(os.getpid(), signal.SIGKILL)
"""

TAKE_AND_WAIT = """
import sys, time
from storage_engine.journal.journal import Journal
journal = Journal(sys.argv[1])
with journal.lease(journal.find_store("/s").store_id):
    print("taken", flush=True)
    sys.stdin.read()
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
        pytest.raises(StoreBusyError, match="to be free, found that"),
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


@pytest.mark.slow
def test_the_lease_of_a_living_process_of_another_pid_namespace_stays(
    url: str, journal: Journal, store_id: str
) -> None:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c"]
    with subprocess.Popen(
        [*command, TAKE_AND_WAIT, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        with pytest.raises(StoreBusyError, match="to be free, found that"), journal.lease(store_id):
            pass
        other.stdin.close()
    assert other.returncode == 0
    with journal.lease(store_id):
        pass


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        ({}, True),
        ({"host": "renamed-since"}, True),
        ({"boot_id": "another-machine-or-start"}, False),
        ({"pid_namespace": "1"}, False),
        ({"boot_id": "", "pid_namespace": ""}, False),
    ],
    ids=["here", "renamed", "other start", "other namespace", "unknown"],
)
def test_only_a_process_that_would_be_seen_here_is_dead_when_it_is_not(
    change: dict[str, str], dead: bool
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    owner = replace(this_process(), pid=ended.pid, **change)
    ended.wait()
    assert is_dead(owner) is dead
    assert Owner.parse(str(owner)) == replace(owner, started_at_s=round(owner.started_at_s, 1))


def test_a_process_with_a_number_that_was_used_before_is_not_the_owner() -> None:
    mine = this_process()
    assert not is_dead(mine)
    assert is_dead(replace(mine, started_at_s=mine.started_at_s - 60))


def test_owners_as_older_releases_recorded_them_are_understood() -> None:
    assert Owner.parse("worker-0:17:1700000000.5") == Owner("worker-0", 17, 1700000000.5)


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
        with pytest.raises(StoreBusyError, match="expired before it was renewed"):
            journal.record(run, Step.RELEASE, Phase.INTENT, [("1", {})], lease=lease)
    assert [event.subject for event in journal.events(run)] == ["0"]


TAKE_A_CLUSTER_AND_DIE = """
import os, signal, sys
from storage_engine.journal.journal import Journal
journal = Journal(sys.argv[1])
with hold_memory(journal, journal.find_store("/s").store_id).alone("cluster"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_store_at_a_time_changes_what_a_clusters_stores_share(
    url: str, journal: Journal, store_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-c", TAKE_A_CLUSTER_AND_DIE, url], check=False)
    one = hold_memory(journal, store_id)
    other = hold_memory(journal, journal.add_store("/other", "rocketmq").store_id)
    with one.alone("cluster") as still_alone:
        with (
            pytest.raises(StoreBusyError, match="cluster cluster: expected its lease"),
            other.alone("cluster"),
        ):
            pass
        with other.alone("another cluster"):
            pass
        still_alone()
        change(url, "UPDATE storage_engine_cluster_leases SET expires_at_ms = 1")
        with other.alone("cluster"), pytest.raises(StoreBusyError, match="expired before it was renewed"):
            still_alone()
