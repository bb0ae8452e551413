"""The receipts that count for a store now: those of each log's lineage."""

from __future__ import annotations

from storage_engine.journal.records import StoreRecord
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.proof.receipt import Receipt


def current_receipts(
    lake: Lake,
    record: StoreRecord,
    *,
    log: str | None = None,
    base_offsets: tuple[int, int] | None = None,
    with_ended: bool = False,
) -> tuple[Receipt, ...]:
    """Return a store's receipts of its logs' lineages that prove segments, one each, by log and offset.

    :param log: only of this one.
    :param base_offsets: only from the first to the second, both included.
    :param with_ended: those too of segments that expired, or of which the lake has a part alone.
    :raises LakeUnavailableError: the table can't be read.
    """
    only = None if log is None and record.log_lineages else record.lineage_of(log or "")
    found = receipts(
        lake, record.store_id, lineage=only, log=log, base_offsets=base_offsets, with_ended=with_ended
    )
    return tuple(row for row in found if row.lineage == record.lineage_of(row.log))
