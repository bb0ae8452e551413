"""What other engines, disks and people do to the tables, and how it is found out and put right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from storage_engine.exceptions import BadInputError, ReceiptError
from storage_engine.lake.archive import small_tables
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog import tables
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import proven_files
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.chain import check_chain, check_links
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.proof.receipt import ChainHead, Receipt
from storage_engine.model.report.validation import VerifyLevel, receipt_name
from tests.lakes import damage, path_of
from tests.rounds import again_but
from tests.services.restoring import restore

pytestmark = pytest.mark.slow

MakeJobs = Callable[..., tuple[SegmentJob, ...]]


@pytest.fixture
def lake(filled: Callable[[int], Lake]) -> Lake:
    return filled(2)


@pytest.fixture
def archived(lake: Lake) -> tuple[Receipt, ...]:
    return receipts(lake, "store-1")


def _rewrite(table: Table, where: str) -> None:
    """As a compaction does: the same rows, in files with other names."""
    rows = table.scan(row_filter=where).to_arrow()
    table.overwrite(rows.cast(table.schema().as_arrow()), overwrite_filter=where)


def _assert_restores(lake: Lake, segments: list[Path], to: Path) -> None:
    for restored in restore(lake, "store-1", to, files_only=True):
        assert (
            Path(restored.path).read_bytes() == (segments[0].parent / Path(restored.path).name).read_bytes()
        )


@pytest.mark.parametrize("fault", again_but(["lost", "damaged"], "damaged"))
def test_a_lost_or_damaged_data_file_is_replaced_by_archiving_again(
    fault: str,
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    archived: tuple[Receipt, ...],
    tmp_path: Path,
) -> None:
    path = path_of(lake, archived[0])
    if fault == "lost":
        path.unlink()
    else:
        damage(path)
        assert broken_receipts(lake, archived) == {}
    broken = broken_receipts(lake, archived, Depth.FILES)
    assert list(broken) == [archived[0].identity]
    archive_all(lake, make_jobs(lake, segments[0]))
    rows = receipts(lake, "store-1")
    assert [row.identity for row in rows] == [row.identity for row in archived]
    assert broken_receipts(lake, rows, Depth.FILES) == {}
    assert len(list(lake.messages().scan().plan_files())) == 2
    check_chain(receipt_history(lake, "store-1"))
    _assert_restores(lake, segments, tmp_path / "restored")


def test_rows_that_another_engine_rewrote_are_proven_again_where_they_are(
    lake: Lake, segments: list[Path], archived: tuple[Receipt, ...], tmp_path: Path
) -> None:
    _rewrite(lake.messages(), "store_id = 'store-1'")
    assert len(broken_receipts(lake, archived)) == 2
    proven = reprove(lake, "store-1", archived)
    assert broken_receipts(lake, proven, Depth.FILES) == {}
    assert receipts(lake, "store-1") == proven
    assert reprove(lake, "store-1", proven) == ()
    history = receipt_history(lake, "store-1")
    assert [row.sequence for row in history] == [0, 1, 2, 3]
    check_chain(history)
    _rewrite(lake.messages(), "store_id = 'store-1'")
    assert len(broken_receipts(lake, proven)) == 2
    _assert_restores(lake, segments, tmp_path / "restored")


def test_rows_that_were_dropped_are_noticed_and_archiving_again_brings_them_back(
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    archived: tuple[Receipt, ...],
    tmp_path: Path,
) -> None:
    lake.messages().delete("segment_base_offset = 0 and physical_offset > 500000")
    assert list(broken_receipts(lake, archived)) == [archived[0].identity]
    assert reprove(lake, "store-1", archived) == ()
    (again,) = archive_all(lake, make_jobs(lake, segments[0]))
    assert again.data_file != archived[0].data_file
    rows = receipts(lake, "store-1")
    assert broken_receipts(lake, rows, Depth.FILES) == {}
    assert lake.messages().scan().to_arrow().num_rows == sum(row.row_count for row in rows)
    check_chain(receipt_history(lake, "store-1"))
    _assert_restores(lake, segments, tmp_path / "restored")


def test_receipts_survive_the_expiry_of_snapshots(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, archived: tuple[Receipt, ...]
) -> None:
    archive_all(lake, make_jobs(lake, segments[2]))
    for table in (lake.messages(), lake.segments()):
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    assert len(lake.segments().metadata.snapshots) == 1
    rows = receipts(lake, "store-1")
    assert len(rows) == 3
    assert broken_receipts(lake, rows, Depth.FILES) == {}
    check_chain(receipt_history(lake, "store-1"))


def test_small_files_of_receipts_are_merged_and_the_chain_goes_on(
    filled: Callable[[int], Lake],
    segments: list[Path],
    make_jobs: MakeJobs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = filled(0)
    monkeypatch.setattr(small_tables, "MERGED_FILES", 3)
    for lineage in range(4):
        archive_all(lake, make_jobs(lake, segments[0], lineage=lineage))
    history = receipt_history(lake, "store-1")
    assert [row.sequence for row in history] == [0, 1, 2, 3]
    check_chain(history)
    assert len(list(lake.segments().scan().plan_files())) == 1
    assert broken_receipts(lake, history) == {}


def test_removed_last_rows_are_found_by_who_knows_how_long_the_chain_was(
    lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    known = ChainHead.of(archived)
    assert check_links(lake.segments(), "store-1", (known,)) == known
    lake.segments().delete(f"sequence = {known.sequence}")
    assert check_links(lake.segments(), "store-1").sequence == known.sequence - 1
    with pytest.raises(ReceiptError, match="the last rows were removed"):
        check_links(lake.segments(), "store-1", (known,))


@pytest.mark.parametrize("change", ["remove", "insert", "reorder"])
def test_links_alone_show_what_was_done_to_the_rows(
    change: str, lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    table = lake.segments()
    rows = table.scan().to_arrow().sort_by("sequence").to_pylist()
    if change == "remove":
        rows = rows[1:]
    elif change == "insert":
        rows.append(rows[1])
    else:
        rows[0]["sequence"], rows[1]["sequence"] = 1, 0
    table.overwrite(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    with pytest.raises(ReceiptError, match="prove nothing now"):
        check_links(lake.segments(), "store-1")


def test_a_newer_major_schema_version_is_refused(lake: Lake) -> None:
    with lake.segments().transaction() as transaction:
        transaction.set_properties({tables.SCHEMA_VERSION_PROPERTY: "4.0"})
    with pytest.raises(
        BadInputError, match=r"expected schema version 1\.x or 2\.x or 3\.x, found 4\.0.*or a later one"
    ):
        make_lake(lake.config)


def test_a_receipt_that_another_superseded_is_not_proven_again(
    lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    _rewrite(lake.messages(), "store_id = 'store-1'")
    assert len(reprove(lake, "store-1", archived[:1])) == 1
    _rewrite(lake.messages(), "store_id = 'store-1'")
    assert [row.base_offset for row in reprove(lake, "store-1", archived)] == [archived[1].base_offset]
    check_chain(receipt_history(lake, "store-1"))


@pytest.mark.parametrize("damage", again_but(["flipped", "lost"], "flipped"))
def test_the_files_that_rows_were_moved_to_are_read_as_closely_as_those_that_were_archived(
    damage: str, lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    _rewrite(lake.messages(), "store_id = 'store-1'")
    renewed = reprove(lake, "store-1", archived)
    path = path_of(lake, renewed[0])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    if damage == "lost":
        path.unlink()
    broken = broken_receipts(lake, renewed, Depth.FILES)
    concerned = {
        row.identity
        for row in renewed
        if any(local_path(file.location) == path for file in proven_files(lake.messages(), row))
    }
    assert set(broken) == concerned
    assert "is missing" in str(broken) if damage == "lost" else "has SHA-256" in str(broken)
    (found,) = verify(lake, VerifyLevel.FILES)
    assert {finding.subject for finding in found.findings} == {receipt_name(row) for row in renewed}
    # Neither is what can't be read proven, nor does it keep anything else from being said.
    assert reprove(lake, "store-1", renewed) == ()
