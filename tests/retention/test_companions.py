"""Segments with companions, whose offsets count lines: each of their files goes by its own proof."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import (
    BadInputError,
    ChangedUnderUsError,
    LakeConflictError,
    ProofError,
)
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.coverage.coverage import ReleasedSpan
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.plan import Decision, DependentFile, PlanRequest, Reason
from storage_engine.model.proof.receipt import MAX_COMPANION_BYTES, Companion, Receipt, companions_text
from storage_engine.model.report.validation import VerifyLevel
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.model.store import FileFacts, Segment
from storage_engine.retention import steps
from storage_engine.retention.decisions import adopt
from storage_engine.retention.proof.gate import Consent, Passage
from storage_engine.retention.proof.history import still_proves
from storage_engine.retention.proof.proofs import LakeProofs, Proofs
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.ranges.drift import spans_in_unasked_lakes
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.same_bytes.removing import remove_rest, remove_unchanged
from tests.lakes import make_lakes, path_of
from tests.services import toy
from tests.services.restoring import restore
from tests.services.toy import LINES

REQUEST = PlanRequest()
FIRST = f"{0:020d}"


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> Iterator[Any]:
    with toy.registered(tmp_path / "broker") as found:
        yield found


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., ManagedStore]:
    """A store whose plan under the run key "r" deletes what is old."""

    def make(**settings: Any) -> ManagedStore:
        toy.make_store(tmp_path / "store")
        store = make_lakes(toy.managed(tmp_path, **settings))
        steps.make_plan(store, "r", REQUEST)
        return store

    return make


@pytest.fixture
def archived(planned: Callable[..., ManagedStore]) -> Callable[..., ManagedStore]:
    """The same, archived with proof."""

    def make(**settings: Any) -> ManagedStore:
        store = planned(**settings)
        archive(store, "r")
        return store

    return make


def archive(store: ManagedStore, run_key: str) -> None:
    steps.archive_planned(store, run_key, lambda jobs: steps.archive(store, run_key, jobs))


def going(store: ManagedStore) -> list[Segment]:
    return list(steps.recorded_plan(store, "r").to_delete)


def rows_of(store: ManagedStore) -> tuple[Receipt, ...]:
    (record,) = Journal(store.journal_url).all_stores()
    return receipts(open_lake(store.lake), record.store_id)


def contents(store: ManagedStore) -> dict[Path, bytes]:
    """Of every file of the store's logs, by its path below the root."""
    root = Path(store.root)
    return {file.relative_to(root): file.read_bytes() for log in toy.LOGS for file in (root / log).iterdir()}


class Killed(BaseException):
    """What ends a process between two files."""


def kill_before_companions(module: Any, monkeypatch: pytest.MonkeyPatch, last: Segment) -> None:
    """Remove the own files of segments up to this one and nothing else, then die."""

    def of_own_files(segment: Segment, root: Path, remove: Any) -> None:
        remove_unchanged(replace(segment, companions=()), root, remove)
        if segment.id == last.id:
            raise Killed

    monkeypatch.setattr(module, "remove_unchanged", of_own_files)


def test_ends_and_companions_are_written_proven_verified_and_restored(
    archived: Callable[..., ManagedStore], tmp_path: Path
) -> None:
    store = archived()
    rows, old, before = rows_of(store), going(store), contents(store)
    assert [(row.log, row.base_offset, row.end) for row in rows] == [
        ("access", 0, LINES), ("access", LINES, 2 * LINES), ("errors", 0, LINES),
    ]  # fmt: skip
    for row, segment in zip(rows, old, strict=True):
        assert row.end_offset == segment.end != row.base_offset + row.size_bytes
        (one,) = row.companions
        assert one.content == f"{LINES}\n".encode() == Path(segment.companions[0].path).read_bytes()
        assert one.facts_in(Path(row.source_path).parent) == segment.companions[0]
    journal, lake = Journal(store.journal_url), open_lake(store.lake)
    (record,) = journal.all_stores()
    events = journal.store_events(rows[0].store_id, Step.ARCHIVE, Phase.RESULT)
    said = [event.payload for event in events]
    assert [(one["end_offset"], len(one["companions"])) for one in said] == [(row.end, 1) for row in rows]
    # Where the lake can't be asked, the journal tells what it has.
    wanted = [ReleasedSpan("errors", LINES - 1, LINES), ReleasedSpan("access", 2 * LINES, 3 * LINES)]
    (in_lake,) = spans_in_unasked_lakes(journal, record, wanted, {store.lake.location})
    assert (in_lake.log, in_lake.start_offset, in_lake.end_offset) == ("errors", 0, LINES)
    # Two lakes whose receipts differ in a companion alone prove nothing.
    other = replace(rows[2], files=companions_text([Companion.of(old[2].companions[0], b"+300")]))
    slot, nobody_asked = old[2].id, Consent("", None, "")
    proofs = Proofs(tuple(LakeProofs(lake, {slot: [row]}, {}) for row in (rows[2], other)))
    verdict = proofs.judge(Decision(old[2], Reason.EXPIRED, ""), old[2], Policy(), None, nobody_asked)
    assert (verdict.passage, verdict.detail[:19]) == (Passage.REFUSED, "its lakes disagree:")
    assert verdict.detail.count(f"up to offset {LINES} with {FIRST}.count ") == 2

    (found,) = verify_store(store, VerifyLevel.STORE)
    assert (found.overall, found.findings) == ("OK", ())
    beside = Path(old[2].companions[0].path)
    beside.write_bytes(b"+300")
    for level in (VerifyLevel.BYTES, VerifyLevel.STORE):
        (found,) = verify_store(store, level)
        (row,) = (row for row in found.ranges if row.status == "FAILURE")
        assert (row.log, row.start_offset, row.end_offset) == ("errors", 0, LINES)
        assert f"its companion {FIRST}.count has SHA-256" in row.detail

    first = steps.release(store, "r")
    (refused,) = first.refused
    assert (refused.log, refused.error) == ("errors", "LakeConflictError")
    assert refused.why.startswith(f"{beside}: expected SHA-256 ")
    assert first.new_min_offsets == {"access": 2 * LINES, "errors": 0}
    beside.write_bytes(b"300\n")
    steps.make_plan(store, "s", REQUEST)
    archive(store, "s")
    second = steps.release(store, "s")
    deleted = (*first.deleted, *second.deleted)
    details = {(one.log, one.base_offset): one.passage_detail for one in deleted}
    assert "SHA-256 is still" in details["errors", 0]
    assert "SHA-256 is still" not in details["access", 0]
    assert first.freed_bytes + second.freed_bytes == sum(one.disk_bytes for one in old)
    assert second.new_min_offsets == {"access": 2 * LINES, "errors": LINES}
    gone = {Path(file.path).relative_to(store.root) for one in old for file in one.files}
    assert contents(store).keys() == before.keys() - gone

    assert all(still_proves(row, one) for row, one in zip(rows, deleted, strict=True))
    assert not any(
        still_proves(replace(row, files=None), one) for row, one in zip(rows, deleted, strict=True)
    )
    to = tmp_path / "back"
    restored = restore(lake, rows[0].store_id, to, keep_mtime=True)
    assert {path: (to / path).read_bytes() for path in gone} == {path: before[path] for path in gone}
    assert (to / "errors" / f"{FIRST}.count").stat().st_mtime_ns == rows[2].companions[0].mtime_ns
    assert len([file for file in to.rglob("*") if file.is_file()]) == len(gone)
    (to / "errors" / f"{FIRST}.count").unlink()
    assert all(one.existed for one in restore(lake, rows[0].store_id, to))
    assert (to / "errors" / f"{FIRST}.count").read_bytes() == b"300\n"
    assert len(restored) == 3


def test_what_the_broker_says_otherwise_than_the_receipt_is_refused_until_adopted(
    archived: Callable[..., ManagedStore], module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archived()
    before, real = contents(store), module.ToyStore._segment

    def other(self: Any, file: Path, *state: Any) -> Segment:
        segment: Segment = real(self, file, *state)
        if segment.id != ("errors", 0):
            return segment
        more = (*segment.companions, FileFacts.of(file.with_suffix(".index")))
        return replace(segment, end=LINES - 1, companions=more)

    listed = module.LineIndexes.find

    def without_companion(self: Any, min_offsets: Mapping[str, int]) -> tuple[DependentFile, ...]:
        index = str(Path("errors", f"{FIRST}.index"))
        return tuple(one for one in listed(self, min_offsets) if not one.facts.path.endswith(index))

    monkeypatch.setattr(module.ToyStore, "_segment", other)
    monkeypatch.setattr(module.LineIndexes, "find", without_companion)
    (refused,) = steps.release(store, "r").refused
    assert (refused.log, refused.error) == ("errors", "GateRefusedError")
    assert f"has the companions {FIRST}.count, the store has {FIRST}.count, " in refused.why
    steps.make_plan(store, "s", REQUEST)
    said = rf"expected a segment that ends at {LINES}, .*found a segment that ends at {LINES - 1}, .*adopt"
    with pytest.raises(LakeConflictError, match=said):
        archive(store, "s")
    errors = {path: data for path, data in before.items() if path.parts[0] == "errors"}
    assert errors.items() <= contents(store).items()
    # What is archived stays, and the segment as it is now is archived under a new lineage.
    adopt(store, "jo", "the package says it otherwise now", log="errors")
    steps.make_plan(store, "t", REQUEST)
    archive(store, "t")
    ends = [(row.lineage, row.end, len(row.companions)) for row in rows_of(store) if row.log == "errors"]
    assert ends == [(1, LINES, 1), (2, LINES - 1, 2)]
    steps.release(store, "t")
    assert (
        not {Path("errors", f"{FIRST}{kind}") for kind in (".txt", ".count", ".index")}
        & contents(store).keys()
    )


def test_what_can_t_be_archived_with_its_companions_is_not(planned: Callable[..., ManagedStore]) -> None:
    store = planned()
    jobs = steps.archive_jobs(store, "r")
    path = Path(jobs[0].companions[0].path)
    aside = path.rename(path.with_suffix(".aside"))
    left = [(job.log, job.base_offset) for job in steps.archive_jobs(store, "r")]
    assert left == [("access", LINES), ("errors", 0)]
    path.write_bytes(aside.read_bytes())
    with pytest.raises(ProofError, match=rf"^{path}: expected .*inode=.*Nothing was committed"):
        archive_all(open_lake(store.lake), jobs)
    path.write_bytes(b"300" + b" " * MAX_COMPANION_BYTES)
    said = rf"^{path}: expected at most {MAX_COMPANION_BYTES} bytes .*Nothing was archived"
    with pytest.raises(BadInputError, match=said):
        steps.archive_jobs(store, "r")
    assert rows_of(store) == ()
    path.write_bytes(b"300" + b" " * (MAX_COMPANION_BYTES - 3))
    archive(store, "r")
    assert rows_of(store)[0].companions[0].size_bytes == MAX_COMPANION_BYTES


@pytest.mark.again
def test_what_is_sealed_is_compared_again_where_its_companion_was_touched(
    planned: Callable[..., ManagedStore],
) -> None:
    store, asked = planned(), []

    def archive_with(jobs: Sequence[SegmentJob]) -> Sequence[Receipt]:
        asked.append([(job.log, job.base_offset) for job in jobs])
        return archive_all(open_lake(jobs[0].lake), jobs)

    touched = Path(going(store)[2].companions[0].path)
    for number in range(3):
        steps.archive_sealed(store, f"s{number}", archive_with)
        steps.archive_sealed(store, f"t{number}", archive_with)
        os.utime(touched)
    sealed = [("access", LINES * number) for number in range(3)] + [("errors", 0)]
    assert asked == [sealed, [("errors", 0)], [("errors", 0)]]
    assert len(rows_of(store)) == len(sealed)


def test_without_an_archive_a_touched_companion_keeps_its_segment(tmp_path: Path) -> None:
    toy.make_store(tmp_path / "store")
    store = toy.managed(tmp_path, policy=Policy(archive=ArchiveMode.OFF))
    steps.make_plan(store, "r", REQUEST)
    os.utime(going(store)[0].companions[0].path)
    (refused,) = steps.release(store, "r").refused
    assert (refused.log, "changed after the plan" in refused.why) == ("access", True)
    steps.make_plan(store, "again", REQUEST)
    assert len(steps.release(store, "again").deleted) == 2


def test_an_undo_brings_companions_back(
    archived: Callable[..., ManagedStore], module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archived(policy=Policy(undo_window_hours=24))
    before, old = contents(store), going(store)
    assert steps.release(store, "r").freed_bytes == 0
    steps.clean_dependents(store, "r")
    assert not any(Path(file.path).exists() for one in old for file in one.files)
    done = undo(store, "r", "jo")
    assert contents(store) == before
    assert (done.segments, done.dependents) == (3, 3)
    assert done.size_bytes == sum(one.disk_bytes for one in old) + 3 * len(f"every {LINES} lines: 0\n")
    # They are the very files.
    companions = [one.companions[0] for one in old]
    assert [one.inode for one in companions] == [Path(one.path).stat().st_ino for one in companions]
    # A run that was killed between the files of a segment is undone without being gone on with.
    steps.make_plan(store, "killed", REQUEST)
    kill_before_companions(module, monkeypatch, going(store)[1])
    with pytest.raises(Killed):
        steps.release(store, "killed")
    assert [Path(one.facts.path).exists() for one in old] == [False, False, True]
    assert undo(store, "killed", "jo").segments == 2
    assert contents(store) == before


def test_a_segment_s_own_file_goes_first_and_each_is_durable(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    toy.make_store(root)
    segment = module.ToyStore(root, 1).snapshot(0).logs[0].segments[0]
    acts: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: acts.append("fsync"))

    def remove(path: Path, directory: int) -> bool:
        acts.append(path.suffix)
        return True

    remove_unchanged(segment, root, remove)
    assert acts == [".txt", "fsync", ".count", "fsync"]
    os.utime(segment.companions[0].path)
    with pytest.raises(ChangedUnderUsError, match="count: expected it as it was a moment ago"):
        remove_unchanged(segment, root, remove)
    assert remove_rest(segment, root, remove) == (segment.companions[0].path,)
    assert acts == [".txt", "fsync", ".count", "fsync", "fsync"]


def test_what_a_kill_left_of_segments_goes_only_as_it_was_judged(
    archived: Callable[..., ManagedStore], module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archived()
    proven, touched, unproven = (Path(segment.companions[0].path) for segment in going(store))

    kill_before_companions(module, monkeypatch, going(store)[2])
    with pytest.raises(Killed):
        steps.release(store, "r")
    monkeypatch.undo()
    os.utime(touched)
    path_of(open_lake(store.lake), rows_of(store)[2]).unlink()
    # Another run comes first, which deletes another segment: what is left isn't in its plan.
    following = proven.with_name(f"{2 * LINES:020d}.txt")
    os.utime(following, ns=(0, 0))
    steps.make_plan(store, "next", REQUEST)
    archive(store, "next")
    result = steps.release(store, "next")
    assert [one.base_offset for one in result.deleted] == [2 * LINES]
    assert [path.exists() for path in (proven, touched, unproven)] == [False, True, True]
    said = [notice for notice in result.notices if "a deleted segment left th" in notice]
    assert said == [
        f"{touched}: a deleted segment left this file. It was touched since, so it stays",
        f"{unproven}: a deleted segment left these files. No valid receipt proves them, so they stay",
    ]
