"""An error names the command that helps with this call's own arguments, to be pasted."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.cli import cli as group
from storage_engine.cli.options.store_argument import managed_store
from storage_engine.cli.shell.command import parameters_of, with_store_of_connection
from storage_engine.core.next_commands import _COMMANDS, _STORE_ALONE, _STORE_WITH_LAKE, with_arguments
from storage_engine.model.broker.live import LiveBroker


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Run storage-engine lake relocate on it.", "storage-engine lake relocate --lake 'the lake' on it."),
        ("run storage-engine lake rebuild, which", "storage-engine lake rebuild --lake 'the lake', which"),
        ("storage-engine stamp.", "storage-engine stamp store --lake 'the lake' --reason TEXT."),
        ("storage-engine stamp --new on", "stamp --new store --lake 'the lake' --reason TEXT on"),
        ("storage-engine move orders on it", "move orders store --lake 'the lake' on it"),
        ("storage-engine move 'my orders'; if", "move 'my orders' store --lake 'the lake'; if"),
        ("storage-engine move 'ann'\"'\"'s', or", "move 'ann'\"'\"'s' store --lake 'the lake', or"),
        ("storage-engine archive again", "storage-engine archive store --lake 'the lake' again"),
        ("by storage-engine init-lake.", "by storage-engine init-lake --lake 'the lake'."),
    ],
)
def test_a_command_without_arguments_gets_those_of_the_call(text: str, told: str) -> None:
    assert told in with_arguments(text, {"lake_dir": Path("the lake"), "store": Path("store")})


@pytest.mark.parametrize("command", [*_STORE_WITH_LAKE, *_STORE_ALONE])
def test_a_next_command_is_given_options_that_it_has(command: str) -> None:
    said = {"lake_dir": "l", "store": "s", "store_options": ("--name", "orders", "--broker-conf", "c")}
    told = with_arguments(f"storage-engine {command}", said)
    assert "--broker-conf c" in told
    assert ("--name orders" in told) == (command in _STORE_WITH_LAKE)
    context = group.make_context("storage-engine", shlex.split(told)[1:], resilient_parsing=True)
    name, found, rest = group.resolve_command(context, shlex.split(told)[1:])
    assert found is not None
    has = {word for option in found.params for word in option.opts}
    assert {word for word in rest if word.startswith("--")} <= has, name


@pytest.mark.parametrize(
    "text",
    [
        "storage-engine lake rebuild --lake /other",
        "storage-engine lake copy makes copies",
        "storage-engine init-lake --lake DIRECTORY",
        "storage-engine archive STORE --lake /lake",
    ],
)
def test_what_has_arguments_or_needs_others_stays(text: str) -> None:
    assert with_arguments(text, {"lake_dir": Path("/lake"), "store": Path("/store")}) == text


@pytest.mark.parametrize(
    "said",
    [
        {"lake_dir": Path("a lake."), "store": Path("store")},
        {"lake_dir": Path("/lake,"), "store": Path()},
        {"lake_dir": Path("l"), "store": Path("it's, a store")},
        {"lake_dir": Path("l"), "conn_id": "c."},
        {"conn_id": "c"},
        {"lake_dir": Path("first"), "second_lake_dir": Path("second"), "store": Path("~store")},
    ],
)
def test_what_has_got_its_arguments_gets_no_others(said: dict[str, Any]) -> None:
    for command in _COMMANDS:
        for text in (
            f"Run storage-engine {command}.",
            f"storage-engine {command}, or else",
            f"storage-engine {command}",
            f"(storage-engine {command}) and storage-engine {command} on it; --conn-id names a store",
        ):
            once = with_arguments(text, said)
            assert with_arguments(once, said) == once
    for text in (
        "gc --undo 20261122T101010Z-ab",
        "stamp ./store --lake l",
        "stamp store --lake l --reason r",
    ):
        assert with_arguments(f"storage-engine {text}", said) == f"storage-engine {text}"


def test_what_is_not_known_is_left_out() -> None:
    text = "run storage-engine adopt, or storage-engine lake rebuild"
    assert with_arguments(text, {}) == text
    assert with_arguments(text, {"lake_dir": "l"}) == f"{text} --lake l"
    assert with_arguments(text, {"conn_id": "c"}) == (
        "run storage-engine adopt --conn-id c --reason TEXT, or storage-engine lake rebuild --conn-id c"
    )
    # A lake that was named beside a connection need not be that connection's.
    assert with_arguments(text, {"conn_id": "c", "lake_dir": "l"}) == (
        "run storage-engine adopt --conn-id c --reason TEXT, "
        "or storage-engine lake rebuild --lake l --conn-id c"
    )
    assert with_arguments("init-lake --lake DIRECTORY, or --conn-id ID, of", {"conn_id": "c"}) == (
        "init-lake --lake DIRECTORY, or --conn-id c, of"
    )


def test_a_connection_s_store_is_named_where_a_command_takes_no_connection() -> None:
    store = replace(
        managed_store(Path("/a store"), broker_conf=Path("/b.conf"), overrides={"deleteWhen": "05"}),
        live=LiveBroker(address="host:10911", secret_key="never shown"),
    )
    said = with_store_of_connection({"conn_id": "c"}, store)
    assert with_arguments("details: storage-engine lag", said) == (
        "details: storage-engine lag '/a store' --broker-conf /b.conf --set deleteWhen=05 --broker host:10911"
    )
    assert with_arguments("storage-engine doctor", said) == "storage-engine doctor --conn-id c"


@pytest.mark.parametrize("words", [[], ["nothing"], ["lake"], ["lake", "nothing"], ["verify", "--nothing"]])
def test_a_call_that_names_no_command_has_no_parameters(words: list[str]) -> None:
    assert not parameters_of(group, words).get("lake_dir")


@pytest.mark.slow
def test_the_command_that_is_named_can_be_run(cli: Any, archived: Any, tmp_path: Path) -> None:
    copy = shutil.copytree(archived.lake, tmp_path / "a copy")
    advice = f"storage-engine lake relocate --lake {shlex.quote(str(copy))}"
    assert advice in cli("verify", "--lake", copy).err
    assert advice in cli("verify", "--lake", copy, "--json").json["error"]["message"]
    assert advice in cli("lake", "info", "--lake", copy).out
    assert advice in cli("lake", "info", "--lake", copy, "--json").json["refused"]
    asked = cli("verify", archived.store, "--lake", archived.lake, "--second-lake", copy)
    assert advice in asked.out + asked.err
    done = cli(*shlex.split(advice)[1:])
    assert done.exit_code == 0, done.err


@pytest.mark.slow
def test_a_store_that_was_moved_is_known_by_the_command_that_is_named(
    cli: Any, store_copy: Any, lake: Path, tmp_path: Path
) -> None:
    store = store_copy("clean-stop")
    assert cli("archive", store, "--lake", lake).exit_code == 0
    moved = store.rename(tmp_path / "moved")
    refused = cli("archive", moved, "--lake", lake)
    advice = f"storage-engine move moved {moved} --lake {lake}"
    assert (refused.exit_code, advice in refused.err) == (1, True), refused.err
    assert cli(*shlex.split(advice)[1:]).exit_code == 0
    assert cli("archive", moved, "--lake", lake).exit_code == 0
