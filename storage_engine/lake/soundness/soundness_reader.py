"""Reading the facts that decide whether receipts are sound, to the depth that the caller chooses.

:mod:`~storage_engine.lake.soundness.soundness` judges these facts. The caller must check the receipts' chain.
"""

from __future__ import annotations

import hashlib
import logging
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from errno import ELOOP, ENOENT, ENOTDIR
from functools import cache, partial
from operator import attrgetter
from typing import Any

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, PrimitiveType, StringType

from storage_engine.core.long_work import report_work
from storage_engine.exceptions import LakeUnavailableError, StorageEngineError
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of, proven_files
from storage_engine.lake.catalog.tables import IDENTITY_COLUMNS
from storage_engine.lake.durable_io import local_path, open_data_file, sha256_of_file
from storage_engine.lake.file.data_file import window_memory
from storage_engine.lake.file.jobs import data_file_name, file_name
from storage_engine.lake.file.scan import LiveFile, live_files_of
from storage_engine.lake.soundness.chain import row_fault, row_faults
from storage_engine.lake.soundness.segment_reader import (
    partial_fault,
    read_segment,
    tree_fault,
    tree_to_compare,
)
from storage_engine.lake.soundness.soundness import (
    NO_SUCH_FILE,
    Depth,
    Fault,
    Faults,
    Identity,
    Look,
    Seen,
    SeenFile,
    are_as_proven,
    is_displaced,
    judge,
    reasons,
)
from storage_engine.lake.storage.errors import LAKE_FAILURES, lake_errors, lake_unavailable
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity, StoredFile

Chunk = Callable[[int, memoryview], None]

_segment_of = attrgetter("store_id", "lineage", "log", "base_offset")

# A writer may leave out the statistics of a column, so a message about missing ones tells nothing.
logging.getLogger("pyiceberg.io.pyarrow").addFilter(
    lambda record: not str(record.msg).startswith("PyArrow statistics missing")
)


@dataclass(frozen=True, slots=True)
class _Expected:
    """The table's values for a file.

    :param first: lowest value of each column that identifies a segment.
    :param last: highest value of each of these columns.
    """

    row_count: int
    size_bytes: int
    first: tuple[Any, ...]
    last: tuple[Any, ...]

    def is_right(self, row: Receipt) -> bool:
        """Return whether a receipt has the values that the table has for its file."""
        segment = _segment_of(row)
        if row.data_file_bytes != self.size_bytes:
            return False
        if row.row_groups is None:
            return row.row_count == self.row_count and self.first == segment == self.last
        inside = (low <= it <= high for low, it, high in zip(self.first, segment, self.last, strict=True))
        return row.row_count <= self.row_count and all(inside)


class Reader:
    """Reads facts that decide whether receipts are sound. Each file is read once, even if segments share it.

    :param table: the loaded table of rows.
    :param live: the files that the table lists, for all stores and offsets of the receipts to look at.
    """

    def __init__(self, table: Table, live: Iterable[LiveFile]) -> None:
        self._table = table
        self._live: dict[str, tuple[LiveFile, ...]] = {}
        for file in live:
            self._live[file.location] = (*self._live.get(file.location, ()), file)
        self._columns = [(name, *_column(table.schema(), name)) for name in IDENTITY_COLUMNS.names]
        self._bound = cache(self._encode)
        self._size = cache(self._read_size)
        self._sha256 = cache(self._read_sha256)
        self._differences: dict[int, str] = {}
        self._expected: dict[str, _Expected | None] = {}

    def faulty(
        self, rows: Sequence[Receipt], faults: Mapping[int, str] | None = None
    ) -> dict[SegmentIdentity, Look]:
        """Check receipts to the depth SIZES, and return a :class:`Look` for each unsound receipt.

        For most receipts a few comparisons show that they are sound. The others are looked at one by one.

        :param faults: result of :func:`row_faults` for these rows; None if they weren't checked yet.
        :raises LakeUnavailableError: a file exists and can't be read.
        """
        faults = row_faults(rows) if faults is None else faults
        root = f"{self._table.location().rstrip('/')}/data/"
        close = [row for row in rows if id(row) in faults or not self._is_as_expected(row, root)]
        looks = (self.look(row, Depth.SIZES) for row in close)
        return {look.receipt.identity: look for look in looks if look.faults}

    def _is_as_expected(self, row: Receipt, root: str) -> bool:
        """Return whether table and storage have a receipt's file below ``root`` with the receipt's values.

        If False, the receipt needs a closer look.
        """
        if row.state is not None or row.moved_to is not None or not row.data_file.startswith("data/"):
            return False
        location = root + row.data_file[5:]
        if location not in self._expected:
            self._expected[location] = self._expect(location)
        expected = self._expected[location]
        return expected is not None and expected.is_right(row)

    def _expect(self, location: str) -> _Expected | None:
        """Return the values that a receipt of a sound file has; None if the file needs a closer look."""
        listed = self._live.get(location, ())
        if len(listed) != 1 or listed[0].delete_files:
            return None
        entry = listed[0].entry
        try:
            if self._size(location) != entry.file_size_in_bytes:
                return None
            bounds = [
                tuple(from_bytes(kind, bounds[field_id]) for _, field_id, kind in self._columns)
                for bounds in (entry.lower_bounds, entry.upper_bounds)
            ]
        except Exception:
            # The closer look reports the error.
            return None
        return _Expected(entry.record_count, entry.file_size_in_bytes, bounds[0], bounds[1])

    def look(self, receipt: Receipt, depth: Depth, chunk: Chunk | None = None) -> Look:
        """Check a receipt down to a depth. Stop once its bytes turn out to be unproven.

        Rows are read even if the table no longer lists the receipt's own files unchanged: the rows may be in
        other files by now.

        :param chunk: called with positions and bytes of the segment that the rows give.
        :raises LakeUnavailableError: a file exists and can't be read.
        """
        if fault := row_fault(receipt):
            return _judge_look(receipt, Seen(fault))
        own, files = self._list_files(receipt)
        displaced = is_displaced(receipt, files)
        for step in (Depth.SIZES, Depth.FILES):
            if step <= depth and not displaced and are_as_proven(files):
                files = tuple(self._file(file, step) for file in files)
        readable = are_as_proven(files)
        seen = Seen("", files, own, self._identity(receipt) if own else ())
        if depth >= Depth.STATISTICS and not displaced and readable:
            seen = self._with_statistics(seen)
        if depth >= Depth.ROWS and readable and not seen.undecoded:
            seen = self._with_rows(receipt, seen, chunk)
        return _judge_look(receipt, seen)

    def is_displaced(self, receipt: Receipt) -> bool:
        """Return whether the rows are in other files by now, or were dropped. Doesn't check the receipt."""
        return is_displaced(receipt, self._list_files(receipt)[1])

    def file(self, stored: StoredFile, depth: Depth) -> SeenFile:
        """Check a file to the depth SIZES or FILES, even if the table doesn't list the file.

        :raises LakeUnavailableError: the file exists and can't be read.
        """
        return self._file(SeenFile(stored, self._live.get(stored.location, ())), depth)

    def _list_files(self, receipt: Receipt) -> tuple[tuple[LiveFile, ...], tuple[SeenFile, ...]]:
        """Return the table's entries of a receipt's own data file, and the files that its proof depends on.

        Between the two commits of an expiry of some streams, the table still has the earlier file, which the
        receipt's file is about to replace. Then the entries of the earlier file are used.
        """
        files = proven_files(self._table, receipt)
        own = self._live.get(data_file_of(self._table, receipt), ())
        listed = [SeenFile(file, self._live.get(file.location, ())) for file in files]
        may_be_replaced = receipt.has_rows and not (receipt.is_whole or receipt.lacks_by_rules)
        if may_be_replaced and not any(file.listed for file in listed):
            listed = [replace(file, listed=self._find_other(receipt)) for file in listed]
        return own, tuple(listed)

    def _find_other(self, receipt: Receipt) -> tuple[LiveFile, ...]:
        """Return the table's entries of another data file of the same segment, found by its name."""
        name = data_file_name(receipt.identity).removesuffix(".parquet")
        entries = (it for location, it in self._live.items() if file_name(location).startswith(name))
        return next((it for it in entries if not any(entry.delete_files for entry in it)), ())

    def _file(self, file: SeenFile, depth: Depth) -> SeenFile:
        location = file.stored.location
        try:
            size_bytes = self._size(location)
            sha256 = self._sha256(location) if depth >= Depth.FILES else None
        except FileNotFoundError:
            size_bytes, sha256 = NO_SUCH_FILE, None
        except LAKE_FAILURES as error:
            raise lake_unavailable(location, "read a data file", error) from error
        return SeenFile(file.stored, file.listed, size_bytes, sha256)

    def _identity(self, receipt: Receipt) -> Identity:
        return tuple(self._bound(column, value) for column, value in enumerate(_segment_of(receipt)))

    def _with_statistics(self, seen: Seen) -> Seen:
        # A footer is parsed only if the file's hash was found to be the proven one.
        if not any(entry.location == file.stored.location for entry in seen.own for file in seen.files):
            return seen
        try:
            differences = (self._difference(entry) for entry in seen.own)
            return replace(seen, statistics=next(filter(None, differences), ""))
        except (LakeUnavailableError, MemoryError):
            raise
        except Exception as error:
            return replace(seen, undecoded=_decode_fault(error))

    def _with_rows(self, receipt: Receipt, seen: Seen, chunk: Chunk | None) -> Seen:
        digest = hashlib.sha256()
        leaves = tree_to_compare(receipt, receipt.data_file)
        try:
            if not receipt.is_whole:
                fault = partial_fault(self._table, receipt, from_table=is_displaced(receipt, seen.files))
                # The root that its rows give covers this SHA-256.
                return replace(seen, undecoded=fault, rows_sha256=None if fault else receipt.sha256)
            untouched = frozenset(file.location for file in seen.own if not file.has_deletes)
            read = partial(read_segment, self._table, receipt, untouched=untouched, memory=window_memory())
            for position, data in read(tree=leaves):
                if leaves is None:
                    digest.update(data)
                if chunk is not None:
                    chunk(position, data)
            tree_difference = tree_fault(receipt, leaves)
            if leaves is not None and not tree_difference:
                # The root covers each byte at its place, and the SHA-256. So each byte is hashed only once.
                return replace(seen, rows_sha256=receipt.sha256)
            if leaves is not None:
                for _, data in read():
                    digest.update(data)
        except (LakeUnavailableError, MemoryError):
            raise
        except StorageEngineError as error:
            return replace(seen, undecoded=str(error))
        except Exception as error:
            # PyArrow and PyIceberg may raise any error for bytes that they can't decode.
            return replace(seen, undecoded=_decode_fault(error))
        # If the rows have other bytes, the tree's difference isn't reported.
        is_same = digest.hexdigest() == receipt.sha256
        return replace(seen, rows_sha256=digest.hexdigest(), tree=tree_difference if is_same else "")

    def _difference(self, listed: LiveFile) -> str:
        """Return the difference between an entry and the file's footer, which is read once."""
        if id(listed) not in self._differences:
            self._differences[id(listed)] = statistics_difference(self._table, listed.entry)
        return self._differences[id(listed)]

    def _encode(self, column: int, value: str | int) -> tuple[str, int, bytes]:
        name, field_id, kind = self._columns[column]
        return name, field_id, to_bytes(kind, value)

    def _read_size(self, location: str) -> int:
        path = local_path(location)
        if path is None:
            return len(self._table.io.new_input(location))
        try:
            status = path.stat()
        except OSError as error:
            if error.errno in (ENOTDIR, ELOOP):
                raise FileNotFoundError(ENOENT, "no such file", str(path)) from error
            raise
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(ENOENT, "no regular file", str(path))
        return status.st_size

    def _read_sha256(self, location: str) -> str:
        with open_data_file(self._table.io, location) as stored:
            return sha256_of_file(stored)


def find_faults(
    lake: Lake,
    rows: Sequence[Receipt],
    depth: Depth = Depth.SIZES,
    progress: Callable[[], None] | None = None,
) -> Faults:
    """Return the faults of each unsound receipt. Receipts that are sound at this moment are left out.

    :param progress: called after each receipt whose files were read, which may take long.
    :raises LakeUnavailableError: the lake or a file can't be read.
    """
    faults: dict[SegmentIdentity, tuple[Fault, ...]] = {}
    if not rows:
        return faults
    reader = _reader(lake.messages(), rows)
    reads_files = depth >= Depth.FILES
    # A file that isn't read costs one request for its length.
    shares = [row.data_file_bytes if reads_files else 1 for row in rows]
    with report_work("Checking data files", sum(shares), "" if reads_files else "files") as advance:
        for row, share in zip(rows, shares, strict=True):
            if row_faults := reader.look(row, depth).faults:
                faults[row.identity] = row_faults
            advance(share)
            if reads_files and progress is not None:
                progress()
    return faults


def broken_receipts(
    lake: Lake,
    rows: Sequence[Receipt],
    depth: Depth = Depth.SIZES,
    progress: Callable[[], None] | None = None,
) -> dict[SegmentIdentity, str]:
    """Return the first fault of each unsound receipt as text; see :func:`find_faults`."""
    return reasons(find_faults(lake, rows, depth, progress))


def moved_receipts(lake: Lake, rows: Sequence[Receipt]) -> tuple[Receipt, ...]:
    """Return receipts whose rows another engine has moved into other files, or dropped, since their proof.

    :raises LakeUnavailableError: the lake can't be read.
    """
    if not rows:
        return ()
    reader = _reader(lake.messages(), rows)
    return tuple(row for row in rows if reader.look(row, Depth.METADATA).is_displaced)


def statistics_difference(table: Table, listed: DataFile) -> str:
    """Return the difference between the table's statistics of a data file and its footer; "" if they agree.

    The manifest's writer may leave out columns, and may shorten the bounds of texts. Neither is a difference.

    :raises Exception: any error of PyArrow for a file that is no Parquet file.
    """
    metadata = table.metadata.model_copy(update={"properties": {"write.metadata.metrics.default": "full"}})
    with lake_errors(listed.file_path, "read a data file"):
        true = parquet_file_to_data_file(table.io, metadata, listed.file_path)
    if listed.record_count != true.record_count:
        return "record count"
    for name in ("lower_bounds", "upper_bounds", "value_counts", "null_value_counts"):
        actual, expected = getattr(listed, name) or {}, getattr(true, name)
        for key in actual.keys() & expected.keys():
            is_text = isinstance(table.schema().find_type(key), StringType | BinaryType)
            if actual[key] != expected[key] and not (
                (is_text and name == "lower_bounds" and actual[key] < expected[key])
                or (is_text and name == "upper_bounds" and actual[key] > expected[key])
            ):
                return name.replace("_", " ")
    return ""


def _reader(table: Table, rows: Sequence[Receipt]) -> Reader:
    return Reader(table, live_files_of(table, rows))


def _judge_look(receipt: Receipt, seen: Seen) -> Look:
    return Look(receipt, seen, judge(receipt, seen))


def _column(schema: Schema, name: str) -> tuple[int, PrimitiveType]:
    field = schema.find_field(name)
    assert isinstance(field.field_type, PrimitiveType)
    return field.field_id, field.field_type


def _decode_fault(error: Exception) -> str:
    return f"its rows can't be decoded: {type(error).__name__}: {error}"
