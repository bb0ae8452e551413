"""What other nodes' receipts prove of segments that are about to go: their bytes are compared right then.

What was compared before is never enough: receipts are read, and bytes hashed, while the store is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from storage_engine.exceptions import OF_ONE_LOG, ChangedUnderUsError, ReceiptError
from storage_engine.journal.records import StoreRecord
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.soundness.chain import check_links
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.replica_coverage import EVERY_RECORD, ReplicaCover, replica_receipts
from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store.by_log import by_log
from storage_engine.model.store.store import FileFacts, Segment, SegmentId, StoreSnapshot
from storage_engine.retention.proof.history import SegmentRelease
from storage_engine.retention.proof.proofs import LakeProofs, OtherNodesProof, Proofs
from storage_engine.retention.proof.unseen_writes import Reading, digest, unseen_writes
from storage_engine.retention.replicas.replica_divergence import compare_logs, has_replicas
from storage_engine.retention.store.broker_answers import ask, take_archivable
from storage_engine.same_bytes.settling import settle


def with_replicas(
    broker: BrokerStore,
    record: StoreRecord,
    proofs: Proofs,
    going: Sequence[Segment],
    snapshot: StoreSnapshot,
    reading: Reading,
) -> Proofs:
    """Return proofs with other nodes' receipts, which cover segments that none of the store's own proves.

    :param going: segments that are about to go, as they are now.
    :param snapshot: of the store, which is ours.
    :param reading: how fast files may be read, and what keeps the store ours meanwhile.
    :raises LakeUnavailableError: a lake can't be read.
    """
    if not has_replicas(broker) or not proofs.asked:
        return proofs
    left = [one for one in going if not any(lake.valid(one.id) for lake in proofs.asked)]
    there = take_archivable(broker, snapshot).segments if left else ()
    may = {segment.id for segment in there}
    left = [one for one in left if one.id in may]
    if not left:
        return proofs
    unseen = unseen_writes(record.real_path, left, ask(record.broker, "tell its process", broker.running_pid))
    asked = []
    for one in proofs.asked:
        compared = _Compared(broker, record, one.lake, unseen, reading)
        asked.append(replace(one, covers=compared.covers_of_each_log(left, there)))
    return replace(proofs, asked=tuple(asked))


def has_archived_replicas(
    broker: BrokerStore, record: StoreRecord, proofs: Proofs, segments: Sequence[Segment]
) -> bool:
    """Return whether a lake has receipts of another store with a log of the same identity, or name.

    :param segments: of one log.
    :raises LakeUnavailableError: a lake can't be read.
    """
    doing = "tell what it knows of segments beside their files"
    contexts = ask(record.broker, doing, lambda: broker.contexts(segments[-1:]))
    logs = {one.log_id: EVERY_RECORD for one in contexts.values() if one.log_id}
    return any(replica_receipts(one.lake, record.store_id, logs) for one in proofs.asked)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A comparison of segments with what other nodes have archived in a lake.

    :param unseen: paths of files that may be written to without a trace.
    """

    broker: BrokerStore
    record: StoreRecord
    lake: Lake
    unseen: Collection[str]
    reading: Reading

    def covers_of_each_log(
        self, segments: Sequence[Segment], there: Sequence[Segment]
    ) -> dict[SegmentId, OtherNodesProof]:
        """Return which segments sound receipts cover; a log that can't be compared keeps no other from it."""
        logs = by_log(segments)
        try:
            return dict(self._covers(segments, there))
        except (*OF_ONE_LOG, OSError):
            if len(logs) < 2:
                return {}
        return {
            segment_id: proof
            for of_log in logs.values()
            for segment_id, proof in self.covers_of_each_log(of_log, there).items()
        }

    def _covers(
        self, segments: Sequence[Segment], there: Sequence[Segment]
    ) -> Iterator[tuple[SegmentId, OtherNodesProof]]:
        """Yield which segments sound receipts cover, where nobody wrote to them meanwhile."""
        settled = [one for one in segments if all(map(_is_settled, one.files))]
        before = {one.id: self._digest(one) for one in settled}
        compared: list[ReplicaCover] = []
        for log in compare_logs(self.broker, self.lake, self.record, settled, there):
            self.reading.renew()
            if not log.divergence:
                compared += log.found.covers
        rows = [row for cover in compared for row in cover.receipts]
        sound = _sound(self.lake, rows, self.reading.renew)
        for cover in compared:
            segment, sha256 = cover.segment, self._digest(cover.segment)
            is_same = sha256 == before[segment.id] and all(map(_is_settled, segment.files))
            if is_same and all(row.row_hash in sound for row in cover.receipts):
                yield segment.id, OtherNodesProof(cover.receipts, sha256)

    def _digest(self, segment: Segment) -> str:
        """Return the SHA-256 of a segment whose facts don't tell of each write; "" where they do."""
        path = segment.facts.path
        return digest(path, self.reading) if path in self.unseen else ""


def _is_settled(file: FileFacts) -> bool:
    """Return whether a file is as it was listed, so that each later write to it shows."""
    try:
        return settle(file.path) == file
    except (ChangedUnderUsError, OSError):
        return False


def _sound(lake: Lake, rows: Sequence[Receipt], looked: Callable[[], None]) -> set[str]:
    """Return which of other nodes' receipts hold, by row hash: by their chains, and files read once more."""
    segments, whole = lake.segments(), set()
    for store_id in {row.store_id for row in rows}:
        try:
            check_links(segments, store_id, whole=True)
            whole.add(store_id)
        except ReceiptError:
            continue
    unique = {row.row_hash: row for row in rows if row.store_id in whole}
    broken = broken_receipts(lake, list(unique.values()), Depth.FILES, looked)
    return {row_hash for row_hash, row in unique.items() if row.identity not in broken}


def replicas_prove(
    asked: Iterable[LakeProofs], store_id: str, release: SegmentRelease, looked: Callable[[], None]
) -> bool:
    """Return whether receipts of other nodes, on which a deletion rested, hold still.

    :param looked: called after each receipt whose files were read.
    :raises LakeUnavailableError: a lake can't be read.
    """
    if not release.replicas or not release.log_id:
        return False
    for one in asked:
        found = replica_receipts(one.lake, store_id, {release.log_id: EVERY_RECORD})
        named = [row for rows in found.values() for row in rows if row.identity in release.replicas]
        sound = _sound(one.lake, named, looked)
        if {row.identity for row in named if row.row_hash in sound} >= set(release.replicas):
            return True
    return False
