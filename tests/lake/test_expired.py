"""What readers of a lake say of segments that expired: in no place, and by which act. Nothing is LOST."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.core.wording import time_text
from storage_engine.exceptions import LakeConflictError, RestoreError
from storage_engine.lake.acts.act_files import record_act
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.coverage.spans import receipt_spans
from storage_engine.lake.file.scan import segment_rows
from storage_engine.lake.gc.snapshot_expiry import LakePolicy, maintain_lake
from storage_engine.lake.move.copying import copy_lake
from storage_engine.lake.move.describing import describe
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.restore.export import Selection, export_messages
from storage_engine.lake.restore.restore import choose_segments
from storage_engine.lake.restore.restore_span import Span, expired_line
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import list_stores, receipt_history, receipts
from storage_engine.lake.verify.verify import VerifyLevel, verify
from storage_engine.model.keep.acts import decide_hold, decide_rule
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.report.validation import Status, Where
from storage_engine.retention.housekeeping.keeping import read_streams
from tests.lake.committed import live_files
from tests.lake.expiry import ACT, Expire, drop_rows, expire, expire_receipts
from tests.lake.garbage_helpers import collected
from tests.lakes import path_of
from tests.services.command_line import run_command
from tests.services.restoring import restore

MakeJobs = Callable[..., tuple[SegmentJob, ...]]
MIB = 1 << 20
EVERY_EXPIRY = pytest.mark.parametrize("expire_rows", [expire_receipts, expire])
"""Between its two commits, and done."""
MOST_EXPIRIES = pytest.mark.parametrize(
    "expire_rows", [pytest.param(expire_receipts, marks=pytest.mark.again), expire]
)


@pytest.fixture
def lake(filled: Callable[[int], Lake]) -> Lake:
    return filled(3)


@EVERY_EXPIRY
def test_verify_is_green_over_what_expired(lake: Lake, expire_rows: Expire) -> None:
    expire_rows(lake, receipts(lake, "store-1")[1:2])
    for level in VerifyLevel:
        (found,) = verify(lake, level, store_id="store-1")
        assert (found.overall, found.findings) == (Status.OK, ())
        assert (found.receipt_count, found.coverage.total_bytes) == (2, 2 * MIB)
        assert [(row.start_offset, row.end_offset, row.where) for row in found.ranges] == [
            (0, MIB, Where.ARCHIVED),
            (MIB, 2 * MIB, Where.EXPIRED),
            (2 * MIB, 3 * MIB, Where.ARCHIVED),
        ]
        assert found.ranges[1].detail == f"expired by act {ACT[:12]}"
    (store,) = list_stores(lake)
    assert (store.segment_count, store.size_bytes) == (2, 2 * MIB)


def test_a_lake_of_which_everything_expired_is_green(lake: Lake) -> None:
    expire(lake, receipts(lake, "store-1"))
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings, found.receipt_count) == (Status.OK, (), 0)
    (row,) = found.ranges
    assert (row.start_offset, row.end_offset, row.where) == (0, 3 * MIB, Where.EXPIRED)


def test_the_policy_and_its_time_are_named(lake: Lake, tmp_path: Path) -> None:
    rows = receipts(lake, "store-1")
    kept = record_act(lake, lambda acts: decide_rule(acts, Scope(topic="orders"), "30 days"))
    expire_receipts(lake, rows[:1], act=kept[-1].sha256)
    held = record_act(lake, lambda acts: decide_hold(acts, Scope(topic="orders"), "case 7"))
    expire_receipts(lake, rows[2:], act=held[-1].sha256)
    texts = [
        f"expired by policy {recorded.sha256[:12]} since {time_text(recorded.act.at_ms)}" for recorded in held
    ]
    (found,) = verify(lake, VerifyLevel.RECEIPTS)
    assert [row.detail for row in found.ranges if row.where is Where.EXPIRED] == texts
    assert [row.ended for row in receipt_spans(lake, "store-1", 3)] == texts
    chosen = choose_segments(lake, "store-1", files_only=True)
    assert [one.end_text for one in chosen.expired] == texts
    exported = export_messages(lake, tmp_path / "rest.parquet", Selection())
    assert [one.end_text for one in exported.expired] == texts
    # Where the acts can't be read, the act is named all the same.
    for file in (tmp_path / "lake").rglob(f"{kept[-1].sha256}.json"):
        file.write_bytes(b"{}")
    spans = receipt_spans(lake, "store-1", 3)
    assert [row.ended for row in spans] == [f"expired by act {one.sha256[:12]}" for one in held]


def test_what_expired_is_in_no_forecast(lake: Lake) -> None:
    rows = receipts(lake, "store-1")
    before, _ = read_streams(lake, None)
    expire_receipts(lake, rows[:1])
    after, uncounted_bytes = read_streams(lake, None)
    gone = {stream["name"]: stream["bytes"] for stream in json.loads(rows[0].streams or "[]")}
    assert uncounted_bytes + sum(one.size_bytes for one in after) == 2 * MIB
    assert sum(one.size_bytes for one in before) - sum(one.size_bytes for one in after) == sum(gone.values())


@pytest.mark.again
def test_rows_that_are_there_twice_are_not_taken_for_what_expired(lake: Lake) -> None:
    rows = sorted(receipts(lake, "store-1"), key=lambda row: row.row_count)
    expire(lake, rows[-1:])
    table = lake.messages()
    where = segment_rows("store-1", rows[0].lineage, rows[0].log, rows[0].base_offset)
    table.append(table.scan(row_filter=where).to_arrow())
    (found,) = verify(lake, VerifyLevel.RECEIPTS)
    assert [finding.status for finding in found.findings if "some are in the table twice" in finding.detail]


def test_a_file_that_is_missing_for_a_whole_segment_stays_a_fault(lake: Lake) -> None:
    rows = receipts(lake, "store-1")
    expire_receipts(lake, rows[:1])
    drop_rows(lake, rows[:2])
    (found,) = verify(lake, VerifyLevel.RECEIPTS, store_id="store-1")
    assert found.overall is Status.FAILURE
    assert [(row.where, row.status) for row in found.ranges] == [
        (Where.EXPIRED, Status.OK),
        (Where.LOST, Status.FAILURE),
        (Where.ARCHIVED, Status.OK),
    ]


@EVERY_EXPIRY
def test_bytes_that_come_again_are_archived_again(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, expire_rows: Expire
) -> None:
    old = receipts(lake, "store-1")[0]
    old_file = data_file_of(lake.messages(), old)
    expire_rows(lake, [old])
    assert receipts(lake, "store-1")[0].base_offset == MIB
    (new,) = archive_all(lake, make_jobs(lake, segments[0]))
    assert (new.identity, new.state, new.sequence) == (old.identity, None, 4)
    # The file of the one that expired is to be removed: nothing may rest on it.
    new_file = data_file_of(lake.messages(), new)
    assert new_file != old_file
    assert old_file not in live_files(lake)
    assert new_file in live_files(lake)
    assert len(live_files(lake)) == 3
    assert receipts(lake, "store-1")[0] == new
    check_chain(receipt_history(lake, "store-1"))
    (found,) = verify(lake, VerifyLevel.BYTES, store_id="store-1")
    assert (found.overall, found.findings) == (Status.OK, ())


@MOST_EXPIRIES
def test_other_bytes_under_an_expired_offset_need_a_lineage(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, expire_rows: Expire
) -> None:
    expire_rows(lake, receipts(lake, "store-1")[:1])
    segments[0].write_bytes(segments[1].read_bytes())
    before = receipt_history(lake, "store-1")
    with pytest.raises(LakeConflictError, match="Nothing was committed"):
        archive_all(lake, make_jobs(lake, segments[0], accept_damage=True))
    assert receipt_history(lake, "store-1") == before


def test_a_restore_over_what_expired_names_the_spans_beside_it(lake: Lake, tmp_path: Path) -> None:
    rows = receipts(lake, "store-1")
    expire(lake, rows[1:2])
    with pytest.raises(RestoreError) as refused:
        choose_segments(lake, "store-1", files_only=True)
    assert f"commitlog [{MIB}, {2 * MIB}) EXPIRED: expired by act {ACT[:12]}." in str(refused.value)
    for first, end in ((0, MIB), (2 * MIB, 3 * MIB)):
        assert f"--from-offset {first} --to-offset {end}" in str(refused.value)
        span = Span(from_offset=first, to_offset=end)
        restored = restore(lake, "store-1", tmp_path / str(first), span=span, files_only=True)
        assert [one.base_offset for one in restored] == [first]
    with pytest.raises(RestoreError, match=rf"found none.*\[{MIB}, {2 * MIB}\) EXPIRED"):
        choose_segments(lake, "store-1", span=Span(from_offset=MIB, to_offset=2 * MIB), files_only=True)


@MOST_EXPIRIES
def test_a_restore_behind_what_expired_says_so(lake: Lake, expire_rows: Expire) -> None:
    rows = receipts(lake, "store-1")
    expire_rows(lake, rows[:2])
    chosen = choose_segments(lake, "store-1", files_only=True)
    assert chosen.receipts == rows[2:]
    assert list(map(expired_line, chosen.expired)) == [
        f"commitlog [0, {2 * MIB}) EXPIRED: expired by act {ACT[:12]}"
    ]


@EVERY_EXPIRY
def test_an_export_leaves_out_what_expired_and_says_so(
    lake: Lake, tmp_path: Path, expire_rows: Expire
) -> None:
    rows = receipts(lake, "store-1")
    whole = export_messages(lake, tmp_path / "whole.parquet", Selection())
    assert whole.expired == ()
    expire_rows(lake, rows[:1])
    found = export_messages(lake, tmp_path / "rest.parquet", Selection())
    assert found.message_count == whole.message_count - rows[0].message_count
    (gone,) = found.expired
    assert (gone.start_offset, gone.end_offset) == (0, MIB)
    topics = {stream["name"] for stream in json.loads(rows[0].streams or "[]")}
    assert topics
    for number, topic in enumerate((*topics, "nobody's")):
        found = export_messages(lake, tmp_path / f"{number}.parquet", Selection(topic=topic))
        assert bool(found.expired) == (topic in topics)
    later = Selection(from_ms=(rows[0].last_store_timestamp_ms or 0) + 1)
    assert export_messages(lake, tmp_path / "later.parquet", later).expired == ()


@MOST_EXPIRIES
def test_gc_leaves_what_expired_alone_and_snapshots_expire(lake: Lake, expire_rows: Expire) -> None:
    rows = receipts(lake, "store-1")
    file = path_of(lake, rows[0])
    expire_rows(lake, rows[:1])
    collected(lake, delete=True)
    assert file.exists()
    policy = LakePolicy(snapshot_age_ms=0, least_snapshots=1)
    done = maintain_lake(lake, policy, time.time_ns() // 1_000_000 + 1000)
    assert (done.notices, done.expired > 0) == ((), True)
    collected(lake, delete=True)
    assert file.exists()
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())


@MOST_EXPIRIES
def test_a_copy_has_what_expired_as_that(lake: Lake, tmp_path: Path, expire_rows: Expire) -> None:
    expire_rows(lake, receipts(lake, "store-1")[:1])
    copy_lake(lake, LakeConfig.local(tmp_path / "copy"))
    copy = open_lake(LakeConfig.local(tmp_path / "copy"))
    (found,) = verify(copy, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())
    assert [row.where for row in found.ranges] == [Where.EXPIRED, Where.ARCHIVED]
    (store,) = describe(copy.config).stores
    assert (store.segment_count, store.size_bytes) == (2, 2 * MIB)
    assert (store.ranges, store.expired) == (
        (("commitlog", 0, MIB, 3 * MIB),),
        (("commitlog", 0, 0, MIB),),
    )


@MOST_EXPIRIES
def test_a_rebuild_does_not_bring_back_what_expired(lake: Lake, tmp_path: Path, expire_rows: Expire) -> None:
    expire_rows(lake, receipts(lake, "store-1")[:1])
    before = receipt_history(lake, "store-1")
    (tmp_path / "lake" / "catalog.db").unlink()
    found = rebuild(lake.config, {})
    assert (found.brought, found.refused, found.conflicting) == ((), (), ())
    assert receipt_history(open_lake(lake.config), "store-1") == before


def test_a_rebuild_that_lost_an_expiry_does_not_undo_it(lake: Lake, tmp_path: Path) -> None:
    """A state of ``segments`` without any receipt of it, and a data file that still lies there."""
    rows = receipts(lake, "store-1")
    expire(lake, rows[2:])
    shutil.copy2(tmp_path / "lake" / "catalog.db", tmp_path / "newest.db")
    table = lake.segments()
    for state in table.snapshots():
        first = next(iter(table.scan(snapshot_id=state.snapshot_id).to_arrow().to_pylist()), None)
        if first is not None and len(table.scan(snapshot_id=state.snapshot_id).to_arrow()) == 2:
            table.manage_snapshots().rollback_to_snapshot(state.snapshot_id).commit()
            break
    assert len(receipt_history(lake, "store-1")) == 2
    found = rebuild(lake.config, {})
    assert found.brought == ()
    assert [text for text in found.refused if "expired by act" in text]
    assert [row.base_offset for row in receipts(open_lake(lake.config), "store-1")] == [0, MIB]


def test_commands_name_what_expired(lake: Lake, tmp_path: Path) -> None:
    expire(lake, receipts(lake, "store-1")[:1])
    place, line = tmp_path / "lake", f"commitlog [0, {MIB}) EXPIRED: expired by act {ACT[:12]}"
    restored = run_command("restore", "--lake", place, "--to", tmp_path / "back", "--files-only")
    assert (restored.exit_code, line in restored.err) == (0, True)
    exported = run_command("export", "--lake", place, "--to", tmp_path / "rest.parquet")
    assert (exported.exit_code, line in exported.err) == (0, True)
    described = run_command("lake", "info", "--lake", place)
    assert f"[0, {MIB}) EXPIRED" in described.out
