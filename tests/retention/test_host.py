"""A store is looked at on its own machine only, unless somebody says that all of them see it."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable
from dataclasses import replace

import pytest

from storage_engine.exceptions import WrongHostError
from storage_engine.retention import steps
from storage_engine.retention.host import ANY_HOST, check_host, this_host
from storage_engine.retention.journal import Journal
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.watching import check_watcher

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
    with pytest.raises(
        WrongHostError, match=r"/data: expected to be looked at on host elsewhere.* found host"
    ):
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
