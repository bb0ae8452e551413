"""Search for live files that provably have a segment or a receipt.

A live data file counts only if its SHA-256 is the proven one when it is read back.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import FileScanTask, Table

from storage_engine.brokers import find_broker
from storage_engine.commands import Text
from storage_engine.exceptions import ReceiptError
from storage_engine.lake.catalog.placed_table import proven_files
from storage_engine.lake.durable_io import open_data_file, sha256_of_file
from storage_engine.lake.file.data_file import encode_rows
from storage_engine.lake.file.jobs import slot_prefix
from storage_engine.lake.file.scan import live_data_files, read_files, read_rows, segment_rows
from storage_engine.lake.gc.garbage_rule import Held
from storage_engine.lake.soundness.chain import check_links, hash_of
from storage_engine.lake.soundness.receipts import read_receipts, receipts_in
from storage_engine.lake.soundness.segment_reader import origin_of, read_segment
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import Reader
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.lake.storage.small_files import file_system_of
from storage_engine.model.proof.receipt import Receipt, StoredFile
from storage_engine.model.store import grouped

RANGE_COLUMNS = (
    "store_id",
    "run",
    "run_begun_at_ms",
    "lineage",
    "log",
    "what",
    "start_offset",
    "end_offset",
    "events_sha256",
)
"""The columns that together identify a row of ``deletions``."""


class ReadBack:
    """Results of reading files back. An unchanged file isn't read twice."""

    def __init__(self) -> None:
        self._digests: dict[tuple[str, int, int], str] = {}
        self.differences: dict[tuple[str, str], str] = {}
        """How a file's rows differ from a segment, by the file's location and the receipt's ``row_hash``."""

    def fault(self, table: Table, file: StoredFile) -> str:
        """Return how a file differs from the proven file, or "" if it is equal.

        :raises LakeUnavailableError: the file exists and can't be read.
        """
        file_system, path = file_system_of(table.io, file.location)
        with lake_errors(file.location, "read a data file back"):
            info = file_system.get_file_info(path)
            if not info.is_file:
                return f"{file.location} is missing"
            if info.size != file.size_bytes:
                return f"{file.location} has {info.size} bytes, expected {file.size_bytes}"
            facts = (file.location, info.size, info.mtime_ns or 0)
            if facts not in self._digests:
                with open_data_file(table.io, file.location) as stored:
                    self._digests[facts] = sha256_of_file(stored)
        if (digest := self._digests[facts]) != file.sha256:
            return f"{file.location} has SHA-256 {digest}, expected {file.sha256}"
        return ""


@dataclass(frozen=True, slots=True)
class _Store:
    """Receipts of one store.

    :param fault: why none of its receipts counts; "" if they count.
    :param rows: the receipts by ``slot_prefix``.
    """

    fault: str
    rows: dict[str, list[Receipt]]
    reader: Reader


class LiveTwins:
    """Search for twins in loaded tables, and in the files that these tables name.

    :param deletions: the table of deletions; None if the lake has none, or if it can't be read.
    """

    def __init__(
        self, messages: Table, segments: Table, read_back: ReadBack, deletions: Table | None = None
    ) -> None:
        self._messages, self._segments, self._read_back = messages, segments, read_back
        self._deletions = deletions
        self._ranges: frozenset[tuple[Any, ...]] | None = None
        self._stores: dict[str, _Store] = {}
        self._faults: dict[str, str] = {}
        self._row_hashes: frozenset[str] | None = None

    def of_content(self, store_id: str, prefix: str, digits: str) -> Held:
        """Look for the segment that is named in a data file's name.

        :param prefix: see ``slot_prefix``.
        :param digits: first digits of the segment's SHA-256.
        :raises LakeUnavailableError: the lake can't be read.
        """
        name = f"store {store_id} {prefix}{digits}"
        rows = self._store(store_id).rows.get(prefix, [])
        row, fault = self._find_sound(store_id, [row for row in rows if row.sha256.startswith(digits)])
        return Held(name, fault=fault) if row is None else Held(name, self._file_of(row))

    def of_rows(self, table: Table, location: str, slot: tuple[str, int, str, int]) -> Held:
        """Look for a segment that has rows in another engine's file or in a shared file.

        :param slot: store, lineage, log and base offset of the segment.
        :raises LakeUnavailableError: the lake can't be read.
        """
        store_id, lineage, log, base_offset = slot
        name = f"store {store_id} lineage {lineage} {log}/{base_offset:020d}"
        rows = [
            row
            for of_slot in self._store(store_id).rows.values()
            for row in of_slot
            if (row.lineage, row.log, row.base_offset) == (lineage, log, base_offset)
        ]
        row, fault = self._find_sound(store_id, rows)
        if row is not None:
            facts = (location, row.row_hash)
            if facts not in self._read_back.differences:
                self._read_back.differences[facts] = _row_difference(table, location, row)
            fault = self._read_back.differences[facts]
        return Held(name, fault=fault) if row is None or fault else Held(name, self._file_of(row))

    def of_receipt(self, hash_: str) -> Held:
        """Look for a row of ``segments`` by its ``row_hash``.

        :raises LakeUnavailableError: the lake can't be read.
        """
        if self._row_hashes is None:
            rows = read_receipts(self._segments, AlwaysTrue())
            self._row_hashes = frozenset(row.row_hash for row in rows if hash_of(row) == row.row_hash)
        if hash_ in self._row_hashes:
            return Held(f"receipt {hash_}", "the table")
        return Held(
            f"receipt {hash_}",
            fault="it is not in the table: a commit was killed, or the catalog is older than this file",
        )

    def of_range(self, values: tuple[Any, ...]) -> Held:
        """Look for a row of ``deletions`` by its values of ``RANGE_COLUMNS``.

        :raises LakeUnavailableError: the table can't be read.
        """
        if self._ranges is None:
            assert self._deletions is not None
            rows = read_rows(self._deletions, AlwaysTrue(), RANGE_COLUMNS)
            self._ranges = frozenset(zip(*(rows[name].to_pylist() for name in RANGE_COLUMNS), strict=True))
        name = f"deletion of run {values[1]}"
        if values in self._ranges:
            return Held(name, "the table")
        return Held(name, fault="it is not in the table, which is written again from the journal")

    def _find_sound(self, store_id: str, rows: list[Receipt]) -> tuple[Receipt | None, str]:
        """Return the first receipt whose files are sound when they are read back, or why none is sound."""
        if fault := self._store(store_id).fault:
            return None, fault
        faults = [self._fault(row, self._store(store_id)) for row in rows]
        for row, fault in zip(rows, faults, strict=True):
            if not fault:
                return row, ""
        return None, f"its receipt doesn't hold: {faults[0]}" if faults else "the table has no receipt of it"

    def _file_of(self, row: Receipt) -> str:
        return proven_files(self._messages, row)[0].location

    def _fault(self, row: Receipt, store: _Store) -> str:
        if row.row_hash not in self._faults:
            look = store.reader.look(row, Depth.METADATA)
            fault = str(look.faults[0]) if look.faults else ""
            for file in look.seen.files:
                fault = fault or self._read_back.fault(self._messages, file.stored)
            self._faults[row.row_hash] = fault
        return self._faults[row.row_hash]

    def _store(self, store_id: str) -> _Store:
        if store_id not in self._stores:
            self._stores[store_id] = self._read_store(store_id)
        return self._stores[store_id]

    def _read_store(self, store_id: str) -> _Store:
        try:
            check_links(self._segments, store_id, whole=True)
        except ReceiptError as error:
            return _Store(Text("no receipt counts: ", error), {}, Reader(self._messages, ()))
        rows = grouped(receipts_in(self._segments, store_id), lambda row: slot_prefix(row.identity))
        return _Store("", rows, Reader(self._messages, live_data_files(self._messages, store_id)))


def _row_difference(table: Table, location: str, receipt: Receipt) -> str:
    """Return how a file's rows differ from a segment's rows in the table, or "" if their bytes are equal."""
    codec, origin = find_broker(receipt.broker).codec, origin_of(receipt)
    content = np.empty(receipt.size_bytes, np.uint8)
    digest = hashlib.sha256()
    try:
        for position, chunk in read_segment(table, receipt):
            digest.update(chunk)
            content[position - origin : position - origin + len(chunk)] = chunk
        if digest.hexdigest() != receipt.sha256:
            return "the table's rows of it are not the proven segment"
        entry: Any = parquet_file_to_data_file(table.io, table.metadata, location)
        entry.spec_id = table.metadata.default_spec_id
        where = segment_rows(receipt.store_id, receipt.lineage, receipt.log, receipt.base_offset)
        task = FileScanTask(entry, residual=AlwaysTrue())
        names = set(table.schema().column_names)
        schema = pa.schema([field for field in codec.schema if field.name in names])
        rows = read_files(table, where, tuple(schema.names), [task])
        rows = rows.select(schema.names).cast(schema).combine_chunks()
        written_over = content.copy()
        encode_rows(codec, rows, written_over.data, origin, location)
    except Exception as error:
        # Another engine's file may raise any error. Then nothing is proven.
        return Text(f"its rows can't be compared with the live ones ({type(error).__name__}: ", error, ")")
    return "" if np.array_equal(content, written_over) else "its rows differ from the live ones"
