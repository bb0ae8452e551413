"""Reading from the journal what runs deleted or lost, with what else tells of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

from storage_engine.brokers import find_broker
from storage_engine.journal.reading.deletions import (
    DeletingRun,
    deleting_runs,
    events_around,
    events_of_deletion,
)
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.run_records import read_run_record
from storage_engine.journal.tables.rows import find_waiver_row
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.soundness.receipts import receipts_in
from storage_engine.model.proof.deleted_range import DeletedRange, RunDigest
from storage_engine.retention.ranges.absent_runs import ExplainedAbsence, explain_absence, find_absent
from storage_engine.retention.ranges.deleted_ranges import RunHistory, missing_ranges, with_store_times
from storage_engine.retention.ranges.run_contradictions import find_contradictions


def read_deleting_runs(reader: JournalReader, store_id: str) -> tuple[DeletingRun, ...]:
    """Return a store's runs that deleted or lost something, the last one last.

    :raises JournalUnavailableError: the journal can't be read.
    """
    return reader.read(partial(deleting_runs, store_id=store_id))


def read_history(reader: JournalReader, store_id: str, run: DeletingRun) -> RunHistory:
    """
    :raises JournalUnavailableError: the journal can't be read.
    """
    events = reader.read(partial(events_of_deletion, run_id=run.run_id))
    waiver = reader.read(partial(find_waiver_row, plan_digest=run.plan_digest)) if run.plan_digest else None
    return RunHistory(store_id, run, events, waiver)


def read_run_contradictions(reader: JournalReader, history: RunHistory) -> tuple[str, ...]:
    """Return as clauses what a run's records say against each other and against its events.

    :raises JournalUnavailableError: the journal can't be read.
    """
    record = reader.read(partial(read_run_record, run_id=history.run.run_id))
    return find_contradictions(history, record)


def explain_absent_runs(
    reader: JournalReader,
    store_id: str,
    runs: Collection[DeletingRun],
    digests: Iterable[RunDigest],
    rows: Collection[DeletedRange],
) -> tuple[ExplainedAbsence, ...]:
    """Return why the journal lacks runs that were witnessed when they deleted.

    :param runs: by :func:`read_deleting_runs`.
    :param rows: the lakes' rows of the store.
    :raises JournalUnavailableError: the journal can't be read.
    """
    witnesses = (*digests, *(row.digest for row in rows))
    absent_runs = find_absent(runs, witnesses, rows)
    if not absent_runs:
        return ()
    keys = {absent.run for absent in absent_runs}
    witnessed = {(digest.run, digest.begun_at_ms) for digest in witnesses}
    histories = [
        read_history(reader, store_id, run)
        for run in runs
        if run.run_key in keys or (run.run_key, run.begun_at_ms) not in witnessed
    ]
    return tuple(
        explain_absence(absent, histories, reader.read(partial(events_around, event_id=absent.event_id)))
        for absent in absent_runs
    )


def missing_rows(
    lake: Lake,
    reader: JournalReader,
    store_id: str,
    runs: Collection[DeletingRun],
    known: Collection[DeletedRange],
) -> Iterator[DeletedRange]:
    """Yield the rows that a lake lacks, run by run; none of a run that it has with another key or beginning.

    :param runs: by :func:`read_deleting_runs`.
    :param known: the rows that it has of the store.
    :raises JournalUnavailableError: the journal can't be read.
    :raises LakeUnavailableError: the lake's receipts can't be read.
    """
    reached: dict[tuple[str, int], int] = {}
    for row in known:
        key = (row.run, row.run_begun_at_ms)
        reached[key] = max(row.event_id, reached.get(key, 0))
    topic_id_of = find_broker(lake.broker).codec.columns.topic_id_of
    explained = explain_absent_runs(reader, store_id, runs, (), known)
    altered = {it.altered.run_id for it in explained if it.altered is not None}
    for run in runs:
        if run.run_id not in altered and run.last_id > reached.get((run.run_key, run.begun_at_ms), 0):
            rows = missing_ranges(read_history(reader, store_id, run), known, topic_id_of)
            yield from _timed(lake, store_id, rows)


def _timed(lake: Lake, store_id: str, rows: Collection[DeletedRange]) -> Iterator[DeletedRange]:
    if not rows:
        return
    span = (min(row.start_offset for row in rows), max(row.end_offset for row in rows) - 1)
    logs = {row.log for row in rows}
    log = logs.pop() if len(logs) == 1 else None
    # What expired since had its times, too.
    told = receipts_in(lake.segments(), store_id, log=log, base_offsets=span, with_ended=True)
    yield from with_store_times(rows, told)
