"""Looking closely at one archived segment: its data file, its rows, and the broker's file if it is there.

What is wrong with one segment is a result, never an exception: the others are looked at all the same.
PyArrow parses a data file only after its hash was found to be the one that was proven.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pyiceberg.table import Table

from storage_engine.exceptions import LakeUnavailableError, StorageEngineError
from storage_engine.lake.durable_io import open_data_file, sha256_of_file
from storage_engine.lake.errors import lake_errors
from storage_engine.lake.local_spans import companion_fault
from storage_engine.lake.names import proven_files
from storage_engine.lake.ranges import LocalSpan
from storage_engine.lake.segment_reader import read_segment
from storage_engine.lake.staging import sha256_of
from storage_engine.lake.table_entries import Entry, statistics_fault
from storage_engine.model.receipt import Receipt, StoredFile
from storage_engine.model.validation import Status
from storage_engine.model.verification import Finding, VerifyLevel, receipt_name

RESTORE_ADVICE = (
    "If the broker still has the segment, run storage-engine archive again: a new data file takes the place "
    "of one that is lost or damaged. Otherwise bring the data file back from a second lake or a backup of "
    "the warehouse, under its name, or roll the table back. Until then nothing relies on this receipt."
)

RENEW_ADVICE = (
    "Run storage-engine verify --level bytes --renew: where the rows prove the segment as they are now, it "
    "adds a receipt that says so."
)


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
    table: Table,
    receipt: Receipt,
    *,
    level: VerifyLevel,
    entry: Entry | None,
    moved: str,
    local: LocalSpan | None,
) -> SegmentLook:
    """Check one segment at FILES, BYTES or STORE.

    :param entry: the table's entry of its data file; None when the rows are in other files by now.
    :param moved: why the receipt does not hold as it is, since its rows are in other files; "" when it does.
    :param local: the broker's file; compared at STORE.
    """
    findings: list[Finding] = []
    fault, done, compare = moved, True, level is VerifyLevel.STORE and local is not None
    try:
        if not moved:
            fault = next(
                filter(None, (_file_fault(table, file) for file in proven_files(table, receipt))), ""
            )
            if not fault and entry is not None and (wrong := statistics_fault(table, entry)):
                findings.append(_statistics(receipt, wrong))
        if fault and not moved:
            level = VerifyLevel.FILES
            if compare and local is not None:
                local = _hashed(local)
        elif level.includes(VerifyLevel.BYTES):
            fault, local = _bytes_fault(table, receipt, local, compare=compare)
            if not fault and moved:
                findings.append(_moved(receipt, moved))
    except (LakeUnavailableError, MemoryError) as error:
        done = False
        findings.append(_unreadable(receipt, error))
    except StorageEngineError as error:
        fault = str(error)
    except Exception as error:
        # PyArrow and PyIceberg raise anything at all over bytes that they can't make sense of.
        fault = f"its rows can't be decoded: {type(error).__name__}: {error}"
    if moved and fault not in ("", moved):
        fault = f"{moved}; {fault}"
    return SegmentLook(receipt, level, fault, tuple(findings), done, local)


def _file_fault(table: Table, stored: StoredFile) -> str:
    try:
        with (
            lake_errors(stored.location, "read a data file"),
            open_data_file(table.io, stored.location) as file,
        ):
            found = sha256_of_file(file)
    except LakeUnavailableError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return f"data file {stored.location} is missing"
        raise
    if found == stored.sha256:
        return ""
    return f"data file {stored.location} has SHA-256 {found[:16]}…, expected {stored.sha256[:16]}…"


def _bytes_fault(
    table: Table, receipt: Receipt, local: LocalSpan | None, *, compare: bool
) -> tuple[str, LocalSpan | None]:
    """Re-encode the rows, and compare them with the broker's file where that is wanted.

    :return: why the rows are not the segment, and the broker's file as it was found.
    """
    digest, local_digest = hashlib.sha256(), hashlib.sha256()
    different_at: int | None = None
    with ExitStack() as opened:
        file = _open(opened, local) if compare else None
        for position, chunk in read_segment(table, receipt):
            digest.update(chunk)
            if file is None:
                continue
            found = file.read(len(chunk))
            local_digest.update(found)
            if different_at is None and (at := _first_difference(found, chunk)) is not None:
                different_at = position + at
        if file is not None and local is not None:
            local_digest.update(file.read())
            local = replace(
                local,
                sha256=local_digest.hexdigest(),
                different_at=different_at,
                companions_fault=local.companions_fault or _companions_fault(receipt, Path(local.path)),
            )
        elif compare:
            local = None
    if digest.hexdigest() == receipt.sha256:
        return "", local
    return f"its rows have SHA-256 {digest.hexdigest()[:16]}…, expected {receipt.sha256[:16]}…", local


def _companions_fault(receipt: Receipt, path: Path) -> str:
    """Return why what lies beside the broker's file isn't what the receipt has; "" where it is."""
    for companion in receipt.companions:
        try:
            fault = companion_fault(companion, path.with_name(companion.name))
        except FileNotFoundError:
            fault = f"its companion {companion.name} is not on disk"
        if fault:
            return fault
    return ""


def _open(opened: ExitStack, local: LocalSpan | None) -> BinaryIO | None:
    """The broker's file; None when there is none to compare, or a cleanup took it meanwhile."""
    if local is None:
        return None
    try:
        return opened.enter_context(Path(local.path).open("rb"))
    except FileNotFoundError:
        return None


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


def _statistics(receipt: Receipt, wrong: str) -> Finding:
    return Finding(
        Status.FAILURE,
        receipt_name(receipt),
        wrong,
        "No byte is lost, but queries may pass the file by: a manifest was changed or damaged. Roll the "
        "table messages back to a sound snapshot, or delete and add the file again.",
    )


def _moved(receipt: Receipt, moved: str) -> Finding:
    return Finding(
        Status.WARNING,
        receipt_name(receipt),
        f"{moved}; its rows prove the same bytes",
        f"Nothing is lost, but the gate deletes nothing on this receipt. {RENEW_ADVICE}",
    )


def _unreadable(receipt: Receipt, error: Exception) -> Finding:
    return Finding(
        Status.FAILURE,
        receipt_name(receipt),
        f"could not be checked: {str(error) or type(error).__name__}",
        "Nothing is known of it now. Make the file readable and verify again: it comes first.",
    )
