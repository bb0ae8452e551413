"""Record which file was found to be in which lake: in the journal, by the store's stamp, and by topic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from storage_engine.commands import Text
from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.journal import Event, Phase, Run, Step
from storage_engine.lake.archive.archive import SegmentJob
from storage_engine.lake.archive.topic_days import read_topic_days
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.identity import lake_id_of
from storage_engine.lake.soundness.segment_reader import untouched_files
from storage_engine.model.proof.receipt import ChainHead, Receipt
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.retention.proof.history import segment_subject
from storage_engine.retention.proof.stamping import replaced_notices, stamp_store
from storage_engine.retention.store.context import RAN, Context
from storage_engine.retention.store.known_heads import head_of, known_heads

_BATCH = 50
"""Segments in a transaction."""


def record_topic_days(context: Context, lake: Lake, receipts: Sequence[Receipt]) -> str:
    """Record what segments hold, in the place of what is recorded of them.

    :return: why that could not be done; "" where it was.
    """
    try:
        messages = lake.messages()
        untouched = untouched_files(messages, receipts)
        for start in range(0, len(receipts), _BATCH):
            found = {
                (receipt.log, receipt.base_offset): read_topic_days(messages, receipt, untouched)
                for receipt in receipts[start : start + _BATCH]
            }
            context.journal.save_topic_days(context.record.store_id, found)
    except Exception as error:
        # The segments are proven and recorded: whatever goes wrong here takes nothing of that back.
        return Text("bytes by topic and day were not recorded of what was archived: ", error)
    return ""


TOOK = "took_ms"
"""Field of the event that records the first of some segments: how long all of them took."""
HASHED_AGAIN = "hashed_again"
"""Field of the event that records a segment that the lake had already, whose bytes were found unchanged."""
_FAULT = "replaced_fault"
"""Field of the event that records a segment that was archived again: what was wrong with it in a lake."""


def record_proven(
    context: Context,
    run: Run,
    step: Step,
    jobs: Sequence[SegmentJob],
    receipts: Sequence[Receipt],
    took_ms: int,
    faults: Mapping[str, str],
    known: Collection[str],
    ran: str,
) -> tuple[str, ...]:
    """Record which file was found to be in which lake, for when that lake can't be asked.

    :param took_ms: to copy and prove all of them.
    :param faults: what was wrong with what a lake had of some of them, by subject.
    :param known: hashes of the valid receipts that lakes had before.
    :param ran: where all of them were archived.
    :return: what could not be recorded beside it, and why.
    """
    lake = open_lake(jobs[0].lake)
    # What was known before the commit must be in what came of it: the lake may have gone back meanwhile.
    known_heads(context.journal, context.record).check(lake, context.record.store_id)
    segments = lake.segments()
    proven: list[tuple[str, dict[str, object]]] = [
        (
            segment_subject(job.log, job.base_offset),
            {
                "lineage": job.lineage,
                "facts": to_jsonable(job.facts),
                "lake": job.lake.location,
                "receipt_hash": receipt.row_hash,
                "receipt_sequence": receipt.sequence,
                "lake_id": lake_id_of(segments) or "",
                "place": segments.location(),
                **_beyond(job),
                **({HASHED_AGAIN: True} if receipt.row_hash in known else {}),
                **_replaced(faults, segment_subject(job.log, job.base_offset)),
            },
        )
        for job, receipt in zip(jobs, receipts, strict=True)
    ]
    proven[0][1].update({TOOK: took_ms, RAN: ran})
    context.journal.record(run, step, Phase.RESULT, proven)
    last = max(receipts, key=lambda receipt: receipt.sequence)
    replaced = replaced_notices(context.store.real_root)
    missing = stamp_store(context, run, [head_of(lake, segments, ChainHead(last.sequence, last.row_hash))])
    said = f"{missing}: only the journal tells what the lake has of it" if missing else ""
    return tuple(filter(None, (said, *replaced, record_topic_days(context, lake, receipts))))


def again_notices(faults: Mapping[str, str]) -> Iterator[str]:
    """Yield which segments were archived again since a lake has lost or damaged them, by the reason.

    :param faults: by the segment's subject.
    """
    by_reason: dict[str, list[str]] = {}
    for subject, reason in faults.items():
        by_reason.setdefault(reason, []).append(subject)
    for reason, subjects in by_reason.items():
        yield f"archived again: {named_in_short(subjects)}, as what a lake had isn't sound: {reason}"


def recorded_faults(events: Iterable[Event]) -> dict[str, str]:
    """Return what was wrong with what a lake had of the segments that a run archived again, by subject."""
    return {event.subject: str(event.payload[_FAULT]) for event in events if _FAULT in event.payload}


def _replaced(faults: Mapping[str, str], subject: str) -> dict[str, object]:
    return {_FAULT: faults[subject]} if subject in faults else {}


def _beyond(job: SegmentJob) -> dict[str, object]:
    """Return what is said of a segment beyond its own file, where there is anything."""
    said = {"end_offset": job.end_offset, "companions": to_jsonable(job.companions)}
    return {key: value for key, value in said.items() if value}
