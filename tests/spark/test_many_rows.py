"""Ten million rows of a lake, checked with a driver of at most 2 GiB."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_engine.brokers import find_broker
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.tables import messages_arrow_schema, segments_schema
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.move.making import make_lake
from storage_engine.model.report.validation import Status
from storage_engine.spark.session import spark_session
from storage_engine.spark.validate_rows import ValidateRowsRequest, validate_rows
from tests.spark.row_lakes import STORE, receipt_of

SEGMENTS, ROWS, QUEUES, SIZE = 10, 1_000_000, 64, 200


def segment_table(number: int, schema: pa.Schema) -> pa.Table:
    """Return a segment's rows: messages of one size, dealt to the queues in turn."""
    base = number * ROWS * SIZE
    place = np.arange(ROWS, dtype=np.int64) + number * ROWS
    queues, offsets = place % QUEUES, place // QUEUES

    def same(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), ROWS)

    columns = {
        "store_id": same(STORE, pa.string()),
        "lineage": same(0, pa.int32()),
        "log": same("commitlog", pa.string()),
        "segment_base_offset": same(base, pa.int64()),
        "physical_offset": pa.array(place * SIZE),
        "size": same(SIZE, pa.int32()),
        "kind": same("message", pa.string()),
        "topic": same("orders", pa.string()),
        "queue_id": pa.array(queues.astype(np.int32)),
        "queue_offset": pa.array(offsets),
        "sys_flag": same(0, pa.int32()),
    }
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


@pytest.mark.again
@pytest.mark.integration
@pytest.mark.timeout(1800)
def test_ten_million_rows_are_checked_by_a_small_driver(tmp_path: Path) -> None:
    lake = make_lake(LakeConfig.local(tmp_path / "lake"))
    table = lake.messages()
    every = messages_arrow_schema(find_broker("rocketmq").codec.schema)
    names = {
        *("store_id", "lineage", "log", "segment_base_offset", "physical_offset", "size", "kind"),
        *("topic", "queue_id", "queue_offset", "sys_flag"),
    }
    schema = pa.schema([field for field in every if field.name in names])
    root = local_path(table.location())
    assert root is not None
    (root / "data").mkdir()
    paths = [root / "data" / f"{number}.parquet" for number in range(SEGMENTS)]
    for number, path in enumerate(paths):
        rows = segment_table(number, schema)
        if number == 7:
            rows = pa.concat_tables([rows.slice(0, 500_000), rows.slice(500_001)])
        pq.write_table(rows, path, row_group_size=80_000)
    table.add_files([path.as_uri() for path in paths])
    receipts = [
        asdict(receipt_of("commitlog", number * ROWS * SIZE, ROWS * SIZE, ROWS, ROWS, number))
        for number in range(SEGMENTS)
    ]
    lake.segments().append(pa.Table.from_pylist(receipts, segments_schema().as_arrow()))
    settings = {"spark.driver.memory": "2g"}
    with spark_session("ten million rows", "local[2]", settings) as spark:
        request = ValidateRowsRequest((lake.config,), STORE, "rocketmq", str(tmp_path / "docs"), "run")
        result = validate_rows(spark, request)
    found = {check.expectation: check for check in result.checks}
    place = (7 * ROWS + 500_001) * SIZE
    (text,) = found["ExpectRowsToCoverSegments"].examples
    assert f"commitlog/{7 * ROWS * SIZE:020d} (lineage 0), first wrong at {place}:" in text
    (text,) = found["ExpectOffsetsToFollowOn"].examples
    queue, offset = (7 * ROWS + 500_000) % QUEUES, (7 * ROWS + 500_000) // QUEUES
    assert text.startswith(f"orders {queue} in commitlog/")
    assert f"offset {offset + 1} behind {offset - 1}" in text
    assert found["ExpectOffsetsToFollowOn"].checked_count == SEGMENTS * QUEUES
    assert found["ExpectArchivedSegmentsToFollowOn"].status is Status.OK
    assert result.notes[0].endswith("single rows were checked in 1 segment")
