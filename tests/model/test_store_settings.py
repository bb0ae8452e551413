"""Each setting of a store is described once; form, options and page have what the table says."""

from __future__ import annotations

from pathlib import Path

import click

from storage_engine.cli import cli
from storage_engine.get_provider_info import get_provider_info
from storage_engine.model.policy import Policy
from storage_engine.model.settings import settings_of
from storage_engine.model.store_settings import BROKER_SETTINGS, POLICY, STORE_SETTINGS, StoreSetting

PAGE = Path(__file__).parents[2] / "docs" / "connection.md"


def _row(one: StoreSetting) -> str:
    option = f"`{one.option}`" if one.option else ""
    return f"| `{one.place}` | {option} | {one.values} | {one.in_connection} |"


def test_the_page_says_what_the_table_does_and_no_more() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    wanted = [_row(one) for one in STORE_SETTINGS]
    assert sorted(rows) == sorted(wanted), "docs/connection.md needs these lines:\n" + "\n".join(wanted)


def test_the_form_asks_for_at_most_ten_things() -> None:
    (connection,) = get_provider_info()["connection-types"]
    assert list(connection["conn-fields"]) == [one.name for one in STORE_SETTINGS if one.label]
    assert len(connection["conn-fields"]) <= 10


def test_no_two_settings_share_a_name_or_an_older_one() -> None:
    names = [one.name for one in (*STORE_SETTINGS, *settings_of(Policy))]
    assert len(set(names)) == len(names)
    older = [one.older for one in STORE_SETTINGS if one.older]
    assert set(older).isdisjoint(names)
    assert {one.inside for one in STORE_SETTINGS} == {"", BROKER_SETTINGS}
    assert {BROKER_SETTINGS, POLICY} <= set(names)


def test_a_command_has_the_options_that_the_table_names() -> None:
    clean = cli.get_command(click.Context(cli), "clean")
    assert clean is not None
    options = {name for parameter in clean.params for name in parameter.opts}
    assert {one.option for one in STORE_SETTINGS if one.option and one.option != "STORE"} <= options
