"""Each setting of a store is described once; form, options and page have what the table says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from zoneinfo import available_timezones

import click

from storage_engine.cli.main import cli
from storage_engine.get_provider_info import get_provider_info
from storage_engine.model.settings.policy import Policy, settings_of
from storage_engine.model.settings.store_settings import (
    BROKER_SETTINGS,
    POLICY,
    SECTIONS,
    STORE_SETTINGS,
    StoreSetting,
)

PAGE = Path(__file__).parents[3] / "docs" / "connection.md"


def _row(one: StoreSetting) -> str:
    option = f"`{one.option}`" if one.option else ""
    return f"| `{one.place}` | {option} | {one.values} | {one.in_connection} |"


def test_the_page_says_what_the_table_does_and_no_more() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    wanted = [_row(one) for one in STORE_SETTINGS]
    assert sorted(rows) == sorted(wanted), "docs/connection.md needs these lines:\n" + "\n".join(wanted)


def test_the_form_asks_section_by_section_for_few_things() -> None:
    (connection,) = get_provider_info()["connection-types"]
    fields = connection["conn-fields"]
    labelled = [one.own_field for one in STORE_SETTINGS if one.label]
    assert sorted(fields) == sorted([*labelled, *(one.name for one in settings_of(Policy) if one.label)])
    sections = [field["schema"]["section"] for field in fields.values()]
    assert list(dict.fromkeys(sections)) == list(SECTIONS)
    assert sections == sorted(sections, key=SECTIONS.index)
    assert max(Counter(sections).values()) <= 5
    assert len({field["label"] for field in fields.values()}) == len(fields)


def test_the_form_has_a_list_for_each_choice() -> None:
    (connection,) = get_provider_info()["connection-types"]
    fields = connection["conn-fields"]
    assert fields["mode"]["schema"]["enum"] == ["offline", "live", "engine"]
    assert fields["broker_tls"]["schema"]["enum"] == ["off", "on", "unverified"]
    # None of them: what nobody chose must not contradict a policy by name.
    assert fields["lag_policy"]["schema"]["enum"] == [None, "block", "warn", "ignore"]
    assert set(fields["time_zone"]["schema"]["examples"]) <= available_timezones()


def test_no_two_settings_share_a_name_or_a_field() -> None:
    names = [one.name for one in (*STORE_SETTINGS, *settings_of(Policy))]
    assert len(set(names)) == len(names)
    fields = [one.field for one in STORE_SETTINGS if one.field]
    assert set(fields).isdisjoint(names)
    assert {one.inside for one in STORE_SETTINGS} == {"", BROKER_SETTINGS}
    assert {BROKER_SETTINGS, POLICY} <= set(names)


def test_a_command_has_the_options_that_the_table_names() -> None:
    clean = cli.get_command(click.Context(cli), "clean")
    assert clean is not None
    options = {name for parameter in clean.params for name in parameter.opts}
    assert {one.option for one in STORE_SETTINGS if one.option and one.option != "STORE"} <= options
