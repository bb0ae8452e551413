"""Checking what the lake holds, and that lake and store together still have every byte of the log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.table import Table

from storage_engine.exceptions import ProofError, ReceiptError
from storage_engine.lake.catalog import Lake
from storage_engine.lake.durable_io import open_data_file, sha256_of_file
from storage_engine.lake.errors import lake_errors
from storage_engine.lake.ranges import LocalSpan, ReleasedSpan, log_ranges
from storage_engine.lake.receipts import broken_receipts, check_chain, receipts
from storage_engine.lake.segment_reader import read_segment
from storage_engine.lake.staging import sha256_of
from storage_engine.model.receipt import Receipt
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, StoreSnapshot
from storage_engine.model.validation import RangeStatus, Status, worst


class VerifyLevel(StrEnum):
    """How closely to look; each level includes those before it."""

    RECEIPTS = "receipts"
    """The chain of receipts, and each data file: in the table, there, of the recorded length."""
    FILES = "files"
    """Every data file's SHA-256."""
    BYTES = "bytes"
    """Rows are turned back into the segment and its SHA-256 compared; also when another engine has
    rewritten them into other files."""


@dataclass(frozen=True, slots=True)
class StoreVerification:
    """What was found of one store.

    :param checked_bytes: segment bytes whose receipts were checked.
    :param chain_fault: why the chain of receipts is broken; "" when it isn't.
    :param notices: what is unusual but proves no loss, such as rows rewritten by another engine.
    """

    store_id: str
    level: VerifyLevel
    receipt_count: int
    checked_bytes: int
    chain_fault: str
    ranges: tuple[RangeStatus, ...]
    notices: tuple[str, ...] = ()

    @property
    def overall(self) -> Status:
        """The worst verdict; a broken chain is a failure whatever the ranges say."""
        chain = Status.FAILURE if self.chain_fault else Status.OK
        notices = Status.WARNING if self.notices else Status.OK
        return worst([chain, notices, *(row.status for row in self.ranges)])


def verify(
    lake: Lake,
    store_id: str,
    *,
    level: VerifyLevel,
    local: Iterable[LocalSpan] = (),
    released: Iterable[ReleasedSpan] = (),
    progress: Callable[[int], None] | None = None,
) -> StoreVerification:
    """Check one store's part of the lake, and lay the store over it if it is given.

    :param local: what is on the broker's disk, from :func:`local_spans`.
    :param released: what the journal says was deleted.
    :param progress: called after each segment with its size in bytes.
    :raises LakeUnavailableError: the lake can't be read.
    """
    rows = receipts(lake, store_id)
    try:
        check_chain(rows)
        chain_fault = ""
    except ReceiptError as error:
        chain_fault = str(error)
    broken = broken_receipts(lake, rows)
    notices = []
    table = lake.messages()
    for receipt in rows:
        rewritten = broken.pop(receipt.identity, None)
        if level is VerifyLevel.RECEIPTS:
            fault = rewritten
        else:
            fault = rewritten or _file_fault(table, receipt)
            if level is VerifyLevel.BYTES and fault == rewritten:
                fault = _bytes_fault(table, receipt)
        if fault is not None:
            broken[receipt.identity] = fault
        elif rewritten is not None:
            name = f"{receipt.log}/{receipt.base_offset:020d}"
            notices.append(f"{name}: {rewritten}; its rows prove the same bytes")
        if progress is not None:
            progress(receipt.size_bytes)
    return StoreVerification(
        store_id=store_id,
        level=level,
        receipt_count=len(rows),
        checked_bytes=sum(receipt.size_bytes for receipt in rows),
        chain_fault=chain_fault,
        ranges=log_ranges(local, rows, released=released, broken=broken),
        notices=tuple(notices),
    )


def local_spans(
    snapshot: StoreSnapshot,
    rows: Sequence[Receipt],
    *,
    pending: frozenset[tuple[str, int]] = frozenset(),
    hash_changed: bool = True,
) -> tuple[LocalSpan, ...]:
    """What a store has on disk, compared with its receipts.

    :param rows: the store's receipts; of several lineages the newest counts.
    :param pending: (log, base offset) of segments that are planned to go.
    :param hash_changed: read and hash an archived segment whose facts are no longer those it was proven
        with; without it such a segment is only known to have been touched.
    :raises OSError: a segment to hash can't be read.
    """
    newest = {(row.log, row.base_offset): row for row in sorted(rows, key=lambda row: row.lineage)}
    return tuple(
        _local_span(log, segment, newest.get((log.name, segment.base_offset)), pending, hash_changed)
        for log in snapshot.logs
        for segment in log.segments
    )


def unchanged(facts: FileFacts, receipt: Receipt) -> bool:
    """Whether a file is, by device, inode, size, mtime and ctime, the one that was proven."""
    return (facts.device, facts.inode, facts.size_bytes, facts.mtime_ns, facts.ctime_ns) == (
        receipt.source_device,
        receipt.source_inode,
        receipt.size_bytes,
        receipt.source_mtime_ns,
        receipt.source_ctime_ns,
    )


def _local_span(
    log: LogSnapshot,
    segment: Segment,
    receipt: Receipt | None,
    pending: frozenset[tuple[str, int]],
    hash_changed: bool,
) -> LocalSpan:
    same = receipt is not None and unchanged(segment.facts, receipt)
    sha256 = sha256_of(segment.facts.path) if receipt is not None and not same and hash_changed else None
    return LocalSpan(
        log=log.name,
        start_offset=segment.base_offset,
        end_offset=min(segment.end_offset, log.max_offset),
        name=segment.name,
        sha256=sha256,
        unchanged=same,
        pending=(log.name, segment.base_offset) in pending,
    )


def _file_fault(table: Table, receipt: Receipt) -> str | None:
    with (
        lake_errors(receipt.data_file, "read a data file"),
        open_data_file(table.io, receipt.data_file) as file,
    ):
        found = sha256_of_file(file)
    if found != receipt.data_file_sha256:
        return (
            f"data file {receipt.data_file} has SHA-256 {found[:16]}…, expected "
            f"{receipt.data_file_sha256[:16]}…"
        )
    return None


def _bytes_fault(table: Table, receipt: Receipt) -> str | None:
    digest = hashlib.sha256()
    try:
        for _, chunk in read_segment(table, receipt):
            digest.update(chunk)
    except ProofError as error:
        return str(error)
    if digest.hexdigest() != receipt.sha256:
        return f"its rows have SHA-256 {digest.hexdigest()[:16]}…, expected {receipt.sha256[:16]}…"
    return None
