"""Lakes whose rows are made by the test, so that any row may be wrong: only the columns that are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage_engine.brokers import find_broker
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.tables import messages_arrow_schema, segments_schema
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.move.making import make_lake
from storage_engine.model.proof.receipt import Receipt
from storage_engine.spark.row_sums import columns_read

STORE = "0b1d8c4e-store"


@dataclass
class MadeSegment:
    """A segment's rows as the lake has them, and its receipt.

    :param rows: dictionaries of the columns that are read.
    """

    receipt: Receipt
    rows: list[dict[str, Any]] = field(default_factory=list)


def made_segments(log: str, sizes: Sequence[Sequence[tuple[str, int, int]]]) -> list[MadeSegment]:
    """Return back-to-back segments of RocketMQ, each with a blank at its end.

    :param sizes: by segment and message, its topic, queue and length.
    """
    found: list[MadeSegment] = []
    base, ends = 0, dict[tuple[str, int], int]()
    for messages in sizes:
        at, rows = base, list[dict[str, Any]]()
        for topic, queue, size in messages:
            offset = ends.get((topic, queue), 0)
            ends[topic, queue] = offset + 1
            rows.append(_row(log, base, at, size, "message", topic, queue, offset))
            at += size
        rows.append(_row(log, base, at, 16, "blank", None, None, None))
        at += 16
        found.append(MadeSegment(receipt_of(log, base, at - base, len(rows), len(messages)), rows))
        base = at
    return found


def write_lake(directory: Path, segments: Sequence[MadeSegment]) -> Lake:
    """Make a lake that has these rows and receipts."""
    lake = make_lake(LakeConfig.local(directory))
    table = lake.messages()
    codec = find_broker("rocketmq").codec
    names = {*columns_read(codec.columns), "store_id"}
    schema = pa.schema([one for one in messages_arrow_schema(codec.schema) if one.name in names])
    paths = []
    root = local_path(table.location())
    assert root is not None
    (root / "data").mkdir(exist_ok=True)
    for number, segment in enumerate(segments):
        path = root / "data" / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(segment.rows, schema), path, row_group_size=5)
        paths.append(path.as_uri())
    table.add_files(paths)
    receipts = [asdict(replace(one.receipt, sequence=at)) for at, one in enumerate(segments)]
    lake.segments().append(pa.Table.from_pylist(receipts, segments_schema().as_arrow()))
    return lake


def _row(
    log: str,
    base: int,
    at: int,
    size: int,
    kind: str,
    topic: str | None,
    queue: int | None,
    offset: int | None,
) -> dict[str, Any]:
    return {
        "store_id": STORE,
        "lineage": 0,
        "log": log,
        "segment_base_offset": base,
        "physical_offset": at,
        "size": size,
        "kind": kind,
        "topic": topic,
        "queue_id": queue,
        "queue_offset": offset,
        "sys_flag": None if topic is None else 0,
    }


def receipt_of(log: str, base: int, size: int, rows: int, messages: int, sequence: int = 0) -> Receipt:
    """Return a receipt that says so much of a segment, and nothing else."""
    known: Mapping[str, Any] = {
        "store_id": STORE,
        "log": log,
        "base_offset": base,
        "size_bytes": size,
        "row_count": rows,
        "message_count": messages,
        "broker": "rocketmq",
        "sequence": sequence,
    }
    kinds = {it.name: str(it.type) for it in fields(Receipt)}
    nothing = {name: "" if kind == "str" else 0 for name, kind in kinds.items()}
    empty = {name: None for name, kind in kinds.items() if "None" in kind}
    return Receipt(**{**nothing, **empty, **known})
