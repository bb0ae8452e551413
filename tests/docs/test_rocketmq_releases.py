"""The table of RocketMQ's releases in the docs is of the rows that ``make matrix-rocketmq`` prints."""

from __future__ import annotations

from storage_engine.rocketmq.format.broker_config import TRIED
from tests.docs.code_blocks import ROOT
from tests.integration.rocketmq_matrix import HEAD, ROWS


def test_the_docs_have_a_row_of_each_version_and_layout() -> None:
    page = (ROOT / "docs" / "upgrade.md").read_text()
    rows = page.partition(HEAD + "\n")[2].partition("\n\n")[0].splitlines()
    told = [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in rows]
    assert [row[:2] for row in told] == [(row.version, row.layout) for row in ROWS]
    for (_, _, cleaned, _, back, beside), row in zip(told, ROWS, strict=True):
        assert cleaned.startswith("archived; not cleaned" if row.refused else "3 of")
        assert back.endswith("archived messages")
        assert beside.endswith("exactly") is row.live


def test_each_line_that_counts_as_tried_has_a_row() -> None:
    assert {row.version.rpartition(".")[0] for row in ROWS if row.live} == set(TRIED)
