"""Segments of a real node in a lake: what comes back, what queries see, and each command on such a lake."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import And, BooleanExpression, EqualTo

from storage_engine.exceptions import BadInputError, LakeMissingError
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.lake.archive import archive as archiving
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.file.scan import between
from storage_engine.lake.gc import compaction
from storage_engine.lake.gc.garbage import collect, undo
from storage_engine.lake.gc.snapshot_expiry import LakePolicy, maintain_lake
from storage_engine.lake.move.copying import copy_lake, promote
from storage_engine.lake.move.describing import describe
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.restore.export import Selection, check_topic, export_messages
from storage_engine.lake.restore.export_format import ExportFormat
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.segment_reader import ReadCount, message_batches
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.model.store import Segment
from storage_engine.quality.facts import collect_lake
from tests.kafka.lakes import STORE, archive, new_lake, segments_of
from tests.kafka_fixture import truth
from tests.lake.garbage_helpers import local, make_old
from tests.other_engine import delete_position, rewrite
from tests.services.restoring import restore

LOGS = ("hdrs-0", "ctime-0", "txn-1")
"""With headers, compressed batches, markers."""


@pytest.fixture
def lake(node: Path, tmp_path: Path) -> Lake:
    lake = new_lake(tmp_path / "lake")
    archive(lake, node, segments_of(node, "hdrs-0", "ctime-0"))
    return lake


def comes_back(lake: Lake, node: Path, work: Path) -> None:
    """Every segment that a lake has a receipt of is whole, and comes back as it was."""
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())
    back = work / f"back-{len(list(work.iterdir()))}"
    for row in restore(lake, STORE, back):
        relative = Path(row.path).relative_to(back)
        (original,) = node.glob(f"*/{relative}")
        assert Path(row.path).read_bytes() == original.read_bytes()


@pytest.mark.again
def test_every_segment_of_a_node_goes_into_a_lake_and_back(node: Path, tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    # A segment that the cleaner has left empty is none: what it had is a hole.
    rows = archive(lake, node, [one for one in segments_of(node) if one.log != "compacted-0"])
    assert len(rows) > 100
    comes_back(lake, node, tmp_path)


def test_trash_comes_back_where_segments_metadata_lies_in_it(lake: Lake, tmp_path: Path) -> None:
    file = local(data_file_of(lake.messages(), receipts(lake, STORE)[0]))
    twin = file.with_name(f"{file.stem}-01234567.parquet")
    shutil.copyfile(file, twin)
    make_old(twin)
    collect(lake, grace_ms=0, delete=True)
    local(lake.segments().metadata_location).unlink()
    assert undo(lake.config).paths == (str(twin),)
    assert describe(lake.config).tables[1].name == "records"


def test_a_lake_of_kafka_has_a_table_of_records(node: Path, lake: Lake, tmp_path: Path) -> None:
    assert lake.messages().name() == ("storage_engine", "records")
    assert lake.messages().location().endswith("/storage_engine/records")
    assert sorted(it[-1] for it in lake.catalog.list_tables("storage_engine")) == [
        "deletions",
        "records",
        "segments",
    ]
    info = describe(lake.config)
    assert (info.refused, info.broker) == ("", "kafka")
    assert [table.name for table in info.tables] == ["segments", "records", "deletions"]
    assert info.tables[1].row_count == sum(row.row_count for row in receipts(lake, STORE))
    assert open_lake(lake.config).rows_table == "records"
    comes_back(lake, node, tmp_path)


def test_queries_see_what_kafka_reads(node: Path, lake: Lake) -> None:
    archive(lake, node, segments_of(node, *LOGS))
    rows = lake.messages().scan(row_filter="kind != 'batch'").to_arrow()
    known = Counter(
        {log: sum(b["count"] for b in truth()["batch"] if b["file"].split("/")[1] == log) for log in LOGS}
    )
    assert Counter(rows["log"].to_pylist()) == known
    headers = lake.messages().scan(row_filter="log = 'hdrs-0' and kind = 'message'").to_arrow()["headers"]
    assert {entry["key"] for row in headers.to_pylist() for entry in row}
    assert lake.messages().scan("log = 'txn-1' and control = 'commit'").to_arrow().num_rows > 0


def test_validation_sees_rows_without_bytes_as_they_are(lake: Lake) -> None:
    facts = collect_lake(lake, STORE, None, full=True)
    assert not facts.broken
    assert len(facts.rows) == len(facts.receipts) > 1
    for row in facts.rows:
        assert (row.first_row_offset, row.gaps, row.duplicates) == (0, 0, 0)
        assert row.last_row_end == row.row_bytes == row.end_offset
        assert row.found_rows == row.expected_rows


def test_a_partition_comes_back_out_of_a_larger_file(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "SHARED_SEGMENT_BYTES", 0)
    monkeypatch.setattr(compaction, "COMPACTED_LEAST_FILES", 2)
    lake = new_lake(tmp_path / "lake")
    rows = archive(lake, node, segments_of(node, *LOGS))
    before = lake.messages().scan().to_arrow()
    done = compaction.compact_lake(lake)
    assert done.larger_files < done.files
    after = lake.messages().scan().to_arrow()
    assert sorted(map(str, after.to_pylist())) == sorted(map(str, before.to_pylist()))
    assert {row.identity for row in receipts(lake, STORE)} == {row.identity for row in rows}
    comes_back(lake, node, tmp_path)


def test_a_moved_lake_is_relocated(node: Path, lake: Lake, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    (tmp_path / "lake").rename(moved)
    assert relocate(LakeConfig.local(moved)).changed
    comes_back(open_lake(LakeConfig.local(moved)), node, tmp_path)


def test_a_copy_is_brought_up_and_promoted(node: Path, lake: Lake, tmp_path: Path) -> None:
    to = LakeConfig.local(tmp_path / "copy")
    assert copy_lake(lake, to).receipt_count == len(receipts(lake, STORE))
    more = archive(lake, node, segments_of(node, "txn-1")[:1])
    assert copy_lake(lake, to).receipt_count == len(receipts(lake, STORE))
    copy = open_lake(to)
    comes_back(copy, node, tmp_path)
    promote(copy, "anna", "the original burnt")
    archive(open_lake(to), node, segments_of(node, "txn-1")[1:2])
    assert len(receipts(open_lake(to), STORE)) == len(receipts(lake, STORE)) + len(more)


def test_a_lost_catalog_is_made_again(node: Path, lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "lake/catalog.db").unlink()
    with pytest.raises(LakeMissingError):
        open_lake(lake.config)
    done = rebuild(lake.config, {})
    assert [table.table for table in done.tables] == ["segments", "records", "deletions"]
    comes_back(open_lake(lake.config), node, tmp_path)


def test_an_older_catalog_gets_what_came_after_it(node: Path, lake: Lake, tmp_path: Path) -> None:
    before = shutil.copy(tmp_path / "lake/catalog.db", tmp_path / "before.db")
    (row,) = archive(lake, node, segments_of(node, "txn-1")[:1])
    shutil.copy(before, tmp_path / "lake/catalog.db")
    rebuild(lake.config, {})
    found = open_lake(lake.config)
    assert row.identity in {it.identity for it in receipts(found, STORE)}
    comes_back(found, node, tmp_path)


def test_a_table_of_somebody_else_beside_a_lakes_is_none_of_it(
    node: Path, lake: Lake, tmp_path: Path
) -> None:
    lake.catalog.create_table(("storage_engine", "messages"), pa.schema([pa.field("x", pa.int64())]))
    assert open_lake(lake.config).rows_table == "records"
    moved = tmp_path / "moved"
    (tmp_path / "lake").rename(moved)
    relocate(LakeConfig.local(moved))
    comes_back(open_lake(LakeConfig.local(moved)), node, tmp_path)


def test_a_lake_without_its_table_of_records_says_so(lake: Lake, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "lake/catalog.db") as catalog:
        catalog.execute("DELETE FROM iceberg_tables WHERE table_name = 'records'")
    catalog.close()
    with pytest.raises(LakeMissingError, match="expected the tables records and segments"):
        open_lake(lake.config)
    with pytest.raises(LakeMissingError, match="found no records"):
        relocate(lake.config)


def test_garbage_goes_and_comes_back(node: Path, lake: Lake, tmp_path: Path) -> None:
    row = receipts(lake, STORE)[0]
    file = local(data_file_of(lake.messages(), row))
    twin = file.with_name(f"{file.stem}-01234567.parquet")
    shutil.copyfile(file, twin)
    make_old(twin)
    taken = collect(lake, grace_ms=0, delete=True)
    assert [it.path for it in taken.taken] == [str(twin)]
    assert undo(lake.config).paths == (str(twin),)
    done = maintain_lake(lake, LakePolicy(0, 1, 1), 2**40)
    assert not done.notices
    comes_back(lake, node, tmp_path)


def test_rows_that_another_engine_moved_prove_their_segment_again(
    node: Path, lake: Lake, tmp_path: Path
) -> None:
    row = next(row for row in receipts(lake, STORE) if row.log == "ctime-0")
    rewrite(lake, row)
    renewed = reprove(lake, STORE, receipts(lake, STORE))
    # What shared a data file with it was written again, too.
    assert row.identity in {one.identity for one in renewed}
    assert all(one.moved_to is not None for one in renewed)
    comes_back(lake, node, tmp_path)


def test_rows_without_bytes_that_are_gone_prove_nothing(lake: Lake) -> None:
    row = next(row for row in receipts(lake, STORE) if row.log == "ctime-0")
    kinds = pq.read_table(local(data_file_of(lake.messages(), row)), columns=["kind", "size"])
    at = kinds["size"].to_pylist().index(0)
    delete_position(lake, row, at)
    assert reprove(lake, STORE, [row]) == ()
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert found.overall is Status.FAILURE
    assert f"expected {row.row_count} rows" in str(found.findings + tuple(found.ranges))


def test_a_log_of_the_longest_name_is_archived(node: Path, lake: Lake, tmp_path: Path) -> None:
    longest = [
        Segment(f"{'t' * 249}-{number}", one.base_offset, one.facts, one.state, end=one.end)
        for number, one in enumerate(segments_of(node, "tinyseg-0")[:2])
    ]
    rows = archive(lake, node, longest, "other")
    assert len({data_file_of(lake.messages(), row) for row in rows}) == 2
    assert rows == archive(lake, node, longest, "other")
    (found,) = verify(lake, VerifyLevel.BYTES, store_id="other")
    assert found.overall is Status.OK


def test_records_are_exported_by_topic_partition_time_and_key(
    node: Path, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.lake.archive.archive.SHARED_SEGMENT_BYTES", 0)
    archive(lake, node, segments_of(node, "plain-0", "txn-0", "txn-1"))
    expected = [
        row
        for log in ("txn-0", "txn-1")
        for segment in segments_of(node, log)
        for rows, _ in CODEC.decode(memoryview(Path(segment.facts.path).read_bytes()), 0)
        for row in rows.to_pylist()
        if row["kind"] == "message"
    ]
    found = export_messages(lake, tmp_path / "txn", Selection(topic="txn"))
    rows = pq.read_table(tmp_path / "txn").to_pylist()
    assert found.message_count == len(rows) == len(expected)
    told = ("offset", "timestamp", "key", "value", "headers")
    assert [[row[name] for name in told] for row in rows if row["partition"] == 1] == [
        [row[name] for name in told] for row in expected[-sum(row["partition"] == 1 for row in rows) :]
    ]
    states = Counter(row["state"] for row in rows)
    assert states["committed"] > 0
    assert states["aborted"] > 0
    assert found.files_read < found.files_total
    moment = sorted(row["timestamp"] for row in rows)[len(rows) // 2]
    middle_ms = int(moment.timestamp() * 1000)
    chosen = Selection(topic="txn", queue_id=1, from_ms=middle_ms, to_ms=middle_ms + 1)
    part = export_messages(lake, tmp_path / "part.jsonl", chosen, file_format=ExportFormat.JSON_LINES)
    lines = [json.loads(line) for line in (tmp_path / "part.jsonl").read_text().splitlines()]
    assert part.message_count == len(lines)
    assert [line["offset"] for line in lines] == [
        row["offset"] for row in rows if row["partition"] == 1 and row["timestamp"] == moment
    ]
    assert part.files_read < found.files_read
    key = rows[0]["key"].decode()
    named = export_messages(lake, tmp_path / "key", Selection(topic="txn", key=key))
    assert named.message_count == sum(row["key"] == key.encode() for row in rows)
    with pytest.raises(BadInputError, match="expected one of the 4 topics that are archived"):
        check_topic(lake, "tnx")


def test_headers_are_exported_as_they_are(lake: Lake, tmp_path: Path) -> None:
    export_messages(lake, tmp_path / "rows", Selection(topic="hdrs"), file_format=ExportFormat.JSON_LINES)
    lines = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    headers = [header for line in lines for header in line["headers"]]
    assert headers
    assert {frozenset(header) for header in headers} == {frozenset(("key", "value", "value_encoding"))}
    assert {line["value_encoding"] for line in lines} <= {"utf-8", "base64"}


def test_offsets_and_times_choose_files_and_row_groups(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.arrow.row_groups.ROW_GROUP_BYTES", 16 << 10)
    monkeypatch.setattr("storage_engine.lake.archive.archive.SHARED_SEGMENT_BYTES", 0)
    lake = new_lake(tmp_path / "lake")
    segments = segments_of(node, "plain-0", "retbytes-0")
    archive(lake, node, segments)

    def read(where: BooleanExpression) -> tuple[list[int], ReadCount]:
        count = ReadCount()
        found = message_batches(lake.messages(), where, ("offset",), count=count)
        return [offset for rows in found for offset in rows["offset"].to_pylist()], count

    of_topic = And(EqualTo("topic", "plain"), EqualTo("kind", "message"))
    every, whole = read(of_topic)
    assert every == sorted(every)
    assert whole.files == sum(segment.log == "plain-0" for segment in segments)
    assert whole.row_groups > 3 * whole.files
    middle = every[len(every) // 2]
    found, count = read(And(of_topic, between("offset", middle, middle + 9)))
    assert found == list(range(middle, middle + 10))
    assert count.files <= 2
    assert count.row_groups <= 2
    assert count.bytes < whole.bytes / 10
    (moment,) = lake.messages().scan(And(of_topic, EqualTo("offset", middle))).to_arrow()["timestamp"]
    at_ms = int(moment.as_py().timestamp() * 1000)
    part = export_messages(lake, tmp_path / "rows", Selection(topic="plain", from_ms=at_ms, to_ms=at_ms + 1))
    assert part.message_count >= 1
    assert part.files_read <= 2
    assert part.row_groups_read <= 3
