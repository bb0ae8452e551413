"""What is printed is readable: long names, tables in a terminal and in a pipe."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from storage_engine.cli.output import output
from storage_engine.commands import Arguments, Command, Text
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.model.report.diagnosis import Finding, Severity


def test_a_pipe_gets_every_name_whole_and_one_row_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table("Title", ("name~", "count#", "why"), [("n" * 300, 7, "w" * 300), ("[red]m", None, "")])
    title, header, first, second = capsys.readouterr().out.strip().splitlines()
    assert title == "Title"
    assert header.split() == ["name", "count", "why"]
    assert first.split() == ["n" * 300, "7", "w" * 300]
    assert second.strip() == "[red]m"


def test_a_terminal_gets_short_names_and_lines_of_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "terminal_width", lambda: 80)
    output.print_table("Title", ("name~", "count#", "why"), [("n" * 300, 7, "word " * 40)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 84
    assert "n" * 12 + "…" + "n" * 12 in "".join(lines)


HOSTILE = "a\x1b]0;pwned\x07\x9b31m\u202eb\udc80\n"


def test_nothing_that_others_named_reaches_the_terminal_as_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    written_out = r"a\x1b]0;pwned\x07\x9b31m\u202eb\udc80"
    output.print_table("Title", ("name",), [(HOSTILE,)])
    output.say(HOSTILE)
    output.print_error(ValueError(HOSTILE), Arguments(), as_json=False)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert not set("\x1b\x07\x9b\u202e") & set(text)
        assert written_out in text
    output.print_json("a test", {"name": HOSTILE})
    document = capsys.readouterr().out
    assert document.isascii()
    assert json.loads(document)["name"] == HOSTILE


def test_every_command_prints_by_what_writes_controls_out() -> None:
    directory = Path(output.__file__).parents[1]
    printing = {path.name for path in directory.rglob("*.py") if "click.echo" in path.read_text()}
    assert printing == {"output.py"}


def test_json_of_errors_and_findings_lists_the_commands_that_help() -> None:
    known = Arguments(lake_dir="/l")
    text = Text("lost: ", Command("lake rebuild"), ".")
    told = ["storage-engine lake rebuild --lake /l"]
    for error in (LakeUnavailableError(text), click.ClickException(text)):
        shown = output.error_json(error, known)
        assert shown["message"] == f"lost: {told[0]}."
        assert (shown["type"], shown["then"]) == (type(error).__name__, told)
    assert output.error_json(ValueError("storage-engine lag"), known)["then"] == []
    finding = Finding(Severity.NOTE, "kind", "what", text)
    (found,) = output.findings_json([finding], ("what", "advice"), known)
    assert found == {
        "severity": "note",
        "kind": "kind",
        "what": "what",
        "advice": f"lost: {told[0]}.",
        "then": told,
    }
