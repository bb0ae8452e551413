"""New receipts for segments whose rows another engine has moved. The moved rows are proven again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

from pyiceberg.table import Table

from storage_engine.core.clock import clock_ms
from storage_engine.lake.archive.commit import append_receipts
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of, relative_name
from storage_engine.lake.durable_io import open_data_file, sha256_of_file
from storage_engine.lake.file.scan import live_data_files, offsets_of, read_files, segment_rows
from storage_engine.lake.soundness.chain import check_links
from storage_engine.lake.soundness.receipts import receipts_in
from storage_engine.lake.soundness.segment_reader import partial_fault, rows_fault
from storage_engine.lake.soundness.soundness_reader import Reader, moved_receipts
from storage_engine.lake.storage.errors import lake_errors, metadata_errors
from storage_engine.model.proof.receipt import Receipt, StoredFile, files_text, proof_version_of

_THREADS = 2

_TOGETHER = 64
"""Number of receipts that are committed at a time. After a kill, at most these are proven again."""


def reprove(
    lake: Lake, store_id: str, rows: Sequence[Receipt], advance: Callable[[int], None] = lambda _: None
) -> tuple[Receipt, ...]:
    """Prove segments again from their present rows in the table, if these rows are no longer in the proven
    files.

    A new receipt is valid as long as the table has the files of these rows unchanged.

    :param rows: one store's receipts that count.
    :param advance: called with the number of segment bytes that were read since the last call.
    :return: the new receipts. A segment gets no receipt if another process has proven it meanwhile, or if its
        rows no longer prove it. ``verify`` reports such rows.
    :raises ReceiptError: the store's chain of receipts is broken; no receipt was added.
    :raises LakeUnavailableError: the lake can't be read or written.
    """
    moved = moved_receipts(lake, rows)
    if moved:
        check_links(lake.segments(), store_id, whole=True)
    renewed: list[Receipt] = []
    for start in range(0, len(moved), _TOGETHER):
        proven = _prove_all(lake.messages(), moved[start : start + _TOGETHER], advance)
        renewed += _commit(lake, store_id, proven)
    return tuple(renewed)


def _prove_all(table: Table, rows: Sequence[Receipt], advance: Callable[[int], None]) -> dict[str, Receipt]:
    # Cached, because a file that another engine wrote may have the rows of many segments.
    @cache
    def stored(location: str) -> StoredFile:
        with lake_errors(location, "read a data file"), open_data_file(table.io, location) as file:
            return StoredFile(location, file.size(), sha256_of_file(file))

    def prove(row: Receipt) -> Receipt | None:
        proven = _prove(table, row, stored)
        advance(row.size_bytes)
        return proven

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="reprove") as pool:
        return {row.row_hash: new for row, new in zip(rows, pool.map(prove, rows), strict=True) if new}


def _prove(table: Table, receipt: Receipt, stored: Callable[[str], StoredFile]) -> Receipt | None:
    try:
        files = tuple(stored(location) for location in _files_with_rows(table, receipt))
        # Rewritten rows get no new root. If they don't give the old root, they prove nothing.
        if receipt.is_whole:
            fault = rows_fault(table, receipt, table.location())
        else:
            fault = partial_fault(table, receipt, from_table=True)
    except Exception:
        # PyArrow and PyIceberg may raise any error for files of another engine. Then nothing is proven.
        return None
    if fault:
        return None
    location = data_file_of(table, receipt)
    stored_files = (StoredFile(location, receipt.data_file_bytes, receipt.data_file_sha256),)
    named = (replace(file, location=relative_name(table, file.location)) for file in files)
    return replace(
        receipt,
        data_file=relative_name(table, location),
        moved_to=None if files == stored_files else files_text(named),
        proof_version=proof_version_of(receipt.root),
        proven_at_ms=clock_ms(),
    )


def _commit(lake: Lake, store_id: str, proven: dict[str, Receipt]) -> list[Receipt]:
    """Commit new receipts, and return those that the table has now.

    :param proven: new receipts, by the hash of the receipt that each of them supersedes.
    """
    if not proven:
        return []
    span = offsets_of(proven.values())

    def missing(segments: Table) -> list[Receipt]:
        # Leaves out receipts that were superseded meanwhile, by others or by our own commit.
        rows = receipts_in(segments, store_id, base_offsets=span, with_ended=True)
        last = {row.row_hash for row in rows}
        messages = lake.messages()
        reader = Reader(messages, live_data_files(messages, store_id, span))
        return [row for old_hash, row in proven.items() if old_hash in last and not reader.is_displaced(row)]

    append_receipts(lake, store_id, missing)
    made = {(row.identity, row.proven_at_ms) for row in proven.values()}
    rows = receipts_in(lake.segments(), store_id, base_offsets=span, with_ended=True)
    return [row for row in rows if (row.identity, row.proven_at_ms) in made]


def _files_with_rows(table: Table, receipt: Receipt) -> list[str]:
    """Return the locations of data files with rows of a segment, and of delete files that apply to them."""
    where = segment_rows(receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)
    locations: set[str] = set()
    with metadata_errors(table.location(), "look for rows of a segment"):
        for task in table.scan(row_filter=where).plan_files():
            if read_files(table, where, ("physical_offset",), [task]).num_rows:
                locations |= {task.file.file_path, *(file.file_path for file in task.delete_files)}
    return sorted(locations)
