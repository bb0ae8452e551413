"""A store's shield: what is removed from the log is still there, until the lake provably has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.clock import clock_ms
from storage_engine.exceptions import GateRefusedError, ShieldError
from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.receipts import receipts
from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.model.policy import Policy, ShieldMode
from storage_engine.model.shield import ShieldNeed
from storage_engine.model.validation import Status, Where
from storage_engine.model.verification import VerifyLevel
from storage_engine.own_directory import DIRECTORY
from storage_engine.retention import steps
from storage_engine.retention.adopting import adopt
from storage_engine.retention.losses import AcceptedLoss, record_loss
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.preview import preview
from storage_engine.retention.shield_proofs import Judged
from storage_engine.retention.shielding import shield_notices
from storage_engine.retention.stamp import read_stamp
from storage_engine.retention.stamp_files import NAME
from storage_engine.retention.steps import shield
from storage_engine.retention.steps.giving_up import give_up
from storage_engine.retention.steps.shield import tend_shield
from storage_engine.retention.steps.shield_reading import read_links
from storage_engine.retention.steps.shield_removal import remove_shield_of
from storage_engine.retention.verification import verify_store
from storage_engine.rocketmq.broker import RocketMQBrokerStore
from storage_engine.same_bytes.own_acts import own_acts
from storage_engine.shield.index import INDEX, shield_path
from storage_engine.shield.links import drop_links
from storage_engine.shield.seen import SeenLink, look_at_shield
from tests.clones import as_clone
from tests.fixture_stores import file_sha256
from tests.full_disks import fill, small_disk
from tests.rounds import later

pytestmark = pytest.mark.slow

Managed = Callable[..., ManagedStore]
MANUAL = PlanRequest(manual=True, max_segments=1)
ON = Policy(shield=ShieldMode.ON)


@pytest.fixture
def store(managed: Managed) -> ManagedStore:
    """A stopped broker's store with a shield of all that is unproven."""
    made: ManagedStore = managed(policy=ON)
    assert tend_shield(made).links == len(segments(made))
    return made


def segments(store: ManagedStore) -> list[Path]:
    """The sealed ones."""
    return sorted((Path(store.root) / "commitlog").iterdir())[:-1]


def where(store: ManagedStore) -> dict[int, Where]:
    (found,) = verify_store(store, VerifyLevel.RECEIPTS)
    return {row.start_offset: row.where for row in found.ranges}


def where_detail(store: ManagedStore) -> str:
    """Why the first bytes of the log are where they are."""
    (found,) = verify_store(store, VerifyLevel.RECEIPTS)
    assert found.ranges[0].status is Status.FAILURE
    return found.ranges[0].detail


def archived_sha256(store: ManagedStore) -> dict[int, str]:
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    return {row.base_offset: row.sha256 for row in receipts(open_lake(store.lake), record.store_id)}


def test_a_removed_segment_is_archived_from_its_link(store: ManagedStore) -> None:
    first = segments(store)[0]
    sha256 = file_sha256(first)
    first.unlink()
    assert where(store)[0] is Where.SHIELDED
    result = tend_shield(store)
    assert result.archived == (0,)
    assert archived_sha256(store)[0] == sha256
    assert where(store)[0] is Where.ARCHIVED
    assert {seen.link.base_offset for seen in look_at_shield(store.root).links} == {
        int(path.name) for path in segments(store)
    }


def test_what_was_removed_from_the_middle_of_the_log_is_archived_too(store: ManagedStore) -> None:
    paths = segments(store)
    middle = paths[1]
    sha256, base_offset = file_sha256(middle), int(middle.name)
    middle.unlink()
    result = tend_shield(store)
    assert (result.archived, result.gone) == ((base_offset,), ())
    assert any("the log isn't whole" in notice for notice in result.notices)
    assert archived_sha256(store) == {base_offset: sha256}
    assert {seen.link.base_offset for seen in look_at_shield(store.root).links} == {
        int(path.name) for path in paths if path != middle
    }
    assert tend_shield(replace(store, policy=Policy(shield=ShieldMode.OFF))).links == 0


def test_what_a_log_with_a_hole_has_left_is_linked(managed: Managed) -> None:
    store = managed(policy=ON)
    paths = segments(store)
    paths[1].unlink()
    assert tend_shield(store).links == len(paths) - 1


def test_a_shield_of_a_log_with_a_hole_can_be_removed(store: ManagedStore) -> None:
    segments(store)[1].unlink()
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_what_is_gone_is_archived_though_the_log_can_not_be_looked_at(store: ManagedStore) -> None:
    first, second, *_ = segments(store)
    second.rename(Path(store.root) / "elsewhere")
    second.symlink_to(Path(store.root) / "elsewhere")
    first.unlink()
    result = tend_shield(store)
    assert result.archived == (0, int(second.name))
    assert any("the log can't be looked at" in notice for notice in result.notices)


def test_links_are_for_their_owner_and_share_the_segments_bytes(store: ManagedStore) -> None:
    assert shield_path(store.root).stat().st_mode & 0o777 == 0o700
    for seen in look_at_shield(store.root).links:
        assert Path(seen.facts.path).samefile(seen.link.segment.path)


def test_a_link_goes_once_its_segment_is_proven_and_the_shield_with_the_last(store: ManagedStore) -> None:
    steps.archive(store, "all", steps.archive_jobs(store, "all", all_sealed=True))
    assert tend_shield(store).links == 0
    assert not shield_path(store.root).exists()
    stamp = read_stamp(store.real_root)
    assert stamp is not None
    assert not stamp.shield


def test_a_release_frees_the_space_of_what_it_deletes(store: ManagedStore) -> None:
    first = segments(store)[0]
    with first.open("rb") as file:
        steps.make_plan(store, "r", MANUAL)
        steps.archive(store, "r", steps.archive_jobs(store, "r"))
        steps.record_lag(store, "r", LagSummary(0, 0, 0, 0, 0, (), 0), [])
        assert steps.release(store, "r").deleted[0].base_offset == 0
        assert os.fstat(file.fileno()).st_nlink == 0
    assert not look_at_shield(store.root).gone


def test_a_plan_and_a_card_say_what_the_shield_keeps(store: ManagedStore) -> None:
    first = segments(store)[0]
    first.unlink()
    assert any("is in the shield and not in the lake yet" in notice for notice in shield_notices(store.root))
    foreseen = preview(store, MANUAL).plan
    assert set(shield_notices(store.root, foreseen.to_delete)) <= set(foreseen.notices)
    steps.make_plan(store, "r", MANUAL)
    notices = steps.recorded_plan(store, "r").notices
    assert any("is in the shield and not in the lake yet" in notice for notice in notices)
    assert any("deleting frees no space of" in notice for notice in notices)


def test_what_somebody_wrote_to_is_kept_and_not_archived(store: ManagedStore) -> None:
    first = segments(store)[0]
    with first.open("r+b") as file:
        file.write(b"other bytes")
    first.unlink()
    result = tend_shield(store)
    assert (result.archived, result.gone) == ((), (0,))
    assert any("somebody wrote to it or touched it" in notice for notice in result.notices)
    assert where(store)[0] is Where.LOST
    assert where_detail(store).startswith(str(shield_path(store.root)))


def test_what_was_only_touched_is_told_by_its_digest(store: ManagedStore) -> None:
    first = segments(store)[0]
    sha256 = file_sha256(first)
    assert read_links(store, lambda: False) == len(segments(store))
    os.utime(first)
    first.unlink()
    assert where(store)[0] is Where.SHIELDED
    assert tend_shield(store).archived == (0,)
    assert archived_sha256(store)[0] == sha256


def test_a_touch_by_a_hold_is_our_own(store: ManagedStore) -> None:
    first = segments(store)[0]
    with own_acts(store.root) as acts, acts.on(first, mtime_ns=10**18):
        os.utime(first, ns=(10**18, 10**18))
    first.unlink()
    assert tend_shield(store).archived == (0,)


def write_unseen(store: ManagedStore, path: Path) -> None:
    """Write to a segment, and have its mtime set back as a fence is mended."""
    before_ns = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)  # where the log has blanks, so that it decodes as before
        file.write(b"abc")
    with own_acts(store.root) as acts, acts.on(path, mtime_ns=before_ns):
        os.utime(path, ns=(before_ns, before_ns))


def test_what_was_written_to_before_its_fence_was_mended_is_kept_and_named(store: ManagedStore) -> None:
    first = segments(store)[0]
    read_links(store, lambda: False)
    write_unseen(store, first)
    first.unlink()
    for _ in range(2):
        result = tend_shield(store)
        assert result.gone == (0,)
        assert any("expected SHA-256" in notice for notice in result.notices)


def test_a_link_of_what_is_in_the_lake_is_read_before_it_goes(store: ManagedStore) -> None:
    first = segments(store)[0]
    read_links(store, lambda: False)
    steps.archive_sealed(store, "r", lambda jobs: steps.archive(store, "r", jobs), budget_bytes=1)
    write_unseen(store, first)
    first.unlink()
    for _ in range(2):
        result = tend_shield(store)
        assert result.gone == (0,)
        assert any("expected SHA-256" in notice for notice in result.notices)


def write_again(path: Path) -> str:
    """Put another file in a segment's place, as a broker does that has recovered; return its SHA-256."""
    content = bytearray(path.read_bytes())
    content[-3:] = b"abc"  # where the log has blanks, so that it decodes as before
    path.unlink()
    path.write_bytes(content)
    make_old(path)
    return file_sha256(path)


def make_old(path: Path) -> None:
    old_ns = clock_ms() * 10**6 - 100 * 3600 * 10**9
    os.utime(path, ns=(old_ns, old_ns))


def archived_lineages(store: ManagedStore) -> dict[tuple[int, int], str]:
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    rows = receipts(open_lake(store.lake), record.store_id)
    return {(row.lineage, row.base_offset): row.sha256 for row in rows}


@pytest.mark.parametrize("adopted_before", [False, *later(True)])
def test_what_the_broker_wrote_again_is_archived_under_the_lineage_it_was_of(
    store: ManagedStore, adopted_before: bool
) -> None:
    first = segments(store)[0]
    linked = file_sha256(first)
    written = write_again(first)
    if adopted_before:
        adopt(store, "ann", "the broker recovered", force=True)
    result = tend_shield(store)
    assert result.archived == (0,)
    if not adopted_before:
        # The log's file contradicts what is archived now, which is what a person is asked about.
        adopt(store, "ann", "the broker recovered")
    steps.archive_sealed(store, "r", lambda jobs: steps.archive(store, "r", jobs), budget_bytes=1)
    assert archived_lineages(store) == {(1, 0): linked, (2, 0): written}
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_what_contradicts_its_lineage_keeps_nobody_and_a_person_can_take_it_out(
    store: ManagedStore, tmp_path: Path
) -> None:
    first, second, *_ = segments(store)
    write_again(first)
    steps.archive_sealed(store, "r", lambda jobs: steps.archive(store, "r", jobs), budget_bytes=1)
    adopt(store, "ann", "the broker recovered", force=True)
    (seen,) = look_at_shield(store.root).left_log
    second.unlink()
    result = tend_shield(store)
    assert (result.archived, result.gone) == ((int(second.name),), (0,))
    assert any(
        seen.facts.path in said and "moved it out of the shield (mv)" in said for said in result.notices
    )
    assert any("in the shield and not in the lake yet" in said for said in shield_notices(store.root))
    with pytest.raises(GateRefusedError, match=r"at offset 0\..*or move their files out of"):
        remove_shield_of(store)
    Path(seen.facts.path).rename(tmp_path / "taken")
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_what_was_accepted_as_lost_before_an_adoption_keeps_no_shield(
    store: ManagedStore,
) -> None:
    first = segments(store)[0]
    with first.open("r+b") as file:
        file.write(b"other bytes")
    first.unlink()
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    loss = AcceptedLoss("commitlog", record.lineage, 0, 1 << 20, "ann", "not worth it")
    record_loss(journal, journal.begin_run(record.store_id, "losses", PlanRequest()), loss)
    adopt(store, "ann", "the broker recovered", force=True)
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_a_file_of_another_inode_is_another_stores(store: ManagedStore) -> None:
    (first, *_) = look_at_shield(store.root).links
    copy = Path(first.facts.path).with_name("copy")
    shutil.copy2(first.facts.path, copy)
    copy.rename(first.facts.path)
    segments(store)[0].unlink()
    result = tend_shield(store)
    assert result.archived == ()
    assert any(first.facts.path in notice and "of another store" in notice for notice in result.notices)


def test_without_being_told_to_a_stopped_brokers_store_has_none(managed: Managed) -> None:
    store = managed()
    result = tend_shield(store)
    assert result.links == 0
    assert any("no broker runs" in notice for notice in result.notices)
    assert not shield_path(store.root).exists()


def test_while_the_lake_is_away_no_link_moves_to_what_is_in_it(managed: Managed, lake_dir: Path) -> None:
    store = managed(policy=ON)
    _, *unproven = (int(path.name) for path in segments(store))
    steps.archive_sealed(store, "r", lambda jobs: steps.archive(store, "r", jobs), budget_bytes=1)
    assert tend_shield(store).links == len(unproven)
    lake_dir.rename(lake_dir.with_name("away"))
    tend_shield(store)
    assert [seen.link.base_offset for seen in look_at_shield(store.root).links] == unproven


def test_while_the_lake_is_away_no_link_goes(store: ManagedStore, lake_dir: Path) -> None:
    steps.archive_sealed(store, "r", lambda jobs: steps.archive(store, "r", jobs), budget_bytes=1)
    lake_dir.rename(lake_dir.with_name("away"))
    assert tend_shield(store).links == len(segments(store))
    lake_dir.with_name("away").rename(lake_dir)
    assert tend_shield(store).links == len(segments(store)) - 1


def test_switched_off_the_links_of_what_is_in_the_log_go_and_others_stay(
    store: ManagedStore, tmp_path: Path
) -> None:
    segments(store)[0].unlink()
    lake = tmp_path / "managed" / "lake"
    lake.rename(lake.with_name("away"))
    off = replace(store, policy=Policy(shield=ShieldMode.OFF))
    result = tend_shield(off)
    assert (result.links, result.gone) == (1, (0,))
    lake.with_name("away").rename(lake)
    assert tend_shield(off).archived == (0,)


def test_on_a_disk_that_is_too_full_the_oldest_is_given_up_and_the_journal_says_so(
    store: ManagedStore, tmp_path: Path
) -> None:
    for path in segments(store)[:2]:
        path.unlink()
    lake = tmp_path / "managed" / "lake"
    lake.rename(lake.with_name("away"))
    full = replace(store, policy=replace(ON, shield_give_up_percent=0))
    assert [tend_shield(full).given_up for _ in range(3)] == [(0,), (1 << 20,), ()]
    lake.with_name("away").rename(lake)
    assert where(store)[0] is Where.LOST
    assert "given up for space" in where_detail(store)


@pytest.fixture
def full(store: ManagedStore, tmp_path: Path) -> Iterator[ManagedStore]:
    """The store with its shield on a disk that is full."""
    root, aside = Path(store.root), tmp_path / "aside"
    shutil.copytree(root, aside)
    shutil.rmtree(shield_path(aside))
    size_bytes = sum(path.stat().st_size for path in aside.rglob("*"))
    with small_disk(root, size_bytes + (4 << 20)):
        shutil.copytree(aside, root, dirs_exist_ok=True)
        assert tend_shield(store).links == len(segments(store))
        fill(root)
        yield store


def test_on_a_full_disk_what_is_gone_is_archived_and_its_space_comes_back(full: ManagedStore) -> None:
    first = segments(full)[0]
    sha256 = file_sha256(first)
    first.unlink()
    assert tend_shield(full).archived == (0,)
    assert archived_sha256(full) == {0: sha256}
    assert not look_at_shield(full.root).gone


def test_on_a_full_disk_a_segment_that_can_not_be_linked_keeps_nobody_from_the_others(
    full: ManagedStore,
) -> None:
    first, second, *_ = segments(full)
    drop_links(full.root, [seen.link.name for seen in look_at_shield(full.root).links[1:2]])
    first.unlink()
    result = tend_shield(full)
    assert result.archived == (0,)
    assert any("not all that is unproven could be linked" in notice for notice in result.notices)
    assert second.exists()
    assert tend_shield(full).links == len(segments(full))


def test_on_a_full_disk_digests_are_read_and_recorded_later(full: ManagedStore) -> None:
    assert read_links(full, lambda: False) == len(segments(full))
    assert not any(seen.link.sha256 for seen in look_at_shield(full.root).links)
    (Path(full.root) / "filler").unlink()
    assert read_links(full, lambda: False) == len(segments(full))
    assert all(seen.link.sha256 for seen in look_at_shield(full.root).links)


def test_on_a_full_disk_what_no_lake_takes_is_given_up(full: ManagedStore, tmp_path: Path) -> None:
    segments(full)[0].unlink()
    (tmp_path / "managed" / "lake").rename(tmp_path / "away")
    given_up = replace(full, policy=replace(ON, shield_give_up_percent=95))
    assert tend_shield(given_up).given_up == (0,)
    assert not look_at_shield(full.root).gone


def test_nothing_is_given_up_that_a_lake_takes(store: ManagedStore) -> None:
    segments(store)[0].unlink()
    result = tend_shield(replace(store, policy=replace(ON, shield_give_up_percent=0)))
    assert (result.archived, result.given_up) == ((0,), ())


def test_what_went_since_it_was_archived_from_is_tried_before_it_is_given_up(
    store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*args: Any) -> tuple[int, ...]:
        for path in segments(store)[:1]:
            path.unlink()
        return give_up(*args)

    full = replace(store, policy=replace(ON, shield_give_up_percent=0))
    with monkeypatch.context() as patched:
        patched.setattr(shield, "give_up", late)
        result = tend_shield(full)
    assert (result.gone, result.given_up) == ((0,), ())
    assert tend_shield(full).archived == (0,)


def test_it_is_removed_only_when_nothing_is_in_it_alone(store: ManagedStore, tmp_path: Path) -> None:
    segments(store)[0].unlink()
    lake = tmp_path / "managed" / "lake"
    (lake / "warehouse").rename(lake / "away")
    with pytest.raises(GateRefusedError, match=r"1 segment that only the shield has, at offset 0\."):
        remove_shield_of(store)
    assert look_at_shield(store.root).gone
    (lake / "away").rename(lake / "warehouse")
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_a_release_that_knows_no_shield_refuses_the_store(store: ManagedStore) -> None:
    said = json.loads((Path(store.root) / DIRECTORY / NAME).read_bytes())
    assert said["shield"] is True
    tend_shield(replace(store, policy=Policy(shield=ShieldMode.OFF)))
    assert "shield" not in json.loads((Path(store.root) / DIRECTORY / NAME).read_bytes())


def test_a_record_of_a_newer_release_is_refused(store: ManagedStore) -> None:
    index = shield_path(store.root) / INDEX
    index.write_text(json.dumps({**json.loads(index.read_text()), "version": 2, "more": 1}))
    with pytest.raises(ShieldError, match="version 2, known is 1"):
        tend_shield(store)


def test_a_log_on_another_mount_has_none_and_that_is_said(managed: Managed, tmp_path: Path) -> None:
    store = managed(policy=ON)
    log = Path(store.root) / "commitlog"
    shutil.copytree(log, tmp_path / "log")
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(log)], check=False).returncode:
        pytest.skip("no mounts are allowed here, so no log can lie on another one")
    try:
        shutil.copytree(tmp_path / "log", log, dirs_exist_ok=True)
        result = tend_shield(store)
    finally:
        subprocess.run(["umount", "--lazy", str(log)], check=True)
    assert result.links == 0
    assert any("are on different mounts" in notice for notice in result.notices)


def test_a_link_that_is_written_to_while_others_are_judged_stays(
    store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = shield.judge_link

    def judge_and_write(root: str, seen: SeenLink, *known: Any, **options: Any) -> Judged:
        judged = judge(root, seen, *known, **options)
        with Path(seen.facts.path).open("r+b") as file:
            file.write(b"other bytes")
        return judged

    steps.make_plan(store, "r", MANUAL)
    steps.archive(store, "r", steps.archive_jobs(store, "r"))
    monkeypatch.setattr(shield, "judge_link", judge_and_write)
    result = steps.release(store, "r")
    assert [release.base_offset for release in result.deleted] == [0]
    assert any("changed since, so it stays" in notice for notice in result.notices)
    assert [seen.link.base_offset for seen in look_at_shield(store.root).gone] == [0]


def test_a_clone_of_what_was_only_touched_in_the_log_keeps_no_shield(store: ManagedStore) -> None:
    as_clone(store.root, 0)
    os.utime(segments(store)[0])
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_a_clone_of_what_was_written_to_in_the_log_is_refused_with_advice_that_works(
    store: ManagedStore, tmp_path: Path
) -> None:
    clone = as_clone(store.root, 0)
    with segments(store)[0].open("r+b") as file:
        file.write(b"other bytes")
    with pytest.raises(GateRefusedError, match=r"1 segment written to since, at offset 0\.") as refused:
        remove_shield_of(store)
    assert "accept" not in str(refused.value)
    assert clone.exists()
    clone.rename(tmp_path / "taken")
    assert remove_shield_of(store) == ()
    assert not shield_path(store.root).exists()


def test_a_clone_that_has_what_the_log_has_no_more_is_counted_as_used_room(
    store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_clone(store.root, 0)
    with segments(store)[0].open("r+b") as file:
        file.write(b"other bytes")
    counted: list[int] = []

    def room(links: Iterable[SeenLink], need: ShieldNeed) -> int | None:
        counted.append(sum(seen.link.segment.size_bytes for seen in links))
        return None

    size = segments(store)[0].stat().st_size
    need = ShieldNeed(batch_segments=10, pass_interval_ms=10_000, disk_bytes=100 * size, used_percent=50)
    monkeypatch.setattr(RocketMQBrokerStore, "shield_need", lambda broker: need)
    monkeypatch.setattr("storage_engine.shield.size.room_bytes", room)
    tend_shield(store, tends=True)
    assert counted == [size]
