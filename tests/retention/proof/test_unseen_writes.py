"""Bytes that nothing proves stay, though the file that has them looks as it did when it was proven."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import DIRECTORY
from storage_engine.exceptions import ChangedUnderUsError, LakeConflictError, StorageEngineError
from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.model.store import FileFacts
from storage_engine.retention import steps
from storage_engine.retention.proof import unseen_writes
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.release.releasing import ReleaseResult
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.same_bytes import own_acts as own_acts_module
from storage_engine.same_bytes import trusted_times
from storage_engine.same_bytes.own_acts import OwnActs, own_acts
from storage_engine.same_bytes.removing import remove_unchanged
from storage_engine.same_bytes.trusted_times import NAME, times_are_trusted
from tests.lakes import make_lakes
from tests.rounds import ALL, later
from tests.services.file_systems import KINDS, mounted

pytestmark = pytest.mark.slow

MEMORY = Path("/dev/shm")
HOURS_AGO_NS = 100 * 3600 * 10**9
ONE = PlanRequest(manual=True, max_segments=1)

MountOf = Callable[[str], Path]
StoreOn = Callable[..., ManagedStore]

KEEP_MAPPED = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapping = mmap.mmap(file.fileno(), 0)
mapping[0] = mapping[0]
print("mapped", flush=True)
sys.stdin.read()
"""


def mount_only(kind: str) -> object:
    return pytest.param(
        kind, marks=pytest.mark.skipif(not ALL, reason=f"{kind}: make test-all mounts file systems")
    )


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on the file system of the test's parameter."""
    if request.param == "temporary":
        yield tmp_path
    elif request.param == "memory":
        if not MEMORY.is_dir():
            pytest.skip("tmpfs: no /dev/shm here")
        with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
            yield Path(directory)
    else:
        with mounted(request.param, tmp_path) as mount:
            yield mount


@pytest.fixture
def store_on(store_copy: Callable[[str], Path], tmp_path: Path) -> StoreOn:
    """A store on some file system, whose segments have all expired."""

    def make(directory: Path, **settings: object) -> ManagedStore:
        root = directory / "store"
        shutil.copytree(store_copy("clean-stop"), root)
        for path in (root / "commitlog").iterdir():
            make_old(path)
        store = ManagedStore.local("unseen", str(root), tmp_path / "managed", time_zone="UTC", **settings)
        return make_lakes(store) if store.policy.archive is not ArchiveMode.OFF else store

    return make


@pytest.fixture
def planned(store_on: StoreOn, tmp_path: Path) -> ManagedStore:
    store = store_on(tmp_path)
    steps.make_plan(store, "r", ONE)
    return store


def first(store: ManagedStore) -> Path:
    return Path(store.root) / "commitlog" / f"{0:020d}"


def make_old(path: Path) -> None:
    old_ns = clock_ms() * 10**6 - HOURS_AGO_NS
    os.utime(path, ns=(old_ns, old_ns))


def hashed_again(result: ReleaseResult) -> list[str]:
    return [notice for notice in result.notices if "hashed again" in notice]


def archive(store: ManagedStore) -> None:
    assert steps.archive(store, "r", steps.archive_jobs(store, "r"))


@pytest.mark.parametrize(
    "place", ["memory", *later("temporary"), *(mount_only(kind) for kind in KINDS)], indirect=True
)
def test_what_is_written_through_a_mapping_after_the_proof_stays(place: Path, store_on: StoreOn) -> None:
    store = store_on(place)
    path = first(store)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[500] = mapping[500]
        make_old(path)
        steps.make_plan(store, "r", ONE)
        archive(store)
        mapping[500] ^= 0xFF
        written = bytes(mapping)
    with suppress(StorageEngineError):
        assert steps.release(store, "r").deleted == ()
    assert path.read_bytes() == written


@pytest.mark.parametrize("place", ["memory", mount_only("overlay-volatile")], indirect=True)
def test_where_times_do_not_tell_bytes_are_compared_right_before_the_deletion(
    place: Path, store_on: StoreOn
) -> None:
    store = store_on(place)
    with first(store).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[500] = mapping[500]
        make_old(first(store))
        steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=2))
        archive(store)
        archived = first(store).stat()
        mapping[500] ^= 0xFF
        with pytest.raises(LakeConflictError, match=r"found [0-9a-f]{64}\. It was not deleted"):
            steps.release(store, "r")
        mapping[500] ^= 0xFF
    # A kernel that had written the page out meanwhile has moved the time.
    os.utime(first(store), ns=(archived.st_atime_ns, archived.st_mtime_ns))
    result = steps.release(store, "r")
    assert len(result.deleted) == 2
    for release in result.deleted:
        assert release.passage_detail.endswith("; hashed again right before")
    (notice,) = hashed_again(result)
    assert notice.startswith(
        "2 segments hashed again right before deletion, as the times of the file system of"
    )


def show_first_process(proc: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for /proc, whatever this user may look into; return what the only process has mapped."""
    maps = proc / "1" / "maps"
    maps.parent.mkdir(parents=True)
    maps.touch()
    monkeypatch.setattr("storage_engine.same_bytes.trusted_times._PROC", proc)
    return maps


def test_where_times_tell_a_proven_segment_is_not_read_again(
    planned: ManagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not times_are_trusted(Path(planned.root), planned.root):
        pytest.skip("no write through a mapping shows on the file system of the temporary directory")
    show_first_process(tmp_path / "proc", monkeypatch)
    archive(planned)
    (release,) = steps.release(planned, "r").deleted
    assert release.passage_detail == "as it was when its copy was proven"


def test_where_a_process_may_not_be_looked_into_bytes_are_compared_right_before_the_deletion(
    planned: ManagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(planned)
    maps = show_first_process(tmp_path / "proc", monkeypatch)
    maps.unlink()
    maps.mkdir()  # root may read every file, but no directory as one
    result = steps.release(planned, "r")
    assert len(result.deleted) == 1
    said = "1 segment hashed again right before deletion, as this process may not see what process 1 mapped"
    assert hashed_again(result) == [said]


def hide_first_process(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each writer be unknown, as to a process that is not root's."""
    maps = show_first_process(proc, monkeypatch)
    maps.unlink()
    maps.mkdir()


def test_what_is_compared_before_its_deletion_is_read_at_the_pace_of_archiving(
    store_on: StoreOn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_on(tmp_path, policy=Policy(archive_bytes_per_second=123_456_789))
    steps.make_plan(store, "r", ONE)
    archive(store)
    hide_first_process(tmp_path / "proc", monkeypatch)
    spent: list[int] = []
    forgotten: list[int] = []
    advise = os.posix_fadvise

    def note_advice(fd: int, start: int, count: int, advice: int) -> None:
        if advice == os.POSIX_FADV_DONTNEED:
            forgotten.append(os.fstat(fd).st_ino)
        advise(fd, start, count, advice)

    monkeypatch.setattr(pace_at(123_456_789), "spend", spent.append)
    monkeypatch.setattr(os, "posix_fadvise", note_advice)
    segment = first(store).stat()
    assert len(steps.release(store, "r").deleted) == 1
    assert sum(spent) >= segment.st_size
    assert segment.st_ino in forgotten


def test_a_lease_is_renewed_while_a_file_is_read_slowly(
    planned: ManagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unseen_writes, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(trusted_times, "_BLOCK_BYTES", 1 << 14)
    path = first(planned)
    renewed: list[bool] = []
    unseen_writes.digest(str(path), unseen_writes.Reading(lambda count: None, lambda: renewed.append(True)))
    assert len(renewed) > path.stat().st_size >> 14


def counted(seen: list[int]) -> Callable[[int], OwnActs]:
    read = own_acts_module._read

    def read_and_count(directory: int) -> OwnActs:
        seen.append(directory)
        return read(directory)

    return read_and_count


def test_our_own_acts_are_read_once_a_step_and_not_for_each_segment(
    store_on: StoreOn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {}
    for count in (1, 4):
        store = store_on(tmp_path / str(count), policy=Policy(archive=ArchiveMode.OFF))
        act_on(store, tmp_path / f"link-{count}")
        steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=count))
        seen: list[int] = []
        with monkeypatch.context() as patched:
            patched.setattr(own_acts_module, "_read", counted(seen))
            assert len(steps.release(store, "r").deleted) == count
        reads[count] = len(seen)
    assert reads[1] == reads[4]


def test_a_file_system_is_not_asked_where_nothing_goes(planned: ManagedStore) -> None:
    archive(planned)
    os.utime(first(planned))
    assert steps.release(planned, "r").deleted == ()
    assert not (Path(planned.root) / DIRECTORY / NAME).exists()


def test_what_another_process_may_write_to_by_another_name_is_compared(
    planned: ManagedStore, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    os.link(first(planned), link)
    archive(planned)
    command = [sys.executable, "-c", KEEP_MAPPED, str(link)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"mapped\n"
        make_old(first(planned))
        (notice,) = hashed_again(steps.release(planned, "r"))
        assert f"hashed again right before deletion, as process {writer.pid} has it mapped" in notice
        assert writer.stdin is not None
        writer.stdin.close()


def test_a_proof_by_a_release_that_did_not_settle_is_compared(
    planned: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.lake.archive.proving.settled_with", lambda evidence: None)
    archive(planned)
    (release,) = steps.release(planned, "r").deleted
    assert release.passage is Passage.PROVEN
    assert "proven when a later write might not show, and its SHA-256 is still" in release.passage_detail


def act_on(store: ManagedStore, link: Path) -> None:
    """What a hold and a shield do to a segment: a time, and another name."""
    path = first(store)
    with own_acts(store.root) as acts:
        stat = path.stat()
        with acts.on(path, mtime_ns=stat.st_mtime_ns - 1000):
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - 1000))
        with acts.on(path, other_name=link):
            os.link(path, link)
    time.sleep(0.01)


@pytest.mark.parametrize("when", ["archived", *later("chosen", "read")])
def test_what_we_did_ourselves_is_no_change(
    planned: ManagedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    link, facts_of = tmp_path / "link", FileFacts.of
    jobs = steps.archive_jobs(planned, "r")

    def act_before_the_last_look(path: str) -> FileFacts:
        monkeypatch.undo()
        act_on(planned, link)
        return facts_of(path)

    if when == "chosen":
        act_on(planned, link)
    if when == "read":
        monkeypatch.setattr("storage_engine.lake.file.source_file.FileFacts.of", act_before_the_last_look)
    assert steps.archive(planned, "r", jobs)
    if when == "archived":
        act_on(planned, link)
    assert link.exists()
    (release,) = steps.release(planned, "r").deleted
    assert release.passage is Passage.PROVEN
    assert release.passage_detail.startswith("as it was when its copy was proven")
    assert not first(planned).exists()


def test_what_we_did_ourselves_needs_no_second_proof(planned: ManagedStore, tmp_path: Path) -> None:
    archive(planned)
    act_on(planned, tmp_path / "link")
    assert steps.archive_jobs(planned, "r") == ()


def test_without_an_archive_our_own_acts_are_no_change_and_anothers_are(
    store_on: StoreOn, tmp_path: Path
) -> None:
    store = store_on(tmp_path, policy=Policy(archive=ArchiveMode.OFF))
    steps.make_plan(store, "r", ONE)
    act_on(store, tmp_path / "link")
    facts = FileFacts.of(first(store))
    assert [release.facts for release in steps.release(store, "r").deleted] == [facts]


def test_our_own_act_at_the_last_moment_keeps_no_segment_and_anothers_does(
    planned: ManagedStore, tmp_path: Path
) -> None:
    (log,) = open_store(planned).snapshot(clock_ms()).logs
    segment = log.segments[0]
    act_on(planned, tmp_path / "link")
    ours = replace(segment, facts=FileFacts.of(first(planned)))
    os.link(first(planned), tmp_path / "anothers")
    for looked_at in (segment, ours):
        with pytest.raises(ChangedUnderUsError):
            remove_unchanged(looked_at, Path(planned.root), durable.unlink_in)
    act_on(planned, tmp_path / "link-2")
    with pytest.raises(ChangedUnderUsError):
        remove_unchanged(segment, Path(planned.root), durable.unlink_in)
    now = replace(segment, facts=FileFacts.of(first(planned)))
    act_on(planned, tmp_path / "link-3")
    remove_unchanged(now, Path(planned.root), durable.unlink_in)
    assert not first(planned).exists()
