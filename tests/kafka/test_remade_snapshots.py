"""A snapshot that a broker made again after a crash is the archived one, where it says the same."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from storage_engine.crc import crc32c_of
from storage_engine.cycle import archive_here
from storage_engine.kafka.format.producer_snapshot import same_producers
from storage_engine.lake.move.making import make_lake
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.retention import steps
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.stopped_nodes import clean, files_of, make_node, managed

Entry = tuple[int, int, int, int, int, int, int, int]


def entry(producer: int, *, last: int = 1, open_at: int = -1) -> Entry:
    return (producer, 0, 3, last, 0, 1_780_000_000_000, 0, open_at)


def snapshot(*entries: Entry) -> bytes:
    body = struct.pack(">i", len(entries)) + b"".join(struct.pack(">qhiqiqiq", *one) for one in entries)
    return struct.pack(">hI", 1, crc32c_of(body)) + body


@pytest.mark.parametrize(
    ("right", "same"),
    [
        (snapshot(entry(8), entry(7)), True),
        (snapshot(entry(7)), True),
        (snapshot(entry(7), entry(8), entry(9)), True),
        (snapshot(entry(7, last=0), entry(8)), False),
        (snapshot(entry(7), entry(8, open_at=1)), False),
        (snapshot(entry(7), entry(8), entry(9, open_at=1)), False),
        (snapshot(entry(7), entry(8))[:-1], False),
        (b"", False),
    ],
)
def test_it_is_the_same_with_the_same_producers(right: bytes, same: bool) -> None:
    left = snapshot(entry(7), entry(8))
    assert same_producers(left, right, "x") is same
    assert same_producers(right, left, "x") is same


@pytest.fixture
def archived(tmp_path: Path) -> tuple[ManagedStore, Path]:
    """A node that is archived, with the snapshot of the second segment of log a-0."""
    made = make_node(tmp_path / "node")
    (tmp_path / "managed").mkdir()
    path = made.directories[0] / "a-0" / f"{2:020d}.snapshot"
    path.write_bytes(snapshot(entry(7), entry(8)))
    store = managed(tmp_path / "managed", made.root)
    make_lake(store.lake, "kafka")
    steps.archive_sealed(store, "first", archive_here)
    return store, path


def test_what_a_broker_made_again_is_archived_proven_and_deleted(archived: tuple[ManagedStore, Path]) -> None:
    store, path = archived
    path.write_bytes(snapshot(entry(8)))
    again = steps.archive_sealed(store, "again", archive_here)
    assert again.refused == ()
    (verified,) = verify_store(store, VerifyLevel.STORE)
    assert verified.overall is Status.OK, verified
    clean(store, "run")
    assert files_of(path.parent)[0].startswith(f"{4:020d}.")


def test_one_that_a_broker_dropped_at_its_start_keeps_no_segment(archived: tuple[ManagedStore, Path]) -> None:
    store, path = archived
    path.unlink()
    assert steps.archive_sealed(store, "again", archive_here).refused == ()
    (verified,) = verify_store(store, VerifyLevel.STORE)
    assert verified.overall is Status.OK, verified
    clean(store, "run")
    assert files_of(path.parent)[0].startswith(f"{4:020d}.")


def test_a_transaction_index_that_is_gone_keeps_its_segment(archived: tuple[ManagedStore, Path]) -> None:
    store, path = archived
    path.with_suffix(".txnindex").unlink()
    (refused,) = steps.archive_sealed(store, "again", archive_here).refused
    assert refused.log == "a-0"


def test_one_of_other_producers_is_refused(archived: tuple[ManagedStore, Path]) -> None:
    store, path = archived
    path.write_bytes(snapshot(entry(7, last=0), entry(8)))
    (refused,) = steps.archive_sealed(store, "again", archive_here).refused
    assert refused.log == "a-0"
    assert "found a segment that ends at 4" in refused.why
