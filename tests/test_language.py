"""Docstrings, messages and docs are in the field's words, which readers know everywhere."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
INSTEAD = {
    "let go": "delete",
    "lets go": "deletes",
    "take down": "record",
    "takes down": "records",
    "taken down": "recorded",
    "anew": "again",
    "amid": "during",
    "reckon": "compute",
    "disturbed": "drift",
    "doubts": "reasons",
    "owed": "pending",
    "of ours": "our",
    "without us": "no run deleted it",
}
"""What nobody says, and what to say."""

_PRIVATE = re.compile(r"\b(?:" + "|".join(words.replace(" ", r"\s+") for words in INSTEAD) + r")\b", re.I)
_CODE_IN_PAGES = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
_PARAMETER = re.compile(r":param \w+:")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings, messages and comments with their lines; one word alone is a name that is stored."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, _PARAMETER.sub("", node.value)
    for number, line in enumerate(source.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            yield number, line


def said_otherwise(path: Path, found: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield what to say instead of each private word in texts, with its place."""
    for line, text in found:
        for match in _PRIVATE.finditer(text):
            word = " ".join(match[0].lower().split())
            at = line + text.count("\n", 0, match.start())
            yield f"{path}:{at}: say {INSTEAD[word]!r} instead of {word!r}"


def _lines_alone(code: re.Match[str]) -> str:
    return "\n" * code[0].count("\n")


@pytest.mark.parametrize(
    "folder", ["storage_engine", "dags", "older_dags", "plugins", "spark_jobs", "benchmarks"]
)
def test_docstrings_messages_and_comments_are_in_the_fields_words(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    assert [advice for path in paths for advice in said_otherwise(path, texts(path.read_text()))] == []


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    # The kernels of older packages, which stay as they were, are compiled once where today's are the same.
    paths = [path for path in (ROOT / "storage_engine").rglob("*.py") if not path.stem.endswith("kernels")]
    clauses = re.compile(r"(What|Whether|Which|How|When|Where|Why)\b")
    # Most files have none at all, and to parse them takes seconds.
    sources = {
        path: source for path in paths if re.search(rf'"""\s*{clauses.pattern}', source := path.read_text())
    }
    functions = [
        (path, node)
        for path, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert functions
    assert [
        f"{path}:{node.lineno}: say what {node.name} does"
        for path, node in functions
        if clauses.match(ast.get_docstring(node) or "")
    ] == []


def test_a_file_name_is_there_once_in_a_package() -> None:
    for package in (path for path in (ROOT / "storage_engine").iterdir() if (path / "__init__.py").exists()):
        names = Counter(path.name for path in package.rglob("*.py") if path.name != "__init__.py")
        assert names, package
        assert [name for name, count in names.items() if count > 1] == [], package


def test_docs_are_in_the_fields_words() -> None:
    pages = (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    texts_of = {page: [(1, _CODE_IN_PAGES.sub(_lines_alone, page.read_text()))] for page in pages}
    assert [advice for page, found in texts_of.items() for advice in said_otherwise(page, found)] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""Take  down what went."""', [1]),
        ('"""Fine.\n\n    :param owed: a name that is stored.\n    """', []),
        ('row["owed"]', []),
        ('raise E(f"{path}: no run of ours")', [1]),
        ("x = 1\n# Written anew.", [2]),
    ],
)
def test_what_is_said_otherwise_is_found(source: str, lines: list[int]) -> None:
    found = said_otherwise(Path("x.py"), texts(source))
    assert [int(advice.split(":")[1]) for advice in found] == lines
