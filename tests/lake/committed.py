"""What a lake has of segments that were committed."""

from __future__ import annotations

from collections.abc import Sequence

from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.file.jobs import ProvenSegment
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history


def live_files(lake: Lake) -> list[str]:
    return sorted(task.file.file_path for task in lake.messages().scan().plan_files())


def assert_each_is_there_once(lake: Lake, proven: Sequence[ProvenSegment]) -> None:
    rows = receipt_history(lake, proven[0].store_id)
    # Whichever attempt came first: another one's file has a name of its own where the bytes of salts differ.
    assert live_files(lake) == sorted(data_file_of(lake.messages(), row) for row in rows)
    assert sorted(row.identity.sha256 for row in rows) == sorted(segment.sha256 for segment in proven)
    check_chain(rows)
    assert sum(task.file.record_count for task in lake.messages().scan().plan_files()) == sum(
        segment.row_count for segment in proven
    )
