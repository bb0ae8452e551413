"""Stores that are moved and renamed at a shell, by the commands that refusals name."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.services.command_line import Outcome


def named_in(refused: Outcome) -> list[str]:
    """The command that a refusal says to run, as a shell splits it."""
    assert refused.exit_code == 1, refused.out + refused.err
    found = re.search(r"run storage-engine (move .*? --lake \S+)", refused.err)
    assert found is not None, refused.err
    return shlex.split(found[1])


def done(outcome: Outcome) -> Any:
    assert outcome.exit_code == 0, outcome.out + outcome.err
    return outcome.json


@pytest.mark.again
def test_a_store_that_was_moved_is_cleaned_at_its_new_place(
    cli, store, lake, files, plainly, tmp_path: Path
) -> None:
    named = ("--name", "my orders")
    archived = done(cli("archive", store, "--lake", lake, *named, "--json"))["archived"]
    moved = store.rename(tmp_path / "a larger disk")
    before = files(lake / "warehouse", moved)
    advised = named_in(cli("archive", moved, "--lake", lake))
    assert advised == ["move", "my orders", str(moved), "--lake", str(lake)]
    wrong = cli("move", "another", moved, "--lake", lake, "--name", "x")
    assert wrong.exit_code == 2
    assert files(lake / "warehouse", moved) == before
    record = done(cli(*advised, "--reason", "the disk was full", "--json"))
    assert (record["name"], record["real_path"]) == ("my orders", str(moved))
    again = done(cli(*advised, "--json"))
    assert again == record
    report = done(cli("clean", moved, "--lake", lake, "--manual", "--json"))["report"]
    assert (report["store"], report["store_id"]) == ("my orders", record["store_id"])
    gone = [row["base_offset"] for row in report["segments"] if row["fate"] == "deleted"]
    assert gone == [row["base_offset"] for row in archived] == [0, 1 << 20]


def test_a_copy_is_not_moved_while_its_store_is_there(cli, store, lake, tmp_path: Path) -> None:
    assert cli("archive", store, "--lake", lake, "--name", "orders").exit_code == 0
    copy = shutil.copytree(store, tmp_path / "copy")
    for words in (("archive", copy), ("move", "orders", copy), ("move", "copy", copy)):
        refused = cli(*words, "--lake", lake)
        assert refused.exit_code == 1
        assert (
            f"found a copy of store {done_id(cli, store, lake)}, whose original is at {store}" in refused.err
        )
    assert cli("archive", store, "--lake", lake).exit_code == 0
    made = cli("stamp", copy, "--lake", lake, "--new", "--reason", "a test", "--name", "orders")
    assert (made.exit_code, "expected a name that no other store has" in made.err) == (1, True)
    assert cli("stamp", copy, "--lake", lake, "--new", "--reason", "a test").exit_code == 0


def done_id(cli, store: Path, lake: Path) -> str:
    """The store's id, which a rename to the name that it has says."""
    return str(done(cli("move", "orders", store, "--lake", lake, "--json"))["store_id"])


def test_a_second_store_that_is_called_as_its_directory_needs_a_name(
    cli, store, lake, unpack, files, tmp_path: Path
) -> None:
    assert cli("archive", store, "--lake", lake).exit_code == 0
    other = unpack("clean-stop", tmp_path / "other").rename(tmp_path / "other" / store.name)
    before = files(lake / "warehouse", other)
    refused = cli("archive", other, "--lake", lake)
    assert refused.exit_code == 1
    assert f"found '{store.name}', the name of store {done_id(cli, store, lake)}" in refused.err
    assert "give it a name of its own: by --name at a shell" in refused.err
    assert files(lake / "warehouse", other) == before
    assert cli("archive", other, "--lake", lake, "--name", "payments").exit_code == 0
    assert cli("archive", other, "--lake", lake).exit_code == 0


@pytest.mark.again
def test_a_store_is_renamed_by_the_command_that_is_named(cli, store, lake, plainly) -> None:
    """Before anything is archived, so that nothing but the journal knows it."""
    never = ("--set", "deleteWhen=99")
    assert cli("clean", store, "--lake", lake, "--name", "orders", *never).exit_code == 0
    refused = cli("archive", store, "--lake", lake, "--name", "payments")
    assert cli(*named_in(refused)).exit_code == 0
    archived = cli("archive", store, "--lake", lake, "--name", "payments", "--json")
    assert done(archived)["archived"]
    assert cli("archive", store, "--lake", lake).exit_code == 0
    shown = cli("lake", "info", "--lake", lake).out
    assert "payments" in shown
    assert "orders" not in shown


def test_a_name_is_stated_and_not_empty(cli, store, lake, files) -> None:
    before = files(lake)
    for words in (("archive", store, "--name", " "), ("move", "", store)):
        assert cli(*words, "--lake", lake).exit_code == 2
    assert cli("move", "orders", store, "--conn-id", "orders").exit_code == 2
    assert {path for path in files(lake) if "journal" not in path} == set(before)
    unknown = cli("move", "orders", store, "--lake", lake)
    assert (unknown.exit_code, "expected the stamp of the store that was moved here" in unknown.err) == (
        1,
        True,
    )
