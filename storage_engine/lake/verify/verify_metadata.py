"""What a lake's metadata says of each store: receipts, their chain, the table's entries.

Of a data file no more than its size is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.table import Table

from storage_engine.commands import Text
from storage_engine.exceptions import LakeUnavailableError, ReceiptError
from storage_engine.lake.acts.act_files import read_acts, read_expiries
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.names import data_file_of
from storage_engine.lake.file.filters import all_equal
from storage_engine.lake.file.table_entries import TableEntry, check_entries, list_entries, unreceipted_files
from storage_engine.lake.soundness.chain import check_chain, row_faults
from storage_engine.lake.soundness.receipts import by_store, current, read_receipts, receipts_in
from storage_engine.lake.soundness.soundness import Look
from storage_engine.lake.soundness.soundness_reader import Reader
from storage_engine.lake.storage.file_memory import forget_files
from storage_engine.lake.verify.verify_segment import unsound
from storage_engine.model.proof.receipt import ChainHead, Receipt, SegmentIdentity, ended, with_rows
from storage_engine.model.report.validation import Status
from storage_engine.model.report.verification import Check, Finding

_COMMIT_SECONDS = 10.0
"""How long an archiver may take between its two commits before its data files count as unreceipted."""


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """What the metadata says of one store.

    :param receipts: of segments that the lake has whole, or some streams of.
    :param ended: of those that expired: nothing is looked at but their chain.
    :param expiries: by which policy and since when, by the act's SHA-256.
    :param looks: at receipts that aren't sound, as far as metadata and sizes tell.
    :param broken: receipts that prove nothing as they are, and why.
    :param reader: looks closer.
    :param chained: the chain of receipts is whole.
    """

    store_id: str
    receipts: tuple[Receipt, ...]
    ended: tuple[Receipt, ...]
    expiries: Mapping[str, str]
    looks: Mapping[SegmentIdentity, Look]
    broken: Mapping[SegmentIdentity, str]
    reader: Reader
    chained: bool
    findings: tuple[Finding, ...]


def read_state(
    lake: Lake,
    store_id: str | None,
    remembered: Sequence[Check],
    known: Callable[[str], Collection[ChainHead]],
    *,
    statistics: bool = True,
) -> tuple[StoreMetadata, ...]:
    """Read and check the metadata of one store, or of every store that either table has.

    :param statistics: every statistic of a data file is compared after this.
    :param remembered: earlier checks of this lake, read before this is called.
    :param known: says by store which receipts the lake is known to have had.
    :raises LakeUnavailableError: the lake can't be read.
    """
    # What this process read of metadata before says nothing of the files as they are now.
    clear_manifest_cache()
    forget_files()
    segments = lake.segments()
    where = AlwaysTrue() if store_id is None else all_equal({"store_id": store_id})
    rows = by_store(read_receipts(segments, where))
    # After the receipts: whatever these name is in the table by now.
    table = lake.messages()
    entries = list_entries(table, store_id, statistics=statistics)
    acts = tuple(_faults_of_acts(lake))
    before = {check.store_id for check in remembered} if store_id is None else set()
    states = (
        _state(lake, table, name, rows.get(name, ()), entries.get(name, []), remembered, known(name))
        for name in sorted({*rows, *entries, *before} if store_id is None else {store_id})
    )
    return tuple(replace(state, findings=(*acts, *state.findings)) for state in states)


def _faults_of_acts(lake: Lake) -> Iterator[Finding]:
    """Yield what is wrong with the lake's acts, which hold for each of its stores."""
    try:
        read_acts(lake)
    except LakeUnavailableError as error:
        what, _, advice = Text(error).partition(". ")
        yield Finding(Status.FAILURE, "acts", what, advice)


def _state(
    lake: Lake,
    table: Table,
    store_id: str,
    every: Sequence[Receipt],
    entries: Sequence[TableEntry],
    remembered: Sequence[Check],
    known: Collection[ChainHead],
) -> StoreMetadata:
    every_row = current(every)
    findings, rows = [], with_rows(every_row)
    chained, faults = True, row_faults(every)
    try:
        check_chain(every, known, faults)
    except ReceiptError as error:
        chained = False
        findings.append(_chain(error))
    findings += _vanished(every, [check for check in remembered if check.store_id == store_id])
    reader = Reader(table, (entry.live for entry in entries))
    looks = reader.faulty(rows, faults)
    findings += (unsound(fault) for look in looks.values() for fault in look.faults if not fault.kind.loses)
    since = _receipted_since(lake, table, store_id, every_row, entries)
    findings += check_entries(table, every_row, entries, since)
    return StoreMetadata(
        store_id=store_id,
        receipts=rows,
        ended=tuple(row for row in every_row if not row.has_rows),
        expiries=read_expiries(lake, (row.act_sha256 for row in ended(every_row))),
        looks=looks,
        broken={identity: str(look.losses[0]) for identity, look in looks.items() if look.losses},
        reader=reader,
        chained=chained,
        findings=tuple(findings),
    )


def _receipted_since(
    lake: Lake, table: Table, store_id: str, rows: Sequence[Receipt], entries: Sequence[TableEntry]
) -> frozenset[str]:
    """Data files that an archiver at work has committed, and whose receipts came only after ``rows``."""
    waiting = unreceipted_files(table, rows, entries)
    found: frozenset[str] = frozenset()
    until = time.monotonic() + _COMMIT_SECONDS
    while waiting - found:
        every_row = receipts_in(lake.segments(), store_id, with_ended=True)
        found = frozenset(data_file_of(table, row) for row in every_row)
        if time.monotonic() > until:
            break
        if waiting - found:
            time.sleep(0.5)
    return found - {data_file_of(table, row) for row in rows}


def _chain(error: ReceiptError) -> Finding:
    return Finding(
        Status.FAILURE,
        "receipts",
        Text(error),
        "No segment of this store is deleted on the strength of a receipt until the chain is whole: roll the "
        "table segments back to the snapshot before the change.",
    )


def _vanished(rows: Sequence[Receipt], remembered: Sequence[Check]) -> Iterator[Finding]:
    """Receipts that were seen before and are not there any more: the chain can't tell of its own end."""
    there = {row.row_hash for row in rows}
    slots = {(row.lineage, row.log, row.base_offset) for row in rows}
    gone = {check.receipt_hash: check for check in remembered if check.receipt_hash not in there}
    for check in gone.values():
        changed = (check.lineage, check.log, check.base_offset) in slots
        yield Finding(
            Status.FAILURE,
            check.segment,
            f"expected its receipt {check.receipt_hash[:16]}… as verified before, found "
            f"{'another one in its place' if changed else 'none'}",
            "Receipts are never changed or removed by storage-engine. Roll the table segments back to the "
            "snapshot that has it, and find out who wrote to it.",
        )
