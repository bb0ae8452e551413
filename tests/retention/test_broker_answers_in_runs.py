"""What a broker's package did in a run is checked before anything is recorded by it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BrokerPackageError, ChangedUnderUsError, ReleasedTooMuchError
from storage_engine.journal.journal import Journal, Run, Step
from storage_engine.model.broker.broker_store import LockedStore
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import DependentFile, PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, LagPolicy, Policy
from storage_engine.model.store import FileFacts, StoreSnapshot
from storage_engine.retention import steps
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.proof.history import releases
from storage_engine.retention.store.managed_store import ManagedStore
from tests.services import toy
from tests.services.toy import LINES

REQUEST = PlanRequest(manual=True)


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Any]:
    with toy.registered(tmp_path / "broker") as found:
        yield found


@pytest.fixture
def planned(tmp_path: Path, module: Any) -> ManagedStore:
    toy.make_store(tmp_path / "store")
    policy = Policy(archive=ArchiveMode.OFF, lag_policy=LagPolicy.IGNORE)
    store = toy.managed(tmp_path, policy=policy)
    steps.make_plan(store, "r", REQUEST)
    return store


def _recorded(store: ManagedStore) -> set[tuple[str, int]]:
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root, store.host)
    assert record is not None
    run: Run = journal.run(record.store_id, "r")
    done, _ = releases(journal.events(run, Step.RELEASE))
    return {(release.log, release.base_offset) for release in done.values()}


ALL = {("access", 0), ("access", LINES), ("errors", 0)}


def test_a_deletion_that_wasn_t_done_is_not_recorded(
    planned: ManagedStore, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = module.ToyStore.delete_segments

    def half(self: Any, segments: Any, *others: Any) -> None:
        delete(self, segments[:1], *others)

    with monkeypatch.context() as patch:
        patch.setattr(module.ToyStore, "delete_segments", half)
        with pytest.raises(BrokerPackageError, match="log access, offset 300: expected no file"):
            steps.release(planned, "r")
        assert _recorded(planned) == set()
    assert len(steps.release(planned, "r").deleted) == len(ALL)
    assert _recorded(planned) == ALL


class Lost(LockedStore):
    """A lock that somebody else has by now."""

    def check(self) -> None:
        raise ChangedUnderUsError("the lock is lost")


def test_nothing_is_deleted_once_the_lock_is_lost(
    planned: ManagedStore, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package needn't look at it by itself: what its lock gives is asked."""
    with monkeypatch.context() as patch:
        patch.setattr(module.ToyStore, "lock", lambda _: nullcontext(Lost()))
        with pytest.raises(ChangedUnderUsError, match="the lock is lost"):
            steps.release(planned, "r")
    assert _recorded(planned) == set()
    assert len(steps.release(planned, "r").deleted) == len(ALL)
    indexes = sorted(Path(planned.root).rglob("*.index"))
    with monkeypatch.context() as patch:
        patch.setattr(module.ToyStore, "lock", lambda _: nullcontext(Lost()))
        with pytest.raises(ChangedUnderUsError, match="the lock is lost"):
            steps.clean_dependents(planned, "r")
    assert sorted(Path(planned.root).rglob("*.index")) == indexes
    assert sum(steps.clean_dependents(planned, "r").deleted.values()) == len(ALL)


def test_a_deletion_that_fails_midway_is_found_out_by_the_next_run(
    planned: ManagedStore, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = module.ToyStore.delete_segments

    def broken(self: Any, segments: Any, *others: Any) -> None:
        delete(self, segments[:1], *others)
        raise KeyError("half")

    with monkeypatch.context() as patch:
        patch.setattr(module.ToyStore, "delete_segments", broken)
        with pytest.raises(BrokerPackageError, match="delete segments, found KeyError: 'half'"):
            steps.release(planned, "r")
        assert _recorded(planned) == set()
    steps.release(planned, "r")
    assert _recorded(planned) == ALL


def _replaced(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


@pytest.mark.parametrize("raises", [None, ChangedUnderUsError("x")])
@pytest.mark.parametrize(
    ("number", "harm"),
    [
        (2, Path.unlink),
        (3, Path.unlink),
        (2, lambda path: os.truncate(path, 1)),
        (2, _replaced),
    ],
    ids=["kept", "active", "cut", "replaced"],
)
def test_more_that_is_gone_than_was_planned_is_said(
    planned: ManagedStore,
    module: Any,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    harm: Callable[[Path], object],
    raises: Exception | None,
) -> None:
    delete = module.ToyStore.delete_segments
    kept = Path(planned.root) / "access" / f"{number * LINES:020d}.txt"

    def too_much(self: Any, segments: Any, *others: Any) -> None:
        delete(self, segments, *others)
        harm(kept)
        if raises is not None:
            raise raises

    monkeypatch.setattr(module.ToyStore, "delete_segments", too_much)
    said = rf"{kept}: log access: expected the segment at offset {number * LINES}"
    with pytest.raises(ReleasedTooMuchError, match=said):
        steps.release(planned, "r")
    assert _recorded(planned) == (ALL if raises is None else set())


def test_a_segment_that_goes_with_dependents_is_said(
    planned: ManagedStore, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = module.LineIndexes.delete
    kept = Path(planned.root) / "access" / f"{2 * LINES:020d}.txt"

    def too_much(self: Any, *arguments: Any) -> None:
        delete(self, *arguments)
        kept.unlink()

    monkeypatch.setattr(module.LineIndexes, "delete", too_much)
    steps.release(planned, "r")
    with pytest.raises(ReleasedTooMuchError, match=str(kept)):
        steps.clean_dependents(planned, "r")


def test_dependents_that_went_before_an_error_are_not_said_to_be_there(
    planned: ManagedStore, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = module.LineIndexes.delete

    def fails(self: Any, *arguments: Any) -> None:
        delete(self, *arguments)
        raise KeyError("late")

    monkeypatch.setattr(module.LineIndexes, "delete", fails)
    steps.release(planned, "r")
    with pytest.raises(BrokerPackageError, match=r"'late'\. A part of it may be done") as failed:
        steps.clean_dependents(planned, "r")
    assert "Nothing was changed" not in str(failed.value)


def test_dependents_lie_where_the_package_said_at_first_that_it_writes(
    planned: ManagedStore, module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, listed = module.LineIndexes.find, []
    other = tmp_path / "other" / "data.parquet"
    other.parent.mkdir()
    other.touch()

    def lies(self: Any, min_offsets: Mapping[str, int]) -> tuple[DependentFile, ...]:
        listed.append(1)
        return (*real(self, min_offsets), DependentFile("index", FileFacts.of(other), "said"))

    def paths(self: Any) -> tuple[Path, ...]:
        return (self.root, other.parent) if listed and listed.pop() else (self.root,)

    monkeypatch.setattr(module.LineIndexes, "find", lies)
    monkeypatch.setattr(module.ToyStore, "data_paths", property(paths))
    with pytest.raises(BrokerPackageError, match=rf"{other}: expected a file in {planned.root}"):
        steps.release(planned, "r")
    assert (_recorded(planned), other.exists()) == (set(), True)


@pytest.mark.parametrize("end", ["raises", "swallows"])
def test_a_lock_that_ends_badly_hides_nothing(
    planned: ManagedStore, module: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    class Lock:
        def __enter__(self) -> LockedStore:
            return LockedStore()

        def __exit__(self, *error: object) -> bool:
            if end == "raises":
                raise ValueError("at the end")
            return True

    monkeypatch.setattr(module.ToyStore, "lock", lambda self: Lock())
    if end == "swallows":
        monkeypatch.setattr(module.ToyStore, "delete_segments", lambda *_: (_ for _ in ()).throw(KeyError()))
    with pytest.raises(BrokerPackageError, match="unlock its store" if end == "raises" else "delete seg"):
        steps.release(planned, "r")


def test_a_segment_named_as_dependent_refuses_its_log_and_stays(
    planned: ManagedStore, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.LineIndexes.find

    def lies(self: Any, min_offsets: Mapping[str, int]) -> tuple[DependentFile, ...]:
        more: tuple[DependentFile, ...] = ()
        if "access" in min_offsets:
            active = FileFacts.of(self.root / "access" / f"{3 * LINES:020d}.txt")
            more = (DependentFile("index", active, "said"),)
        return (*real(self, min_offsets), *more)

    monkeypatch.setattr(module.LineIndexes, "find", lies)
    result = steps.release(planned, "r")
    assert [(one.log, one.error) for one in result.refused] == [("access", "BrokerPackageError")]
    assert _recorded(planned) == {("errors", 0)}
    assert (Path(planned.root) / "access" / f"{3 * LINES:020d}.txt").exists()


@pytest.mark.parametrize("look", [preview, steps.sense])
def test_who_only_looks_believes_no_more(
    planned: ManagedStore, module: Any, monkeypatch: pytest.MonkeyPatch, look: Callable[..., Any]
) -> None:
    def lies(self: Any, now_ms: int) -> StoreSnapshot:
        disk = DiskUsage.of(self.root)
        return StoreSnapshot("rocketmq", str(self.root), now_ms, (), (disk,), disk, crashed=False)

    monkeypatch.setattr(module.ToyStore, "snapshot", lies)
    with pytest.raises(BrokerPackageError, match="expected the broker's name 'toy', found 'rocketmq'"):
        look(planned, REQUEST) if look is preview else look(planned)


def test_a_package_that_can_t_open_its_store_is_named(
    planned: ManagedStore, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, settings: Any, memory: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(module.Toy, "open_store", broken)
    with pytest.raises(
        BrokerPackageError, match="broker toy: expected its package to open its store, found Zero"
    ):
        preview(planned, REQUEST)
