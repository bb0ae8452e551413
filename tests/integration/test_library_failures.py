"""Faults of an object store, a catalog or a journal end each command in one error of ours, with what to do.

The servers are real ones. No command shows a library's traceback, and none that fails changes the store.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_engine import cycle
from storage_engine.exceptions import JournalUnavailableError
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.journal.tables import database
from storage_engine.lake.catalog import config
from storage_engine.lake.storage.small_files import forget_files
from tests.fixture_stores import unpack
from tests.integration.fault_proxy import FaultKind, FaultProxy, fault_proxy
from tests.integration.object_store import ObjectStore
from tests.integration.postgres import postgres
from tests.integration.server import free_port
from tests.rounds import later
from tests.services.command_line import run_command

pytestmark = pytest.mark.integration

COMMANDS = {
    "plan": "plan {store} --lake {lake}",
    "archive": "archive {new} --lake {lake}",
    "clean": "clean {store} --lake {lake} --manual",
    "verify": "verify --lake {lake}",
    "restore": "restore --lake {lake} --to {out}/store",
    "gc": "gc --lake {lake} --grace 1",
    "info": "info --lake {lake}",
    "doctor": "doctor {store} --lake {lake}",
    "init-lake": "init-lake --lake {lake}",
    "lake copy": "lake copy --lake {lake} --to {out}/copy",
}
CURES = (
    "un again",
    "un the same",
    "Bring",
    "lake rebuild",
    "Mount",
    "Check",
    "again, once",
    "Name",
    "choose one",
    "ake its database reachable",
    "Another process kept a lock",
)
ANSWERS = (FaultKind.FORBIDDEN, FaultKind.NOT_FOUND, FaultKind.SERVER_ERROR, FaultKind.SLOW_DOWN)
OLD_NS = time.time_ns() - 30 * 24 * 3600 * 10**9


def made(directory: Path, properties: dict[str, str]) -> dict[str, Path]:
    """Make a lake with a store's segments, and a store of which it has none."""
    places = {name: directory / name for name in ("store", "new", "lake", "out")}
    for name, fixture in (("store", "edge-frames"), ("new", "cqext-batchcq")):
        unpack(fixture, directory / f"{name}-made").rename(places[name])
        for segment in (places[name] / "commitlog").iterdir():
            os.utime(segment, ns=(OLD_NS, OLD_NS))
    for name in ("lake", "out"):
        places[name].mkdir()
    if properties:
        (places["lake"] / "lake.json").write_text(json.dumps(properties))
        (places["lake"] / "lake.json").chmod(0o600)
    for words in (("init-lake",), ("archive", places["store"])):
        outcome = run_command(*words, "--lake", places["lake"])
        assert outcome.exit_code == 0, outcome.err
    return places


def segments_of(places: dict[str, Path]) -> list[tuple[str, int]]:
    return [
        (str(path), path.stat().st_size) for name in ("store", "new") for path in (places[name]).rglob("0*")
    ]


def check_told(places: dict[str, Path], commands: list[str]) -> None:
    """Run commands while something is wrong: each ends well, or in one error with where and a cure."""
    before = segments_of(places)
    for name in commands:
        forget_files()
        outcome = run_command(*COMMANDS[name].format_map(places).split(), "--wait", "0.01")
        shutil.rmtree(places["out"] / "store", ignore_errors=True)
        shutil.rmtree(places["out"] / "copy", ignore_errors=True)
        assert outcome.exit_code in (0, 1, 2), (name, outcome)
        assert "Traceback" not in outcome.err + outcome.out, (name, outcome.err)
        assert "[Errno" not in outcome.err + outcome.out, (name, outcome)
        errors = [line for line in outcome.err.splitlines() if line.startswith("Error")]
        assert len(errors) <= 1, (name, errors)
        if outcome.exit_code and name not in ("doctor", "info", "plan"):
            assert errors or any(cure in outcome.out for cure in CURES), (name, outcome)
        after = segments_of(places)
        assert outcome.exit_code == 0 or after == before, name
        before = after
        for line in errors:
            assert any(cure in line for cure in CURES), (name, line)
            assert str(places["lake"].parent) in line or "s3://" in line, (name, line)
            assert "catalog-secret" not in line


@pytest.fixture(scope="module")
def proxy(object_store: ObjectStore) -> Iterator[FaultProxy]:
    with fault_proxy(object_store.port, object_store.objects) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def on_s3(
    object_store: ObjectStore, proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("on-s3")
    properties = object_store.properties(port=proxy.port)
    where = {"type": "sql", "uri": f"sqlite:///{base}/lake/catalog.db"}
    return made(base, {**properties, **where, "warehouse": f"{properties['warehouse']}/failures"})


@pytest.mark.parametrize("kind", later(*ANSWERS, FaultKind.STALL))
def test_an_object_store_that_answers_with_errors_is_told(
    kind: FaultKind, on_s3: dict[str, Path], proxy: FaultProxy, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(proxy.faults.clear)
    proxy.fail(kind, ".")
    check_told(on_s3, list(COMMANDS))


@pytest.mark.again
def test_an_object_store_that_refuses_connections_is_told(on_s3: dict[str, Path]) -> None:
    described = on_s3["lake"] / "lake.json"
    content = described.read_text()
    try:
        properties = json.loads(content)
        described.write_text(json.dumps({**properties, "s3.endpoint": f"http://127.0.0.1:{free_port()}"}))
        check_told(on_s3, list(COMMANDS))
    finally:
        described.write_text(content)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.close()


@contextmanager
def _corrupt(file: Path) -> Iterator[None]:
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    try:
        yield
    finally:
        file.write_bytes(content)


@contextmanager
def _no_database(file: Path) -> Iterator[None]:
    content = file.read_bytes()
    file.write_bytes(b"nothing that SQLite knows" * 400)
    try:
        yield
    finally:
        file.write_bytes(content)


@contextmanager
def _missing(file: Path) -> Iterator[None]:
    file.rename(file.with_suffix(".aside"))
    try:
        yield
    finally:
        file.with_suffix(".aside").rename(file)


@contextmanager
def _read_only(file: Path) -> Iterator[None]:
    """Root may write what it may not: a mount says so to everybody."""
    mounting = ["mount", "--bind", str(file.parent), str(file.parent)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(file.parent)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(file.parent)], check=True)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "locked": _locked,
    "corrupt": _corrupt,
    "no database": _no_database,
    "missing": _missing,
    "read-only": _read_only,
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return made(tmp_path_factory.mktemp("local"), {})


@pytest.mark.parametrize("file", ["catalog.db", "journal.db"])
@pytest.mark.parametrize("damage", ["no database", *later("locked", "corrupt", "missing", "read-only")])
def test_a_catalog_or_journal_that_cannot_be_used_is_told(
    damage: str, file: str, local: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lock is waited for, by default for half a minute or more.
    monkeypatch.setattr(config, "_SQLITE_BUSY_TIMEOUT_SECONDS", 1)
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 1_000)
    shutil.copytree(local["lake"].parent, tmp_path / "copy", symlinks=True)
    whole = local["lake"].parent
    with DAMAGES[damage](local["lake"] / file):  # type: ignore[attr-defined]
        check_told(local, list(COMMANDS))
    # What was made beside what was missing goes.
    shutil.rmtree(whole / "lake")
    shutil.copytree(tmp_path / "copy/lake", whole / "lake", symlinks=True)


@pytest.mark.again
def test_a_catalog_in_a_server_that_is_down_is_told(tmp_path: Path) -> None:
    with postgres() as server:
        where = {"type": "sql", "uri": server.uri, "warehouse": f"file://{tmp_path}/warehouse"}
        places = made(tmp_path, where)
        server.kill()
        check_told(places, list(COMMANDS))


@pytest.mark.again
def test_a_journal_in_a_server_that_is_down_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planned, archived or deleted without it, and the lake is asked all the same."""
    places = made(tmp_path, {})
    with postgres() as server:
        fields = {
            "root": str(places["store"]),
            "lake_directory": str(places["lake"]),
            "journal_url": server.uri,
            "report_dir": str(places["out"]),
        }
        connection = {"conn_type": "storage_engine", "extra": fields}
        monkeypatch.setenv("AIRFLOW_CONN_MAIN", json.dumps(connection))
        assert run_command("stamp", "--conn-id", "main", "--reason", "a test").exit_code == 0
        server.kill()
    before = segments_of(places)
    reason = ("--reason", "a test")
    for words in (
        ("runs",),
        ("info",),
        ("adopt", *reason),
        ("stamp", *reason),
        ("undo", "r"),
        ("move", "main"),
    ):
        outcome = run_command(*words, "--conn-id", "main")
        (told,) = [line for line in outcome.err.splitlines() if line.startswith("Error")]
        assert outcome.exit_code == 1, (words, outcome)
        assert "journal can't be read" in told, (words, told)
        assert "ake its database reachable" in told, (words, told)
        assert "catalog-secret" not in told, (words, told)
    outcome = run_command("doctor", "--conn-id", "main")
    assert "journal can't be read" in " ".join(outcome.out.split()), outcome
    assert "Traceback" not in outcome.err, outcome
    assert "catalog-secret" not in outcome.out + outcome.err
    cleanup = cycle.Cleanup(StorageEngineHook("main").managed_store, "r")
    for step in (cycle.plan, cycle.archive_sealed, cycle.archive, cycle.release):
        with pytest.raises(JournalUnavailableError, match=r"Make its database reachable and writable"):
            step(cleanup)
    assert segments_of(places) == before
