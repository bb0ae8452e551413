"""A disk with a part of the log that isn't mounted is no log that begins, or ends, elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.cycle import archive_here
from storage_engine.exceptions import GateRefusedError, StoreNotFoundError
from storage_engine.model.store import FileFacts
from storage_engine.retention import steps
from storage_engine.retention.ranges.drift import recorded_gone
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.conftest import MANUAL

MIB = 1 << 20
Make = Callable[..., ManagedStore]


class Disk:
    """A directory with the older or newer half of a log, as on a disk of its own.

    A test may not mount one: what is seen while it is mounted has another device number.
    """

    def __init__(self, store: ManagedStore, tmp_path: Path, *, older: bool) -> None:
        self.path, self.away, self.here = tmp_path / "disk", tmp_path / "away", Path(store.root) / "commitlog"
        self.path.mkdir()
        for path in self.here.iterdir():
            if (int(path.name) < 4 * MIB) is older:
                path.rename(self.path / path.name)
        self.store = replace(
            store, overrides={**store.overrides, "storePathCommitLog": f"{self.path},{self.here}"}
        )

    @contextmanager
    def mounted(self, patched: pytest.MonkeyPatch) -> Iterator[None]:
        def of_stat(path: str | os.PathLike[str], stat: os.stat_result) -> FileFacts:
            is_ours = Path(path).parent == self.path
            times = (stat.st_mtime_ns, stat.st_ctime_ns)
            return FileFacts(str(path), stat.st_dev + is_ours, stat.st_ino, stat.st_size, *times)

        with patched.context() as patch:
            patch.setattr(FileFacts, "of_stat", of_stat)
            yield

    def plan(self, run_key: str, patched: pytest.MonkeyPatch) -> None:
        with self.mounted(patched):
            steps.make_plan(self.store, run_key, MANUAL)

    def unmount(self) -> None:
        self.path.rename(self.away)
        self.path.mkdir()

    def mount(self) -> None:
        self.path.rmdir()
        self.away.rename(self.path)


@pytest.mark.parametrize("older", [True, False], ids=["older", "newer"])
def test_no_plan_is_made_of_a_log_of_which_a_disk_is_missing(
    managed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    disk = Disk(managed(), tmp_path, older=older)
    disk.plan("mounted", monkeypatch)
    disk.unmount()
    with pytest.raises(StoreNotFoundError, match=f"{disk.path}: expected the disk with the segments"):
        steps.make_plan(disk.store, "away", MANUAL)
    disk.mount()
    assert steps.make_plan(disk.store, "again", MANUAL).deletes == 7
    # A directory that was emptied is its own disk's still.
    disk.unmount()
    assert steps.make_plan(disk.store, "emptied", MANUAL).deletes == 3


def test_a_disk_that_was_emptied_by_a_run_may_have_another_number_after_a_restart(
    managed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(managed(), tmp_path, older=True)
    with disk.mounted(monkeypatch):
        steps.make_plan(disk.store, "r", replace(MANUAL, max_segments=4))
        steps.archive_planned(disk.store, "r", archive_here)
        assert len(steps.release(disk.store, "r").deleted) == 4
    assert steps.make_plan(disk.store, "after the restart", MANUAL).deletes == 3


def test_what_was_planned_on_a_disk_that_is_missing_is_neither_gone_nor_passed_over(
    managed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(managed(), tmp_path, older=True)
    disk.plan("r", monkeypatch)
    steps.archive_planned(disk.store, "r", archive_here)
    newer = sorted(path.name for path in disk.here.iterdir())
    disk.unmount()
    for step in (steps.release, lambda *run: steps.archive_planned(*run, archive_here)):
        with pytest.raises(GateRefusedError, match="expected the segment at offset 0, found no file"):
            step(disk.store, "r")
    context = open_context(disk.store)
    assert recorded_gone(context.journal, context.record) == ()
    assert sorted(path.name for path in disk.here.iterdir()) == newer
    disk.mount()
    assert steps.release(disk.store, "r").new_min_offset == 7 * MIB
