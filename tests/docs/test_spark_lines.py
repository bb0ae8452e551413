"""The tables of versions in the docs are of the form that ``make matrix`` and ``make matrix-spark`` print."""

from __future__ import annotations

import re

from tests.docs.code_blocks import ROOT
from tests.integration import airflow_matrix
from tests.integration.spark_matrix import HEAD, LINES


def test_the_docs_have_a_row_of_each_line() -> None:
    page = (ROOT / "docs" / "upgrade.md").read_text()
    rows = page.partition(HEAD + "\n")[2].partition("\n\n")[0].splitlines()
    row = r"\| (\d+\.\d+)\.\d+ \| 3\.11\.\d+ \| (17|21)\.[\d.]+ \| 7 segments proven \| 5 groups \| \d+ \|"
    found = [re.fullmatch(row, one) for one in rows]
    assert tuple(one and one[1] for one in found) == LINES


def test_the_docs_have_a_cell_of_each_python_and_airflow() -> None:
    page = (ROOT / "docs" / "upgrade.md").read_text()
    rows = page.partition(airflow_matrix.HEAD + "\n")[2].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [python for python, *_ in cells] == list(airflow_matrix.PYTHONS)
    for _, *found in cells:
        for line, cell in zip(airflow_matrix.AIRFLOWS, found, strict=True):
            assert re.fullmatch(rf"ran \({re.escape(line)}\.\d+\)|resolves|[\w .\[\]-]+ is missing", cell), (
                cell
            )


def test_what_a_resolver_lacks_is_named() -> None:
    said = "  × No solution found:\n  ╰─▶ Because llvmlite>=0.43 has no wheels with a matching tag, we can"
    assert airflow_matrix.missing(said) == "llvmlite is missing"
    assert airflow_matrix.missing("Failed to build `cramjam==2.9`") == "cramjam is missing"
    assert airflow_matrix.missing("?") == "a package is missing"
