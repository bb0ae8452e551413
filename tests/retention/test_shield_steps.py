"""A store's shield: what is removed from the log is still there, until the lake provably has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.core.wording import bytes_text
from storage_engine.exceptions import GateRefusedError, ShieldError
from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.validation import Where
from storage_engine.model.settings.policy import Policy, ShieldMode
from storage_engine.retention import shield, steps
from storage_engine.retention.hold.holding import remove_shield_of
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.proof.shielding import shield_notices
from storage_engine.retention.release import releasing
from storage_engine.retention.shield import JudgedLink, asked_notices, tend_shield
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import NAME, read_stamp
from storage_engine.shield.index import INDEX, SeenLink, look_at_shield, shield_path
from tests.fixture_stores import file_sha256
from tests.retention.shielded_stores import ON, Managed, archived_sha256, segments, shielded, where

pytestmark = pytest.mark.slow

MANUAL = PlanRequest(manual=True, max_segments=1)


@pytest.fixture
def store(managed: Managed) -> ManagedStore:
    return shielded(managed)


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
    # Who asks no lake says nothing of what it has.
    (said,) = shield_notices(store.root)
    assert "is in the shield: their space comes back" in said
    foreseen = preview(store, MANUAL).plan
    assert set(shield_notices(store.root, foreseen.to_delete)) <= set(foreseen.notices)
    steps.make_plan(store, "r", MANUAL)
    notices = steps.recorded_plan(store, "r").notices
    assert any("is in the shield and not in the lake yet" in notice for notice in notices)
    assert any("deleting frees no space of" in notice for notice in notices)


def test_what_a_run_of_ours_deleted_or_a_lake_has_is_not_said_to_be_in_no_lake(
    store: ManagedStore, lake_dir: Path
) -> None:
    """As between a release's deletion of a segment, and of its link."""
    paths = segments(store)
    steps.make_plan(store, "r", MANUAL)
    steps.archive(store, "r", steps.archive_jobs(store, "r"))
    steps.record_lag(store, "r", LagSummary(0, 0, 0, 0, 0, (), 0), [])
    kept = {seen.link.base_offset for seen in look_at_shield(store.root).links}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(releasing, "drop_released", lambda context, run, proofs: ())
        assert [one.base_offset for one in steps.release(store, "r").deleted] == [0]
    assert {seen.link.base_offset for seen in look_at_shield(store.root).gone} == {0}
    assert asked(store) == ()
    # Others remove a segment that the lake has, and one that it hasn't.
    steps.archive_sealed(store, "s", lambda jobs: steps.archive(store, "s", jobs), budget_bytes=1)
    paths[1].unlink()
    assert asked(store) == ()
    paths[2].unlink()
    (notice,) = asked(store)
    assert f"1 segment ({bytes_text(kept_bytes(store, paths[2]))}) gone from the log, from offset " in notice
    assert f"{int(paths[2].name)} on, is in the shield and not in the lake yet" in notice
    assert kept == {int(path.name) for path in paths}
    lake_dir.rename(lake_dir.with_name("away"))
    (notice,) = asked(store)
    assert "2 segments" in notice
    assert "are in the shield and in no lake that could be asked (" in notice


def asked(store: ManagedStore) -> tuple[str, ...]:
    with opened(store) as context:
        return asked_notices(context)


def kept_bytes(store: ManagedStore, path: Path) -> int:
    offset = int(path.name)
    (seen,) = (one for one in look_at_shield(store.root).links if one.link.base_offset == offset)
    return seen.link.segment.size_bytes


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
    with pytest.raises(ShieldError, match="version 2, this release knows 1"):
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

    def judge_and_write(root: str, seen: SeenLink, *known: Any, **options: Any) -> JudgedLink:
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
