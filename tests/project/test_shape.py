"""The tree keeps the limits of its shape, and what counts it counts."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

from tests.project.shape import class_homes, in_circles, measures, with_one_importer_beside


@pytest.mark.slow
def test_no_measure_is_above_its_limit_nor_a_limit_above_what_is_there_by_much() -> None:
    for measure in measures():
        assert measure.count <= measure.limit, f"{measure}: make shape"
        assert measure.limit <= measure.count * 1.02 + 5, f"lower the limit: {measure}"


def test_circles_and_importers_are_counted() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a.x", "a.y"), ("a.y", "b.z"), ("b.z", "a.x"), ("b.z", "b.w"), ("c", "b.w")):
        graph.add_import(importer=importer, imported=imported)
    assert in_circles(graph) == ["a.x", "a.y", "b.z"]
    assert with_one_importer_beside(graph) == ["a.y"]
    assert class_homes({Path("a"): "class A: ...\nclass _B: ...", Path("b"): "class A: ..."}) == {
        "A": [Path("a"), Path("b")]
    }
