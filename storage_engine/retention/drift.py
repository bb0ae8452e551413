"""What others did to a held store, as the journal has it, and whether what they deleted is in a lake."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from storage_engine.exceptions import LakeUnavailableError, ReceiptError
from storage_engine.journal.journal import Journal, Phase, Step, StoreRecord
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.coverage import ReleasedSpan, log_ranges
from storage_engine.lake.soundness import losses
from storage_engine.lake.soundness_reader import find_faults
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.model.jsonable import from_jsonable
from storage_engine.model.known_logs import log_label
from storage_engine.model.policy import ArchiveMode
from storage_engine.model.receipt import Receipt, SegmentIdentity
from storage_engine.model.validation import RangeStatus
from storage_engine.retention.current_receipts import current_receipts
from storage_engine.retention.history import released_spans, segment_subject
from storage_engine.retention.known_heads import known_heads
from storage_engine.retention.losses import accepted_gaps, accepted_losses, excused_parts
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.shielding import changed_spans, shielded_spans

GONE = frozenset({DriftKind.SEGMENT_GONE, DriftKind.GIVEN_UP})
"""What is about a range of the log that is gone."""


def all_gone_spans(
    journal: Journal, record: StoreRecord, unasked: Collection[str]
) -> tuple[ReleasedSpan, ...]:
    """Return what all runs deleted from a store, and what was found to have gone without them.

    :param unasked: where the lakes are that can't be asked now.
    """
    return (*released_spans(journal, record.store_id, unasked), *gone_spans(journal, record, unasked))


def gone_spans(
    journal: Journal, record: StoreRecord, unasked: Iterable[str] = ()
) -> tuple[ReleasedSpan, ...]:
    """Return ranges that others deleted, for laying store and lake over each other.

    What went before the present lineage was opened is excused, and what was accepted as lost: a person has
    seen it and gone on.

    :param unasked: where the lakes are that can't be asked now.
    """
    accepted = accepted_losses(journal, record)
    spans: list[ReleasedSpan] = []
    for one, lineage in _widest(recorded_gone(journal, record)):
        is_open = lineage == record.lineage_of(one.log)
        said = "" if is_open else f"in lineage {lineage}, which is closed: {one.detail}"
        span = ReleasedSpan(
            one.log, one.start_offset, one.end_offset, said, others=one.detail, lineage=lineage
        )
        spans += excused_parts(span, accepted)
    for changed in changed_spans(record.real_path, record.lineages):
        spans += excused_parts(changed, accepted)
    spans += accepted_gaps(accepted)
    return (*spans, *_in_unasked_lakes(journal, record, spans, set(unasked)))


def recorded_gone(journal: Journal, record: StoreRecord) -> tuple[tuple[Drift, int], ...]:
    """Return what others deleted, each with the lineage in which it went, as it was found first."""
    events = journal.store_events(record.store_id, Step.DRIFT, Phase.RESULT)
    found = (
        (from_jsonable(Drift, event.payload["disturbance"]), int(event.payload["lineage"]))
        for event in events
    )
    return tuple(dict.fromkeys(row for row in found if row[0].kind in GONE))


def _widest(found: Sequence[tuple[Drift, int]]) -> Iterator[tuple[Drift, int]]:
    """Without what is part of another range of the same lineage: a loss that grew until the hold was renewed
    is found once for each look at it.
    """
    for number, (one, lineage) in enumerate(found):
        others = ((other, i) for i, (other, of) in enumerate(found) if of == lineage and i != number)
        if not any(_covers(other, one, earlier=i < number) for other, i in others):
            yield one, lineage


def _covers(other: Drift, one: Drift, *, earlier: bool) -> bool:
    """Return whether ``one`` is part of ``other``; of two equal ranges the earlier counts."""
    if other.kind is not one.kind:
        return False
    same = (other.start_offset, other.end_offset) == (one.start_offset, one.end_offset)
    inside = other.start_offset <= one.start_offset and one.end_offset <= other.end_offset
    return other.log == one.log and inside and (earlier or not same)


def gone_ranges(
    journal: Journal, record: StoreRecord, store: ManagedStore, drift: Iterable[Drift]
) -> tuple[RangeStatus, ...]:
    """Return which parts of ranges that others deleted are ARCHIVED, SHIELDED or LOST.

    What one of our runs deleted after all counts as that.
    """
    gone = [one for one in drift if one.kind in GONE]
    if not gone:
        return ()
    rows: list[Receipt] = []
    broken: dict[SegmentIdentity, str] = {}
    unasked: list[str] = []
    known = known_heads(journal, record)
    for config in store.lakes if store.policy.archive is not ArchiveMode.OFF else ():
        try:
            lake = open_lake(config)
            with suppress(ReceiptError):
                known.check(lake, record.store_id)
            for one in gone:
                span = (one.start_offset, one.end_offset - 1)
                found = current_receipts(lake, record, log=one.log, base_offsets=span)
                faults = losses(find_faults(lake, found))
                rows += [row for row in found if row.identity not in faults]
                broken.update(faults)
        except LakeUnavailableError:
            unasked.append(config.location)
    proven = {row.identity: row for row in rows}
    released = (
        *(
            ReleasedSpan(
                one.log,
                one.start_offset,
                one.end_offset,
                others=one.detail,
                log_id=one.log_id,
                is_other=bool(one.log_id),
            )
            for one in gone
        ),
        *changed_spans(store.real_root, record.lineages),
        *released_spans(journal, record.store_id, unasked),
    )
    kept = shielded_spans(store.real_root, record.lineages)
    released += _in_unasked_lakes(journal, record, released, set(unasked))
    return tuple(
        row
        for row in log_ranges(kept, proven.values(), released=released)
        if any(
            row.log == (log_label(one.log, one.log_id) if one.log_id else one.log)
            and one.start_offset < row.end_offset
            and row.start_offset < one.end_offset
            for one in gone
        )
    )


def drift_alarms(drift: Iterable[Drift], ranges: Sequence[RangeStatus]) -> tuple[str, ...]:
    """Return each as a sentence; of what others deleted, what became of it.

    :param ranges: by :func:`gone_ranges`.
    """
    alarms = []
    for one in drift:
        if one.kind not in GONE:
            alarms.append(f"{one.kind.value}: {one.detail}")
            continue
        parts = [
            f"[{max(row.start_offset, one.start_offset)}, {min(row.end_offset, one.end_offset)}) is "
            f"{row.where.value}"
            for row in ranges
            if row.log == one.log and row.start_offset < one.end_offset and one.start_offset < row.end_offset
        ]
        alarms.append(f"{one.kind.value}: {one.detail} {one.log} {', '.join(parts)}.")
    return tuple(alarms)


def _in_unasked_lakes(
    journal: Journal, record: StoreRecord, spans: Iterable[ReleasedSpan], unasked: set[str]
) -> tuple[ReleasedSpan, ...]:
    """Return what the journal knows to be in lakes that can't be asked, of these spans."""
    if not unasked:
        return ()
    wanted = list(spans)
    found = []
    for step in (Step.ARCHIVE, Step.SEALED):
        for event in journal.store_events(record.store_id, step, Phase.RESULT):
            said = event.payload
            log, _, base = event.subject.rpartition("/")
            if "facts" not in said or said.get("lake") not in unasked:
                continue
            if said["lineage"] != record.lineage_of(log):
                continue
            assert event.subject == segment_subject(log, int(base))
            end = said.get("end_offset") or int(base) + int(event.payload["facts"]["size_bytes"])
            if any(s.log == log and s.start_offset < end and int(base) < s.end_offset for s in wanted):
                found.append(ReleasedSpan(log, int(base), end, unasked=str(said["lake"])))
    return tuple(found)
