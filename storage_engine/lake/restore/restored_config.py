"""What a broker needs beside restored segments, derived from their receipts and from their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
from pyiceberg.table import Table

from storage_engine.exceptions import RestoreError
from storage_engine.lake.soundness.segment_reader import narrow_rows
from storage_engine.model.broker.codec import RestoredConfig
from storage_engine.model.proof.receipt import Receipt


def config_names(config: RestoredConfig | None, receipts: Sequence[Receipt]) -> tuple[str, ...]:
    """Return which files :func:`config_files` gives for a broker's segments."""
    if config is None:
        return ()
    logs = dict.fromkeys(receipt.log for receipt in receipts)
    return (*(name for log in logs for name in config.log_files(log)), *config.FILES)


def queues_of_segment(
    config: RestoredConfig | None, table: Table, receipt: Receipt, untouched: Set[str]
) -> pa.Table:
    """Return what :func:`config_files` has to know of a segment; reads a few narrow columns, in batches.

    :param table: that of rows, of the lake that the segment lies in, as loaded.
    :param untouched: what ``untouched_files`` says of the table.
    :raises LakeUnavailableError: the lake can't be read.
    :raises ProofError: a data file is no Parquet file.
    """
    if config is None:
        return pa.table({})
    found = [config.queues_of(rows) for rows in narrow_rows(table, receipt, config.COLUMNS, untouched)]
    return config.merge_queues(pa.concat_tables([config.NO_QUEUES, *found]))


def config_files(
    config: RestoredConfig | None, queues: Iterable[pa.Table], receipts: Sequence[Receipt]
) -> Mapping[str, bytes]:
    """Return files by their path below the restored store's root; the same again for the same segments.

    :param queues: of :func:`queues_of_segment`.
    :param receipts: of the segments.
    """
    return {} if config is None else config.config_files(_merged(config, queues), receipts)


@dataclass(frozen=True, slots=True)
class Extension:
    """A log of which more is restored than was asked for, as no broker could serve it otherwise.

    :param asked_end: offset behind the last segment that was asked for.
    :param end: offset behind the last one that is restored.
    :param why: what is not finished at ``asked_end``, as a part of a sentence.
    """

    log: str
    asked_end: int
    end: int
    why: str


def with_their_ends(
    config: RestoredConfig | None,
    chosen: Sequence[Receipt],
    found: Sequence[Receipt],
    queues: Callable[[Receipt], pa.Table],
) -> tuple[tuple[Receipt, ...], tuple[Extension, ...]]:
    """Return chosen segments with those behind them that a broker can't do without, and why these.

    :param found: all that there are, in order.
    :param queues: :func:`queues_of_segment`, of any of them.
    :raises RestoreError: one that is needed isn't there.
    """
    if config is None or config.ENDS_ANYWHERE:
        return tuple(chosen), ()
    whole: list[Receipt] = []
    extensions: list[Extension] = []
    for log, rows in groupby(chosen, key=lambda row: row.log):
        of_log = list(rows)
        last = of_log[-1]
        known = _merged(config, map(queues, of_log))
        asked_end, why = last.end, config.unfinished(known)
        while reason := config.unfinished(known):
            where = (log, last.lineage, last.end)
            behind = [row for row in found if (row.log, row.lineage, row.base_offset) == where]
            if not behind:
                before = _last_end(config, of_log, queues)
                raise RestoreError(
                    f"log {log}: expected what is restored to end where a broker can serve it, found that up "
                    f"to offset {last.end}, where the archived segments end, {reason}. Nothing was written. "
                    "Archive the next segment first"
                    + (f", or restore what can be: --log {log} --to-offset {before}." if before else ".")
                )
            last = behind[0]
            of_log.append(last)
            known = _merged(config, [known, queues(last)])
        whole += of_log
        if last.end > asked_end:
            extensions.append(Extension(log, asked_end, last.end, why))
    return tuple(whole), tuple(extensions)


def _last_end(
    config: RestoredConfig, rows: Sequence[Receipt], queues: Callable[[Receipt], pa.Table]
) -> int | None:
    """Return the largest offset behind a segment where a log may end; None: behind none."""
    known, found = config.NO_QUEUES, None
    for row in rows:
        known = _merged(config, [known, queues(row)])
        if not config.unfinished(known):
            found = row.end
    return found


def _merged(config: RestoredConfig, queues: Iterable[pa.Table]) -> pa.Table:
    merged = config.NO_QUEUES
    for found in queues:
        merged = config.merge_queues(pa.concat_tables([merged, found]))
    return merged
