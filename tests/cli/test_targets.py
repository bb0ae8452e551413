"""Where a person says to write, nothing of others is replaced, and nothing is put into a store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_engine.lake.catalog.writing import LOCK_NAME

pytestmark = pytest.mark.slow

MIB = 1 << 20


@pytest.fixture
def no_umask() -> Iterator[None]:
    previous = os.umask(0)
    yield
    os.umask(previous)


def test_a_lake_among_a_stores_own_files_is_refused_and_not_made(cli, store) -> None:
    (store / "deeper").symlink_to(store / "consumequeue")
    before = sorted(store.rglob("*"))
    for lake in (store, store / "commitlog", store / "consumequeue" / "lake", store / "deeper" / "lake"):
        refused = cli("init-lake", "--lake", lake)
        assert refused.exit_code == 2
        assert f"one among the files of the store {store}" in refused.err
        assert "Nothing was changed." in refused.err
    below = cli("init-lake", "--lake", store / "lake")
    assert below.exit_code == 2
    assert f"{store}: whatever destroys that store or lake destroys both" in below.err
    assert sorted(store.rglob("*")) == before


def test_a_lake_where_the_store_keeps_its_log_is_not_written_to(cli, store, tmp_path) -> None:
    log = tmp_path / "disk" / "log"
    log.parent.mkdir()
    (store / "commitlog").rename(log)
    assert cli("init-lake", "--lake", log / "lake").exit_code == 0
    other = tmp_path / "other"
    assert cli("init-lake", "--lake", other).exit_code == 0
    words = (store, "--set", f"storePathCommitLog={log}")
    before = sorted(log.rglob("*"))
    for lakes in (("--lake", log / "lake"), ("--lake", other, "--second-lake", log / "lake")):
        for command in (("archive",), ("clean", "--manual")):
            refused = cli(*command, *words, *lakes)
            assert refused.exit_code == 2
            assert f"one among the files of the store {store}" in refused.err
    assert sorted(log.rglob("*")) == before


def test_a_validation_replaces_only_what_one_made(cli, archived, tmp_path, files) -> None:
    words = ("validate", archived.store, "--output")
    project = tmp_path / "project"
    (project / "great_expectations" / "expectations").mkdir(parents=True)
    (project / "great_expectations" / "expectations" / "mine.json").write_text("{}")
    page = tmp_path / "site"
    page.mkdir()
    (page / "report.html").write_text("a report of somebody else")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "great_expectations").symlink_to(project)
    before = files(tmp_path)
    for directory in (project, page, linked):
        refused = cli(*words, directory)
        assert refused.exit_code == 2
        assert f"{directory}: expected a new directory or one with reports" in refused.err
    assert files(tmp_path) == before
    refused = cli(*words, archived.store / "config")
    assert refused.exit_code == 2
    assert "expected a place outside a broker's store" in refused.err


def test_a_validation_replaces_its_own_of_this_release_and_of_an_earlier_one(cli, tmp_path) -> None:
    this, earlier = tmp_path / "this", tmp_path / "earlier"
    for directory in (this, earlier):
        (directory / "great_expectations" / "gx").mkdir(parents=True)
        (directory / "great_expectations" / "gx" / "great_expectations.yml").write_text("{}")
        (directory / "report.html").write_text("a page")
    (this / "great_expectations" / "more.json").touch()
    (this / ".storage-engine-reports").touch()
    for directory in (this, earlier):
        missing = cli("validate", tmp_path / "none", "--output", directory)
        assert "expected the store's root directory" in missing.err
    (this / ".storage-engine-reports").unlink()
    assert "expected a new directory" in cli("validate", tmp_path / "none", "--output", this).err


def test_nothing_that_holds_messages_can_be_read_by_others(cli, store, tmp_path, no_umask) -> None:
    lake = tmp_path / "lake"
    assert cli("init-lake", "--lake", lake).exit_code == 0
    assert cli("clean", store, "--manual", "--lake", lake).exit_code == 0
    assert cli("export", "--lake", lake, "--to", tmp_path / "rows").exit_code == 0
    assert cli("restore", "--lake", lake, "--to", tmp_path / "restored").exit_code == 0
    made = [lake, tmp_path / "rows", tmp_path / "restored"]
    made += [*lake.rglob("*"), *(tmp_path / "restored").rglob("*")]
    assert {path.name for path in made} > {
        "catalog.db",
        "journal.db",
        "report.html",
        "index.html",
        "topics.json",
    }
    assert any(path.suffix == ".parquet" for path in made)
    open_to_others = {
        str(path): oct(mode)
        for path in made
        if (mode := stat.S_IMODE(path.stat().st_mode)) != (0o700 if path.is_dir() else 0o600)
    }
    assert open_to_others == {}


def test_below_a_setgid_lake_its_group_reads(cli, store, tmp_path, no_umask) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    lake.chmod(0o2750)
    assert cli("init-lake", "--lake", lake).exit_code == 0
    assert cli("archive", store, "--lake", lake).exit_code == 0
    other = {
        path.name: oct(mode)
        for path in lake.rglob("*")
        if (mode := stat.S_IMODE(path.stat().st_mode)) != (0o2750 if path.is_dir() else 0o640)
    }
    # Whoever can open it could keep commits waiting.
    assert other == {LOCK_NAME: "0o600"}


def test_an_export_that_finds_nothing_says_so(cli, archived, tmp_path) -> None:
    words = ("export", "--lake", archived.lake, "--to")
    found = cli(*words, tmp_path / "rows", "--topic", "orders", "--key", "k")
    assert found.exit_code == 0
    assert "no archived message in" in found.err
    assert "topic 'orders', key 'k'" in found.err
    refused = cli(*words, tmp_path / "none", "--key", "")
    assert refused.exit_code == 2
    assert "expected a key, found an empty text" in refused.err
    assert not (tmp_path / "none").exists()


def test_a_topic_that_is_not_archived_is_refused_with_the_nearest(cli, archived, tmp_path) -> None:
    target = tmp_path / "rows"
    refused = cli("export", "--lake", archived.lake, "--to", target, "--topic", "ordrs")
    assert (refused.exit_code, "found 'ordrs'. Did you mean orders?" in refused.err) == (2, True)
    assert not target.exists()


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("o.csv", (), 2),
        ("o.csv", ("--format", "jsonl"), 0),
        ("o.parquet", ("--format", "jsonl"), 2),
        ("o.JSONL", (), 0),
        ("-", (), 2),
    ],
)
def test_a_file_is_what_its_name_says(cli, archived, tmp_path, monkeypatch, name, words, code) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("export", "--lake", archived.lake, "--to", name, "--topic", "tx_topic", *words)
    assert done.exit_code == code, done
    assert [path.name for path in tmp_path.iterdir()] == ([] if code else [name])
    if not code:
        assert (tmp_path / name).read_bytes().startswith(b"{")


@pytest.mark.parametrize("command", [("restore",), ("export",), ("lake", "copy")])
def test_an_empty_target_is_not_the_working_directory(
    cli: Any, tmp_path: Path, command: tuple[str, ...]
) -> None:
    refused = cli(*command, "--to", "", "--lake", tmp_path)
    assert (refused.exit_code, "found an empty one" in refused.err) == (2, True), refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", ""),
        ("doctor", ""),
        ("watch", ""),
        ("clean", ".", "--lake", ""),
        ("doctor", ".", "--second-lake", ""),
        ("plan", ".", "--broker-conf", ""),
        ("plan", ".", "--tls-ca-file", ""),
        ("init-lake", "--lake", ""),
        ("lake", "rebuild", "--lake", ""),
        ("info", "--lake", ""),
        ("validate", ".", "--output", ""),
    ],
)
def test_no_empty_path_is_the_working_directory(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = cli(*words)
    assert (refused.exit_code, "found an empty one" in refused.err) == (2, True), refused.err
    assert not list(tmp_path.iterdir())


def test_a_missing_lake_is_named_as_a_shell_takes_it(cli: Any, tmp_path: Path) -> None:
    refused = cli("verify", "--lake", tmp_path / "a lake")
    assert f"init-lake --lake '{tmp_path / 'a lake'}'" in refused.err


@pytest.mark.parametrize("moment", ["0001-01-01", "0001-01-01T00:00+08:00", "9999-12-31T23:59-14:00"])
def test_a_moment_beyond_every_calendar_is_one_error(cli: Any, store: Path, moment: str) -> None:
    refused = cli("plan", store, "--at", moment)
    assert refused.exit_code == 2, refused
    assert "expected a year from 1970 to 9998" in refused.err
