"""How a table fits a terminal: names give way first, then the columns that matter least. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len

NAME_WIDTH: Final = 26
"""Of a long name in a terminal's table, in characters; where there is no room, less."""
_LEAST_NAME_WIDTH: Final = 10
_LEAST_TEXT_WIDTH: Final = 24
GAP: Final = 2
"""Between two columns."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column as its heading asks for it.

    :param is_number: aligned to the right ("#").
    :param is_name: may be shortened in its middle ("~").
    :param is_extra: may be left out ("?"); of several the last one goes first.
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
    """What of a table's columns fits into the width of a terminal.

    :param shown: indexes of the columns that are shown.
    :param name_width: most width of a column of names, in characters of a terminal.
    """

    shown: tuple[int, ...]
    name_width: int


def layout(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Layout:
    """Decide what fits: the last column, if it is text, may be wrapped and takes what is left."""
    widths = [
        max([len(column.title), *(cell_width(row[at]) for row in rows)]) for at, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    while True:
        for name_width in range(NAME_WIDTH, _LEAST_NAME_WIDTH - 1, -1):
            if _needed(columns, widths, shown, name_width) <= width:
                return Layout(tuple(shown), name_width)
        extra = [at for at in shown if columns[at].is_extra]
        if not extra:
            return Layout(tuple(shown), _LEAST_NAME_WIDTH)
        shown.remove(extra[-1])


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, toned: Callable[[str], str]
) -> list[list[str]]:
    """Return the lines of each row: one, or more where its last cell is wrapped.

    :param rows: cells of the columns that are shown.
    :param width: that lines should have at most, in characters of a terminal.
    :param toned: returns a cell with its colour, which takes no width.
    """
    widths = [max(cell_width(row[at]) for row in rows) for at in range(len(columns))]
    left = max(width - sum(widths[:-1]) - GAP * (len(columns) - 1), 1)

    def padded(text: str, at: int) -> str:
        space = " " * (widths[at] - cell_width(text))
        return f"{space}{toned(text)}" if columns[at].is_number else f"{toned(text)}{space}"

    widths[-1] = min(widths[-1], left)
    before, gap = " " * (sum(widths[:-1]) + GAP * (len(columns) - 1)), " " * GAP
    lines: list[list[str]] = []
    for row in rows:
        first, *more = _wrapped(row[-1], left)
        cells = [padded(text, at) for at, text in enumerate((*row[:-1], first))]
        lines.append([line.rstrip() for line in (gap.join(cells), *(f"{before}{part}" for part in more))])
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text that has no wider one, as far as its characters are of one width."""
    taken = cell_width(text)
    if taken <= width:
        return [text]
    return textwrap.wrap(text, max(width * len(text) // taken, 1), break_on_hyphens=False) or [""]


def cell_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def _needed(columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int], name_width: int) -> int:
    taken = [min(widths[at], name_width) if columns[at].is_name else widths[at] for at in shown]
    last = columns[shown[-1]]
    if not (last.is_number or last.is_name):
        taken[-1] = min(taken[-1], _LEAST_TEXT_WIDTH)
    return sum(taken) + GAP * (len(taken) - 1)
