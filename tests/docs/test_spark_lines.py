"""The table of Spark lines in the docs is of the form and the lines that ``make matrix-spark`` prints."""

from __future__ import annotations

import re

from tests.docs.code_blocks import ROOT
from tests.integration.spark_matrix import HEAD, LINES


def test_the_docs_have_a_row_of_each_line() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    rows = page.partition(HEAD + "\n")[2].partition("\n\n")[0].splitlines()
    row = r"\| (\d+\.\d+)\.\d+ \| 3\.11\.\d+ \| (17|21)\.[\d.]+ \| 7 segments proven \| 5 groups \| \d+ \|"
    found = [re.fullmatch(row, one) for one in rows]
    assert tuple(one and one[1] for one in found) == LINES
