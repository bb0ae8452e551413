"""Archive what is sealed ahead of its deletion, and measure how far the lakes are behind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate

from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.exceptions import FileGoneError, StoreLayoutError
from storage_engine.journal.journal import Journal, Phase, Run, Step, StoreRecord
from storage_engine.model.lag.archive_lag import ArchiveLag, archive_lag_of
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.model.store.store import WENT, FileFacts, Segment, SegmentId, StoreSnapshot
from storage_engine.retention.archive.archivable import (
    Listed,
    archivable_segments,
    kept_out_segments,
    list_segments,
)
from storage_engine.retention.archive.archiving import (
    LISTINGS,
    ArchiveResult,
    ArchiveWith,
    archive_each_log,
    archive_somewhere,
    begin_background_run,
    joined_results,
    record_intents,
    record_refused,
    slots,
)
from storage_engine.retention.archive.gone import (
    GoneResult,
    present_segments,
    record_gone_unproven,
)
from storage_engine.retention.archive.unproven import (
    still_unproven,
    unproven_and_credited,
    unproven_in_lakes,
)
from storage_engine.retention.proof.faulty_files import read_faulty_files
from storage_engine.retention.proof.history import release_by_any_run
from storage_engine.retention.proof.proofs import Proofs, reachable_lakes, read_proofs
from storage_engine.retention.proof.refusing import refusal
from storage_engine.retention.ranges.missing_logs import present_logs, remember_logs
from storage_engine.retention.ranges.recording_deletions import record_deletions
from storage_engine.retention.replicas.replica_divergence import NOTHING
from storage_engine.retention.replicas.replicas import refuse_diverged, without_replicas_work
from storage_engine.retention.store.broker_answers import take_archivable, take_snapshot
from storage_engine.retention.store.broker_disks import shared_disk_notice
from storage_engine.retention.store.brokers import open_to_look
from storage_engine.retention.store.context import AnyStore, Context, open_context
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore


def archive_sealed(
    store: AnyStore,
    run_key: str,
    archive_with: ArchiveWith,
    *,
    budget_bytes: int | None = None,
    accept_damage: bool = False,
) -> ArchiveResult:
    """Archive sealed segments that no lake proves yet, oldest first; what expires later needs no archiving.

    Takes neither the store's lock nor its lease, so it never keeps a deletion waiting. Of what goes meanwhile
    the rest is listed again. What goes unproven is recorded: a notice where its broker may delete it, else a
    log in ``refused``.

    :param archive_with: copies, proves and commits, in this process or wherever else.
    :param budget_bytes: at most so much, but at least one segment; None: everything.
    :param accept_damage: archive bytes that don't decode as they are.
    :return: what concerns one log keeps no other out of the lake: such logs are in ``refused``.
    :raises StorageEngineError: as ``archive_with`` does; what concerns one log, where every log fails.
    :raises LakeUnavailableError: none of the store's lakes can be used.
    """
    context = open_context(store)
    if context.store.policy.archive is ArchiveMode.OFF:
        return ArchiveResult(())
    run = begin_background_run(context, run_key)
    started_ns = time.monotonic_ns()
    with context.errors(run, Step.SEALED):
        done: list[ArchiveResult] = []
        known: dict[_LogSegment, Segment] = {}
        for attempt in range(LISTINGS):
            listed = list_segments(context)
            log_ids = present_logs(context.broker, context.store.broker, listed.snapshot)
            if not attempt:
                remember_logs(context.store, context.journal, context.record, context.broker, listed.snapshot)
            listing = _Listing(context, run, listed.archivable.segments, _left_of(budget_bytes, done))
            archive = partial(_archive, listing, archive_with, accept_damage)
            result, failed = archive_each_log(listing.segments, archive)
            done.append(result)
            to_archive = {(log_ids.get(one.log, ""), one.id): one for one in _maybe_archivable(listed)}
            known |= to_archive
            gone = _not_there(known, done)
            went = (
                gone.keys() & to_archive.keys()
                or WENT in listed.archivable.kept_out.values()
                or any(isinstance(why, FileGoneError) for why in failed.values())
            )
            if not went or _left_of(budget_bytes, done) == 0:
                break
        went_unproven = _record_gone(context, run, gone)
        left_out = listed.archivable.refused
        faults = {log: StoreLayoutError(f"{why}.") for log, why in left_out.items()}
        refused = tuple(refusal(log, why, NOTHING).said for log, why in {**faults, **failed}.items())
        refused = (*refused, *(one.said for one in went_unproven.refusals))
        record_refused(context, run, Step.SEALED, refused)
        if failed and not left_out and not {segment.log for segment in listing.segments} - failed.keys():
            raise next(iter(failed.values()))
        result = replace(joined_results(done), refused=refused)
        context.save(run, Step.SEALED, {"segments": len(result.receipts), "lake": result.lake}, started_ns)
    unwritten = record_deletions(context, run)
    shared = shared_disk_notice(context.store, context.broker, context.data_paths)
    notices = (*result.notices, *went_unproven.notices, *unwritten, *filter(None, (shared,)))
    return replace(result, notices=notices, kept_out=kept_out_segments(context, listed))


def _left_of(budget_bytes: int | None, done: Sequence[ArchiveResult]) -> int | None:
    if budget_bytes is None:
        return None
    return max(0, budget_bytes - sum(row.size_bytes for result in done for row in result.receipts))


_LogSegment = tuple[str, SegmentId]
"""A segment with the identity of its log: a topic that is made again takes the same names."""


def _maybe_archivable(listed: Listed) -> Iterator[Segment]:
    """Yield what may be archived by now, and the rest of logs that changed while that was found out."""
    reasons = listed.archivable.kept_out
    yield from listed.archivable.segments
    yield from (segment for segment in listed.others if reasons.get(segment.log) == WENT)


def _not_there(
    listed: Mapping[_LogSegment, Segment], done: Sequence[ArchiveResult]
) -> dict[_LogSegment, Segment]:
    """Return what was listed, wasn't archived since, and isn't where it was."""
    archived = {
        (row.log_id or "", SegmentId(row.log, row.base_offset)) for result in done for row in result.receipts
    }
    left = ((key, segment) for key, segment in listed.items() if key not in archived)
    return {key: segment for key, segment in left if not _is_in_place(segment)}


def _is_in_place(segment: Segment) -> bool:
    """Return whether a segment's file is under its path, untouched: a new one may have its inode."""
    try:
        return FileFacts.of(segment.facts.path) == segment.facts
    except OSError:
        return False


def _record_gone(context: Context, run: Run, gone: Mapping[_LogSegment, Segment]) -> GoneResult:
    """Record what of listed segments is neither in the store any more nor in a lake."""
    if not gone:
        return GoneResult()
    present = present_segments(context, context.snapshot(clock_ms()))
    left = [one for (log_id, _), one in gone.items() if present.find(one, (log_id,)) is None]
    # What another run deleted, as one that was waived, isn't lost by others' doing.
    others = [
        segment for segment in left if release_by_any_run(context.journal, run.store_id, segment) is None
    ]
    return record_gone_unproven(context, run, unproven_in_lakes(context, others), NOTHING)


def _archive(
    listing: _Listing, archive_with: ArchiveWith, accept_damage: bool, segments: Sequence[Segment]
) -> ArchiveResult:
    return archive_somewhere(
        listing.context,
        listing.run,
        Step.SEALED,
        partial(listing.choose, segments),
        segments,
        archive_with,
        accept_damage=accept_damage,
    )


@dataclass(slots=True)
class _Listing:
    """What is sealed at one moment, and what of it was chosen to be archived, by its id."""

    context: Context
    run: Run
    segments: tuple[Segment, ...]
    budget_bytes: int | None
    chosen: dict[SegmentId, Segment] = field(default_factory=dict)

    def choose(self, segments: Sequence[Segment], proofs: Proofs) -> Sequence[Segment]:
        """Return which of some segments to archive, within what others leave of the budget."""
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
        wanted = within_budget(unproven, left_bytes)
        self.chosen |= {segment.id: segment for segment in wanted}
        left = without_replicas_work(self.context, self.run, proofs, wanted, self.segments)
        record_intents(self.context, self.run, Step.SEALED, left)
        return left


def record_archive_lag(store: AnyStore, run_key: str) -> ArchiveLag | None:
    """Measure the archive lag and take it down, as a sample and for the run's report.

    :return: None under the policy archive: off.
    """
    context = open_context(store)
    if context.store.policy.archive is ArchiveMode.OFF:
        return None
    run = begin_background_run(context, run_key)
    started_ns = time.monotonic_ns()
    with context.errors(run, Step.ARCHIVE_LAG):
        lag = sample_archive_lag(context)
        context.save(run, Step.ARCHIVE_LAG, lag, started_ns)
    return lag


def sample_archive_lag(context: Context) -> ArchiveLag:
    """Measure the archive lag and record it as a sample, for no run.

    :raises LakeUnavailableError: no lake can be read.
    """
    measured = measure_lag(context)
    context.sample(measured.snapshot, measured.lag.measured_at_ms, archive_lag=measured.lag)
    return measured.lag


@dataclass(frozen=True, slots=True)
class MeasuredLag:
    """The archive lag, and what it was measured by.

    :param archivable: segments that may be archived by now.
    :param unproven: those of them that no lake proves as they are, as far as is known.
    :param touched: those of ``unproven`` that a lake has, but whose files were touched since.
    """

    lag: ArchiveLag
    snapshot: StoreSnapshot
    proofs: Proofs
    archivable: frozenset[SegmentId]
    unproven: frozenset[SegmentId]
    touched: frozenset[SegmentId] = frozenset()


def measure_lag(context: Context) -> MeasuredLag:
    """Measure the archive lag, and return it with what the lakes prove, for who goes on with that.

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
    segments = archivable_segments(context).segments
    return _measure(context.journal, context.record, context.store, segments)[0]


def archive_lag(store: ManagedStore) -> ArchiveLag:
    """Measure the archive lag without taking it down, or giving the store an identity if it has none.

    :raises LakeUnavailableError: no lake can be read.
    """
    # First: opening a journal makes one, and where there is no lake there shall be none.
    reachable_lakes(store)
    with closing(open_to_look(store)) as broker:
        segments = take_archivable(broker, take_snapshot(broker, clock_ms(), store.broker)).segments
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root, store.host)
    if record is None:
        return archive_lag_of(segments, clock_ms())
    return _measure(journal, record, store, segments)[0]


def recorded_archive_lag(context: Context, run: Run) -> ArchiveLag | None:
    """Return what the run measured last."""
    results = context.journal.events(run, Step.ARCHIVE_LAG, Phase.RESULT)
    return from_jsonable(ArchiveLag, results[-1].payload["result"]) if results else None


def within_budget(segments: Sequence[Segment], budget_bytes: int | None) -> list[Segment]:
    """The first segments that fit; one of them always does, or nothing would ever get on."""
    if budget_bytes is None:
        return list(segments)
    sizes = accumulate(segment.facts.size_bytes for segment in segments)
    return [
        s for i, (s, total) in enumerate(zip(segments, sizes, strict=True)) if i == 0 or total <= budget_bytes
    ]


def _measure(
    journal: Journal, record: StoreRecord, store: ManagedStore, segments: Sequence[Segment]
) -> tuple[ArchiveLag, Proofs, list[Segment]]:
    proofs = read_proofs(store.lakes, record, slots(segments), known=known_heads(journal, record))
    unproven = still_unproven(journal, record, proofs, segments)
    touched = {segment.id for segment in proofs.touched(unproven)}
    left = (segment for segment in unproven if segment.id not in touched)
    return archive_lag_of(left, clock_ms(), proofs.notices, len(touched)), proofs, unproven
