from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import ReceiptError
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.soundness.chain import check_chain, row_hash
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.proof.receipt import CHAIN_START, EMPTY_CHAIN, PROOF_VERSION, ChainHead, Receipt
from tests.lakes import path_of

MakeJobs = Callable[..., tuple[SegmentJob, ...]]


def _receipt(base_offset: int, sequence: int, previous: str) -> Receipt:
    receipt = Receipt(
        store_id="store-1",
        lineage=0,
        log="commitlog",
        base_offset=base_offset,
        size_bytes=100,
        sha256="ab" * 32,
        broker="rocketmq",
        store_root="/store",
        message_count=1,
        row_count=2,
        damaged_bytes=0,
        first_store_timestamp_ms=None,
        last_store_timestamp_ms=None,
        source_path="/store/commitlog/0",
        source_device=1,
        source_inode=2,
        source_mtime_ns=3,
        source_ctime_ns=4,
        data_file="file:///lake/x.parquet",
        data_file_bytes=50,
        data_file_sha256="cd" * 32,
        proof_version=PROOF_VERSION,
        proven_at_ms=5,
        moved_to=None,
        sequence=sequence,
        previous_hash=previous,
        row_hash="",
    )
    return replace(receipt, row_hash=row_hash(asdict(receipt)))


def _chain(length: int) -> list[Receipt]:
    rows: list[Receipt] = []
    for number in range(length):
        rows.append(_receipt(number * 100, number, rows[-1].row_hash if rows else CHAIN_START))
    return rows


@given(st.permutations(_chain(6)))
def test_a_chain_holds_in_whatever_order_its_rows_are_read(rows: list[Receipt]) -> None:
    assert check_chain(rows) == ChainHead(5, _chain(6)[-1].row_hash)


def test_an_empty_chain_ends_where_it_starts() -> None:
    assert check_chain([]) == EMPTY_CHAIN


@pytest.mark.parametrize("position", range(4))
def test_a_changed_row_breaks_the_chain(position: int) -> None:
    rows = _chain(4)
    rows[position] = replace(rows[position], size_bytes=99)
    with pytest.raises(ReceiptError, match="it was changed after it was written"):
        check_chain(rows)


@pytest.mark.parametrize("position", range(3))
def test_a_removed_row_breaks_the_chain(position: int) -> None:
    rows = _chain(4)
    del rows[position]
    with pytest.raises(ReceiptError, match="was removed or replaced"):
        check_chain(rows)


def test_a_row_added_from_elsewhere_breaks_the_chain() -> None:
    rows = _chain(4)
    with pytest.raises(ReceiptError, match="one was added from elsewhere"):
        check_chain([*rows, _receipt(700, 2, rows[1].row_hash)])


@pytest.mark.slow
def test_receipts_are_told_by_store_lineage_and_log(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    archive_all(lake, make_jobs(lake, *segments[:2]))
    archive_all(lake, make_jobs(lake, segments[0], lineage=1))
    archive_all(lake, make_jobs(lake, segments[2], store_id="store-2"))
    assert [(row.lineage, row.base_offset) for row in receipts(lake, "store-1")] == [
        (0, 0),
        (0, 1 << 20),
        (1, 0),
    ]
    assert [row.base_offset for row in receipts(lake, "store-1", lineage=1)] == [0]
    assert receipts(lake, "store-1", log="other") == ()
    assert len(receipts(lake, "store-1", log="commitlog")) == 3
    (found,) = receipts(lake, "store-1", base_offsets=(1 << 20, 2 << 20))
    assert found.source_path == str(segments[1])
    check_chain(receipts(lake, "store-1"))
    check_chain(receipts(lake, "store-2"))
    stores = {store.store_id: store for store in list_stores(lake)}
    assert (stores["store-1"].segment_count, stores["store-1"].lineage) == (3, 1)
    assert stores["store-2"].size_bytes == 1 << 20
    assert stores["store-1"].store_root == str(segments[0].parents[1])


def test_an_empty_lake_has_no_stores(lake: Lake) -> None:
    assert list_stores(lake) == ()
    assert broken_receipts(lake, []) == {}


def test_a_receipt_holds_while_its_data_file_is_there_as_it_was(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    first, second, third = archive_all(lake, make_jobs(lake, *segments))
    assert broken_receipts(lake, [first, second, third]) == {}
    missing, shorter = path_of(lake, first), path_of(lake, second)
    missing.unlink()
    shorter.write_bytes(shorter.read_bytes()[:-1])
    broken = broken_receipts(lake, [first, second, third])
    assert set(broken) == {first.identity, second.identity}
    assert broken[first.identity] == f"data file {data_file_of(lake.messages(), first)} is missing"
    assert f"expected {second.data_file_bytes}" in broken[second.identity]


def test_a_receipt_of_a_newer_proof_or_with_changed_fields_does_not_hold(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    (receipt,) = archive_all(lake, make_jobs(lake, segments[0]))
    newer = replace(receipt, proof_version=PROOF_VERSION + 1)
    newer = replace(newer, row_hash=row_hash(asdict(newer)))
    (fault,) = broken_receipts(lake, [newer]).values()
    assert "this release knows up to" in fault
    (fault,) = broken_receipts(lake, [replace(receipt, sha256="00" * 32)]).values()
    assert "was changed after it was written" in fault


def test_a_receipt_whose_rows_were_deleted_does_not_hold(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    (receipt,) = archive_all(lake, make_jobs(lake, segments[0]))
    lake.messages().delete("segment_base_offset = 0")
    (fault,) = broken_receipts(lake, [receipt]).values()
    assert "is not in the table as it was written" in fault
