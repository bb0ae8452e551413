"""The two distributions belong together, and each declares what it needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
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


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module)


def _distribution(module: str) -> str:
    """Return the distribution whose module this is, by the naming rule of its project."""
    match module.split("."):
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
    extras = ",".join(sorted(set(CODE["optional-dependencies"]) - {"dev", "postgres"}))
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
        for path in (ROOT / "storage_engine").rglob("*.py")
        for module in _imported(path)
        if module.partition(".")[0] not in sys.stdlib_module_names | {"storage_engine"}
    }
    assert "pyiceberg" in imported
    assert imported - declared == set()


def test_constraints_pin_every_dependency() -> None:
    pinned = {_name(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    groups = [CODE["dependencies"], PROVIDER["dependencies"], *CODE["optional-dependencies"].values()]
    needed = {_name(one) for group in groups for one in group}
    assert needed - pinned == {"storage-engine"}
