"""Which offsets of a store a lake has, by its receipts: a few columns of them, since there may be 100,000."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.expressions import And, GreaterThanOrEqual

from storage_engine.lake.acts.act_files import read_expiries
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.coverage.verify_turns import History, standing_fault
from storage_engine.lake.file.filters import all_equal
from storage_engine.lake.file.scan import plan_files, read_files
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.model.proof.receipt import act_sha256, end_text

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
        files = plan_files(table, where, store_id=store_id, since=first_sequence)
        found = read_files(table, where, columns, files).select(columns).to_pydict()
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
