"""Output of commands: tables and progress for a person, JSON for a program.

A table fits its terminal: names are shortened first, then the least important columns are left out.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.cells import cell_len

from storage_engine.cli.shell.shared_options import held_back, said_by, wants_json
from storage_engine.commands import Arguments, Text, then, with_arguments
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.long_work import no_collection
from storage_engine.core.wording import printable, printable_json, shorten, store_text

if TYPE_CHECKING:
    from storage_engine.model.report.validation import RangeStatus
    from storage_engine.retention.store.managed_store import ManagedStore

T = TypeVar("T")

NAME_WIDTH: Final = 26
"""Characters shown of a long name in a terminal's table. Fewer are shown if there is no room."""
_LEAST_NAME_WIDTH: Final = 10
_LEAST_TEXT_WIDTH: Final = 24
GAP: Final = 2
"""Spaces between two columns."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column, with the properties that its heading encodes.

    :param is_number: it is aligned to the right ("#").
    :param is_name: its values may be shortened in the middle ("~").
    :param is_extra: it may be left out ("?"). Of several such columns, the last one is left out first.
    """

    title: str
    is_number: bool
    is_name: bool
    is_extra: bool

    @classmethod
    def of(cls, heading: str) -> Column:
        title = heading.rstrip("#~?")
        signs = heading[len(title) :]
        return cls(title, "#" in signs, "~" in signs, "?" in signs)


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a table that fit into the width of a terminal.

    :param shown: indexes of the columns that are shown.
    :param name_width: largest width of a column of names, in characters of a terminal.
    """

    shown: tuple[int, ...]
    name_width: int


def layout(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Layout:
    """Choose columns and their widths. A last column of text takes the rest, and may be wrapped."""
    widths = [
        max([len(column.title), *(cell_width(row[at]) for row in rows)]) for at, column in enumerate(columns)
    ]
    indexes = list(range(len(columns)))
    while True:
        for name_width in range(NAME_WIDTH, _LEAST_NAME_WIDTH - 1, -1):
            if _needed_width(columns, widths, indexes, name_width) <= width:
                return Layout(tuple(indexes), name_width)
        extra = [at for at in indexes if columns[at].is_extra]
        if not extra:
            return Layout(tuple(indexes), _LEAST_NAME_WIDTH)
        indexes.remove(extra[-1])


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, toned: Callable[[str], str]
) -> list[list[str]]:
    """Return the lines of each row: one line, or several if its last cell is wrapped.

    :param rows: cells of the columns that are shown.
    :param width: largest width of a line, in characters of a terminal.
    :param toned: adds a colour to a cell, without a change of its width.
    """
    widths = [max(cell_width(row[at]) for row in rows) for at in range(len(columns))]
    room = max(width - sum(widths[:-1]) - GAP * (len(columns) - 1), 1)

    def pad(text: str, at: int) -> str:
        space = " " * (widths[at] - cell_width(text))
        return f"{space}{toned(text)}" if columns[at].is_number else f"{toned(text)}{space}"

    widths[-1] = min(widths[-1], room)
    before, gap = " " * (sum(widths[:-1]) + GAP * (len(columns) - 1)), " " * GAP
    lines: list[list[str]] = []
    for row in rows:
        first, *more = _wrapped(row[-1], room)
        cells = [pad(text, at) for at, text in enumerate((*row[:-1], first))]
        lines.append([line.rstrip() for line in (gap.join(cells), *(f"{before}{part}" for part in more))])
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text into lines of at most this width. Characters of several widths can make a line wider."""
    cells = cell_width(text)
    if cells <= width:
        return [text]
    return textwrap.wrap(text, max(width * len(text) // cells, 1), break_on_hyphens=False) or [""]


def cell_width(text: str) -> int:
    """Return the number of a terminal's columns that a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def _needed_width(
    columns: Sequence[Column], widths: Sequence[int], indexes: Sequence[int], name_width: int
) -> int:
    parts = [min(widths[at], name_width) if columns[at].is_name else widths[at] for at in indexes]
    last = columns[indexes[-1]]
    if not (last.is_number or last.is_name):
        parts[-1] = min(parts[-1], _LEAST_TEXT_WIDTH)
    return sum(parts) + GAP * (len(parts) - 1)


JSON_VERSION = 1
"""Version of all JSON output. It grows when a key is removed or changes its meaning, not for a new key."""

_UNWRAPPED_WIDTH = 100_000
_INDENT = "  "
_TONES = {
    **dict.fromkeys(("OK", "done"), "green"),
    **dict.fromkeys(("WARNING", "blocked", "unfinished", "released-in-part"), "yellow"),
    **dict.fromkeys(("FAILURE", "FAILED", "LOST", "failed", "now"), "red"),
}
"""Colours of words. Each word has its meaning also without a colour."""


def terminal_width() -> int | None:
    """Return the number of columns of the terminal on stdout; None if stdout is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@no_collection()
def print_json(kind: str, value: Any) -> None:
    """Print a command's result as one indented JSON object on stdout, as every command with --json does.

    :param kind: the command as it is typed, such as ``lake info``. By it programs distinguish objects.
    :param value: a dataclass or mapping. A list must be in it, under a key.
    """
    values = to_jsonable(value)
    document = {"kind": kind, "version": JSON_VERSION, **values}
    if len(document) != len(values) + 2:
        raise TypeError(f"{kind}: expected a value without the keys kind and version, found {sorted(values)}")
    _write(printable_json(_indent(document)))


def _indent(document: Mapping[str, Any]) -> str:
    # Takes a tenth of json's time, and is imported only to print JSON.
    from pydantic_core import to_json

    try:
        return to_json(document, indent=2).decode()
    except ValueError:
        # A file's name need not be text in any encoding.
        return json.dumps(document, ensure_ascii=False, indent=2)


def say(*parts: object, err: bool = False) -> None:
    """Print lines for a person. Control characters are escaped, and named commands get this call's arguments.

    :param parts: parts of the text, which are joined.
    :param err: print to stderr.
    """
    context, text = click.get_current_context(silent=True), Text(*parts)
    sentence = text if context is None else with_arguments(text, said_by(context))
    lines = printable(sentence, keep="\n").split("\n")
    _echo("\n".join(map(_tone_line, lines)), err=err)


def say_notes(notices: Iterable[str], *, err: bool = False) -> None:
    for notice in notices:
        say("Note: ", notice, err=err)


def answer(kind: str, value: T, shown: str | Callable[[T], object]) -> int:
    """Print a command's result as :func:`print_json` or :func:`say` does, and return the exit code 0."""
    if wants_json():
        print_json(kind, value)
    elif isinstance(shown, str):
        say(shown)
    else:
        shown(value)
    return 0


def say_styled(text: str = "") -> None:
    """Print a line with styles. Its parts from outside must already be :func:`printable`."""
    _echo(text)


def put(data: object) -> None:
    """Print text for another program, such as versions for pip, even if the command is quiet."""
    _write(printable(str(data), keep="\n"))


def _echo(text: str, *, err: bool = False) -> None:
    held = held_back()
    if held is None:
        _write(text, err=err)
    else:
        held.append(click.unstyle(text))


def _write(text: str, *, err: bool = False) -> None:
    """Write lines. End the process if nobody reads them any more, as ``head`` does after ten lines."""
    try:
        # None lets click decide: it keeps colours for a terminal only.
        click.echo(text, err=err, color=False if os.environ.get("NO_COLOR") else None)
    except BrokenPipeError:
        # The rest of the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())
        sys.exit(128 + signal.SIGPIPE)


def print_error(error: Exception, arguments: Arguments, *, as_json: bool) -> None:
    """Print an error: to stderr for a person, as a JSON document on stdout for a program."""
    if as_json:
        print_json("error", {"error": error_json(error, arguments)})
    else:
        text = printable(_message(error, arguments), keep="\n")
        _write(f"{click.style('Error', fg='red', bold=True)}: {text}", err=True)


def error_json(error: Exception, arguments: Arguments) -> dict[str, Any]:
    """Return an error for programs. ``then`` contains the commands that help, as they are typed."""
    message = _message(error, arguments)
    return {"type": type(error).__name__, "message": message, "then": then(Text(error), arguments)}


def findings_json(
    findings: Iterable[Any], sentences: Sequence[str], arguments: Arguments
) -> list[dict[str, Any]]:
    """Return findings for programs, each with ``then`` as in :func:`error_json`.

    :param sentences: names of the fields whose texts may name commands.
    """
    return [
        {
            **to_jsonable(finding),
            **{name: with_arguments(getattr(finding, name), arguments) for name in sentences},
            "then": [command for name in sentences for command in then(getattr(finding, name), arguments)],
        }
        for finding in findings
    ]


def _message(error: Exception, arguments: Arguments) -> str:
    text = error.format_message() if isinstance(error, click.ClickException) else Text(error)
    return with_arguments(text, arguments)


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. A heading ends in '#' for numbers, '~' for long names, '?' for one that may be left out.

    In a terminal, names are shortened in the middle first. Then columns are left out, which is reported. Only
    the last column is ever wrapped. A file or pipe gets the whole table, one row on each line.
    """
    columns = [Column.of(heading) for heading in headings]
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    screen = terminal_width()
    width = _UNWRAPPED_WIDTH if screen is None else screen - len(_INDENT)
    fitted = layout(columns, cells, width)
    shown = [columns[at] for at in fitted.shown]
    texts = [
        [
            shorten(row[at], fitted.name_width) if screen is not None and columns[at].is_name else row[at]
            for at in fitted.shown
        ]
        for row in cells
    ]
    head, *lines = table_lines(shown, [[column.title for column in shown], *texts], width, _tone_cell)
    _echo(f"\n{click.style(printable(title), bold=True)}")
    for line in (*(click.style(part, bold=True) for part in head), *chain(*lines)):
        _echo(f"{_INDENT}{line}")
    left_out = [column.title for at, column in enumerate(columns) if at not in fitted.shown]
    if left_out:
        _echo(
            f"{_INDENT}(Left out for lack of width: {', '.join(left_out)}. A pipe and --json contain them.)"
        )


def print_ranges(title: str, ranges: Iterable[RangeStatus]) -> None:
    print_table(
        title,
        ("log~", "from#", "to#", "where", "status", "why"),
        (
            (row.log, row.start_offset, row.end_offset, row.where.value, row.status.value, row.detail)
            for row in ranges
        ),
    )


def print_lines(lead: str, text: str) -> None:
    """Print a text after a lead. In a terminal, its further lines are indented by the lead's width."""
    screen = terminal_width()
    body = printable(text)
    if screen is not None:
        width = max(40, screen)
        indent = " " * len(lead)
        lines = textwrap.wrap(body, width - len(lead), break_on_hyphens=False)
        body = f"\n{indent}".join(lines)
    _echo(f"{_tone_line(lead)}{body}")


def _tone_cell(text: str) -> str:
    tone = _TONES.get(text)
    return text if tone is None else click.style(text, fg=tone)


def _tone_line(text: str) -> str:
    """Return a line with its first word in the colour of that word's meaning."""
    word = text.split(maxsplit=1)[0].rstrip(":") if text.strip() else ""
    tone = _TONES.get(word)
    return text if tone is None else text.replace(word, click.style(word, fg=tone, bold=True), 1)


def store_head(managed: ManagedStore) -> str:
    """Return the first line of an output about a store."""
    return store_text(store_name(managed), managed.broker, managed.root)


def store_name(managed: ManagedStore) -> str:
    from storage_engine.retention.store.managed_store import store_name

    return store_name(managed)
