"""Choice of the segments to verify next: those that were checked longest ago, within a budget. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from storage_engine.model.proof.receipt import Receipt, SegmentIdentity
from storage_engine.model.report.validation import Check, Coverage, VerifyLevel
from storage_engine.model.store import grouped

History = Mapping[str, Sequence[Check]]
"""Remembered checks by the receipt's ``row_hash``."""


class HasReceiptHash(Protocol):
    """A receipt, or another object with a receipt's hash. The hash finds the receipt's checks."""

    @property
    def row_hash(self) -> str: ...


LevelOf = Callable[[Receipt], VerifyLevel]
"""Returns the deepest level at which a segment can be verified: STORE needs the segment on disk."""


def by_receipt(checks: Iterable[Check]) -> dict[str, list[Check]]:
    return grouped(checks, lambda check: check.receipt_hash)


def last_check(history: History, receipt: HasReceiptHash, level: VerifyLevel) -> Check | None:
    """Return the newest check of a segment at ``level`` or deeper."""
    checks = [check for check in history.get(receipt.row_hash, ()) if check.level.includes(level)]
    return max(checks, key=lambda check: check.at_ms) if len(checks) > 1 else next(iter(checks), None)


def standing_fault(history: History, receipt: HasReceiptHash) -> Check | None:
    """Return the check with a segment's fault, if no later check of at least the same depth passed."""
    for check in history.get(receipt.row_hash, ()):
        if check.fault and last_check(history, receipt, check.level) == check:
            return check
    return None


def choose(
    receipts: Iterable[Receipt],
    urgent: Collection[SegmentIdentity],
    history: History,
    level_of: LevelOf,
    cost_bytes: Callable[[Receipt], int],
    max_bytes: int | None,
) -> list[Receipt]:
    """Return the segments to check now. Segments that were checked longest ago come first.

    At least one segment that is not urgent is always chosen, however small the budget is, so that each
    segment gets its turn.

    :param urgent: segments to check first, within half of the budget, so that a repair shows soon.
    :param cost_bytes: returns the number of bytes that a check of a segment reads.
    :param max_bytes: budget of bytes to read; None means no limit.
    """

    def checked_ms(receipt: Receipt) -> int:
        last = last_check(history, receipt, level_of(receipt))
        return last.at_ms if last else 0

    turns = sorted(receipts, key=lambda r: (checked_ms(r), r.store_id, r.lineage, r.log, r.base_offset))
    if max_bytes is None:
        return turns
    others = [receipt for receipt in turns if receipt.identity not in urgent]
    first = _fitting([r for r in turns if r.identity in urgent], cost_bytes, max_bytes // 2)
    left_bytes = max_bytes - sum(map(cost_bytes, first))
    return first + (_fitting(others, cost_bytes, left_bytes) or others[:1])


def coverage(
    receipts: Sequence[Receipt],
    broken: Collection[SegmentIdentity],
    history: History,
    level: VerifyLevel,
    level_of: LevelOf,
) -> Coverage:
    """Return how many of these segments were verified, at ``level`` or at the deepest level that each allows.

    :param broken: segments whose receipts prove nothing now, even if an earlier check passed.
    """
    last = [(receipt, last_check(history, receipt, level_of(receipt))) for receipt in receipts]
    good = [
        (receipt, check)
        for receipt, check in last
        if check is not None and not check.fault and not (broken and receipt.identity in broken)
    ]
    return Coverage(
        level=level,
        total_bytes=sum(receipt.size_bytes for receipt in receipts),
        verified_bytes=sum(receipt.size_bytes for receipt, _ in good),
        segment_count=len(receipts),
        never_count=sum(check is None for _, check in last),
        since_ms=min((check.at_ms for _, check in good), default=None),
    )


def _fitting(turns: Sequence[Receipt], cost_bytes: Callable[[Receipt], int], max_bytes: int) -> list[Receipt]:
    """Return receipts from the front up to the first one that doesn't fit into the budget."""
    chosen = []
    for receipt in turns:
        max_bytes -= cost_bytes(receipt)
        if max_bytes < 0:
            break
        chosen.append(receipt)
    return chosen
