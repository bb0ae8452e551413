"""File systems that break a promise are told by their mounts, with what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.retention.doctor.doctor import Place, look_at_mounts, mount_findings
from storage_engine.same_bytes.trusted_times import Mount
from tests.retention.doctor.stores import NOW_MS, segment


def place(kind: str, *options: str, path: str = "/s", trusted: bool | None = None) -> Place:
    return Place(Path(path), Mount(path, path, kind, frozenset(options)), trusted)


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        (place("ext4", "rw"), []),
        (place("ext4", "ro"), ["read-only"]),
        (place("tmpfs", "rw"), ["file-system"]),
        (place("overlay", "rw"), []),
        (place("overlay", "rw", "volatile"), ["file-system"]),
        (place("nfs4", "rw"), ["file-system"]),
        (place("fuse.bindfs", "rw"), ["file-system"]),
        (place("fuse.bindfs", "rw", trusted=True), []),
        (place("xfs", "rw", trusted=False), ["file-system"]),
        (place("tmpfs", "ro"), ["read-only", "file-system"]),
    ],
)
def test_a_mount_is_judged_by_what_it_is_and_by_what_was_tried(found: Place, kinds: list[str]) -> None:
    assert [one.kind for one in mount_findings([found], [], needs_shield=False)] == kinds


def test_times_without_a_fraction_are_told_only_where_they_are_no_chance() -> None:
    coarse = [
        replace(one, facts=replace(one.facts, ctime_ns=5 * 10**9))
        for one in (segment(0, NOW_MS), segment(1, NOW_MS))
    ]
    fine = segment(2, NOW_MS)
    told = [one.kind for one in mount_findings([], coarse, needs_shield=False)]
    assert told == ["coarse-times"]
    assert not list(mount_findings([], coarse[:1], needs_shield=False))
    assert not list(mount_findings([], [*coarse, fine], needs_shield=False))


def test_another_mount_has_no_shield_and_that_counts_beside_a_broker_alone() -> None:
    apart = [place("ext4", "rw"), place("xfs", "rw", path="/data2")]
    (finding,) = mount_findings(apart, [], needs_shield=True)
    assert (finding.kind, "/data2" in finding.what) == ("no-shield", True)
    assert not list(mount_findings(apart, [], needs_shield=False))
    assert not list(mount_findings(apart[:1], [], needs_shield=True))


def test_looking_at_mounts_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    found = look_at_mounts([tmp_path / "commitlog", tmp_path / "missing"], str(tmp_path))
    assert [one.path for one in found] == [tmp_path]
    assert found[0].trusted is None
    assert [path.name for path in tmp_path.iterdir()] == ["commitlog"]
