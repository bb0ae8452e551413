"""Tables in a terminal: names give way first, then what matters least, and never the last column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.cli.output.output import GAP, NAME_WIDTH, Column, cell_width, layout, table_lines

HEADINGS = ("group~", "queue~", "committed#?", "behind#", "by#?", "next one goes")
COLUMNS = [Column.of(heading) for heading in HEADINGS]
ROW = ["g" * 40, "t" * 40, "1234567", "1234567", "10 h 30 min", "in 23 h 59 min"]


def _width(shown: tuple[int, ...], name_width: int) -> int:
    cells = [min(len(ROW[at]), name_width) if COLUMNS[at].is_name else len(ROW[at]) for at in shown]
    return sum(cells) + GAP * (len(cells) - 1)


def test_a_heading_says_what_its_column_is() -> None:
    assert Column.of("committed#?") == Column("committed", is_number=True, is_name=False, is_extra=True)
    assert Column.of("why?") == Column("why", is_number=False, is_name=False, is_extra=True)


@pytest.mark.parametrize(
    ("width", "shown", "name_width"),
    [
        (200, (0, 1, 2, 3, 4, 5), NAME_WIDTH),
        (78, (0, 1, 2, 3, 4, 5), 13),
        (70, (0, 1, 2, 3, 5), 16),
        (50, (0, 1, 3, 5), 11),
    ],
)
def test_names_are_shortened_before_a_column_is_left_out(
    width: int, shown: tuple[int, ...], name_width: int
) -> None:
    found = layout(COLUMNS, [ROW], width)
    assert (found.shown, found.name_width) == (shown, name_width)


@given(st.integers(min_value=50, max_value=200))
def test_the_last_column_is_whole_at_every_width(width: int) -> None:
    found = layout(COLUMNS, [ROW], width)
    assert {0, 1, 3, 5} <= set(found.shown)
    assert _width(found.shown, found.name_width) <= width


TEXTS = st.text(st.sampled_from("ab 単語"), max_size=60)


@given(st.lists(st.tuples(TEXTS, st.integers(0, 10**6).map(str), TEXTS), min_size=1), st.integers(160, 300))
def test_each_cell_stands_below_its_heading(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = [Column.of("name~"), Column.of("count#"), Column.of("why")]
    lines = table_lines(columns, [("name", "count", "why"), *rows], width, lambda cell: cell)
    first = max(4, *(cell_width(name) for name, _, _ in rows))
    second = max(5, *(len(count) for _, count, _ in rows))
    for (name, count, why), (line, *more) in zip(rows, lines[1:], strict=True):
        padded = name + " " * (first - cell_width(name))
        assert line == f"{padded}  {count.rjust(second)}  {why}".rstrip() if not more else True
        shown = "".join(line.split() + [part for one in more for part in one.split()])
        assert shown == "".join(f"{name} {count} {why}".split())


@given(st.text(st.sampled_from("ab "), max_size=300), st.integers(20, 80))
def test_the_last_cell_is_wrapped_below_itself(why: str, width: int) -> None:
    columns = [Column.of("name"), Column.of("why")]
    (_, lines) = table_lines(columns, [("name", "why"), ("n", why)], width, lambda cell: cell)
    assert max(map(len, lines)) <= max(width, 6)
    assert all(line.startswith(" " * 6) for line in lines[1:])
    assert "".join("".join(lines).split()) == "n" + "".join(why.split())
