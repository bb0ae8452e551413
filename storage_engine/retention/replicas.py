"""Segments of this store's logs that other nodes have archived. They aren't archived again.

Only logs with an identity of their own, which all replicas share, are compared. Bytes are compared once, and
the result is recorded. Each look checks that the receipts still exist. For a deletion these checks are never
enough: under the store's lock, receipts are read and bytes are hashed.

Replicas of a log have equal batches. If batches differ, one of the logs lost records or is damaged. Without a
person's decision the lake must not take both for the same log. An adopted log has its own lineage and may
differ: only equal segments count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from storage_engine.brokers import store_text
from storage_engine.commands import Command
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import OF_ONE_LOG, ChangedUnderUsError, LakeConflictError, ReceiptError
from storage_engine.journal.journal import Journal, Phase, Run, Step, StoreRecord
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.coverage.coverage import ComparedReceipts
from storage_engine.lake.soundness.chain import check_links
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.replica_coverage import (
    EVERY_RECORD,
    ReplicaComparison,
    ReplicaCover,
    compare_with_replicas,
    is_replica,
    replica_receipts,
)
from storage_engine.model.broker.broker_store import (
    BrokerStore,
    StoreReplicas,
    contexts_of,
    contradiction,
    process_of,
)
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import FileFacts, Segment, SegmentId, StoreSnapshot, group_by_log, is_unique
from storage_engine.retention.proof.gate import same_files
from storage_engine.retention.proof.history import SegmentRelease, compared_receipts, segment_subject
from storage_engine.retention.proof.proofs import LakeProofs, OtherNodesProof, Proofs
from storage_engine.retention.proof.unseen_writes import Reading, digest, unseen_writes
from storage_engine.retention.store.broker_answers import answer_for_left, take_archivable
from storage_engine.retention.store.context import Context
from storage_engine.same_bytes.trusted_times import settle

NOTHING = "Nothing of it was archived."
"""The sentence between a log's fault and the remedy."""
_FIRST_LINEAGE = 1


@dataclass(frozen=True, slots=True)
class ComparedLog:
    """A comparison of a log with the segments that other replicas archived of it.

    :param log_id: the broker's own identity of the log.
    :param divergence: a sign that it isn't the same log, or "" if there is no sign or the log may differ.
    """

    log: str
    log_id: str
    found: ReplicaComparison
    divergence: str


def compare_logs(
    broker: BrokerStore,
    lake: Lake,
    record: StoreRecord,
    segments: Sequence[Segment],
    there: Sequence[Segment],
    compared: ComparedReceipts = frozenset,
    depth: Depth = Depth.SIZES,
) -> Iterator[ComparedLog]:
    """Yield a comparison for each log of ``segments`` that other stores have archived in a lake.

    :param there: all archivable segments of these logs: their bytes are compared.
    :param compared: returns the receipts that were found equal before.
    :param depth: depth to which the receipts' files are read.
    :raises LakeUnavailableError: the lake can't be read.
    """
    replicas = broker.replicas
    if not segments or replicas is None:
        return
    groups = group_by_log(sorted(segments, key=attrgetter("log", "base_offset")))
    # A broker deletes the newest segments last.
    contexts = replicas.contexts([group[-1] for group in groups.values()])
    log_ids = {slot.log: context.log_id for slot, context in contexts.items() if context.log_id is not None}
    groups = {log: group for log, group in groups.items() if log in log_ids}
    files = group_by_log(sorted(there, key=attrgetter("log", "base_offset")))
    spans = {
        log_ids[log]: (files[log][0].base_offset, files[log][-1].end_offset)
        if is_unique(log_ids[log])
        else EVERY_RECORD
        for log in groups
    }
    receipts = replica_receipts(lake, record.store_id, spans)
    for log, group in groups.items():
        if rows := receipts.get(log_ids[log], ()):
            compare = partial(_compare, replicas, lake, group, rows, depth)
            remaining, comparison = answer_for_left(files[log], compare)
            sign = divergence(broker, record, log, comparison.same)
            if (
                comparison.same
                or is_unique(log_ids[log])
                or (comparison.differences and is_replica(lake, record.store_id, rows, compared))
            ):
                # A log of the same name is a replica only if it has, or had, some of the same bytes.
                sign = sign or _other_bytes(record, comparison, remaining)
            yield ComparedLog(log, log_ids[log], comparison, sign)


def _compare(
    replicas: StoreReplicas,
    lake: Lake,
    segments: Sequence[Segment],
    rows: Sequence[Receipt],
    depth: Depth,
    files: Sequence[Segment],
) -> ReplicaComparison:
    """Compare a log's segments with replicas' receipts. Only segments among ``files`` and receipts inside the
    files' offsets are compared.
    """
    first, end = (files[0].base_offset, files[-1].end_offset) if files else (0, 0)
    file_ids = {file.id for file in files}

    def hash_range(start: int, behind: int) -> str | None:
        return replicas.range_sha256(files, start, behind)

    return compare_with_replicas(
        lake,
        [segment for segment in segments if segment.id in file_ids],
        [row for row in rows if first <= row.base_offset and row.end <= end],
        hash_range,
        depth,
    )


def divergence(broker: BrokerStore, record: StoreRecord, log: str, rows: Sequence[Receipt]) -> str:
    """Return a sign, other than bytes, that a log isn't the one that other replicas archived.

    :param rows: their receipts of bytes that this log has as well.
    :return: the sign, or "" without a sign or if the log may differ because a person adopted it.
    """
    if not rows or record.lineage_of(log) != _FIRST_LINEAGE:
        return ""
    return contradiction(broker, log, rows)


def _other_bytes(record: StoreRecord, comparison: ReplicaComparison, files: Sequence[Segment]) -> str:
    if not comparison.differences:
        return ""
    first = min(comparison.differences, key=lambda difference: difference.receipt.base_offset)
    if record.lineage_of(first.receipt.log) != _FIRST_LINEAGE:
        return ""
    row = first.receipt
    path = next(
        (file.facts.path for file in files if file.end_offset > row.base_offset), files[-1].facts.path
    )
    actual = f"SHA-256 {first.sha256}" if first.sha256 else "no batches that begin and end there"
    return (
        f"its replica of store {store_text(row.store_name, row.broker, row.store_root)} archived offsets "
        f"[{row.base_offset}, {row.end}) with SHA-256 {row.sha256}, and here they have {actual}, in {path}"
    )


def without_replicas_work(
    context: Context,
    run: Run,
    proofs: Proofs,
    unproven: Sequence[Segment],
    there: Sequence[Segment],
    depth: Depth = Depth.SIZES,
) -> list[Segment]:
    """Return the segments that no other replica has archived, and record which receipts prove the others.

    :param unproven: segments that no receipt of this store proves.
    :param there: all archivable segments of the store: their bytes are compared.
    :param depth: depth to which the other replicas' files in the lake are read.
    :raises LakeUnavailableError: a lake can't be read.
    :raises LakeConflictError: another replica archived other bytes of a log, or other leaders wrote it.
    """
    covered: set[SegmentId] = set()
    record, compared = context.record, partial(compared_receipts, context.journal, context.record.store_id)
    for lake_proofs in proofs.asked:
        remaining = [segment for segment in unproven if segment.id not in covered]
        for log in compare_logs(context.broker, lake_proofs.lake, record, remaining, there, compared, depth):
            if log.divergence:
                raise divergence_error(context, log.log, log.divergence)
            _record(context, run, lake_proofs, log.log_id, log.found.covers)
            covered.update(cover.segment.id for cover in log.found.covers)
    return [segment for segment in unproven if segment.id not in covered]


def refuse_diverged(context: Context, by_replicas: Mapping[SegmentId, Sequence[Receipt]]) -> None:
    """Make sure that logs don't contradict the replicas' receipts that count for them.

    :param by_replicas: the receipts, by the segment that they count for.
    :raises LakeConflictError: other leaders wrote a log's records.
    """
    rows: dict[str, dict[str, Receipt]] = {}
    for segment_id, receipts in by_replicas.items():
        rows.setdefault(segment_id.log, {}).update({row.row_hash: row for row in receipts})
    for log, group in rows.items():
        if reason := divergence(context.broker, context.record, log, list(group.values())):
            raise divergence_error(context, log, reason)


def divergence_error(context: Context, log: str, why: str) -> LakeConflictError:
    return LakeConflictError(
        f"{context.store.root}: log {log}: expected the log that another replica archived, found a "
        f"divergence: {why}. {NOTHING} Find out which replica is right; then ",
        Command("adopt", f"--log {log} --reason …"),
        " opens a new lineage of this log, and both are kept.",
    )


def _record(
    context: Context, run: Run, lake_proofs: LakeProofs, log_id: str, covers: Sequence[ReplicaCover]
) -> None:
    entries = [
        (
            segment_subject(*cover.segment.id),
            {
                "lineage": context.record.lineage_of(cover.segment.log),
                "files": [to_jsonable(facts) for facts in cover.segment.files],
                "lake": lake_proofs.lake.config.location,
                "log_id": log_id,
                "first": min(row.base_offset for row in cover.receipts),
                "end": max(row.end for row in cover.receipts),
                "receipts": [row.row_hash for row in cover.receipts],
            },
        )
        for cover in covers
    ]
    context.journal.record(run, Step.REPLICA, Phase.RESULT, entries)


@dataclass(frozen=True, slots=True)
class _Covered:
    segment: Segment
    payload: Mapping[str, Any]


def archived_by_replicas(
    journal: Journal, record: StoreRecord, proofs: Proofs, segments: Sequence[Segment]
) -> dict[SegmentId, tuple[Receipt, ...]]:
    """Return recorded receipts of other replicas that are still valid, by the segment that they prove.

    If a lake can't be asked, the journal's record counts, and the receipts are empty. That is enough not to
    archive a segment again, never enough to delete it.

    :raises LakeUnavailableError: a lake can't be read.
    """
    by_subject = {segment_subject(*segment.id): segment for segment in segments}
    covered = [
        _Covered(segment, event.payload)
        for event in journal.results_of(record.store_id, Step.REPLICA, list(by_subject))
        if event.payload["lineage"] == record.lineage_of((segment := by_subject[event.subject]).log)
        and same_files(
            segment.files,
            tuple(from_jsonable(FileFacts, facts) for facts in event.payload["files"]),
            proofs.acts,
        )
    ]
    unreachable = {config.location for config, _ in proofs.unreachable}
    receipts: dict[SegmentId, tuple[Receipt, ...]] = {
        cover.segment.id: () for cover in covered if cover.payload["lake"] in unreachable
    }
    for lake_proofs in proofs.asked:
        of_lake = [cover for cover in covered if cover.payload["lake"] == lake_proofs.lake.config.location]
        receipts |= _sound_covers(lake_proofs, record, of_lake)
    return receipts


def _sound_covers(
    lake_proofs: LakeProofs, record: StoreRecord, covered: Sequence[_Covered]
) -> dict[SegmentId, tuple[Receipt, ...]]:
    spans: dict[str, tuple[int, int]] = {}
    for cover in covered:
        first, end = spans.get(cover.payload["log_id"], (cover.payload["first"], cover.payload["end"]))
        spans[cover.payload["log_id"]] = (min(first, cover.payload["first"]), max(end, cover.payload["end"]))
    if not spans:
        return {}
    groups = replica_receipts(lake_proofs.lake, record.store_id, spans).values()
    rows = [row for group in groups for row in group]
    hashes = {row_hash for cover in covered for row_hash in cover.payload["receipts"]}
    named_rows = [row for row in rows if row.row_hash in hashes]
    broken = broken_receipts(lake_proofs.lake, named_rows, Depth.SIZES)
    sound = {row.row_hash: row for row in named_rows if row.identity not in broken}
    return {
        cover.segment.id: tuple(sound[row_hash] for row_hash in cover.payload["receipts"])
        for cover in covered
        if sound.keys() >= set(cover.payload["receipts"])
    }


def with_replicas(
    broker: BrokerStore,
    record: StoreRecord,
    proofs: Proofs,
    going: Sequence[Segment],
    snapshot: StoreSnapshot,
    reading: Reading,
) -> Proofs:
    """Return proofs with other nodes' receipts added, for segments that no receipt of the store proves.

    :param going: present segments that are about to be deleted.
    :param snapshot: snapshot of the store, which is locked by us.
    :param reading: how fast files may be read, and how the lease on the store is renewed meanwhile.
    :raises LakeUnavailableError: a lake can't be read.
    """
    if broker.replicas is None or not proofs.asked:
        return proofs
    unproven = [segment for segment in going if not any(lake.valid(segment.id) for lake in proofs.asked)]
    archivable = take_archivable(broker, snapshot).segments if unproven else ()
    ids = {segment.id for segment in archivable}
    unproven = [segment for segment in unproven if segment.id in ids]
    if not unproven:
        return proofs
    unseen = unseen_writes(record.real_path, unproven, process_of(broker).running_pid())
    extended = []
    for lake_proofs in proofs.asked:
        compared = _Compared(broker, record, lake_proofs.lake, unseen, reading)
        extended.append(replace(lake_proofs, covers=compared.covers_of_each_log(unproven, archivable)))
    return replace(proofs, asked=tuple(extended))


def has_archived_replicas(
    broker: BrokerStore, record: StoreRecord, proofs: Proofs, segments: Sequence[Segment]
) -> bool:
    """Return whether a lake has receipts of another store for a log of the same identity.

    An identity may be no more than the log's name.

    :param segments: segments of one log.
    :raises LakeUnavailableError: a lake can't be read.
    """
    contexts = contexts_of(broker, segments[-1:])
    logs = {context.log_id: EVERY_RECORD for context in contexts.values() if context.log_id}
    return any(replica_receipts(lake_proofs.lake, record.store_id, logs) for lake_proofs in proofs.asked)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A comparison of segments with the segments that other nodes archived in a lake.

    :param unseen: paths of files that may be written to unnoticed.
    """

    broker: BrokerStore
    record: StoreRecord
    lake: Lake
    unseen: Collection[str]
    reading: Reading

    def covers_of_each_log(
        self, segments: Sequence[Segment], there: Sequence[Segment]
    ) -> dict[SegmentId, OtherNodesProof]:
        """Return the proofs by sound receipts. A log that can't be compared doesn't affect other logs."""
        logs = group_by_log(segments)
        try:
            return dict(self._covers(segments, there))
        except (*OF_ONE_LOG, OSError):
            if len(logs) < 2:
                return {}
        return {
            segment_id: proof
            for group in logs.values()
            for segment_id, proof in self.covers_of_each_log(group, there).items()
        }

    def _covers(
        self, segments: Sequence[Segment], archivable: Sequence[Segment]
    ) -> Iterator[tuple[SegmentId, OtherNodesProof]]:
        """Yield the proofs by sound receipts, for segments that weren't written to meanwhile."""
        settled = [segment for segment in segments if all(map(_is_settled, segment.files))]
        before = {segment.id: self._digest(segment) for segment in settled}
        compared: list[ReplicaCover] = []
        for log in compare_logs(self.broker, self.lake, self.record, settled, archivable):
            self.reading.renew()
            if not log.divergence:
                compared += log.found.covers
        rows = [row for cover in compared for row in cover.receipts]
        sound = _find_sound(self.lake, rows, self.reading.renew)
        for cover in compared:
            segment, sha256 = cover.segment, self._digest(cover.segment)
            is_same = sha256 == before[segment.id] and all(map(_is_settled, segment.files))
            if is_same and all(row.row_hash in sound for row in cover.receipts):
                yield segment.id, OtherNodesProof(cover.receipts, sha256)

    def _digest(self, segment: Segment) -> str:
        """Return the SHA-256 of a segment whose file facts don't show each write, or else ""."""
        path = segment.facts.path
        return digest(path, self.reading) if path in self.unseen else ""


def _is_settled(file: FileFacts) -> bool:
    """Return whether a file is unchanged since it was listed, and each later write to it will show."""
    try:
        return settle(file.path) == file
    except (ChangedUnderUsError, OSError):
        return False


def _find_sound(lake: Lake, rows: Sequence[Receipt], looked: Callable[[], None]) -> set[str]:
    """Return the row hashes of other nodes' receipts that are sound, after reading their chains and files."""
    segments, whole_ids = lake.segments(), set()
    for store_id in {row.store_id for row in rows}:
        try:
            check_links(segments, store_id, whole=True)
            whole_ids.add(store_id)
        except ReceiptError:
            continue
    unique = {row.row_hash: row for row in rows if row.store_id in whole_ids}
    broken = broken_receipts(lake, list(unique.values()), Depth.FILES, looked)
    return {row_hash for row_hash, row in unique.items() if row.identity not in broken}


def replicas_prove(
    asked: Iterable[LakeProofs], store_id: str, release: SegmentRelease, looked: Callable[[], None]
) -> bool:
    """Return whether the receipts of other nodes by which a segment was deleted are still sound.

    :param looked: called after each receipt whose files were read.
    :raises LakeUnavailableError: a lake can't be read.
    """
    if not release.replicas or not release.log_id:
        return False
    for lake_proofs in asked:
        receipts = replica_receipts(lake_proofs.lake, store_id, {release.log_id: EVERY_RECORD})
        named_rows = [row for rows in receipts.values() for row in rows if row.identity in release.replicas]
        sound = _find_sound(lake_proofs.lake, named_rows, looked)
        if {row.identity for row in named_rows if row.row_hash in sound} >= set(release.replicas):
            return True
    return False
