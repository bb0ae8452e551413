"""What a verification of the lake looked at, found, and remembers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import RangeStatus, Status, worst


class VerifyLevel(StrEnum):
    """How closely to look; each level includes those before it."""

    RECEIPTS = "receipts"
    """Metadata only: receipts and their chain, and what the table says of each data file."""
    FILES = "files"
    """Every data file's SHA-256, and whether the table's statistics of it are the file's own."""
    BYTES = "bytes"
    """Rows are turned back into the segment and its SHA-256 compared; also when another engine has
    rewritten them into other files."""
    STORE = "store"
    """Segments that are still on the broker's disk are compared with the lake's, byte for byte."""

    def includes(self, other: VerifyLevel) -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS = {level: rank for rank, level in enumerate(VerifyLevel)}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    :param status: FAILURE, or WARNING for what proves no loss.
    :param subject: the segment (lineage, log, base offset), file or table that it is about.
    :param detail: what was expected, and what was found.
    :param advice: what to do about it.
    """

    status: Status
    subject: str
    detail: str
    advice: str


@dataclass(frozen=True, slots=True)
class Check:
    """One receipt was looked at, at one level, at one time. Memory of it lets a check walk round a lake.

    :param receipt_hash: ``row_hash`` of the receipt: a check counts only for that very row.
    :param at_ms: milliseconds since the epoch.
    :param fault: what was wrong; "" when nothing was.
    """

    store_id: str
    lineage: int
    log: str
    base_offset: int
    receipt_hash: str
    level: VerifyLevel
    at_ms: int
    fault: str = ""

    @classmethod
    def of(cls, receipt: Receipt, level: VerifyLevel, at_ms: int, fault: str = "") -> Check:
        return cls(
            store_id=receipt.store_id,
            lineage=receipt.lineage,
            log=receipt.log,
            base_offset=receipt.base_offset,
            receipt_hash=receipt.row_hash,
            level=level,
            at_ms=at_ms,
            fault=fault,
        )

    @property
    def segment(self) -> str:
        return segment_name(self.lineage, self.log, self.base_offset)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what is archived was verified, by this check or a remembered one.

    :param level: at this level or a deeper one.
    :param total_bytes: segment bytes with a receipt.
    :param verified_bytes: of those, the bytes whose last check found nothing wrong.
    :param never_count: segments that were never looked at.
    :param since_ms: time of the oldest check that counts; None when there is none.
    """

    level: VerifyLevel
    total_bytes: int
    verified_bytes: int
    segment_count: int
    never_count: int
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class StoreVerification:
    """What was found of one store.

    :param receipt_count: receipts whose metadata was checked: all of the store, each time.
    :param checked_count: segments that were looked at more closely, as ``level`` says, this time.
    :param checked_bytes: their bytes.
    :param ranges: where every byte of the logs is.
    :param renewed_count: receipts that were added before, of rows that another engine has moved.
    :param credited_count: sealed segments on disk for which receipts of replicas count.
    :param name: what the store is called, by the journal or its last receipt; "": neither knows it.
    """

    store_id: str
    level: VerifyLevel
    receipt_count: int
    checked_count: int
    checked_bytes: int
    coverage: Coverage
    ranges: tuple[RangeStatus, ...]
    findings: tuple[Finding, ...] = ()
    renewed_count: int = 0
    credited_count: int = 0
    name: str = ""

    @property
    def begins(self) -> dict[str, int]:
        """Return from which offset on each log is known."""
        found: dict[str, int] = {}
        for row in self.ranges:
            found[row.log] = min(found.get(row.log, row.start_offset), row.start_offset)
        return found

    @property
    def overall(self) -> Status:
        return worst([*(row.status for row in self.ranges), *(f.status for f in self.findings)])


def segment_name(lineage: int, log: str, base_offset: int) -> str:
    """Return how findings name a segment within its store."""
    return f"{log}/{base_offset:020d} (lineage {lineage})"


def receipt_name(receipt: Receipt) -> str:
    return segment_name(receipt.lineage, receipt.log, receipt.base_offset)
