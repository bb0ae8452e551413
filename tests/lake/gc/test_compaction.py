"""Small data files that become larger ones: nothing is lost or doubled, whenever it is killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.exceptions import (
    BadInputError,
    LakeIdentityError,
    LakeUnavailableError,
    ProofError,
    ReceiptError,
)
from storage_engine.lake.acts import act_files
from storage_engine.lake.acts.act_files import read_acts, read_store_names, record_act
from storage_engine.lake.archive import archive as archiving
from storage_engine.lake.archive import commit as committing
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.file.jobs import shared_file_name
from storage_engine.lake.gc import compaction, segment_expiry
from storage_engine.lake.gc.compaction import (
    LakeCompaction,
    LargerFile,
    SmallFile,
    compact_lake,
    maintain_compaction,
    plan_files,
)
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.gc.garbage_kind import TRASH_MS
from storage_engine.lake.gc.segment_expiry import finish_acts, remove_expired, undo_expiry
from storage_engine.lake.gc.snapshot_expiry import LakePolicy, maintain_lake
from storage_engine.lake.gc.trash import TRASH
from storage_engine.lake.move.copying import copy_lake, promote
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.soundness.receipts import list_stores, receipt_history, receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.keep.acts import decide_hold, decide_rule
from storage_engine.model.keep.expiry_rules import ExpiryReason
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.proof.receipt import Receipt, with_rows
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.retention.housekeeping.lake_expiry import LakeExpiry, expire_lake
from tests.lake.archive.test_sharing import check, rows_of
from tests.lake.conftest import MakeJobs
from tests.lake.expiry import expire_receipts
from tests.lake.garbage_helpers import expire_snapshots, make_old
from tests.lake.gc.test_segment_expiry import begin_to_expire, expire, states
from tests.lake.killed_at_each import killed_at_each
from tests.rounds import again_but, rounds

pytestmark = pytest.mark.usefixtures("no_other_run")

STORE = "store-1"


@pytest.fixture(autouse=True)
def two_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files become one, as if this log had one topic, which Kafka's have."""
    monkeypatch.setattr(compaction, "COMPACTED_LEAST_FILES", 2)
    monkeypatch.setattr(compaction, "SHARED_GROUP_BYTES", 8 << 20)
    monkeypatch.setattr(compaction, "topic_of", lambda broker, log: "orders")


@pytest.fixture
def small(filled: Callable[[int], Lake]) -> Lake:
    """A lake with a data file a segment."""
    lake = filled(3)
    assert len(live(lake)) == 3
    return lake


def live(lake: Lake) -> list[str]:
    return sorted(lake.messages().inspect.files()["file_path"].to_pylist())


def shared(lake: Lake) -> bool:
    """Return whether every receipt names one file, and the table has that file alone."""
    rows = receipts(lake, STORE)
    return live(lake) == [data_file_of(lake.messages(), rows[0])] and all(row.row_groups for row in rows)


def test_small_files_become_one_and_each_segment_comes_back(
    small: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    before, rows, query = receipts(small, STORE), rows_of(small), table_of(small)
    planned = compact_lake(small, dry_run=True)
    assert (planned.files, planned.larger_files, len(live(small))) == (3, 1, 3)
    done = compact_lake(small)
    assert replace(done, dry_run=True) == planned
    assert shared(small)
    assert done.text.startswith("3 small data files, ")
    after = check(small, segments, tmp_path / "back")
    for old, new in zip(before, after, strict=True):
        assert (new.identity, new.root, new.streams, new.source_facts) == (
            old.identity,
            old.root,
            old.streams,
            old.source_facts,
        )
    assert (rows_of(small), table_of(small)) == (rows, query)
    # Twice is once, and archiving the same again finds it.
    assert compact_lake(small).text == ""
    assert archive_all(small, make_jobs(small, *segments)) == after
    assert len(receipt_history(small, STORE)) == 6


@pytest.mark.parametrize("group_bytes", [8 << 20, pytest.param(1, marks=pytest.mark.again)])
def test_a_file_that_segments_share_becomes_part_of_a_larger_one(
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    group_bytes: int,
) -> None:
    monkeypatch.setattr(archiving, "SHARED_LEAST_SEGMENTS", 2)
    monkeypatch.setattr(archiving, "topic_of", lambda broker, log: "orders")
    monkeypatch.setattr(archiving, "SHARED_GROUP_BYTES", group_bytes)
    monkeypatch.setattr(compaction, "SHARED_GROUP_BYTES", group_bytes)
    archive_all(lake, make_jobs(lake, *segments[1:]))
    archive_all(lake, make_jobs(lake, segments[0]))
    assert len(live(lake)) == 2
    assert compact_lake(lake).files == 2
    assert shared(lake)
    check(lake, segments, tmp_path / "back")


def table_of(lake: Lake) -> list[dict[str, object]]:
    """Return every row, with every column."""
    rows = lake.messages().scan().to_arrow().sort_by("physical_offset").to_pylist()
    return [{name: str(value) for name, value in row.items()} for row in rows]


def killed_between(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact, and be killed when the table has the larger file and no receipt names it."""
    with monkeypatch.context() as patched:
        patched.setattr(segment_expiry, "prepare_receipts", _killed)
        with pytest.raises(KeyboardInterrupt):
            compact_lake(lake)
    assert len(live(lake)) == 1
    assert all(row.row_groups is None for row in receipts(lake, STORE))


def act_before_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[Lake], object]) -> None:
    """Have something done once, when the larger files are written and before they are committed."""
    commit = compaction._commit

    def acted_first(lake: Lake, files: Sequence[LargerFile]) -> list[LargerFile]:
        monkeypatch.setattr(compaction, "_commit", commit)
        act(lake)
        return commit(lake, files)

    monkeypatch.setattr(compaction, "_commit", acted_first)


def _killed(*_arguments: object) -> None:
    raise KeyboardInterrupt


def test_killed_at_each_operation_it_is_one_state_or_the_other(
    small: Lake, segments: list[Path], tmp_path: Path
) -> None:
    ended = set()
    for lake, operation in killed_at_each(tmp_path, small.config, run, least=12, few=5):
        names, rows = live(lake), receipts(lake, STORE)
        # Each segment's rows are in the table, once, at every instant; and its receipt or the rows prove it.
        assert len(rows_of(lake)) == sum(row.row_count for row in rows), operation
        (found,) = verify(lake, VerifyLevel.BYTES)
        moved = "another engine has put its rows" in str(found.findings)
        assert found.overall is Status.OK or moved, (operation, found.findings)
        ended.add((len(names), moved))
        assert not collect(lake, grace_ms=0, delete=True, trash_ms=0).deleted
        compact_lake(lake)
        assert shared(lake), operation
        check(lake, segments, tmp_path / "back")
    assert {(3, False), (1, False)} <= ended


def run(lake: Lake) -> None:
    compact_lake(lake)


def test_killed_between_its_commits_the_rows_are_proven_where_they_are(
    small: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed_between(small, monkeypatch)
    # gc takes neither, and no snapshot expires.
    assert collect(small, grace_ms=0, delete=True, trash_ms=0).taken == ()
    assert "no snapshot expires" in str(maintain_lake(small, LakePolicy(), 0).notices)
    renewed = reprove(small, STORE, receipts(small, STORE)[:1])
    assert renewed[0].moved_to is not None
    assert compact_lake(small).text == ""
    assert shared(small)
    check(small, segments, tmp_path / "back")


def test_killed_between_its_commits_archiving_finishes_it(
    small: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    killed_between(small, monkeypatch)
    # Of two segments; compaction gives the third its receipt.
    archive_all(small, make_jobs(small, *segments[:2]))
    compact_lake(small)
    assert shared(small)
    check(small, segments, tmp_path / "back")


@pytest.mark.parametrize("fault", again_but(["rows", "footer", "lost"], "lost"))
def test_killed_between_its_commits_small_files_give_back_what_a_damaged_larger_one_lost(
    small: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fault: str,
) -> None:
    killed_between(small, monkeypatch)
    path = Path(live(small)[0].removeprefix("file://"))
    kept = path.read_bytes()
    path.write_bytes(kept[:1000] + bytes(4000) + kept[5000:] if fault == "rows" else kept[:-10] + bytes(10))
    if fault == "lost":
        path.unlink()
    # One alone is archived again; the others have no other place any more than the small files.
    archive_all(small, make_jobs(small, segments[0]))
    assert all(row.row_groups is None for row in check(small, segments, tmp_path / "back"))
    compact_lake(small)
    assert shared(small)
    check(small, segments, tmp_path / "back")


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "footer"])
def test_of_a_damaged_larger_file_that_receipts_name_in_part_the_others_come_back(
    small: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    killed_between(small, monkeypatch)
    archive_all(small, make_jobs(small, *segments[:2]))
    assert [row.row_groups is None for row in receipts(small, STORE)] == [False, False, True]
    path = Path(live(small)[0].removeprefix("file://"))
    path.unlink() if is_lost else path.write_bytes(path.read_bytes()[:-10] + bytes(10))
    archive_all(small, make_jobs(small, segments[0]))
    # The second is in the damaged file alone; the third's small file has its rows.
    rows = receipts(small, STORE)
    assert list(broken_receipts(small, rows, Depth.ROWS)) == [rows[1].identity]
    archive_all(small, make_jobs(small, segments[1]))
    assert not broken_receipts(small, receipts(small, STORE), Depth.ROWS)


def test_what_expired_in_a_larger_file_without_a_footer_keeps_nothing_from_coming_back(
    small: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_between(small, monkeypatch)
    record_act(small, lambda acts: decide_rule(acts, Scope(), "0 days"))
    expire_receipts(small, receipts(small, STORE)[1:2])
    record_act(small, lambda acts: decide_rule(acts, Scope(), None))
    path = Path(live(small)[0].removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-10] + bytes(10))
    archive_all(small, make_jobs(small, segments[0]))
    assert states(small) == [None, "expired", None]
    rows = receipts(small, STORE)
    assert not broken_receipts(small, rows, Depth.ROWS)
    assert len(rows_of(small)) == sum(row.row_count for row in rows)


@pytest.mark.again
@pytest.mark.parametrize("way", ["rebuild", "archive"])
def test_killed_again_where_small_files_give_rows_back_all_get_their_receipts(
    small: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    killed_between(small, monkeypatch)
    path = Path(live(small)[0].removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:1000] + bytes(4000) + path.read_bytes()[5000:])
    with monkeypatch.context() as patched:
        patched.setattr(committing, "prepare_receipts", _killed)
        with pytest.raises(KeyboardInterrupt):
            archive_all(small, make_jobs(small, segments[0]))
    (found,) = verify(small, VerifyLevel.RECEIPTS)
    assert "lake rebuild" in str(found.findings)
    if way == "rebuild":
        rebuild(small.config, {})
    else:
        archive_all(small, make_jobs(small, *segments))
    lake = open_lake(small.config)
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert found.findings == ()
    assert len(rows_of(lake)) == sum(row.row_count for row in receipts(lake, STORE))


def test_killed_between_its_commits_a_rebuild_finishes_it(
    small: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed_between(small, monkeypatch)
    rebuild(small.config, {})
    lake = open_lake(small.config)
    compact_lake(lake)
    check(lake, segments, tmp_path / "back")


def test_a_larger_file_that_does_not_prove_its_segments_makes_way_for_the_small_ones(
    small: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed_between(small, monkeypatch)
    path = Path(live(small)[0].removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    done = compact_lake(small)
    assert "expected the segment commitlog/" in done.faults[0] or path.name in done.faults[0]
    assert all(row.row_groups for row in check(small, segments, tmp_path / "back"))


def test_what_replaced_them_holds_all_before_gc_takes_small_files(
    small: Lake, segments: list[Path], tmp_path: Path
) -> None:
    small_files = [Path(name.removeprefix("file://")) for name in live(small)]
    older = small.messages()
    compact_lake(small)
    for path in small_files:
        make_old(path)
    # A reader with the older snapshot finds its files.
    assert collect(small, grace_ms=0, delete=True, trash_ms=0).taken == ()
    assert older.scan().to_arrow().num_rows == len(rows_of(small))
    expire_snapshots(small.messages())
    larger = Path(live(small)[0].removeprefix("file://"))
    kept = larger.read_bytes()
    larger.write_bytes(kept[:-1000] + bytes(1000))
    assert collect(small, grace_ms=0, delete=True, trash_ms=0).taken == ()
    larger.write_bytes(kept)
    collect(small, grace_ms=0, delete=True, trash_ms=0)
    assert not any(path.exists() for path in small_files)
    check(small, segments, tmp_path / "back")


@pytest.mark.parametrize("change", [b"", bytes(4000)], ids=["lost", "damaged"])
def test_a_damaged_file_is_named_with_its_segment_and_the_others_go_on(
    small: Lake, segments: list[Path], tmp_path: Path, change: bytes
) -> None:
    row = receipts(small, STORE)[1]
    path = Path(data_file_of(small.messages(), row).removeprefix("file://"))
    kept = path.read_bytes()
    path.write_bytes(kept[:2000] + change + kept[6000:])
    if not change:
        path.unlink()
    done = compact_lake(small)
    assert len(done.faults) == 1
    assert path.name in done.faults[0]
    assert f"{row.base_offset:020d}" in done.faults[0]
    assert len(live(small)) == 2
    path.write_bytes(kept)
    assert compact_lake(small).faults == ()
    check(small, segments, tmp_path / "back")


@pytest.mark.parametrize("trouble", ["lost", "lost while it is proven", "its chain is broken"])
def test_what_is_wrong_with_one_store_ends_no_other_store(
    small: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    trouble: str,
) -> None:
    killed_between(small, monkeypatch)
    (named,) = live(small)
    for other in ("store-0", "store-2"):
        for path in segments:
            archive_all(small, make_jobs(small, path, store_id=other))
    at = Path(named.removeprefix("file://"))
    if trouble == "its chain is broken":

        def breaks(rows: Sequence[Receipt]) -> None:
            if rows[0].store_id == STORE:
                raise ReceiptError(f"{at.name}: expected another link.")

        monkeypatch.setattr(compaction, "check_chain", breaks)
    elif trouble == "lost":
        at.unlink()
    else:
        segments_in = compaction.segments_in

        def lost_then(file_io: FileIO, location: str) -> object:
            found = segments_in(file_io, location)
            if location == named:
                at.unlink()
            return found

        monkeypatch.setattr(compaction, "segments_in", lost_then)
    done = compact_lake(small)
    # Where the small files come back they are compacted in the same run.
    stores = 3 if trouble == "lost while it is proven" else 2
    assert (done.files, done.larger_files) == (3 * stores, stores)
    assert len(done.faults) == 1
    assert at.name in done.faults[0]
    for other in ("store-0", "store-2"):
        assert len({row.data_file for row in receipts(small, other)}) == 1
    assert len([one for one in live(small) if one != named]) == stores
    assert all(Path(data_file_of(small.messages(), row)[7:]).exists() for row in receipts(small, STORE))


def test_small_files_that_become_no_larger_one_without_the_lost_end_no_other_store(
    small: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in segments:
        archive_all(small, make_jobs(small, path, store_id="store-2"))
    lost = data_file_of(small.messages(), receipts(small, STORE)[1])
    Path(lost.removeprefix("file://")).unlink()
    write = compaction._write

    def differ(table: Table, group: Sequence[SmallFile]) -> LargerFile:
        if group[0].receipts[0].store_id == STORE and lost not in [file.location for file in group]:
            raise ProofError("expected the columns of one, found others")
        return write(table, group)

    monkeypatch.setattr(compaction, "_write", differ)
    done = compact_lake(small)
    assert (done.files, done.larger_files) == (3, 1)
    lost_one, differing = done.faults
    assert lost in lost_one
    assert "found others" in differing


def test_a_lake_that_can_not_be_read_is_no_fault_of_one_store(
    small: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_between(small, monkeypatch)

    def fails(*_: object) -> None:
        raise LakeUnavailableError("no route to host") from OSError(113, "No route to host")

    monkeypatch.setattr(compaction, "segments_in", fails)
    with pytest.raises(LakeUnavailableError, match="no route"):
        compact_lake(small)


def test_a_receipt_that_changed_meanwhile_keeps_the_small_files(
    small: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = live(small)
    act_before_commit(monkeypatch, lambda lake: expire(lake, receipts(lake, STORE)[:1]))
    done = compact_lake(small)
    assert "meanwhile" in done.notices[0]
    assert states(small) == ["expired", None, None]
    assert live(small) == before[1:]
    folder = Path(before[0].removeprefix("file://")).parent
    assert len(list(folder.iterdir())) == 3


def test_a_receipt_that_changed_between_the_commits_brings_the_small_files_back(
    small: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = live(small)
    killed_between(small, monkeypatch)
    record_act(small, lambda acts: decide_rule(acts, Scope(), "0 days"))
    expire_receipts(small, receipts(small, STORE)[:1])
    # The rows of what expired are in the table still, until this.
    done = compact_lake(small)
    assert done.faults == ()
    assert states(small) == ["expired", None, None]
    assert live(small) == before[1:]
    assert len(rows_of(small)) == sum(row.row_count for row in receipts(small, STORE))
    folder = Path(before[0].removeprefix("file://")).parent
    assert len(list(folder.iterdir())) == 3


def test_killed_between_its_commits_nothing_expires(
    small: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An act may name a small file that left the table since somebody looked: its rows would stay."""
    killed_between(small, monkeypatch)
    act = expire(small, receipts(small, STORE)[:1])
    assert states(small) == [None] * 3
    archive_all(small, make_jobs(small, segments[1]))
    undo_expiry(small, act)
    assert len(rows_of(small)) == sum(row.row_count for row in receipts(small, STORE))
    compact_lake(small)
    assert shared(small)
    check(small, segments, tmp_path / "back")


def small_file(
    number: int, *, size_bytes: int = 1 << 20, kind: str = "a", days: int | None = None, newest_day: float = 0
) -> SmallFile:
    row = Receipt(**dict.fromkeys(Receipt.__dataclass_fields__, ""))  # type: ignore[arg-type]
    row = replace(row, log=f"orders-{number % 2}", lineage=0, base_offset=number)
    return SmallFile(f"file-{number}", size_bytes, (kind,), days, round(newest_day * DAY_MS), (row,))


def test_a_file_has_what_expires_together_each_log_in_its_order() -> None:
    one_kind = [small_file(number) for number in range(5)]
    (group,) = plan_files([*one_kind, small_file(9, kind="held")])
    assert [file.location for file in group] == ["file-0", "file-2", "file-4", "file-1", "file-3"]
    # A tenth of thirty days.
    by_rule = [small_file(number, days=30, newest_day=number) for number in range(9)]
    groups = plan_files(by_rule)
    assert [sorted(file.location for file in group) for group in groups] == [
        [f"file-{number}" for number in part] for part in (range(4), range(4, 8))
    ]
    unknown = [replace(file, newest_ms=None) for file in by_rule]
    assert plan_files(unknown) == []
    large = [small_file(number, size_bytes=compaction.COMPACTED_FILE_BYTES // 3) for number in range(6)]
    assert [len(group) for group in plan_files(large)] == [3, 3]
    assert plan_files(large[:1]) == []


def test_a_segment_is_written_again_a_few_times_however_often_it_runs() -> None:
    files, written, count = list[SmallFile](), 0, 200
    for number in range(count):
        files.append(small_file(number, size_bytes=1))
        for group in plan_files(files):
            rows = tuple(row for file in group for row in file.receipts)
            written += len(rows)
            files = [it for it in files if it not in group]
            files.append(replace(group[0], location=f"larger-{written}", size_bytes=len(rows), receipts=rows))
    # Each day a file with all others would be 100 times.
    assert written < 10 * count
    assert len(files) < 10


def test_held_and_unheld_segments_never_mix(small: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "topic_of", lambda broker, log: "orders")
    record_act(small, lambda acts: decide_hold(acts, Scope(log="other"), "a case"))
    assert compact_lake(small, dry_run=True).files == 3
    record_act(small, lambda acts: decide_rule(acts, Scope(topic="orders"), "30 days"))
    assert compact_lake(small, dry_run=True).files == 3
    # Every second segment is of a topic that another rule, and a hold, are for.
    topics = iter(["orders", "held", "orders"] * 2)
    monkeypatch.setattr(compaction, "topic_of", lambda broker, log: next(topics))
    record_act(small, lambda acts: decide_hold(acts, Scope(topic="held"), "a case"))
    assert compact_lake(small, dry_run=True).files == 2


def test_a_renamed_store_keeps_its_newest_name(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules go by it, and what is moved was archived under the one before."""
    for path, name in zip(segments, ("staging", "staging", "prod"), strict=True):
        archive_all(lake, [replace(job, store_name=name) for job in make_jobs(lake, path)])
    monkeypatch.setattr(compaction, "plan_files", lambda files: [tuple(files)[:2]])
    for change in (run, lambda lake: expire(lake, receipts(lake, STORE)[:2])):
        change(lake)
        assert read_store_names(lake)[STORE][-2:] == ("staging", "prod")
        assert [store.store_name for store in list_stores(lake)] == ["prod"]


def test_an_older_lake_says_what_it_lacks(small: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "has_trees", lambda properties: False)
    with pytest.raises(BadInputError, match="storage-engine lake upgrade"):
        compact_lake(small)
    assert maintain_compaction(small) == ()


def test_without_room_nothing_is_changed(
    small: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = live(small)
    files = sorted(tmp_path.rglob("*.par*"))

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device", "shared.parquet")

    with monkeypatch.context() as patched:
        patched.setattr(compaction, "write_groups", full)
        with pytest.raises(LakeUnavailableError, match="No space left"):
            compact_lake(small)
        assert "No space left" in maintain_compaction(small)[0]
    assert (live(small), sorted(tmp_path.rglob("*.par*"))) == (before, files)
    check(small, segments, tmp_path / "back")


@pytest.mark.parametrize(
    "full_at", [(compaction, "write_groups"), (segment_expiry, "begin")], ids=["file", "commit"]
)
def test_without_room_for_all_of_them_the_larger_files_go(
    small: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, full_at: tuple[ModuleType, str]
) -> None:
    before, files = live(small), sorted(tmp_path.rglob("*.par*"))
    calls, call = iter([full_at[0] is compaction, False]), getattr(*full_at)

    def full(*arguments: object) -> object:
        if not next(calls):
            raise OSError(28, "No space left on device", "shared.parquet")
        return call(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(compaction, "COMPACTED_LEAST_FILES", 1)
        patched.setattr(compaction, "plan_files", lambda files: [(file,) for file in files])
        patched.setattr(*full_at, full)
        with pytest.raises(LakeUnavailableError, match="No space left"):
            compact_lake(small)
    assert (live(small), sorted(tmp_path.rglob("*.par*"))) == (before, files)


def test_two_compactions_at_once_add_the_rows_once(
    small: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = list[LakeCompaction]()
    act_before_commit(monkeypatch, lambda lake: beside.append(compact_lake(open_lake(lake.config))))
    done = compact_lake(small)
    assert (beside[0].files, done.files, len(done.notices)) == (3, 0, 1)
    assert shared(small)
    check(small, segments, tmp_path / "back")


def test_a_segment_that_is_archived_again_meanwhile_is_there_once(
    small: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    path = Path(live(small)[1].removeprefix("file://"))

    def damage_and_archive(lake: Lake) -> None:
        path.write_bytes(b"damaged")
        archive_all(lake, make_jobs(lake, *segments))

    act_before_commit(monkeypatch, damage_and_archive)
    assert "meanwhile" in compact_lake(small).notices[0]
    assert [row.row_groups for row in check(small, segments, tmp_path / "back")] == [None] * 3


@pytest.fixture
def past(small: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake of which a rule of two days ago keeps nothing, in one larger file; the small ones are there."""
    compact_lake(small)
    ago_ms = clock_ms() - 2 * DAY_MS
    with monkeypatch.context() as patch:
        patch.setattr(act_files, "clock_ms", lambda: ago_ms)
        patch.setattr(act_files, "read_clock_at", lambda *_: ago_ms * 1_000_000)
        for topic in json_topics(receipts(small, STORE)):
            record_act(small, lambda acts, topic=topic: decide_rule(acts, Scope(topic=topic), "0 days"))
    assert len(data_paths(small)) == 4
    return small


def json_topics(rows: Sequence[Receipt]) -> set[str]:
    """Return the topics of segments, by their receipts."""
    return {it["name"] for row in rows for it in json.loads(row.streams or "[]") if it["name"]} or {"*"}


def data_paths(lake: Lake) -> list[Path]:
    """Return the data files on disk, in gc's trash too."""
    root = Path(lake.messages().location().removeprefix("file://"))
    return sorted(path for path in root.rglob("*.parquet") if f"store_id={STORE}" in path.parts)


def expire_all(lake: Lake, trash_ms: int = TRASH_MS) -> LakeExpiry:
    return expire_lake(lake, None, gone=(STORE,), trash_ms=trash_ms)


def test_an_act_names_the_files_that_were_replaced_and_removes_them(past: Lake) -> None:
    done = expire_all(past)
    assert (len(done.leaving), len(live(past))) == (3, 0)
    decision = read_acts(past)[-1].act.decision
    assert (len(set(decision.files)), len(decision.replaced)) == (1, 3)
    for path in data_paths(past):
        make_old(path)
    assert remove_expired(past, trash_ms=0, kept=frozenset({STORE})) == ()
    # They are the act's, not gc's.
    expire_snapshots(past.messages())
    assert collect(past, grace_ms=0, delete=True, trash_ms=0).taken == ()
    undo_expiry(past, done.act)
    assert states(past) == [None] * 3
    (found,) = verify(past, VerifyLevel.BYTES)
    assert found.overall is Status.OK
    again = expire_all(past, trash_ms=0)
    assert (len(again.leaving), len(again.removed)) == (3, 4)
    assert data_paths(past) == []
    assert {it.act.decision.kind.value for it in read_acts(past)} == {"keep", "expire", "undo", "removed"}


def test_a_segment_waits_while_gc_has_yet_to_take_what_was_replaced(past: Lake) -> None:
    first = data_paths(past)[0]
    root = Path(past.messages().location().removeprefix("file://"))
    trash = root / TRASH / "20261129T000000Z-00000000" / first.relative_to(root)
    trash.parent.mkdir(parents=True)
    first.rename(trash)
    done = expire_all(past)
    assert done.leaving == ()
    assert {verdict.reason for verdict in done.verdicts} == {ExpiryReason.SHARED}
    assert "gc --delete" in done.verdicts[0].detail
    trash.unlink()
    assert len(expire_all(past, trash_ms=0).removed) == 3
    assert data_paths(past) == []


@pytest.mark.parametrize("suffix", ["", ".0123456789abcdef.partial"])
def test_a_segment_waits_while_a_file_of_a_killed_run_has_its_rows(past: Lake, suffix: str) -> None:
    larger = Path(live(past)[0].removeprefix("file://"))
    left = larger.with_name(shared_file_name("0" * 32, 0) + suffix)
    shutil.copyfile(larger, left)
    larger.with_name(shared_file_name("1" * 32, 0) + ".0123456789abcdef.partial").write_bytes(b"PAR1torn")
    done = expire_all(past)
    assert done.leaving == ()
    assert {verdict.reason for verdict in done.verdicts} == {ExpiryReason.SHARED}
    make_old(left)
    collect(past, grace_ms=0, delete=True)
    assert not left.exists()
    assert expire_all(past).leaving == ()
    collect(past, grace_ms=0, delete=True, trash_ms=0)
    assert len(expire_all(past, trash_ms=0).removed) == 4
    assert data_paths(past) == []


def test_killed_while_what_was_replaced_goes_it_is_run_again(past: Lake, tmp_path: Path) -> None:
    for lake, operation in killed_at_each(tmp_path, past.config, expire_for_good, least=12, few=4):
        expire_for_good(lake)
        assert (states(lake), data_paths(lake)) == (["expired"] * 3, []), operation


def expire_for_good(lake: Lake) -> None:
    expire_all(lake, trash_ms=0)


def test_what_is_about_to_expire_is_left_as_it_is(small: Lake) -> None:
    begin_to_expire(small, receipts(small, STORE)[:1])
    assert compact_lake(small, dry_run=True).files == 0
    record_act(small, lambda acts: decide_rule(acts, Scope(), None))
    assert compact_lake(small).files == 2
    finish_acts(small)
    assert len(rows_of(small)) == sum(row.row_count for row in receipts(small, STORE))


def test_an_act_that_compaction_was_quicker_than_takes_no_last_copy(
    small: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = receipts(small, STORE)
    compact_lake(small)
    begin_to_expire(small, rows[:1])
    larger = Path(live(small)[0].removeprefix("file://"))
    kept = larger.read_bytes()
    larger.write_bytes(kept[:-1000] + bytes(1000))
    assert remove_expired(small, trash_ms=0) == ()
    larger.write_bytes(kept)
    assert len(remove_expired(small, trash_ms=0)) == 1
    assert states(small) == [None] * 3


def test_a_copy_has_what_became_one(small: Lake, segments: list[Path], tmp_path: Path) -> None:
    compact_lake(small)
    copy_lake(small, small.config.local(tmp_path / "copy"))
    copy = open_lake(small.config.local(tmp_path / "copy"))
    (found,) = verify(copy, VerifyLevel.BYTES)
    assert (found.overall, shared(copy)) == (Status.OK, True)
    with pytest.raises(LakeIdentityError, match="a copy"):
        compact_lake(copy)


def test_killed_between_its_commits_a_copy_has_every_row(
    small: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    to = small.config.local(tmp_path / "copy")
    copy_lake(small, to)
    killed_between(small, monkeypatch)
    assert copy_lake(small, to).waiting == 0
    assert rows_of(open_lake(to)) == rows_of(small)
    promote(open_lake(to), "anna", "the original burnt")
    copy = open_lake(to)
    compact_lake(copy)
    assert shared(copy)
    check(copy, segments, tmp_path / "back")


@pytest.mark.parametrize("seed", range(rounds("STORAGE_ENGINE_COMPACTION_HISTORIES", 2, 100)))
def test_whatever_the_order_each_row_is_there_once(
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    seed: int,
) -> None:
    random, acts = Random(seed), list[str]()

    def archive_some() -> None:
        gone = {row.base_offset for row in receipts(lake, STORE, with_ended=True) if not row.has_rows}
        chosen = [path for path in segments if int(path.name) not in gone and random.random() < 0.7]
        archive_all(lake, make_jobs(lake, *chosen)) if chosen else None

    def take_garbage() -> None:
        expire_snapshots(lake.messages())
        for path in data_paths(lake):
            make_old(path)
        collect(lake, grace_ms=0, delete=True, trash_ms=0)

    def be_killed() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(segment_expiry, "prepare_receipts", _killed)
            with suppress(KeyboardInterrupt):
                compact_lake(lake)

    def expire_shared() -> None:
        if rows := receipts(lake, STORE):
            # All of a file, as rules have it; of one that has left the table nothing goes.
            name = random.choice(rows).data_file
            acts.append(expire(lake, [row for row in rows if row.data_file == name]))
            record_act(lake, lambda acts: decide_rule(acts, Scope(), None))

    def undo() -> None:
        if acts:
            undo_expiry(lake, acts.pop())

    def renew() -> None:
        reprove(lake, STORE, receipts(lake, STORE))

    steps = [archive_some, take_garbage, be_killed, expire_shared, undo, renew, lambda: run(lake)]
    for _ in range(12):
        random.choice(steps)()
        rows = with_rows(receipts(lake, STORE, with_ended=True))
        assert len(rows_of(lake)) == sum(row.row_count for row in rows)
    compact_lake(lake)
    rows = receipts(lake, STORE)
    assert len(rows_of(lake)) == sum(row.row_count for row in rows)
    assert not rows or verify(lake, VerifyLevel.BYTES)[0].findings == ()
    assert broken_receipts(lake, rows, Depth.ROWS) == {}
