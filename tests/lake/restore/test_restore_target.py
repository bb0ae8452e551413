"""What a restore does with a target that isn't empty, isn't its alone, or was made to mislead it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

import pytest

from storage_engine.brokers import find_broker
from storage_engine.exceptions import BadInputError, RestoreError
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.restore import restore as restoring
from storage_engine.lake.restore import restore_target
from storage_engine.lake.restore.restore import segment_path
from storage_engine.model.proof.receipt import Receipt
from tests.services.restoring import restore

MakeJobs = Callable[..., tuple[SegmentJob, ...]]
Fingerprint = Callable[[Path], dict[str, str]]


@dataclass(frozen=True)
class Archived:
    """A lake with three segments, which these tests only read."""

    lake: Lake
    directory: Path
    segments: list[Path]
    receipts: tuple[Receipt, ...]


@pytest.fixture(scope="module")
def archived(
    tmp_path_factory: pytest.TempPathFactory, sample_segments: dict[str, bytes], make_jobs: MakeJobs
) -> Archived:
    base = tmp_path_factory.mktemp("targets")
    segments = [base / "store" / "commitlog" / name for name in sample_segments]
    segments[0].parent.mkdir(parents=True)
    for path in segments:
        path.write_bytes(sample_segments[path.name])
    lake = make_lake(LakeConfig.local(base / "lake"))
    return Archived(lake, base / "lake", segments, archive_all(lake, make_jobs(lake, *segments)))


@pytest.mark.slow
def test_of_files_that_are_read_side_by_side_the_one_that_can_not_be_read_is_named(
    archived: Archived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "restored"
    restored = restore(archived.lake, "store-1", target)
    broken = Path(restored[1].path)
    number, hashes = broken.stat().st_ino, restore_target.sha256_of_files

    def read(files: Sequence[FileIO]) -> list[str]:
        if number in {os.fstat(file.fileno()).st_ino for file in files}:
            raise OSError(errno.EIO, "Input/output error")
        return hashes(files)

    monkeypatch.setattr(restore_target, "sha256_of_files", read)
    monkeypatch.setattr(restoring, "reading_threads", lambda _: 1)
    with pytest.raises(RestoreError, match=r"Input/output error") as refused:
        restore(archived.lake, "store-1", target)
    assert [Path(one.path).name in str(refused.value) for one in restored] == [False, True, False]


@pytest.mark.slow
def test_of_two_restores_at_once_one_is_an_error_and_the_other_is_whole(
    archived: Archived, tmp_path: Path
) -> None:
    target = tmp_path / "restored"
    met = []

    def meet(_: int) -> None:
        if not met:
            with pytest.raises(RestoreError, match="expected no other process to restore into it") as refused:
                restore(archived.lake, "store-1", target)
            met.append(refused)

    restore(archived.lake, "store-1", target, progress=meet)
    assert met
    for path in archived.segments:
        assert (target / "commitlog" / path.name).read_bytes() == path.read_bytes()
    assert len(list((target / "commitlog").iterdir())) == len(archived.segments)


@pytest.mark.slow
def test_a_lineage_is_not_mixed_with_another_that_is_there(
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    tmp_path: Path,
    fingerprint: Fingerprint,
) -> None:
    archive_all(lake, make_jobs(lake, *segments))
    segments[1].write_bytes(segments[1].read_bytes()[:-1] + b"\x01")
    archive_all(lake, make_jobs(lake, segments[1], lineage=1, accept_damage=True))
    target = tmp_path / "restored"
    (target / "commitlog").mkdir(parents=True)
    (target / "commitlog" / segments[1].name).write_bytes(segments[1].read_bytes())
    before = fingerprint(target)
    with pytest.raises(RestoreError, match="of another lineage or store"):
        restore(lake, "store-1", target, lineage=0)
    assert fingerprint(target) == before


@pytest.mark.parametrize("planted", ["commitlog", "config", "commitlog/00000000000000000000", "elsewhere"])
def test_a_link_below_the_target_is_an_error_and_leads_nowhere(
    archived: Archived, tmp_path: Path, planted: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    target = tmp_path / "restored"
    (target / planted).parent.mkdir(parents=True)
    (target / planted).symlink_to(victim)
    with pytest.raises(RestoreError, match="expected no symbolic link"):
        restore(archived.lake, "store-1", target)
    assert list(victim.iterdir()) == []


def test_a_link_that_is_planted_meanwhile_leads_nowhere(archived: Archived, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    target = tmp_path / "restored"

    def plant(_: int) -> None:
        # Several threads report their progress.
        with suppress(FileExistsError):
            (target / "config").symlink_to(victim)

    with pytest.raises(RestoreError, match="can't restore there"):
        restore(archived.lake, "store-1", target, progress=plant)
    assert list(victim.iterdir()) == []


def test_the_target_itself_may_be_a_link(archived: Archived, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "restored").symlink_to(tmp_path / "disk")
    restored = restore(archived.lake, "store-1", tmp_path / "restored")
    assert Path(restored[0].path) == tmp_path / "restored" / "commitlog" / archived.segments[0].name
    for path in archived.segments:
        assert (tmp_path / "disk" / "commitlog" / path.name).read_bytes() == path.read_bytes()


def test_a_file_that_appears_meanwhile_is_not_replaced(archived: Archived, tmp_path: Path) -> None:
    target = tmp_path / "restored"
    last = target / "commitlog" / archived.segments[2].name

    def appear(_: int) -> None:
        if not last.exists():
            last.write_bytes(b"of somebody else")

    with pytest.raises(RestoreError, match="File exists"):
        restore(archived.lake, "store-1", target, progress=appear)
    assert last.read_bytes() == b"of somebody else"


def test_bytes_that_somebody_else_writes_into_the_new_file_are_found(
    archived: Archived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage_engine.core import durable

    flush = os.fsync

    def disturb(fd: int) -> None:
        flush(fd)
        for partial in (tmp_path / "restored").rglob("*.restoring"):
            # Another thread may have removed it meanwhile.
            with suppress(FileNotFoundError), partial.open("r+b") as file:
                file.write(b"\xff")

    monkeypatch.setattr(durable.os, "fsync", disturb)
    with pytest.raises(RestoreError, match="read back"):
        restore(archived.lake, "store-1", tmp_path / "restored")
    assert list((tmp_path / "restored" / "commitlog").iterdir()) == []


def test_a_restored_store_is_its_owners_alone(archived: Archived, tmp_path: Path) -> None:
    restore(archived.lake, "store-1", tmp_path / "restored")
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (tmp_path / "restored").rglob("*")
    }
    assert modes == {(True, 0o700), (False, 0o600)}


def test_nothing_is_restored_among_a_stores_own_files(
    archived: Archived, tmp_path: Path, fingerprint: Fingerprint
) -> None:
    store = archived.segments[0].parents[1]
    (store / "consumequeue").mkdir()
    before = fingerprint(store)
    with pytest.raises(BadInputError, match="expected a place outside a broker's store"):
        restore(archived.lake, "store-1", store / "commitlog" / "restored")
    assert fingerprint(store) == before
    assert not (store / "commitlog" / "restored").exists()


def test_a_receipt_names_a_log_and_nothing_else(archived: Archived) -> None:
    for log in ("", ".", "./", "config", "config/deeper", "../elsewhere", "/elsewhere", "a\0b"):
        with pytest.raises(RestoreError, match="expected the name of a log"):
            segment_path(replace(archived.receipts[0], log=log), find_broker("rocketmq").restored_config(()))
