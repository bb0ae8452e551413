"""What tasks say names commands that can be pasted: the connection is their argument."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_engine.commands import Command, Text
from storage_engine.exceptions import LakeIdentityError, LakeMissingError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move import making
from storage_engine.operators.retention import StorageEngineArchiveLagOperator
from tests.services.command_line import run_command

CONTEXT: Any = {"dag_run": SimpleNamespace(dag_id="d", run_id="r")}


def command_in(text: str) -> list[str]:
    """Return the words of the first command that a text names with a connection."""
    named = text.partition("storage-engine ")[2].partition(",")[0]
    words = shlex.split(named)
    return words[: words.index("--conn-id") + 2]


def make_moved(lake: Path) -> None:
    """Make a lake elsewhere and move its directory to this place."""
    making.make_lake(LakeConfig.local(lake.with_name("before")))
    lake.with_name("before").rename(lake)


@pytest.fixture
def lag() -> StorageEngineArchiveLagOperator:
    return StorageEngineArchiveLagOperator(task_id="lag", storage_engine_conn_id="a_store")


@pytest.mark.slow
def test_the_command_that_an_error_names_can_be_run(store_connection: Any, lag: Any) -> None:
    store = store_connection()
    shutil.rmtree(store.directory / "lake")
    make_moved(store.directory / "lake")
    with pytest.raises(LakeIdentityError) as caught:
        lag.execute(CONTEXT)
    words = command_in(str(caught.value))
    assert words == ["lake", "relocate", "--conn-id", "a_store"]
    refused = run_command("lake", "info", "--conn-id", "a_store")
    assert (refused.exit_code, "lake relocate --conn-id a_store on" in refused.out) == (1, True)
    assert run_command(*words).exit_code == 0
    assert run_command("lake", "info", "--conn-id", "a_store").exit_code == 0
    assert lag.execute(CONTEXT)["segments"] > 0
    copied = run_command("lake", "copy", "--conn-id", "a_store", "--to", store.directory / "copy")
    assert copied.exit_code == 0, copied.err
    for command in (("lake", "info"), ("lake", "relocate"), ("lake", "promote", "--reason", "a test")):
        for more in ((), ("--conn-id", "a_store", "--lake", store.directory / "lake")):
            refused = run_command(*command, *more)
            assert (refused.exit_code, "Expected either --lake DIRECTORY or --conn-id ID" in refused.err) == (
                2,
                True,
            )


@pytest.mark.slow
def test_a_missing_lake_is_made_by_the_command_that_is_named(store_connection: Any, lag: Any) -> None:
    store = store_connection(make_lake=False)
    with pytest.raises(LakeMissingError) as caught:
        lag.execute(CONTEXT)
    assert f"init-lake --lake {store.directory}/lake" in str(caught.value)
    assert "lake rebuild --conn-id a_store" in str(caught.value)
    remote = {
        "type": "sql",
        "uri": f"sqlite:///{store.directory}/c.db",
        "warehouse": f"file://{store.directory}/w",
    }
    store_connection(make_lake=False, extra={"lake_directory": "", "lake_properties": remote})
    with pytest.raises(
        LakeMissingError,
        match=r"init-lake --lake DIRECTORY, .* or storage-engine init-lake --conn-id a_store, with",
    ):
        StorageEngineArchiveLagOperator(task_id="lag", storage_engine_conn_id="a_store").execute(CONTEXT)
    refused = run_command("init-lake", "--conn-id", "a_store")
    assert refused.exit_code == 2
    assert "expected a lake on another disk than its store's, found the warehouse" in refused.err
    assert not (Path(store.directory) / "c.db").exists()
    made = run_command("init-lake", "--conn-id", "a_store", "--allow-same-disk")
    assert made.exit_code == 0, made.err
    assert run_command("init-lake", "--conn-id", "a_store").exit_code == 0
    assert made.out.splitlines()[-1] == "Next: storage-engine doctor --conn-id a_store"


def test_an_error_about_the_second_lake_names_its_directory(
    store_connection: Any, lag: Any, tmp_path: Path
) -> None:
    store_connection(extra={"second_lake": str(tmp_path / "second")})
    make_moved(tmp_path / "second")
    with pytest.raises(LakeIdentityError, match=f"lake relocate --lake {tmp_path}/second on"):
        lag.execute(CONTEXT)


def test_a_notice_names_them_too(store_connection: Any, lag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store_connection()
    said: list[str] = []
    monkeypatch.setattr(lag.log, "warning", lambda *words: said.extend(words))
    lag.warn(Text("run ", Command("lake rebuild")))
    assert said[-1] == "run storage-engine lake rebuild --conn-id a_store"
