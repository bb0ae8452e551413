"""Small segments in one data file: each is proven there, none is lost or doubled with another."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import ProofError
from storage_engine.lake.acts.act_files import read_acts
from storage_engine.lake.archive import archive as archiving
from storage_engine.lake.archive import commit
from storage_engine.lake.archive.archive import (
    archive_all,
    archive_segment,
    archive_shared,
    commit_proven,
    file_groups,
)
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.jobs import SegmentJob, is_own_name, is_shared_name, split_data_file_name
from storage_engine.lake.file.staging import publish
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.gc.segment_expiry import finish_acts, remove_expired, undo_expiry
from storage_engine.lake.gc.thinning import thin_segment
from storage_engine.lake.move.copying import copy_lake
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.soundness.chain import check_chain, row_fault, row_hash
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.lake.soundness.segment_reader import read_segment
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.keep.acts import ActKind
from storage_engine.model.proof.receipt import Receipt, with_rows
from storage_engine.model.report.validation import Status, VerifyLevel, receipt_name
from tests.lake.conftest import MakeJobs
from tests.lake.garbage_helpers import make_old
from tests.lake.gc.test_segment_expiry import begin_to_expire, expire, states
from tests.lake.killed_at_each import killed_at_each
from tests.other_engine import delete_position
from tests.rounds import again_but
from tests.services.restoring import restore

STORE = "store-1"


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param(8 << 20, id="one row group"),
        pytest.param(1, id="own groups", marks=pytest.mark.again),
    ],
)
def sharing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments share a file already, in one row group or in row groups of their own."""
    monkeypatch.setattr(archiving, "SHARED_LEAST_SEGMENTS", 2)
    # As if this log had one topic, as Kafka's have.
    monkeypatch.setattr(archiving, "topic_of", lambda broker, log: "orders")
    monkeypatch.setattr(archiving, "SHARED_GROUP_BYTES", request.param)


@pytest.fixture
def shared(lake: Lake, segments: list[Path], make_jobs: MakeJobs) -> Lake:
    """A lake with all segments in one data file."""
    rows = archive_all(lake, make_jobs(lake, *segments))
    assert len({row.data_file for row in rows}) == 1
    return lake


def rows_of(lake: Lake) -> list[tuple[int, int]]:
    table = (
        lake.messages().scan(selected_fields=("segment_base_offset", "physical_offset", "size")).to_arrow()
    )
    return sorted(zip(table["physical_offset"].to_pylist(), table["size"].to_pylist(), strict=True))


def check(lake: Lake, paths: list[Path], target: Path) -> tuple[Receipt, ...]:
    """Every segment is in the lake once, proven, and comes back as it was."""
    rows = receipts(lake, STORE)
    check_chain(receipt_history(lake, STORE))
    assert [row.base_offset for row in rows] == [int(path.name) for path in paths]
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())
    listed = lake.messages().inspect.files()["file_path"].to_pylist()
    assert sorted(listed) == sorted({data_file_of(lake.messages(), row) for row in rows})
    position = 0
    for start, size in rows_of(lake):
        assert start == position
        position += size
    assert position == rows[-1].end
    shutil.rmtree(target, ignore_errors=True)
    restore(lake, STORE, target)
    for path in paths:
        assert (target / "commitlog" / path.name).read_bytes() == path.read_bytes()
    return rows


def shared_path(lake: Lake) -> Path:
    (name,) = {row.data_file for row in receipts(lake, STORE) if row.row_groups is not None}
    path = local_path(f"{lake.messages().location()}/{name}")
    assert path is not None
    return path


def test_many_segments_lie_in_one_file_and_each_comes_back(
    shared: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    rows = check(shared, segments, tmp_path / "back")
    assert is_shared_name(Path(rows[0].data_file).name)
    assert all(row.row_groups for row in rows)
    # The same again is done already.
    assert archive_all(shared, make_jobs(shared, *segments)) == rows
    check(shared, segments, tmp_path / "back")


def test_reading_one_segment_reads_its_row_groups_alone(
    shared: Lake, segments: list[Path], request: pytest.FixtureRequest
) -> None:
    row, *_ = receipts(shared, STORE)
    table, untouched = shared.messages(), frozenset({data_file_of(shared.messages(), row)})
    before = read_so_far()
    found = b"".join(bytes(chunk) for _, chunk in read_segment(table, row, untouched=untouched))
    read_bytes = read_so_far() - before
    assert found == segments[0].read_bytes()
    share = 1 if "one row group" in request.node.name else 2
    assert 0 < read_bytes * share < shared_path(shared).stat().st_size * 1.2


def read_so_far() -> int:
    """Return how many bytes this process has read."""
    return int(Path("/proc/self/io").read_text().split()[1])


def killed_between(lake: Lake, jobs: Sequence[SegmentJob], monkeypatch: pytest.MonkeyPatch) -> None:
    """Archive, and be killed when the table has the rows and no receipt says so."""
    with monkeypatch.context() as patched:
        patched.setattr(commit, "prepare_receipts", _killed)
        with pytest.raises(KeyboardInterrupt):
            archive_all(lake, jobs)


@pytest.mark.usefixtures("no_other_run")
def test_killed_between_its_commits_a_run_goes_on_with_the_file_that_is_there(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed_between(lake, make_jobs(lake, *segments), monkeypatch)
    assert receipts(lake, STORE) == ()
    assert len(rows_of(lake)) > 0
    (found,) = verify(lake, VerifyLevel.RECEIPTS, store_id=STORE)
    assert "expected a receipt that names this data file" in str(found.findings)
    # Of a part of its segments first: the others' rows are named.
    part = archive_all(lake, make_jobs(lake, *segments[:2]))
    assert all(row.row_groups for row in part)
    (found,) = verify(lake, VerifyLevel.RECEIPTS, store_id=STORE)
    assert "some are of a segment without a receipt" in str(found.findings)
    archive_all(lake, make_jobs(lake, *segments))
    assert len({row.data_file for row in check(lake, segments, tmp_path / "back")}) == 1


@pytest.mark.parametrize("set_aside", [0, 1])
def test_a_rebuild_gives_receipts_to_a_file_that_has_none_where_it_is(
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    set_aside: int,
) -> None:
    # A run that was set aside may have left a file of one of the segments.
    publish([archive_segment(job) for path in segments[1:][:set_aside] for job in make_jobs(lake, path)])
    killed_between(lake, make_jobs(lake, *segments), monkeypatch)
    done = rebuild(lake.config, {})
    assert (len(done.brought), done.refused) == (1, ())
    assert len({row.data_file for row in check(open_lake(lake.config), segments, tmp_path / "back")}) == 1


def test_a_lost_catalog_is_made_again_with_what_shares_a_file(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    shutil.copy2(tmp_path / "lake" / "catalog.db", tmp_path / "before.db")
    archive_all(lake, make_jobs(lake, *segments))
    (tmp_path / "lake" / "catalog.db").unlink()
    rebuild(lake.config, {})
    check(open_lake(lake.config), segments, tmp_path / "back")


def test_an_older_catalog_without_metadata_gets_the_file_back(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    before = tmp_path / "before"
    shutil.copytree(tmp_path / "lake", before)
    archive_all(lake, make_jobs(lake, *segments))
    data = tmp_path / "data"
    shutil.copytree(shared_path(lake).parent, data)
    shutil.rmtree(tmp_path / "lake")
    shutil.copytree(before, tmp_path / "lake")
    shutil.copytree(
        data, tmp_path / "lake/warehouse/storage_engine/messages/data" / data.name, dirs_exist_ok=True
    )
    folder = tmp_path / "lake/warehouse/storage_engine/messages/data" / f"store_id={STORE}"
    folder.mkdir(parents=True, exist_ok=True)
    for file in data.iterdir():
        shutil.copy2(file, folder)
    # One of them is there again by now: the others come into files of their own.
    older = open_lake(lake.config)
    archive_all(older, make_jobs(older, segments[1]))
    done = rebuild(lake.config, {})
    assert done.refused == ()
    rows = check(open_lake(lake.config), segments, tmp_path / "back")
    assert [row.row_groups for row in rows] == [None, None, None]
    rebuild(lake.config, {})
    assert check(open_lake(lake.config), segments, tmp_path / "back") == rows


def test_two_runs_with_one_segment_in_both_add_it_once(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    first, second = make_jobs(lake, *segments[:2]), make_jobs(lake, *segments[1:])
    of_first, of_second = archive_shared(first, "a" * 32, 0), archive_shared(second, "b" * 32, 0)
    commit_proven(lake, of_first, first)
    rows = commit_proven(lake, of_second, second)
    assert [row.row_groups is None for row in rows] == [False, True]
    assert rows[0].data_file == receipts(lake, STORE)[0].data_file
    check(lake, segments, tmp_path / "back")


def test_a_run_that_was_killed_meanwhile_has_put_a_file_without_receipts_there(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = make_jobs(lake, *segments), make_jobs(lake, segments[1])
    own = [archive_segment(job) for job in second]
    killed_between(lake, first, monkeypatch)
    # It is proven where it is, so that rows of others, which no receipt names yet, stay as well.
    (row,) = commit_proven(lake, own, second)
    assert row.row_groups is not None
    archive_all(lake, make_jobs(lake, *segments))
    assert len({row.data_file for row in check(lake, segments, tmp_path / "back")}) == 1


def test_what_was_set_aside_is_garbage_once_each_of_its_segments_is_live(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    jobs = make_jobs(lake, *segments)
    (proven := archive_shared(jobs, "c" * 32, 0))
    folder = local_path(proven[0].data_file)
    staged = local_path(proven[0].staged_file)
    assert folder is not None
    assert staged is not None
    staged.rename(folder)
    make_old(folder)
    archive_all(lake, make_jobs(lake, *segments[:2]))
    assert collect(lake, grace_ms=0, delete=True, trash_ms=0).taken == ()
    archive_all(lake, make_jobs(lake, *segments))
    (taken,) = collect(lake, grace_ms=0, delete=True, trash_ms=0).taken
    assert Path(taken.path).name == folder.name
    check(lake, segments, tmp_path / "back")


def test_a_damaged_file_names_each_of_its_segments_and_is_replaced_whole(
    shared: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    path = shared_path(shared)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    rows = receipts(shared, STORE)
    (found,) = verify(shared, VerifyLevel.FILES)
    assert [finding.subject for finding in found.findings if "SHA-256" in str(finding)] == [
        receipt_name(row) for row in rows
    ]
    assert len(found.findings) == 3
    assert broken_receipts(shared, rows, Depth.FILES).keys() == {row.identity for row in rows}
    assert not collect(shared, grace_ms=0, delete=True, trash_ms=0).taken
    again = archive_all(shared, make_jobs(shared, *segments))
    assert [row.row_groups for row in again] == [None, None, None]
    check(shared, segments, tmp_path / "back")


def test_what_a_damaged_file_still_proves_is_taken_out_where_some_are_archived_again(
    shared: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    path = shared_path(shared)
    kept = path.read_bytes()
    # In the rows of the first segment, where each has row groups of its own; else of all.
    path.write_bytes(kept[:1000] + bytes(4000) + kept[5000:])
    again = archive_all(shared, make_jobs(shared, segments[0]))
    assert again[0].row_groups is None
    assert len(receipts(shared, STORE)) == 3
    if "own groups" in request.node.name:
        assert "doesn't prove them" not in caplog.text
        assert [row.row_groups for row in check(shared, segments, tmp_path / "back")] == [None, None, None]
        return
    assert "2097152" in caplog.text
    lost = [row for row in receipts(shared, STORE) if row.row_groups is not None]
    assert broken_receipts(shared, receipts(shared, STORE), Depth.ROWS).keys() == {it.identity for it in lost}
    (found,) = verify(shared, VerifyLevel.BYTES)
    assert found.overall is Status.FAILURE
    make_old(path)
    assert collect(shared, grace_ms=0, delete=True, trash_ms=0).taken == ()
    path.write_bytes(kept)
    assert rebuild(shared.config, {}).refused == ()
    assert [row.row_groups for row in check(open_lake(shared.config), segments, tmp_path / "back")] == [
        None
    ] * 3


@pytest.mark.again
@pytest.mark.parametrize("sharing", [1], indirect=True)
def test_killed_while_a_damaged_file_leaves_what_was_taken_out_gets_its_receipts_back(
    shared: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shared_path(shared)
    path.write_bytes(path.read_bytes()[:1000] + bytes(4000) + path.read_bytes()[5000:])
    killed_between(shared, make_jobs(shared, segments[0]), monkeypatch)
    archive_all(shared, make_jobs(shared, segments[0]))
    # The others' rows are in the table, each once, and a rebuild gives them receipts.
    assert rebuild(shared.config, {}).refused == ()
    check(open_lake(shared.config), segments, tmp_path / "back")


def test_rows_that_another_engine_deleted_of_one_come_back_with_those_of_the_others(
    shared: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    rows = receipts(shared, STORE)
    delete_position(shared, rows[0], 0)
    renewed = reprove(shared, STORE, rows)
    assert [row.identity for row in renewed] == [row.identity for row in rows[1:]]
    archive_all(shared, make_jobs(shared, segments[0]))
    assert [row.row_groups for row in receipts(shared, STORE)] == [None, None, None]
    (found,) = verify(shared, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())
    assert len(rows_of(shared)) == sum(row.row_count for row in rows)


def test_a_lost_file_keeps_no_other_segment_out(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    archive_all(lake, make_jobs(lake, segments[0], segments[2]))
    path = shared_path(lake)
    kept = path.read_bytes()
    path.unlink()
    # Its base offset lies between those of the lost file.
    archive_all(lake, make_jobs(lake, segments[1]))
    archive_all(lake, make_jobs(lake, segments[2]))
    # The first one's receipt stays, and proves nothing until its file is back.
    lost, *others = receipts(lake, STORE)
    assert broken_receipts(lake, [lost, *others], Depth.ROWS).keys() == {lost.identity}
    path.write_bytes(kept)
    assert rebuild(lake.config, {}).refused == ()
    check(open_lake(lake.config), segments, tmp_path / "back")


def test_what_shares_a_file_leaves_together_or_not_at_all(
    shared: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    rows = receipts(shared, STORE)
    expire(shared, rows[:2])
    assert states(shared) == [None, None, None]
    check(shared, segments, tmp_path / "back")
    act = begin_to_expire(shared, rows)
    finish_acts(shared, kept=frozenset({rows[1].identity}))
    assert states(shared) == [None, None, None]
    finish_acts(shared)
    assert states(shared) == ["expired"] * 3
    assert rows_of(shared) == []
    assert collect(shared, grace_ms=0, delete=True, trash_ms=0).taken == ()
    undo_expiry(shared, act)
    assert [row.row_groups for row in check(shared, segments, tmp_path / "back")] == [
        row.row_groups for row in rows
    ]
    expire(shared, receipts(shared, STORE))
    assert [file.location for file in remove_expired(shared, trash_ms=0)] == [rows[0].data_file]
    assert states(shared) == ["expired"] * 3
    (found,) = verify(shared, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())
    # Archived again, it lies in files of its own.
    assert {row.row_groups for row in archive_all(shared, make_jobs(shared, *segments))} == {None}
    check(shared, segments, tmp_path / "back")


def test_what_was_archived_again_comes_back_with_what_shares_its_file(
    shared: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = receipts(shared, STORE)
    act = begin_to_expire(shared, rows)
    finish_acts(shared)
    archive_all(shared, make_jobs(shared, segments[1]))
    with monkeypatch.context() as patched:
        patched.setattr("storage_engine.lake.gc.segment_expiry.prepare_receipts", _killed)
        with pytest.raises(KeyboardInterrupt):
            undo_expiry(shared, act)
    finish_acts(shared)
    # Its rows are in the file that comes back: its own file leaves, so that none is there twice.
    back = check(shared, segments, tmp_path / "back")
    assert [(row.data_file, row.row_groups) for row in back] == [
        (row.data_file, row.row_groups) for row in rows
    ]


def test_a_segment_that_shares_a_file_is_not_thinned(shared: Lake) -> None:
    with pytest.raises(ProofError, match="that other segments share"):
        thin_segment(shared, receipts(shared, STORE)[0], ["any"])


def test_a_copy_has_the_file_as_it_is(shared: Lake, segments: list[Path], tmp_path: Path) -> None:
    copy_lake(shared, LakeConfig.local(tmp_path / "copy"))
    check(open_lake(LakeConfig.local(tmp_path / "copy")), segments, tmp_path / "back")


def test_only_segments_of_one_topic_that_the_lake_never_had_share_a_file(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [job.shares for job in make_jobs(lake, *segments)] == ["orders"] * 3
    archive_all(lake, make_jobs(lake, segments[0]))
    assert [job.shares for job in make_jobs(lake, *segments)] == [None, "orders", "orders"]
    with monkeypatch.context() as patched:
        patched.setattr(archiving, "SHARED_SEGMENT_BYTES", 1 << 20)
        assert [job.shares for job in make_jobs(lake, *segments)] == [None] * 3
    with monkeypatch.context() as patched:
        patched.setattr(archiving, "has_trees", lambda _: False)
        assert [job.shares for job in make_jobs(lake, *segments)] == [None] * 3
    monkeypatch.undo()
    # RocketMQ's log has all topics: some of them can go from a file that is a segment's own.
    assert [job.shares for job in make_jobs(lake, *segments)] == [None] * 3


def test_files_are_of_few_and_small_segments(lake: Lake, segments: list[Path], make_jobs: MakeJobs) -> None:
    (job, *_) = make_jobs(lake, *segments)
    small = replace(job, facts=replace(job.facts, size_bytes=64 << 10))
    assert [len(group) for group in file_groups([small] * 2500, 1)] == [1000, 1000, 500]
    large = replace(job, facts=replace(job.facts, size_bytes=15 << 20))
    assert [len(group) for group in file_groups([large] * 8, 1)] == [4, 4]
    alone = replace(job, shares=None)
    assert [len(group) for group in file_groups([small, small, alone, small, alone], 1)] == [2, 1, 1, 1]
    other = replace(small, shares="prices")
    assert [len(group) for group in file_groups([small, small, other, other], 1)] == [2, 2]


@pytest.mark.parametrize("text", ["", "1", "1-1", "2-1", "-1-2", "a-b", "1-2-3"])
def test_row_groups_that_say_nothing_make_no_receipt(shared: Lake, text: str) -> None:
    row = replace(receipts(shared, STORE)[0], row_groups=text)
    fields = {name: getattr(row, name) for name in Receipt.__dataclass_fields__}
    assert "row_groups" in row_fault(replace(row, row_hash=row_hash(fields)))


def test_row_groups_of_others_prove_nothing(shared: Lake, request: pytest.FixtureRequest) -> None:
    row = replace(receipts(shared, STORE)[0], row_groups="9-10")
    with pytest.raises(ProofError, match="expected row groups 9 to 9"):
        list(read_segment(shared.messages(), row))


def test_names_tell_whose_a_file_is() -> None:
    assert is_shared_name(f"shared-{'0' * 32}-12.parquet")
    assert split_data_file_name(f"shared-{'0' * 32}-12.parquet") == ("", "")
    assert not is_own_name("part-00000-1.parquet")


@pytest.mark.slow
@pytest.mark.parametrize("sharing", [8 << 20], indirect=True)
@pytest.mark.parametrize("what", again_but(["archive", "expire", "undo", "remove"], "archive", "expire"))
def test_killed_at_a_durable_operation_and_run_again_it_goes_on(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path, what: str
) -> None:
    def archive(lake: Lake) -> None:
        archive_all(lake, make_jobs(lake, *segments))

    def leave(lake: Lake) -> None:
        rows = receipts(lake, STORE, with_ended=True)
        if not any(it.act.decision.kind is ActKind.EXPIRE for it in read_acts(lake)):
            begin_to_expire(lake, rows)
        finish_acts(lake)

    def come_back(lake: Lake) -> None:
        undo_expiry(lake, next(it for it in read_acts(lake) if it.act.decision.files).sha256)

    def remove(lake: Lake) -> None:
        remove_expired(lake, trash_ms=0)

    works = {"archive": archive, "expire": leave, "undo": come_back, "remove": remove}
    before = {"archive": (), "expire": (archive,)}.get(what, (archive, leave))
    for earlier in before:
        earlier(lake)
    killed = killed_at_each(tmp_path, lake.config, works[what], least=4, few=4)
    for left, operation in killed:
        rows = receipts(left, STORE, with_ended=True)
        assert broken_receipts(left, with_rows(rows), Depth.ROWS) == {}, operation
        # Together or not at all, at every instant.
        assert len({row.state for row in rows}) <= 1, operation
        works[what](left)
        if what in ("archive", "undo"):
            check(left, segments, tmp_path / "back")
        else:
            assert states(left) == ["expired"] * 3, operation
            assert rows_of(left) == []


def _killed(*_: object) -> None:
    raise KeyboardInterrupt
