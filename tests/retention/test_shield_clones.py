"""Where a file system shares blocks a link is a file of its own: no write to the log reaches it."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import GateRefusedError
from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import Policy, ShieldMode
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import remove_shield_of
from storage_engine.retention.monitor.store_watch import read_links
from storage_engine.retention.shield import tend_shield
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import LinkKind, look_at_shield, shield_path
from storage_engine.shield.links import make_links
from tests.fixture_stores import file_sha256
from tests.rounds import ALL
from tests.services.file_systems import mounted

KINDS = ("xfs", "btrfs")
KILLED_BEFORE_THE_NAME = """
import os, signal, sys
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.shield import links
links.os.link = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
segment = Segment("commitlog", 0, FileFacts.of(sys.argv[2]), SegmentState.SEALED)
links.make_links(sys.argv[1], [segment], 1)
"""

pytestmark = pytest.mark.skipif(not ALL, reason="make test-all mounts file systems")


@pytest.fixture(params=KINDS)
def mount(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with mounted(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def store(mount: Path, managed: Callable[..., ManagedStore]) -> ManagedStore:
    """A stopped broker's store with a shield of all that is unproven."""
    made = managed(policy=Policy(shield=ShieldMode.ON))
    shutil.copytree(made.root, mount / "store")
    made = replace(made, root=str(mount / "store"))
    assert tend_shield(made).links == len(segments(made))
    assert {seen.link.kind for seen in look_at_shield(made.root).links} == {LinkKind.CLONE}
    return made


def segments(store: ManagedStore) -> list[Path]:
    """The sealed ones."""
    return sorted((Path(store.root) / "commitlog").iterdir())[:-1]


def segment_in(root: Path) -> Segment:
    path = root / "commitlog" / f"{0:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 65536)
    return Segment("commitlog", 0, FileFacts.of(path), SegmentState.SEALED)


def archived_sha256(store: ManagedStore) -> dict[int, str]:
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    return {row.base_offset: row.sha256 for row in receipts(open_lake(store.lake), record.store_id)}


def test_a_link_outlives_a_truncation_and_what_is_written_after_it(mount: Path) -> None:
    segment = segment_in(mount)
    (made,) = make_links(mount, [segment], 1)
    assert made.kind is LinkKind.CLONE
    os.truncate(segment.facts.path, 0)
    Path(segment.facts.path).write_bytes(b"written again")
    Path(segment.facts.path).unlink()
    (seen,) = look_at_shield(mount).links
    assert seen.is_same
    assert seen.is_last
    assert Path(seen.facts.path).read_bytes() == b"x" * 65536


def test_making_one_leaves_the_segment_as_it_was(mount: Path) -> None:
    segment = segment_in(mount)
    make_links(mount, [segment], 1)
    assert FileFacts.of(segment.facts.path) == segment.facts
    assert make_links(mount, [segment], 1) == ()


def test_what_was_written_through_a_mapping_and_not_flushed_is_in_it(mount: Path) -> None:
    segment = segment_in(mount)
    with Path(segment.facts.path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        for at in range(0, len(mapping), mmap.PAGESIZE):
            mapping[at] = 1
        now = replace(segment, facts=FileFacts.of(segment.facts.path))
        make_links(mount, [now], 1)
        written = bytes(mapping)
        mapping[7] = 2
    (seen,) = look_at_shield(mount).links
    assert Path(seen.facts.path).read_bytes() == written


def test_one_that_a_killed_process_left_without_its_name_is_made_again(mount: Path) -> None:
    segment = segment_in(mount)
    command = [sys.executable, "-c", KILLED_BEFORE_THE_NAME, str(mount), segment.facts.path]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = shield_path(mount).glob(".clone.*")
    assert look_at_shield(mount).links == ()
    assert look_at_shield(mount).foreign == ()
    os.utime(left, (0, 0))  # not one that is being made at this moment
    (made,) = make_links(mount, [segment], 1)
    assert [seen.link for seen in look_at_shield(mount).links] == [made]
    assert not left.exists()


@pytest.mark.parametrize("was_read", [True, False])
def test_what_was_written_to_and_removed_is_archived_as_it_was_linked(
    store: ManagedStore, was_read: bool
) -> None:
    first = segments(store)[0]
    sha256 = file_sha256(first)
    if was_read:
        read_links(store, lambda: False)
    with first.open("r+b") as file:
        file.write(b"other bytes")
    first.unlink()
    assert tend_shield(store).archived == (0,)
    assert archived_sha256(store) == {0: sha256}


def test_a_release_takes_them_with_the_segments(store: ManagedStore) -> None:
    read_links(store, lambda: False)
    steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=2))
    steps.archive(store, "r", steps.archive_jobs(store, "r"))
    deleted = [release.base_offset for release in steps.release(store, "r").deleted]
    assert len(deleted) == 2
    left = {seen.link.base_offset for seen in look_at_shield(store.root).links}
    assert left == {int(path.name) for path in segments(store)}
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_while_a_segment_is_in_the_log_nothing_is_archived_from_its_clone(store: ManagedStore) -> None:
    result = tend_shield(store)
    assert (result.archived, result.gone) == ((), ())
    assert result.links == len(segments(store))


def test_a_clone_of_what_was_written_to_in_the_log_is_kept_until_a_person_takes_it(
    store: ManagedStore, tmp_path: Path
) -> None:
    """A broker writes again into the same file where it recovers; so may anybody."""
    first = segments(store)[0]
    linked = file_sha256(first)
    mtime_ns = first.stat().st_mtime_ns
    with first.open("r+b") as file:
        file.seek(-3, os.SEEK_END)  # where the log has blanks, so that it decodes as before
        file.write(b"abc")
    os.utime(first, ns=(mtime_ns, mtime_ns))
    steps.archive_sealed(store, "r", lambda jobs: steps.archive(store, "r", jobs), budget_bytes=1)
    assert archived_sha256(store) == {0: file_sha256(first)}
    for _ in range(2):
        assert any("keeps the bytes that it had" in notice for notice in tend_shield(store).notices)
    (seen,) = (seen for seen in look_at_shield(store.root).links if seen.link.base_offset == 0)
    assert file_sha256(Path(seen.facts.path)) == linked
    with pytest.raises(GateRefusedError, match=r"at offset 0\."):
        remove_shield_of(store)
    shutil.move(seen.facts.path, tmp_path / "taken")
    assert remove_shield_of(store) == ()


def test_a_clone_of_what_was_only_touched_in_the_log_goes_when_it_is_proven(store: ManagedStore) -> None:
    first = segments(store)[0]
    first.chmod(0o600)
    steps.archive_sealed(store, "r", lambda jobs: steps.archive(store, "r", jobs), budget_bytes=1)
    tend_shield(store)
    assert 0 not in {seen.link.base_offset for seen in look_at_shield(store.root).links}
