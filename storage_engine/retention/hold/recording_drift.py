"""Record drift found on a held store, and say whether lakes have what is missing.

A log whose name another one has now is told by its receipts, not by a range of its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from storage_engine.commands import Text
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import WATCH_RUN, Run, record_drift
from storage_engine.journal.reading.run_rows import GONE
from storage_engine.journal.records import StoreRecord
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.coverage.coverage import ReleasedSpan, merge_intervals, subtract_intervals
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.soundness import losses
from storage_engine.lake.soundness.soundness_reader import find_faults
from storage_engine.lake.verify.replica_coverage import replica_spans
from storage_engine.model.hold import Drift, DriftKind, HoldStatus
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.model.store.known_logs import LogNames
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.proof.proofs import read_store_permits
from storage_engine.retention.ranges.drift import drift_alarms, gone_ranges
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.managed_store import ManagedStore

Spans = list[tuple[int, int]]
"""Of offsets, each [first, end)."""


def with_unproven(record: StoreRecord, store: ManagedStore, found: Iterable[Drift]) -> tuple[Drift, ...]:
    """Return drift whose detail says what of a log that is no more no lake has, or that it is unknown."""
    return tuple(
        replace(one, detail=f"{one.detail} {_unproven_text(record, store, one)}", log_id="")
        if one.kind is DriftKind.TOPIC_REPLACED and one.log_id
        else one
        for one in found
    )


def _unproven_text(record: StoreRecord, store: ManagedStore, one: Drift) -> str:
    if store.policy.archive is ArchiveMode.OFF:
        return "No lake has any of it, as nothing is archived (archive: off)."
    spans: Spans = []
    unasked = []
    for config in store.lakes:
        try:
            lake = open_lake(config)
            spans += proven_of_log(lake, record, one.log, one.log_id, (one.start_offset, one.end_offset))
        except (StorageEngineError, OSError) as error:
            unasked.append(
                Text(f"the lake at {config.location} can't be asked: ", reason_text(error).removesuffix("."))
            )
    gaps = subtract_intervals(one.start_offset, one.end_offset, merge_intervals(spans))
    missing = [f"[{first}, {end})" for first, end in gaps]
    if not missing:
        return "A lake has all of these."
    if unasked:
        return f"Whether a lake has offsets {', '.join(missing)} is unknown, as {'; '.join(unasked)}."
    return f"No lake has offsets {', '.join(missing)} of it."


def proven_of_log(lake: Lake, record: StoreRecord, log: str, log_id: str, offsets: tuple[int, int]) -> Spans:
    """Return what this store and others with a replica of a log have archived of it, soundly.

    Of several lineages of the log the last one counts: an earlier one had other bytes.

    :param offsets: of the log: the first and that behind the last that are asked for.
    :raises LakeUnavailableError: the lake can't be read.
    """
    rows = [row for row in receipts(lake, record.store_id, log=log) if row.log_id == log_id]
    newest = max((row.lineage for row in rows), default=0)
    rows = [row for row in rows if row.lineage == newest]
    unsound = losses(find_faults(lake, rows))
    names = LogNames(ids={log: log_id})
    others = replica_spans(lake, record.store_id, names, [ReleasedSpan(log, *offsets)], frozenset)
    own = [(row.base_offset, row.end) for row in rows if row.identity not in unsound]
    return [*own, *((span.start_offset, span.end_offset) for span in others if not span.ended)]


def record_hold_drift(context: Context, status: HoldStatus, run: Run | None = None) -> None:
    """Record drift that is new; None: under :data:`WATCH_RUN`."""
    if status.disturbances:
        status = with_rules_word(context, status)
        run = run or begin_background_run(context, WATCH_RUN)
        record_drift(context.journal, context.record, run, status.disturbances)


def with_rules_word(context: Context, status: HoldStatus) -> HoldStatus:
    """Return a look at a hold that says which ranges that went nobody had to archive, by rule."""
    if not any(one.kind in GONE and one.log for one in status.disturbances):
        return status
    permits = read_store_permits(context.store, context.journal, context.record)
    marked = (
        replace(one, unarchived=one.unarchived or permits.clause_of_log(one.log)) if one.kind in GONE else one
        for one in status.disturbances
    )
    return replace(status, disturbances=tuple(marked))


def with_lakes_word(context: Context, status: HoldStatus) -> HoldStatus:
    """Return a look at a hold that says what no lake has of logs that are no more."""
    return replace(status, disturbances=with_unproven(context.record, context.store, status.disturbances))


def alarms_of(context: Context, status: HoldStatus) -> tuple[str, ...]:
    """Return each drift as a sentence; a range that is gone with whether it is ARCHIVED or LOST."""
    found = with_lakes_word(context, with_rules_word(context, status)).disturbances
    return drift_alarms(found, gone_ranges(context.journal, context.record, context.store, found))
