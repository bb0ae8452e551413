"""What a broker needs beside restored segments, derived from the rows of the same segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import And
from pyiceberg.table import Table

from storage_engine.lake.filters import all_equal, store_rows
from storage_engine.lake.message_batches import message_batches
from storage_engine.model.broker import broker_module
from storage_engine.model.receipt import Receipt

_MERGE_BATCHES = 64


def config_names(broker: str) -> tuple[str, ...]:
    """Which files :func:`config_files` gives for a broker's segments.

    :raises BadInputError: no such broker.
    """
    names: tuple[str, ...] = broker_module(broker, "restored_config").FILES
    return names


def config_files(tables: Sequence[Table], chosen: Sequence[Receipt]) -> Mapping[str, bytes]:
    """Files by their path below the restored store's root; the same again for the same segments.

    Reads a few narrow columns of each segment, in batches.

    :param tables: ``messages`` of each lake that the segments lie in, as loaded.
    :param chosen: segments without a hole in any log, by log and offset; at least one.
    :raises LakeUnavailableError: the lake can't be read.
    :raises ProofError: a data file is no Parquet file.
    """
    module: Any = broker_module(chosen[0].broker, "restored_config")
    merged: pa.Table = module.NO_QUEUES
    fresh: list[pa.Table] = []
    for _, group in groupby(chosen, key=lambda receipt: receipt.log):
        of_log = list(group)
        where = And(
            store_rows(of_log[0].store_id, (of_log[0].base_offset, of_log[-1].base_offset)),
            all_equal({"lineage": of_log[0].lineage, "log": of_log[0].log}),
        )
        for rows in chain.from_iterable(message_batches(table, where, module.COLUMNS) for table in tables):
            fresh.append(module.queues_of(rows))
            if len(fresh) == _MERGE_BATCHES:
                merged, fresh = module.merge_queues(pa.concat_tables([merged, *fresh])), []
    files: Mapping[str, bytes] = module.config_files(module.merge_queues(pa.concat_tables([merged, *fresh])))
    return files
