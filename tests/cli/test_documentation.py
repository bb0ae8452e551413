"""The documentation names every command, argument and option, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from storage_engine.cli.options.store_argument import LIVE_OPTIONS, SHARED_STORE_OPTIONS
from tests.cli.every_command import EVERY

DOCUMENT = Path(__file__).parents[2] / "docs" / "command-line.md"
PACKAGE = Path(__file__).parents[2] / "storage_engine"
SECTIONS = {
    name.strip(): text
    for name, text in re.findall(
        r"^## `([a-z -]+)[^\n]*\n(.*?)(?=^## |\Z)", DOCUMENT.read_text(), re.M | re.S
    )
}


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(SECTIONS) == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_a_section_names_every_option_of_its_command_and_no_other(name: str) -> None:
    command = EVERY[name]
    shared = (*SHARED_STORE_OPTIONS, *LIVE_OPTIONS)
    named = [p for p in command.params if isinstance(p, click.Option) and p not in shared]
    options = {option for p in named for option in p.opts}
    (also,) = re.findall(r"^\| also \| (.*) \|$", SECTIONS[name], re.M) or [""]
    common = re.findall(r"--[a-z-]+", also)
    assert {*re.findall(r"^\| `(--[a-z-]+)", SECTIONS[name], re.M), *common} == options
    described = re.search(
        r"^## Options of several commands\n(.*?)(?=^## )", DOCUMENT.read_text(), re.M | re.S
    )
    assert described is not None
    assert set(common) <= set(re.findall(r"^\| `(--[a-z-]+)", described[1], re.M))


@pytest.mark.parametrize(
    ("heading", "shared"),
    [("Options of a store", SHARED_STORE_OPTIONS), ("Beside a running broker", LIVE_OPTIONS)],
)
def test_options_that_every_store_takes_are_named_once(
    heading: str, shared: tuple[click.Option, ...]
) -> None:
    section = re.search(rf"^## {heading}\n(.*?)(?=^## )", DOCUMENT.read_text(), re.M | re.S)
    assert section is not None
    options = {name for option in shared for name in option.opts if name.startswith("--")}
    assert set(re.findall(r"^\| `(--[a-z-]+)", section[1], re.M)) == options


@pytest.mark.parametrize("name", EVERY)
def test_a_command_takes_a_running_broker_where_it_takes_a_store(name: str) -> None:
    command = EVERY[name]
    takes_store = any(p.name in ("store", "stores") for p in command.params if isinstance(p, click.Argument))
    assert {p in command.params for p in LIVE_OPTIONS} == {takes_store}


@pytest.mark.parametrize("name", EVERY)
def test_a_heading_names_every_argument_of_its_command(name: str) -> None:
    command = EVERY[name]
    heading = re.search(rf"^## `{name}((?: [^`]*)?)`", DOCUMENT.read_text(), re.M)
    assert heading is not None
    arguments = [p.human_readable_name.strip("[]") for p in command.params if isinstance(p, click.Argument)]
    assert re.findall(r"[A-Z]+", heading[1]) == arguments


def test_what_queries_need_beside_this_package_is_said() -> None:
    page = DOCUMENT.with_name("query.md").read_text()
    for need in ("`PYSPARK_PYTHON`", "`pytz`"):
        assert need in page


def test_each_page_that_an_error_names_is_there() -> None:
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r'\bpage="([a-z-]+)"', code))
    assert {"command-line", "restore", "live"} <= named
    assert [name for name in named if not DOCUMENT.with_name(f"{name}.md").is_file()] == []
