"""Write behind the results what the store's runs deleted or lost: into its lakes, then into its stamp.

The journal is the truth. Nothing is released or refused on these rows, so that what can't be written now is a
notice, and the next run writes it.
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
    """Write the store's deletions that lakes and stamp lack; a dry run writes nothing.

    Killed at any instant and run again, it goes on. Each range of a run is there once.

    :return: rows that could not be written, and why.
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
        differs = _stamped_otherwise(reader, store_id, runs, stamped, rows)
        digest = read_history(reader, store_id, runs[-1]).digest
    except (BadInputError, *MALFORMED) as error:
        yield f"the last deletion's digest could not be read from the journal: {error}"
        return
    except (StorageEngineError, OSError) as error:
        why = reason_text(error)
        yield Text(f"{context.store.root}: the last deletion's digest could not be stamped: ", why)
        return
    yield differs or _stamp(context, run, digest)


def write_deletions(lakes: Iterable[LakeConfig], journal_url: str, record: StoreRecord) -> tuple[str, ...]:
    """Write a store's deletions that lakes lack, unless a run of the store is at work.

    :return: rows that could not be written, and why.
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
    """Yield failures to write, and return the rows that were there."""
    rows: list[DeletedRange] = []
    for config in lakes:
        try:
            if (lake := _open(config)) is not None and lake.broker == record.broker:
                rows += yield from _write_rows(lake, reader, record.store_id, runs, store_name)
        except (StorageEngineError, OSError) as error:
            yield Text(
                f"lake {config.location}: runs' deletions could not be written into its table "
                "deletions, and will be by the next run: ",
                reason_text(error),
            )
    return rows


def _stamp(context: Context, run: Run, digest: RunDigest) -> str:
    try:
        missing = stamp_store(context, run, (), digest)
    except (StorageEngineError, OSError) as error:
        why = reason_text(error)
        return Text(f"{context.store.root}: the last deletion's digest could not be stamped: ", why)
    return f"{missing}: only the journal has the last deletion's digest" if missing else ""


def _stamped_otherwise(
    reader: JournalReader,
    store_id: str,
    runs: Sequence[DeletingRun],
    stamp: Stamp | None,
    rows: Sequence[DeletedRange],
) -> str:
    """Return a text if the journal's deletion differs from the stamp's; "": they agree.

    Asked before the stamp goes on to a later deletion: what it says then tells nothing of this one.

    :param rows: the lakes' rows of the store's deletions.
    """
    known = None if stamp is None else stamp.deletion
    if known is None:
        return ""
    found = ""
    for run in runs:
        if (run.run_key, run.begun_at_ms) == (known.run, known.begun_at_ms):
            for digest in read_history(reader, store_id, run).differing((known,)).values():
                found = f"found {digest} by the journal: it was changed since"
    for explained in explain_absent_runs(reader, store_id, runs, (known,), rows):
        if known in explained.absent.digests and explained.why is not Absence.OLDER_COPY:
            found = explained.clause
    return found and (
        f"run {known.run}: expected its plan, intents, results and losses with the SHA-256 "
        f"{known.sha256}, as the store's stamp has it, {found}. The stamp stays as it is. Find out who "
        "writes to the journal; bring it back from a backup that agrees with the stamp"
    )


def _open(config: LakeConfig) -> Lake | None:
    """Open a lake; None: it is a copy, or not what it should be, as the run's end says once."""
    try:
        lake = open_lake(config)
    except LakeIdentityError:
        return None
    return lake if copy_of(lake.segments()) is None else None


def _write_rows(
    lake: Lake, reader: JournalReader, store_id: str, runs: Sequence[DeletingRun], store_name: str | None
) -> Generator[str, None, Sequence[DeletedRange]]:
    """Yield failures to write, and return the rows that were there."""

    def missing(known: Sequence[DeletedRange]) -> Sequence[DeletedRange]:
        rows = missing_rows(lake, reader, store_id, runs, known)
        return tuple(replace(row, store_name=store_name) for row in rows)

    known: Sequence[DeletedRange] = ()
    try:
        known = read_deletions(lake, store_id)
    except StorageEngineError:
        if reason := drop_unreadable(lake, store_id):
            yield (
                f"lake {lake.location}: its table deletions was damaged ({reason}), and is made again from "
                "the journal: of other stores by the next run of each"
            )
    try:
        rows = missing(known)
    except (BadInputError, *MALFORMED) as error:
        yield f"runs' deletions could not be read from the journal: {error}"
        return known
    for explained in explain_absent_runs(reader, store_id, runs, (), known):
        if explained.altered is not None:
            yield (
                f"lake {lake.location}: expected run {explained.absent.run} in the journal begun "
                f"{time_text(explained.absent.begun_at_ms)}, as its table deletions has it, "
                f"{explained.clause}. What it deleted isn't written again. Find out who writes to the "
                "journal; bring it back from a backup that agrees with the lake"
            )
    if rows:
        add_deletions(lake, store_id, missing)
    return known
