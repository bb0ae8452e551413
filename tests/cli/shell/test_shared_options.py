"""What all commands share: groups in their help, --quiet, the environment, and the nearest name."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from storage_engine.cli.shell.shared_options import (
    ENVIRONMENT,
    GROUPS,
    SHARED_GROUPS,
    GroupedOption,
    ShellCommand,
    records_of,
)
from tests.cli.every_command import EVERY

HEADING = re.compile(r"^([A-Z][A-Za-z ]+):$", re.MULTILINE)


@pytest.mark.parametrize("name", EVERY)
def test_help_has_options_in_groups_and_says_where_shared_ones_are(cli, name: str) -> None:
    assert isinstance(EVERY[name], ShellCommand)
    shown = cli(*name.split(), "--help").out
    headings = [heading for heading in HEADING.findall(shown) if heading in GROUPS]
    assert headings == sorted(headings, key=GROUPS.index)
    assert len(headings) == len(set(headings))
    assert not {"Store", "Running broker"} & set(headings)
    *_, last = shown.split("\nOutput:\n")
    assert "--help" in last
    assert last.rstrip().endswith("storage-engine options")


def test_a_commands_help_and_the_shared_options_name_every_option(cli) -> None:
    shared = cli("options").out
    for name, command in EVERY.items():
        shown = cli(*name.split(), "--help").out + shared
        options = [option for p in command.params if isinstance(p, click.Option) for option in p.opts]
        assert [option for option in options if option not in shown] == [], name


def test_helps_show_at_most_so_many_options() -> None:
    shown = sum(
        len(rows)
        for name, command in EVERY.items()
        for group, rows in records_of(command, click.Context(command, info_name=name)).items()
        if group not in SHARED_GROUPS
    )
    # Of each command the two that every one has are told in the shared options.
    assert shown - 2 * len(EVERY) <= 386


def test_a_variable_stands_in_for_an_option_and_what_is_typed_comes_first(
    cli, archived, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(f"{ENVIRONMENT}LAKE", str(archived.lake))
    assert cli("verify", "--level", "receipts").exit_code == 0
    refused = cli("verify", "--level", "receipts", "--lake", tmp_path)
    assert (refused.exit_code, str(tmp_path) in refused.err) == (2, True)
    # Beside --conn-id the environment's lake says nothing: there is no connection of this name.
    assert "Expected either" not in cli("lake", "info", "--conn-id", "no-such-connection").err


def test_a_variable_for_a_store_says_nothing_where_no_store_is_named(
    cli, archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{ENVIRONMENT}BROKER", "127.0.0.1:1")
    monkeypatch.setenv(f"{ENVIRONMENT}TIME_ZONE", "Asia/Shanghai")
    assert cli("verify", "--lake", archived.lake, "--level", "receipts").exit_code == 0
    assert "127.0.0.1:1" in cli("inspect", archived.store).err


def test_a_bad_variable_is_refused_by_its_options_name(
    cli, archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{ENVIRONMENT}TIME_ZONE", "Mars/Base")
    refused = cli("plan", archived.store)
    assert (refused.exit_code, "found 'Mars/Base'" in refused.err, "time-zone" in refused.err) == (
        2,
        True,
        True,
    )


@pytest.mark.parametrize("name", EVERY)
def test_every_variable_is_named_in_the_help(cli, name: str) -> None:
    shown = re.sub(r"\s+", "", cli(*name.split(), "--help").out + cli("options").out)
    options = [p for p in EVERY[name].params if isinstance(p, GroupedOption) and p.envvar]
    assert all(f"{option.envvar}" in shown for option in options)


def test_a_quiet_command_says_nothing_when_all_is_well(cli, archived, store) -> None:
    for words in (
        ("inspect", store),
        ("plan", store),
        ("verify", "--lake", archived.lake, "--level", "receipts"),
    ):
        done = cli(*words, "--quiet")
        assert (done.exit_code, done.out, done.err) == (0, "", "")


def test_a_quiet_command_that_does_not_end_well_says_why(cli, archived, tmp_path: Path) -> None:
    refused = cli("plan", tmp_path / "none", "-q")
    assert (refused.exit_code, refused.out) == (2, "")
    assert str(tmp_path / "none") in refused.err
    none = cli("index-lookup", archived.store, "no-topic", "no-key", "-q")
    assert (none.exit_code, none.out) == (1, "")
    assert "the log has no message of topic 'no-topic' with key 'no-key'." in none.err


def test_a_quiet_command_prints_the_data_that_it_was_asked_for(cli, archived) -> None:
    assert cli("plan", archived.store, "--json", "-q").json["kind"] == "plan"
    assert "pyiceberg==" in cli("constraints", "-q").out


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("pln",), "plan"),
        (("lake", "inf"), "info"),
        (("verify", "--lakee", "x"), "--lake"),
        (("plan", "STORE", "--set", "fileReservedTimes=1"), "fileReservedTime"),
        (("plan", "STORE", "--set", "deletewhen=4"), "deleteWhen"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(
    cli, archived, words: tuple[str, ...], meant: str
) -> None:
    refused = cli(*(archived.store if word == "STORE" else word for word in words))
    assert refused.exit_code == 2
    assert re.search(rf"Did you mean .*{meant}\b", refused.err)


def test_what_is_like_no_name_is_refused_without_one(cli, archived) -> None:
    refused = cli("plan", archived.store, "--set", "qqqqqqqq=1")
    assert (refused.exit_code, "Did you mean" in refused.err) == (2, False)
    assert "Did you mean" not in cli("xxxxxxxxxxxx").err


def test_a_setting_of_another_version_may_stand_in_broker_conf(cli, archived, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("aSettingOfVersion9=1\n")
    assert cli("plan", archived.store, "--broker-conf", conf).exit_code == 0
