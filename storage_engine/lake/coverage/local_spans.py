"""What a store has on disk, compared with its receipts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage_engine.brokers import find_broker, has_companions
from storage_engine.core.untrusted import read_file
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import CorruptFileError, ReceiptError
from storage_engine.lake.coverage.coverage import LocalSpan
from storage_engine.lake.file.staging import sha256_of
from storage_engine.model.proof.companions import MAX_COMPANION_BYTES, Companion
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store.known_logs import Lineages
from storage_engine.model.store.store import (
    FileFacts,
    LogSnapshot,
    Segment,
    SegmentId,
    SegmentState,
    StoreSnapshot,
)
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts


@dataclass(frozen=True, slots=True)
class Compared:
    """What a segment's files came to, held against its receipt; see :class:`LocalSpan`."""

    sha256: str | None
    unchanged: bool
    companions_fault: str
    unread: str = ""


def comparable(rows: Iterable[Receipt], lineages: Lineages) -> dict[tuple[str, int], Receipt]:
    """Return the receipts that segments on disk are compared with, by log and base offset.

    Of several lineages the newest. One that is older than the log's is of bytes that were there before.

    :param rows: a store's.
    :param lineages: of its logs now.
    """
    ordered = sorted(rows, key=lambda row: row.lineage)
    return {(row.log, row.base_offset): row for row in ordered if row.lineage >= lineages.of(row.log)}


def local_spans(
    snapshot: StoreSnapshot,
    rows: Sequence[Receipt],
    lineages: Lineages,
    *,
    pending: frozenset[tuple[str, int]] = frozenset(),
    hash_changed: bool = True,
    ends: Mapping[SegmentId, int] | None = None,
) -> tuple[LocalSpan, ...]:
    """Return what a store has on disk, compared with its receipts. A file that goes away meanwhile isn't on
    disk.

    :param rows: the store's receipts; :func:`comparable` says which count.
    :param pending: (log, base offset) of segments that are planned to go.
    :param hash_changed: read and hash an archived segment whose facts are no longer those it was proven
        with; without it such a segment is only known to have been touched.
    :param ends: of segments that end before the next one begins.
    """
    receipts = comparable(rows, lineages)
    acts = read_own_acts(snapshot.root)
    spans = []
    for log in snapshot.logs:
        for segment in log.segments:
            with suppress(FileNotFoundError):
                receipt = receipts.get((log.name, segment.base_offset))
                found = compare(segment.files, receipt, acts, hash_changed=hash_changed)
                end = (ends or {}).get(segment.id, segment.end_offset)
                spans.append(_local_span(log, segment, end, found, pending, lineages.of(log.name)))
    return tuple(spans)


def compare(
    files: Sequence[FileFacts],
    receipt: Receipt | None,
    acts: OwnActs,
    *,
    hash_changed: bool,
    hash_all: bool = False,
) -> Compared:
    """Compare a segment's files with its receipt.

    :param files: its own first.
    :param hash_changed: read and hash a file whose facts are no longer those it was proven with.
    :param hash_all: read and hash each.
    :raises FileNotFoundError: a file to hash went away.
    """
    if receipt is None:
        return Compared(None, False, "")
    try:
        return _compare(files, receipt, acts, hash_changed=hash_changed, hash_all=hash_all)
    except FileNotFoundError:
        raise
    except OSError as error:
        return Compared(None, False, "", reason_text(error))


def _compare(
    files: Sequence[FileFacts], receipt: Receipt, acts: OwnActs, *, hash_changed: bool, hash_all: bool
) -> Compared:
    own, *companions = files
    same = acts.same_file(own, receipt.source_facts)
    sha256 = sha256_of(own.path) if hash_all or (hash_changed and not same) else None
    if receipt.files is None and not companions:
        return Compared(sha256, same, "")
    try:
        proven = {one.name: one for one in receipt.companions}
    except ReceiptError as error:
        return Compared(sha256, False, str(error))
    there = {Path(one.path).name: one for one in companions}
    if not has_companions(receipt.broker, proven, there):
        said = (", ".join(sorted(names)) or "none" for names in (there, proven))
        return Compared(sha256, False, "its companions are {} on disk, {} in the lake".format(*said))
    for name, facts in there.items():
        unchanged = acts.same_file(facts, proven[name].facts_in(Path(facts.path).parent))
        same = same and (unchanged or hash_changed or hash_all)
        read = hash_all or (hash_changed and not unchanged)
        if read and (fault := companion_fault(receipt.broker, proven[name], Path(facts.path))):
            return Compared(sha256, False, fault)
    return Compared(sha256, same, "")


def companion_fault(broker: str, proven: Companion, path: Path) -> str:
    """Return why a file isn't the companion that a receipt has; "" where it is.

    :param broker: the name of the segment's.
    :raises OSError: it can't be read.
    """
    if (digest := sha256_of(path)) == proven.sha256 or is_same_companion(broker, proven, path):
        return ""
    hashes = f"{digest[:16]}… on disk, {proven.sha256[:16]}… in the lake"
    return f"its companion {proven.name} has SHA-256 {hashes}"


def is_same_companion(broker: str, proven: Companion, path: Path) -> bool:
    """Return whether a file that has other bytes than a companion says the same.

    :raises OSError: it can't be read.
    """
    with suppress(CorruptFileError):
        found = read_file(path, MAX_COMPANION_BYTES, follow_links=False)
        return find_broker(broker).receipts.same_companion(proven.name, proven.content, found)
    return False


def _local_span(
    log: LogSnapshot,
    segment: Segment,
    end: int,
    found: Compared,
    pending: frozenset[tuple[str, int]],
    lineage: int,
) -> LocalSpan:
    return LocalSpan(
        log=log.name,
        start_offset=segment.base_offset,
        end_offset=min(end, log.max_offset),
        name=segment.name,
        sha256=found.sha256,
        unchanged=found.unchanged,
        pending=(log.name, segment.base_offset) in pending,
        path=segment.facts.path,
        companions_fault=found.companions_fault,
        lineage=lineage,
        unread=found.unread or (log.unread if segment.state is SegmentState.ACTIVE else ""),
    )
