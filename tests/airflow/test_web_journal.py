"""A journal that doesn't answer holds up few threads of the API server, and not for long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_engine.exceptions import JournalUnavailableError
from storage_engine.journal.journal import Journal
from storage_engine.plugins import web_journal
from storage_engine.plugins.web_journal import WebJournal


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says anything."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"postgresql+psycopg://ann:secret@127.0.0.1:{listening.getsockname()[1]}/journal"


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
    assert sum("questions wait" in one for one in said) == 30 - web_journal._AT_ONCE
    assert not any("secret" in one for one in said)
    for _ in range(200):
        ask()
    assert "questions wait" not in said[-1]


def test_what_fails_at_once_is_asked_again_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = WebJournal(url)
    with pytest.raises(JournalUnavailableError, match="found none"):
        journal.stores()
    Journal(url).add_store("/s", "rocketmq")
    assert len(journal.stores()) == 1


def test_after_a_pause_one_question_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = WebJournal(f"sqlite:///{tmp_path}/journal.db")
    monkeypatch.setattr(web_journal, "_SLOW_SECONDS", -1.0)
    with pytest.raises(JournalUnavailableError):
        journal.stores()
    Journal(f"sqlite:///{tmp_path}/journal.db").add_store("/s", "rocketmq")
    with pytest.raises(JournalUnavailableError, match="found none"):
        journal.stores()
    journal._until = time.monotonic()
    assert len(journal.stores()) == 1
    assert len(journal.stores()) == 1
