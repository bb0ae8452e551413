"""Whose turn it is to be verified: what was looked at longest ago comes first, as far as a budget goes.

Pure; what was looked at when is remembered elsewhere (:class:`Check`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from storage_engine.model.proof.receipt import Receipt, SegmentIdentity
from storage_engine.model.report.validation import Check, Coverage, VerifyLevel
from storage_engine.model.store import grouped

History = Mapping[str, Sequence[Check]]
"""Remembered checks by the receipt's ``row_hash``."""


class HasReceiptHash(Protocol):
    """A receipt, or as much of it as its checks are found by."""

    @property
    def row_hash(self) -> str: ...


LevelOf = Callable[[Receipt], VerifyLevel]
"""The level that can be reached for a segment: STORE needs it to be on disk still."""


def by_receipt(checks: Iterable[Check]) -> dict[str, list[Check]]:
    return grouped(checks, lambda check: check.receipt_hash)


def last_check(history: History, receipt: HasReceiptHash, level: VerifyLevel) -> Check | None:
    """The newest look at a segment at ``level`` or deeper."""
    checks = [check for check in history.get(receipt.row_hash, ()) if check.level.includes(level)]
    return max(checks, key=lambda check: check.at_ms) if len(checks) > 1 else next(iter(checks), None)


def standing_fault(history: History, receipt: HasReceiptHash) -> Check | None:
    """Return the fault of a segment that no later look of at least the same depth found mended."""
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
    """The segments to look at now, longest unseen first.

    At least one that is not urgent is always chosen, however small the budget: the walk goes on.

    :param urgent: looked at before the others, on up to half of the budget, so that a repair shows soon.
    :param cost_bytes: the bytes read by a look at a segment.
    :param max_bytes: budget of bytes to read; None: all.
    """

    def seen_ms(receipt: Receipt) -> int:
        last = last_check(history, receipt, level_of(receipt))
        return last.at_ms if last else 0

    turns = sorted(receipts, key=lambda r: (seen_ms(r), r.store_id, r.lineage, r.log, r.base_offset))
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
    """Return how much of these was verified at ``level``, or as close to it as each segment allows.

    :param broken: known to prove nothing now, whatever an earlier check found.
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
    """Return as many items from the front as fit; a later one never overtakes one that doesn't fit."""
    chosen = []
    for receipt in turns:
        max_bytes -= cost_bytes(receipt)
        if max_bytes < 0:
            break
        chosen.append(receipt)
    return chosen
