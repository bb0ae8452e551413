"""Looking closely at one archived segment: its data file, its rows, and the broker's file if it is there.

What is wrong with one segment is a result, never an exception: the others are looked at all the same. Whether
its receipt is sound :mod:`storage_engine.lake.soundness.soundness` says; here it is compared, and put into
words.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.coverage.coverage import LocalSpan
from storage_engine.lake.coverage.local_spans import companion_fault
from storage_engine.lake.file.staging import sha256_of
from storage_engine.lake.soundness.soundness import Depth, Fault, Look, ReceiptFault
from storage_engine.lake.soundness.soundness_reader import Reader
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status
from storage_engine.model.report.verification import Finding, VerifyLevel, receipt_name

RESTORE_ADVICE = Text(
    "If the broker still has the segment, run ",
    Command("archive"),
    " again: a new data file takes the place of one that is lost or damaged. Otherwise bring the data "
    "file back from a second lake or a backup of the warehouse, under its name, or roll the table "
    "back. Until then nothing relies on this receipt.",
)

RENEW_ADVICE = Text(
    "Run ",
    Command("verify --level bytes --renew"),
    ": where the rows prove the segment as they are now, it adds a receipt that says so.",
)


_DEPTHS = {
    VerifyLevel.RECEIPTS: Depth.SIZES,
    VerifyLevel.FILES: Depth.STATISTICS,
    VerifyLevel.BYTES: Depth.ROWS,
    VerifyLevel.STORE: Depth.ROWS,
}

_ADVICE = {
    ReceiptFault.LISTED_TWICE: Text(
        "No byte is lost, but the gate deletes nothing on this receipt. If the broker still has the "
        "segment, run ",
        Command("archive"),
        " again: one new data file takes the place of both. Otherwise roll the table of rows back to "
        "the snapshot before the second commit, or delete and add the file once, and find out who "
        "wrote to the table.",
    ),
    ReceiptFault.ENTRY: Text(
        "The table's manifest was changed or damaged, or the receipt along with its hash: then "
        "receipts have a finding too. If not, no byte is lost, but queries may pass the file by, and "
        "the gate deletes nothing on this receipt. Run ",
        Command("archive"),
        " again, roll the table of rows back to a sound snapshot, or delete and add the file again.",
    ),
    ReceiptFault.STATISTICS: (
        "No byte is lost, but queries may pass the file by: a manifest was changed or damaged. Roll the "
        "table of rows back to a sound snapshot, or delete and add the file again."
    ),
    ReceiptFault.TREE: (
        "No byte is lost, but no single row can be proven by this receipt: the keys of its rows, or the "
        "receipt along with its hash, were changed. Roll the table back to the snapshot before the change, "
        "and find out who wrote to it. If the broker still has the segment, keep it until then."
    ),
}
"""What to do where bytes are proven, and a receipt is not sound all the same."""

_OF_FILES = {ReceiptFault.MISSING, ReceiptFault.SIZE, ReceiptFault.SHA256}


@dataclass(frozen=True, slots=True)
class SegmentLook:
    """What a close look at one segment found.

    :param fault: why the lake can't be relied on for its bytes; "" when it can.
    :param findings: what else is wrong; includes that the segment could not be looked at.
    :param level: how deep the look went: not below the level at which a fault was found.
    :param done: the look came to an end: what it says may be remembered.
    :param local: the broker's file as it was found; None when it is not there, or went away.
    """

    receipt: Receipt
    level: VerifyLevel
    fault: str
    findings: tuple[Finding, ...]
    done: bool
    local: LocalSpan | None


def look_at(
    reader: Reader, receipt: Receipt, known: Look | None, *, level: VerifyLevel, local: LocalSpan | None
) -> SegmentLook:
    """Check one segment at FILES, BYTES or STORE.

    :param known: what metadata found wrong with its receipt; None: nothing.
    :param local: the broker's file; compared at STORE.
    """
    told = () if known is None else known.faults
    findings: list[Finding] = []
    with ExitStack() as opened:
        compared = _Compared.of(opened, local) if level is VerifyLevel.STORE else None
        try:
            look = reader.look(receipt, _DEPTHS[level], compared.take if compared else None)
        except (LakeUnavailableError, MemoryError) as error:
            return SegmentLook(receipt, level, "", (_unreadable(receipt, error),), False, local)
        if level is VerifyLevel.STORE and look.seen.rows_sha256 is not None:
            local = None if compared is None else compared.end(receipt)
    if any(fault.kind in _OF_FILES for fault in look.faults):
        if level is VerifyLevel.STORE and local is not None:
            local = _hashed(local)
        level = VerifyLevel.FILES
    findings += (_moved(fault) for fault in look.faults if fault.kind.loses and fault not in look.losses)
    findings += (unsound(it) for it in look.faults if not it.kind.loses and it not in told)
    return SegmentLook(receipt, level, "; ".join(map(str, look.losses)), tuple(findings), True, local)


def unsound(fault: Fault) -> Finding:
    """Return a fault that loses no byte as a finding."""
    return Finding(Status.FAILURE, receipt_name(fault.receipt), str(fault), _ADVICE[fault.kind])


@dataclass(slots=True)
class _Compared:
    """The broker's file, compared with a segment that the lake's rows are turned back into."""

    local: LocalSpan
    file: BinaryIO
    digest: hashlib._Hash
    different_at: int | None = None

    @classmethod
    def of(cls, opened: ExitStack, local: LocalSpan | None) -> _Compared | None:
        """Open the broker's file; None where there is none to compare, or a cleanup took it meanwhile."""
        if local is None:
            return None
        try:
            return cls(local, opened.enter_context(Path(local.path).open("rb")), hashlib.sha256())
        except FileNotFoundError:
            return None

    def take(self, position: int, chunk: memoryview) -> None:
        found = self.file.read(len(chunk))
        self.digest.update(found)
        if self.different_at is None and (at := _first_difference(found, chunk)) is not None:
            self.different_at = position + at

    def end(self, receipt: Receipt) -> LocalSpan:
        """Return what was found of the broker's file."""
        self.digest.update(self.file.read())
        return replace(
            self.local,
            sha256=self.digest.hexdigest(),
            different_at=self.different_at,
            companions_fault=self.local.companions_fault or _companions_fault(receipt, Path(self.local.path)),
        )


def _companions_fault(receipt: Receipt, path: Path) -> str:
    """Return why what lies beside the broker's file isn't what the receipt has; "" where it is."""
    for companion in receipt.companions:
        try:
            fault = companion_fault(receipt.broker, companion, path.with_name(companion.name))
        except FileNotFoundError:
            if find_broker(receipt.broker).receipts.drops_companion(companion.name):
                continue
            fault = f"its companion {companion.name} is not on disk"
        if fault:
            return fault
    return ""


def _hashed(local: LocalSpan) -> LocalSpan | None:
    try:
        return replace(local, sha256=sha256_of(local.path))
    except FileNotFoundError:
        return None


def _first_difference(found: bytes, expected: memoryview) -> int | None:
    shared = min(len(found), len(expected))
    differs = np.frombuffer(found, np.uint8, shared) != np.frombuffer(expected, np.uint8, shared)
    if differs.any():
        return int(np.argmax(differs))
    return None if len(found) == len(expected) else shared


def _moved(fault: Fault) -> Finding:
    return Finding(
        Status.WARNING,
        receipt_name(fault.receipt),
        f"{fault}; its rows prove the same bytes",
        Text("Nothing is lost, but the gate deletes nothing on this receipt. ", RENEW_ADVICE),
    )


def _unreadable(receipt: Receipt, error: Exception) -> Finding:
    return Finding(
        Status.FAILURE,
        receipt_name(receipt),
        f"could not be checked: {str(error) or type(error).__name__}",
        "Nothing is known of it now. Make the file readable and verify again: it comes first.",
    )
