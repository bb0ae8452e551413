"""Which offsets of a store a lake has, by its receipts: a few columns of them, since there may be 100,000."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyiceberg.expressions import And, GreaterThanOrEqual

from storage_engine.lake.acts.act_files import read_expiries
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.file.filters import all_equal
from storage_engine.lake.file.scan import read_rows
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity, act_sha256, end_text
from storage_engine.model.report.verification import Check, Coverage, VerifyLevel

_COLUMNS = ("sequence", "log", "lineage", "base_offset", "size_bytes", "row_hash")


@dataclass(frozen=True, slots=True, order=True)
class ReceiptSpan:
    """What one receipt says of where its segment lies, and its place in the chain of receipts.

    :param log_id: which log it is of; "": it isn't known.
    :param ended: what became of a segment that expired; "": the lake has it whole.
    """

    sequence: int
    log: str
    lineage: int
    start_offset: int
    end_offset: int
    size_bytes: int
    row_hash: str
    log_id: str = ""
    ended: str = ""


@dataclass(frozen=True, slots=True, order=True)
class ArchivedSpan:
    """One segment that a lake has a receipt of, or several that follow each other.

    :param fault: what verifying found wrong with it last; "" where it found nothing, or never looked.
    :param log_id: which log it is of; "": it isn't known.
    :param ended: what became of it where it expired; "": the lake has it whole.
    """

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    size_bytes: int
    fault: str = ""
    segments: int = 1
    log_id: str = ""
    ended: str = ""


def receipt_spans(lake: Lake, store_id: str, first_sequence: int) -> tuple[ReceiptSpan, ...]:
    """Return the receipts of a store that a lake has, of all lineages, in their order.

    Files that have none of them are not read.

    :param first_sequence: only from this one on.
    :raises LakeUnavailableError: the table can't be read.
    """
    table = lake.segments()
    with metadata_errors(table.location(), "read receipts"):
        # A table that an older version made may lack it.
        later_columns = ("end_offset", "log_id", "state", "act")
        columns = [*_COLUMNS, *(name for name in later_columns if name in table.schema().column_names)]
        later = GreaterThanOrEqual("sequence", first_sequence)  # type: ignore[call-arg,arg-type]
        where = And(all_equal({"store_id": store_id}), later)
        found = read_rows(table, where, columns).select(columns).to_pydict()
    empty = [None] * len(found["log"])
    ends, log_ids, states, acts = (found.get(name) or empty for name in later_columns)
    expiries = read_expiries(lake, map(act_sha256, filter(None, acts)))
    rows = zip(*(found[name] for name in _COLUMNS), ends, log_ids, states, acts, strict=True)
    return tuple(
        sorted(
            ReceiptSpan(
                sequence,
                log,
                lineage,
                base,
                base + size if end is None else end,
                size,
                row_hash,
                log_id or "",
                end_text(state, act, expiries),
            )
            for sequence, log, lineage, base, size, row_hash, end, log_id, state, act in rows
        )
    )


def archived_spans(rows: Iterable[ReceiptSpan], history: History) -> tuple[ArchivedSpan, ...]:
    """Return the segments that receipts are of, by log, lineage and offset.

    :param history: what verifying remembers of receipts that it found at fault.
    """
    spans: dict[tuple[str, int, int], ArchivedSpan] = {}
    for row in sorted(rows):
        check = standing_fault(history, row) if row.row_hash in history else None
        fault = "" if check is None else check.fault
        slot = (row.log, row.lineage, row.start_offset)
        one = ArchivedSpan(*slot, row.end_offset, row.size_bytes, fault, log_id=row.log_id, ended=row.ended)
        # A segment that was proven again has several rows: one that is sound is enough, unless it expired.
        other = spans.setdefault(slot, one)
        if bool(other.ended) != bool(row.ended) or (other.fault and not fault):
            spans[slot] = one
    return tuple(sorted(spans.values()))


History = Mapping[str, Sequence[Check]]
"""Remembered checks by the receipt's ``row_hash``."""


class HasReceiptHash(Protocol):
    """A receipt, or as much of it as its checks are found by."""

    @property
    def row_hash(self) -> str: ...


LevelOf = Callable[[Receipt], VerifyLevel]
"""The level that can be reached for a segment: STORE needs it to be on disk still."""


def by_receipt(checks: Iterable[Check]) -> dict[str, list[Check]]:
    history: dict[str, list[Check]] = {}
    for check in checks:
        history.setdefault(check.receipt_hash, []).append(check)
    return history


def last_check(history: History, receipt: HasReceiptHash, level: VerifyLevel) -> Check | None:
    """The newest look at a segment at ``level`` or deeper."""
    checks = [check for check in history.get(receipt.row_hash, ()) if check.level.includes(level)]
    return max(checks, key=lambda check: check.at_ms) if len(checks) > 1 else next(iter(checks), None)


def standing_fault(history: History, receipt: HasReceiptHash) -> Check | None:
    """Return what was found wrong with a segment and not found right since, by a look at least as close."""
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
    :param cost_bytes: what looking at a segment reads.
    :param max_bytes: budget of what is read; None: everything.
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
    """As many from the front as fit; a later one never overtakes one that doesn't."""
    chosen = []
    for receipt in turns:
        max_bytes -= cost_bytes(receipt)
        if max_bytes < 0:
            break
        chosen.append(receipt)
    return chosen
