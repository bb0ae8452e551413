"""Expiring archived segments in a lake, in the two commits in which that is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyiceberg.table import Table, Transaction

from storage_engine.lake.archive.commit import append_receipts
from storage_engine.lake.archive.commit_retries import CommitStep, commit_steps
from storage_engine.lake.archive.small_tables import begin
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.soundness.receipts import receipts_in
from storage_engine.model.proof.receipt import EXPIRED, Receipt, gone_by

ACT = "3f2a9c51d0e84b67" * 4
"""SHA-256 of the act by which these expire."""


def expire_receipts(lake: Lake, rows: Sequence[Receipt], state: str = EXPIRED, act: str = ACT) -> None:
    """Commit that segments expired; their rows are in the lake still."""
    store_id = rows[0].store_id
    said = json.dumps({"id": act[:12], "kind": "expire", "sha256": act})

    def missing(segments: Table) -> list[Receipt]:
        last = {row.row_hash for row in receipts_in(segments, store_id)}
        return [
            replace(row, state=state, act=said, streams=gone_by(row.streams, act[:12]))
            for row in rows
            if row.row_hash in last
        ]

    append_receipts(lake, store_id, missing)


def drop_rows(lake: Lake, rows: Sequence[Receipt]) -> None:
    """Let data files leave the table of rows; they lie where they are."""

    def next_step() -> CommitStep | None:
        table = lake.messages()
        gone = {data_file_of(table, row) for row in rows}
        files = [task.file for task in table.scan().plan_files() if task.file.file_path in gone]

        def prepare() -> Transaction:
            transaction = begin(table)
            with transaction.update_snapshot().overwrite() as change:
                for file in files:
                    change.delete_data_file(file)
            return transaction

        return CommitStep(table, tuple(sorted(gone)), prepare) if files else None

    with CHANGE_LOCK:
        commit_steps(lake, next_step)


def expire(lake: Lake, rows: Sequence[Receipt]) -> None:
    """Commit that segments expired, and let their data files leave the table of rows."""
    expire_receipts(lake, rows)
    drop_rows(lake, rows)


Expire = Callable[[Lake, Sequence[Receipt]], None]
