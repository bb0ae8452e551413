"""The table of consumer lag, in files that anyone can query, and its summary.

It has one row for each :class:`QueueLag`. A large table is made in shares, each of whole queues. Memory keeps
only a :class:`LagPart` of each share. The size of a part doesn't depend on the number of queues.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from heapq import nsmallest
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage_engine.arrow.name_columns import coded, names_of, queue_starts
from storage_engine.core import durable
from storage_engine.model.lag import LagSource, LagSummary, QueueLag

AT_RISK_LIMIT = 1000
AT_RISK_GROUPS_NAMED = 20
WORST_LIMIT = 10

Longs = npt.NDArray[np.int64]


@contextmanager
def new_lag_table(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a directory for a new table's files. At the end it durably replaces the table at ``path``.

    A kill leaves a whole table, the former or the new one, or no table.
    """
    path = Path(path)
    staging, former = (path.with_name(f".{path.name}.{state}") for state in ("new", "old"))
    for left_by_a_kill in (staging, former):
        shutil.rmtree(left_by_a_kill, ignore_errors=True)
    durable.make_dirs(staging)
    try:
        yield staging
        durable.fsync_path(staging)
        if path.exists():
            path.rename(former)
        staging.rename(path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    durable.fsync_path(path.parent)
    shutil.rmtree(former, ignore_errors=True)


def queue_shares(positions: pa.Table, most_rows: int) -> list[tuple[int, int]]:
    """Cut positions into shares of whole queues. The positions are sorted by queue.

    :param most_rows: greatest number of rows in a share, not counting the rest of its last queue.
    :return: first row and end row of each share.
    """
    starts = queue_starts(positions)
    cuts = [0]
    while cuts[-1] < positions.num_rows:
        at = np.searchsorted(starts, min(cuts[-1] + most_rows, positions.num_rows))
        cuts.append(int(starts[at]) if at < len(starts) else positions.num_rows)
    return list(pairwise(cuts))


def write_share(directory: str | os.PathLike[str], number: int, table: pa.Table) -> None:
    """Write a share of a table durably into its directory. It may be written again."""
    with durable.replacing(Path(directory) / f"part-{number:05d}.parquet") as file:
        # Names are plain strings, so that any reader understands them.
        pq.write_table(table, file, compression="zstd", store_schema=False)


def read_lag_table(path: str | os.PathLike[str]) -> pa.Table:
    """Read a table that a lag job wrote.

    :param path: a Parquet file, or a directory of Parquet files.
    """
    return pq.read_table(os.fspath(path), columns=[field.name for field in fields(QueueLag)])


@dataclass(frozen=True, slots=True)
class LagPart:
    """Summary of one share.

    :param at_risk: the share's first rows at risk, in the order that :func:`lag_part` describes.
    :param worst: the rows with the greatest lag.
    """

    groups: tuple[str, ...]
    queues: int
    total_lag_messages: int
    max_lag_ms: int
    unknown: int
    lost_messages: int
    soonest_loss_ms: int | None
    at_risk_groups: tuple[str, ...]
    at_risk_queues: int
    at_risk: tuple[QueueLag, ...]
    worst: tuple[QueueLag, ...]


def lag_part(table: pa.Table) -> LagPart:
    """Summarise a share.

    Rows at risk are ordered by segment, rows of groups with an unknown position first. The first row of each
    log is always kept, because it decides what the lag policy keeps.

    :param table: every row of the share's queues.
    """
    risk = np.asarray(table["at_risk"])
    segment = _to_longs(table["next_segment_base_offset"], -1)
    lag = _to_longs(table["lag_messages"], 0)
    groups, group = _names(table["group"])
    _, topic = _names(table["topic"])
    queue = np.asarray(table["queue_id"]).astype(np.int64)
    _, log = _names(table["log"])
    queue_key = topic * (1 << 32) + queue
    by_name = (queue, topic, group)
    return LagPart(
        groups=tuple(groups),
        queues=len(np.unique(queue_key)),
        total_lag_messages=int(lag.sum()),
        max_lag_ms=pc.max(table["lag_ms"]).as_py() or 0,
        unknown=table["lag_messages"].null_count,
        lost_messages=pc.sum(table["lost_messages"]).as_py() or 0,
        soonest_loss_ms=pc.min(table["time_to_loss_ms"]).as_py(),
        at_risk_groups=tuple(groups[code] for code in np.unique(group[risk])),
        at_risk_queues=len(np.unique(queue_key[risk])),
        at_risk=_first_rows(table, risk, (*by_name, segment), AT_RISK_LIMIT, log),
        worst=_first_rows(table, lag > 0, (*by_name, -lag), WORST_LIMIT),
    )


def merge(
    parts: Iterable[LagPart], source: LagSource | None = None, logs: Sequence[str] | None = None
) -> tuple[LagSummary, tuple[QueueLag, ...]]:
    """Join the summaries of all shares, and return the table's summary and its first rows at risk.

    :param source: where the positions are from; None for the files of a stopped broker's store.
    :param logs: names of the measured logs; None for all logs of the store.
    :return: summary and rows, among them the row of each log that decides what the lag policy keeps.
    """
    parts = list(parts)
    risky = frozenset[str]().union(*(part.at_risk_groups for part in parts))
    losses = [part.soonest_loss_ms for part in parts if part.soonest_loss_ms is not None]
    summary = LagSummary(
        groups=len(frozenset[str]().union(*(part.groups for part in parts))),
        queues=sum(part.queues for part in parts),
        total_lag_messages=sum(part.total_lag_messages for part in parts),
        max_lag_ms=max((part.max_lag_ms for part in parts), default=0),
        unknown=sum(part.unknown for part in parts),
        at_risk_groups=tuple(sorted(risky)[:AT_RISK_GROUPS_NAMED]),
        at_risk_queues=sum(part.at_risk_queues for part in parts),
        more_at_risk_groups=max(len(risky) - AT_RISK_GROUPS_NAMED, 0),
        lost_messages=sum(part.lost_messages for part in parts),
        soonest_loss_ms=min(losses, default=None),
        worst=tuple(nsmallest(WORST_LIMIT, (row for part in parts for row in part.worst), key=_worst_first)),
        source=source or LagSource(),
        logs=None if logs is None else len(set(logs)),
    )
    rows = sorted((row for part in parts for row in part.at_risk), key=_first_affected)
    decided: set[str | None] = set()
    kept: list[QueueLag] = []
    for row in rows:
        if len(kept) < AT_RISK_LIMIT or row.log not in decided:
            kept.append(row)
        decided.add(row.log)
    return summary, tuple(kept)


def _worst_first(row: QueueLag) -> tuple[int, str, str, int]:
    return -(row.lag_messages or 0), row.group, row.topic, row.queue_id


def _first_affected(row: QueueLag) -> tuple[int, str, str, int]:
    segment = row.next_segment_base_offset
    return -1 if segment is None else segment, row.group, row.topic, row.queue_id


def _first_rows(
    table: pa.Table,
    chosen: npt.NDArray[np.bool_],
    keys: tuple[Longs, ...],
    limit: int,
    log: Longs | None = None,
) -> tuple[QueueLag, ...]:
    """Return the first of the chosen rows, sorted by some keys. The last key counts most.

    :param log: log of each row. The first row of each log is always returned.
    """
    rows = np.flatnonzero(chosen)
    first = np.empty(0, dtype=np.int64)
    if len(rows) > limit:  # most tables are smaller and need no sorting
        if log is not None:
            by_log = rows[np.lexsort((*(key[rows] for key in keys), log[rows]))]
            first = by_log[np.unique(log[by_log], return_index=True)[1]]
        rows = rows[keys[-1][rows] <= np.partition(keys[-1][rows], limit - 1)[limit - 1]]
    order = rows[np.lexsort([key[rows] for key in keys])][:limit]
    order = np.concatenate([order, first[~np.isin(first, order)]])
    return tuple(QueueLag(**row) for row in table.take(order).to_pylist())


def _names(column: pa.ChunkedArray[Any]) -> tuple[list[str], Longs]:
    names, codes = coded(column)
    return names_of(names), codes.astype(np.int64)


def _to_longs(column: Any, unknown: int) -> Longs:
    return np.asarray(pc.fill_null(column, unknown), dtype=np.int64)
