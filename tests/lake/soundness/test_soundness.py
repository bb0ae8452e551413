"""Whether a receipt is sound, by what was read: each depth by itself, and what a deeper one changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from storage_engine.lake.file.scan import LiveFile
from storage_engine.lake.soundness.soundness import (
    NO_SUCH_FILE,
    Fault,
    Look,
    ReceiptFault,
    Seen,
    SeenFile,
    chain_faults,
    judge,
    losses,
    reasons,
)
from storage_engine.model.proof.receipt import Receipt, files_text

AT = "file:///lake/messages/data/a.parquet"
LOG = 3
RECEIPT = Receipt(
    store_id="s", lineage=0, log="commitlog", base_offset=0, size_bytes=1000, sha256="a" * 64,
    broker="rocketmq", store_root="/s", message_count=7, row_count=7, damaged_bytes=0,
    first_store_timestamp_ms=None, last_store_timestamp_ms=None, source_path="/s/commitlog/0",
    source_device=1, source_inode=1, source_mtime_ns=1, source_ctime_ns=1, data_file=AT, data_file_bytes=500,
    data_file_sha256="b" * 64, proof_version=2, proven_at_ms=1, moved_to=None, sequence=0, previous_hash="",
    row_hash="",
)  # fmt: skip


def entry(location: str = AT, deletes: tuple[str, ...] = (), **said: Any) -> LiveFile:
    file, *others = (
        DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record("s"),
            **{"record_count": 7, "file_size_in_bytes": 500} | said,
        )
        for path in (location, *deletes)
    )
    return LiveFile(file, tuple(others))


def seen(*listed: LiveFile, receipt: Receipt = RECEIPT, log: bytes = b"commitlog", **more: Any) -> Seen:
    """What is read of a sound receipt, with these entries of its files."""
    files = tuple(
        SeenFile(file, tuple(it for it in listed if it.location == file.location))
        for file in receipt.proven_files
    )
    own = tuple(it for it in listed if it.location == receipt.data_file)
    return replace(Seen(files=files, own=own, identity=(("log", LOG, log),)), **more)


def read(size_bytes: int | None = 500, sha256: str | None = None) -> Seen:
    found = seen(entry())
    return replace(
        found, files=tuple(replace(it, size_bytes=size_bytes, sha256=sha256) for it in found.files)
    )


def kinds(found: Seen, receipt: Receipt = RECEIPT) -> list[ReceiptFault]:
    return [fault.kind for fault in judge(receipt, found)]


SOUND = read(sha256="b" * 64)
MOVED = replace(
    RECEIPT,
    moved_to=files_text(replace(it, location=name) for it in RECEIPT.proven_files for name in ("x", "y")),
)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (seen(entry()), []),
        (SOUND, []),
        (replace(SOUND, rows_sha256="a" * 64), []),
        (Seen("it was changed after it was written"), [ReceiptFault.ROW]),
        (seen(), [ReceiptFault.MOVED]),
        (seen(entry("another")), [ReceiptFault.MOVED]),
        (seen(entry(deletes=("d",))), [ReceiptFault.ROWS_DELETED]),
        (seen(entry(), entry()), [ReceiptFault.LISTED_TWICE]),
        (seen(entry(record_count=6)), [ReceiptFault.ENTRY]),
        (seen(entry(file_size_in_bytes=499)), [ReceiptFault.ENTRY]),
        (seen(entry(lower_bounds={LOG: b"commitlog"}, upper_bounds={LOG: b"commitlog"})), []),
        (seen(entry(lower_bounds={LOG: b"commit"})), [ReceiptFault.ENTRY]),
        (seen(entry(upper_bounds={LOG: b"other"})), [ReceiptFault.ENTRY]),
        (seen(entry(upper_bounds={LOG + 1: b"another column"})), []),
        (read(NO_SUCH_FILE), [ReceiptFault.MISSING]),
        (read(499), [ReceiptFault.SIZE]),
        (read(sha256="c" * 64), [ReceiptFault.SHA256]),
        (replace(SOUND, statistics="lower bounds"), [ReceiptFault.STATISTICS]),
        (replace(SOUND, rows_sha256="c" * 64), [ReceiptFault.ROWS]),
        (replace(SOUND, undecoded="its rows can't be decoded"), [ReceiptFault.UNDECODED]),
    ],
)
def test_each_fault_is_found_where_it_shows_and_nothing_else_is(
    found: Seen, expected: list[ReceiptFault]
) -> None:
    assert kinds(found) == expected


def test_what_loses_bytes_is_said_first() -> None:
    twice = seen(entry(record_count=6), entry(record_count=6), rows_sha256="c" * 64)
    assert kinds(twice) == [
        ReceiptFault.ROWS,
        ReceiptFault.LISTED_TWICE,
        ReceiptFault.ENTRY,
        ReceiptFault.ENTRY,
    ]
    faults = {RECEIPT.identity: judge(RECEIPT, twice)}
    assert "its rows have SHA-256" in losses(faults)[RECEIPT.identity]


def test_what_only_misleads_queries_makes_a_receipt_unsound_and_loses_nothing() -> None:
    faults = {RECEIPT.identity: judge(RECEIPT, seen(entry(), entry()))}
    assert losses(faults) == {}
    assert "in the table once, found it 2 times" in reasons(faults)[RECEIPT.identity]


def test_files_that_the_table_no_longer_has_are_not_asked_for() -> None:
    gone = replace(seen(), files=(replace(seen().files[0], size_bytes=NO_SUCH_FILE),))
    assert kinds(gone) == [ReceiptFault.MOVED]


@pytest.mark.parametrize(
    ("rows", "lost"),
    [("a" * 64, []), ("c" * 64, [ReceiptFault.MOVED, ReceiptFault.ROWS]), (None, [ReceiptFault.MOVED])],
)
def test_rows_that_prove_the_segment_elsewhere_are_not_lost_and_the_receipt_is_not_sound(
    rows: str | None, lost: list[ReceiptFault]
) -> None:
    found = seen(rows_sha256=rows)
    look = Look(RECEIPT, found, judge(RECEIPT, found))
    assert look.faults
    assert [fault.kind for fault in look.losses] == lost


def test_of_rows_that_were_moved_each_file_counts() -> None:
    def listed(*entries: LiveFile) -> list[ReceiptFault]:
        return kinds(seen(*entries, receipt=MOVED), MOVED)

    assert listed(entry("x"), entry("y")) == []
    assert listed(entry("x", deletes=("y",))) == []
    assert listed(entry("x")) == [ReceiptFault.MOVED_AGAIN]
    assert listed(entry("x"), entry("y"), entry("y")) == [ReceiptFault.LISTED_TWICE]
    assert listed(entry("x", deletes=("y", "z"))) == [ReceiptFault.ROWS_DELETED]
    assert listed(entry("x"), entry("y"), entry(), entry()) == [ReceiptFault.LISTED_TWICE]
    assert listed() == [ReceiptFault.MOVED]


def test_a_receipt_that_names_no_file_is_not_sound() -> None:
    nothing = replace(RECEIPT, moved_to=files_text(()))
    assert kinds(seen(receipt=nothing), nothing) == [ReceiptFault.MOVED]


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (b"x" * 64, b"x" * 63 + b"y", []),
        (b"x" * 63 + b"y", b"x" * 63 + b"z", [ReceiptFault.ENTRY]),
        (b"w" * 64, b"x" * 64, [ReceiptFault.ENTRY]),
    ],
)
def test_the_bounds_of_a_longer_name_only_contain_it(
    lower: bytes, upper: bytes, expected: list[ReceiptFault]
) -> None:
    """They have 64 characters; the last one of the upper bound is the next one."""
    file = entry(lower_bounds={LOG: lower}, upper_bounds={LOG: upper})
    assert kinds(seen(file, log=b"x" * 65)) == expected


def test_no_receipt_of_a_broken_chain_is_sound_and_none_is_lost_by_it() -> None:
    faults = chain_faults([RECEIPT], "row number 1 is missing")
    assert reasons(faults) == {RECEIPT.identity: "row number 1 is missing"}
    assert losses(faults) == {}


@pytest.mark.parametrize("kind", ReceiptFault)
def test_every_fault_has_its_words(kind: ReceiptFault) -> None:
    text = str(Fault(kind, RECEIPT, "EXPECTED", "FOUND", "SUBJECT"))
    assert "{" not in text
    assert "FOUND" in text or "SUBJECT" in text
