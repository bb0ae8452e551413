"""Copies of the journal's record of deletions and losses: into the store's lakes, then into its stamp.

The journal is the truth. Nothing is released or refused because of these rows. If a row can't be written now,
a notice says so, and the next run writes the row.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace

from storage_engine.commands import Text
from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import reason_text, time_text
from storage_engine.exceptions import BadInputError, LakeIdentityError, StorageEngineError
from storage_engine.journal.journal import Run, StoreRecord
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.run_rows import DeletingRun
from storage_engine.lake.archive.deletions import add_deletions, drop_unreadable, read_deletions
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import copy_of
from storage_engine.model.proof.deleted_range import DeletedRange, RunDigest
from storage_engine.retention.proof.proofs import stamp_store
from storage_engine.retention.ranges.deleted_ranges import Absence
from storage_engine.retention.ranges.deletion_histories import (
    explain_absent_runs,
    missing_rows,
    read_deleting_runs,
    read_history,
)
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.stamp import Stamp, read_stamp


def record_deletions(context: Context, run: Run) -> tuple[str, ...]:
    """Write the store's deletions that lakes and stamp lack. A dry run writes nothing.

    The call may be killed at any instant and repeated. Each range of a run is written once.

    :return: notices on rows that could not be written, and why.
    """
    return () if run.request.dry_run else tuple(filter(None, _record(context, run)))


def _record(context: Context, run: Run) -> Iterator[str]:
    store_id = context.record.store_id
    try:
        reader = JournalReader(context.store.journal_url)
        runs = read_deleting_runs(reader, store_id)
    except (StorageEngineError, OSError, *MALFORMED) as error:
        yield Text("runs' deletions could not be read from the journal: ", reason_text(error))
        return
    if not runs:
        return
    rows = yield from _write_into(context.store.archive_lakes, reader, context.record, runs, context.name)
    try:
        stamped = read_stamp(context.store.real_root)
        differs = _compare_stamp(reader, store_id, runs, stamped, rows)
        digest = read_history(reader, store_id, runs[-1]).digest
    except (BadInputError, *MALFORMED) as error:
        yield f"the last deletion's digest could not be read from the journal: {error}"
        return
    except (StorageEngineError, OSError) as error:
        reason = reason_text(error)
        yield Text(f"{context.store.root}: the last deletion's digest could not be stamped: ", reason)
        return
    yield differs or _write_stamp(context, run, digest)


def write_deletions(lakes: Iterable[LakeConfig], journal_url: str, record: StoreRecord) -> tuple[str, ...]:
    """Write the deletions of a store that lakes lack.

    :return: notices on rows that could not be written, and why.
    """
    try:
        reader = JournalReader(journal_url)
        runs = read_deleting_runs(reader, record.store_id)
    except (StorageEngineError, OSError, *MALFORMED) as error:
        return (Text("runs' deletions could not be read from the journal: ", reason_text(error)),)
    return tuple(_write_into(lakes, reader, record, runs, record.name)) if runs else ()


def _write_into(
    lakes: Iterable[LakeConfig],
    reader: JournalReader,
    record: StoreRecord,
    runs: Sequence[DeletingRun],
    store_name: str | None,
) -> Generator[str, None, list[DeletedRange]]:
    """Yield notices of failures to write, and return the rows that the lakes already had."""
    rows: list[DeletedRange] = []
    for config in lakes:
        try:
            if (lake := _open(config)) is not None and lake.broker == record.broker:
                rows += yield from _write_rows(lake, reader, record.store_id, runs, store_name)
        except (StorageEngineError, OSError) as error:
            yield Text(
                f"lake {config.location}: runs' deletions could not be written into its table deletions. "
                "The next run tries again: ",
                reason_text(error),
            )
    return rows


def _write_stamp(context: Context, run: Run, digest: RunDigest) -> str:
    try:
        missing = stamp_store(context, run, (), digest)
    except (StorageEngineError, OSError) as error:
        reason = reason_text(error)
        return Text(f"{context.store.root}: the last deletion's digest could not be stamped: ", reason)
    return f"{missing}: only the journal has the last deletion's digest" if missing else ""


def _compare_stamp(
    reader: JournalReader,
    store_id: str,
    runs: Sequence[DeletingRun],
    stamp: Stamp | None,
    rows: Sequence[DeletedRange],
) -> str:
    """Return a notice if journal and stamp differ on the deletion in the stamp, or "" if they agree.

    Call this before the stamp gets a later deletion, which replaces the earlier one.
    """
    stamped = None if stamp is None else stamp.deletion
    if stamped is None:
        return ""
    clause = ""
    for run in runs:
        if (run.run_key, run.begun_at_ms) == (stamped.run, stamped.begun_at_ms):
            for digest in read_history(reader, store_id, run).differing((stamped,)).values():
                clause = f"found {digest} by the journal: it was changed since"
    for explained in explain_absent_runs(reader, store_id, runs, (stamped,), rows):
        if stamped in explained.absent.digests and explained.why is not Absence.OLDER_COPY:
            clause = explained.clause
    return clause and (
        f"run {stamped.run}: expected its plan, intents, results and losses with the SHA-256 {stamped.sha256}"
        f", by the store's stamp, {clause}. The stamp stays as it is. Find out who writes to the journal. "
        "Bring the journal back from a backup that agrees with the stamp"
    )


def _open(config: LakeConfig) -> Lake | None:
    """Open a lake, or return None if it is a copy or can't be used. The run's end reports that once."""
    try:
        lake = open_lake(config)
    except LakeIdentityError:
        return None
    return lake if copy_of(lake.segments()) is None else None


def _write_rows(
    lake: Lake, reader: JournalReader, store_id: str, runs: Sequence[DeletingRun], store_name: str | None
) -> Generator[str, None, Sequence[DeletedRange]]:
    """Yield notices of failures to write, and return the rows that the lake already had."""

    def list_missing(present: Sequence[DeletedRange]) -> Sequence[DeletedRange]:
        rows = missing_rows(lake, reader, store_id, runs, present)
        return tuple(replace(row, store_name=store_name) for row in rows)

    known_rows: Sequence[DeletedRange] = ()
    try:
        known_rows = read_deletions(lake, store_id)
    except StorageEngineError:
        if reason := drop_unreadable(lake, store_id):
            yield (
                f"lake {lake.location}: its table deletions was damaged ({reason}), and is made again from "
                "the journal. The rows of each other store are written by that store's next run"
            )
    try:
        rows = list_missing(known_rows)
    except (BadInputError, *MALFORMED) as error:
        yield f"runs' deletions could not be read from the journal: {error}"
        return known_rows
    for explained in explain_absent_runs(reader, store_id, runs, (), known_rows):
        if explained.altered is not None:
            yield (
                f"lake {lake.location}: expected run {explained.absent.run} in the journal begun "
                f"{time_text(explained.absent.begun_at_ms)}, by its table deletions, {explained.clause}. "
                "The run's deletions aren't written again. Find out who writes to the journal. Bring the "
                "journal back from a backup that agrees with the lake"
            )
    if rows:
        add_deletions(lake, store_id, list_missing)
    return known_rows
