"""What another store has archived of a log that this one has a replica of: it isn't archived again.

Only a log with an identity of its own, which all replicas share, is looked for. That the bytes are the same
was seen once, and is recorded; that the receipts are still there is seen at each look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import LakeConflictError
from storage_engine.journal.journal import Journal, Phase, Run, Step, StoreRecord
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.replica_coverage import ReplicaCover, replica_receipts
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store.store import FileFacts, Segment, SegmentId
from storage_engine.retention.proof.gate import same_files
from storage_engine.retention.proof.history import compared_receipts, segment_subject
from storage_engine.retention.proof.proofs import LakeProofs, Proofs
from storage_engine.retention.replicas.replica_divergence import NOTHING, compare_logs, divergence
from storage_engine.retention.store.context import Context


def without_replicas_work(
    context: Context,
    run: Run,
    proofs: Proofs,
    unproven: Sequence[Segment],
    there: Sequence[Segment],
    depth: Depth = Depth.SIZES,
) -> list[Segment]:
    """Return the segments that no other replica has archived either, and record which receipts cover others.

    :param unproven: what no receipt of this store proves.
    :param there: all archivable segments of the store, by which bytes are compared.
    :param depth: to which the other replicas' files in the lake are read.
    :raises LakeUnavailableError: a lake can't be read.
    :raises LakeConflictError: another replica archived other bytes of a log, or the same of other leaders.
    """
    covered: set[SegmentId] = set()
    record, compared = context.record, partial(compared_receipts, context.journal, context.record.store_id)
    for asked in proofs.asked:
        left = [segment for segment in unproven if segment.id not in covered]
        for one in compare_logs(context.broker, asked.lake, record, left, there, compared, depth):
            if one.divergence:
                raise diverged(context, one.log, one.divergence)
            _record(context, run, asked, one.log_id, one.found.covers)
            covered.update(cover.segment.id for cover in one.found.covers)
    return [segment for segment in unproven if segment.id not in covered]


def refuse_diverged(context: Context, by_replicas: Mapping[SegmentId, Sequence[Receipt]]) -> None:
    """Make sure that logs are still those whose replicas' receipts count for them.

    :param by_replicas: receipts by the segment that they count for.
    :raises LakeConflictError: one isn't: other leaders took its records.
    """
    rows: dict[str, dict[str, Receipt]] = {}
    for segment_id, found in by_replicas.items():
        rows.setdefault(segment_id.log, {}).update({row.row_hash: row for row in found})
    for log, of_log in rows.items():
        if why := divergence(context.broker, context.record, log, list(of_log.values())):
            raise diverged(context, log, why)


def diverged(context: Context, log: str, why: str) -> LakeConflictError:
    """Return the error for a log that isn't the one that another replica archived."""
    return LakeConflictError(
        f"{context.store.root}: log {log}: expected the log that another replica archived, found a "
        f"divergence: {why}. {NOTHING} Find out which replica is right; then storage-engine adopt "
        f"--log {log} --reason … opens a new lineage of this one, and both are kept."
    )


def _record(
    context: Context, run: Run, asked: LakeProofs, log_id: str, covers: Sequence[ReplicaCover]
) -> None:
    said = [
        (
            segment_subject(*cover.segment.id),
            {
                "lineage": context.record.lineage_of(cover.segment.log),
                "files": [to_jsonable(facts) for facts in cover.segment.files],
                "lake": asked.lake.config.location,
                "log_id": log_id,
                "first": min(row.base_offset for row in cover.receipts),
                "end": max(row.end for row in cover.receipts),
                "receipts": [row.row_hash for row in cover.receipts],
            },
        )
        for cover in covers
    ]
    context.journal.record(run, Step.REPLICA, Phase.RESULT, said)


@dataclass(frozen=True, slots=True)
class _Covered:
    segment: Segment
    said: Mapping[str, Any]


def archived_by_replicas(
    journal: Journal, record: StoreRecord, proofs: Proofs, segments: Sequence[Segment]
) -> dict[SegmentId, tuple[Receipt, ...]]:
    """Return which segments other replicas' receipts cover, as was recorded and still holds, with these.

    Of a lake that can't be asked the journal's word counts: enough not to archive again, never to delete.

    :raises LakeUnavailableError: a lake can't be read.
    """
    by_subject = {segment_subject(*segment.id): segment for segment in segments}
    known = [
        _Covered(segment, event.payload)
        for event in journal.results_of(record.store_id, Step.REPLICA, list(by_subject))
        if event.payload["lineage"] == record.lineage_of((segment := by_subject[event.subject]).log)
        and _are_the_files(segment, event.payload["files"], proofs)
    ]
    unreachable = {config.location for config, _ in proofs.unreachable}
    found: dict[SegmentId, tuple[Receipt, ...]] = {
        one.segment.id: () for one in known if one.said["lake"] in unreachable
    }
    for asked in proofs.asked:
        here = [one for one in known if one.said["lake"] == asked.lake.config.location]
        found |= _still_there(asked, record, here)
    return found


def _are_the_files(segment: Segment, files: Sequence[Any], proofs: Proofs) -> bool:
    known = tuple(from_jsonable(FileFacts, facts) for facts in files)
    return same_files(segment.files, known, proofs.acts)


def _still_there(
    asked: LakeProofs, record: StoreRecord, known: Sequence[_Covered]
) -> dict[SegmentId, tuple[Receipt, ...]]:
    spans: dict[str, tuple[int, int]] = {}
    for one in known:
        first, end = spans.get(one.said["log_id"], (one.said["first"], one.said["end"]))
        spans[one.said["log_id"]] = (min(first, one.said["first"]), max(end, one.said["end"]))
    if not spans:
        return {}
    rows = [row for of_log in replica_receipts(asked.lake, record.store_id, spans).values() for row in of_log]
    wanted = {row_hash for one in known for row_hash in one.said["receipts"]}
    named = [row for row in rows if row.row_hash in wanted]
    broken = broken_receipts(asked.lake, named, Depth.SIZES)
    sound = {row.row_hash: row for row in named if row.identity not in broken}
    return {
        one.segment.id: tuple(sound[row_hash] for row_hash in one.said["receipts"])
        for one in known
        if sound.keys() >= set(one.said["receipts"])
    }
