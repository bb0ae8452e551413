"""Results of a check of store and lake: one row for each range of the log, one row for each expectation.

A range has the place of its bytes. A check has one rule's result, and examples of rows that break the rule.
These results come from :mod:`storage_engine.lake.coverage.coverage` and :mod:`storage_engine.quality`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.model.proof.receipt import Receipt


class Status(StrEnum):
    """Verdict on a range, a check, or a whole validation. The worst verdict counts for the whole."""

    OK = "OK"
    WARNING = "WARNING"
    """A person decided on the loss or fault, a finding proves no loss, or something could not be checked."""
    FAILURE = "FAILURE"


_SEVERITY = {Status.OK: 0, Status.WARNING: 1, Status.FAILURE: 2}


def worst(statuses: Iterable[Status]) -> Status:
    """Return the most severe of the given verdicts. OK if there are none."""
    return max(statuses, key=_SEVERITY.__getitem__, default=Status.OK)


class Where(StrEnum):
    """The place of a range's bytes."""

    LOCAL = "LOCAL"
    """Only on the broker's disk, and not planned for deletion."""
    ARCHIVED = "ARCHIVED"
    """Only in the lake, with a valid receipt."""
    BOTH = "BOTH"
    """On disk and in the lake."""
    PENDING = "PENDING"
    """On disk, planned for deletion, and not in the lake yet."""
    EXPIRED = "EXPIRED"
    """Taken out of the lake by a keep rule. Only the receipt remains."""
    NOT_ARCHIVED = "NOT ARCHIVED"
    """Deleted without a copy, as an archive rule permits."""
    SHIELDED = "SHIELDED"
    """Gone from the log and not in the lake yet. A second name (hard link) still keeps the bytes."""
    LOST = "LOST"
    """Neither on disk nor provably in the lake."""
    UNKNOWN = "UNKNOWN"
    """In no lake. It is unknown whether the broker has the bytes, or whether their deletion was permitted."""


@dataclass(frozen=True, slots=True)
class RangeStatus:
    """Offsets [start_offset, end_offset) of a log that share one place and one verdict.

    :param segments: the segments of the range: file names on disk, or 20-digit base offsets in the lake.
    :param detail: a sentence with the reason for this place, and with the fault if ``status`` is not OK.
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
    :param checked_count: number of checked rows; 0 if there was nothing to check.
    :param unexpected_count: number of rows that break the rule.
    :param examples: sentences on the first few rows that break the rule, each with file and offset.
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

    :param scope: ``"boundaries"`` (what changed at this run) ``"full"`` (every frame and queue) or ``"rows"``
        (the rows of archived segments).
    :param store_id: the store's id; None if it has no identity yet (no journal, no lake).
    :param run_key: key of the run that asked for the validation; None if no run did.
    :param notes: things that were not checked, with the reason, and persons' decisions.
    :param name: the store's name; "" if recorded by an older release.
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
        """Return plain values for JSON. The overall verdict comes first."""
        return {"overall": self.overall.value, **to_jsonable(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ValidationResult:
        """Return the result from the values of :meth:`to_dict`.

        :raises BadInputError: a key is unknown, missing or has a value of the wrong type; the error names it.
        """
        return from_jsonable(cls, {k: v for k, v in data.items() if k != "overall"}, "validation result")


class VerifyLevel(StrEnum):
    """Depth of a verification; each level includes those before it."""

    RECEIPTS = "receipts"
    """Metadata only: receipts, their chain, and the table's metadata of each data file."""
    FILES = "files"
    """Also every data file's SHA-256, and the table's statistics compared with the file's own."""
    BYTES = "bytes"
    """Also the segment is made again from its rows and its SHA-256 is compared, even if another engine has
    moved the rows into other files.
    """
    STORE = "store"
    """Also segments that are still on the broker's disk are compared with the lake, byte for byte."""

    def includes(self, other: VerifyLevel) -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS = {level: rank for rank, level in enumerate(VerifyLevel)}


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that a verification found.

    :param status: FAILURE, or WARNING for a finding that proves no loss.
    :param subject: the segment (lineage, log, base offset), file or table that it is about.
    :param detail: the expected and the found state.
    """

    status: Status
    subject: str
    detail: str
    advice: str


@dataclass(frozen=True, slots=True)
class Check:
    """The check of one receipt, at one level and one time. Checks are remembered, so that later verifications
    continue with other receipts.

    :param receipt_hash: ``row_hash`` of the receipt. The check counts only for this row.
    :param at_ms: time of the check, in milliseconds since the epoch.
    :param fault: the found fault; "" if there is none.
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
        place = (receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)
        return cls(*place, receipt.row_hash, level, at_ms, fault)

    @property
    def segment(self) -> str:
        return segment_name(self.lineage, self.log, self.base_offset)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The part of all archived segments that this verification or a remembered one has checked.

    :param level: checks at this level or a deeper one count.
    :param total_bytes: bytes of all segments with a receipt.
    :param verified_bytes: bytes of the segments whose last check found no fault.
    :param since_ms: time of the oldest counted check; None if there is none.
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

    :param receipt_count: number of receipts whose metadata was checked: always all receipts of the store.
    :param checked_count: number of segments that this verification checked more closely, as ``level`` says.
    :param ranges: the place of every byte of the logs.
    :param renewed_count: number of receipts that were renewed before the checks, because another engine had
        moved their rows.
    :param credited_count: number of sealed segments on disk that receipts of replicas prove.
    :param name: the store's name, from the journal or its last receipt; "" if neither knows it.
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
        """Return the first known offset of each log."""
        starts: dict[str, int] = {}
        for row in self.ranges:
            starts[row.log] = min(starts.get(row.log, row.start_offset), row.start_offset)
        return starts

    @property
    def overall(self) -> Status:
        return worst([*(row.status for row in self.ranges), *(f.status for f in self.findings)])


def segment_name(lineage: int, log: str, base_offset: int) -> str:
    """Return a segment's name within its store, for findings."""
    return f"{log}/{base_offset:020d} (lineage {lineage})"


def receipt_name(receipt: Receipt) -> str:
    return segment_name(receipt.lineage, receipt.log, receipt.base_offset)
