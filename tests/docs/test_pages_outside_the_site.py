"""Links of pages that the site doesn't have, and what package indexes show instead of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from markdown.extensions.toc import slugify

import storage_engine
from hatch_build import PROJECT_URL
from tests.docs.code_blocks import ROOT

_LINK = re.compile(r"\]\((?!https://)([^)#\s]*)#?([^)\s]*)\)")
_NAMED = re.compile(r"(?<![\w/])docs/[\w./-]*\w")
_MODULE = re.compile(r"`([\w/]+/\w+\.py)`")


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


def test_each_module_that_contributing_names_is_there() -> None:
    named = _MODULE.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 30
    package = ROOT / "storage_engine"
    assert [name for name in named if not ((ROOT / name).is_file() or (package / name).is_file())] == []


@pytest.mark.parametrize("directory", [ROOT, ROOT / "provider"])
def test_what_a_package_index_shows_leads_to_no_page_of_the_checkout(directory: Path) -> None:
    shown = ProjectMetadata(str(directory), PluginManager()).core.readme
    assert "pip install" in shown
    assert _LINK.findall(shown) == []
    assert not re.search(r"\bsrc=|\[[^\]]+\]: ", shown)


def test_with_the_repository_s_address_a_package_index_shows_the_readme(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "https://github.com/example/storage-engine"
    monkeypatch.setenv(PROJECT_URL, f"{url}/")
    core = ProjectMetadata(str(ROOT), PluginManager()).core
    tag = f"v{storage_engine.__version__}"
    assert core.urls["Homepage"] == url
    assert {*core.urls} == {"Homepage", "Documentation", "Changelog", "Issues"}
    readme = (ROOT / "README.md").read_text()
    assert core.readme.count(f"]({url}/") == len(re.findall(r"\]\((?!https://|#)", readme)) > 20
    assert _LINK.findall(re.sub(r"\]\(#", "](https://", core.readme)) == []
    pictures = re.findall(rf"!\[[^]]*\]\({url}/raw/{tag}/([^)]+)\)", core.readme)
    assert len(pictures) == readme.count("![") > 0
    shown = " ".join((core.readme, *core.urls.values()))
    pages = re.findall(rf"{url}/(?:blob|raw)/{tag}/([^)#\s]+)", shown)
    assert [page for page in pages if not (ROOT / page).exists()] == []


@pytest.mark.parametrize("name", ["fault.yml", "idea.yml"])
def test_an_issue_form_asks_for_what_helps(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text())
    asked = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len({*asked}) == len(asked) > 1
    assert {"name", "description", "body"} <= form.keys()
    assert all(part["attributes"].get("label") for part in form["body"] if part["type"] != "markdown")
