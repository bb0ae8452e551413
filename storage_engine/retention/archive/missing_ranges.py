"""Offsets that are gone from a store's logs, and that no lake has and no run has on record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.coverage.coverage import Interval, ReleasedSpan, merge_intervals, subtract_intervals
from storage_engine.lake.coverage.spans import ArchivedSpan, ReceiptSpan, receipt_spans
from storage_engine.lake.verify.replica_coverage import replica_spans
from storage_engine.model.proof.receipt import NOT_ARCHIVED
from storage_engine.model.store import WENT, FileFacts, Lineages, LogNames, log_label, may_be_one
from storage_engine.retention.archive.archivable import Listed
from storage_engine.retention.proof.history import compared_receipts, open_releases
from storage_engine.retention.proof.proofs import reachable_lakes
from storage_engine.retention.proof.shielding import shielded_spans
from storage_engine.retention.ranges.drift import all_gone_spans, spans_in_unasked_lakes
from storage_engine.retention.ranges.range_memory import LakeLook, kept_ranges, known_spans, look_at_receipts
from storage_engine.retention.ranges.seen_logs import SeenLog
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.unnamed_lakes import heads_unasked


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Offsets [start_offset, end_offset) of a log that are in no place.

    :param log_id: of the log, as receipts have it; "": it can't be told.
    :param facts: of a file of the log, as a run saw it.
    :param is_earlier: it went before the run's first look.
    """

    log: str
    start_offset: int
    end_offset: int
    log_id: str
    facts: FileFacts
    is_earlier: bool


@dataclass(frozen=True, slots=True)
class _SeenPart:
    """The part of a log that the looks of a run have seen.

    :param start_offset: where the log began at the first look that had it.
    :param end_offset: where it begins at the last look; of a log that is no more, where its sealed segments
        ended.
    :param is_archivable: its broker keeps not all of it out of the lake.
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

    :param seen: by name and identity: a topic that is made again takes the same name.
    """

    seen: dict[tuple[str, str], _SeenPart] = field(default_factory=dict)

    def add(self, listed: Listed, log_ids: Mapping[str, str]) -> None:
        """Add a look.

        :param log_ids: identities of its logs, by name.
        """
        archivable, kept_out = {one.log for one in listed.archivable.segments}, listed.archivable.kept_out
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
        """Yield the ranges that earlier looks saw below the begin of the last look.

        :param last: the last look, which was added.
        :param log_ids: identities of its logs, by name.
        """
        begins = {
            (log.name, log_ids.get(log.name, "")): log.min_offset
            for log in last.snapshot.logs
            if log.segments
        }
        for key, part in self.seen.items():
            if part.is_archivable:
                yield replace(part, end_offset=begins.get(key, part.end_offset))


Covered = ReceiptSpan | ArchivedSpan | ReleasedSpan
"""Offsets of a log, in one lineage of it, that a lake, the shield or the journal has."""


def missing_ranges(
    parts: Iterable[_SeenPart],
    known: Iterable[SeenLog],
    covered: Iterable[Covered],
    lineages: Lineages,
    in_part: Iterable[ReceiptSpan | ArchivedSpan] = (),
) -> Iterator[MissingRange]:
    """Yield the ranges missing between the lowest known offset of each log and its end. Pure.

    :param known: where logs were at earlier looks.
    :param in_part: segments that lakes have without some topics, which is known, and not covered.
    """
    partial_spans = [one for one in in_part if one.lineage == lineages.of(one.log)]
    places: dict[str, list[Covered]] = defaultdict(list)
    for one in covered:
        if one.lineage in (0, lineages.of(one.log)):
            places[one.log].append(one)
    before = {one.log: one for one in known if one.lineage == lineages.of(one.log)}
    for part in parts:
        of_log = [
            (one.start_offset, one.end_offset)
            for one in places.get(part.log, ())
            if may_be_one(one.log_id, part.log_id)
        ]
        starts = [part.start_offset, *(start for start, _ in of_log)]
        starts += (one.start_offset for one in partial_spans if one.log == part.log)
        earlier = before.get(part.log)
        if earlier is not None and may_be_one(earlier.identity.log_id, part.log_id):
            starts.append(earlier.start_offset)
        holes = subtract_intervals(min(starts), part.end_offset, merge_intervals(of_log))
        for start, end in chain.from_iterable(_cut(hole, part.start_offset) for hole in holes):
            is_earlier = end <= part.start_offset
            yield MissingRange(part.log, start, end, part.log_id, part.facts, is_earlier)


def _cut(hole: Interval, at: int) -> tuple[Interval, ...]:
    """Return an interval, in two where an offset lies inside."""
    start, end = hole
    return ((start, at), (at, end)) if start < at < end else (hole,)


def find_missing_ranges(
    context: Context, looks: LogLooks, last: Listed, log_ids: Mapping[str, str], known: Sequence[SeenLog]
) -> tuple[MissingRange, ...]:
    """Return the ranges missing from the logs of a run's looks that are in no lake, in no shield and not on
    record.

    What a lake has without some topics, by archive rules, is among it: whether they let it go is asked next.

    While a lake isn't asked that has receipts of the store, nobody can tell what went before this run.

    :param last: the last look, which was added.
    :param log_ids: identities of its logs, by name.
    :param known: where logs were at the last look before this run.
    :raises LakeUnavailableError: no lake can be read.
    """
    journal, record = context.journal, context.record
    parts = tuple(looks.parts(last, log_ids))
    if not any(part.end_offset for part in parts):
        return ()
    lakes, unreachable = reachable_lakes(context.store)
    others = heads_unasked(known_heads(journal, record).heads, lakes, unreachable)
    unasked = {*unreachable, *(head.location for head in others)}
    elsewhere: list[Covered] = [*all_gone_spans(journal, record, unasked), *_meant_spans(journal, record)]
    elsewhere += (
        ReleasedSpan(span.log, span.start_offset, span.end_offset, lineage=span.lineage)
        for span in shielded_spans(context.store.real_root, record.lineages)
    )
    lineages = record.lineages

    def missing_beside(
        rows: Sequence[ReceiptSpan | ArchivedSpan], more: Sequence[Covered] = ()
    ) -> tuple[MissingRange, ...]:
        in_part = [row for row in rows if not unasked and row.ended.startswith(NOT_ARCHIVED)]
        whole = [row for row in rows if unasked or not row.ended.startswith(NOT_ARCHIVED)]
        return tuple(missing_ranges(parts, known, (*whole, *elsewhere, *more), lineages, in_part))

    kept = _known_spans(context, lakes)
    if kept is not None and not missing_beside(kept):
        return ()
    # What is missing is told by the receipts themselves.
    rows = [row for lake in lakes for row in receipt_spans(lake, record.store_id, 0)]
    missing = missing_beside(rows)
    if missing:
        more: list[Covered] = [*spans_in_unasked_lakes(journal, record, missing, unasked)]
        more += (span for lake in lakes for span in _of_replicas(lake, journal, record, missing))
        missing = missing_beside(rows, more)
    return tuple(one for one in missing if not (unasked and one.is_earlier))


def _known_spans(context: Context, lakes: Sequence[Lake]) -> tuple[ReceiptSpan | ArchivedSpan, ...] | None:
    """Return ranges for which lakes had receipts at the monitor's last look; None: it doesn't tell."""
    store_id = context.record.store_id
    by_id = {str(lake.segments().metadata.table_uuid): lake for lake in lakes}
    known = kept_ranges(context.store.journal_url, store_id)

    def read(lake_id: str, first_sequence: int) -> LakeLook:
        return look_at_receipts(by_id[lake_id], store_id, first_sequence, {})

    return known_spans(known, sorted(by_id), read)


def _meant_spans(journal: Journal, record: StoreRecord) -> Iterator[ReleasedSpan]:
    """Yield segments that runs meant to delete, without a result: such a run may be active, or was killed."""
    for releases in open_releases(journal, record.store_id).values():
        yield from (release.span for release in releases.values())


def _of_replicas(
    lake: Lake, journal: Journal, record: StoreRecord, missing: Sequence[MissingRange]
) -> Iterator[ReleasedSpan]:
    """Yield the ranges of logs that other replicas have archived."""
    named = {log_label(one.log, one.log_id): one for one in missing if one.log_id}
    names = LogNames(ids={label: one.log_id for label, one in named.items()})
    wanted = [replace(one, log=log_label(one.log, one.log_id)) for one in missing if one.log_id]
    compared = partial(compared_receipts, journal, record.store_id)
    for span in replica_spans(lake, record.store_id, names, wanted, compared):
        log = named[span.log].log
        yield ReleasedSpan(
            log,
            span.start_offset,
            span.end_offset,
            lineage=record.lineage_of(log),
            log_id=named[span.log].log_id,
        )
