from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from storage_engine.retention.monitor.store_watch import StoreWatch
from tests.services.command_line import run_command

BESIDE = {"mode": "beside", "broker_address": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Expected STORE with --lake DIRECTORY, or --conn-id ID; found neither."),
        (("/store",), "STORE: expected --lake with it, found none."),
    ],
)
def test_a_watch_of_nothing_or_without_a_journal_is_refused(words: tuple[str, ...], said: str) -> None:
    outcome = run_command("watch", *words)
    assert outcome.exit_code == 2
    assert said in outcome.err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "expected a store beside its running broker"),
        ({**BESIDE, "store_host": "elsewhere"}, "expected to be looked at on host elsewhere"),
    ],
)
def test_a_store_without_a_hold_or_on_another_host_is_refused(
    settings: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"root": str(tmp_path), **settings}
    definition = {"conn_type": "storage_engine", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_WATCHED", json.dumps(definition))
    outcome = run_command("watch", "--conn-id", "watched")
    assert outcome.exit_code != 0
    assert said in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_watch_whose_thread_has_ended_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreWatch, "run", lambda self: self._changes.close())
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    lake = str(tmp_path / "lake")
    (tmp_path / "store").mkdir()
    assert run_command("init-lake", "--lake", lake).exit_code == 0
    told = f"sh -c 'cat >> {tmp_path}/told'"
    outcome = run_command("watch", str(tmp_path / "store"), "--lake", lake, "--notify", told)
    assert outcome.exit_code != 0
    said = "found that a thread of it has ended: storage-engine-watch"
    assert said in outcome.err
    assert said in json.loads((tmp_path / "told").read_text())["what"]
