"""The decision whether a receipt is sound, for the gate, ``verify`` and validation. Pure.

Only a sound receipt permits a deletion. Any fault makes it unsound. :attr:`ReceiptFault.loses` says whether
bytes are lost. :mod:`~storage_engine.lake.soundness.soundness_reader` reads the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import pyarrow as pa

from storage_engine.lake.catalog.tables import IDENTITY_COLUMNS
from storage_engine.lake.file.scan import LiveFile
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity, StoredFile

BOUND_CHARACTERS = 64
"""Bounds shorten longer texts to this many characters (``truncate(64)`` in the table's properties)."""

_NUMBERS = {
    name for name in IDENTITY_COLUMNS.names if not pa.types.is_string(IDENTITY_COLUMNS.field(name).type)
}

NO_SUCH_FILE = -1
"""Size that stands for a missing file."""


class Depth(IntEnum):
    """Depth of a receipt's check, in the order of cost. Each depth includes all depths before it."""

    METADATA = 0
    """The receipt's own row, and the table's entries of its files."""
    SIZES = 1
    """The size of each file: one request to the storage for each."""
    FILES = 2
    """The SHA-256 of each file: all of its bytes are read."""
    STATISTICS = 3
    """Comparison of the table's statistics with each file's footer. It needs entries with all statistics."""
    ROWS = 4
    """The rows, turned back into the segment and hashed."""


class ReceiptFault(StrEnum):
    ROW = "row"
    CHAIN = "chain"
    MOVED = "moved"
    MOVED_AGAIN = "moved again"
    ROWS_DELETED = "rows deleted"
    LISTED_TWICE = "listed twice"
    ENTRY = "entry"
    MISSING = "missing"
    SIZE = "size"
    SHA256 = "sha256"
    STATISTICS = "statistics"
    ROWS = "rows"
    UNDECODED = "undecoded"
    TREE = "tree"

    @property
    def is_displaced(self) -> bool:
        """Return whether the table has the rows in other files by now, or has lost them.

        Only reading the rows shows which of the two is true.
        """
        return self in (ReceiptFault.MOVED, ReceiptFault.MOVED_AGAIN, ReceiptFault.ROWS_DELETED)

    @property
    def loses(self) -> bool:
        """Return whether nothing proves the bytes any more.

        Otherwise files of the table prove them, and the fault is in the chain, the tree or the entries.
        """
        return self not in (
            ReceiptFault.CHAIN,
            ReceiptFault.LISTED_TWICE,
            ReceiptFault.ENTRY,
            ReceiptFault.STATISTICS,
            ReceiptFault.TREE,
        )


_TEXTS = {
    ReceiptFault.ROW: "{found}",
    ReceiptFault.CHAIN: "{found}",
    ReceiptFault.MOVED: (
        "data file {subject} is not in the table as it was written: another engine has put its rows into "
        "other files, or dropped them"
    ),
    ReceiptFault.MOVED_AGAIN: (
        "{subject}, one of the files that its rows were moved to, is not in the table as it was when they "
        "were proven there"
    ),
    ReceiptFault.ROWS_DELETED: "the table counts rows of {subject} as deleted, by {found}",
    ReceiptFault.LISTED_TWICE: (
        "expected {subject} in the table once, found it {found} times: queries count its rows that often"
    ),
    ReceiptFault.ENTRY: "expected {expected} in the table's entry of {subject}, found {found}",
    ReceiptFault.MISSING: "data file {subject} is missing",
    ReceiptFault.SIZE: "data file {subject} has {found} bytes, expected {expected}",
    ReceiptFault.SHA256: "data file {subject} has SHA-256 {found}, expected {expected}",
    ReceiptFault.STATISTICS: "the table's {found} of {subject} are not those in the file's footer",
    ReceiptFault.ROWS: "its rows have SHA-256 {found}, expected {expected}",
    ReceiptFault.UNDECODED: "{found}",
    ReceiptFault.TREE: "the tree over its rows is not the one that was proven: {found}",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A reason why a receipt is not sound.

    :param subject: location of the faulty file; "" if the fault is in the receipt's own row.
    """

    kind: ReceiptFault
    receipt: Receipt
    expected: str
    found: str
    subject: str = ""

    def __str__(self) -> str:
        return _TEXTS[self.kind].format(subject=self.subject, expected=self.expected, found=self.found)


Faults = Mapping[SegmentIdentity, tuple[Fault, ...]]
"""Faults of unsound receipts. For each receipt, faults that lose bytes come first."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file that a receipt's proof depends on, with its present facts.

    :param listed: the table's entries of the file; a delete file has none.
    :param size_bytes: its size; None if it was not checked; :data:`NO_SUCH_FILE` if the file is missing.
    :param sha256: its hash; None if the file was not read.
    """

    stored: StoredFile
    listed: tuple[LiveFile, ...]
    size_bytes: int | None = None
    sha256: str | None = None


Identity = tuple[tuple[str, int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """Data read for one receipt.

    A text is "" if its fault wasn't found, or if the data was not read.

    :param row: the fault of the receipt's own row. After such a fault nothing else was read.
    :param files: the files that its proof depends on.
    :param own: the table's entries of the data file that archiving wrote, even if others prove the rows.
    :param identity: the segment's values, as (column, field id, bytes). The bounds in ``own`` must fit them.
    :param statistics: difference between ``own`` and the file's footer.
    :param rows_sha256: hash of the segment's bytes that the rows give; None if the rows were not read.
    :param undecoded: why the rows give no segment.
    :param tree: how the tree over the rows differs from the receipt's tree.
    """

    row: str = ""
    files: tuple[SeenFile, ...] = ()
    own: tuple[LiveFile, ...] = ()
    identity: Identity = ()
    statistics: str = ""
    rows_sha256: str | None = None
    undecoded: str = ""
    tree: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """A receipt, the data read for it, and its faults. A sound receipt has no faults."""

    receipt: Receipt
    seen: Seen
    faults: tuple[Fault, ...]

    @property
    def is_displaced(self) -> bool:
        """Return whether the receipt's rows are in other files by now, or were dropped."""
        return any(fault.kind.is_displaced for fault in self.faults)

    @property
    def is_proven_by_rows(self) -> bool:
        """Return whether the rows were found to be the segment, whichever files have them now."""
        return self.seen.rows_sha256 == self.receipt.sha256

    @property
    def losses(self) -> tuple[Fault, ...]:
        """Return the faults that leave the bytes unproven."""
        rows = self.is_proven_by_rows
        return tuple(it for it in self.faults if it.kind.loses and not (rows and it.kind.is_displaced))


def judge(receipt: Receipt, seen: Seen) -> tuple[Fault, ...]:
    """Return the faults of a receipt, by the data read. Pure.

    If its row was changed, nothing else in the row is trusted. If the table no longer has the proven files
    unchanged, only the rows count, not the files. Faults that lose bytes come first.
    """
    if seen.row:
        expected = "its row as it was written, by a version that is known"
        return (Fault(ReceiptFault.ROW, receipt, expected, seen.row),)
    faults = [*_displacements(receipt, seen.files)] or [*_file_faults(receipt, seen.files)]
    faults += _rows_faults(receipt, seen)
    faults += _entry_faults(receipt, seen)
    return tuple(sorted(faults, key=lambda fault: not fault.kind.loses))


def is_displaced(receipt: Receipt, files: Sequence[SeenFile]) -> bool:
    """Return whether the table has a receipt's rows in other files by now, or not at all."""
    return next(iter(_displacements(receipt, files)), None) is not None


def are_as_proven(files: Iterable[SeenFile]) -> bool:
    """Return whether files are unchanged since their proof, as far as they were checked."""
    return all(
        file.size_bytes in (None, file.stored.size_bytes) and file.sha256 in (None, file.stored.sha256)
        for file in files
    )


def chain_faults(rows: Iterable[Receipt], broken: str) -> Faults:
    """Return the fault of a broken chain for every receipt of a store: none of these receipts is sound.

    :param broken: the fault of the chain.
    """
    return {
        row.identity: (Fault(ReceiptFault.CHAIN, row, "a whole chain of receipts", broken),) for row in rows
    }


def reasons(faults: Faults) -> dict[SegmentIdentity, str]:
    """Return why receipts are not sound, as text."""
    return {identity: str(items[0]) for identity, items in faults.items()}


def losses(faults: Faults) -> dict[SegmentIdentity, str]:
    """Return why nothing proves the bytes of receipts, as text. Faults that lose no bytes are left out."""
    return {identity: str(items[0]) for identity, items in faults.items() if items[0].kind.loses}


def _displacements(receipt: Receipt, files: Sequence[SeenFile]) -> Iterable[Fault]:
    """Yield the faults of a receipt whose rows are no longer in the files that prove them."""
    named = {file.stored.location for file in files}
    listed = {file.stored.location: file.listed for file in files if file.listed}
    if not listed or (receipt.moved_to is None and len(listed) < len(named)):
        location = min(named, default=receipt.data_file)
        yield Fault(ReceiptFault.MOVED, receipt, "in the table", "not in the table", location)
        return
    deletes = {name for entries in listed.values() for entry in entries for name in entry.delete_files}
    if missing := named - listed.keys() - deletes:
        yield Fault(ReceiptFault.MOVED_AGAIN, receipt, "in the table", "not in the table", min(missing))
    elif new := deletes - named:
        yield Fault(ReceiptFault.ROWS_DELETED, receipt, "no row deleted", min(new), next(iter(listed)))


def _file_faults(receipt: Receipt, files: Sequence[SeenFile]) -> Iterable[Fault]:
    for file in files:
        stored, at = file.stored, file.stored.location
        if file.size_bytes == NO_SUCH_FILE:
            yield Fault(ReceiptFault.MISSING, receipt, f"{stored.size_bytes} bytes", "no such file", at)
        elif file.size_bytes not in (None, stored.size_bytes):
            yield Fault(ReceiptFault.SIZE, receipt, str(stored.size_bytes), str(file.size_bytes), at)
        elif file.sha256 not in (None, stored.sha256):
            yield Fault(ReceiptFault.SHA256, receipt, stored.sha256, str(file.sha256), at)


def _rows_faults(receipt: Receipt, seen: Seen) -> Iterable[Fault]:
    if seen.undecoded:
        yield Fault(ReceiptFault.UNDECODED, receipt, "rows that are the segment", seen.undecoded)
    elif seen.rows_sha256 not in (None, receipt.sha256):
        yield Fault(ReceiptFault.ROWS, receipt, receipt.sha256, str(seen.rows_sha256))
    elif seen.tree:
        yield Fault(ReceiptFault.TREE, receipt, f"the root {receipt.root}", seen.tree)


def _entry_faults(receipt: Receipt, seen: Seen) -> Iterable[Fault]:
    """Yield the faults of the table's entries. They lose no byte, but mislead queries."""
    listed = {
        entries[0].location: entries for entries in (seen.own, *(f.listed for f in seen.files)) if entries
    }
    for location, entries in listed.items():
        if len(entries) > 1:
            yield Fault(ReceiptFault.LISTED_TWICE, receipt, "1", str(len(entries)), location)
    for entry in seen.own:
        file = entry.entry
        pairs: list[tuple[str, str, str]] = [
            ("rows", str(receipt.row_count), str(file.record_count)),
            ("bytes", str(receipt.data_file_bytes), str(file.file_size_in_bytes)),
        ]
        if receipt.row_groups is not None:
            # The file has rows of other segments as well.
            pairs[0] = ("rows", str(receipt.row_count), str(min(receipt.row_count, file.record_count)))
        for name, field_id, value in seen.identity:
            lower, upper = ((bounds or {}).get(field_id) for bounds in (file.lower_bounds, file.upper_bounds))
            if receipt.row_groups is not None:
                if lower is not None and upper is not None and not _is_within(name, lower, value, upper):
                    pairs.append((name, value.hex(), f"{lower.hex()} to {upper.hex()}"))
                continue
            if lower is not None and not _is_bound(lower, value, lower <= value):
                pairs.append((name, value.hex(), lower.hex()))
            if upper is not None and not _is_bound(upper, value, upper >= value):
                pairs.append((name, value.hex(), upper.hex()))
        for fact, expected, actual in pairs:
            if expected != actual:
                yield Fault(ReceiptFault.ENTRY, receipt, f"{fact} {expected}", actual, entry.location)
    if seen.statistics:
        location = seen.own[0].location
        yield Fault(ReceiptFault.STATISTICS, receipt, "as in the footer", seen.statistics, location)


def _is_bound(bound: bytes, value: bytes, contains: bool) -> bool:
    """Return whether a bound is right for a column that has only ``value``. Bounds shorten long texts.

    :param contains: whether a lower bound is at most ``value``, or an upper bound at least ``value``.
    """
    return bound == value or (contains and len(value.decode(errors="replace")) > BOUND_CHARACTERS)


def _is_within(name: str, lower: bytes, value: bytes, upper: bytes) -> bool:
    """Return whether a segment's value is between a column's bounds in a shared file."""
    if name in _NUMBERS:
        # Iceberg's encoding of whole numbers.
        first, number, last = (int.from_bytes(data, "little", signed=True) for data in (lower, value, upper))
        return first <= number <= last
    return lower <= value <= upper
