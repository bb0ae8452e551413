from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import StringType

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.tables import (
    LATER_COLUMNS,
    LEAF_KEY,
    TREE_COLUMNS,
    TREE_FIELDS,
    check_messages_schema,
    messages_arrow_schema,
    messages_schema,
    partition_by_store,
    segments_schema,
)
from storage_engine.model.proof.receipt import Receipt
from storage_engine.rocketmq.codec.codec import CODEC
from tests.lakes import path_of


def test_field_ids_are_those_that_a_catalog_gives() -> None:
    schema = messages_schema(CODEC.schema, trees=False)
    assert assign_fresh_schema_ids(schema) == schema
    later = sorted(messages_schema(CODEC.schema).fields, key=lambda field: field.field_id)[
        len(schema.fields) :
    ]
    assert [(field.field_id, field.name, field.required) for field in later] == [
        (schema.highest_field_id + number, name, False)
        for number, name in enumerate((*TREE_COLUMNS.names, *LATER_COLUMNS), 1)
    ]
    assert assign_fresh_schema_ids(segments_schema()) == segments_schema()


def test_every_field_of_a_receipt_is_a_column() -> None:
    assert [column.name for column in segments_schema().fields] == [field.name for field in fields(Receipt)]
    optional = {column.name for column in segments_schema().fields if not column.required}
    later = {"end_offset", "files", "store_name", "store_host", "log_id", "digest", "evidence", *TREE_FIELDS}
    assert optional == {"first_store_timestamp_ms", "last_store_timestamp_ms", "moved_to"} | later
    # So that their ids come after those that every lake has.
    assert {column.name for column in segments_schema().fields[-len(later) :]} == later


def test_tables_are_partitioned_by_store(lake: Lake) -> None:
    for table in (lake.messages(), lake.segments()):
        assert table.spec() == partition_by_store(table.schema())
        assert [field.name for field in table.spec().fields] == ["store_id"]


def test_a_further_column_is_no_obstacle_but_a_missing_one_is() -> None:
    expected = messages_schema(CODEC.schema)
    check_messages_schema("x", Schema(*expected.fields[:3]), expected)
    with pytest.raises(LakeUnavailableError, match="expected column 4 segment_base_offset long, found None"):
        check_messages_schema("x", expected, Schema(*expected.fields[:3]))


def test_data_files_carry_field_ids_down_into_maps(
    lake: Lake, segments: list[Path], make_jobs: Callable[..., tuple[SegmentJob, ...]]
) -> None:
    (receipt,) = archive_all(lake, make_jobs(lake, segments[0]))
    found = pq.read_schema(path_of(lake, receipt))
    schema = messages_arrow_schema(CODEC.schema)
    assert {*CODEC.schema.names, LEAF_KEY} <= set(found.names)
    for field in found:
        assert _field_ids(field) == _field_ids(schema.field(field.name))


def test_manifests_bound_what_queries_select_by_and_not_bodies(
    lake: Lake, segments: list[Path], make_jobs: Callable[..., tuple[SegmentJob, ...]]
) -> None:
    (receipt,) = archive_all(lake, make_jobs(lake, segments[1]))
    table = lake.messages()
    (task,) = table.scan().plan_files()
    ids = {column.name: column.field_id for column in table.schema().fields}
    lower = task.file.lower_bounds
    for name in ("store_id", "segment_base_offset", "physical_offset", "topic", "store_timestamp"):
        assert ids[name] in lower
        assert ids[name] in task.file.upper_bounds
    assert from_bytes(StringType(), lower[ids["store_id"]]) == receipt.store_id
    for name in ("body", "raw", "properties"):
        assert ids[name] not in lower


def _field_ids(field: pa.Field) -> list[bytes]:
    own = [field.metadata[b"PARQUET:field_id"]]
    if pa.types.is_map(field.type):
        return own + _field_ids(field.type.key_field) + _field_ids(field.type.item_field)
    return own
