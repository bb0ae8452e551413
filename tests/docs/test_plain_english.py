"""Pages are in short sentences, since most readers learned English as another language."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.code_blocks import PAGES

MEAN_WORDS = 20
MOST_WORDS = 35

_LEFT_OUT = re.compile(r"^```.*?^```$|<!--.*?-->|^\|[-| ]+\|$", re.MULTILINE | re.DOTALL)
_END = re.compile(r"(?<=[.!?:;])[\"'*_)]*\s+(?=[\"'*_(`]*[A-Z0-9`])|\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )| \| ")


def sentences(text: str) -> list[str]:
    """Return a page's sentences; a cell of a table, a heading and an item of a list end one as well."""
    prose = _LEFT_OUT.sub("\n\n", text)
    prose = re.sub(r"`[^`]*`", "`code`", prose)
    prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    prose = re.sub(r"^\||\|$", "\n\n", prose, flags=re.MULTILINE)
    prose = re.sub(r"^(#.*)$", r"\n\n\1\n\n", prose, flags=re.MULTILINE)
    found = [" ".join(one.split()) for one in _END.split(prose) if one]
    return [one for one in found if re.search(r"\w", one)]


def _words(sentence: str) -> int:
    return len(re.findall(r"[\w'’%-]*\w[\w'’%-]*", sentence))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_is_long(page: Path) -> None:
    long = [one for one in sentences(page.read_text()) if _words(one) > MOST_WORDS]
    assert long == [], f"{page.name}: say these in shorter sentences"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short_on_the_whole(page: Path) -> None:
    """Cells and headings of a few words count for nothing here."""
    counts = [words for one in sentences(page.read_text()) if (words := _words(one)) > 4]
    assert counts
    assert sum(counts) / len(counts) <= MEAN_WORDS, page.name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two `a.b` three.\n\n- four\n- five\n", ["One.", "Two `code` three.", "- four", "- five"]),
        ("| a b | c |\n|---|---|\n| d. E | f |\n", ["a b", "c", "d.", "E", "f"]),
        ("# Head\nIt is 1.5 times.\n```console\n$ x\n```\n", ["# Head", "It is 1.5 times."]),
    ],
)
def test_sentences_are_told_apart(text: str, found: list[str]) -> None:
    assert sentences(text) == found
