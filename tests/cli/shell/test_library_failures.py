"""What a library raises, and no layer tells better, ends a command in one error of ours and no traceback."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
from pathlib import Path

import click
import pyarrow as pa
import pytest
import requests
from py4j.protocol import Py4JError
from pydantic import TypeAdapter, ValidationError
from pyiceberg.exceptions import ServerError
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from storage_engine.cli import main as command_line
from storage_engine.cli.shell.library_failures import storage_failure
from storage_engine.commands import Arguments
from tests.cli.bad_input import check_error
from tests.rounds import again_but, some
from tests.services.disk_faults import Failing, Fault, compiled, run_failing


def _of_sqlalchemy() -> Exception:
    with pytest.raises(SQLAlchemyError) as raised, create_engine("sqlite:////dev/null/none").connect():
        pass
    return raised.value


def _of_statement() -> Exception:
    with pytest.raises(SQLAlchemyError) as raised, create_engine("sqlite://").connect() as connection:
        connection.execute(text("SELECT secret FROM missing"))
    return raised.value


def _of_pydantic() -> Exception:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(int).validate_python("x")
    return raised.value


JAVA = "An error occurred while calling o1.save.\n: java.io.IOException: No space left\n\tat a.b.C(D:1)"
FAILURES = {
    "a catalog that can't be opened": (_of_sqlalchemy(), "OperationalError: unable to open database file"),
    "a statement": (_of_statement(), "OperationalError: no such table: missing."),
    "sqlite": (sqlite3.OperationalError("database is locked"), "OperationalError: database is locked"),
    "arrow": (pa.ArrowInvalid("not a Parquet file"), "ArrowInvalid: not a Parquet file"),
    "arrow's file": (OSError("AWS Error ACCESS_DENIED during PutObject"), "OSError: AWS Error ACCESS_DENIED"),
    "iceberg": (ServerError("500: broken"), "ServerError: 500: broken"),
    "http": (requests.exceptions.ConnectTimeout("no answer"), "ConnectTimeout: no answer"),
    "pydantic": (_of_pydantic(), "ValidationError: 1 validation error for int"),
    "java": (
        Py4JError(JAVA),
        "Py4JError: An error occurred while calling o1.save. : java.io.IOException",
    ),
}


@pytest.mark.parametrize(("error", "told"), FAILURES.values(), ids=FAILURES)
def test_a_command_that_a_library_fails_ends_in_one_error(
    error: Exception, told: str, cli, monkeypatch: pytest.MonkeyPatch, archived
) -> None:
    def fail(*_arguments: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr("storage_engine.retention.doctor.overview.overview", fail)
    outcome = cli("info", "--lake", archived.lake)
    line = check_error(
        outcome, 1, f"lake {archived.lake}: expected disk, object store", told, "Then run the same"
    )
    assert "SELECT" not in line
    assert "at a.b.C" not in line
    as_json = cli("info", "--lake", archived.lake, "--json")
    assert as_json.json["error"]["type"] == "StorageUnavailableError"
    assert told in as_json.json["error"]["message"]


def test_an_error_of_the_system_names_its_file() -> None:
    for number in (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES):
        error = OSError(number, "what", "/a/file")
        assert str(storage_failure(error, Arguments())).startswith("/a/file: what. Check the path")
    told = str(storage_failure(OSError(errno.ENOSPC, "No space left on device"), Arguments(store="/data")))
    assert told.startswith("store /data: expected disk")
    assert "found OSError: No space left on device. Check" in told


def test_a_mistake_of_our_own_is_no_failure_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def mistaken() -> None:
        {}["key"]

    monkeypatch.setattr(command_line, "cli", mistaken)
    with pytest.raises(KeyError):
        command_line.main([])


FAULTS = (("write", "ENOSPC"), ("fsync", "EIO"), ("create", "EROFS"), ("open", "EACCES"), ("read", "EIO"))
MORE_FAULTS = (("rename", "EIO"), ("mkdir", "EROFS"), ("unlink", "EACCES"), ("create", "ENOSPC"))
COMMANDS = {
    "archive": "archive {store} --lake {empty}",
    "restore": "restore --lake {lake} --to {out}/store",
    "verify": "verify --lake {lake}",
    "export": "export --lake {lake} --to {out}/rows.parquet",
    "init-lake": "init-lake --lake {out}/lake",
    "clean": "clean {store} --lake {empty} --manual",
    "gc": "gc --lake {lake} --grace 1",
    "info": "info --lake {lake}",
    "plan": "plan {store} --lake {lake}",
    "doctor": "doctor {store} --lake {lake}",
    "lake copy": "lake copy --lake {lake} --to {out}/copy",
    "lake rebuild": "lake rebuild --lake {lake}",
}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("disk-faults"))


@pytest.mark.slow
@pytest.mark.parametrize("name", again_but(COMMANDS, "archive"))
def test_no_fault_of_a_disk_shows_a_traceback(
    name: str, shim: Path, cli, store: Path, tmp_path: Path, expire
) -> None:
    """Calls of each kind on a store, its lake and what is made fail, from one of them on."""
    places = {one: tmp_path / one for one in ("store", "lake", "empty", "out")}
    store.rename(places["store"])
    places["out"].mkdir()
    for lake in ("lake", "empty"):
        assert cli("init-lake", "--lake", places[lake]).exit_code == 0
    assert cli("archive", places["store"], "--lake", places["lake"]).exit_code == 0
    kept = tmp_path / "kept"
    kept.mkdir()
    for one, path in places.items():
        subprocess.run(["cp", "-a", str(path), str(kept / one)], check=True)
    words = tuple(COMMANDS[name].format_map(places).split())
    copies = tuple((str(kept / one), str(path)) for one, path in places.items())
    faults = [
        Fault(call, error, number)
        for call, error in (*FAULTS, *some(MORE_FAULTS, 0))
        for number in some((2, 13, 1, 4, 9, 30, 55), 1)
    ]
    failed = run_failing(shim, [Failing(words, f"{tmp_path}/", fault, copies) for fault in faults])
    assert any(one.calls for one in failed)
    for fault, outcome in zip(faults, failed, strict=True):
        assert "Traceback" not in outcome.err, (fault, outcome.err)
        assert outcome.exit_code in (0, 1, 2), (fault, outcome.err)
        errors = [line for line in outcome.err.splitlines() if line.startswith("Error")]
        assert len(errors) <= 1, (fault, errors)
        # Each names a file or what the command works on, and says what to do.
        assert all(str(tmp_path) in line and line.count(". ") >= 1 for line in errors), (fault, errors)
