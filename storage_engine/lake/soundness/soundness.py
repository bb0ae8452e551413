"""Is this receipt sound? The one answer that the gate, ``verify`` and validation give. Pure.

A sound receipt is one that a deletion may rest on; with any fault a receipt is unsound. Whether its bytes are
lost is another question: :attr:`ReceiptFault.loses`. What was read is
:mod:`~storage_engine.lake.soundness.soundness_reader`'s.
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
"""Characters of a longer text that a bound has (``truncate(64)`` in the table's properties)."""

_NUMBERS = {
    name for name in IDENTITY_COLUMNS.names if not pa.types.is_string(IDENTITY_COLUMNS.field(name).type)
}

NO_SUCH_FILE = -1
"""Size of a file that is not there."""


class Depth(IntEnum):
    """Depth of a look, by its cost; each depth includes those before it."""

    METADATA = 0
    """The receipt's own row, and what the table says of its files."""
    SIZES = 1
    """The size of each file: one question to the storage."""
    FILES = 2
    """The SHA-256 of each file: all of its bytes."""
    STATISTICS = 3
    """The table's statistics against each file's footer, for who has entries with all of them."""
    ROWS = 4
    """The rows, turned back into the segment and hashed."""


class ReceiptFault(StrEnum):
    """A fault of a receipt."""

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
        """Return whether the table has the rows in other files by now, or not at all: only reading them
        tells.
        """
        return self in (ReceiptFault.MOVED, ReceiptFault.MOVED_AGAIN, ReceiptFault.ROWS_DELETED)

    @property
    def loses(self) -> bool:
        """Return whether the bytes are no longer proven by anything. Else the files that do are in the table:
        what is wrong is the chain, the tree, or what queries go by.
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

    :param subject: location of the file that it is about; "" where it is about the receipt's own row.
    """

    kind: ReceiptFault
    receipt: Receipt
    expected: str
    found: str
    subject: str = ""

    def __str__(self) -> str:
        return _TEXTS[self.kind].format(subject=self.subject, expected=self.expected, found=self.found)


Faults = Mapping[SegmentIdentity, tuple[Fault, ...]]
"""Faults of receipts that are not sound; those that lose bytes first."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file that a receipt rests on, as it was found.

    :param listed: the table's entries of it; a delete file has none.
    :param size_bytes: None: not looked at; :data:`NO_SUCH_FILE`: it is not there.
    :param sha256: None: it was not read.
    """

    stored: StoredFile
    listed: tuple[LiveFile, ...]
    size_bytes: int | None = None
    sha256: str | None = None


Identity = tuple[tuple[str, int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """Data read for one receipt.

    :param row: the fault of its own row; then nothing else was read. "" where there is none.
    :param files: those that it rests on.
    :param own: the table's entries of the data file that archiving wrote, whether it rests on that or not.
    :param identity: the values of the segment that these must have: column, its field id, its value as a
        bound.
    :param statistics: difference between ``own`` and the file's footer; "" where there is none, or it was not
        compared.
    :param rows_sha256: of the rows, turned back into the segment; None: they were not read.
    :param undecoded: why they can't be turned back; "" where they can, or that was not tried.
    :param tree: how the tree over them differs from the receipt's; "" where it doesn't, or it was not
        compared.
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
    """A receipt, what was read for it, and what is wrong with it; ``faults`` is empty where it is sound."""

    receipt: Receipt
    seen: Seen
    faults: tuple[Fault, ...]

    @property
    def is_displaced(self) -> bool:
        """Return whether its rows lie in other files by now, or are dropped."""
        return any(fault.kind.is_displaced for fault in self.faults)

    @property
    def is_proven_by_rows(self) -> bool:
        """Return whether the rows, in whatever files by now, were found to be the segment."""
        return self.seen.rows_sha256 == self.receipt.sha256

    @property
    def losses(self) -> tuple[Fault, ...]:
        """Faults that leave the bytes unproven."""
        rows = self.is_proven_by_rows
        return tuple(it for it in self.faults if it.kind.loses and not (rows and it.kind.is_displaced))


def judge(receipt: Receipt, seen: Seen) -> tuple[Fault, ...]:
    """Judge the faults of a receipt, by the data read. Pure.

    Of a row that was changed nothing else is believed. Files that the table no longer has as they were
    proven are not asked for, only rows are. The faults that lose bytes come first.
    """
    if seen.row:
        return (
            Fault(
                ReceiptFault.ROW, receipt, "its row as it was written, by a version that is known", seen.row
            ),
        )
    faults = [*_displacements(receipt, seen.files)]
    if not faults:
        faults += _file_faults(receipt, seen.files)
    faults += _rows_faults(receipt, seen)
    faults += _entry_faults(receipt, seen)
    return tuple(sorted(faults, key=lambda fault: not fault.kind.loses))


def is_displaced(receipt: Receipt, files: Sequence[SeenFile]) -> bool:
    """Return whether the table has a receipt's rows in other files by now, or not at all."""
    return next(iter(_displacements(receipt, files)), None) is not None


def are_as_proven(files: Iterable[SeenFile]) -> bool:
    """Return whether files are unchanged since their proof, as far as they were looked at."""
    return all(
        file.size_bytes in (None, file.stored.size_bytes) and file.sha256 in (None, file.stored.sha256)
        for file in files
    )


def chain_faults(rows: Iterable[Receipt], broken: str) -> Faults:
    """Say of every receipt of a store that its chain is broken: none proves anything until it is whole.

    :param broken: the fault of the chain.
    """
    return {
        row.identity: (Fault(ReceiptFault.CHAIN, row, "a whole chain of receipts", broken),) for row in rows
    }


def reasons(faults: Faults) -> dict[SegmentIdentity, str]:
    """Return why receipts are not sound, as text."""
    return {identity: str(found[0]) for identity, found in faults.items()}


def losses(faults: Faults) -> dict[SegmentIdentity, str]:
    """Return why nothing proves the bytes of receipts, as text; one that is only unsound is left out."""
    return {identity: str(found[0]) for identity, found in faults.items() if found[0].kind.loses}


def _displacements(receipt: Receipt, files: Sequence[SeenFile]) -> Iterable[Fault]:
    """Say why the table no longer has a receipt's rows in the files that prove them."""
    named = {file.stored.location for file in files}
    listed = {file.stored.location: file.listed for file in files if file.listed}
    if not listed or (receipt.moved_to is None and len(listed) < len(named)):
        yield Fault(
            ReceiptFault.MOVED,
            receipt,
            "in the table",
            "not in the table",
            min(named, default=receipt.data_file),
        )
        return
    deletes = {name for entries in listed.values() for entry in entries for name in entry.delete_files}
    if gone := named - listed.keys() - deletes:
        yield Fault(ReceiptFault.MOVED_AGAIN, receipt, "in the table", "not in the table", min(gone))
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
    """Describe the faults of the table's entries. No byte is lost by it, but queries are misled."""
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
            # Other segments' rows are in it as well.
            pairs[0] = ("rows", str(receipt.row_count), str(min(receipt.row_count, file.record_count)))
        for name, field_id, value in seen.identity:
            lower, upper = ((it or {}).get(field_id) for it in (file.lower_bounds, file.upper_bounds))
            if receipt.row_groups is not None:
                if lower is not None and upper is not None and not _is_within(name, lower, value, upper):
                    pairs.append((name, value.hex(), f"{lower.hex()} to {upper.hex()}"))
                continue
            if lower is not None and not _is_bound(lower, value, lower <= value):
                pairs.append((name, value.hex(), lower.hex()))
            if upper is not None and not _is_bound(upper, value, upper >= value):
                pairs.append((name, value.hex(), upper.hex()))
        for what, expected, found in pairs:
            if expected != found:
                yield Fault(ReceiptFault.ENTRY, receipt, f"{what} {expected}", found, entry.location)
    if seen.statistics:
        yield Fault(
            ReceiptFault.STATISTICS, receipt, "as in the footer", seen.statistics, seen.own[0].location
        )


def _is_bound(bound: bytes, value: bytes, contains: bool) -> bool:
    """Return whether a bound fits a column with one value; of a long text it has only the beginning."""
    return bound == value or (contains and len(value.decode(errors="replace")) > BOUND_CHARACTERS)


def _is_within(name: str, lower: bytes, value: bytes, upper: bytes) -> bool:
    """Return whether a column's bounds in a file of several segments have a segment's value between them."""
    if name in _NUMBERS:
        # As Iceberg writes whole numbers.
        first, found, last = (int.from_bytes(it, "little", signed=True) for it in (lower, value, upper))
        return first <= found <= last
    return lower <= value <= upper
