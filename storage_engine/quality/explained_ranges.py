"""What a broker's own files say of ranges: a log may be another one than the archived one, or was cleaned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import StoreRecord
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.report.validation import RangeStatus, Status, Where
from storage_engine.model.store.by_log import by_log
from storage_engine.model.store.known_logs import is_unique
from storage_engine.retention.store.broker_answers import ask, take_snapshot
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.managed_store import ManagedStore

_ON_DISK = (Where.LOCAL, Where.BOTH, Where.PENDING)


def explained(
    ranges: Sequence[RangeStatus], others: Mapping[str, str], cleaned_to: Mapping[str, int]
) -> tuple[RangeStatus, ...]:
    """Return ranges with what their broker's files say of them.

    :param others: of :func:`other_logs`.
    :param cleaned_to: by log, below which offset a cleaner has been: it may have left nothing of a segment.
    """

    told: set[str] = set()

    def seen(one: RangeStatus) -> RangeStatus:
        if one.where in _ON_DISK and one.log in others:
            detail = "another log than the archived one is on disk"
            if one.log not in told:
                told.add(one.log)
                detail += (
                    f": {others[one.log]}. Find out what became of it; then storage-engine adopt STORE --log "
                    f"{one.log} --reason WHY opens a new lineage of it"
                )
            return replace(one, status=Status.FAILURE, detail=detail)
        end = cleaned_to.get(one.log, 0)
        if one.where is Where.LOST and one.status is Status.FAILURE and one.end_offset <= end:
            cleaned = f"the broker's cleaner has been up to offset {end}, and may have taken all of it"
            return replace(one, status=Status.WARNING, detail=f"{one.detail}; {cleaned}")
        return one

    return tuple(map(seen, ranges))


def other_logs(
    store: ManagedStore, record: StoreRecord | None, receipts: Sequence[Receipt]
) -> dict[str, str]:
    """Return what shows that logs on disk aren't those of their receipts, by name.

    Only of logs with an identity of their own, by the store's files alone.

    :param record: None: no journal knows the store, and the newest lineages count.
    """
    if not any(is_unique(row.log_id or "") for row in receipts):
        return {}
    newest: dict[str, int] = {}
    for row in receipts:
        newest[row.log] = max(row.lineage, newest.get(row.log, 0))
    if record is not None:
        newest = {log: record.lineage_of(log) for log in newest}
    rows = by_log(row for row in receipts if row.lineage == newest[row.log])
    doing = "tell whether a log is the archived one"
    found: dict[str, str] = {}
    with closing(open_store(replace(store, live=None))) as broker:
        there = {log.name for log in take_snapshot(broker, clock_ms(), store.broker).logs}
        for log in sorted(there & rows.keys()):
            try:
                found[log] = ask(store.broker, doing, partial(broker.contradiction, log, rows[log]))
            except StorageEngineError as error:
                found[log] = f"nothing tells whether it is the archived one: {reason_of(error)}"
    return {log: why for log, why in found.items() if why}
