"""Rows that another engine deletes merge-on-read: by delete files beside the data files, which stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFileContent

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status, VerifyLevel
from tests.lakes import path_of
from tests.other_engine import add_delete_file, delete_position

MakeJobs = Callable[..., tuple[SegmentJob, ...]]


@pytest.fixture
def archived(lake: Lake, segments: list[Path], make_jobs: MakeJobs) -> tuple[Receipt, ...]:
    return archive_all(lake, make_jobs(lake, *segments[:2]))


@pytest.mark.slow
def test_a_row_deleted_by_position_breaks_the_receipt_and_archiving_again_heals(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, archived: tuple[Receipt, ...]
) -> None:
    delete_position(lake, archived[0], 3)
    assert lake.messages().scan().to_arrow().num_rows == sum(row.row_count for row in archived) - 1
    (fault,) = broken_receipts(lake, archived).values()
    assert f"counts rows of {data_file_of(lake.messages(), archived[0])} as deleted" in fault
    assert reprove(lake, "store-1", archived) == ()
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert found.overall is Status.FAILURE
    archive_all(lake, make_jobs(lake, segments[0]))
    rows = receipts(lake, "store-1")
    assert broken_receipts(lake, rows, Depth.FILES) == {}
    assert lake.messages().scan().to_arrow().num_rows == sum(row.row_count for row in rows)
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())


@pytest.mark.slow
def test_a_delete_file_that_deletes_nothing_of_a_segment_is_proven_with_it_and_read_as_closely(
    lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    delete_position(lake, archived[0], 1 << 40)
    assert list(broken_receipts(lake, archived)) == [archived[0].identity]
    (renewed,) = reprove(lake, "store-1", archived)
    assert [file.location.rsplit("/")[-1] for file in renewed.proven_files][1] == "POSITION_DELETES.parquet"
    assert broken_receipts(lake, [renewed], Depth.FILES) == {}
    check_chain(receipt_history(lake, "store-1"))
    path = path_of(lake, renewed, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (fault,) = broken_receipts(lake, [renewed], Depth.FILES).values()
    assert "POSITION_DELETES.parquet has SHA-256" in fault


@pytest.mark.slow
def test_rows_deleted_by_equality_make_the_lake_unreadable_and_say_what_to_do(
    lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    column = lake.messages().schema().find_field("segment_base_offset")
    field = pa.field(column.name, pa.int64(), metadata={"PARQUET:field_id": str(column.field_id)})
    rows = pa.table([[0]], schema=pa.schema([field]))
    add_delete_file(lake, "store-1", rows, DataFileContent.EQUALITY_DELETES, equality_ids=[column.field_id])
    with pytest.raises(LakeUnavailableError, match=r"by equality delete files.*verify --level bytes --renew"):
        broken_receipts(lake, archived)
    with pytest.raises(LakeUnavailableError):
        verify(lake, VerifyLevel.BYTES)
