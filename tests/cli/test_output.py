"""What is printed is readable: long names, tables in a terminal and in a pipe."""

from __future__ import annotations

import pytest
from rich.console import Console

from storage_engine.cli import output


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
    def terminal(*, stderr: bool = False) -> Console:
        return Console(stderr=stderr, highlight=False, force_terminal=True, width=80, color_system=None)

    monkeypatch.setattr(output, "console", terminal)
    output.print_table("Title", ("name~", "count#", "why"), [("n" * 300, 7, "word " * 40)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 84
    assert "n" * 12 + "…" + "n" * 12 in "".join(lines)
