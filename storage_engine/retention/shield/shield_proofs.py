"""The links of a shield whose bytes are in a lake, by receipts; bytes are read where facts don't tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store.store import Segment, SegmentState
from storage_engine.retention.proof.gate import is_proven_file
from storage_engine.retention.proof.history import SegmentRelease, release_by_any_run
from storage_engine.retention.proof.proofs import Proofs, read_proofs
from storage_engine.retention.proof.shielding import WAY_OUT, AskedGone, shield_notices
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import LinkKind
from storage_engine.shield.links import note_digest
from storage_engine.shield.seen import SeenLink, Shield, digest_of


@dataclass(frozen=True, slots=True)
class JudgedLink:
    """A link, and what lakes say of its segment.

    :param receipt: that counts and proves the very bytes of the link; None: none does.
    :param problem: why its bytes can't be told from others; "" where they can.
    """

    seen: SeenLink
    receipt: Receipt | None = None
    problem: str = ""

    @property
    def segment(self) -> Segment:
        """Return the link as a segment to archive: the log's, by its offset, with the link's file."""
        link = self.seen.link
        return Segment(link.log, link.base_offset, self.seen.facts, SegmentState.SEALED, link.mtime_ns)


def counting(proofs: Proofs, slot: tuple[str, int]) -> Receipt | None:
    """Return the receipt that counts for a segment; None: there is none, or they contradict each other."""
    found = [lake.of(slot)[0] for lake in proofs.asked if len(lake.of(slot)) == 1 and lake.valid(slot)]
    hashes = {row.sha256 for lake in proofs.asked for row in lake.valid(slot)}
    return found[0] if found and len(hashes) == 1 else None


def unproven_segments(segments: Iterable[Segment], links: Sequence[JudgedLink]) -> tuple[Segment, ...]:
    """Return the segments of the log without those whose links a receipt proves."""
    proven = {
        (judged.seen.link.segment.device, judged.seen.link.segment.inode)
        for judged in links
        if judged.receipt is not None
    }
    return tuple(segment for segment in segments if (segment.facts.device, segment.facts.inode) not in proven)


def judge_link(root: str, seen: SeenLink, proofs: Proofs, *, to_drop: bool = False) -> JudgedLink:
    """Compare a link with the receipt of its segment, if there is one.

    Where facts don't tell that its bytes are those that it had, they are read.

    :param to_drop: it is to go on this: a hard link is read whatever its facts say. Who writes to the segment
        writes to the link as well, and a fence that is mended sets the mtime back that tells of it.
    :raises ShieldError: the shield can't be read or written.
    """
    link, row = seen.link, counting(proofs, seen.link.slot)
    if row is not None:
        as_segment = JudgedLink(seen).segment
        if seen.is_same and link.sha256 and link.sha256 != row.sha256:
            return JudgedLink(seen, problem=_contradiction(seen, row))
        is_told = bool(link.sha256) or is_proven_file(as_segment, row, proofs.acts)
        if seen.is_same and is_told and not (to_drop and link.kind is LinkKind.HARD_LINK):
            return JudgedLink(seen, row)
        sha256 = digest_of(root, seen, pace_at(None).spend)
        if sha256 == row.sha256:
            return JudgedLink(_noted(root, seen, sha256), row)
        if sha256 is not None and seen.is_same:
            # Told by this the next time, so that nobody reads it again and again.
            seen = _noted(root, seen, sha256)
        return JudgedLink(seen, problem=_contradiction(seen, row, sha256) if sha256 is not None else "")
    if seen.is_same:
        return JudgedLink(seen)
    if link.sha256 and digest_of(root, seen, pace_at(None).spend) == link.sha256:
        return JudgedLink(_noted(root, seen, link.sha256))
    if not seen.has_left_log:
        # Whatever was done to it, it is what the broker has there.
        return JudgedLink(seen)
    return JudgedLink(seen, problem="changed")


def _noted(root: str, seen: SeenLink, sha256: str) -> SeenLink:
    """Remember a digest, so that nobody has to read the bytes again."""
    note_digest(root, seen, sha256)
    link = replace(seen.link, sha256=sha256, kept=replace(seen.facts, path=seen.link.name))
    return replace(seen, link=link, is_same=True)


def _contradiction(seen: SeenLink, row: Receipt, sha256: str = "") -> str:
    return (
        f"{seen.facts.path}: expected SHA-256 {row.sha256}, which the receipt of offset {row.base_offset} "
        f"proves, found other bytes, {sha256 or seen.link.sha256}: the broker wrote these offsets again, or "
        "somebody changed the file. It is kept, and not archived. If the broker did, run storage-engine "
        f"adopt for what is in the log. {WAY_OUT}"
    )


def release_of(journal: Journal, record: StoreRecord, seen: SeenLink) -> SegmentRelease | None:
    """Return the deletion of a link's segment by one of our runs; None: others deleted it."""
    link = seen.link
    segment = Segment(link.log, link.base_offset, link.segment, SegmentState.SEALED, link.mtime_ns)
    return release_by_any_run(journal, record.store_id, segment)


def ask_of_gone(store: ManagedStore, journal: Journal, record: StoreRecord, shield: Shield) -> AskedGone:
    """Ask journal and lakes for the segments of a shield that are gone from the log. Changes nothing."""
    left = [seen for seen in shield.left_log if release_of(journal, record, seen) is None]
    unproven: list[SeenLink] = []
    unreachable: list[str] = []
    for lineage, links in by_lineage(left).items():
        of_lineage = record.at_lineage(lineage, {seen.link.log for seen in links})
        try:
            known = known_heads(journal, of_lineage)
            proofs = read_proofs(store.lakes, of_lineage, {seen.link.slot for seen in links}, known=known)
        except StorageEngineError as error:
            unproven += links
            unreachable.append(str(error))
            continue
        unproven += [seen for seen in links if not _is_told_proven(seen, counting(proofs, seen.link.slot))]
        unreachable += [reason for _, reason in proofs.unreachable]
    return AskedGone(tuple(unproven), tuple(dict.fromkeys(unreachable)))


def _is_told_proven(seen: SeenLink, row: Receipt | None) -> bool:
    """Return whether a receipt is of a link's bytes, as far as can be told without reading them."""
    if row is None:
        return False
    return seen.link.sha256 == row.sha256 if seen.link.sha256 else seen.is_same


def asked_notices(
    store: ManagedStore, journal: Journal, record: StoreRecord, going: Sequence[Segment] = ()
) -> tuple[str, ...]:
    """Say what a person should know of a shield, once lakes and journal were asked.

    :param going: segments that are to be deleted.
    :raises ShieldError: what is kept there is unknown.
    """
    return shield_notices(store.real_root, going, lambda shield: ask_of_gone(store, journal, record, shield))


def by_lineage(links: Sequence[SeenLink]) -> Mapping[int, list[SeenLink]]:
    """Group links by the lineage that their segments are of."""
    groups: dict[int, list[SeenLink]] = {}
    for seen in links:
        groups.setdefault(seen.link.lineage, []).append(seen)
    return groups
