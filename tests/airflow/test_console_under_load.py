"""What the console's routes leave of the threads that Airflow's pages and the tasks' heartbeats share."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from functools import cache, partial
from typing import Any

import pytest
from anyio.to_thread import run_sync

from storage_engine.exceptions import JournalUnavailableError
from storage_engine.plugins import journals
from storage_engine.plugins.journals import WebJournal
from tests.airflow.web_client import Client, SomeDagsManager, client_of

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

SOUND, SILENT = "sound_store", ("silent_a", "silent_b", "silent_c")
STORES = "/console/api/stores"
_SETTLED_SECONDS = 1.0


@pytest.fixture
def client(
    airflow_web: SomeDagsManager, store_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """Of a viewer of one sound store, and of three whose journals take connections and never answer."""
    store_connection(SOUND)
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", ",".join((SOUND, *SILENT)))
    airflow_web.readable = frozenset(f"storage_retention__{one}" for one in (SOUND, *SILENT))
    monkeypatch.setattr(journals, "_reader", cache(partial(WebJournal, answer_seconds=2)))
    monkeypatch.setattr(journals, "_addresses", {})
    sockets = [socket.create_server(("127.0.0.1", 0), backlog=200) for _ in SILENT]
    for name, listening in zip(SILENT, sockets, strict=True):
        url = f"postgresql+psycopg://ann:secret@127.0.0.1:{listening.getsockname()[1]}/journal"
        connection = {"conn_type": "storage_engine", "extra": {"root": "/s", "journal_url": url}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    yield client_of(airflow_web, "viewer")
    for listening in sockets:
        listening.close()


async def longest_wait(load: list[Awaitable[Any]]) -> tuple[list[Any], float]:
    """Return what a load comes to, and the longest wait for a shared thread meanwhile."""
    tasks = [asyncio.ensure_future(one) for one in load]
    # Whether somebody may ask is found out in these threads, as Airflow does.
    await asyncio.sleep(_SETTLED_SECONDS)
    waits = []
    while not all(task.done() for task in tasks):
        began = time.monotonic()
        await run_sync(time.monotonic)
        waits.append(time.monotonic() - began)
        await asyncio.sleep(0.05)
    return [task.result() for task in tasks], max(waits, default=0.0)


@pytest.mark.again
def test_silent_journals_hold_no_thread_that_others_need(client: Client) -> None:
    paths = [f"{STORES}/{name}" for name in SILENT for _ in range(25)]
    found, wait = asyncio.run(longest_wait([client.asked("GET", path) for path in paths]))
    assert {one.status_code for one in found} == {503}
    assert wait < 1


def test_a_silent_journal_hides_its_own_stores_alone(client: Client) -> None:
    rows: dict[str, Any] = {}
    # On a busy machine the first answer leaves connections for the next one.
    while not rows or any("Ask again in a moment" in rows[name]["problem"] for name in SILENT):
        began = time.monotonic()
        rows = {row["store"]: row for row in client.get(STORES).json()["stores"]}
        assert time.monotonic() - began < 2 * len(SILENT)
    assert all("expected an answer within 2 seconds" in rows[name]["problem"] for name in SILENT)
    assert "expected a journal, found none" in rows[SOUND]["problem"]
    began = time.monotonic()
    assert client.get(STORES).status_code == 200
    assert time.monotonic() - began < 1
    with pytest.raises(JournalUnavailableError):
        journals.journal_of(SILENT[0]).stores()


@pytest.mark.again
def test_of_many_what_ifs_at_once_few_wait_and_none_holds_a_thread(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: Any) -> dict[str, str]:
        time.sleep(1.2)
        return {"kind": "what-if"}

    monkeypatch.setattr("storage_engine.plugins.app.what_if", slow)
    asked = [client.asked("POST", f"{STORES}/{SOUND}/what-if", json={}) for _ in range(60)]
    found, wait = asyncio.run(longest_wait(asked))
    answers = Counter(one.status_code for one in found)
    # One is computed, two wait: for 2 seconds, in which the second one's turn comes.
    assert 1 <= answers[200] <= 3
    assert answers[200] + answers[429] == len(asked)
    assert {one.headers["retry-after"] for one in found if one.status_code == 429} == {"3"}
    assert wait < 1
    assert client.ask("POST", f"{STORES}/{SOUND}/what-if", json={}).status_code == 200
