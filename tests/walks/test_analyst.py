"""An analyst with a notebook: PyIceberg, pandas and DuckDB on a lake, by one page of the docs alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_engine.project.up import unpack_sample_store
from tests.docs.code_blocks import ROOT, Block, blocks_of
from tests.services.command_line import run_command
from tests.services.newcomer import Newcomer

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1800)]

PAGE = "query.md"
WITH_OUR_PACKAGE = "## Compressed bodies"
"""What the page says that it takes more for, from this heading on."""


def cells(page: str) -> Iterator[str]:
    """Yield a page's examples for PyIceberg, pandas and DuckDB as cells that print what they answer."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    last_line = text[: text.index(WITH_OUR_PACKAGE)].count("\n")
    for block in blocks_of(ROOT / "docs" / page):
        if block.line < last_line and (cell := _cell(block)):
            yield cell


def _cell(block: Block) -> str | None:
    engine = block.said.get("engine", "")
    if block.language == "python" and engine in ("pyiceberg", "pandas", "duckdb"):
        return block.text + ("print(len(answer))\n" if "answer =" in block.text else "")
    if block.language == "sql" and engine in ("", "duckdb"):
        return f"print(len(duckdb.sql({block.text!r}).df()))\n"
    return None


def test_a_lake_answers_in_a_notebook_without_this_package(tmp_path: Path, wheels: Path) -> None:
    sample, lake = unpack_sample_store(tmp_path / "data"), tmp_path / "lake"
    for words in (("init-lake",), ("archive", sample.root)):
        assert run_command(*words, "--lake", lake).exit_code == 0

    analyst = Newcomer(tmp_path / "home", wheels)
    page = analyst.reads(PAGE)
    for command in re.findall(r"`pip install ([^`]+)`", page[: page.index("## The data")]):
        if "storage-engine" not in command:
            analyst.installs(*command.replace('"', "").split(), constraints=False)
    notebook = [f"LAKE = {str(lake)!r}\n", *cells(PAGE)]
    (analyst.home / "notebook.py").write_text("\n".join(notebook), encoding="utf-8")
    answers = analyst.types("python notebook.py", takes="queries").split()
    told = analyst.summary("analyst")
    assert len(answers) == sum("print(" in cell for cell in notebook) > 5, told
    assert all(int(answer) > 0 for answer in answers)
    assert "storage_engine" not in analyst.types("pip list", takes="check").replace("-", "_")
