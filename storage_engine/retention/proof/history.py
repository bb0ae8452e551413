"""The journal's record of each segment's deletion: its intent and its result."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from storage_engine.core.jsonable import from_jsonable
from storage_engine.journal.journal import Event, Journal, Phase, Step
from storage_engine.lake.coverage.coverage import ReleasedSpan
from storage_engine.model.plan import Reason
from storage_engine.model.proof.receipt import NOT_ARCHIVED, Receipt, SegmentIdentity
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention.proof.gate import Passage, files_fault_of, same_content


@dataclass(frozen=True, slots=True)
class SegmentRelease:
    """One segment's deletion, as an intent or a result records it.

    :param sha256: SHA-256 of its bytes, from the receipt, or None if it was deleted without a receipt.
    :param data_file: the data file with its bytes, or None if there was no receipt.
    :param receipt_hash: ``row_hash`` of the receipt, or None if there was no receipt.
    :param lake: location of the lake that proves it, or None if there was no receipt.
    :param original_mtime_ns: as in :class:`Segment`; so are ``end`` and ``companions``.
    :param lineage: lineage of its log at the deletion, or None in an event of an older version.
    :param log_id: identity of its log, as its receipt has it, or None if unknown.
    :param replicas: the receipts of other nodes, if they proved it together. Then ``receipt_hash`` and
        ``data_file`` are those of the first one, and ``sha256`` is None.
    """

    log: str
    base_offset: int
    facts: FileFacts
    reason: Reason
    reason_detail: str
    passage: Passage
    passage_detail: str
    sha256: str | None
    data_file: str | None
    receipt_hash: str | None
    lake: str | None = None
    original_mtime_ns: int | None = None
    end: int | None = None
    companions: tuple[FileFacts, ...] = ()
    lineage: int | None = None
    log_id: str | None = None
    replicas: tuple[SegmentIdentity, ...] = ()

    @property
    def segment(self) -> Segment:
        """Return the segment as it was when it was deleted."""
        return Segment(
            log=self.log,
            base_offset=self.base_offset,
            facts=self.facts,
            state=SegmentState.SEALED,
            original_mtime_ns=self.original_mtime_ns,
            end=self.end,
            companions=self.companions,
        )

    @property
    def lacks_by_rules(self) -> bool:
        """Return whether the segment's copy lacked topics, by archive rules."""
        return self.passage is Passage.PROVEN and NOT_ARCHIVED in self.passage_detail

    @property
    def subject(self) -> str:
        return segment_subject(self.log, self.base_offset)

    @property
    def end_offset(self) -> int:
        return self.segment.end_offset

    @property
    def span(self) -> ReleasedSpan:
        """Return the segment's range, to compare it with store and lake."""
        lineage, log_id = self.lineage or 0, self.log_id or ""
        return ReleasedSpan(self.log, self.base_offset, self.end_offset, lineage=lineage, log_id=log_id)


def segment_subject(log: str, base_offset: int) -> str:
    return f"{log}/{base_offset:020d}"


def releases(events: Iterable[Event]) -> tuple[dict[str, SegmentRelease], dict[str, SegmentRelease]]:
    """Return the segments that release events record as deleted, and those whose intent has no result.

    :param events: events of the release step, oldest first.
    :return: (done, open), each by subject. An error after an intent withdraws it.
    """
    done: dict[str, SegmentRelease] = {}
    open_intents: dict[str, SegmentRelease] = {}
    for event in events:
        if not event.subject:
            continue
        if event.phase is Phase.ERROR:
            open_intents.pop(event.subject, None)
        elif event.phase is Phase.INTENT:
            open_intents[event.subject] = _read_release(event)
        else:
            open_intents.pop(event.subject, None)
            done[event.subject] = _read_release(event)
    return done, open_intents


def open_releases(journal: Journal, store_id: str) -> dict[str, dict[str, SegmentRelease]]:
    """Return intended deletions without a result, by run. Runs whose undo has begun are left out."""
    undoing = {event.run_key for event in journal.store_events(store_id, Step.UNDO)}
    by_run: dict[str, list[Event]] = {}
    for event in journal.store_events(store_id, Step.RELEASE):
        if event.run_key not in undoing:
            by_run.setdefault(event.run_key, []).append(event)
    return {run_key: releases(events)[1] for run_key, events in by_run.items()}


def still_proves(receipt: Receipt, release: SegmentRelease) -> bool:
    """Return whether a presently valid receipt proves the bytes and files that were deleted."""
    return receipt.sha256 == release.sha256 and not files_fault_of(release.segment, receipt)


def _undone_run_keys(journal: Journal, store_id: str) -> set[str]:
    return {event.run_key for event in journal.store_events(store_id, Step.UNDO, Phase.RESULT)}


def released_spans(
    journal: Journal, store_id: str, unasked: Collection[str] = ()
) -> tuple[ReleasedSpan, ...]:
    """Return the ranges that all runs deleted from a store, to compare them with store and lake.

    :param unasked: locations of the lakes that can't be asked now.
    """
    results = journal.store_events(store_id, Step.RELEASE, Phase.RESULT)
    undone = _undone_run_keys(journal, store_id)
    released = (_read_release(event) for event in results if event.subject and event.run_key not in undone)
    return tuple(
        replace(
            release.span,
            excused="" if release.receipt_hash else release.passage_detail,
            unasked=release.lake if release.lake is not None and release.lake in unasked else "",
        )
        for release in released
    )


def compared_receipts(journal: Journal, store_id: str) -> frozenset[str | SegmentIdentity]:
    """Return the row hash or identity of other stores' receipts that were found to have this store's bytes.

    Receipts that permitted a deletion were compared right before it. For segments that stayed, only
    comparisons in the present lineage count: another lineage may have other bytes.
    """
    record = journal.store_with_id(store_id)
    compared: set[str | SegmentIdentity] = set()
    for event in journal.store_events(store_id, Step.REPLICA, Phase.RESULT):
        log = event.subject.rpartition("/")[0]
        if record is not None and event.payload["lineage"] == record.lineage_of(log):
            compared.update(event.payload["receipts"])
    for event in journal.store_events(store_id, Step.RELEASE, Phase.RESULT):
        if event.payload.get("replicas"):
            compared.update(_read_release(event).replicas)
    return frozenset(compared)


def release_by_any_run(journal: Journal, store_id: str, segment: Segment) -> SegmentRelease | None:
    """Return the deletion of this file by the run that intended it, or None if no run deleted it.

    An intent without a result counts if the file is gone: that run was killed before it recorded the result.
    A run that was undone has brought the file back, so it didn't delete the file that is gone now.
    """
    subject = segment_subject(segment.log, segment.base_offset)
    events = journal.store_events(store_id, Step.RELEASE)
    undone = _undone_run_keys(journal, store_id)
    run_keys = dict.fromkeys(event.run_key for event in events if event.subject == subject)
    for run_key in (key for key in run_keys if key not in undone):
        done, intended = releases(event for event in events if event.run_key == run_key)
        release = done.get(subject) or intended.get(subject)
        if release is not None and same_content(release.segment, segment):
            return release
    return None


def _read_release(event: Event) -> SegmentRelease:
    where = f"the journal, run {event.run_key}, release of {event.subject}"
    return from_jsonable(SegmentRelease, event.payload, where)
