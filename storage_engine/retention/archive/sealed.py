"""Archiving of sealed segments ahead of their deletion, and measurement of the archive lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate

from storage_engine.commands import Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.exceptions import (
    FileGoneError,
    LakeUnavailableError,
    StorageEngineError,
    StoreLayoutError,
)
from storage_engine.journal.journal import Journal, Phase, Run, Step, StoreRecord
from storage_engine.lake.coverage.verify_turns import by_receipt, standing_fault
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.lag import ArchiveLag, archive_lag_of
from storage_engine.model.store import WENT, FileFacts, Segment, SegmentId, StoreSnapshot
from storage_engine.retention.archive.archivable import (
    Listed,
    LogLooks,
    find_missing_ranges,
    kept_out_segments,
    list_segments,
    still_unproven,
    unproven_and_credited,
)
from storage_engine.retention.archive.archiving import (
    LISTINGS,
    ArchiveResult,
    ArchiveWith,
    WhereArchived,
    archive_each_log,
    archive_somewhere,
    begin_background_run,
    joined_results,
    record_intents,
    record_refused,
    where_here,
)
from storage_engine.retention.archive.gone import GoneResult, record_missing
from storage_engine.retention.proof.proofs import LakeProofs, Proofs, reachable_lakes, read_proofs
from storage_engine.retention.proof.refusing import refusal
from storage_engine.retention.proof.verification_memory import VerificationMemory
from storage_engine.retention.ranges.missing_logs import kept_logs, present_logs, remember_logs
from storage_engine.retention.ranges.recording_deletions import record_deletions
from storage_engine.retention.replicas import NOTHING, refuse_diverged, without_replicas_work
from storage_engine.retention.store.broker_answers import take_archivable, take_snapshot
from storage_engine.retention.store.brokers import open_to_look
from storage_engine.retention.store.context import AnyStore, Context, open_context, shared_disk_notice
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore


def read_faulty_files(journal_url: str, proofs: Proofs) -> Proofs:
    """Read the data files in which ``verify`` found a fault. Files that still have a fault count as broken.

    Other files aren't read: reading every file at each archiving would cost as much as verifying.

    :raises LakeUnavailableError: a file can't be read.
    """
    memory = VerificationMemory(journal_url)
    return replace(proofs, asked=tuple(_read_faulty_files(memory, lake) for lake in proofs.asked))


def _read_faulty_files(memory: VerificationMemory, proofs: LakeProofs) -> LakeProofs:
    history = by_receipt(memory.recall(str(proofs.lake.segments().metadata.table_uuid)))
    sound = [row for rows in proofs.rows.values() for row in rows if row.identity not in proofs.faults]
    faulty = [row for row in sound if standing_fault(history, row)]
    return replace(proofs, faults={**proofs.faults, **broken_receipts(proofs.lake, faulty, Depth.FILES)})


def archive_sealed(
    store: AnyStore,
    run_key: str,
    archive_with: ArchiveWith,
    *,
    budget_bytes: int | None = None,
    accept_damage: bool = False,
    where: WhereArchived = where_here,
) -> ArchiveResult:
    """Archive sealed segments that no lake proves yet, oldest first.

    Archiving takes neither the store's lock nor its lease, so it never delays a deletion. If segments are
    deleted meanwhile, the store is listed again. A deletion without a proof is recorded. If it was permitted,
    there is a notice. Otherwise the log is in ``refused``.

    :param archive_with: copies, proves and commits, in this process or elsewhere.
    :param budget_bytes: most bytes to archive, or None for no limit. At least one segment is archived.
    :param accept_damage: archive bytes that don't decode, exactly as they are.
    :return: the result. An error of one log doesn't stop other logs: the log is in ``refused``.
    :raises StorageEngineError: from ``archive_with``. An error of one log is raised only if every log fails.
    :raises LakeUnavailableError: none of the store's lakes can be used.
    """
    context = open_context(store)
    if not context.store.archives:
        return ArchiveResult(())
    run = begin_background_run(context, run_key)
    with context.errors(run, Step.SEALED) as save:
        done: list[ArchiveResult] = []
        logs = kept_logs(context.store.journal_url, context.record.store_id) or ()
        looks = LogLooks()
        for attempt in range(LISTINGS):
            listed, log_ids = _look(context, looks)
            if not attempt:
                remember_logs(context, listed.snapshot)
            listing = _Listing(context, run, listed.archivable.segments, _budget_left(budget_bytes, done))
            archive = partial(_archive, listing, archive_with, where, accept_damage)
            result, failed = archive_each_log(listing.segments, archive)
            done.append(result)
            if not _has_lost_files(listed, done, failed):
                break
            if attempt == LISTINGS - 1 or _budget_left(budget_bytes, done) == 0:
                listed, log_ids = _look(context, looks)
                break
        try:
            missing = find_missing_ranges(context, looks, listed, log_ids, logs)
            went_unproven = record_missing(context, run, missing)
        except LakeUnavailableError as error:
            went_unproven = GoneResult(notices=(Text("a later run names the deleted segments: ", error),))
        else:
            if len(done) > 1:
                remember_logs(context, listed.snapshot)
        left_out = listed.archivable.refused
        faults = {log: StoreLayoutError(f"{why}.") for log, why in left_out.items()}
        refused = tuple(refusal(log, why, NOTHING).said for log, why in {**faults, **failed}.items())
        refused = (*refused, *(refusal.said for refusal in went_unproven.refusals))
        record_refused(context, run, Step.SEALED, refused)
        if failed and not left_out and not {segment.log for segment in listing.segments} - failed.keys():
            raise next(iter(failed.values()))
        result = replace(joined_results(done), refused=refused)
        save({"segments": len(result.receipts), "lake": result.lake})
    unwritten = record_deletions(context, run)
    shared = shared_disk_notice(context.store, context.broker, context.data_paths)
    notices = (*result.notices, *went_unproven.notices, *unwritten, *filter(None, (shared,)))
    return replace(result, notices=notices, kept_out=kept_out_segments(context, listed))


def _budget_left(budget_bytes: int | None, results: Sequence[ArchiveResult]) -> int | None:
    if budget_bytes is None:
        return None
    return max(0, budget_bytes - sum(row.size_bytes for result in results for row in result.receipts))


def _look(context: Context, looks: LogLooks) -> tuple[Listed, Mapping[str, str]]:
    """List a store's segments, add the listing to ``looks``, and return it with the logs' identities."""
    listed = list_segments(context)
    log_ids = present_logs(context.broker, listed.snapshot)
    looks.add(listed, log_ids)
    return listed, log_ids


def _has_lost_files(
    listed: Listed, results: Sequence[ArchiveResult], failed: Mapping[str, StorageEngineError]
) -> bool:
    """Return whether files of archivable segments vanished before they were archived."""
    archived = {SegmentId(row.log, row.base_offset) for result in results for row in result.receipts}
    return (
        WENT in listed.archivable.kept_out.values()
        or any(isinstance(why, FileGoneError) for why in failed.values())
        or not all(_is_in_place(s) for s in listed.archivable.segments if s.id not in archived)
    )


def _is_in_place(segment: Segment) -> bool:
    """Return whether a segment's file is unchanged under its path. A new file may have the same inode."""
    try:
        return FileFacts.of(segment.facts.path) == segment.facts
    except OSError:
        return False


def _archive(
    listing: _Listing,
    archive_with: ArchiveWith,
    where: WhereArchived,
    accept_damage: bool,
    segments: Sequence[Segment],
) -> ArchiveResult:
    return archive_somewhere(
        listing.context,
        listing.run,
        Step.SEALED,
        partial(listing.choose, segments),
        segments,
        archive_with,
        accept_damage=accept_damage,
        where=where,
    )


@dataclass(slots=True)
class _Listing:
    """Sealed segments of one listing. ``chosen`` has, by id, the segments that have to be archived."""

    context: Context
    run: Run
    segments: tuple[Segment, ...]
    budget_bytes: int | None
    chosen: dict[SegmentId, Segment] = field(default_factory=dict)

    def choose(self, segments: Sequence[Segment], proofs: Proofs) -> Sequence[Segment]:
        """Return the segments to archive, within the budget that earlier choices have left."""
        proofs = read_faulty_files(self.context.store.journal_url, proofs)
        unproven, by_replicas = unproven_and_credited(
            self.context.journal, self.context.record, proofs, segments
        )
        refuse_diverged(self.context, by_replicas)
        for segment in segments:
            self.chosen.pop(segment.id, None)
        left_bytes = self.budget_bytes
        if left_bytes is not None and self.chosen:
            left_bytes -= sum(segment.facts.size_bytes for segment in self.chosen.values())
            if left_bytes <= 0:
                return ()
        chosen = within_budget(unproven, left_bytes)
        self.chosen |= {segment.id: segment for segment in chosen}
        remaining = without_replicas_work(self.context, self.run, proofs, chosen, self.segments)
        record_intents(self.context, self.run, Step.SEALED, remaining)
        return remaining


def record_archive_lag(store: AnyStore, run_key: str) -> ArchiveLag | None:
    """Measure the archive lag and record it, as a sample and for the run's report.

    :return: the lag; None under the policy archive: off.
    :raises LakeUnavailableError: no lake can be read.
    """
    context = open_context(store)
    if not context.store.archives:
        return None
    with context.errors(begin_background_run(context, run_key), Step.ARCHIVE_LAG) as save:
        measured = measure_lag(context)
        context.sample(measured.snapshot, measured.lag.measured_at_ms, archive_lag=measured.lag)
        save(measured.lag)
    return measured.lag


@dataclass(frozen=True, slots=True)
class MeasuredLag:
    """The archive lag, and the facts from which it was measured.

    :param archivable: segments that may be archived by now.
    :param unproven: archivable segments that no lake proves in their present state, as far as is known.
    :param touched: segments in ``unproven`` that a lake has, but whose files were touched after their proof.
    """

    lag: ArchiveLag
    snapshot: StoreSnapshot
    proofs: Proofs
    archivable: frozenset[SegmentId]
    unproven: frozenset[SegmentId]
    touched: frozenset[SegmentId] = frozenset()

    @property
    def archived(self) -> frozenset[SegmentId]:
        """Return the archivable segments that a lake has, even if their files were touched later."""
        return self.archivable - (self.unproven - self.touched)


def measure_lag(context: Context) -> MeasuredLag:
    """Measure the archive lag, and return it with the lakes' proofs for the caller's next steps.

    :raises LakeUnavailableError: no lake can be read.
    """
    snapshot = context.snapshot(clock_ms())
    segments = take_archivable(context.broker, snapshot).segments
    lag, proofs, unproven = _measure(context.journal, context.record, context.store, segments)
    archivable = frozenset(segment.id for segment in segments)
    touched = frozenset(segment.id for segment in proofs.touched(unproven))
    return MeasuredLag(
        lag, snapshot, proofs, archivable, frozenset(segment.id for segment in unproven), touched
    )


def archive_lag_of_store(context: Context) -> ArchiveLag:
    """Measure the archive lag of an open store without recording it.

    :raises LakeUnavailableError: no lake can be read.
    """
    segments = list_segments(context).archivable.segments
    return _measure(context.journal, context.record, context.store, segments)[0]


def archive_lag(store: ManagedStore) -> ArchiveLag:
    """Measure the archive lag without recording it. A store without an identity isn't given one.

    :raises LakeUnavailableError: no lake can be read.
    """
    # The lakes are asked first: opening the journal creates it, which a store without a lake doesn't need.
    reachable_lakes(store)
    with closing(open_to_look(store)) as broker:
        segments = take_archivable(broker, take_snapshot(broker, clock_ms(), store.broker)).segments
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root, store.host)
    if record is None:
        return archive_lag_of(segments, clock_ms())
    return _measure(journal, record, store, segments)[0]


def recorded_archive_lag(context: Context, run: Run) -> ArchiveLag | None:
    results = context.journal.events(run, Step.ARCHIVE_LAG, Phase.RESULT)
    return from_jsonable(ArchiveLag, results[-1].payload["result"]) if results else None


def within_budget(segments: Sequence[Segment], budget_bytes: int | None) -> list[Segment]:
    """Return the first segments that fit the budget, but at least one: otherwise archiving would stall."""
    if budget_bytes is None:
        return list(segments)
    sizes = accumulate(segment.facts.size_bytes for segment in segments)
    return [
        s for i, (s, total) in enumerate(zip(segments, sizes, strict=True)) if i == 0 or total <= budget_bytes
    ]


def _measure(
    journal: Journal, record: StoreRecord, store: ManagedStore, segments: Sequence[Segment]
) -> tuple[ArchiveLag, Proofs, list[Segment]]:
    slots = {segment.id for segment in segments}
    proofs = read_proofs(store.lakes, record, slots, known=known_heads(journal, record))
    unproven = still_unproven(journal, record, proofs, segments)
    touched = {segment.id for segment in proofs.touched(unproven)}
    remaining = (segment for segment in unproven if segment.id not in touched)
    return archive_lag_of(remaining, clock_ms(), proofs.notices, len(touched)), proofs, unproven
