"""How a table fits a terminal: names give way first, then the columns that matter least. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
    """:param shown: indexes of the columns that are shown.
    :param name_width: of the columns that have names.
    """

    shown: tuple[int, ...]
    name_width: int


def layout(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Layout:
    """Decide what fits: the last column, if it is text, may be wrapped and takes what is left."""
    widths = [max([len(column.title), *(len(row[at]) for row in rows)]) for at, column in enumerate(columns)]
    shown = list(range(len(columns)))
    while True:
        for name_width in range(NAME_WIDTH, _LEAST_NAME_WIDTH - 1, -1):
            if _needed(columns, widths, shown, name_width) <= width:
                return Layout(tuple(shown), name_width)
        extra = [at for at in shown if columns[at].is_extra]
        if not extra:
            return Layout(tuple(shown), _LEAST_NAME_WIDTH)
        shown.remove(extra[-1])


def _needed(columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int], name_width: int) -> int:
    taken = [min(widths[at], name_width) if columns[at].is_name else widths[at] for at in shown]
    last = columns[shown[-1]]
    if not (last.is_number or last.is_name):
        taken[-1] = min(taken[-1], _LEAST_TEXT_WIDTH)
    return sum(taken) + GAP * (len(taken) - 1)
