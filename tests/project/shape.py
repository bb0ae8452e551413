"""The shape of the source tree: what was counted, with the most that is allowed.

A limit is what the tree has today. Whoever makes the tree simpler lowers it in the same commit, and a new
capability raises it by what it adds. Every kind of import counts: at the top, in a function, for types alone.

Usage: python -m tests.project.shape
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import grimp

PACKAGE = Path(__file__).resolve().parents[2] / "storage_engine"
Trees = dict[Path, ast.Module]
_FACE_NAMES = 20
_FUNCTION_LINES = 80


@dataclass(frozen=True, slots=True)
class Measure:
    """:param limit: the most that is allowed; ``aim`` is where the limit should come to."""

    name: str
    count: int
    limit: int
    aim: int
    example: str = ""

    def __str__(self) -> str:
        example = f"  ({self.example})" if self.example else ""
        return f"{self.name:45} {self.count:8,} {self.limit:8,} {self.aim:8,}{example}"


def measures() -> list[Measure]:
    """Return each measure of the tree as it is."""
    paths = sorted(PACKAGE.rglob("*.py"))
    sources = {path: path.read_text() for path in paths}
    folders = Counter(path.parent.relative_to(PACKAGE.parent).as_posix() for path in paths)
    largest, files = folders.most_common(1)[0]
    trees = {path.relative_to(PACKAGE.parent): ast.parse(source) for path, source in sources.items()}
    homes = class_homes(trees)
    wide = [room for room, names in names_used_by_others(trees).items() if len(names) > _FACE_NAMES]
    several = [name for name, modules in homes.items() if len(modules) > 1]
    long = long_functions(trees)
    graph = grimp.build_graph("storage_engine", cache_dir=None)
    circular = in_circles(graph)
    only_here = with_one_importer_beside(graph)
    lines = sum(source.count("\n") for source in sources.values())
    return [
        Measure("files", len(paths), 518, 520),
        Measure("lines", lines, 135_576, 105_000),
        Measure("files in the largest folder", files, 19, 20, largest),
        Measure("modules in import circles", len(circular), 0, 0, ", ".join(circular[:3])),
        Measure("modules with one importer, in their own folder", len(only_here), 33, 50),
        Measure(
            "names of public classes with several meanings", len(several), 14, 25, ", ".join(several[:5])
        ),
        Measure("functions over 80 lines", len(long), 5, 0, ", ".join(long[:3])),
        Measure("rooms of which others use over 20 names", len(wide), 35, 0, ", ".join(sorted(wide)[:3])),
    ]


def class_homes(trees: Trees) -> dict[str, list[Path]]:
    """Return the modules that define each public class, by its name."""
    homes = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path)
    return homes


def long_functions(trees: Trees) -> list[str]:
    """Return the functions of more lines than one can see at once, docstrings counted."""
    return [
        f"{path}: {node.name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= _FUNCTION_LINES
    ]


def names_used_by_others(trees: Trees) -> dict[str, set[tuple[str, str]]]:
    """Return the names that modules of other rooms import from each room; its own rooms are no others."""
    modules = {".".join(path.with_suffix("").parts): path.parent for path in trees}
    used = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom):
                continue
            for alias in node.names:
                for module in (f"{node.module}.{alias.name}", str(node.module)):
                    room = modules.get(module)
                    if room is not None and room not in path.parents:
                        used[room.as_posix()].add((module, alias.name))
    return used


def stores_taken(trees: Trees) -> list[str]:
    """Return where another module's function or dataclass takes a broker's whole store."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    stores, more = {"BrokerStore"}, True
    while more:
        more = {name for name, of in bases.items() if of & stores} - stores
        stores |= more
    homes = {
        node.name: path
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    found = []
    for path, tree in trees.items():
        taken = [node.annotation for node in ast.walk(tree) if isinstance(node, ast.arg)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                taken += [one.annotation for one in node.body if isinstance(one, ast.AnnAssign)]
        for annotation in filter(None, taken):
            names = {one.id for one in ast.walk(annotation) if isinstance(one, ast.Name)}
            found += [
                f"{path}:{annotation.lineno}: {name}"
                for name in sorted(names & stores - {"BrokerStore"})
                if homes[name] != path
            ]
    return found


def in_circles(graph: grimp.ImportGraph) -> list[str]:
    """Return the modules that import themselves by way of others."""
    behind = {module: graph.find_upstream_modules(module) for module in graph.modules}
    return sorted(
        module
        for module in graph.modules
        if any(module in behind[imported] for imported in graph.find_modules_directly_imported_by(module))
    )


def with_one_importer_beside(graph: grimp.ImportGraph) -> list[str]:
    """Return the modules that one other imports alone, from the same folder."""
    importers = {module: graph.find_modules_that_directly_import(module) for module in graph.modules}
    return sorted(
        module
        for module, of_module in importers.items()
        if len(of_module) == 1 and next(iter(of_module)).rpartition(".")[0] == module.rpartition(".")[0]
    )


def main() -> None:
    print(f"{'':45} {'count':>8} {'limit':>8} {'aim':>8}")
    for measure in measures():
        print(measure)


if __name__ == "__main__":
    main()
