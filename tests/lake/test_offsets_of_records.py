"""A lake of segments whose offsets count lines: bytes are told by positions, what is there by offsets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_engine.exceptions import RestoreError, StoreLayoutError
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.move.describing import describe
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.restore.restore_span import Span
from storage_engine.lake.soundness.chain import row_hash
from storage_engine.lake.soundness.receipts import receipts, receipts_in
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import VerifyLevel
from storage_engine.model.store import Segment
from tests.lake.garbage_helpers import make_old
from tests.services import toy
from tests.services.restoring import restore
from tests.services.toy import LINES

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> Iterator[Any]:
    with toy.registered(tmp_path / "broker") as found:
        yield found


@pytest.fixture
def segments(tmp_path: Path, module: Any) -> list[Segment]:
    """All sealed ones: of the log "access" three, of "errors" one."""
    toy.make_store(tmp_path / "store")
    logs = module.ToyStore(tmp_path / "store", 24).snapshot(0).logs
    return [segment for log in logs for segment in log.sealed]


@pytest.fixture
def lake(tmp_path: Path, segments: list[Segment]) -> Lake:
    made = make_lake(LakeConfig.local(tmp_path / "lake"), "toy")
    archive(made, segments, tmp_path)
    return made


def archive(lake: Lake, segments: list[Segment], tmp_path: Path) -> tuple[Receipt, ...]:
    root = str(tmp_path / "store")
    jobs = segment_jobs(lake, segments, store_id="s", lineage=1, broker="toy", store_root=root)
    return archive_all(lake, jobs)


def check(lake: Lake, segments: list[Segment], to: Path, span: Span | None = None) -> None:
    """All files of these segments, and no other, come back."""
    restore(lake, "s", to, span=span)
    files = [Path(file.path) for segment in segments for file in segment.files]
    found = {path.relative_to(to): path.read_bytes() for path in to.glob("*/*")}
    assert found == {Path(file.parent.name, file.name): file.read_bytes() for file in files}


def put_receipts(lake: Lake, rows: list[Receipt]) -> None:
    """What somebody who writes to the table can do."""
    table = lake.segments()
    table.overwrite(pa.Table.from_pylist([asdict(row) for row in rows], schema=table.schema().as_arrow()))


def test_spans_are_of_offsets(lake: Lake, segments: list[Segment], tmp_path: Path) -> None:
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert found.overall == "OK"
    assert [(row.log, row.start_offset, row.end_offset) for row in found.ranges] == [
        ("access", 0, 3 * LINES),
        ("errors", 0, LINES),
    ]
    (store,) = describe(lake.config).stores
    assert store.ranges == (("access", 1, 0, 3 * LINES), ("errors", 1, 0, LINES))
    check(lake, segments[1:3], tmp_path / "from", Span(from_offset=LINES))
    check(lake, [segments[0], segments[3]], tmp_path / "to", Span(to_offset=LINES))
    (_, middle, *_) = receipts(lake, "s")
    put_receipts(lake, [row for row in receipts(lake, "s") if row != middle])
    with pytest.raises(
        RestoreError, match=rf"expected a segment at offset {LINES}, the next one is at {2 * LINES}"
    ):
        restore(lake, "s", tmp_path / "hole", log="access")


def test_rows_that_another_engine_rewrote_are_proven_restored_and_compared_where_they_are(
    lake: Lake, segments: list[Segment], tmp_path: Path
) -> None:
    rows = receipts(lake, "s")
    table = lake.messages()
    table.overwrite(table.scan().to_arrow())
    assert len(broken_receipts(lake, rows)) == len(rows)
    renewed = reprove(lake, "s", rows)
    assert [(row.end, row.companions) for row in renewed] == [(row.end, row.companions) for row in rows]
    assert broken_receipts(lake, renewed, Depth.FILES) == {}
    check(lake, segments, tmp_path / "back")
    compacted = local_path(next(iter(lake.messages().scan().plan_files())).file.file_path)
    assert compacted is not None
    same = compacted.with_name("same.parquet")
    shutil.copyfile(compacted, same)
    make_old(same)
    found = collect(lake, grace_ms=HOUR_MS, delete=True)
    # Its rows, put over those that the lake has by now, are the very same.
    assert [Path(one.path).name for one in found.taken if one.path.endswith("same.parquet")] == [
        "same.parquet"
    ]


def test_a_receipt_whose_files_were_changed_is_found_and_one_that_says_nonsense_replaced(
    lake: Lake, segments: list[Segment], tmp_path: Path
) -> None:
    *others, last = sorted(receipts(lake, "s"), key=lambda row: row.sequence)
    assert last.files is not None
    put_receipts(lake, [*others, replace(last, files=last.files.replace('"size_bytes":4', '"size_bytes":5'))])
    (found,) = verify(lake, VerifyLevel.RECEIPTS)
    assert any("it was changed after it was written" in finding.detail for finding in found.findings)
    nonsense = replace(last, files=last.files.replace(".count", "/count"))
    nonsense = replace(nonsense, row_hash=row_hash(asdict(nonsense)))
    put_receipts(lake, [*others, nonsense])
    (fault,) = broken_receipts(lake, receipts(lake, "s")).values()
    assert "its files are not sound: expected the name of a file in the segment's directory" in fault
    for level in (VerifyLevel.RECEIPTS, VerifyLevel.BYTES):
        (found,) = verify(lake, level)
        assert found.overall == "FAILURE"
        assert any("its files are not sound" in finding.detail for finding in found.findings)
    with pytest.raises(RestoreError, match=r"its files are not sound.*Nothing was written"):
        restore(lake, "s", tmp_path / "back")
    again = archive(lake, segments, tmp_path)
    assert [row.files for row in again if row.identity == last.identity] == [last.files]
    assert broken_receipts(lake, receipts(lake, "s"), Depth.FILES) == {}
    check(lake, segments, tmp_path / "back")


def test_a_rebuild_takes_ends_and_companions_from_receipts_of_other_states_only(
    lake: Lake, segments: list[Segment], tmp_path: Path
) -> None:
    rows = receipts(lake, "s")
    kept = [row for row in rows if row.sequence == 0]
    assert kept[0].base_offset == 0
    put_receipts(lake, kept)
    assert len(rebuild(lake.config, {}).brought) == len(rows) - 1
    lake = open_lake(lake.config)
    assert [(row.end, row.files) for row in receipts(lake, "s")] == [(row.end, row.files) for row in rows]
    check(lake, segments, tmp_path / "back")
    # Without any, nobody knows where a segment ends: not even the first one of a log.
    put_receipts(lake, [row for row in receipts_in(lake.segments(), "s") if row.base_offset])
    live = {str(local_path(task.file.file_path)) for task in lake.segments().scan().plan_files()}
    for path in (tmp_path / "lake").glob("**/segments/data/**/*.parquet"):
        if str(path) not in live:
            path.unlink()
    done = rebuild(lake.config, {})
    assert done.brought == ()
    assert len(done.refused) == 2
    assert all("with the end of its segment" in why for why in done.refused)
    assert all(Path(str(local_path(data_file_of(lake.messages(), row)))).exists() for row in rows)


def test_a_segment_without_offsets_is_not_archived(
    lake: Lake, segments: list[Segment], tmp_path: Path
) -> None:
    empty = replace(segments[0], end=segments[0].base_offset)
    with pytest.raises(StoreLayoutError, match=r"bytes of \[0, 0\)\. Nothing was archived"):
        archive(lake, [empty], tmp_path)
