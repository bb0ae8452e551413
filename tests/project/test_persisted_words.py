"""Words of enums: journals, lakes and files of a store have them, so none may be renamed without an alias."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from tests.project.shape import PACKAGE

KNOWN = Path(__file__).resolve().parents[1] / "fixtures" / "enum-words.json"
"""Words of members, by class. New words are added here; one is removed only with a migration."""


def enum_words() -> dict[str, set[str]]:
    """Return the words of each enum of texts, by the name of its class."""
    words: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "StrEnum" for base in node.bases):
                values = [one.value for one in node.body if isinstance(one, ast.Assign)]
                texts = {one.value for one in values if isinstance(one, ast.Constant)}
                words.setdefault(node.name, set()).update(text for text in texts if isinstance(text, str))
    return words


def test_each_word_is_still_there_and_each_new_one_is_known() -> None:
    known = json.loads(KNOWN.read_text())
    assert {name: sorted(words) for name, words in enum_words().items() if words} == known
