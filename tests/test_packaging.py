"""The two distributions belong together, and each declares what it needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import storage_engine

ROOT = Path(__file__).parents[1]


def _project(path: str) -> Mapping[str, Any]:
    project: Mapping[str, Any] = tomllib.loads((ROOT / path).read_text(encoding="utf-8"))["project"]
    return project


CODE = _project("pyproject.toml")
PROVIDER = _project("provider/pyproject.toml")


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0].lower()


@cache
def _modules() -> dict[str, ast.Module]:
    """Parse every module of the package."""
    package = ROOT / "storage_engine"
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for path in package.rglob("*.py")
    }


def _imported(node: ast.AST, *, at_once: bool = False) -> Iterator[str]:
    """:param at_once: only what is imported as the module is, not by its functions or for types."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield str(node.module)
        yield from (name for alias in node.names if (name := f"{node.module}.{alias.name}") in _modules())
    for child in ast.iter_child_nodes(node):
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (at_once and (isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or for_types)):
            yield from _imported(child, at_once=at_once)


def _third_party(module: str) -> bool:
    return module.partition(".")[0] not in sys.stdlib_module_names | {"storage_engine"}


def _reached(starts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return what is imported as these modules are, and over which modules it is come to."""
    ways: dict[str, tuple[str, ...]] = {}
    ahead = [(start, (start,)) for start in starts]
    while ahead:
        module, way = ahead.pop()
        if module not in ways:
            ways[module] = way
            parts = module.split(".")
            packages = [".".join(parts[:length]) for length in range(1, len(parts))]
            imported = _imported(_modules()[module], at_once=True) if module in _modules() else ()
            ahead += [(one, (*way, one)) for one in (*imported, *packages)]
    return ways


def _distribution(module: str) -> str:
    """Return the distribution whose module this is, by the naming rule of its project."""
    match module.split("."):
        case "airflow", "providers", ("edge3" | "openlineage" | "standard") as name, *_:
            return f"apache-airflow-providers-{name}"
        case "openlineage", *_:
            return "openlineage-python"
        case "airflow", "providers", group, name, *_:
            return f"apache-airflow-providers-{group}-{name}"
        case "airflow", *_:
            return "apache-airflow"
        case top, *_:
            return top.replace("_", "-")
    raise AssertionError(module)


def test_provider_has_the_version_of_the_code_and_brings_all_that_an_airflow_needs() -> None:
    assert PROVIDER["version"] == storage_engine.__version__
    (code,) = (one for one in PROVIDER["dependencies"] if _name(one) == "storage-engine")
    extras = ",".join(
        sorted(
            set(CODE["optional-dependencies"])
            - {"charts", "dev", "edge", "kafka", "metrics", "openlineage", "postgres", "serve-lake"}
        )
    )
    assert code == f"storage-engine[{extras}]=={storage_engine.__version__}"


def test_both_have_the_same_licence_and_ask_for_the_same_python() -> None:
    assert (ROOT / "provider" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert PROVIDER["requires-python"] == CODE["requires-python"]


def test_every_import_is_declared() -> None:
    declared = {_name(one) for one in CODE["dependencies"]}
    for extra, requirements in CODE["optional-dependencies"].items():
        declared |= {_name(one) for one in requirements} if extra != "dev" else set()
    imported = {
        _distribution(module)
        for tree in _modules().values()
        for module in _imported(tree)
        if _third_party(module)
    }
    assert "pyiceberg" in imported
    assert imported - declared == set()


def test_no_command_and_no_job_of_the_shell_imports_an_extra_before_it_is_needed() -> None:
    shell = (
        "cli",
        "cycle",
        "lake.",
        "pages",
        "project",
        "quality.validate",
        "retention",
        "rocketmq",
        "spark",
    )
    starts = [name for name in _modules() if name.removeprefix("storage_engine.").startswith(shell)]
    # The data source, whose classes are PySpark's: who reads a table has Spark.
    starts.remove("storage_engine.spark.table")
    ways = _reached(starts)
    needed = {_name(one) for one in CODE["dependencies"]}
    early = {one: way for one, way in ways.items() if _third_party(one) and _distribution(one) not in needed}
    assert early == {}
    assert {"pyiceberg.catalog", "storage_engine.quality.expectation_rules"} <= set(ways)
    assert "great_expectations" in _reached(["storage_engine.quality.engine"])


def test_constraints_pin_every_dependency() -> None:
    pinned = {_name(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    groups = [CODE["dependencies"], PROVIDER["dependencies"], *CODE["optional-dependencies"].values()]
    needed = {_name(one) for group in groups for one in group}
    assert needed - pinned == {"storage-engine"}
