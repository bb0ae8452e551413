"""The tree keeps the limits of its shape, and what counts it counts."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp
import pytest

from tests.project.shape import (
    PACKAGE,
    class_homes,
    in_circles,
    measures,
    names_used_by_others,
    stores_taken,
    with_one_importer_beside,
)


@pytest.mark.slow
def test_no_measure_is_above_its_limit_nor_a_limit_above_what_is_there_by_much() -> None:
    for measure in measures():
        assert measure.count <= measure.limit, f"{measure}: make shape"
        assert measure.limit <= measure.count * 1.02 + 5, f"lower the limit: {measure}"


FILES = "RocketMQBrokerStore"
"""Beside its running broker a store's files are looked at as those of a stopped one."""


def test_no_function_takes_a_whole_store_where_its_parts_do() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    assert [one for one in stores_taken(trees) if not one.endswith(f": {FILES}")] == []
    made = {
        Path("a.py"): ast.parse("class A(BrokerStore): ...\nclass B(A): ...\ndef f(one: B): ..."),
        Path("b.py"): ast.parse("class C:\n    one: B\ndef f(*, one: list[A | None]): ..."),
    }
    assert stores_taken(made) == ["b.py:3: A", "b.py:2: B"]


def test_circles_and_importers_are_counted() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a.x", "a.y"), ("a.y", "b.z"), ("b.z", "a.x"), ("b.z", "b.w"), ("c", "b.w")):
        graph.add_import(importer=importer, imported=imported)
    assert in_circles(graph) == ["a.x", "a.y", "b.z"]
    assert with_one_importer_beside(graph) == ["a.y"]
    trees = {
        Path("p/a/x.py"): ast.parse(
            "from p.b import y\nfrom p.b.y import A\nfrom p.a.z import B\nclass A: 1"
        ),
        Path("p/a/z.py"): ast.parse("class B: ...\nclass _B: ..."),
        Path("p/b/y.py"): ast.parse("class A: ..."),
    }
    assert class_homes(trees) == {"A": [Path("p/a/x.py"), Path("p/b/y.py")], "B": [Path("p/a/z.py")]}
    assert names_used_by_others(trees) == {"p/b": {("p.b.y", "y"), ("p.b.y", "A")}}
