"""Rows that another engine deletes merge-on-read: by delete files beside the data files, which stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.archive import SegmentJob, archive_all
from storage_engine.lake.catalog import Lake
from storage_engine.lake.chain import check_chain
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.names import data_file_of
from storage_engine.lake.receipts import broken_receipts, receipt_history, receipts
from storage_engine.lake.reproof import reprove
from storage_engine.lake.verify import verify
from storage_engine.model.receipt import Receipt
from storage_engine.model.validation import Status
from storage_engine.model.verification import VerifyLevel
from tests.lakes import path_of

MakeJobs = Callable[..., tuple[SegmentJob, ...]]


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AppendDeletes(_FastAppendFiles):
    """PyIceberg reads delete files but writes none; this writes their manifest as other engines do."""

    def new_manifest_writer(self, spec: Any) -> ManifestWriterV2:
        schema = self._transaction.table_metadata.schema()
        return _DeletesWriter(spec, schema, self.new_manifest_output(), self._snapshot_id, self._compression)


def _add_delete_file(lake: Lake, rows: pa.Table, content: DataFileContent, **more: Any) -> None:
    table = lake.messages()
    location = f"{table.location()}/data/store_id=store-1/{content.name}.parquet"
    path = local_path(location)
    assert path is not None
    pq.write_table(rows, path)
    file = DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record("store-1"),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
        **more,
    )
    file.spec_id = table.spec().spec_id
    with (
        table.transaction() as transaction,
        _AppendDeletes(operation=Operation.APPEND, transaction=transaction, io=table.io) as append,
    ):
        append.append_data_file(file)


def _delete_position(lake: Lake, receipt: Receipt, position: int) -> None:
    ids = {"file_path": 2147483546, "pos": 2147483545}
    kinds = {"file_path": pa.string(), "pos": pa.int64()}
    schema = pa.schema(
        [
            pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(ids[name])})
            for name, kind in kinds.items()
        ]
    )
    location = data_file_of(lake.messages(), receipt)
    rows = pa.table([[location], [position]], schema=schema)
    # So that it concerns no other data file.
    bounds = {ids["file_path"]: location.encode()}
    _add_delete_file(lake, rows, DataFileContent.POSITION_DELETES, lower_bounds=bounds, upper_bounds=bounds)


@pytest.fixture
def archived(lake: Lake, segments: list[Path], make_jobs: MakeJobs) -> tuple[Receipt, ...]:
    return archive_all(lake, make_jobs(lake, *segments[:2]))


@pytest.mark.slow
def test_a_row_deleted_by_position_breaks_the_receipt_and_archiving_again_heals(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, archived: tuple[Receipt, ...]
) -> None:
    _delete_position(lake, archived[0], 3)
    assert lake.messages().scan().to_arrow().num_rows == sum(row.row_count for row in archived) - 1
    (fault,) = broken_receipts(lake, archived).values()
    assert f"counts rows of {data_file_of(lake.messages(), archived[0])} as deleted" in fault
    assert reprove(lake, "store-1", archived) == ()
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert found.overall is Status.FAILURE
    archive_all(lake, make_jobs(lake, segments[0]))
    rows = receipts(lake, "store-1")
    assert broken_receipts(lake, rows, read_files=True) == {}
    assert lake.messages().scan().to_arrow().num_rows == sum(row.row_count for row in rows)
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())


@pytest.mark.slow
def test_a_delete_file_that_deletes_nothing_of_a_segment_is_proven_with_it_and_read_as_closely(
    lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    _delete_position(lake, archived[0], 1 << 40)
    assert list(broken_receipts(lake, archived)) == [archived[0].identity]
    (renewed,) = reprove(lake, "store-1", archived)
    assert [file.location.rsplit("/")[-1] for file in renewed.proven_files][1] == "POSITION_DELETES.parquet"
    assert broken_receipts(lake, [renewed], read_files=True) == {}
    check_chain(receipt_history(lake, "store-1"))
    path = path_of(lake, renewed, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (fault,) = broken_receipts(lake, [renewed], read_files=True).values()
    assert "POSITION_DELETES.parquet has SHA-256" in fault


@pytest.mark.slow
def test_rows_deleted_by_equality_make_the_lake_unreadable_and_say_what_to_do(
    lake: Lake, archived: tuple[Receipt, ...]
) -> None:
    column = lake.messages().schema().find_field("segment_base_offset")
    field = pa.field(column.name, pa.int64(), metadata={"PARQUET:field_id": str(column.field_id)})
    rows = pa.table([[0]], schema=pa.schema([field]))
    _add_delete_file(lake, rows, DataFileContent.EQUALITY_DELETES, equality_ids=[column.field_id])
    with pytest.raises(LakeUnavailableError, match=r"by equality delete files.*verify --level bytes --renew"):
        broken_receipts(lake, archived)
    with pytest.raises(LakeUnavailableError):
        verify(lake, VerifyLevel.BYTES)
