"""A journal that doesn't answer holds up few threads of the API server, and not for long."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from storage_engine.console.stores import ProblemKind
from storage_engine.exceptions import JournalUnavailableError, NoSuchConnectionError
from storage_engine.journal.journal import Journal
from storage_engine.plugins import journals
from storage_engine.plugins.journals import WebJournal


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says anything."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"postgresql+psycopg://ann:secret@127.0.0.1:{listening.getsockname()[1]}/journal"


@pytest.fixture
def hanging() -> Iterator[str]:
    """A PostgreSQL server that lets everybody in, and then never says anything."""
    welcome = b"R" + struct.pack("!ii", 8, 0) + b"Z" + struct.pack("!i", 5) + b"I"
    taken: list[socket.socket] = []

    def let_in(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                one, _ = listening.accept()
                taken.append(one)
                while one.recv(4096).startswith(b"\0\0\0\x08"):
                    # It has no encryption to offer.
                    one.sendall(b"N")
                one.sendall(welcome)

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        thread = threading.Thread(target=let_in, args=(listening,))
        thread.start()
        yield f"postgresql+psycopg://ann:secret@127.0.0.1:{listening.getsockname()[1]}/journal"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    for one in taken:
        one.close()


def test_a_server_that_hangs_once_it_is_connected_is_given_up(hanging: str) -> None:
    began = time.monotonic()
    with pytest.raises(JournalUnavailableError, match="within 2 seconds, found none"):
        WebJournal(hanging, answer_seconds=2).stores()
    assert time.monotonic() - began < 10
    for one in threading.enumerate():
        if isinstance(one, threading.Timer):
            # It has ended the connection, and may just be ending itself.
            one.join(5)
            assert not one.is_alive()


@pytest.mark.slow
def test_a_silent_server_is_waited_for_by_few_and_then_by_nobody(silent: str) -> None:
    journal = WebJournal(silent, answer_seconds=2)
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(JournalUnavailableError) as raised:
            journal.stores()
        said.append(str(raised.value))

    threads = [threading.Thread(target=ask) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        # Its driver by itself waits for two minutes.
        thread.join(60)
    assert sum("queries are waiting" in one for one in said) == 30 - journals._AT_ONCE
    assert not any("secret" in one for one in said)
    for _ in range(200):
        ask()
    assert "queries are waiting" not in said[-1]


def test_what_fails_at_once_is_asked_again_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = WebJournal(url)
    with pytest.raises(JournalUnavailableError, match="found none"):
        journal.stores()
    Journal(url).add_store("/s", "rocketmq")
    assert len(journal.stores()) == 1


def test_after_a_pause_one_question_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = WebJournal(f"sqlite:///{tmp_path}/journal.db")
    monkeypatch.setattr(journals, "_SLOW_SECONDS", -1.0)
    with pytest.raises(JournalUnavailableError):
        journal.stores()
    Journal(f"sqlite:///{tmp_path}/journal.db").add_store("/s", "rocketmq")
    with pytest.raises(JournalUnavailableError, match="found none"):
        journal.stores()
    journal._until = time.monotonic()
    assert len(journal.stores()) == 1
    assert len(journal.stores()) == 1


def test_connections_that_are_due_together_are_looked_up_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"store_{number:03d}" for number in range(90)]
    looked_up: list[str] = []

    class Hook:
        def __init__(self, conn_id: str) -> None:
            looked_up.append(conn_id)
            self.journal_url = "sqlite:////nowhere/journal.db"

    now = [1_000.0]
    monkeypatch.setattr(journals, "StorageEngineHook", Hook)
    monkeypatch.setattr(journals, "_addresses", {})
    monkeypatch.setattr(journals, "_looked_up", set())
    monkeypatch.setattr(journals.time, "monotonic", lambda: now[0])

    def asked() -> list[str]:
        looked_up.clear()
        assert len(journals.overview(names, 0).stores) == 90
        return list(looked_up)

    turns = [asked() for _ in range(6)]
    assert [len(turn) for turn in turns] == [20, 20, 20, 20, 10, 0]
    now[0] += 61
    turns = [asked() for _ in range(6)]
    assert [len(turn) for turn in turns] == [20, 20, 20, 20, 10, 0]
    assert sorted(one for turn in turns for one in turn) == names
    # One store by itself is looked up when it is due, and nothing is believed for ever.
    now[0] += 61
    looked_up.clear()
    journals.journal_of(names[89])
    assert looked_up == [names[89]]
    now[0] += 1_000
    assert len(asked()) == 90


@pytest.mark.parametrize("several", [False, True])
def test_what_was_not_looked_up_yet_is_asked_of_the_one_journal_of_the_others(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"store_{number:03d}" for number in range(40)]
    gone = [f"gone_{number:03d}" for number in range(25)]
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "other")]
    for url in urls:
        Journal(url)
    for name in names[:39]:
        Journal(urls[0]).add_store(f"/{name}", "rocketmq", name=name)

    class Hook:
        def __init__(self, conn_id: str) -> None:
            if conn_id in gone:
                raise NoSuchConnectionError(f"{conn_id}: expected a connection, found none.")
            self.journal_url = urls[several and conn_id == names[1]]

    monkeypatch.setattr(journals, "StorageEngineHook", Hook)
    monkeypatch.setattr(journals, "_addresses", {})
    monkeypatch.setattr(journals, "_looked_up", set())

    def waiting() -> set[str]:
        stores = journals.overview([*gone, *names], 0).stores
        assert sorted(one.store for one in stores) == [*gone, *names]
        return {one.store for one in stores if one.problem_kind is ProblemKind.NOT_YET}

    assert waiting() == {*gone[20:], *names}
    # What can't be looked up keeps nothing else waiting.
    assert waiting() == ({*names[15:]} if several else {names[39]})
    waiting()
    assert waiting() == set()


@pytest.mark.parametrize("is_there", [True, False])
def test_looking_up_that_takes_long_ends_for_this_page(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"store_{number:03d}" for number in range(8)]
    url = f"sqlite:///{tmp_path}/journal.db"
    for name in names if is_there else ():
        Journal(url).add_store(f"/{name}", "rocketmq", name=name)
    looked_up: list[str] = []

    class Hook:
        def __init__(self, conn_id: str) -> None:
            looked_up.append(conn_id)
            now[0] += 0.04
            self.journal_url = url

    now = [1_000.0]
    monkeypatch.setattr(journals, "StorageEngineHook", Hook)
    monkeypatch.setattr(journals, "_addresses", {})
    monkeypatch.setattr(journals, "_looked_up", set())
    monkeypatch.setattr(journals.time, "monotonic", lambda: now[0])
    for looked in (3, 6, 8):
        stores = journals.overview(names, 0).stores
        assert sorted(one.store for one in stores) == names
        known = ProblemKind.NEVER_LOOKED if is_there else ProblemKind.JOURNAL
        # What the one journal that is known can't answer doesn't stand for stores that may be in another.
        later = known if is_there else ProblemKind.NOT_YET
        assert [one.problem_kind for one in sorted(stores, key=lambda line: line.store)] == (
            [known] * looked + [later] * (8 - looked)
        )
        assert len(looked_up) == looked
