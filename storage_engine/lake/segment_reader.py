"""A segment's bytes out of the lake, wherever its rows lie by now."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from storage_engine.lake.codecs import codec_for
from storage_engine.lake.data_file import check_tiled, segment_bytes
from storage_engine.lake.durable_io import open_data_file
from storage_engine.lake.errors import lake_errors, parquet_errors
from storage_engine.lake.filters import segment_rows
from storage_engine.lake.live_files import live_data_files
from storage_engine.model.receipt import Receipt


def read_segment(table: Table, receipt: Receipt) -> Iterator[tuple[int, memoryview]]:
    """Yield a segment's bytes in order, as (physical offset, bytes valid until the next is asked for).

    From its own data file while the table has it as it was written; else from the rows that another
    engine rewrote. Who reads compares the SHA-256: nothing here is proof.

    :param table: ``messages``, as loaded.
    :raises ProofError: the data file is no Parquet file, or the rows are not a whole segment.
    :raises LakeUnavailableError: the lake can't be read.
    """
    files = live_data_files(table, receipt.store_id, (receipt.base_offset, receipt.base_offset))
    if any(file.location == receipt.data_file and not file.has_deletes for file in files):
        yield from _from_data_file(table, receipt)
    else:
        yield from _from_rows(table, receipt)


def _from_data_file(table: Table, receipt: Receipt) -> Iterator[tuple[int, memoryview]]:
    codec = codec_for(receipt.broker)
    with (
        parquet_errors(receipt.data_file),
        open_data_file(table.io, receipt.data_file) as stored,
        pq.ParquetFile(stored) as parquet,
    ):
        yield from segment_bytes(parquet, codec, receipt.base_offset, receipt.size_bytes, receipt.data_file)


def _from_rows(table: Table, receipt: Receipt) -> Iterator[tuple[int, memoryview]]:
    codec = codec_for(receipt.broker)
    where = segment_rows(receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)
    out = np.zeros(receipt.size_bytes, dtype=np.uint8).data
    offsets, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    with lake_errors(table.location(), "read a segment's rows"):
        scan = table.scan(row_filter=where, selected_fields=tuple(codec.schema.names))
        for batch in scan.to_arrow_batch_reader():
            # PyIceberg widens strings and binaries; the codec knows its own types.
            rows = pa.Table.from_batches([batch]).select(codec.schema.names).cast(codec.schema)
            codec.encode(rows, out, receipt.base_offset)
            offsets.append(rows["physical_offset"].to_numpy())
            sizes.append(rows["size"].to_numpy().astype(np.int64))
    starts = np.concatenate(offsets)
    check_tiled(
        starts, starts + np.concatenate(sizes), receipt.base_offset, receipt.end_offset, table.location()
    )
    yield receipt.base_offset, out
