"""Ranges that a run deleted or lost, by its events; the events' SHA-256; and losses that a person accepted.

Witnesses, such as a lake or the store's stamp, know runs by their deletions. An older copy of the journal
lacks all runs after some moment. Any other difference was made by another program. An accepted loss is an
event of the journal: from then on validation warns of the loss, and doesn't fail.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, pairwise

from storage_engine.core.jsonable import filled, from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Journal, Run, StoreRecord
from storage_engine.journal.reading.run_rows import GONE, DeletingRun, EventsAround
from storage_engine.journal.records import Event, Phase, Step, Waiver
from storage_engine.lake.coverage.coverage import ReleasedSpan, merge_intervals, subtract_intervals
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.model.proof.deleted_range import DeletedRange, RunDigest, What
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import may_be_one
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.proof.history import SegmentRelease


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Lost bytes [start_offset, end_offset) of a log in one lineage, and the person who accepts that.

    :param log_id: identity of the log, as receipts have it, or "" if unknown. Another log may get its name.
    :param gap: the known facts about the loss, if only a gap between store and lake shows it.
    """

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    person: str
    reason: str
    gap: str = ""
    log_id: str = ""


def record_loss(journal: Journal, run: Run, loss: AcceptedLoss) -> None:
    """Record an accepted loss durably."""
    subject = f"{loss.log} [{loss.start_offset}, {loss.end_offset})"
    journal.record(run, Step.ACCEPT_LOSS, Phase.RESULT, [(subject, {"loss": to_jsonable(loss)})])


def accepted_losses(journal: Journal, record: StoreRecord) -> tuple[AcceptedLoss, ...]:
    """Return the accepted losses of the present lineages of a store's logs, oldest decision first."""
    events = journal.store_events(record.store_id, Step.ACCEPT_LOSS, Phase.RESULT)
    losses = (from_jsonable(AcceptedLoss, event.payload["loss"]) for event in events)
    return tuple(loss for loss in losses if loss.lineage == record.lineage_of(loss.log))


def accepted_gaps(losses: Sequence[AcceptedLoss]) -> Iterator[ReleasedSpan]:
    """Yield the accepted losses that only a gap shows: the journal records no deletion of them."""
    for loss in losses:
        if loss.gap:
            yield from excused_parts(filled(ReleasedSpan, loss, others=loss.gap), losses)


def excused_parts(span: ReleasedSpan, losses: Sequence[AcceptedLoss]) -> Iterator[ReleasedSpan]:
    """Cut a deleted range at the ends of accepted losses, and excuse each accepted part.

    If several decisions accept a part, the first one counts.
    """
    accepted = [
        loss
        for loss in losses
        if loss.log == span.log
        and may_be_one(loss.log_id, span.log_id)
        and loss.start_offset < span.end_offset
        and span.start_offset < loss.end_offset
    ]
    inside = {offset for loss in accepted for offset in (loss.start_offset, loss.end_offset)}
    ends = {span.start_offset, span.end_offset}
    cuts = sorted(ends | {offset for offset in inside if span.start_offset < offset < span.end_offset})
    for start, end in pairwise(cuts):
        by = next((loss for loss in accepted if loss.start_offset <= start and end <= loss.end_offset), None)
        excuse = "" if by is None else f"accepted by {by.person} ({by.reason}): {span.others}"
        yield replace(span, start_offset=start, end_offset=end, excused=span.excused or excuse)


OURSELVES = "storage-engine"
"""Name of the decider if a policy decides."""
OTHERS = "not storage-engine"
"""Name of the deleter of ranges that were found deleted."""


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run as the journal has it.

    :param events: the events that ``events_of_deletion`` returns.
    :param waiver: waiver of its plan, or None if nobody waived a proof.
    """

    store_id: str
    run: DeletingRun
    events: Sequence[Event]
    waiver: Waiver | None = None

    @property
    def digest(self) -> RunDigest:
        """Return the digest up to the last event that records a deletion or a loss."""
        run, last_id = self.run, self.run.last_id
        return RunDigest(run.run_key, run.begun_at_ms, last_id, digests_of(self, (last_id,))[last_id])

    def differing(self, witnessed: Collection[RunDigest]) -> dict[RunDigest, str]:
        """Return the witnessed digests that differ from this run's events, each with the events' digest.

        A digest from before the plan's waiver may leave the waiver out. If a proof was waived, the digest of
        an older version may leave it out as well, because that version knew no waivers.
        """
        event_ids = {digest.event_id for digest in witnessed}
        digests = digests_of(self, event_ids)
        older = digests_of(replace(self, waiver=None), event_ids)
        waived_at_ms = self.waiver.at_ms if self.waiver is not None else 0
        is_waived = any(event.payload.get("passage") == Passage.WAIVED for event in self.events)
        at_ms = {event.event_id: event.at_ms for event in self.events}
        return {
            digest: digests[digest.event_id]
            for digest in witnessed
            if digest.sha256 != digests[digest.event_id]
            and not (
                digest.sha256 == older[digest.event_id]
                and (is_waived or waived_at_ms > at_ms.get(digest.event_id, waived_at_ms))
            )
        }


def digests_of(history: RunHistory, event_ids: Collection[int]) -> dict[int, str]:
    """Return, for each event, the SHA-256 in hex over the run and its events up to that event.

    Each part is a line of canonical JSON. The run's line has its store, key, beginning, request and plan
    digest. The line of the plan's waiver, if there is one, has person, reason and time. An event's line has
    step, phase, subject, payload and time. None of these ever expires.
    """
    run, waiver = history.run, history.waiver
    run_line = _line([history.store_id, run.run_key, run.begun_at_ms, run.request, run.plan_digest])
    hasher = hashlib.sha256(run_line)
    if waiver is not None:
        hasher.update(_line([waiver.person, waiver.reason, waiver.at_ms]))
    digests, events = {}, iter(history.events)
    event = next(events, None)
    for event_id in sorted(set(event_ids)):
        while event is not None and event.event_id <= event_id:
            hasher.update(_line([event.step, event.phase.value, event.subject, event.payload, event.at_ms]))
            event = next(events, None)
        digests[event_id] = hasher.hexdigest()
    return digests


def _line(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def ranges_by_event(history: RunHistory, topic_id_of: Callable[[str], str] | None) -> Iterator[DeletedRange]:
    """Yield the deleted ranges that each event of a run records, with the event's number and no digest.

    :param topic_id_of: the function of the broker's columns.
    """
    for event in history.events:
        if event.phase is not Phase.RESULT:
            continue
        row, log_id = _read_range(history, event)
        if row is not None:
            yield replace(row, topic_id=topic_id_of(log_id) if topic_id_of and log_id else None)


def _read_range(history: RunHistory, event: Event) -> tuple[DeletedRange | None, str]:
    """Return the deleted range that an event records, and its log's identity, or "" if that is unknown."""
    if event.step == Step.RELEASE:
        release = from_jsonable(SegmentRelease, event.payload)
        waived = release.passage is Passage.WAIVED and history.waiver is not None
        decider = history.waiver.person if waived and history.waiver else OURSELVES
        facts = (What.RELEASED, release.reason.value, release.reason_detail, decider)
        if release.passage is Passage.NOT_ARCHIVED:
            detail = f"{release.passage_detail}; {release.reason.value}: {release.reason_detail}"
            facts = (What.RELEASED, release.passage.value, detail, decider)
        elif release.lacks_by_rules:
            # If a lake has a part of the segment, the plan's reason stays the cause.
            detail = f"{release.reason_detail}; {release.passage_detail}"
            facts = (What.RELEASED, release.reason.value, detail, decider)
        span = (release.log, release.base_offset, release.end_offset)
        return _row(history, event, release.lineage or 0, span, facts), release.log_id or ""
    if event.step == Step.ACCEPT_LOSS:
        loss = from_jsonable(AcceptedLoss, event.payload["loss"])
        facts = (What.LOST, event.step, loss.reason, loss.person)
        span = (loss.log, loss.start_offset, loss.end_offset)
        return _row(history, event, loss.lineage, span, facts), loss.log_id
    drift = from_jsonable(Drift, event.payload["disturbance"])
    if drift.kind not in GONE:
        return None, ""
    decider = OURSELVES if drift.kind is DriftKind.GIVEN_UP else OTHERS
    facts = (What.GONE, drift.kind.value, drift.detail, decider)
    span = (drift.log, drift.start_offset, drift.end_offset)
    return _row(history, event, int(event.payload["lineage"]), span, facts), drift.log_id


def _row(
    history: RunHistory,
    event: Event,
    lineage: int,
    span: tuple[str, int, int],
    facts: tuple[What, str, str, str],
) -> DeletedRange:
    log, start_offset, end_offset = span
    act, cause, detail, decider = facts
    return DeletedRange(
        store_id=history.store_id,
        lineage=lineage,
        log=log,
        start_offset=start_offset,
        end_offset=end_offset,
        run=history.run.run_key,
        run_begun_at_ms=history.run.begun_at_ms,
        what=act.value,
        cause=cause,
        detail=detail,
        who=decider,
        at_ms=event.at_ms,
        event_id=event.event_id,
        events_sha256="",
    )


def missing_ranges(
    history: RunHistory, present_rows: Iterable[DeletedRange], topic_id_of: Callable[[str], str] | None
) -> tuple[DeletedRange, ...]:
    """Return the rows of a run that a lake lacks. Each row is one range with one cause.

    :param present_rows: rows of any run.
    """
    digest = history.digest
    reached: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for row in present_rows:
        if (row.run, row.run_begun_at_ms) == (digest.run, digest.begun_at_ms):
            reached.setdefault(_kind(row)[:4], []).append((row.start_offset, row.end_offset))
    parts = (
        part
        for row in ranges_by_event(history, topic_id_of)
        for part in _unreached_parts(row, reached.setdefault(_kind(row)[:4], []))
    )
    rows: list[DeletedRange] = []
    ordered = sorted(parts, key=lambda row: (*map(str, _kind(row)), row.start_offset))
    for _, group in groupby(ordered, key=_kind):
        for row in group:
            if rows and _kind(rows[-1]) == _kind(row) and rows[-1].end_offset == row.start_offset:
                at_ms = max(rows[-1].at_ms, row.at_ms)
                rows[-1] = replace(rows[-1], end_offset=row.end_offset, at_ms=at_ms)
            else:
                rows.append(row)
    return tuple(
        replace(row, event_id=digest.event_id, events_sha256=digest.sha256)
        for row in sorted(rows, key=lambda row: (row.log, row.lineage, row.start_offset))
    )


def _kind(row: DeletedRange) -> tuple[object, ...]:
    """Return the key by which adjacent ranges are joined into one row.

    Rows whose keys have the same first four fields never overlap.
    """
    return row.log, row.lineage, row.topic_id, row.what, row.cause, row.who


def _unreached_parts(row: DeletedRange, reached: list[tuple[int, int]]) -> Iterator[DeletedRange]:
    """Yield the parts of a range that are outside the intervals ``reached``, and add them to ``reached``."""
    parts = list(subtract_intervals(row.start_offset, row.end_offset, merge_intervals(reached)))
    reached += parts
    yield from (replace(row, start_offset=start, end_offset=end) for start, end in parts)


def with_store_times(rows: Iterable[DeletedRange], receipts: Sequence[Receipt]) -> Iterator[DeletedRange]:
    """Yield rows with the times of their messages, by receipts."""
    for row in rows:
        times = [
            (receipt.first_store_timestamp_ms, receipt.last_store_timestamp_ms)
            for receipt in receipts
            if (receipt.log, receipt.lineage) == (row.log, row.lineage)
            and receipt.base_offset < row.end_offset
            and row.start_offset < receipt.end
        ]
        first = min((first for first, _ in times if first is not None), default=None)
        last = max((last for _, last in times if last is not None), default=None)
        yield replace(row, first_store_timestamp_ms=first, last_store_timestamp_ms=last)


class Absence(StrEnum):
    """The reason why a journal lacks a run."""

    OLDER_COPY = "older-copy"
    """The journal is a new one, or a copy from before the run. It may have recorded other runs after this
    one.
    """
    REMOVED = "removed"
    """The journal has events from before and after the run's events."""
    ALTERED = "altered"
    """The journal has the run with another key or beginning."""


@dataclass(frozen=True, slots=True)
class AbsentRun:
    """A run that witnesses know and the journal lacks.

    :param digests: the witnessed digests of the run; at least one.
    """

    run: str
    begun_at_ms: int
    digests: tuple[RunDigest, ...]
    rows: tuple[DeletedRange, ...]

    @property
    def event_id(self) -> int:
        return max(digest.event_id for digest in self.digests)

    @property
    def at_ms(self) -> int:
        """Return the latest time of the run's rows in ms since the epoch; without rows, when it began."""
        return max((row.at_ms for row in self.rows), default=self.begun_at_ms)


@dataclass(frozen=True, slots=True)
class ExplainedAbsence:
    """:param altered: the run that the journal has in place of the absent one, or None (see ``why``)."""

    absent: AbsentRun
    why: Absence
    altered: DeletingRun | None = None

    @property
    def clause(self) -> str:
        """Return a clause on the journal's present records of the run."""
        if self.altered is not None:
            run_text = f"run {self.altered.run_key} begun {time_text(self.altered.begun_at_ms)}"
            return f"found {run_text} in its place: it was changed since"
        if self.why is Absence.REMOVED:
            return "found none of it between the events before and after it: it was removed or renamed"
        return "found no such run"


def find_absent(
    runs: Iterable[DeletingRun], digests: Iterable[RunDigest], rows: Collection[DeletedRange]
) -> tuple[AbsentRun, ...]:
    """Return the witnessed runs that a journal doesn't have with the same key and beginning.

    :param rows: the lakes' rows of any run. They are witnesses, too.
    """
    journalled = {(run.run_key, run.begun_at_ms) for run in runs}
    witnesses: dict[tuple[str, int], tuple[dict[RunDigest, None], list[DeletedRange]]] = {}
    pairs = [(row.digest, [row]) for row in rows]
    for digest, its_rows in (*((digest, list[DeletedRange]()) for digest in digests), *pairs):
        if (digest.run, digest.begun_at_ms) not in journalled:
            witness = witnesses.setdefault((digest.run, digest.begun_at_ms), ({}, []))
            witness[0][digest] = None
            witness[1].extend(its_rows)
    return tuple(
        AbsentRun(*key, tuple(its_digests), tuple(its_rows))
        for key, (its_digests, its_rows) in witnesses.items()
    )


def explain_absence(
    absent: AbsentRun, histories: Iterable[RunHistory], around: EventsAround
) -> ExplainedAbsence:
    """Return why a journal lacks a run.

    Numbers of events grow with time. A journal that was put back from a copy gives the lost numbers to new
    events: then an event with a lower number is newer than the absent run. If there are no new events, no
    event has a higher number than the run had.

    :param histories: histories of the journal's runs that may be the absent one.
    """
    for history in histories:
        if _is_altered(absent, history):
            return ExplainedAbsence(absent, Absence.ALTERED, history.run)
    is_newer_before = around.before_ms is not None and around.before_ms > absent.at_ms
    is_older_after = around.after_ms is None or around.after_ms < absent.begun_at_ms
    why = Absence.OLDER_COPY if is_newer_before or is_older_after else Absence.REMOVED
    return ExplainedAbsence(absent, why)


def _is_altered(absent: AbsentRun, history: RunHistory) -> bool:
    """Return whether a run of the journal is the absent one under another key or beginning.

    Each run has a key of its own, and no range is released twice.
    """
    run = history.run
    if run.run_key == absent.run and run.begun_at_ms <= absent.at_ms:
        return True
    restored = replace(history, run=replace(run, run_key=absent.run, begun_at_ms=absent.begun_at_ms))
    return not restored.differing(absent.digests) or _releases_same(absent.rows, history)


def _releases_same(rows: Iterable[DeletedRange], history: RunHistory) -> bool:
    released = [row for row in rows if row.what == What.RELEASED]
    try:
        parts = tuple(ranges_by_event(history, None)) if released else ()
    except (BadInputError, *MALFORMED):
        # Another finding reports that the events of this run can't be understood.
        return False
    return any(
        (part.what, part.log, part.lineage) == (row.what, row.log, row.lineage)
        and part.start_offset < row.end_offset
        and row.start_offset < part.end_offset
        for row in released
        for part in parts
    )
