"""What a broker needs beside restored segments, derived from the rows of the same segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import pyarrow as pa
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.lake.segment_reader import narrow_rows
from storage_engine.model.receipt import Receipt


def config_names(broker: str) -> tuple[str, ...]:
    """Return which files :func:`config_files` gives for a broker's segments.

    :raises BadInputError: no such broker.
    """
    config = find_broker(broker).restored_config
    return () if config is None else config.FILES


def queues_of_segment(table: Table, receipt: Receipt, untouched: Set[str]) -> pa.Table:
    """Return what :func:`config_files` has to know of a segment; reads a few narrow columns, in batches.

    :param table: that of rows, of the lake that the segment lies in, as loaded.
    :param untouched: what ``untouched_files`` says of the table.
    :raises LakeUnavailableError: the lake can't be read.
    :raises ProofError: a data file is no Parquet file.
    """
    config = find_broker(receipt.broker).restored_config
    if config is None:
        return pa.table({})
    found = [config.queues_of(rows) for rows in narrow_rows(table, receipt, config.COLUMNS, untouched)]
    return config.merge_queues(pa.concat_tables([config.NO_QUEUES, *found]))


def config_files(broker: str, queues: Iterable[pa.Table]) -> Mapping[str, bytes]:
    """Return files by their path below the restored store's root; the same again for the same segments.

    :param queues: of :func:`queues_of_segment`.
    """
    config = find_broker(broker).restored_config
    if config is None:
        return {}
    merged = config.NO_QUEUES
    for found in queues:
        merged = config.merge_queues(pa.concat_tables([merged, found]))
    return config.config_files(merged)
