"""A segment as one Parquet file: writing it, and turning it back into the segment's bytes.

Rows are clustered by the codec within chunks of the segment, and cut into row groups small enough that
whoever reads one topic skips most of them. Reading back goes window by window: a window is a run of row
groups whose rows together cover one run of bytes, so memory follows the chunk, not the segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage_engine.exceptions import CorruptFrameError, ProofError
from storage_engine.lake.jobs import SegmentJob
from storage_engine.lake.tables import IDENTITY_COLUMNS, STATISTICS_COLUMNS, messages_arrow_schema
from storage_engine.model.codec import SegmentCodec

ROW_GROUP_BYTES = 16 << 20
"""Segment bytes in a row group."""

MIN_CHUNK_BYTES = 32 << 20
CHUNKS_PER_SEGMENT = 4
"""Clustering larger chunks skips more when one topic is read; a quarter keeps memory within bounds."""

COMPRESSION_LEVEL = 1

_DICTIONARY_COLUMNS = [
    *IDENTITY_COLUMNS.names,
    "kind",
    "magic",
    "topic",
    "queue_id",
    "flag",
    "sys_flag",
    "born_host",
    "born_port",
    "store_host",
    "store_port",
    "reconsume_times",
    "prepared_transaction_offset",
    "tags",
    "properties.key_value.key",
]
_DELTA_COLUMNS = ("physical_offset", "queue_offset", "born_timestamp", "store_timestamp", "size")


@dataclass(frozen=True, slots=True)
class DataFileStats:
    """What a segment's rows say of it. Timestamps in ms since the epoch; None without messages."""

    row_count: int
    message_count: int
    damaged_bytes: int
    first_store_timestamp_ms: int | None
    last_store_timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """Row groups [first, end) whose rows cover the bytes [start_offset, end_offset) and no others."""

    first_row_group: int
    end_row_group: int
    start_offset: int
    end_offset: int


def write_data_file(job: SegmentJob, codec: SegmentCodec, data: memoryview, sink: Any) -> None:
    """Write a segment's rows as Parquet.

    :param data: the whole segment.
    :param sink: open binary file; it is left open.
    :raises CorruptFrameError: for the first bytes that are not a frame, unless the job accepts damage.
    :raises OSError: when the sink can't take it.
    """
    chunk_bytes = max(MIN_CHUNK_BYTES, -(-len(data) // CHUNKS_PER_SEGMENT))

    def chunks() -> Iterator[pa.Table]:
        for rows, damage in codec.decode(data, job.base_offset, chunk_bytes=chunk_bytes):
            if damage and not job.accept_damage:
                first = damage[0]
                raise CorruptFrameError.at(job.path, first.offset, first.expected, first.found)
            yield rows
            del rows

    write_rows(job, codec.schema, chunks(), sink)


def write_rows(job: SegmentJob, codec_schema: pa.Schema, chunks: Iterable[pa.Table], sink: Any) -> None:
    """Write a codec's rows with the lake's columns, row groups and encodings.

    :param sink: open binary file, which is left open, or a path.
    """
    schema = messages_arrow_schema(codec_schema)
    with pq.ParquetWriter(sink, schema, **_writer_options(schema)) as writer:
        for rows in chunks:
            _write_chunk(writer, job, rows, schema)
            # The next chunk is decoded before this name is bound again.
            del rows


def _write_chunk(writer: pq.ParquetWriter, job: SegmentJob, rows: pa.Table, schema: pa.Schema) -> None:
    for group in _row_groups(rows):
        table = _with_identity(job, group, schema)
        writer.write_table(table, row_group_size=max(1, table.num_rows))


def data_file_stats(parquet: pq.ParquetFile) -> DataFileStats:
    """Count a data file's rows, from the file itself."""
    message_count = damaged_bytes = 0
    firsts: list[int] = []
    lasts: list[int] = []
    for group in range(parquet.num_row_groups):
        rows = parquet.read_row_group(group, columns=["kind", "size", "store_timestamp"], use_threads=False)
        is_message = pc.equal(rows["kind"], pa.scalar("message"))
        message_count += is_message.to_numpy().sum().item()
        damaged_bytes += (
            pc.sum(rows["size"].filter(pc.equal(rows["kind"], pa.scalar("undecodable")))).as_py() or 0
        )
        stored_us = rows["store_timestamp"].filter(is_message).cast(pa.int64())
        first_us, last_us = pc.min(stored_us).as_py(), pc.max(stored_us).as_py()
        if first_us is not None and last_us is not None:
            firsts.append(first_us // 1000)
            lasts.append(last_us // 1000)
    return DataFileStats(
        row_count=parquet.metadata.num_rows,
        message_count=message_count,
        damaged_bytes=damaged_bytes,
        first_store_timestamp_ms=min(firsts, default=None),
        last_store_timestamp_ms=max(lasts, default=None),
    )


def segment_bytes(
    parquet: pq.ParquetFile, codec: SegmentCodec, base_offset: int, size_bytes: int, name: str
) -> Iterator[tuple[int, memoryview]]:
    """Yield a segment's bytes from its data file, in order, as (physical offset, bytes).

    The bytes are valid until the next one is asked for.

    :param name: of the data file, for messages.
    :raises ProofError: when the rows don't cover [base_offset, base_offset + size_bytes) exactly once.
    """
    windows = plan_windows(parquet, base_offset, size_bytes, name)
    buffer = np.empty(max((w.end_offset - w.start_offset for w in windows), default=0), dtype=np.uint8).data
    for window in windows:
        out = buffer[: window.end_offset - window.start_offset]
        for group in range(window.first_row_group, window.end_row_group):
            rows = parquet.read_row_group(group, columns=codec.schema.names, use_threads=False)
            codec.encode(rows, out, window.start_offset)
        yield window.start_offset, out


def plan_windows(parquet: pq.ParquetFile, base_offset: int, size_bytes: int, name: str) -> tuple[Window, ...]:
    """Cut a data file into windows, by where its rows lie, and make sure that they cover the segment.

    :raises ProofError: when a byte of the segment is covered by no row, or by two.
    """
    windows: list[Window] = []
    start = base_offset
    first = 0
    starts: list[np.ndarray[Any, Any]] = []
    ends: list[np.ndarray[Any, Any]] = []
    covered = 0
    for group in range(parquet.num_row_groups):
        rows = parquet.read_row_group(group, columns=["physical_offset", "size"], use_threads=False)
        offsets = rows["physical_offset"].to_numpy()
        sizes = rows["size"].to_numpy().astype(np.int64)
        starts.append(offsets)
        ends.append(offsets + sizes)
        covered += int(sizes.sum())
        end = max((int(e.max()) for e in ends if len(e)), default=start)
        if end - start != covered:
            continue
        check_tiled(np.concatenate(starts), np.concatenate(ends), start, end, name)
        windows.append(Window(first, group + 1, start, end))
        start, first, covered = end, group + 1, 0
        starts, ends = [], []
    if covered:
        end = max(int(e.max()) for e in ends if len(e))
        check_tiled(np.concatenate(starts), np.concatenate(ends), start, end, name)
    if start != base_offset + size_bytes:
        raise ProofError(
            f"{name}: expected rows for the bytes [{base_offset}, {base_offset + size_bytes}), found them up "
            f"to {start} only. The data file is not the segment."
        )
    return tuple(windows)


def check_tiled(
    starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], start: int, end: int, name: str
) -> None:
    order = np.argsort(starts, kind="stable")
    expected = np.concatenate(([start], ends[order]))
    found = np.concatenate((starts[order], [end]))
    if not np.array_equal(expected, found):
        at = int(np.flatnonzero(expected != found)[0])
        raise ProofError(
            f"{name}: expected a row that begins at physical offset {int(expected[at])}, found "
            f"{int(found[at])}. The data file is not the segment."
        )


def _row_groups(rows: pa.Table) -> Iterator[pa.Table]:
    ends = np.cumsum(rows["size"].to_numpy(), dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    marks = np.arange(ROW_GROUP_BYTES, total, ROW_GROUP_BYTES)
    cuts = np.unique(np.concatenate(([0], np.searchsorted(ends, marks), [rows.num_rows])))
    for first, last in pairwise(cuts.tolist()):
        yield rows.slice(first, last - first)


def _with_identity(job: SegmentJob, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    identity = [
        pa.repeat(pa.scalar(value, field.type), rows.num_rows)
        for field, value in zip(
            IDENTITY_COLUMNS, (job.store_id, job.lineage, job.log, job.base_offset), strict=True
        )
    ]
    return pa.Table.from_arrays([*identity, *rows.columns], schema=schema)


def _writer_options(schema: pa.Schema) -> dict[str, Any]:
    names = set(schema.names)
    dictionary = [name for name in _DICTIONARY_COLUMNS if name.split(".")[0] in names]
    return {
        "compression": "zstd",
        "compression_level": COMPRESSION_LEVEL,
        "use_dictionary": dictionary,
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in _DELTA_COLUMNS if name in names},
        "write_statistics": [name for name in STATISTICS_COLUMNS if name in names],
        "write_page_index": True,
        "data_page_version": "2.0",
        "version": "2.6",
        "store_schema": False,
    }
