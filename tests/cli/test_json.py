"""Every --json prints one object that says of which command and version it is."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.cli.output.output import print_json
from tests.cli.every_command import EVERY

MIB = 1 << 20
NEEDS_A_BROKER = {"hold", "unmanage"}
"""Their results are asked for in tests/integration/test_command_line_live.py."""


def _calls(store: Path, lake: Path, tmp_path: Path) -> dict[str, list[object]]:
    """Return a call of every command, in an order in which each has something to do."""
    at, why = [store, "--lake", lake], ["--reason", "a test"]
    copy = tmp_path / "copy"
    return {
        "inspect": at,
        "doctor": [store],
        "plan": [store, "--manual"],
        "lag": [store],
        "simulate": [store, "--ingest-per-day", "1GB", "--days", 1],
        "index-lookup": [store, "no-such-topic", "no-such-key"],
        "recover": [store, "--dry-run"],
        "rebuild-queues": [store],
        "flush": [store],
        "archive": at,
        "monitor": at,
        "clean": [*at, "--manual", "--undo-window-hours", 24, "--run-key", "one"],
        "undo": ["one", *at],
        "validate": [store, "--output", tmp_path / "page"],
        "verify": at,
        "sample": [tmp_path / "sample", "--messages", 100],
        "restore": ["--lake", lake, "--to", tmp_path / "back"],
        "export": ["--lake", lake, "--to", tmp_path / "o.parquet"],
        "gc": ["--lake", lake],
        "maintain": ["--lake", lake],
        "shield": [*at, "--remove"],
        "waive": ["0" * 64, "--lake", lake, *why],
        "approve": [*at, "--lower-to", "none"],
        "accept-loss": [*at, "--from", 0, "--to", 1, *why],
        "stamp": [*at, *why],
        "adopt": [*at, "--force", *why],
        "move": ["store", *at],
        "lake keep": ["--lake", lake, "--keep", "30 days"],
        "lake expire": ["--lake", lake],
        "lake compact": ["--lake", lake],
        "lake info": ["--lake", lake],
        "lake relocate": ["--lake", lake],
        "lake copy": ["--lake", lake, "--to", copy],
        "lake promote": ["--lake", copy, *why],
        "lake upgrade": ["--lake", lake],
        "lake rebuild": ["--lake", lake],
        "init-lake": ["--lake", tmp_path / "new"],
        "info": ["--lake", lake],
        "runs": ["--lake", lake],
        "hold": at,
        "unmanage": at,
        "kafka make-room": at,
        "kafka run-tasks": at,
    }


REFUSED = NEEDS_A_BROKER | {"accept-loss", "approve", "kafka make-room"}


@pytest.mark.slow
def test_every_command_prints_one_object_of_its_kind(cli, store, lake, tmp_path, plainly) -> None:
    calls = _calls(store, lake, tmp_path)
    assert set(calls) == {
        name for name, command in EVERY.items() if any(p.name == "as_json" for p in command.params)
    }
    for name, words in calls.items():
        found = cli(*name.split(), *words, "--json").json
        assert (found["kind"], found["version"]) == ("error" if name in REFUSED else name, 1), found
        if name in REFUSED:
            assert set(found["error"]) == {"type", "message", "then"}


def test_bad_input_is_an_object_too(cli) -> None:
    for words in (("plan", "/nowhere", "--json"), ("plan", "--json"), ("lake", "info", "--lakes", "--json")):
        found = cli(*words)
        assert (found.exit_code, found.json["kind"], found.json["version"]) == (2, "error", 1)


names = st.text(st.characters())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner) | st.dictionaries(names, inner),
)
"""Names with any character, also half of a pair, as a file's name that is no text has."""


@pytest.mark.parametrize("name", ["kind", "version"])
def test_no_result_hides_what_it_is(name: str) -> None:
    with pytest.raises(TypeError, match="without the keys kind and version"):
        print_json("plan", {name: "x"})


@given(json_values)
def test_what_is_printed_is_the_same_value_indented_whatever_names_files_have(value: Any) -> None:
    with redirect_stdout(io.StringIO()) as printed:
        print_json("plan", {"value": value})
    text = printed.getvalue()
    assert json.loads(text) == {"kind": "plan", "version": 1, "value": value}
    assert text.startswith('{\n  "kind": "plan",\n  "version": 1,\n  "value": ')
