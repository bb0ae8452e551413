"""The tree keeps the limits of its shape, and what counts it counts."""

from __future__ import annotations

import ast
from functools import cache
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


def test_what_tests_and_demos_import_of_the_package_is_there() -> None:
    """Many tests need a broker, and only a run with one would meet a name that has moved."""
    root = PACKAGE.parent
    older = "tests/services/released_driver.py"
    absent = [
        f"{path.relative_to(root)}:{node.lineno}: {node.module}.{name.name}"
        for folder in ("tests", "demo", "benchmarks", "docs")
        for path in sorted((root / folder).rglob("*.py"))
        if path.relative_to(root).as_posix() != older
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE.name
        for name in node.names
        if not _is_there(root, node.module or "", name.name)
    ]
    assert absent == []
    assert _is_there(root, "storage_engine.core", "clock")
    assert not _is_there(root, "storage_engine.core.clock", "no_such_name")


def _is_there(root: Path, module: str, name: str) -> bool:
    """Whether a module of the package has a submodule of this name, or binds the name."""
    path = root.joinpath(*module.split("."))
    if (path / name).is_dir() or (path / f"{name}.py").is_file():
        return True
    source = path.with_suffix(".py")
    if not source.is_file():  # A folder may be left of a package that became a module.
        source = path / "__init__.py"
    return source.is_file() and name in _bound(source)


@cache
def _bound(source: Path) -> frozenset[str]:
    """Return the names that a module binds itself, outside its functions and classes."""
    bound: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(source.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {name.asname or name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        nodes += ast.iter_child_nodes(node)
    return frozenset(bound)


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
