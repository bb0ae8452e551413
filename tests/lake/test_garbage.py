from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from storage_engine.exceptions import (
    BadInputError,
    LakeIdentityError,
    LakeUnavailableError,
    StorageEngineError,
)
from storage_engine.lake.archive import archive_all, archive_segment
from storage_engine.lake.catalog import Lake, open_lake
from storage_engine.lake.commit_lock import LOCK_NAME, committing
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.garbage import Collection, GarbageKind, collect
from storage_engine.lake.receipts import broken_receipts, receipts
from storage_engine.lake.staging import publish
from tests.lake.conftest import MakeJobs
from tests.lakes import path_of

HOUR_MS = 3_600_000
FAR_FUTURE_MS = 1 << 43


def _collect(lake: Lake, *, delete: bool = False) -> Collection:
    """Without a grace: everything counts as old."""
    return collect(lake, grace_ms=0, now_ms=FAR_FUTURE_MS, delete=delete)


def _root(lake: Lake) -> Path:
    root = local_path(lake.messages().location())
    assert root is not None
    return root


def _files(lake: Lake) -> set[str]:
    return {str(path) for path in _root(lake).parent.rglob("*") if path.is_file()}


def test_a_lake_in_order_has_no_garbage(lake: Lake, segments: list[Path], make_jobs: MakeJobs) -> None:
    archive_all(lake, make_jobs(lake, segments[0]))
    archive_all(lake, make_jobs(lake, *segments[1:]))
    before = _files(lake)
    assert _collect(lake, delete=True) == Collection((), (), 0, ())
    assert _files(lake) == before


def test_what_dead_attempts_left_is_listed_and_removed_only_when_asked(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    rows = archive_all(lake, make_jobs(lake, segments[0]))
    staged, published = (archive_segment(job) for job in make_jobs(lake, *segments[1:]))
    publish([published])
    metadata = _root(lake) / "metadata"
    newest = int(Path(lake.messages().metadata_location).name.partition("-")[0])
    failed = f"{newest + 1:05d}-x.metadata.json"
    for name in (failed, "snap-1-0-x.avro", "x-m0.avro"):
        (metadata / name).write_bytes(b"left by a commit that failed")
    (_root(lake) / "data" / "README").write_text("somebody's")
    before = _files(lake)
    found = _collect(lake)
    assert {(Path(file.path).name, file.kind) for file in found.garbage} == {
        (Path(staged.staged_file).name, GarbageKind.STAGED),
        (Path(published.staged_file).name, GarbageKind.STAGED),
        (Path(published.data_file).name, GarbageKind.DATA_FILE),
        (failed, GarbageKind.METADATA),
        ("snap-1-0-x.avro", GarbageKind.MANIFEST_LIST),
        ("x-m0.avro", GarbageKind.MANIFEST),
    }
    assert found.garbage_bytes == sum(Path(file.path).stat().st_size for file in found.garbage)
    assert found.unknown == (str(_root(lake) / "data" / "README"),)
    assert (found.deleted, _files(lake)) == ((), before)
    removed = _collect(lake, delete=True)
    assert removed.deleted == removed.garbage == found.garbage
    assert _files(lake) - {str(_root(lake) / LOCK_NAME)} == (
        before - {file.path for file in found.garbage} - {str(_root(lake) / LOCK_NAME)}
    )
    assert broken_receipts(lake, rows) == {}


def test_what_is_younger_than_the_grace_is_left_alone(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    archive_all(lake, make_jobs(lake, segments[0]))
    old, young = (
        Path(archive_segment(job).staged_file.removeprefix("file://"))
        for job in make_jobs(lake, *segments[1:])
    )
    now_ms = young.stat().st_mtime_ns // 1_000_000
    os.utime(old, ns=(0, (now_ms - 25 * HOUR_MS) * 1_000_000))
    found = collect(lake, grace_ms=24 * HOUR_MS, now_ms=now_ms, delete=True)
    assert [file.path for file in found.deleted] == [str(old)]
    assert found.young_count == 1
    assert young.exists()


def test_files_of_an_expired_snapshot_go_but_never_those_a_receipt_names(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    rows = archive_all(lake, make_jobs(lake, segments[0]))
    old = {str(path) for path in (_root(lake) / "metadata").glob("*.avro")}
    lake.messages().delete("store_id = 'store-1'")
    table = lake.messages()
    expired = [s.snapshot_id for s in table.metadata.snapshots if s != table.current_snapshot()]
    assert _collect(lake).garbage == ()
    table.maintenance.expire_snapshots().by_ids(expired).commit()
    found = _collect(lake, delete=True)
    assert {file.path for file in found.deleted} >= {path for path in old if "snap-" in path}
    assert {file.kind for file in found.deleted} <= {GarbageKind.MANIFEST, GarbageKind.MANIFEST_LIST}
    assert path_of(lake, rows[0]).exists()


def test_a_file_of_a_table_that_cannot_be_read_is_never_removed(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    archive_all(lake, make_jobs(lake, segments[0]))
    archive_segment(make_jobs(lake, segments[1])[0])
    (manifest,) = (_root(lake) / "metadata").glob("*-m0.avro")
    content = manifest.read_bytes()
    manifest.write_bytes(content[:100])
    before = _files(lake)
    with pytest.raises(LakeUnavailableError):
        _collect(lake, delete=True)
    assert _files(lake) - before <= {str(_root(lake) / LOCK_NAME)}
    assert before <= _files(lake)


def test_a_warehouse_that_is_not_where_the_catalog_says_is_refused(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    archive_all(lake, make_jobs(lake, segments[0]))
    current = Path(lake.messages().metadata_location.removeprefix("file://"))
    shutil.copy(current, current.with_name("elsewhere"))
    current.unlink()
    with pytest.raises(LakeUnavailableError):
        _collect(lake, delete=True)


def test_a_catalog_that_was_put_back_from_an_older_copy_is_refused(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    first, second, third = segments
    archive_all(lake, make_jobs(lake, first))
    catalog, copy = tmp_path / "lake" / "catalog.db", tmp_path / "copy.db"
    shutil.copyfile(catalog, copy)
    archive_all(lake, make_jobs(lake, second))
    archive_all(lake, make_jobs(lake, third))
    newest = Path(lake.messages().metadata_location).name
    before = _files(lake)
    copy.replace(catalog)
    with pytest.raises(LakeIdentityError, match=r"found only up to 00001-.*put back from an older copy"):
        open_lake(lake.config)
    # Neither does it work through what was opened before.
    for delete in (False, True):
        with pytest.raises(LakeUnavailableError, match=f"found .*{newest}.*put back from an older copy"):
            _collect(lake, delete=delete)
    assert _files(lake) == before


def test_where_there_is_no_lock_a_file_is_left_alone_for_a_day(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.lake.garbage.local_path", lambda _: None)
    with pytest.raises(BadInputError, match="expected a grace of at least 24 hours, found 23"):
        collect(lake, grace_ms=23 * HOUR_MS, now_ms=FAR_FUTURE_MS, delete=True)
    assert collect(lake, grace_ms=24 * HOUR_MS, now_ms=FAR_FUTURE_MS, delete=True).deleted == ()
    assert collect(lake, grace_ms=0, now_ms=FAR_FUTURE_MS, delete=False).garbage == ()


def test_nothing_is_removed_while_somebody_commits(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive_all(lake, make_jobs(lake, segments[0]))
    proven = archive_segment(make_jobs(lake, segments[1])[0])
    monkeypatch.setattr("storage_engine.lake.commit_lock._REMOVE_PATIENCE_SECONDS", 0)
    with committing(lake), pytest.raises(LakeUnavailableError, match="somebody commits to it"):
        _collect(lake, delete=True)
    assert Path(proven.staged_file.removeprefix("file://")).exists()


@pytest.mark.slow
def test_a_commit_waits_for_whoever_removes_files_and_a_killed_one_holds_nobody_up(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    code = (
        "import sys, time; from storage_engine.lake.commit_lock import nobody_commits;"
        "from storage_engine.lake.catalog import open_lake;"
        "from storage_engine.lake.config import LakeConfig\n"
        "with nobody_commits(open_lake(LakeConfig.from_json(sys.argv[1]))):"
        " print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, lake.config.to_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        done = threading.Event()

        def archive() -> None:
            archive_all(lake, make_jobs(lake, segments[0]))
            done.set()

        archiver = threading.Thread(target=archive)
        archiver.start()
        assert not done.wait(2)
        holder.kill()
        archiver.join(60)
    assert done.is_set()


@pytest.mark.slow
def test_collecting_without_a_grace_beside_archivers_loses_nothing_that_was_committed(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    """An archiver whose staged file was taken fails cleanly; every receipt that exists holds."""
    jobs = [make_jobs(lake, path, store_id=f"store-{n}") for n in range(4) for path in segments]
    failures: list[Exception] = []

    def archive() -> None:
        for job in jobs:
            try:
                archive_all(lake, job)
            except StorageEngineError as error:
                failures.append(error)

    archiver = threading.Thread(target=archive)
    archiver.start()
    while archiver.is_alive():
        _collect(lake, delete=True)
    assert all(isinstance(failure, LakeUnavailableError) for failure in failures), failures
    for number in range(4):
        assert broken_receipts(lake, receipts(lake, f"store-{number}")) == {}
    for job in jobs:
        archive_all(lake, job)
    assert sum(len(receipts(lake, f"store-{n}")) for n in range(4)) == len(jobs)
    assert _collect(lake).garbage == ()
