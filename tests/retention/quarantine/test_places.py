"""A quarantine lies on the file system of what it takes, or the policy is refused before anything changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, QuarantineError, StoreIdentityError
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.quarantine.places import look_at_quarantines
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.quarantine.conftest import clean, files_of, quarantine_of_root

pytestmark = pytest.mark.slow

Stores = Callable[..., ManagedStore]


@pytest.fixture
def with_log_at(undoable: Stores) -> Callable[[Path], ManagedStore]:
    """A store that keeps its commitlog in that directory, by a setting."""

    def make(directory: Path) -> ManagedStore:
        store = undoable()
        directory.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(store.root) / "commitlog", directory)
        return replace(store, overrides={**store.overrides, "storePathCommitLog": str(directory)})

    return make


def test_a_log_on_another_disk_is_set_aside_beside_it(
    with_log_at: Callable[[Path], ManagedStore], other_disk: Path
) -> None:
    store = with_log_at(other_disk / "broker" / "commitlog")
    before, log_before = files_of(store.root), files_of(other_disk)
    clean(store, "a run: of Airflow+00:00", 2)
    (run,) = (other_disk / "broker" / ".storage-engine" / "quarantine").glob("*/*")
    assert len(list((run / "commitlog").iterdir())) == 2
    assert not (other_disk / "broker" / "commitlog" / f"{0:020d}").exists()
    assert list((quarantine_of_root(store) / run.name / "consumequeue").rglob("0*"))

    looks = look_at_quarantines(store, (Path(store.root), other_disk / "broker" / "commitlog"))
    assert [look.run_key for look in looks] == ["a run: of Airflow+00:00"] * 2
    assert looks[1].files == 2

    undo(store, "a run: of Airflow+00:00", "ann")
    assert (files_of(store.root), files_of(other_disk)) == (before, log_before)


def test_a_log_behind_a_link_is_set_aside_on_its_disk(undoable: Stores, other_disk: Path) -> None:
    store = undoable()
    log = Path(store.root) / "commitlog"
    shutil.move(log, other_disk / "commitlog")
    log.symlink_to(other_disk / "commitlog")
    before = files_of(other_disk)
    clean(store, "r", 2)
    assert len(list(other_disk.glob(".storage-engine/quarantine/*/r/commitlog/*"))) == 2
    undo(store, "r", "ann")
    assert files_of(other_disk) == before


def test_where_no_place_is_on_its_disk_the_policy_is_refused(
    with_log_at: Callable[[Path], ManagedStore], other_disk: Path
) -> None:
    """The directory above it is another store's commitlog, where nothing strange may lie."""
    for name in ("commitlog", "consumequeue", "config"):
        (other_disk / "other" / name).mkdir(parents=True)
    store = with_log_at(other_disk / "other" / "commitlog" / "mine")
    before = files_of(store.root), files_of(other_disk)
    expected = "expected a place for a quarantine on the same file system as this directory"
    with pytest.raises(BadInputError, match=expected):
        preview(store, PlanRequest(manual=True))
    with pytest.raises(BadInputError, match=expected):
        steps.make_plan(store, "r", PlanRequest(manual=True))
    assert (files_of(store.root), files_of(other_disk)) == before


def test_where_no_place_is_on_its_disk_any_more_nothing_goes(
    undoable: Stores, other_disk: Path, tmp_path: Path
) -> None:
    store = undoable()
    steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=2))
    queues = Path(store.root) / "consumequeue"
    for name in ("commitlog", "consumequeue", "config"):
        (other_disk / "other" / name).mkdir(parents=True)
    shutil.move(queues, other_disk / "other" / "commitlog" / "consumequeue")
    queues.symlink_to(other_disk / "other" / "commitlog" / "consumequeue")
    before = files_of(store.root)
    with pytest.raises(BadInputError, match=r"consumequeue.*: expected a place for a quarantine"):
        steps.release(store, "r")
    assert files_of(store.root) == before


@pytest.mark.parametrize("taken", ["", "quarantine", "quarantine/r"])
def test_nothing_goes_through_a_link_in_the_quarantine_s_place(
    undoable: Stores, tmp_path: Path, taken: str
) -> None:
    store = undoable()
    steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=2))
    name = Path(store.root) / ".storage-engine" / taken
    name.parent.mkdir(exist_ok=True, parents=True)
    if name.exists():
        shutil.rmtree(name)
    (tmp_path / "theirs").mkdir()
    name.symlink_to(tmp_path / "theirs")
    before = files_of(Path(store.root) / "commitlog")
    expected = "expected a directory of the (quarantine|store itself)"
    with pytest.raises((QuarantineError, StoreIdentityError), match=expected):
        steps.release(store, "r")
    assert files_of(Path(store.root) / "commitlog") == before
    assert not list((tmp_path / "theirs").iterdir())


def test_what_is_in_the_way_in_the_quarantine_is_not_replaced(undoable: Stores) -> None:
    store = undoable()
    steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=2))
    there = quarantine_of_root(store) / "r" / "commitlog" / f"{0:020d}"
    there.parent.mkdir(parents=True)
    there.write_text("theirs")
    before = files_of(store.root)
    with pytest.raises(QuarantineError, match=r"expected no file of this name before .* found a file"):
        steps.release(store, "r")
    assert there.read_text() == "theirs"
    assert files_of(Path(store.root) / "commitlog") == {
        path.removeprefix("commitlog/"): facts
        for path, facts in before.items()
        if path.startswith("commitlog/")
    }
