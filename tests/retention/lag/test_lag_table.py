from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_engine.arrow.name_columns import LAG_SCHEMA
from storage_engine.core.jsonable import to_jsonable
from storage_engine.model.lag import LagSummary, QueueLag
from storage_engine.retention.lag import lag_table
from storage_engine.retention.lag.lag_table import (
    AT_RISK_GROUPS_NAMED,
    AT_RISK_LIMIT,
    WORST_LIMIT,
    lag_part,
    merge,
    new_lag_table,
    read_lag_table,
    write_share,
)

CAUGHT_UP = QueueLag("readers", "orders", 0, 10, 0, 10, 0, 0, None, None, False, 0, None, "commitlog")
BEHIND = QueueLag("readers", "orders", 1, 4, 0, 10, 6, 500, 1234, 1000, True, 0, 0, "commitlog")
FURTHER_BEHIND = replace(BEHIND, group="auditors", committed_offset=1, lag_messages=9, lag_ms=900,
                         next_physical_offset=17, next_segment_base_offset=0)  # fmt: skip
UNKNOWN = QueueLag("newcomers", "orders", 1, None, 0, 10, None, None, None, None, True, 0, None, "commitlog")
ROWS = [CAUGHT_UP, BEHIND, FURTHER_BEHIND, UNKNOWN]


def table(rows: list[QueueLag]) -> pa.Table:
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=LAG_SCHEMA)


def summarize(table: pa.Table) -> LagSummary:
    return merge([lag_part(table)])[0]


def at_risk(table: pa.Table) -> tuple[QueueLag, ...]:
    return merge([lag_part(table)])[1]


def test_summary_counts_groups_queues_and_what_is_unknown() -> None:
    assert summarize(table(ROWS)) == LagSummary(
        groups=3,
        queues=2,
        total_lag_messages=15,
        max_lag_ms=900,
        unknown=1,
        at_risk_groups=("auditors", "newcomers", "readers"),
        at_risk_queues=1,
        lost_messages=0,
        soonest_loss_ms=0,
        worst=(FURTHER_BEHIND, BEHIND),
    )


def test_summary_of_nothing_is_zero() -> None:
    assert summarize(table([])) == LagSummary(0, 0, 0, 0, 0, (), 0)


def test_rows_at_risk_come_in_the_order_in_which_they_cut_a_plan() -> None:
    assert at_risk(table(ROWS)) == (UNKNOWN, FURTHER_BEHIND, BEHIND)
    assert at_risk(table([CAUGHT_UP])) == ()


def test_summary_of_shares_is_that_of_the_whole_and_as_small_whatever_their_number() -> None:
    rows = [
        replace(BEHIND, group=f"group-{group:03d}", queue_id=queue, lag_messages=group * queue % 977)
        for queue in range(60)
        for group in range(50)
    ]
    shares = [table(rows[start : start + 500]) for start in range(0, len(rows), 500)]
    summary, risky = merge(map(lag_part, shares))
    assert (summary, risky) == merge([lag_part(table(rows))])
    assert (len(summary.at_risk_groups), summary.more_at_risk_groups) == (AT_RISK_GROUPS_NAMED, 30)
    assert summary.worst == tuple(
        sorted(rows, key=lambda row: (-(row.lag_messages or 0), row.group, row.queue_id))[:WORST_LIMIT]
    )
    assert risky == tuple(sorted(rows, key=lambda row: (row.group, row.queue_id))[:AT_RISK_LIMIT])
    assert len(json.dumps(to_jsonable(summary))) < 5_000


def test_table_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "lag"
    with new_lag_table(path) as directory:
        write_share(directory, 0, table(ROWS))
    with pytest.raises(AttributeError), new_lag_table(path) as directory:
        write_share(directory, 0, None)
    assert read_lag_table(path).num_rows == len(ROWS)
    with new_lag_table(path) as directory:
        write_share(directory, 0, table(ROWS[:1]))
    assert [item.name for item in tmp_path.iterdir()] == ["lag"]
    assert read_lag_table(path).num_rows == 1


def test_a_kill_while_the_former_table_is_deleted_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lag"
    with new_lag_table(path) as directory:
        for number, row in enumerate(ROWS):
            write_share(directory, number, table([row]))

    def killed(directory: Path, **_: object) -> None:
        for part in [*directory.glob("*.parquet")][:1]:
            part.unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt), new_lag_table(path) as directory:
        write_share(directory, 0, table(ROWS[:1]))
    assert read_lag_table(path).num_rows == 1
    monkeypatch.undo()
    with new_lag_table(path) as directory:
        write_share(directory, 0, table(ROWS[:2]))
    assert [item.name for item in tmp_path.iterdir()] == ["lag"]
    assert read_lag_table(path).num_rows == 2


def test_anyone_reads_the_table_as_plain_columns(tmp_path: Path) -> None:
    with new_lag_table(tmp_path / "lag") as directory:
        for number, row in enumerate(ROWS):
            write_share(directory, number, table([row]))
    assert pq.read_schema(next((tmp_path / "lag").iterdir())).field("group").type == pa.string()
    found = duckdb.sql(f"SELECT * FROM '{tmp_path}/lag/*.parquet'").fetchall()
    assert sorted(map(str, found)) == sorted(str(tuple(asdict(row).values())) for row in ROWS)


def test_table_comes_back_from_a_directory_of_files(tmp_path: Path) -> None:
    for number, row in enumerate(ROWS):
        pq.write_table(table([row]), tmp_path / f"part-{number}.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert sorted(map(str, read_lag_table(tmp_path).to_pylist())) == sorted(str(asdict(row)) for row in ROWS)


def test_the_row_that_decides_is_there_for_each_log_however_many_are_at_risk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag_table, "AT_RISK_LIMIT", 3)
    rows = [
        replace(BEHIND, group=f"g{i}", next_segment_base_offset=base_offset, log=log)
        for i, (log, base_offset) in enumerate(
            [("a", 1000), ("a", 0), ("a", 2000), ("b", 9000), ("b", 8000), ("c", 1000), ("a", 0)]
        )
    ] + [replace(UNKNOWN, log="d")]
    for parts in ([lag_part(table(rows))], [lag_part(table([row])) for row in rows]):
        _, found = merge(parts)
        first: dict[str | None, QueueLag] = {}
        for row in found:
            first.setdefault(row.log, row)
        offsets = {log: row.next_segment_base_offset for log, row in first.items()}
        assert offsets == {"a": 0, "b": 8000, "c": 1000, "d": None}


def test_the_row_that_decides_is_there_for_each_of_more_logs_than_rows_are_kept() -> None:
    logs = [f"log-{number:04d}" for number in range(1500)]
    assert len(logs) > AT_RISK_LIMIT
    rows = [
        replace(BEHIND, group=f"g{k}", next_segment_base_offset=base_offset + 1000 * k, log=log)
        for k in (1, 0)
        for base_offset, log in enumerate(logs)
    ]
    for shares in ([rows], [rows[:700], rows[700:1600], rows[1600:]]):
        summary, found = merge([lag_part(table(share)) for share in shares], logs=logs)
        first: dict[str | None, int | None] = {}
        for row in found:
            first.setdefault(row.log, row.next_segment_base_offset)
        assert first == {log: base_offset for base_offset, log in enumerate(logs)}
        assert summary.logs == len(logs)
        assert len(json.dumps(to_jsonable(summary))) < 5_000
