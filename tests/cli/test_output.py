"""What is printed is readable: units, long names, tables in a terminal and in a pipe."""

from __future__ import annotations

import pytest
from rich.console import Console

from storage_engine.cli import output


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, ""),
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (6000, "5.9 KiB"),
        (1 << 20, "1.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_are_in_the_units_that_brokers_are_configured_in(size_bytes: int | None, text: str) -> None:
    assert output.bytes_text(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (None, ""),
        (0, "0 s"),
        (999, "0 s"),
        (121_099, "2 min 1 s"),
        (3_600_000, "1 h"),
        (252_715_000, "2 d 22 h"),
    ],
)
def test_durations_have_their_two_largest_units(duration_ms: int | None, text: str) -> None:
    assert output.duration_text(duration_ms) == text


def test_a_long_name_keeps_both_its_ends() -> None:
    name = "%RETRY%" + "g" * 200 + "/7"
    shown = output.shortened(name)
    assert len(shown) == 26
    assert shown.startswith("%RETRY%")
    assert shown.endswith("/7")
    assert output.shortened("orders/0") == "orders/0"


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
