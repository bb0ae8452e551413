from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage_engine.model.lag import LagSummary, QueueLag
from storage_engine.retention.lag_table import at_risk, read_lag_table, summarize
from storage_engine.rocketmq.lag import LAG_SCHEMA

CAUGHT_UP = QueueLag("readers", "orders", 0, 10, 0, 10, 0, 0, None, None, False, 0, None)
BEHIND = QueueLag("readers", "orders", 1, 4, 0, 10, 6, 500, 1234, 1000, True, 0, 0)
FURTHER_BEHIND = replace(BEHIND, group="auditors", committed_offset=1, lag_messages=9, lag_ms=900,
                         next_physical_offset=17, next_segment_base_offset=0)  # fmt: skip
UNKNOWN = QueueLag("newcomers", "orders", 1, None, 0, 10, None, None, None, None, True, 0, None)
ROWS = [CAUGHT_UP, BEHIND, FURTHER_BEHIND, UNKNOWN]


def table(rows: list[QueueLag]) -> pa.Table:
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=LAG_SCHEMA)


def test_summary_counts_groups_queues_and_what_is_unknown() -> None:
    assert summarize(table(ROWS)) == LagSummary(
        groups=3,
        queues=2,
        total_lag_messages=15,
        max_lag_ms=900,
        unknown=1,
        at_risk_groups=("auditors", "newcomers", "readers"),
        at_risk_queues=1,
    )


def test_summary_of_nothing_is_zero() -> None:
    assert summarize(table([])) == LagSummary(0, 0, 0, 0, 0, (), 0)


def test_rows_at_risk_come_in_the_order_in_which_they_cut_a_plan() -> None:
    assert at_risk(table(ROWS)) == (UNKNOWN, FURTHER_BEHIND, BEHIND)
    assert at_risk(table(ROWS), limit=1) == (UNKNOWN,)
    assert at_risk(table([CAUGHT_UP])) == ()


def test_table_comes_back_from_a_directory_of_files(tmp_path: Path) -> None:
    for number, row in enumerate(ROWS):
        pq.write_table(table([row]), tmp_path / f"part-{number}.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert sorted(map(str, read_lag_table(tmp_path).to_pylist())) == sorted(str(asdict(row)) for row in ROWS)
