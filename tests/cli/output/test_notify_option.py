"""--notify as alert.md shows it: a run and a watch tell alarms once, and go on whatever becomes of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.services.lock_holder import lock_held
from tests.services.webhook import webhook

pytestmark = pytest.mark.usefixtures("plainly")


def _told(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_run_that_is_refused_is_told_once_and_that_the_next_one_went_well(
    cli, store, lake, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    words = ("clean", store, "--lake", lake, "--manual", "--notify", f"sh -c 'cat >> {told}'")
    with lock_held(store / "lock"):
        for _ in range(2):
            assert cli(*words).exit_code == 1
    (began,) = _told(told)
    assert "lock is locked by process" in began["what"]
    assert began["advice"] == f"storage-engine doctor {store} --lake {lake}"
    assert cli(*words).exit_code == 0
    _, ended = _told(told)
    assert (ended["state"], ended["what"], ended["since"]) == ("ended", began["what"], began["since"])
    assert Path(ended["link"].removeprefix("file://")).is_file()


def test_what_a_webhook_answers_is_a_note_and_the_run_is_done(cli, store, lake) -> None:
    with webhook() as posted:
        posted.status = 503
        words = ("clean", store, "--lake", lake, "--manual", "--notify", posted.url)
        with lock_held(store / "lock"):
            refused = cli(*words)
        assert refused.exit_code == 1
        assert "Note: http://127.0.0.1 wasn't told of 1 alarm" in refused.err
        assert "secret" not in refused.err
        done = cli(*words)
    assert (done.exit_code, posted.bodies) == (0, [])


def test_nothing_that_fails_while_it_tells_ends_a_run(cli, store, lake, monkeypatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("storage_engine.retention.monitor.notifying.tell", broken)
    done = cli("clean", store, "--lake", lake, "--manual", "--notify", "true")
    assert done.exit_code == 0
    assert "Note: alarms could not be sent: RuntimeError: a fault of ours" in done.err


def test_what_is_no_command_is_bad_input_before_anything_begins(cli, store, lake, files) -> None:
    before = files(store, lake)
    refused = cli("clean", store, "--lake", lake, "--manual", "--notify", "'open")
    assert (refused.exit_code, "expected a command, found" in refused.err) == (2, True)
    assert files(store, lake) == before


def test_a_watch_tells_of_a_store_that_is_not_mounted(store: Path, lake: Path) -> None:
    away = store.rename(store.with_name("away"))
    store.mkdir()
    with webhook() as posted:
        words = ["watch", str(store), "--lake", str(lake), "--notify", posted.url]
        process = subprocess.Popen(
            [sys.executable, "-c", "from storage_engine.cli.main import main; main()", *words]
        )
        with process:
            _until(lambda: len(posted.bodies) == 1)
            store.rmdir()
            away.rename(store)
            _until(lambda: len(posted.bodies) >= 2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    began, ended = posted.bodies[:2]
    assert (began["state"], ended["state"]) == ("began", "ended")
    assert "expected the store, found none: is it mounted?" in began["what"] == ended["what"]


def _until(holds: Any) -> None:
    ends_at = time.monotonic() + 120
    while not holds():
        if time.monotonic() > ends_at:
            pytest.fail("it didn't happen within two minutes")
        time.sleep(0.02)
