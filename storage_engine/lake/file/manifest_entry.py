"""What Iceberg's manifests say of a data file, taken from its footer where the file is proven.

The driver of a job assembles its manifest from these without opening a data file, and keeps them packed
until then: with 10,000 files in one commit, what is kept of each decides how much memory it takes.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from storage_engine.lake.catalog.tables import check_partitions, messages_properties, messages_schema
from storage_engine.model.broker.codec import Columns, SegmentCodec

_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")


def packed_facts(footer: pq.FileMetaData, codec: SegmentCodec) -> bytes:
    """A data file's counts, sizes, bounds and split offsets, in some 400 bytes."""
    plan, field_ids = _statistics_plan(codec.schema, codec.columns)
    facts = data_file_statistics_from_parquet_metadata(footer, plan, field_ids).to_serialized_dict()
    plain = {name: facts[name] for name in ("record_count", "split_offsets", *_COUNTS)}
    bounds = {name: {key: value.hex() for key, value in facts[name].items()} for name in _BOUNDS}
    return zlib.compress(json.dumps({**plain, **bounds}, separators=(",", ":")).encode())


def iceberg_data_file(table: Table, location: str, size_bytes: int, store_id: str, packed: bytes) -> DataFile:
    """The manifest's entry of a file in the partition of its store.

    :raises LakeUnavailableError: the table has other partitions.
    """
    check_partitions(table)
    facts: dict[str, Any] = json.loads(zlib.decompress(packed))
    for name in _COUNTS:
        facts[name] = {int(key): value for key, value in facts[name].items()}
    for name in _BOUNDS:
        facts[name] = {int(key): bytes.fromhex(value) for key, value in facts[name].items()}
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(store_id),
        file_size_in_bytes=size_bytes,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **facts,
    )
    data_file.spec_id = table.metadata.default_spec_id
    return data_file


def record_count(packed: bytes) -> int:
    """Return how many rows a data file has, by what :func:`packed_facts` made."""
    return int(json.loads(zlib.decompress(packed))["record_count"])


@cache
def _statistics_plan(
    codec_schema: pa.Schema, columns: Columns
) -> tuple[dict[int, StatisticsCollector], dict[str, int]]:
    schema = messages_schema(codec_schema)
    return compute_statistics_plan(schema, messages_properties(columns)), parquet_path_to_id_mapping(schema)
