"""Figures of what a run archived or deleted, for readers who don't open its report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.model.proof.receipt import Receipt
from storage_engine.retention.proof.history import SegmentRelease, releases
from storage_engine.retention.proof.proofs import none_reachable, read_proofs
from storage_engine.retention.release.releasing import ReleaseResult
from storage_engine.retention.store.context import AnyStore, Context, open_context
from storage_engine.retention.store.known_heads import known_heads

LOGS_NAMED = 100
"""Of more logs than these the others' spans are left out: figures travel in messages."""


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """The offsets of one log, from the first to the one behind the last."""

    log: str
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Figures of some segments.

    :param messages: None where not every segment has a receipt that says it.
    :param lake: which lake has them; "" where they are in several, or in none.
    :param first_message_ms: when the broker stored the first message; None where no receipt says it.
    """

    segments: int
    size_bytes: int
    messages: int | None
    first_message_ms: int | None
    last_message_ms: int | None
    lake: str
    spans: tuple[OffsetSpan, ...]
    more_logs: int = field(default=0)


def archived_receipts(store: AnyStore, run_key: str, step: Step) -> Mapping[str, list[Receipt]]:
    """Return the receipts of what a run archived, by lake; of all its attempts, also one that was killed.

    :param step: which step of the run archived.
    :raises LakeUnavailableError: no lake can be read.
    """
    context = open_context(store)
    run = context.journal.find_run(context.record.store_id, run_key)
    if run is None:
        return {}
    intents = context.journal.events(run, step, Phase.INTENT)
    wanted = {(str(event.payload["log"]), int(event.payload["base_offset"])) for event in intents}
    return {
        location: new
        for location, rows in _receipts(context, wanted).items()
        if (new := [row for row in rows if row.proven_at_ms >= run.created_at_ms])
    }


def archived_counts(store: AnyStore, run_key: str, step: Step) -> tuple[Counts, ...]:
    """Return the figures of :func:`archived_receipts`, by lake."""
    return tuple(
        _counts([(row.log, row.base_offset, row.end, row.size_bytes) for row in rows], rows, location)
        for location, rows in archived_receipts(store, run_key, step).items()
    )


def released_segments(store: AnyStore, run_key: str) -> tuple[SegmentRelease, ...]:
    """Return the segments that a run has deleted until now, whatever its outcome."""
    context = open_context(store)
    run = context.journal.find_run(context.record.store_id, run_key)
    done, _ = releases(() if run is None else context.journal.events(run, Step.RELEASE))
    return tuple(done.values())


def deleted_counts(store: AnyStore, run_key: str) -> Counts | None:
    """Return the figures of what a run deleted; where no lake can be read, without those of lakes.

    :return: None: nothing was deleted.
    :raises RunStateError: there is no such run.
    """
    context = open_context(store)
    run: Run = context.run(run_key)
    released = context.result(run, Step.RELEASE, ReleaseResult)
    if released is None or not released.deleted:
        return None
    proven = {(one.log, one.base_offset) for one in released.deleted if one.receipt_hash is not None}
    try:
        by_lake = _receipts(context, proven)
    except LakeUnavailableError:
        by_lake = {}
    rows = {(row.log, row.base_offset): row for found in by_lake.values() for row in found}
    lakes = {one.lake for one in released.deleted if one.lake}
    whole = len(rows) == len(released.deleted)
    return _counts(
        [(one.log, one.base_offset, one.end_offset, one.segment.disk_bytes) for one in released.deleted],
        list(rows.values()) if whole else [],
        lakes.pop() if len(lakes) == 1 else "",
    )


def _receipts(context: Context, wanted: Collection[tuple[str, int]]) -> Mapping[str, list[Receipt]]:
    """Return the receipts of segments by lake; one that both lakes have is the first one's."""
    if not wanted:
        return {}
    known = known_heads(context.journal, context.record)
    proofs = read_proofs(context.store.lakes, context.record, wanted, known=known)
    if not proofs.asked:
        raise none_reachable([reason for _, reason in proofs.unreachable])
    found: dict[str, list[Receipt]] = {}
    for slot in sorted(wanted):
        having = next((lake for lake in proofs.asked if lake.of(slot)), None)
        if having is not None:
            found.setdefault(having.lake.location, []).append(having.of(slot)[-1])
    return found


def _counts(
    segments: Collection[tuple[str, int, int, int]], receipts: Collection[Receipt], lake: str
) -> Counts:
    """Count segments and the messages that their receipts have, with the spans of their offsets.

    :param segments: each one's log, first offset, end offset and size.
    :param receipts: of all of them, or none.
    """
    logs = sorted({log for log, *_ in segments})
    spans = tuple(
        OffsetSpan(
            log,
            min(first for name, first, _, _ in segments if name == log),
            max(end for name, _, end, _ in segments if name == log),
        )
        for log in logs[:LOGS_NAMED]
    )
    return Counts(
        segments=len(segments),
        size_bytes=sum(size_bytes for *_, size_bytes in segments),
        messages=sum(row.message_count for row in receipts) if receipts else None,
        first_message_ms=min(_known(row.first_store_timestamp_ms for row in receipts), default=None),
        last_message_ms=max(_known(row.last_store_timestamp_ms for row in receipts), default=None),
        lake=lake,
        spans=spans,
        more_logs=len(logs) - len(spans),
    )


def _known(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]
