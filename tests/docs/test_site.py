"""The site is built without a warning, needs no network, and comes with the wheel."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from mkdocs.exceptions import Abort

from hatch_build import build_site
from tests.docs.code_blocks import ROOT
from tests.services.command_line import run_command
from tests.services.toy import build_wheel

DOCS = ROOT / "docs"
KIB = 1024


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    build_site(ROOT, directory)
    return directory


def test_every_page_is_there_with_its_text(site: Path) -> None:
    names = {path.stem for path in DOCS.glob("*.md")}
    assert {path.stem for path in site.glob("*.html")} == {path.stem for path in site.glob("*.md")} == names


def test_a_page_loads_nothing_from_a_network(site: Path) -> None:
    loaded = re.compile(
        r"""(?:src|srcset|<link[^>]*href)=["']([^"']+)|url\(([^)]+)\)|@import|fetch\(|XMLHttp"""
    )
    for path in [*site.glob("*.html"), *site.rglob("*.css"), *site.glob("search.js")]:
        for found in loaded.finditer(path.read_text()):
            address = (found[1] or found[2] or "").strip("\"'")
            assert address, f"{path.name}: {found[0]}"
            assert (site / address).is_file(), f"{path.name}: {address}"


def test_markdown_is_rendered_whole(site: Path) -> None:
    """What this reader of Markdown doesn't take for a table, list or block stands as it was typed."""
    for path in site.glob("*.html"):
        text = re.sub(r"<(pre|code).*?</\1>", "", path.read_text(), flags=re.DOTALL)
        assert re.findall(r"```|^\|.*\||^<p>[-*] |\n[-*] \w|\n\d+\. \w", text, re.MULTILINE) == [], path.name


def test_pictures_are_small_and_described() -> None:
    for page in DOCS.glob("*.md"):
        for words, address in re.findall(r"!\[(.*?)\]\((\S+?)\)", page.read_text()):
            assert words, f"{page.name}: {address}"
            assert (DOCS / address).stat().st_size <= 150 * KIB, address


@pytest.mark.parametrize("line", ["[gone](gone.md)", "[gone](index.md#gone)"])
def test_a_link_that_leads_nowhere_ends_the_build(line: str, tmp_path: Path) -> None:
    (tmp_path / "docs" / "theme").mkdir(parents=True)
    for path in (DOCS / "theme").iterdir():
        if path.is_file():
            (tmp_path / "docs" / "theme" / path.name).write_bytes(path.read_bytes())
    settings = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(settings[: settings.index("\nnav:\n")])
    (tmp_path / "docs" / "index.md").write_text("# One\n\nFine.\n")
    build_site(tmp_path, tmp_path / "site")
    (tmp_path / "docs" / "index.md").write_text(f"# One\n\n{line}\n")
    with pytest.raises(Abort):
        build_site(tmp_path, tmp_path / "site")


@pytest.mark.again
@pytest.mark.slow
def test_a_wheel_has_the_site_and_links_to_none_of_its_pages(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(ROOT, tmp_path)) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        shown = wheel.read(metadata).decode().partition("\n\n")[2]
    # A package index has no page of the site, and shows this.
    assert "`storage-engine docs` says where it is" in shown
    assert re.findall(r"\]\((?!https://)", shown) == []
    pages = {
        f"storage_engine/site/{page.stem}{kind}" for page in DOCS.glob("*.md") for kind in (".html", ".md")
    }
    assert pages <= names
    assert "storage_engine/site/search_index.js" in names
    assert not any(
        name.endswith((".py", ".map")) for name in names if name.startswith("storage_engine/site/")
    )


@pytest.mark.again
def test_no_wheel_comes_of_a_site_that_cannot_be_built(tmp_path: Path) -> None:
    for name in ("tests/java/pom.xml", "tests/java/Load.java", "tests/fixtures/rocketmq/clean-stop.tar.xz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    parts = ("pyproject.toml", "hatch_build.py", "mkdocs.yml", "README.md", "LICENSE", "constraints.txt")
    for name in parts:
        shutil.copy(ROOT / name, tmp_path)
    for name in ("storage_engine", "docs", "dags", "older_dags", "plugins", "spark_jobs", "expectations"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "site"))
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.write("\n[gone](gone.md)\n")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build_wheel(tmp_path, tmp_path)
    assert b"gone.md" in failed.value.stdout + failed.value.stderr
    assert list(tmp_path.glob("*.whl")) == []


def test_reference_is_what_the_code_says() -> None:
    for page, text in runpy.run_path(str(DOCS / "write_reference.py"))["pages"]().items():
        assert page.read_text() == text, f"{page.name}: run make reference"


def test_the_pictures_of_a_broker_s_courses_are_what_the_code_draws() -> None:
    for path, picture in runpy.run_path(str(DOCS / "draw_broker_courses.py"))["draw"]().items():
        assert path.read_text() == picture, f"{path.name}: run make picture"


def test_the_picture_of_a_simulation_is_what_the_code_draws() -> None:
    drawn = runpy.run_path(str(DOCS / "draw_what_if.py"))
    assert drawn["PICTURE"].read_text() == drawn["draw"](), "run make picture"


def test_the_shell_says_where_a_page_is(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_engine.cli.help.SITE", site)
    assert run_command("docs").out == f"{(site / 'index.html').as_uri()}\n"
    assert run_command("docs", "query.md").out == f"{(site / 'query.html').as_uri()}\n"
    assert run_command("docs", "query", "--text").out.startswith("# Query\n")
    assert run_command("docs", "disk", "--text").out.startswith("# The disk is full\n")
    wrong = run_command("docs", "retension")
    assert (wrong.exit_code, wrong.out) == (2, "")
    assert "Did you mean retention?" in wrong.err


def test_a_checkout_without_a_site_says_how_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.cli.help.SITE", tmp_path)
    assert "make docs" in run_command("docs").err
