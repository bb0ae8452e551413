"""Segments of a store that may be archived, and those that no lake proves, as far as known.

A segment may be that is sealed, not kept out by its broker, and of the logs that the lakes know. What
is known is enough to archive none twice, never to delete one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from storage_engine.commands import Command
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import LakeConflictError
from storage_engine.journal.journal import Journal, Step, StoreRecord
from storage_engine.lake.acts.unarchived import NO_PERMITS
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.store import Archivable, FileFacts, Segment, SegmentId, StoreSnapshot, by_log
from storage_engine.retention.proof.gate import same_files
from storage_engine.retention.proof.history import segment_subject
from storage_engine.retention.proof.proofs import LakeProofs, Proofs, read_proofs
from storage_engine.retention.replicas import NOTHING, archived_by_replicas
from storage_engine.retention.store.broker_answers import take_archivable
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.known_heads import known_heads


@dataclass(frozen=True, slots=True)
class Unproven:
    """Segments that no lake is known to prove.

    :param touched: those of them that a lake has, as they were before another process touched their files.
    :param unarchived: by which rule their logs may go without a copy, by name.
    """

    segments: tuple[Segment, ...] = ()
    touched: frozenset[SegmentId] = frozenset()
    unarchived: Mapping[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> frozenset[SegmentId]:
        return frozenset(segment.id for segment in self.segments)


def prove_gone(context: Context, segments: Sequence[Segment]) -> tuple[Unproven, list[Segment]]:
    """Ask the store's lakes what they prove of segments that aren't on disk any more. Data files are read.

    :return: segments that no lake is known to prove; and those neither proven nor lost: a lake has them by
        the journal's record alone, or lakes prove different bytes.
    """
    if not segments:
        return Unproven(), []
    known, slots = known_heads(context.journal, context.record), {one.id for one in segments}
    proofs = read_proofs(
        context.store.lakes, context.record, slots, known=known, whole_chain=True, read_files=True
    )
    unarchived, proofs = proofs.permits.unarchived(segments), replace(proofs, permits=NO_PERMITS)
    left = still_unproven(context.journal, context.record, proofs, segments)
    unproven = Unproven(tuple(left), frozenset(one.id for one in proofs.touched(left)), unarchived)
    proven = [one for one in segments if one.id not in unproven.ids]
    by_word = still_unproven(context.journal, context.record, replace(proofs, unreachable=()), proven)
    return unproven, [one for one in proven if one in by_word or proofs.disagree(one.id)]


def still_unproven(
    journal: Journal, record: StoreRecord, proofs: Proofs, segments: Sequence[Segment]
) -> list[Segment]:
    """The segments that have to be archived, as far as is known."""
    return unproven_and_credited(journal, record, proofs, segments)[0]


def unproven_and_credited(
    journal: Journal, record: StoreRecord, proofs: Proofs, segments: Sequence[Segment]
) -> tuple[list[Segment], Mapping[SegmentId, Sequence[Receipt]]]:
    """Return the segments that have to be archived, and receipts of replicas by the segment they count for.

    A lake that can't be asked has, by the journal's word, what was archived there: enough not to archive it
    again, never enough to delete it. A file that was touched since its receipt counts as proven where it
    was compared again as it is now. What another replica has archived counts, too.
    """
    missing = proofs.unproven(segments)
    if not missing:
        return [], {}
    unreachable = {config.location for config, _ in proofs.unreachable}
    compared: dict[str, list[tuple[tuple[FileFacts, ...], str]]] = {}
    for step in (Step.ARCHIVE, Step.SEALED):
        for event in journal.results_of(record.store_id, step, [segment_subject(*one.id) for one in missing]):
            log, _, _ = event.subject.rpartition("/")
            if event.payload["lineage"] == record.lineage_of(log):
                said = (event.payload["facts"], *event.payload.get("companions", ()))
                files = tuple(from_jsonable(FileFacts, facts) for facts in said)
                compared.setdefault(event.subject, []).append((files, event.payload["lake"]))

    def is_proven(segment: Segment) -> bool:
        slot = segment.id
        has_receipt = any(lake.valid(slot) for lake in proofs.asked)
        return any(
            same_files(segment.files, files, proofs.acts) and (has_receipt or lake in unreachable)
            for files, lake in compared.get(segment_subject(*slot), ())
        )

    left = [segment for segment in missing if not is_proven(segment)]
    by_replicas = archived_by_replicas(journal, record, proofs, left)
    return [segment for segment in left if segment.id not in by_replicas], by_replicas


@dataclass(frozen=True, slots=True)
class KeptOut:
    """Sealed segments of a log that stay out of the lake, and were never archived.

    :param why: and until when.
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

    :param others: sealed segments that may not, but for empty ones, of which there is nothing to prove.
    """

    archivable: Archivable
    others: tuple[Segment, ...]
    snapshot: StoreSnapshot


def list_segments(context: Context) -> Listed:
    """Return segments that may be archived by now, oldest first in each log, and the other sealed ones."""
    snapshot = context.snapshot(clock_ms())
    found = take_archivable(context.broker, snapshot)
    may = {segment.id for segment in found.segments}
    others = (segment for log in snapshot.logs for segment in log.sealed if segment.id not in may)
    return Listed(found, tuple(segment for segment in others if segment.facts.size_bytes), snapshot)


def kept_out_segments(context: Context, listed: Listed) -> tuple[KeptOut, ...]:
    """Return sealed segments that stay out of the lake and, by the journal, were never archived."""
    reasons = listed.archivable.kept_out
    out = {segment_subject(*one.id): one for one in listed.others if one.log in reasons}
    for step in (Step.ARCHIVE, Step.SEALED, Step.REPLICA):
        for event in context.journal.results_of(context.record.store_id, step, list(out)):
            out.pop(event.subject, None)
    return tuple(
        KeptOut(
            log,
            len(segments),
            segments[0].base_offset,
            segments[-1].end_offset,
            sum(segment.facts.size_bytes for segment in segments),
            reasons[log],
        )
        for log, segments in by_log(out.values()).items()
    )


def kept_out_notices(kept_out: Sequence[KeptOut]) -> tuple[str, ...]:
    """Name the logs that stay out of the lake, wholly or in part, with the reason."""
    logs: dict[str, list[KeptOut]] = {}
    for one in kept_out:
        logs.setdefault(one.why, []).append(one)
    return tuple(
        f"not archived by now: {count_text(sum(one.segments for one in found), 'segment')} of "
        f"{named_in_short([one.log for one in found])}: {why}"
        for why, found in logs.items()
    )


def refuse_other_logs(context: Context, asked: Sequence[LakeProofs], segments: Sequence[Segment]) -> None:
    """Make sure that logs are still those of which the lakes have receipts.

    :param asked: with all receipts of the logs, where these can be told apart.
    :raises LakeConflictError: one has the name of a log that is archived, and is another.
    """
    identities = context.broker.identities
    if identities is None:
        return
    for log in dict.fromkeys(segment.log for segment in segments):
        rows = [row for proofs in asked for row in proofs.of_logs.get(log, ())]
        why = identities.contradiction(log, rows)
        if why:
            raise LakeConflictError(
                f"{context.store.root}: log {log}: expected the log that is archived, found another: "
                f"{why}. {NOTHING} Find out what became of it; then ",
                Command("adopt", f"STORE --log {log} --reason WHY"),
                " opens a new lineage of it, and what is archived stays under the old one.",
            )
