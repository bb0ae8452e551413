"""A store is looked at on its own machine only, unless somebody says that all of them see it."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core import host
from storage_engine.core.host import ANY_HOST, check_host, this_host
from storage_engine.exceptions import WrongHostError
from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import list_stores
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import LagPolicy, Policy
from storage_engine.retention import steps
from storage_engine.retention.plan.watching import check_watcher
from storage_engine.retention.store.managed_store import ManagedStore

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]


def move_to_another_host(store: ManagedStore) -> None:
    """As if the journal were another machine's, where the store was first seen."""
    connection = sqlite3.connect(store.journal_url.removeprefix("sqlite:///"))
    with connection:
        connection.execute("UPDATE storage_engine_stores SET host = 'elsewhere'")
    connection.close()


@pytest.mark.parametrize(
    ("stated", "first_seen"),
    [
        (None, None),
        (None, this_host()),
        (ANY_HOST, "elsewhere"),
        (socket.gethostname(), "elsewhere"),
        (this_host(), "elsewhere"),
    ],
)
def test_this_host_may_look(stated: str | None, first_seen: str | None) -> None:
    check_host("/data", stated, first_seen)


@pytest.mark.parametrize(("stated", "first_seen"), [("elsewhere", None), (None, "elsewhere")])
def test_another_host_is_refused(stated: str | None, first_seen: str | None) -> None:
    with pytest.raises(WrongHostError, match=r"/data: expected to be read on host elsewhere.* found host"):
        check_host("/data", stated, first_seen)


def test_a_store_is_seen_first_on_this_host(managed: Make) -> None:
    store = managed()
    steps.sense(store)
    found = Journal(store.journal_url).find_store(store.real_root)
    assert found is not None
    assert found.host == this_host()


def test_no_step_looks_at_the_store_of_another_host(managed: Make) -> None:
    store = managed()
    steps.sense(store)
    move_to_another_host(store)
    for step in (steps.sense, check_watcher, lambda store: steps.make_plan(store, "r")):
        with pytest.raises(WrongHostError, match="elsewhere"):
            step(store)
    for stated in (ANY_HOST, this_host()):
        steps.sense(replace(store, host=stated))
        check_watcher(replace(store, host=stated))


def test_two_machines_with_a_store_at_one_path_are_two_stores(
    managed: Make, store_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share journal and lake; each machine sees its own disk at the path."""
    store = managed(policy=Policy(lag_policy=LagPolicy.IGNORE))
    root, disks = Path(store.root), {"a": tmp_path / "disk-a", "b": tmp_path / "disk-b"}
    root.rename(disks["a"])
    store_copy("edge-frames").rename(disks["b"])
    old_ns = (disks["a"] / "commitlog" / f"{0:020d}").stat().st_mtime_ns
    for segment in (disks["b"] / "commitlog").iterdir():
        os.utime(segment, ns=(old_ns, old_ns))

    def go_to(machine: str) -> ManagedStore:
        (tmp_path / "machine-id").write_text(machine)
        monkeypatch.setattr(host, "_MACHINE_ID", tmp_path / "machine-id")
        disks[machine].rename(root)
        return replace(store, name=f"store_of_{machine}", host=machine)

    gone, ids = {}, {}
    for machine in ("a", "b", "a"):
        here = go_to(machine)
        key = f"{machine}-{len(gone)}"
        steps.make_plan(here, key, PlanRequest(manual=True))
        steps.archive(here, key, steps.archive_jobs(here, key))
        gone[key] = len(steps.release(here, key).deleted)
        record = Journal(here.journal_url).find_store(here.real_root, here.host)
        assert record is not None
        assert ids.setdefault(machine, record.store_id) == record.store_id
        root.rename(disks[machine])
    assert gone["a-0"] > 0
    assert gone["b-1"] > 0
    assert len(set(ids.values())) == 2
    found = {row.store_id: row.store_host for row in list_stores(open_lake(store.lake))}
    assert found == {ids["a"]: "a", ids["b"]: "b"}


def test_a_store_of_an_older_journal_becomes_that_of_the_machine_that_says_so(managed: Make) -> None:
    store = managed()
    steps.sense(store)
    connection = sqlite3.connect(store.journal_url.removeprefix("sqlite:///"))
    with connection:
        connection.execute("UPDATE storage_engine_stores SET host = NULL")
    connection.close()
    journal = Journal(store.journal_url)
    for stated, kept in ((None, None), (ANY_HOST, None), (this_host(), this_host())):
        steps.sense(replace(store, host=stated))
        found = journal.find_store(store.real_root)
        assert found is not None
        assert found.host == kept
