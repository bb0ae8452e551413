"""Drift as the journal records it: changes that others made to a held store.

A lake may have ranges that others deleted. A range that was reported as drift raises no second alarm. Other
losses are alarms until they are accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from storage_engine.commands import Command, Text
from storage_engine.core.jsonable import filled, from_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import LakeUnavailableError, ReceiptError
from storage_engine.journal.journal import Journal, Phase, Step, StoreRecord
from storage_engine.journal.reading.run_rows import GONE
from storage_engine.lake.acts.act_files import merged_expiries
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.coverage.coverage import (
    ReleasedSpan,
    Witnesses,
    log_ranges,
    lost_ranges,
    names_of_logs,
)
from storage_engine.lake.soundness.soundness import losses
from storage_engine.lake.soundness.soundness_reader import find_faults
from storage_engine.lake.verify.replica_coverage import LostRange, replica_spans
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity, ended, select_whole
from storage_engine.model.report.validation import RangeStatus
from storage_engine.model.store import group_by_log, log_label, may_be_one, name_in_label
from storage_engine.retention.proof.history import compared_receipts, released_spans, segment_subject
from storage_engine.retention.proof.proofs import current_receipts
from storage_engine.retention.proof.shielding import changed_spans, shielded_spans
from storage_engine.retention.ranges.deleted_ranges import accepted_gaps, accepted_losses, excused_parts
from storage_engine.retention.ranges.offset_ranges import OffsetRange
from storage_engine.retention.ranges.seen_logs import Missing
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.unnamed_lakes import lakes_unasked

_MOST_NAMED = 10
_VERIFY = Text(Command("verify"), " names each")


def loss_alarms(ranges: Iterable[OffsetRange], recorded: Sequence[tuple[Drift, int]]) -> tuple[str, ...]:
    """Return an alarm for each range that should exist and is missing.

    If there are more than ten ranges, the last alarm counts the rest.

    :param recorded: drift with ranges that others deleted, each with the lineage when it was found.
    """
    pieces = [piece for piece in ranges if piece.is_missing and not _is_recorded(piece, recorded)]
    named = tuple(map(_alarm, pieces[:_MOST_NAMED]))
    more = pieces[_MOST_NAMED:]
    if not more:
        return named
    clause = Text(f"{count_text(len(more), 'more range')} neither on disk nor in a lake; ", _VERIFY)
    return (*named, Text(f"{DriftKind.SEGMENT_GONE.value}: ", clause))


def _alarm(piece: OffsetRange) -> str:
    where = f"{piece.log} [{piece.start_offset}, {piece.end_offset}) is {piece.where.value.upper()}"
    return Text(f"{DriftKind.SEGMENT_GONE.value}: ", piece.detail.removesuffix("."), f". {where}.")


def _is_recorded(piece: OffsetRange, recorded: Sequence[tuple[Drift, int]]) -> bool:
    return any(
        drift.log == name_in_label(piece.log, piece.log_id)
        and may_be_one(drift.log_id, piece.log_id)
        and lineage == piece.lineage
        and drift.start_offset <= piece.start_offset
        and piece.end_offset <= drift.end_offset
        for drift, lineage in recorded
    )


def all_gone_spans(
    journal: Journal, record: StoreRecord, unasked: Collection[str]
) -> tuple[ReleasedSpan, ...]:
    """Return the ranges that runs deleted from a store, and those that others deleted.

    :param unasked: locations of the lakes that can't be asked now.
    """
    return (*released_spans(journal, record.store_id, unasked), *gone_spans(journal, record, unasked))


def gone_spans(
    journal: Journal, record: StoreRecord, unasked: Iterable[str] = ()
) -> tuple[ReleasedSpan, ...]:
    """Return the ranges that others deleted, for comparison with store and lake.

    Some ranges are marked as excused, because a person has decided so. These are ranges that were deleted
    before the present lineage was opened, ranges that a rule leaves out of lakes, and accepted losses.

    :param unasked: locations of the lakes that can't be asked now.
    """
    accepted = accepted_losses(journal, record)
    spans: list[ReleasedSpan] = []
    for drift, lineage in _widest_drifts(recorded_gone(journal, record)):
        is_open = lineage == record.lineage_of(drift.log)
        excuse = drift.unarchived if is_open else f"in lineage {lineage}, which is closed: {drift.detail}"
        spans += excused_parts(replace(_span(drift), excused=excuse, lineage=lineage), accepted)
    for changed in changed_spans(record.real_path, record.lineages):
        spans += excused_parts(changed, accepted)
    spans += accepted_gaps(accepted)
    return (*spans, *spans_in_unasked_lakes(journal, record, spans, set(unasked)))


def recorded_gone(journal: Journal, record: StoreRecord) -> tuple[tuple[Drift, int], ...]:
    """Return the ranges that others deleted, each as it was first found and with its lineage at that time."""
    events = journal.store_events(record.store_id, Step.DRIFT, Phase.RESULT)
    drifts = (
        (from_jsonable(Drift, event.payload["disturbance"]), int(event.payload["lineage"]))
        for event in events
    )
    return tuple(dict.fromkeys(row for row in drifts if row[0].kind in GONE))


def _widest_drifts(drifts: Sequence[tuple[Drift, int]]) -> Iterator[tuple[Drift, int]]:
    """Yield the ranges that aren't a part of another range of the same lineage.

    While a loss grows, each look records it again, until the hold is renewed.
    """
    for number, (drift, lineage) in enumerate(drifts):
        others = ((other, i) for i, (other, of) in enumerate(drifts) if of == lineage and i != number)
        if not any(_covers(other, drift, earlier=i < number) for other, i in others):
            yield drift, lineage


def _covers(other: Drift, drift: Drift, *, earlier: bool) -> bool:
    """Return whether ``drift`` is a part of ``other``. Of two equal ranges, only the later one is a part."""
    same = (other.start_offset, other.end_offset) == (drift.start_offset, drift.end_offset)
    is_inside = other.start_offset <= drift.start_offset and drift.end_offset <= other.end_offset
    return (other.kind, other.log) == (drift.kind, drift.log) and is_inside and (earlier or not same)


def gone_ranges(
    journal: Journal,
    record: StoreRecord,
    store: ManagedStore,
    drift: Iterable[Drift],
    *,
    missing: Iterable[Missing] = (),
    present: Mapping[str, str] | None = None,
) -> tuple[RangeStatus, ...]:
    """Return the parts of ranges that others deleted, each with its place, such as ARCHIVED or LOST.

    If one of our runs deleted a part, that part counts as deleted by the run.

    :param missing: further ranges that should be on disk and are missing.
    :param present: identities of the logs on disk, by name; None if each name means the same log as before.
    """
    spans = (*(_span(item) for item in drift if item.kind in GONE), *map(span_of_missing, missing))
    if not spans:
        return ()
    rows: list[Receipt] = []
    expired: list[Receipt] = []
    broken: dict[SegmentIdentity, str] = {}
    lakes: list[Lake] = []
    unreachable: dict[str, str] = {}
    heads = known_heads(journal, record)
    configs = store.archive_lakes
    for config in configs:
        try:
            lake = open_lake(config)
            with suppress(ReceiptError):
                heads.check(lake, record.store_id)
            for gap in spans:
                span = (gap.start_offset, gap.end_offset - 1)
                receipts = current_receipts(lake, record, log=gap.log, base_offsets=span, with_ended=True)
                faults = losses(find_faults(lake, select_whole(receipts)))
                rows += [row for row in select_whole(receipts) if row.identity not in faults]
                expired += ended(receipts)
                broken.update(faults)
            lakes.append(lake)
        except LakeUnavailableError as error:
            unreachable[config.location] = Text(error)
    proven = (*{row.identity: row for row in rows}.values(), *expired)
    released = (
        *spans,
        *changed_spans(store.real_root, record.lineages),
        *released_spans(journal, record.store_id, unreachable),
    )
    released += spans_in_unasked_lakes(journal, record, released, set(unreachable))
    kept = shielded_spans(store.real_root, record.lineages)
    unasked = lakes_unasked(heads.heads, lakes, unreachable) if configs else ()
    expiries = merged_expiries((lake, expired) for lake in lakes)
    witnesses = Witnesses(present or {}, unasked=unasked, expiries=expiries)
    names = names_of_logs(witnesses.present, proven, released)
    called = group_by_log(spans, names.name_of)

    def list_ranges(witnesses: Witnesses) -> tuple[RangeStatus, ...]:
        return tuple(
            row
            for row in log_ranges(kept, proven, released=released, witnesses=witnesses)
            if any(
                gap.start_offset < row.end_offset and row.start_offset < gap.end_offset
                for gap in called.get(row.log, ())
            )
        )

    ranges = list_ranges(witnesses)
    lost = lost_ranges(ranges)
    compared = partial(compared_receipts, journal, record.store_id)
    others = [span for lake in lakes for span in replica_spans(lake, record.store_id, names, lost, compared)]
    return list_ranges(replace(witnesses, replicas=others)) if others else ranges


def span_of_missing(missing: Missing) -> ReleasedSpan:
    """Return a missing range as a span that was deleted from its log."""
    return filled(ReleasedSpan, missing, others=missing.why, unknown=missing.is_unknown)


def _span(loss: Drift) -> ReleasedSpan:
    return filled(ReleasedSpan, loss, excused=loss.unarchived, others=loss.detail, unproven=loss.was_unproven)


def ranges_of_drift(drift: Drift, ranges: Sequence[RangeStatus]) -> list[RangeStatus]:
    """Return the ranges of :func:`gone_ranges` that overlap a drift's deleted offsets."""
    label = log_label(drift.log, drift.log_id)
    name = label if any(row.log == label for row in ranges) else drift.log
    return [
        row
        for row in ranges
        if row.log == name and row.start_offset < drift.end_offset and drift.start_offset < row.end_offset
    ]


def drift_alarms(drift: Iterable[Drift], ranges: Sequence[RangeStatus]) -> tuple[str, ...]:
    """Return a sentence on each drift. A sentence on deleted ranges says which place has them."""
    alarms: list[str] = []
    for item in drift:
        if item.kind not in GONE:
            alarms.append(Text(f"{item.kind.value}: ", item.detail))
            continue
        parts = [
            f"[{max(row.start_offset, item.start_offset)}, {min(row.end_offset, item.end_offset)}) is "
            f"{row.where.value}"
            for row in ranges_of_drift(item, ranges)
        ]
        alarms.append(Text(f"{item.kind.value}: ", item.detail, f" {item.log} {', '.join(parts)}."))
    return tuple(alarms)


def spans_in_unasked_lakes(
    journal: Journal, record: StoreRecord, spans: Iterable[LostRange], unasked: Collection[str]
) -> tuple[ReleasedSpan, ...]:
    """Return the parts of these spans that are in lakes which can't be asked, according to the journal."""
    if not unasked:
        return ()
    every_span = list(spans)
    parts = []
    for step in (Step.ARCHIVE, Step.SEALED):
        for event in journal.store_events(record.store_id, step, Phase.RESULT):
            payload = event.payload
            log, _, base = event.subject.rpartition("/")
            is_unasked = "facts" in payload and payload.get("lake") in unasked
            if not is_unasked or payload["lineage"] != record.lineage_of(log):
                continue
            assert event.subject == segment_subject(log, int(base))
            end = payload.get("end_offset") or int(base) + int(payload["facts"]["size_bytes"])
            if any(s.log == log and s.start_offset < end and int(base) < s.end_offset for s in every_span):
                lineage = int(payload["lineage"])
                parts.append(ReleasedSpan(log, int(base), end, unasked=str(payload["lake"]), lineage=lineage))
    return tuple(parts)
