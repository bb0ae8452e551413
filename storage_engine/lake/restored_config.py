"""What a broker needs beside restored segments, derived from the rows of the same segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from storage_engine.lake.segment_reader import narrow_rows
from storage_engine.model.broker import broker_module
from storage_engine.model.receipt import Receipt


def config_names(broker: str) -> tuple[str, ...]:
    """Which files :func:`config_files` gives for a broker's segments.

    :raises BadInputError: no such broker.
    """
    names: tuple[str, ...] = broker_module(broker, "restored_config").FILES
    return names


def queues_of_segment(table: Table, receipt: Receipt, untouched: Set[str]) -> pa.Table:
    """What :func:`config_files` has to know of a segment; reads a few narrow columns of it, in batches.

    :param table: ``messages`` of the lake that the segment lies in, as loaded.
    :param untouched: what ``untouched_files`` says of the table.
    :raises LakeUnavailableError: the lake can't be read.
    :raises ProofError: a data file is no Parquet file.
    """
    module: Any = broker_module(receipt.broker, "restored_config")
    found = [module.queues_of(rows) for rows in narrow_rows(table, receipt, module.COLUMNS, untouched)]
    queues: pa.Table = module.merge_queues(pa.concat_tables([module.NO_QUEUES, *found]))
    return queues


def config_files(broker: str, queues: Iterable[pa.Table]) -> Mapping[str, bytes]:
    """Files by their path below the restored store's root; the same again for the same segments.

    :param queues: of :func:`queues_of_segment`.
    """
    module: Any = broker_module(broker, "restored_config")
    merged: pa.Table = module.NO_QUEUES
    for found in queues:
        merged = module.merge_queues(pa.concat_tables([merged, found]))
    files: Mapping[str, bytes] = module.config_files(merged)
    return files
