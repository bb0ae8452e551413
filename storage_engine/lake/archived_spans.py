"""Which offsets of a store a lake has, by its receipts: a few columns of them, since there may be 100,000."""

from __future__ import annotations

from dataclasses import dataclass

from storage_engine.lake.catalog import Lake
from storage_engine.lake.errors import metadata_errors
from storage_engine.lake.filters import all_equal
from storage_engine.lake.scan import read_rows
from storage_engine.lake.verify_turns import History, standing_fault


@dataclass(frozen=True, slots=True, order=True)
class ArchivedSpan:
    """One segment that a lake has a receipt of.

    :param fault: what verifying found wrong with it last; "" where it found nothing, or never looked.
    """

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    size_bytes: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Hash:
    row_hash: str


def archived_spans(lake: Lake, store_id: str, history: History) -> tuple[ArchivedSpan, ...]:
    """Return the segments of a store that a lake has, of all lineages, by log, lineage and offset.

    :param history: what verifying remembers of its receipts.
    :raises LakeUnavailableError: the table can't be read.
    """
    table = lake.segments()
    with metadata_errors(table.location(), "read receipts"):
        columns = ["log", "lineage", "base_offset", "size_bytes", "row_hash"]
        # A table that an older version made may lack it.
        columns += [name for name in ("end_offset",) if name in table.schema().column_names]
        found = read_rows(table, all_equal({"store_id": store_id}), columns).select(columns).to_pydict()
    ends = found.get("end_offset") or [None] * len(found["log"])
    rows = zip(
        found["log"],
        found["lineage"],
        found["base_offset"],
        found["size_bytes"],
        ends,
        found["row_hash"],
        strict=True,
    )
    spans: dict[tuple[str, int, int], ArchivedSpan] = {}
    for log, lineage, base, size, end, row_hash in rows:
        check = standing_fault(history, _Hash(row_hash)) if row_hash in history else None
        fault = "" if check is None else check.fault
        one = ArchivedSpan(log, lineage, base, base + size if end is None else end, size, fault)
        # A segment that was proven again has several rows: one that is sound is enough.
        other = spans.setdefault((log, lineage, base), one)
        if other.fault and not fault:
            spans[log, lineage, base] = one
    return tuple(sorted(spans.values()))
