"""What a task counts of some rows: by topic, host, hour and size class, in a span of time."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from storage_engine.brokers import find_broker
from storage_engine.model.report.usage import SIZE_CLASS_BYTES, SIZE_CLASSES
from storage_engine.spark.retention_report import CELLS, IN_A_BATCH, columns_counted, count_usage, of_segments

HOUR_US = 3_600_000_000


def counted(broker: str, rows: list[dict[str, Any]], *span: int | None) -> list[tuple[Any, ...]]:
    codec = find_broker(broker).codec
    schema = pa.schema([codec.schema.field(name) for name in columns_counted(codec.columns)])
    cells = count_usage(pa.Table.from_pylist(rows, schema), codec.columns, *(span or (None, None)))
    assert cells.cast(CELLS).schema == CELLS
    return sorted(tuple(row.values()) for row in cells.to_pylist())


def message(at_us: int, size: int, topic: str = "orders", host: str = "10.0.0.1") -> dict[str, Any]:
    stored = pa.scalar(at_us, pa.timestamp("us", "UTC")).as_py()
    return {"topic": topic, "born_host": host, "store_timestamp": stored, "size": size, "kind": "message"}


def test_messages_are_counted_by_topic_host_hour_and_class() -> None:
    blank = {"topic": None, "born_host": None, "store_timestamp": None, "size": 64, "kind": "blank"}
    rows = [message(0, 100), message(HOUR_US - 1, 200), message(HOUR_US, 100), blank]
    rows += [message(0, 100, host="10.0.0.2"), message(0, 100, topic="refunds")]
    small = SIZE_CLASSES[0]
    assert counted("rocketmq", rows) == [
        ("orders", "10.0.0.1", 0, small, 2, 300),
        ("orders", "10.0.0.1", 1, small, 1, 100),
        ("orders", "10.0.0.2", 0, small, 1, 100),
        ("refunds", "10.0.0.1", 0, small, 1, 100),
    ]
    assert counted("rocketmq", rows[:3], HOUR_US - 1, HOUR_US) == [("orders", "10.0.0.1", 0, small, 1, 200)]


def test_a_size_class_ends_with_its_last_byte() -> None:
    sizes = [size + more for size in SIZE_CLASS_BYTES for more in (0, 1)]
    classes = [cell[3] for size in sizes for cell in counted("rocketmq", [message(0, size)])]
    assert classes == [name for pair in itertools.pairwise(SIZE_CLASSES) for name in pair]


def test_bytes_of_a_batch_count_once_and_by_the_time_of_its_records() -> None:
    at = pa.scalar(5 * HOUR_US, pa.timestamp("us", "UTC")).as_py()
    rows = [
        {"topic": "t", "timestamp": None, "size": 900, "kind": "batch"},
        {"topic": "t", "timestamp": at, "size": 0, "kind": "message"},
        {"topic": "t", "timestamp": at, "size": 0, "kind": "message"},
    ]
    assert counted("kafka", rows) == [
        ("t", "", 5, IN_A_BATCH, 2, 0),
        ("t", "", 5, SIZE_CLASSES[0], 0, 900),
    ]


@pytest.mark.parametrize("log_type", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_rows_of_other_segments_in_a_file_do_not_count(log_type: Any) -> None:
    logs = pa.array(["a", "a", "b", "a"]).cast(log_type)
    rows = pa.table(
        {"lineage": [0, 0, 0, 1], "log": logs, "segment_base_offset": [0, 8, 0, 0], "size": [1, 2, 3, 4]}
    )

    def sizes(*wanted: tuple[int, str, int]) -> list[int]:
        return of_segments(rows, set(wanted))["size"].to_pylist()

    assert sizes((0, "a", 0)) == [1]
    assert sizes((0, "a", 8), (1, "a", 0), (7, "a", 0)) == [2, 4]
    assert sizes() == []
    assert sizes((0, "a", 0), (0, "a", 8), (0, "b", 0), (1, "a", 0)) == [1, 2, 3, 4]
