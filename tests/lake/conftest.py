"""A lake on local disk, and segments of real stores to put into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_engine.core.turns import WAIT_SECONDS, waiting_at_most
from storage_engine.lake.archive.archive import SegmentJob, archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.model.disk import DiskUsage
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState, StoreSnapshot
from tests.fixture_stores import file_sha256

WRITTEN_NS = time.time_ns()


@pytest.fixture
def no_turns() -> Iterator[None]:
    """Here threads of one process wait for each other's commits."""
    with waiting_at_most(WAIT_SECONDS):
        yield


@pytest.fixture
def no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other run can append a receipt, it is awaited for a moment only."""
    monkeypatch.setattr("storage_engine.lake.archive.commit.OTHERS_SECONDS", 0.3)
    monkeypatch.setattr("storage_engine.lake.verify.verify._COMMIT_SECONDS", 0.3)


MakeJobs = Callable[..., tuple[SegmentJob, ...]]
MountTmpfs = Callable[[int], Path]
Fingerprint = Callable[[Path], dict[str, str]]
SnapshotOf = Callable[[list[Path]], StoreSnapshot]
LakeWith = Callable[[str, Callable[[Lake], object]], Lake]


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the one place of all tests lies, and the lakes that are put there as they were."""
    return tmp_path_factory.mktemp("places")


@pytest.fixture
def tmp_path(places: Path) -> Path:
    """An empty directory, the same for every test of a process: a lake is itself at its own place alone."""
    here = places / "here"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    return here


@pytest.fixture
def lake_with(places: Path, tmp_path: Path) -> LakeWith:
    """A lake as it was once filled; it is filled once a process, and put back where it was from then on."""

    def put(name: str, fill: Callable[[Lake], object]) -> Lake:
        kept, here = places / name, LakeConfig.local(tmp_path / "lake")
        shutil.rmtree(tmp_path / "lake", ignore_errors=True)
        if kept.exists():
            shutil.copytree(kept, tmp_path / "lake")
            return open_lake(here)
        lake = make_lake(here)
        fill(lake)
        shutil.copytree(tmp_path / "lake", kept)
        return lake

    return put


@pytest.fixture
def lake(lake_with: LakeWith) -> Lake:
    return lake_with("nothing", lambda _: None)


@pytest.fixture
def filled(lake_with: LakeWith, segments: list[Path], make_jobs: MakeJobs) -> Callable[[int], Lake]:
    """The lake with the first so many segments, each archived by a commit of its own."""

    def fill(count: int) -> Lake:
        def archive(lake: Lake) -> None:
            for path in segments[:count]:
                archive_all(lake, make_jobs(lake, path))

        return lake_with(f"{count} segments", archive)

    return fill


@pytest.fixture(scope="session")
def sample_segments() -> dict[str, bytes]:
    """Name and bytes of three sealed segments that a broker wrote, 1 MiB each."""
    archive_path = Path(__file__).parents[1] / "fixtures" / "rocketmq" / "clean-stop.tar.xz"
    names = [f"{number << 20:020d}" for number in range(3)]
    with tarfile.open(archive_path) as archive:
        return {name: archive.extractfile(f"A/commitlog/{name}").read() for name in names}


@pytest.fixture
def segments(tmp_path: Path, sample_segments: dict[str, bytes]) -> list[Path]:
    """The sample segments as files of a store, last written when a lake that is put back saw them."""
    directory = tmp_path / "store" / "commitlog"
    directory.mkdir(parents=True)
    paths = [directory / name for name in sample_segments]
    for path, content in zip(paths, sample_segments.values(), strict=True):
        path.write_bytes(content)
        os.utime(path, ns=(WRITTEN_NS, WRITTEN_NS))
    return paths


@pytest.fixture(scope="session")
def make_jobs() -> MakeJobs:
    """Jobs for segment files, which are named by their base offsets."""

    def make(
        lake: Lake, *paths: Path, lineage: int = 0, store_id: str = "store-1", accept_damage: bool = False
    ) -> tuple[SegmentJob, ...]:
        chosen = [
            Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED) for path in paths
        ]
        return segment_jobs(
            lake,
            chosen,
            store_id=store_id,
            lineage=lineage,
            broker="rocketmq",
            store_root=str(paths[0].parents[1]),
            accept_damage=accept_damage,
        )

    return make


@pytest.fixture
def mount_tmpfs(tmp_path: Path) -> Iterator[MountTmpfs]:
    """A file system of its own, of so many bytes: it can be full, or read-only."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    mounted: list[Path] = []

    def mount(size_bytes: int) -> Path:
        target = tmp_path / f"tmpfs-{len(mounted)}"
        target.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(target)], check=True)
        mounted.append(target)
        return target

    yield mount
    for target in mounted:
        subprocess.run(["umount", str(target)], check=True)


@pytest.fixture
def fingerprint() -> Fingerprint:
    """Every file below a directory with its SHA-256: equal before and after means nothing was changed."""

    def read(root: Path) -> dict[str, str]:
        return {
            str(path.relative_to(root)): file_sha256(path)
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    return read


@pytest.fixture
def snapshot_of() -> SnapshotOf:
    """A store's snapshot with these segment files, all sealed."""

    def take(paths: list[Path]) -> StoreSnapshot:
        segments = tuple(
            Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED) for path in paths
        )
        end = segments[-1].end_offset
        return StoreSnapshot(
            broker="rocketmq",
            root=str(paths[0].parents[1]),
            taken_at_ms=0,
            logs=(LogSnapshot("commitlog", segments, max_offset=end, dispatched_offset=end),),
            log_disks=(),
            dependents_disk=DiskUsage("", None),
            crashed=False,
        )

    return take
