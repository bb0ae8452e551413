from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core import file_users
from storage_engine.exceptions import (
    ChangedUnderUsError,
    FileGoneError,
    GateRefusedError,
    LakeConflictError,
    LakeUnavailableError,
    RunStateError,
    StorageEngineError,
    StoreBusyError,
    StoreCrashedError,
)
from storage_engine.journal.journal import Journal, Phase, Run, Step, clock_ms
from storage_engine.journal.tables import leases
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.model.store import FileFacts
from storage_engine.retention import steps
from storage_engine.retention.archive.gone import Gone
from storage_engine.retention.decisions import adopt
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.proof import unseen_writes
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.ranges.drift import recorded_gone
from storage_engine.retention.report.report import Fate, build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.managed_store import ManagedStore
from tests.rounds import later

Make = Callable[..., ManagedStore]
FingerprintOf = Callable[[str | Path], dict[str, str]]

HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1)
print("held", flush=True)
sys.stdin.read()
"""


def segment(store: ManagedStore, base_offset: int) -> Path:
    return Path(store.root) / "commitlog" / f"{base_offset:020d}"


def plan_digest(store: ManagedStore) -> str:
    return steps.recorded_plan(store, "r").digest


def test_a_proven_plan_goes_and_nothing_else(archived: Make, fingerprint: FingerprintOf) -> None:
    store = archived(max_segments=3)
    before = fingerprint(store.root)
    result = steps.release(store, "r")
    gone = [f"commitlog/{offset:020d}" for offset in (0, 1 << 20, 2 << 20)]
    assert fingerprint(store.root) == {k: v for k, v in before.items() if k not in gone}
    assert [release.sha256 for release in result.deleted] == [before[name] for name in gone]
    assert {release.passage for release in result.deleted} == {Passage.PROVEN}
    assert (result.freed_bytes, result.new_min_offset, result.kept) == (3 << 20, 3 << 20, ())


@pytest.mark.slow
def test_a_release_is_done_once(archived: Make, fingerprint: FingerprintOf) -> None:
    store = archived(max_segments=1)
    first = steps.release(store, "r")
    left = fingerprint(store.root)
    assert steps.release(store, "r") == first
    assert fingerprint(store.root) == left


def test_a_run_without_a_plan_is_refused(managed: Make) -> None:
    with pytest.raises(RunStateError, match=r"run 'r' of store .*: expected it in"):
        steps.release(managed(), "r")


@pytest.mark.slow
def test_another_plan_than_the_approved_one_is_refused(archived: Make, refuses: Callable[..., str]) -> None:
    store = archived(max_segments=1)
    assert "expected approval of its plan" in refuses(store, RunStateError, approved_digest="0" * 64)
    assert steps.release(store, "r", approved_digest=plan_digest(store)).deleted


@pytest.mark.slow
def test_without_a_receipt_nothing_goes(planned: Make, refuses: Callable[..., str]) -> None:
    store = planned(max_segments=2)
    steps.archive_jobs(store, "r")
    said = refuses(store, GateRefusedError)
    assert f"{segment(store, 0)}: no receipt in the lake" in said
    assert f"{segment(store, 1 << 20)}: no receipt in the lake" in said


def test_one_missing_receipt_holds_back_all(planned: Make, refuses: Callable[..., str]) -> None:
    store = planned(max_segments=2)
    steps.archive(store, "r", steps.archive_jobs(store, "r")[:1])
    said = refuses(store, GateRefusedError)
    assert str(segment(store, 0)) not in said
    assert f"{segment(store, 1 << 20)}: no receipt in the lake" in said


@pytest.mark.slow
def test_a_missing_lake_permits_nothing(archived: Make, refuses: Callable[..., str], lake_dir: Path) -> None:
    store = archived(max_segments=1)
    lake_dir.rename(lake_dir.with_name("elsewhere"))
    refuses(store, LakeUnavailableError)


@pytest.mark.slow
def test_a_missing_data_file_proves_nothing(
    archived: Make, refuses: Callable[..., str], lake_dir: Path
) -> None:
    store = archived(max_segments=2)
    data_file = sorted(lake_dir.glob("warehouse/**/messages/data/**/*.parquet"))[0]
    data_file.unlink()
    assert f"data file file://{data_file} is missing" in refuses(store, GateRefusedError)


@pytest.mark.again
def test_a_shortened_data_file_proves_nothing(
    archived: Make, refuses: Callable[..., str], lake_dir: Path
) -> None:
    store = archived(max_segments=1)
    (data_file,) = lake_dir.glob("warehouse/**/messages/data/**/*.parquet")
    os.truncate(data_file, data_file.stat().st_size - 1)
    assert "bytes, expected" in refuses(store, GateRefusedError)


@pytest.mark.slow
def test_other_bytes_under_a_proven_offset_are_refused_with_both_hashes(
    archived: Make, refuses: Callable[..., str], fingerprint: FingerprintOf
) -> None:
    store = archived(max_segments=2)
    name = f"commitlog/{1 << 20:020d}"
    proven = fingerprint(store.root)[name]
    stat = segment(store, 1 << 20).stat()
    with segment(store, 1 << 20).open("r+b") as file:
        file.seek(500)
        file.write(b"\xff")
    os.utime(segment(store, 1 << 20), ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    said = refuses(store, LakeConflictError)
    assert str(segment(store, 1 << 20)) in said
    assert proven in said
    assert fingerprint(store.root)[name] in said


@pytest.mark.slow
def test_a_copy_with_the_same_bytes_goes_after_its_hash_was_compared(archived: Make) -> None:
    store = archived(max_segments=1)
    old = segment(store, 0)
    stat = old.stat()
    copy = old.with_suffix(".copy")
    copy.write_bytes(old.read_bytes())
    os.utime(copy, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    copy.replace(old)
    (release,) = steps.release(store, "r").deleted
    assert release.passage_detail.startswith(
        f"touched since its copy was proven, and its SHA-256 is still {release.sha256}"
    )
    assert not old.exists()


@pytest.mark.slow
def test_a_segment_that_was_touched_is_young_again_and_stays(archived: Make) -> None:
    store = archived(max_segments=2)
    now_ns = clock_ms() * 10**6
    os.utime(segment(store, 1 << 20), ns=(now_ns, now_ns))
    result = steps.release(store, "r")
    assert [release.base_offset for release in result.deleted] == [0]
    assert [(kept.base_offset, kept.reason) for kept in result.kept] == [(1 << 20, Reason.NOT_EXPIRED)]


@pytest.mark.slow
def test_a_proven_segment_that_somebody_else_deleted_keeps_nothing_back(
    archived: Make, journal_of: Callable[[ManagedStore], Journal]
) -> None:
    store = archived(max_segments=3)
    segment(store, 0).unlink()
    result = steps.release(store, "r")
    assert [one.base_offset for one in result.deleted] == [1 << 20, 2 << 20]
    assert result.gone == (Gone("commitlog", 0, is_proven=True),)
    went = "log commitlog: records of offsets [0, 1048576) were deleted meanwhile, by none of our runs"
    assert f"{went}, and a lake proves them" in result.notices
    journal = journal_of(store)
    record = journal.find_store(store.real_root)
    assert record is not None
    ((drift, _),) = recorded_gone(journal, record)
    assert (drift.start_offset, drift.end_offset) == (0, 1 << 20)
    planned = [row.fate for row in build_report(store, "r").segments if row.planned]
    assert planned == [Fate.GONE_PROVEN, Fate.DELETED, Fate.DELETED]


@pytest.mark.slow
def test_an_unproven_segment_that_somebody_else_deleted_is_lost(
    planned: Make, refuses: Callable[..., str]
) -> None:
    store = planned(max_segments=2)
    segment(store, 0).unlink()
    assert "log commitlog: expected records of offsets [0, 1048576) on disk or in a lake" in (
        refuses(store, FileGoneError)
    )


@pytest.mark.slow
@pytest.mark.parametrize("is_proven", [True, False], ids=["proven", "lost"])
def test_what_goes_while_it_is_hashed_is_what_went_before(
    archived: Make, monkeypatch: pytest.MonkeyPatch, lake_dir: Path, is_proven: bool
) -> None:
    store = archived(max_segments=3)
    for base in (0, 1 << 20):
        os.utime(segment(store, base), ns=(0, 0))
    hashed: list[str] = []

    def settle(path: str) -> FileFacts:
        hashed.append(path)
        if len(hashed) == 1:
            Path(path).unlink()
            if not is_proven:
                next((lake_dir / "warehouse").rglob(f"*{0:020d}*.parquet")).unlink()
        return FileFacts.of(path)

    monkeypatch.setattr(unseen_writes, "settle", settle)
    if not is_proven:
        with pytest.raises(FileGoneError, match=r"offsets \[0, 1048576\) on disk or in a lake"):
            steps.release(store, "r")
        return
    result = steps.release(store, "r")
    assert (result.refused, result.gone) == ((), (Gone("commitlog", 0, is_proven=True),))
    assert [one.base_offset for one in result.deleted] == [1 << 20, 2 << 20]
    assert hashed.count(str(segment(store, 0))) == 1
    fates = [row.fate for row in build_report(store, "r").segments if row.planned]
    assert fates == [Fate.GONE_PROVEN, Fate.DELETED, Fate.DELETED]


@pytest.mark.slow
def test_what_another_run_deleted_meanwhile_is_no_loss(archived: Make) -> None:
    store = archived(max_segments=2)
    steps.make_plan(store, "second", PlanRequest(manual=True, max_segments=3))
    first = steps.release(store, "r")
    assert [job.base_offset for job in steps.archive_jobs(store, "second")] == [2 << 20]
    steps.archive(store, "second", steps.archive_jobs(store, "second"))
    second = steps.release(store, "second")
    assert second.deleted_by_others == first.deleted
    assert [release.base_offset for release in second.deleted] == [2 << 20]


@pytest.mark.slow
def test_a_file_that_only_has_the_name_of_a_deleted_one_is_a_loss(archived: Make) -> None:
    store = archived(max_segments=1)
    original = segment(store, 0)
    copy = Path(store.root) / "copy"
    copy.write_bytes(original.read_bytes())
    os.utime(copy, ns=(0, 0))
    steps.release(store, "r")
    copy.rename(original)
    steps.make_plan(store, "second", PlanRequest(manual=True, max_segments=1))
    steps.archive(store, "second", steps.archive_jobs(store, "second"))
    original.unlink()
    with pytest.raises(GateRefusedError, match="none of our runs deleted it"):
        steps.release(store, "second")


@pytest.mark.slow
def test_a_hole_stops_the_run(archived: Make, refuses: Callable[..., str]) -> None:
    store = archived(max_segments=2)
    segment(store, 1 << 20).unlink()
    assert "a hole before this file" in refuses(store, StorageEngineError)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["consumequeue", *later("index")])
def test_what_points_into_the_segments_and_cannot_be_read_stays(archived: Make, kind: str) -> None:
    store = archived()
    oldest = min(
        file.facts.path
        for file in open_store(store).dependents.find({"commitlog": 7 << 20})
        if f"/{kind}/" in file.facts.path
    )
    os.truncate(oldest, 20)
    notices = preview(store, PlanRequest(manual=True)).plan.notices
    released = steps.release(store, "r")
    assert released.deleted
    result = steps.clean_dependents(store, "r")
    for said in (notices, released.notices, result.notices):
        assert any(oldest in one for one in said if "dependents that can't be read stay: " in one)
    assert Path(oldest).stat().st_size == 20
    assert result.deleted["consume-queue"]


@pytest.mark.slow
def test_each_deletion_is_meant_before_it_is_done(
    archived: Make, journal_of: Callable[[ManagedStore], Journal]
) -> None:
    store = archived(max_segments=2)
    result = steps.release(store, "r")
    journal = journal_of(store)
    record = journal.find_store(store.real_root)
    assert record is not None
    events = journal.events(journal.run(record.store_id, "r"), Step.RELEASE)
    assert [(event.phase, event.subject) for event in events if event.subject] == [
        (phase, release.subject) for release in result.deleted for phase in (Phase.INTENT, Phase.RESULT)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("change", [Path.touch, *later(Path.unlink)])
def test_a_file_that_changes_after_the_intent_is_not_deleted_and_not_taken_for_deleted(
    archived: Make, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    store = archived(max_segments=2)
    record = Journal.record

    def change_then_record(journal: Journal, run: Run, *args: Any, **options: Any) -> None:
        if args[:2] == (Step.RELEASE, Phase.INTENT):
            change(segment(store, 0))
        record(journal, run, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "record", change_then_record)
        with pytest.raises(ChangedUnderUsError, match="expected it as it was a moment ago"):
            steps.release(store, "r")
    assert segment(store, 1 << 20).exists()
    assert {row.fate for row in build_report(store, "r").segments if row.planned} == {Fate.PENDING}
    if not segment(store, 0).exists():
        result = steps.release(store, "r")
        assert [(one.base_offset, one.is_proven) for one in result.gone] == [(0, True)]
        assert [one.base_offset for one in result.deleted] == [1 << 20]
        assert build_report(store, "r").segments[0].fate is Fate.GONE_PROVEN


@pytest.mark.slow
def test_hashing_longer_than_a_lease_lasts_does_not_lose_the_store(
    archived: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archived(max_segments=3)
    for base_offset in (0, 1 << 20, 2 << 20):
        segment(store, base_offset).chmod(0o600)
    now_ms, digest = [clock_ms()], unseen_writes.digest

    def slowly(*args: Any) -> Any:
        now_ms[0] += leases.LEASE_MS * 2 // 3
        return digest(*args)

    monkeypatch.setattr(leases, "clock_ms", lambda: now_ms[0])
    monkeypatch.setattr(unseen_writes, "digest", slowly)
    assert len(steps.release(store, "r").deleted) == 3


@pytest.mark.slow
def test_a_store_that_its_broker_holds_is_left_alone(archived: Make, refuses: Callable[..., str]) -> None:
    store = archived(max_segments=1)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, f"{store.root}/lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder:
        holder.stdout.readline()
        assert f"process {holder.pid}" in refuses(store, StoreBusyError)
        holder.stdin.close()
    assert steps.release(store, "r").deleted


@pytest.mark.slow
def test_a_store_that_another_run_holds_is_left_alone(
    archived: Make, refuses: Callable[..., str], journal_of: Callable[[ManagedStore], Journal]
) -> None:
    store = archived(max_segments=1)
    journal = journal_of(store)
    record = journal.find_store(store.real_root)
    assert record is not None
    with journal.lease(record.store_id):
        assert "expected its lease to be free" in refuses(store, StoreBusyError)


@pytest.mark.slow
def test_a_store_that_crashed_since_is_left_alone(archived: Make, refuses: Callable[..., str]) -> None:
    store = archived(max_segments=1)
    (Path(store.root) / "abort").write_bytes(b"1")
    assert "did not stop cleanly" in refuses(store, StoreCrashedError)


@pytest.mark.slow
def test_a_clock_that_went_back_permits_nothing(archived: Make, refuses: Callable[..., str]) -> None:
    store = archived(max_segments=1)
    now_ms = steps.recorded_plan(store, "r").decided_at_ms - 1
    assert "the clock went back" in refuses(store, GateRefusedError, now_ms=now_ms)


@pytest.mark.slow
def test_other_bytes_are_archived_and_go_after_a_person_adopted_them(
    archived: Make, refuses: Callable[..., str]
) -> None:
    store = archived(max_segments=1)
    stat = segment(store, 0).stat()
    with segment(store, 0).open("r+b") as file:
        file.seek(stat.st_size - 1)
        file.write(b"\x77")
    os.utime(segment(store, 0), ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    refuses(store, LakeConflictError)
    with pytest.raises(LakeConflictError):
        steps.archive(store, "r", steps.archive_jobs(store, "r"))
    assert adopt(store, "ann", "log was cut by a recovery").lineage == 2
    steps.archive(store, "r", steps.archive_jobs(store, "r"))
    (release,) = steps.release(store, "r").deleted
    assert release.data_file is not None
    assert "/2-commitlog-" in release.data_file


@pytest.mark.slow
def test_what_could_not_be_checked_while_the_store_was_held_is_told(
    archived: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of another user, which can't be looked into, might have the store's files open."""
    store = archived()
    mapped_paths = file_users._mapped_paths
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:

        def look(pid: int, directories: tuple[str, ...]) -> Iterable[str]:
            if pid == other.pid:
                raise PermissionError(pid)
            return mapped_paths(pid, directories)

        monkeypatch.setattr(file_users, "_mapped_paths", look)
        unchecked = "could not be checked for open files of the store"
        (deleting,) = (text for text in steps.release(store, "r").notices if unchecked in text)
        (cleaning,) = (text for text in steps.clean_dependents(store, "r").notices if unchecked in text)
    told = report_text(build_report(store, "r"))
    assert deleting == cleaning
    both = "while segments were deleted, and while the files that pointed into them were deleted"
    assert f"  {both}: {deleting}\n" in told
