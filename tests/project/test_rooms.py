"""The picture of the packages is what the code says."""

from __future__ import annotations

import runpy

import pytest

from tests.fixture_stores import FIXTURES

DOCS = FIXTURES.parents[2] / "docs"


@pytest.fixture(scope="module")
def drawing() -> dict[str, object]:
    return runpy.run_path(str(DOCS / "draw_rooms.py"))


@pytest.mark.slow
def test_the_picture_is_drawn_from_the_code_as_it_is(drawing: dict[str, object]) -> None:
    draw = drawing["draw"]
    assert callable(draw)
    assert draw() == (DOCS / "rooms.svg").read_text(), "run: make picture"


def test_what_follows_from_other_arrows_is_left_out(drawing: dict[str, object]) -> None:
    reduce = drawing["without_detours"]
    assert callable(reduce)
    assert reduce({("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")}) == [("a", "b"), ("b", "c"), ("d", "c")]
    assert reduce({("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")}) == [("a", "b"), ("b", "c"), ("c", "d")]
