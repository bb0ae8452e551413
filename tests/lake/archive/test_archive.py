from __future__ import annotations

import hashlib
import io
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_engine.arrow import row_groups
from storage_engine.exceptions import (
    CorruptFrameError,
    FileGoneError,
    LakeUnavailableError,
    ProofError,
    StoreLayoutError,
    StoreNotFoundError,
)
from storage_engine.lake.archive import archive
from storage_engine.lake.archive.archive import SegmentJob, archive_all, archive_segment
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file import data_file, segment_tree, source_file
from storage_engine.lake.file.staging import discard
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.storage.pace import Pace
from storage_engine.model.store import FileFacts
from tests.rounds import again_but, rounds
from tests.services.restoring import restore

MakeJobs = Callable[..., tuple[SegmentJob, ...]]
STORES = ["clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames"]


def _sealed(root: Path) -> list[Path]:
    """Segment files before the one that was written last, on all commitlog paths of the store."""
    files = sorted([*root.glob("commitlog/0*"), *root.glob("cl?/0*")], key=lambda path: path.name)
    written = [path for path in files if path.read_bytes()[:8].strip(b"\0")]
    return written[:-1]


def _data_directory(lake: Lake, store_id: str = "store-1") -> Path:
    path = local_path(lake.messages().location())
    assert path is not None
    return path / "data" / f"store_id={store_id}"


@pytest.mark.slow
@pytest.mark.parametrize("name", again_but(STORES, "cqext-batchcq", "edge-frames"))
def test_every_sealed_segment_of_a_real_store_comes_back_byte_for_byte(
    name: str, store_copy: Callable[[str], Path], lake: Lake, make_jobs: MakeJobs, tmp_path: Path
) -> None:
    paths = _sealed(store_copy(name))
    assert paths
    done: list[int] = []
    rows = archive_all(lake, make_jobs(lake, *paths), done.append)
    assert sum(done) == len(paths) << 20
    for row, path in zip(rows, paths, strict=True):
        assert row.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert (row.base_offset, row.size_bytes, row.damaged_bytes) == (int(path.name), 1 << 20, 0)
    restored = restore(lake, "store-1", tmp_path / "restored", files_only=True)
    assert [Path(segment.path).read_bytes() for segment in restored] == [path.read_bytes() for path in paths]


@pytest.mark.slow
def test_a_receipt_counts_what_the_broker_says_is_there(
    store_copy: Callable[[str], Path],
    ground_truth: Callable[[str, str], Any],
    lake: Lake,
    make_jobs: MakeJobs,
) -> None:
    paths = _sealed(store_copy("clean-stop"))
    frames = ground_truth("clean-stop", "commitlog")
    for row in archive_all(lake, make_jobs(lake, *paths)):
        stored = [
            frame["storeTimestamp"]
            for frame in frames
            if frame["file"].endswith(f"{row.base_offset:020d}") and frame["kind"] == "message"
        ]
        assert row.message_count == len(stored)
        assert row.first_store_timestamp_ms == min(stored, default=None)
        assert row.last_store_timestamp_ms == max(stored, default=None)


@pytest.mark.slow
def test_archiving_again_proves_the_file_that_is_there_and_writes_nothing(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, fingerprint: Callable[[Path], dict[str, str]]
) -> None:
    jobs = make_jobs(lake, *segments)
    first = archive_all(lake, jobs)
    before = fingerprint(_data_directory(lake))
    snapshots = len(lake.messages().metadata.snapshots), len(lake.segments().metadata.snapshots)
    assert archive_all(lake, jobs) == first
    assert fingerprint(_data_directory(lake)) == before
    assert (len(lake.messages().metadata.snapshots), len(lake.segments().metadata.snapshots)) == snapshots


def test_what_is_proven_but_not_committed_is_only_staged(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    proven = archive_segment(make_jobs(lake, segments[0])[0])
    assert [path.suffix for path in _data_directory(lake).iterdir()] == [".partial"]
    assert receipts(lake, "store-1") == ()
    discard([proven])
    assert list(_data_directory(lake).iterdir()) == []


@pytest.mark.parametrize("change", ["grown", "replaced"])
def test_another_file_than_the_one_that_was_chosen_is_refused(
    change: str, lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    (job,) = make_jobs(lake, segments[0])
    if change == "grown":
        with segments[0].open("ab") as file:
            file.write(b"x")
    else:
        copy = shutil.copy2(segments[0], segments[0].with_suffix(".copy"))
        Path(copy).replace(segments[0])
    with pytest.raises(ProofError, match="the file changed since it was chosen"):
        archive_segment(job)
    assert not _data_directory(lake).exists()


def write_a_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(500)
        file.write(b"\xff")


@pytest.fixture(params=["whole", "in parts"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether segments are in memory whole, or read again a part at a time."""
    if request.param == "in parts":
        monkeypatch.setattr(source_file, "WHOLE_BYTES", 0)
        monkeypatch.setattr(source_file, "times_are_trusted", lambda *_: True)
        monkeypatch.setattr(data_file, "MIN_CHUNK_BYTES", 100_000)
    return str(request.param)


def test_a_segment_that_is_read_in_parts_has_the_data_file_of_one_that_is_read_whole(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file, "MIN_CHUNK_BYTES", 100_000)
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", 60_000)
    monkeypatch.setattr(source_file, "times_are_trusted", lambda *_: True)
    monkeypatch.setattr(segment_tree.secrets, "token_bytes", hashlib.shake_128(b"keys").digest)
    (job,) = make_jobs(lake, segments[0])
    found = []
    for whole_bytes in (1 << 30, 0):
        monkeypatch.setattr(source_file, "WHOLE_BYTES", whole_bytes)
        proven = archive_segment(job)
        staged = local_path(proven.staged_file)
        assert staged is not None
        found.append((staged.read_bytes(), proven.sha256, proven.root, proven.streams))
        discard([proven])
        assert pq.read_metadata(io.BytesIO(found[-1][0])).num_row_groups > 8
    assert found[0] == found[1]


def test_a_part_that_changes_between_two_readings_is_refused(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_file, "WHOLE_BYTES", 0)
    monkeypatch.setattr(source_file, "times_are_trusted", lambda *_: True)
    (job,) = make_jobs(lake, segments[0])
    prove = archive.prove_rows

    def written_to(*arguments: Any) -> Any:
        write_a_byte(segments[0])
        return prove(*arguments)

    monkeypatch.setattr(archive, "prove_rows", written_to)
    with pytest.raises(ProofError, match="expected at 0 the 1048576 bytes that were read before"):
        archive_segment(job)
    assert list(_data_directory(lake).iterdir()) == []


def test_bytes_that_are_not_those_which_were_hashed_are_refused_whatever_the_times_say(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_file, "WHOLE_BYTES", 0)
    monkeypatch.setattr(source_file, "times_are_trusted", lambda *_: True)
    monkeypatch.setattr(archive, "facts_of_proven", lambda _, source: source.facts)
    (job,) = make_jobs(lake, segments[0], accept_damage=True)
    write = archive.write_data_file

    def written_to(*arguments: Any) -> None:
        write_a_byte(segments[0])
        write(*arguments)

    monkeypatch.setattr(archive, "write_data_file", written_to)
    with pytest.raises(ProofError, match="expected at 0 the 1048576 bytes that were read before"):
        archive_segment(job)
    assert list(_data_directory(lake).iterdir()) == []


def test_memory_that_is_given_back_reads_as_zeros_and_is_loaded_again(
    segments: list[Path], lake: Lake, make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_file, "WHOLE_BYTES", 0)
    monkeypatch.setattr(source_file, "times_are_trusted", lambda *_: True)
    source, content = source_file.read_source(make_jobs(lake, segments[0])[0]), segments[0].read_bytes()
    load = source.loader()
    load(0, 300_000)
    assert bytes(source.data[:300_000]) == content[:300_000]
    load(200_000, 500_000)
    begin = 200_000 // mmap.PAGESIZE * mmap.PAGESIZE
    assert bytes(source.data[:begin]) == bytes(begin)
    assert bytes(source.data[200_000:500_000]) == content[200_000:500_000]
    source.release()
    assert not any(source.data[: 500_000 // mmap.PAGESIZE * mmap.PAGESIZE])
    assert b"".join(map(bytes, source.parts(123, 900_000))) == content[123:900_123]


def test_a_paced_segment_counts_once_and_leaves_the_page_cache_when_it_is_proven(
    read: str, lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[int] = []
    forgotten: list[int] = []

    class Counting(Pace):
        def spend(self, count: int) -> None:
            spent.append(count)

        def forget(self, descriptor: int) -> None:
            forgotten.append(sum(spent))

    monkeypatch.setattr(source_file, "pace_at", lambda _: Counting())
    segments[0].read_bytes()
    archive_segment(make_jobs(lake, segments[0])[0])
    assert (sum(spent), forgotten) == (1 << 20, [1 << 20])


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


@pytest.fixture
def before_the_last_look(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Do something between the proof of a segment and the last look at its file."""
    facts_of = FileFacts.of

    def register(act: Callable[[], None]) -> None:
        def acted(path: str) -> FileFacts:
            monkeypatch.undo()
            act()
            return facts_of(path)

        monkeypatch.setattr(FileFacts, "of", acted)

    return register


def test_a_file_that_is_written_to_while_it_is_archived_is_refused(
    read: str,
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    before_the_last_look: Callable[..., None],
) -> None:
    (job,) = make_jobs(lake, segments[0])
    before_the_last_look(lambda: write_a_byte(segments[0]))
    with pytest.raises(ProofError, match="the file changed since it was chosen"):
        archive_segment(job)
    assert list(_data_directory(lake).iterdir()) == []


@pytest.mark.parametrize("when", ["since it was chosen", "while it is archived"])
def test_a_file_that_is_only_touched_is_proven_as_it_is_then(
    when: str,
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    before_the_last_look: Callable[..., None],
) -> None:
    (job,) = make_jobs(lake, segments[0])
    if when == "since it was chosen":
        touch(segments[0])
    else:
        before_the_last_look(lambda: touch(segments[0]))
    proven, facts = archive_segment(job), FileFacts.of(segments[0])
    assert facts != job.facts
    assert (proven.source_mtime_ns, proven.source_ctime_ns) == (facts.mtime_ns, facts.ctime_ns)


def test_a_file_that_this_host_cannot_see_is_one_clear_error(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    (job,) = make_jobs(lake, segments[0])
    unseen = replace(job, facts=replace(job.facts, path="/nowhere/store/commitlog/0"))
    with pytest.raises(StoreNotFoundError, match="mount the store at the same path"):
        archive_segment(unseen)
    segments[0].unlink()
    with pytest.raises(FileGoneError, match="deleted or renamed meanwhile"):
        archive_segment(job)


def _break_body(path: Path) -> int:
    """Flip one bit in the first frame's body; returns where that frame begins."""
    data = bytearray(path.read_bytes())
    data[88] ^= 1
    path.write_bytes(data)
    return int(path.name)


def test_a_wrong_crc_is_refused_and_leaves_the_lake_as_it_was(
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    tmp_path: Path,
    fingerprint: Callable[[Path], dict[str, str]],
) -> None:
    offset = _break_body(segments[2])
    before = fingerprint(tmp_path)
    with pytest.raises(CorruptFrameError) as raised:
        archive_all(lake, make_jobs(lake, *segments))
    assert str(raised.value).startswith(f"{segments[2]}: bad frame at physical offset {offset}: ")
    assert fingerprint(tmp_path) == before


def test_accepted_damage_is_archived_as_it_is_and_counted(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    _break_body(segments[1])
    frame_bytes = int.from_bytes(segments[1].read_bytes()[:4], "big")
    (row,) = archive_all(lake, make_jobs(lake, segments[1], accept_damage=True))
    assert row.damaged_bytes == frame_bytes
    (restored,) = restore(lake, "store-1", tmp_path / "restored", files_only=True)
    assert Path(restored.path).read_bytes() == segments[1].read_bytes()


def _assert_another_takes_its_place(job: SegmentJob, final: Path) -> None:
    found = final.read_bytes()
    proven = archive_segment(job)
    assert proven.data_file != f"file://{final}"
    assert proven.sha256 == hashlib.sha256(Path(job.path).read_bytes()).hexdigest()
    assert final.read_bytes() == found


def test_a_file_in_the_lake_that_is_not_the_segment_is_not_used(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    job, other = make_jobs(lake, *segments[:2])
    final = local_path(job.data_file(hashlib.sha256(segments[0].read_bytes()).hexdigest()))
    assert final is not None
    proven = archive_segment(other)
    Path(proven.staged_file.removeprefix("file://")).rename(final)
    _assert_another_takes_its_place(job, final)


def test_one_wrong_byte_in_the_lake_is_found_out_and_named(
    read: str, lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = make_jobs(lake, segments[0])
    staged = local_path(archive_segment(job).staged_file)
    assert staged is not None
    rows = pq.read_table(staged)
    bodies = rows["body"].to_pylist()
    broken = next(number for number, body in enumerate(bodies) if body)
    bodies[broken] = bytes([bodies[broken][0] ^ 1]) + bodies[broken][1:]
    index = rows.schema.get_field_index("body")
    wrong = rows.set_column(index, rows.schema.field(index), [bodies])
    offset = rows["physical_offset"][broken].as_py() + 88
    left = set(staged.parent.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(
            archive, "write_data_file", lambda _job, _codec, _data, sink, _load: pq.write_table(wrong, sink)
        )
        with pytest.raises(ProofError, match=f"at physical offset {offset}, where the segment has"):
            archive_segment(job)
    assert set(staged.parent.iterdir()) == left
    final = local_path(job.data_file(hashlib.sha256(segments[0].read_bytes()).hexdigest()))
    assert final is not None
    pq.write_table(wrong, final)
    _assert_another_takes_its_place(job, final)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet" * 100])
def test_a_torn_file_under_the_final_name_is_not_used(
    content: bytes, lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    (job,) = make_jobs(lake, segments[0])
    final = local_path(job.data_file(hashlib.sha256(segments[0].read_bytes()).hexdigest()))
    assert final is not None
    final.parent.mkdir(parents=True)
    final.write_bytes(content)
    _assert_another_takes_its_place(job, final)


def test_an_attempt_whose_staged_file_another_one_swept_away_proves_the_others(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = make_jobs(lake, segments[0])
    read_back = archive.reading_back

    def overtaken(*arguments: Any) -> object:
        monkeypatch.setattr(archive, "reading_back", read_back)
        archive_all(lake, [job])
        return read_back(*arguments)

    monkeypatch.setattr(archive, "reading_back", overtaken)
    proven = archive_segment(job)
    (receipt,) = receipts(lake, "store-1")
    assert proven.staged_file == proven.data_file == data_file_of(lake.messages(), receipt)


def test_a_full_lake_is_one_clear_error_and_nothing_is_committed(
    segments: list[Path],
    make_jobs: MakeJobs,
    mount_tmpfs: Callable[[int], Path],
    fingerprint: Callable[[Path], dict[str, str]],
) -> None:
    disk = mount_tmpfs(512 << 10)
    lake = make_lake(LakeConfig.local(disk / "lake"))
    store_before, lake_before = fingerprint(segments[0].parent), fingerprint(disk)
    with pytest.raises(LakeUnavailableError, match=r"No space left on device"):
        archive_all(lake, make_jobs(lake, *segments))
    assert fingerprint(disk) == lake_before
    assert fingerprint(segments[0].parent) == store_before
    assert receipts(lake, "store-1") == ()


def test_a_lake_that_became_read_only_is_one_clear_error(
    segments: list[Path], make_jobs: MakeJobs, mount_tmpfs: Callable[[int], Path]
) -> None:
    disk = mount_tmpfs(8 << 20)
    lake = make_lake(LakeConfig.local(disk / "lake"))
    jobs = make_jobs(lake, *segments)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(LakeUnavailableError, match=r"Read-only file system"):
        archive_all(lake, jobs)


def test_a_topic_is_read_without_most_of_the_file(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    archive_all(lake, make_jobs(lake, *segments))
    rows = lake.messages().scan(row_filter="topic = 'TopicTags'").to_arrow()
    assert set(rows["topic"].to_pylist()) <= {"TopicTags"}


@pytest.mark.slow
@settings(
    max_examples=rounds("STORAGE_ENGINE_ANY_BYTES", 8, 25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    content=st.lists(
        st.one_of(
            st.binary(max_size=400),
            st.sampled_from([bytes.fromhex("daa320a7"), bytes.fromhex("0000002acbd43194"), bytes(64)]),
            st.integers(0, 3000).map(lambda at: ("frames", at)),
        ),
        min_size=1,
        max_size=12,
    ).filter(lambda parts: any(parts)),
    base_offset=st.integers(0, 1 << 40),
)
def test_any_bytes_whatever_come_back_as_they_were(
    content: list[Any],
    base_offset: int,
    segments: list[Path],
    lake: Lake,
    make_jobs: MakeJobs,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    real = segments[0].read_bytes()
    data = b"".join(part if isinstance(part, bytes) else real[part[1] : part[1] + 2000] for part in content)
    directory = tmp_path_factory.mktemp("any") / "commitlog"
    directory.mkdir()
    path = directory / f"{base_offset:020d}"
    path.write_bytes(data)
    store_id = directory.parent.name
    (row,) = archive_all(lake, make_jobs(lake, path, store_id=store_id, accept_damage=True))
    assert row.size_bytes == len(data)
    (restored,) = restore(lake, store_id, directory.parent / "restored", files_only=True)
    assert Path(restored.path).read_bytes() == data


def test_an_empty_segment_is_refused_before_anything_is_archived(
    lake: Lake, make_jobs: MakeJobs, tmp_path: Path
) -> None:
    empty = tmp_path / f"{0:020d}"
    empty.touch()
    with pytest.raises(StoreLayoutError, match="sealed segment to have bytes and offsets, found 0 bytes"):
        make_jobs(lake, empty)
    assert lake.messages().current_snapshot() is None
