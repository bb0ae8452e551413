"""Links of pages that the site doesn't have, and what package indexes show instead of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from markdown.extensions.toc import slugify

from tests.docs.code_blocks import ROOT

_LINK = re.compile(r"\]\((?!https://)([^)#\s]*)#?([^)\s]*)\)")
_NAMED = re.compile(r"(?<![\w/])docs/[\w./-]*\w")


def anchors_of(text: str) -> set[str]:
    return {slugify(title.replace("`", ""), "-") for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "provider/README.md"]
)
def test_what_it_names_is_there(name: str) -> None:
    page = ROOT / name
    text = page.read_text()
    links = [(page.parent / path if path else page, anchor) for path, anchor in _LINK.findall(text)]
    links += [(ROOT / path, "") for path in _NAMED.findall(text)]
    dead = [
        f"{target.relative_to(ROOT)}#{anchor}"
        for target, anchor in links
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text()))
    ]
    assert dead == []


@pytest.mark.parametrize("directory", [ROOT, ROOT / "provider"])
def test_what_a_package_index_shows_leads_to_no_page_of_the_checkout(directory: Path) -> None:
    readme = tomllib.loads((directory / "pyproject.toml").read_text())["project"]["readme"]
    shown = readme["text"] if isinstance(readme, dict) else (directory / readme).read_text()
    assert "pip install" in shown
    assert _LINK.findall(shown) == []
    assert not re.search(r"\bsrc=|\[[^\]]+\]: ", shown)


@pytest.mark.parametrize("name", ["fault.yml", "idea.yml"])
def test_an_issue_form_asks_for_what_helps(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text())
    asked = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len({*asked}) == len(asked) > 1
    assert {"name", "description", "body"} <= form.keys()
    assert all(part["attributes"].get("label") for part in form["body"] if part["type"] != "markdown")
