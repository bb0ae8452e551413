"""info and runs: what is managed and what was done, by looking alone."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from storage_engine.cli.shell.shared_options import ENVIRONMENT
from storage_engine.journal.journal import Journal
from storage_engine.journal.tables import database
from storage_engine.lake.catalog import config
from tests.rounds import later

MIB = 1 << 20
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plainly")]


def _contents(*directories: Path) -> dict[Path, str]:
    files = [path for one in directories for path in one.rglob("*") if path.is_file()]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_what_is_managed_is_told_by_journal_lake_and_disk(cli, store, lake, monkeypatch) -> None:
    words = ("clean", store, "--lake", lake, "--manual", "--name", "orders", "--undo-window-hours", 24)
    words += ("--set", "deleteWhen=99")
    assert cli(*words, "--run-key", "night", "--max-segments", 1).exit_code == 0
    assert cli("archive", store, "--lake", lake).exit_code == 0
    before = _contents(store, lake)

    (found,) = cli("info", "--lake", lake, "--json").json["stores"]
    assert (found["name"], found["path"], found["not_seen"]) == ("orders", str(store), "")
    assert [(one["start_offset"], one["segments"]) for one in found["on_disk"]] == [(MIB, 2)]
    (part,) = found["archived"]
    assert (part["segments"], part["ranges"]) == (2, [["commitlog", 1, 0, 2 * MIB]])
    assert found["last_run"]["run_key"].startswith("archive-")
    assert [one["run_key"] for one in found["quarantines"]] == ["night"]
    assert found["standing"]["verified"] is None
    shown = cli("info", "orders", "--lake", lake).out
    for fact in ("verified    never", "commitlog [0, 2097152), lineage 1", "quarantine  run night: "):
        assert fact in shown

    listed = cli("runs", "--lake", lake, "--json").json
    assert (listed["store"], len(listed["runs"])) == ("orders", 2)
    night = listed["runs"][1]
    assert (night["run"]["outcome"], night["run"]["causes"], night["run"]["deleted_segments"]) == (
        "done",
        ["manual"],
        1,
    )
    written = Path(night["report_json"])
    told = cli("runs", "night", "--lake", lake)
    assert told.out == written.with_name("report.txt").read_text()
    monkeypatch.setenv(f"{ENVIRONMENT}LAKE", str(lake))
    assert cli("runs", "night", "--json").json["report"]["run_key"] == "night"
    assert "night" in cli("runs", "--store", store).out
    assert _contents(store, lake) == before


def test_what_people_decided_is_told_with_who_and_why(cli, store, lake) -> None:
    dry = cli("clean", store, "--lake", lake, "--manual", "--max-segments", 1, "--dry-run", "--json").json
    assert cli("archive", store, "--lake", lake).exit_code == 0
    digest = dry["plan"]["digest"]
    words = ("clean", store, "--lake", lake, "--manual", "--max-segments", 1, "--run-key", "r")
    cli("waive", digest, "--lake", lake, "--reason", "a test store")
    assert cli(*words).exit_code == 0
    assert cli("verify", "--lake", lake, "--level", "files").exit_code == 0
    (found,) = cli("info", "--lake", lake, "--json").json["stores"]
    (waiver,) = found["standing"]["waivers"]
    assert (waiver["plan_digest"], waiver["reason"], bool(waiver["person"])) == (digest, "a test store", True)
    assert (found["standing"]["verified"]["receipts"], found["standing"]["verified"]["faulty"]) == (2, 0)
    assert f"waived    plan {digest[:16]}: a test store (" in cli("info", "--lake", lake).out


def test_a_name_that_nobody_knows_is_refused_with_the_nearest(cli, store, lake) -> None:
    assert cli("archive", store, "--lake", lake, "--name", "orders").exit_code == 0
    for words in (("info", "order"), ("runs", "--store", "order")):
        refused = cli(*words, "--lake", lake)
        assert (refused.exit_code, "Did you mean orders?" in refused.err) == (2, True)
    (run,) = cli("runs", "--lake", lake, "--json").json["runs"]
    key = run["run"]["run_key"]
    refused = cli("runs", key[:-1], "--lake", lake)
    assert (refused.exit_code, f"Did you mean {key}?" in refused.err) == (2, True)
    refused = cli("runs", key, "--lake", lake)
    assert (refused.exit_code, "expected its report" in refused.err) == (2, True)


def test_of_several_stores_one_has_to_be_named(cli, store, store_copy, lake) -> None:
    for name, root in (("a", store), ("b", store_copy("edge-frames"))):
        assert cli("archive", root, "--lake", lake, "--name", name).exit_code == 0
    refused = cli("runs", "--lake", lake)
    assert (refused.exit_code, "expected --store, since the journal has 2 stores: a, b" in refused.err) == (
        2,
        True,
    )
    assert [one["name"] for one in cli("info", "--lake", lake, "--json").json["stores"]] == ["a", "b"]
    assert [one["name"] for one in cli("info", "b", "--lake", lake, "--json").json["stores"]] == ["b"]


def test_a_lake_without_its_journal_tells_what_it_has(cli, store, lake) -> None:
    assert cli("archive", store, "--lake", lake, "--name", "orders").exit_code == 0
    store.rename(store.with_name("gone"))
    found = cli("info", "--lake", lake, "--json").json["stores"][0]
    assert (found["on_disk"], str(store) in found["not_seen"]) == (None, True)
    (lake / "journal.db").unlink()
    said = cli("info", "--lake", lake, "--json").json
    assert "expected a journal, found none" in said["journal_missing"]
    assert (said["stores"][0]["name"], said["stores"][0]["archived"][0]["segments"]) == ("orders", 2)
    assert not (lake / "journal.db").exists()


@pytest.mark.parametrize("words", [("info", ""), ("runs", " "), ("runs", "--store", "")])
def test_an_empty_name_is_refused(cli, lake, words: tuple[str, ...]) -> None:
    refused = cli(*words, "--lake", lake)
    assert (refused.exit_code, "expected a name, found an empty text" in refused.err) == (2, True)


def test_an_empty_lake_manages_nothing(cli, lake) -> None:
    shown = cli("info", "--lake", lake)
    assert (shown.exit_code, "No store is managed" in shown.out) == (0, True)
    assert cli("info").exit_code == 2


def test_where_no_store_is_managed_no_run_has_begun(cli, store, lake) -> None:
    missing = cli("runs", "--lake", lake)
    assert (missing.exit_code, "A first run makes it." in missing.err) == (1, True)
    Journal(f"sqlite:///{lake}/journal.db")
    listed = cli("runs", "--lake", lake)
    assert (listed.exit_code, "no run of any store has begun" in listed.out) == (0, True)
    assert cli("runs", "--lake", lake, "--json").json["runs"] == []
    assert cli("runs", "r", "--lake", lake).exit_code == 2
    assert cli("archive", store, "--lake", lake, "--name", "orders").exit_code == 0
    assert len(cli("runs", "--lake", lake, "--json").json["runs"]) == 1


def test_what_a_lake_that_can_not_be_read_has_is_not_known(cli, lake) -> None:
    (lake / "warehouse").rename(lake / "elsewhere")
    shown = cli("info", "--lake", lake)
    assert (shown.exit_code, "No store is managed" in shown.out) == (1, False)
    assert "Which stores are managed isn't known" in shown.out


DRY = "Dry run: this is what a run would do now.\n"


@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize("stated", ["orders", *later(None)])
def test_a_store_is_called_the_same_everywhere(stated: str | None, cli, store, lake) -> None:
    naming = () if stated is None else ("--name", stated)
    asked = (store, "--lake", lake)
    assert cli("clean", *asked, *naming, "--manual", "--run-key", "r").exit_code == 0
    called = stated or store.name
    assert [one["name"] for one in cli("info", called, "--lake", lake, "--json").json["stores"]] == [called]
    assert cli("runs", "--store", called, "--lake", lake, "--json").json["store"] == called
    assert f"Runs of {called}" in cli("runs", "--lake", lake).out
    assert f"Store {called}" in cli("info", "--lake", lake).out
    assert f"Store {called}: OK, " in cli("verify", "--lake", lake).out
    head = f"Store {called} (rocketmq, {store})\n"
    assert cli("runs", "r", "--lake", lake).out.startswith(head)
    for words in (("doctor",), ("inspect",), ("plan",), ("simulate",), ("validate",), ("clean", "--dry-run")):
        assert cli(*words, *asked).out.removeprefix(DRY).startswith(head), words
    for name in ("doctor", "inspect", "plan", "simulate", "validate"):
        assert cli(name, *asked, "--json").json["name"] == called
    in_lakes = (("lake", "info", "--lake", lake), ("verify", "--lake", lake), ("verify", *asked))
    for words in in_lakes:
        assert [one["name"] for one in cli(*words, "--json").json["stores"]] == [called], words
    page = next((lake / "reports").glob("*/by-hand/report.html")).read_text()
    assert f"<title>{called} · " in page
    for file in lake.glob("journal.db*"):
        file.unlink()
    for words in (("info", "--lake", lake), *in_lakes[:2]):
        assert [one["name"] for one in cli(*words, "--json").json["stores"]] == [called], words


def test_what_another_process_has_locked_is_told_with_what_to_do(
    cli, store, lake, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Each command waits for a lock once, and says that nobody could tell what it would have read."""
    monkeypatch.setattr(config, "_SQLITE_BUSY_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 200)
    assert cli("archive", store, "--lake", lake).exit_code == 0
    cure = "Another process kept a lock on this file for longer than this one waited. Wait for that process"
    with closing(sqlite3.connect(lake / "journal.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        refused = cli("runs", "--lake", lake)
        told = f"Error: sqlite:///{lake}/journal.db: the journal can't be read (database is locked). {cure}"
        assert (refused.exit_code, refused.err.startswith(told)) == (1, True), refused
        shown = cli("info", "--lake", lake).out
        assert re.search(r"on disk +not seen: no journal could be asked for its path\n", shown), shown
        assert re.search(r"last run +not known\n", shown), shown
        verified = cli("verify", "--lake", lake).out
        assert f"Store {store.name}: WARNING, " in verified
        assert "WARNING journal: its record of deletions was not compared: " in verified
    with closing(sqlite3.connect(lake / "catalog.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        for words in (("verify", "--lake", lake), ("archive", store, "--lake", lake)):
            refused = cli(*words)
            told = f"can't open the catalog: database is locked. The store was not changed. {cure}"
            assert (refused.exit_code, told in refused.err) == (1, True), refused
        waits: list[object] = []
        remember = lambda context: waits.append(context)  # noqa: E731
        event.listen(Engine, "handle_error", remember)
        request.addfinalizer(lambda: event.remove(Engine, "handle_error", remember))
        shown = cli("info", "--lake", lake)
        assert (shown.exit_code, told in shown.out, len(waits)) == (1, True, 1), (shown, waits)
