"""Proving a segment again where another engine has put its rows, and a receipt that says so."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

from pyiceberg.table import Table

from storage_engine.exceptions import ProofError, ReceiptError
from storage_engine.lake.catalog import Lake
from storage_engine.lake.chain import receipt_name
from storage_engine.lake.commit import append_receipts
from storage_engine.lake.durable_io import open_data_file, sha256_of_file
from storage_engine.lake.errors import lake_errors, metadata_errors
from storage_engine.lake.filters import segment_rows
from storage_engine.lake.live_files import live_data_files, read_files
from storage_engine.lake.receipts import broken_receipts, live_fault, receipts_in
from storage_engine.lake.segment_reader import read_segment
from storage_engine.model.receipt import PROOF_VERSION, Receipt, StoredFile, files_text


def reprove(lake: Lake, receipt: Receipt) -> Receipt:
    """Prove a segment by the rows that the table has of it now; the receipt that counts from then on.

    It holds as long as the files in which the rows were found are in the table and as they were.

    :return: the given one when it holds as it is.
    :raises ProofError: the rows are not the segment; nothing was written.
    :raises ReceiptError: another receipt has superseded this one meanwhile.
    :raises LakeUnavailableError: the lake can't be read or written.
    """
    if not broken_receipts(lake, [receipt]):
        return receipt
    table = lake.messages()
    files = _files_with_rows(table, receipt)
    digest = hashlib.sha256()
    # Whatever file the rows lie in: read by the table, they are what every engine sees.
    for _, chunk in read_segment(table, receipt):
        digest.update(chunk)
    if digest.hexdigest() != receipt.sha256:
        raise ProofError(
            f"{receipt_name(receipt)}: expected rows with SHA-256 {receipt.sha256}, found "
            f"{digest.hexdigest()} in {', '.join(file.location for file in files)}. Nothing was written. "
            "Archive the segment again while it is still on the broker's disk, or roll the table back."
        )
    own = (StoredFile(receipt.data_file, receipt.data_file_bytes, receipt.data_file_sha256),)
    proven = replace(
        receipt,
        moved_to=None if files == own else files_text(files),
        proof_version=PROOF_VERSION,
        proven_at_ms=time.time_ns() // 1_000_000,
    )

    def missing(segments: Table) -> list[Receipt]:
        last = _last(segments, receipt)
        if last.files == proven.files:
            return []
        if last.row_hash != receipt.row_hash:
            raise ReceiptError(
                f"{receipt_name(receipt)}: expected the receipt that was proven again to be the last one, "
                f"found one made at {last.proven_at_ms} ms. Nothing was written. Run verify again."
            )
        live = live_data_files(lake.messages(), receipt.store_id, (receipt.base_offset, receipt.base_offset))
        if fault := live_fault(proven, {file.location: file for file in live}):
            raise ProofError(f"{receipt_name(receipt)}: its rows moved while they were proven: {fault}")
        return [proven]

    append_receipts(lake, receipt.store_id, missing)
    return _last(lake.segments(), receipt)


def _last(segments: Table, receipt: Receipt) -> Receipt:
    span = (receipt.base_offset, receipt.base_offset)
    rows = receipts_in(
        segments, receipt.store_id, lineage=receipt.lineage, log=receipt.log, base_offsets=span
    )
    for row in rows:
        if row.identity == receipt.identity:
            return row
    raise ReceiptError(f"{receipt_name(receipt)}: expected in {segments.location()}, found no such row.")


def _files_with_rows(table: Table, receipt: Receipt) -> tuple[StoredFile, ...]:
    """The data files that hold rows of a segment, and the delete files that apply to them."""
    where = segment_rows(receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)
    locations: set[str] = set()
    with metadata_errors(table.location(), "look for rows of a segment"):
        for task in table.scan(row_filter=where).plan_files():
            if read_files(table, where, ("physical_offset",), [task]).num_rows:
                locations |= {task.file.file_path, *(file.file_path for file in task.delete_files)}
    return tuple(_stored(table, location) for location in sorted(locations))


def _stored(table: Table, location: str) -> StoredFile:
    with (
        lake_errors(location, "read a data file"),
        open_data_file(table.io, location) as file,
    ):
        return StoredFile(location, file.size(), sha256_of_file(file))
