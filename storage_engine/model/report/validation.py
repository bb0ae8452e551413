"""Results of a check of store and lake: one row for each range of the log, one row for each expectation.

A range says where its bytes are; a check says whether one rule held, and if not, on what. Nothing here
decides anything: :mod:`storage_engine.lake.coverage.coverage` and :mod:`storage_engine.quality` fill these
in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.model.proof.receipt import Receipt


class Status(StrEnum):
    """Verdict on a range, a check, or everything; the worst one wins."""

    OK = "OK"
    WARNING = "WARNING"
    """Nothing is lost or wrong that a person did not decide, or it could not be checked."""
    FAILURE = "FAILURE"


_SEVERITY = {Status.OK: 0, Status.WARNING: 1, Status.FAILURE: 2}


def worst(statuses: Iterable[Status]) -> Status:
    """The most severe of the given verdicts; OK when there are none."""
    return max(statuses, key=_SEVERITY.__getitem__, default=Status.OK)


class Where(StrEnum):
    """The place of a range's bytes."""

    LOCAL = "LOCAL"
    """Only on the broker's disk; nobody asked for them to go."""
    ARCHIVED = "ARCHIVED"
    """Only in the lake, with a valid receipt."""
    BOTH = "BOTH"
    """On disk and in the lake."""
    PENDING = "PENDING"
    """On disk, planned for deletion, and not in the lake yet."""
    EXPIRED = "EXPIRED"
    """A keep rule took it out of the lake; only its receipt is left."""
    NOT_ARCHIVED = "NOT ARCHIVED"
    """An archive rule let it go without a copy."""
    SHIELDED = "SHIELDED"
    """Gone from the log and not in the lake yet; a second name keeps the bytes."""
    LOST = "LOST"
    """Neither on disk nor provably in the lake."""
    UNKNOWN = "UNKNOWN"
    """In no lake, and it is unknown whether the broker still has it, or deleted it rightly."""


@dataclass(frozen=True, slots=True)
class RangeStatus:
    """The offsets [start_offset, end_offset) of a log share one place and one verdict.

    :param segments: file names on disk, or 20-digit base offsets in the lake, that the range consists of.
    :param detail: a sentence: why this place, and the fault where ``status`` is not OK.
    """

    log: str
    start_offset: int
    end_offset: int
    where: Where
    status: Status
    segments: tuple[str, ...]
    detail: str

    @property
    def offset_count(self) -> int:
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one expectation.

    :param suite: suite that the expectation belongs to ("store", "lake", "across").
    :param expectation: class name, such as ``ExpectSegmentsToBeBackToBack``.
    :param description: the rule as a sentence.
    :param checked_count: number of rows that were looked at; 0 means there was nothing to check.
    :param unexpected_count: number of those that break the rule.
    :param examples: the first few of them, each a sentence naming file and offset.
    """

    suite: str
    expectation: str
    description: str
    status: Status
    checked_count: int
    unexpected_count: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """One validation of one store.

    :param scope: ``"boundaries"`` (what changed at this run) ``"full"`` (every frame and queue)
        or ``"rows"`` (the rows of archived segments).
    :param store_id: None when the store has no identity yet (no journal, no lake).
    :param run_key: None when no run asked for it.
    :param notes: things not checked, and why; persons' decisions.
    :param name: the store's name; "": recorded by an older release.
    """

    store_root: str
    store_id: str | None
    run_key: str | None
    scope: str
    checked_at_ms: int
    duration_ms: int
    ranges: tuple[RangeStatus, ...]
    checks: tuple[CheckResult, ...]
    notes: tuple[str, ...] = ()
    name: str = ""

    @property
    def overall(self) -> Status:
        return worst([*(r.status for r in self.ranges), *(c.status for c in self.checks)])

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(c for c in self.checks if c.status is Status.FAILURE)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the verdict over all comes first."""
        return {"overall": self.overall.value, **to_jsonable(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ValidationResult:
        """Inverse of :meth:`to_dict`.

        :raises BadInputError: an unknown, missing or ill-typed key; names it.
        """
        return from_jsonable(cls, {k: v for k, v in data.items() if k != "overall"}, "validation result")


class VerifyLevel(StrEnum):
    """Depth of a verification; each level includes those before it."""

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

    :param status: FAILURE, or WARNING for a finding that proves no loss.
    :param subject: the segment (lineage, log, base offset), file or table that it is about.
    :param detail: the expected and the found state.
    :param advice: the remedy.
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
    :param fault: the fault; "" when there is none.
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
    """The part of all archived segments that was verified, by this check or a remembered one.

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
    """Findings about one store.

    :param receipt_count: receipts whose metadata was checked: all of the store, each time.
    :param checked_count: segments that were looked at more closely, as ``level`` says, this time.
    :param checked_bytes: their bytes.
    :param ranges: where every byte of the logs is.
    :param renewed_count: receipts that were added before, of rows that another engine has moved.
    :param credited_count: sealed segments on disk for which receipts of replicas count.
    :param name: the store's name, by the journal or its last receipt; "": neither knows it.
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
