from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from storage_engine.cli.options.stores_file import VARIABLE
from storage_engine.journal.journal import Journal
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
        ({**BESIDE, "store_host": "elsewhere"}, "expected to be read on host elsewhere"),
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


def test_a_look_at_the_shell_gives_prometheus_what_is_due_and_behind(
    cli, store: Path, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    at = (store, "--lake", lake, "--set", "deleteWhen=99")
    words = ("monitor", *at, "--notify", f"sh -c 'cat >> {told}'")

    def metrics() -> dict[str, float]:
        assert cli("metrics", "--lake", lake, "--textfile", tmp_path).exit_code == 0
        lines = (tmp_path / "storage_engine.prom").read_text().splitlines()
        pairs = (line.rpartition(" ") for line in lines if "{store=" in line)
        return {name.partition("{")[0].removeprefix("storage_engine_"): float(it) for name, _, it in pairs}

    # A cleanup looks at what it needs alone.
    assert cli("clean", *at).exit_code == 0
    assert metrics().keys() & {"due_bytes", "lost_ranges", "alarms", "archive_lag_bytes"} == set()
    assert cli(*words).exit_code == 0
    found = metrics()
    assert found["due_bytes"] == found["due_unproven_bytes"] == found["archive_lag_bytes"] > 0
    assert (found["lost_ranges"], found["alarms"], told.exists()) == (0, 0, False)
    # The same store by a name, whose policy has a limit.
    (tmp_path / "stores.toml").write_text(
        f'[named]\nroot = "{store}"\nlake = "{lake}"\n[named.policy]\narchive_lag_alarm_bytes = 1\n'
    )
    monkeypatch.setenv(VARIABLE, str(tmp_path / "stores.toml"))
    behind = cli("monitor", "named", "--set", "deleteWhen=99", *words[-2:])
    assert (behind.exit_code, "Alarm: archive lag" in behind.out) == (1, True), behind
    assert metrics()["alarms"] == 1
    assert json.loads(told.read_text())["state"] == "began"
    quiet = cli("monitor", "named", "--set", "deleteWhen=99", "--quiet")
    assert (quiet.exit_code, quiet.out, "Alarm: archive lag" in quiet.err) == (1, "", True), quiet


def test_a_connection_stands_for_all_that_a_look_takes(
    cli, store: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"lake": str(lake), "journal_url": f"sqlite:///{lake}/journal.db", "report_dir": str(lake / "r")}
    extra = {"root": str(store), **places, "overrides": {"deleteWhen": "99"}}
    definition = {"conn_type": "storage_engine", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_WATCHED", json.dumps(definition))
    found = cli("monitor", "--conn-id", "watched", "--json")
    assert found.exit_code == 0, found.out
    assert found.json["archive_lag"]["size_bytes"] > 0
    for words in (("--lake", lake), ("--archive-policy", "off"), ("--archive-margin-hours", 1)):
        refused = cli("monitor", "--conn-id", "watched", *words)
        assert refused.exit_code == 2
        assert f"expected no option for a field of the connection, found {words[0]}" in refused.err


def test_a_look_at_no_store_leaves_no_trace(cli, lake: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert cli("monitor", tmp_path / "empty", "--lake", lake).exit_code == 2
    assert not (lake / "journal.db").exists() or Journal(f"sqlite:///{lake}/journal.db").all_stores() == ()
