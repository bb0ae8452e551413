"""Segments that may be archived, segments that no lake proves, and offsets that are gone without a copy.

A segment may be archived if it is sealed, its broker doesn't keep it out, and no lake has another log of the
same name. These answers only decide what is archived. They never permit a deletion. A missing range is gone
from a store's logs, and neither a lake nor a run's record has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from storage_engine.commands import Command
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import LakeConflictError
from storage_engine.journal.journal import Journal, Step, StoreRecord
from storage_engine.lake.acts.unarchived import NO_PERMITS
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.coverage.coverage import ReleasedSpan, merge_intervals, subtract_intervals
from storage_engine.lake.coverage.spans import ArchivedSpan, ReceiptSpan, receipt_spans
from storage_engine.lake.verify.replica_coverage import replica_spans
from storage_engine.model.proof.receipt import NOT_ARCHIVED, Receipt
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.store import (
    WENT,
    Archivable,
    FileFacts,
    Lineages,
    LogNames,
    Segment,
    SegmentId,
    StoreSnapshot,
    group_by_log,
    log_label,
    may_be_one,
)
from storage_engine.retention.proof.gate import same_files
from storage_engine.retention.proof.history import compared_receipts, open_releases, segment_subject
from storage_engine.retention.proof.proofs import LakeProofs, Proofs, reachable_lakes, read_proofs
from storage_engine.retention.proof.shielding import shielded_spans
from storage_engine.retention.ranges.drift import all_gone_spans, spans_in_unasked_lakes
from storage_engine.retention.ranges.range_memory import LakeLook, kept_ranges, known_spans, look_at_receipts
from storage_engine.retention.ranges.seen_logs import SeenLog
from storage_engine.retention.replicas import NOTHING, archived_by_replicas
from storage_engine.retention.store.broker_answers import take_archivable
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.unnamed_lakes import heads_unasked


@dataclass(frozen=True, slots=True)
class Unproven:
    """Segments that no lake is known to prove.

    :param touched: segments that a lake proved before another process touched their files.
    :param unarchived: rules that permit deletion without a copy, by the log's name.
    """

    segments: tuple[Segment, ...] = ()
    touched: frozenset[SegmentId] = frozenset()
    unarchived: Mapping[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> frozenset[SegmentId]:
        return frozenset(segment.id for segment in self.segments)


def prove_gone(context: Context, segments: Sequence[Segment]) -> tuple[Unproven, list[Segment]]:
    """Ask the store's lakes which of these deleted segments they prove. Data files are read.

    :return: segments that no lake is known to prove, and unclear segments. A segment is unclear if only the
        journal's record says that a lake has it, or if lakes prove different bytes of it.
    """
    if not segments:
        return Unproven(), []
    heads, slots = known_heads(context.journal, context.record), {segment.id for segment in segments}
    proofs = read_proofs(
        context.store.lakes, context.record, slots, known=heads, whole_chain=True, read_files=True
    )
    unarchived, proofs = proofs.permits.unarchived(segments), replace(proofs, permits=NO_PERMITS)
    remaining = still_unproven(context.journal, context.record, proofs, segments)
    unproven = Unproven(tuple(remaining), frozenset(s.id for s in proofs.touched(remaining)), unarchived)
    proven = [segment for segment in segments if segment.id not in unproven.ids]
    by_journal = still_unproven(context.journal, context.record, replace(proofs, unreachable=()), proven)
    return unproven, [segment for segment in proven if segment in by_journal or proofs.disagree(segment.id)]


def still_unproven(
    journal: Journal, record: StoreRecord, proofs: Proofs, segments: Sequence[Segment]
) -> list[Segment]:
    """Return the segments that still have to be archived, as far as is known."""
    return unproven_and_credited(journal, record, proofs, segments)[0]


def unproven_and_credited(
    journal: Journal, record: StoreRecord, proofs: Proofs, segments: Sequence[Segment]
) -> tuple[list[Segment], Mapping[SegmentId, Sequence[Receipt]]]:
    """Return the segments that have to be archived, and replicas' receipts by the segment that they prove.

    If a lake can't be asked, the journal's record of what was archived there counts. That record saves
    archiving a segment again, but never permits its deletion. A touched file counts as proven if its present
    state was compared with the archived bytes. A segment that another replica archived isn't archived again.
    """
    missing = proofs.unproven(segments)
    if not missing:
        return [], {}
    unreachable = {config.location for config, _ in proofs.unreachable}
    compared: dict[str, list[tuple[tuple[FileFacts, ...], str]]] = {}
    for step in (Step.ARCHIVE, Step.SEALED):
        for event in journal.results_of(record.store_id, step, [segment_subject(*s.id) for s in missing]):
            log, _, _ = event.subject.rpartition("/")
            if event.payload["lineage"] == record.lineage_of(log):
                recorded = (event.payload["facts"], *event.payload.get("companions", ()))
                files = tuple(from_jsonable(FileFacts, facts) for facts in recorded)
                compared.setdefault(event.subject, []).append((files, event.payload["lake"]))

    def is_proven(segment: Segment) -> bool:
        slot = segment.id
        has_receipt = any(lake.valid(slot) for lake in proofs.asked)
        return any(
            same_files(segment.files, files, proofs.acts) and (has_receipt or lake in unreachable)
            for files, lake in compared.get(segment_subject(*slot), ())
        )

    remaining = [segment for segment in missing if not is_proven(segment)]
    by_replicas = archived_by_replicas(journal, record, proofs, remaining)
    return [segment for segment in remaining if segment.id not in by_replicas], by_replicas


@dataclass(frozen=True, slots=True)
class KeptOut:
    """Sealed segments of one log that stay out of the lake and were never archived.

    :param why: the reason, and until when.
    """

    log: str
    segments: int
    first_offset: int
    end_offset: int
    size_bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Listed:
    """Segments of a store that may be archived by now.

    :param others: sealed segments that may not be archived. Empty segments are left out, since they need no
        proof.
    """

    archivable: Archivable
    others: tuple[Segment, ...]
    snapshot: StoreSnapshot


def list_segments(context: Context) -> Listed:
    """Return the segments that may be archived now, and other sealed segments, oldest first in each log."""
    snapshot = context.snapshot(clock_ms())
    archivable = take_archivable(context.broker, snapshot)
    ids = {segment.id for segment in archivable.segments}
    others = (segment for log in snapshot.logs for segment in log.sealed if segment.id not in ids)
    return Listed(archivable, tuple(segment for segment in others if segment.facts.size_bytes), snapshot)


def kept_out_segments(context: Context, listed: Listed) -> tuple[KeptOut, ...]:
    """Return sealed segments that stay out of the lake and, according to the journal, were never archived."""
    reasons = listed.archivable.kept_out
    never_archived = {
        segment_subject(*segment.id): segment for segment in listed.others if segment.log in reasons
    }
    for step in (Step.ARCHIVE, Step.SEALED, Step.REPLICA):
        for event in context.journal.results_of(context.record.store_id, step, list(never_archived)):
            never_archived.pop(event.subject, None)
    return tuple(
        KeptOut(
            log,
            len(segments),
            segments[0].base_offset,
            segments[-1].end_offset,
            sum(segment.facts.size_bytes for segment in segments),
            reasons[log],
        )
        for log, segments in group_by_log(never_archived.values()).items()
    )


def kept_out_notices(kept_out: Sequence[KeptOut]) -> tuple[str, ...]:
    """Return a notice for each reason why logs stay out of the lake, wholly or in part."""
    logs: dict[str, list[KeptOut]] = {}
    for entry in kept_out:
        logs.setdefault(entry.why, []).append(entry)
    return tuple(
        f"not archived for now: {count_text(sum(entry.segments for entry in entries), 'segment')} of "
        f"{named_in_short([entry.log for entry in entries])}: {why}"
        for why, entries in logs.items()
    )


def refuse_other_logs(context: Context, asked: Sequence[LakeProofs], segments: Sequence[Segment]) -> None:
    """Make sure that each log is still the log of which the lakes have receipts.

    :param asked: the lakes' proofs. If the broker can tell apart logs of the same name, these proofs have all
        receipts of each log.
    :raises LakeConflictError: another log has the name of an archived log.
    """
    identities = context.broker.identities
    if identities is None:
        return
    for log in dict.fromkeys(segment.log for segment in segments):
        rows = [row for proofs in asked for row in proofs.of_logs.get(log, ())]
        if why := identities.contradiction(log, rows):
            raise LakeConflictError(
                f"{context.store.root}: log {log}: expected the log that is archived, found another: {why}. "
                f"{NOTHING} Find out what happened to the archived log; then ",
                Command("adopt", f"STORE --log {log} --reason WHY"),
                " opens a new lineage of it, and the archived segments stay under the old one.",
            )


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Offsets [start_offset, end_offset) of a log that no known place has.

    :param log_id: identity of the log, as receipts have it, or "" if unknown.
    :param facts: facts of one of the log's files, as a run saw it.
    :param is_earlier: the range was deleted before the run's first look.
    """

    log: str
    start_offset: int
    end_offset: int
    log_id: str
    facts: FileFacts
    is_earlier: bool


@dataclass(frozen=True, slots=True)
class _SeenPart:
    """The part of a log that a run has seen in its looks.

    :param start_offset: lowest min offset of the log in any look.
    :param end_offset: min offset of the log at the last look; the end of its sealed segments if the log is
        gone.
    :param is_archivable: its broker doesn't keep the whole log out of the lake.
    """

    log: str
    log_id: str
    start_offset: int
    end_offset: int
    facts: FileFacts
    is_archivable: bool


@dataclass(slots=True)
class LogLooks:
    """A store's logs as a run has seen them, look by look. Pure.

    :param seen: the seen part of each log, by name and identity. A new topic may have a deleted topic's name.
    """

    seen: dict[tuple[str, str], _SeenPart] = field(default_factory=dict)

    def add(self, listed: Listed, log_ids: Mapping[str, str]) -> None:
        """Add a look.

        :param log_ids: identities of the logs in this look, by name.
        """
        archivable, kept_out = {s.log for s in listed.archivable.segments}, listed.archivable.kept_out
        for log in listed.snapshot.logs:
            if log.segments:
                key = log.name, log_ids.get(log.name, "")
                earlier, sealed = self.seen.get(key), log.sealed
                self.seen[key] = _SeenPart(
                    *key,
                    log.min_offset if earlier is None else min(earlier.start_offset, log.min_offset),
                    sealed[-1].end_offset if sealed else log.min_offset,
                    log.segments[0].facts,
                    log.name in archivable
                    or kept_out.get(log.name, WENT) == WENT
                    or (earlier is not None and earlier.is_archivable),
                )

    def parts(self, last: Listed, log_ids: Mapping[str, str]) -> Iterator[_SeenPart]:
        """Yield, for each archivable log, the range that looks have seen below its present min offset."""
        begins = {
            (log.name, log_ids.get(log.name, "")): log.min_offset
            for log in last.snapshot.logs
            if log.segments
        }
        for key, part in self.seen.items():
            if part.is_archivable:
                yield replace(part, end_offset=begins.get(key, part.end_offset))


Covered = ReceiptSpan | ArchivedSpan | ReleasedSpan
"""Offsets of a log in one lineage that a lake, the shield or the journal has."""


def missing_ranges(
    parts: Iterable[_SeenPart],
    known: Iterable[SeenLog],
    covered: Iterable[Covered],
    lineages: Lineages,
    in_part: Iterable[ReceiptSpan | ArchivedSpan] = (),
) -> Iterator[MissingRange]:
    """Yield the ranges that are missing between the lowest known offset and the end of each log. Pure.

    :param known: the logs as earlier looks saw them.
    :param in_part: segments that lakes have without some topics. Their offsets are known, but don't count as
        covered.
    """
    partial_spans = [span for span in in_part if span.lineage == lineages.of(span.log)]
    places: dict[str, list[Covered]] = defaultdict(list)
    for span in covered:
        if span.lineage in (0, lineages.of(span.log)):
            places[span.log].append(span)
    before = {seen_log.log: seen_log for seen_log in known if seen_log.lineage == lineages.of(seen_log.log)}
    for part in parts:
        of_log = [
            (span.start_offset, span.end_offset)
            for span in places.get(part.log, ())
            if may_be_one(span.log_id, part.log_id)
        ]
        starts = [part.start_offset, *(start for start, _ in of_log)]
        starts += (span.start_offset for span in partial_spans if span.log == part.log)
        earlier = before.get(part.log)
        if earlier is not None and may_be_one(earlier.identity.log_id, part.log_id):
            starts.append(earlier.start_offset)
        merged, cut = merge_intervals(of_log), min(part.start_offset, part.end_offset)
        for first, behind in ((min(starts), cut), (cut, part.end_offset)):
            for start, end in subtract_intervals(first, behind, merged):
                yield MissingRange(part.log, start, end, part.log_id, part.facts, end <= part.start_offset)


def find_missing_ranges(
    context: Context, looks: LogLooks, last: Listed, log_ids: Mapping[str, str], known: Sequence[SeenLog]
) -> tuple[MissingRange, ...]:
    """Return the ranges that are missing from a run's logs and are in no lake, no shield and no record.

    A range also counts as missing if the lakes' rows of it lack topics: the caller checks the archive rules.
    If a lake with receipts of the store isn't asked, ranges that were deleted before this run are left out,
    because that lake may have them.

    :param last: the last look, which was already added.
    :param log_ids: identities of the logs in the last look, by name.
    :param known: the logs as the last look before this run saw them.
    :raises LakeUnavailableError: no lake can be read.
    """
    journal, record = context.journal, context.record
    parts = tuple(looks.parts(last, log_ids))
    if not any(part.end_offset for part in parts):
        return ()
    lakes, unreachable = reachable_lakes(context.store)
    unasked_heads = heads_unasked(known_heads(journal, record).heads, lakes, unreachable)
    unasked = {*unreachable, *(head.location for head in unasked_heads)}
    # A run that intended a deletion without a result is active, or was killed.
    intended = open_releases(journal, record.store_id).values()
    elsewhere: list[Covered] = [*all_gone_spans(journal, record, unasked)]
    elsewhere += (release.span for releases in intended for release in releases.values())
    elsewhere += (
        ReleasedSpan(span.log, span.start_offset, span.end_offset, lineage=span.lineage)
        for span in shielded_spans(context.store.real_root, record.lineages)
    )

    def missing_beside(
        rows: Sequence[ReceiptSpan | ArchivedSpan], more: Sequence[Covered] = ()
    ) -> tuple[MissingRange, ...]:
        in_part = [row for row in rows if not unasked and row.ended.startswith(NOT_ARCHIVED)]
        whole = [row for row in rows if unasked or not row.ended.startswith(NOT_ARCHIVED)]
        return tuple(missing_ranges(parts, known, (*whole, *elsewhere, *more), record.lineages, in_part))

    remembered = _known_spans(context, lakes)
    if remembered is not None and not missing_beside(remembered):
        return ()
    # Only the receipts themselves show what is missing.
    rows = [row for lake in lakes for row in receipt_spans(lake, record.store_id, 0)]
    missing = missing_beside(rows)
    if missing:
        more: list[Covered] = [*spans_in_unasked_lakes(journal, record, missing, unasked)]
        more += (span for lake in lakes for span in _find_replicated(lake, journal, record, missing))
        missing = missing_beside(rows, more)
    return tuple(gap for gap in missing if not (unasked and gap.is_earlier))


def _known_spans(context: Context, lakes: Sequence[Lake]) -> tuple[ReceiptSpan | ArchivedSpan, ...] | None:
    """Return the receipts' ranges from the monitor's memory; None without it, or if a lake contradicts it."""
    store_id = context.record.store_id
    by_id = {str(lake.segments().metadata.table_uuid): lake for lake in lakes}
    ranges = kept_ranges(context.store.journal_url, store_id)

    def read(lake_id: str, first_sequence: int) -> LakeLook:
        return look_at_receipts(by_id[lake_id], store_id, first_sequence, {})

    return known_spans(ranges, sorted(by_id), read)


def _find_replicated(
    lake: Lake, journal: Journal, record: StoreRecord, missing: Sequence[MissingRange]
) -> Iterator[ReleasedSpan]:
    """Yield the missing ranges that other replicas have archived."""
    named = {log_label(gap.log, gap.log_id): gap for gap in missing if gap.log_id}
    names = LogNames(ids={label: gap.log_id for label, gap in named.items()})
    gaps = [replace(gap, log=log_label(gap.log, gap.log_id)) for gap in missing if gap.log_id]
    compared = partial(compared_receipts, journal, record.store_id)
    for span in replica_spans(lake, record.store_id, names, gaps, compared):
        log = named[span.log].log
        yield ReleasedSpan(
            log,
            span.start_offset,
            span.end_offset,
            lineage=record.lineage_of(log),
            log_id=named[span.log].log_id,
        )
