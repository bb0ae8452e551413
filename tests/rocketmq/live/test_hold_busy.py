"""Another process that has the hold's lock while the broker is told to delete, or not to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import StoreBusyError
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold import DriftKind
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.rocketmq import cleanup_rules
from storage_engine.rocketmq.cleanup_rules import Patience
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.hold import marker
from storage_engine.rocketmq.hold.hold_state import FORCIBLY, ChangedSetting, HoldState, Observed
from storage_engine.rocketmq.live import live_store, release
from tests.rocketmq.live.held_files import SIZE, held_store, path_of

ADDRESS = "10.0.0.1:10911"


class Memory:
    """In the place of the journal's."""

    def __init__(self, state: HoldState) -> None:
        self.saved: Mapping[str, Any] | None = to_jsonable(state)

    def load(self) -> Mapping[str, Any] | None:
        return self.saved

    def save(self, state: Mapping[str, Any] | None) -> None:
        self.saved = state

    def of_others(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    @property
    def state(self) -> HoldState:
        return from_jsonable(HoldState, self.saved, "test")


class Admin:
    """In the place of a broker's: one that deletes its first segment once it was told to."""

    address = ADDRESS

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: Callable[[], object] = lambda: None
        self.told: Callable[[], object] = lambda: None
        self.set: list[Mapping[str, str]] = []
        self.triggers = 0

    def config(self) -> dict[str, str]:
        self.asked()
        return {FORCIBLY: "true"}

    def has_slaves(self) -> bool:
        return False

    def runtime_info(self) -> Any:
        self.asked()
        if self.triggers:
            path_of(self.root, 0).unlink(missing_ok=True)
        return SimpleNamespace(boot_timestamp_ms=1, commitlog_min_offset=SIZE if self.triggers else 0)

    def update_config(self, settings: Mapping[str, str]) -> None:
        self.told()
        self.set.append(settings)

    def delete_expired_commitlog(self) -> None:
        self.triggers += 1


@pytest.fixture
def store(tmp_path: Path) -> Any:
    layout = SimpleNamespace(root=tmp_path, log_paths=(tmp_path / "commitlog",))
    config = load_broker_config(None, {}, root=str(tmp_path))
    return SimpleNamespace(
        memory=Memory(held_store(tmp_path, address=ADDRESS)),
        admin=Admin(tmp_path),
        files=SimpleNamespace(files=SimpleNamespace(layout=layout), config=config),
        layout=layout,
        root=layout.root,
        live=LiveBroker(hold_hours=2, may_change_settings=True),
    )


def is_free(root: Path) -> bool:
    """Whether the hold may be changed now."""
    with ExitStack() as stack:
        try:
            stack.enter_context(marker.changing(root, wait_seconds=0))
        except StoreBusyError:
            return False
        return True


@pytest.fixture
def forced(store: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store whose broker deletes by force, on a disk with room."""

    def observe(store: Any, now_ms: int, state: HoldState) -> Observed:
        store.admin.asked()
        return Observed(now_ms, ADDRESS, 1, 0, 0, {FORCIBLY: "true"}, "", ())

    monkeypatch.setattr(live_store, "observe", observe)
    monkeypatch.setattr(live_store, "log_disks", lambda layout: (1 << 30, 10))
    return store


def test_a_broker_that_is_slow_to_answer_keeps_nobody_from_the_hold(forced: Any, tmp_path: Path) -> None:
    while_asked: list[bool] = []
    while_told: list[bool] = []
    forced.admin.asked = lambda: while_asked.append(is_free(tmp_path))
    forced.admin.told = lambda: while_told.append(is_free(tmp_path))
    told = live_store.LiveShield(forced).end_force()
    assert told is not None
    assert "set back to false" in told.detail
    assert while_asked == [True] * 3
    assert while_told == [False]
    assert forced.memory.state.changed_settings == (ChangedSetting(FORCIBLY, "true", "false"),)


def test_nothing_is_set_where_a_run_has_changed_the_hold_since_the_broker_was_looked_at(forced: Any) -> None:
    renewed = replace(forced.memory.state, last_trigger_ms=7)
    for by_then in (to_jsonable(renewed), None):
        asked = iter(range(10))

        def change(by_then: Any = by_then, asked: Iterator[int] = asked) -> None:
            if next(asked):  # the setting is read, and then all that it is judged by
                forced.memory.save(by_then)

        forced.admin.asked = change
        assert live_store.LiveShield(forced).end_force() is None
        assert forced.admin.set == []


def test_what_a_watch_has_mended_meanwhile_keeps_force_from_nothing(forced: Any) -> None:
    forced.admin.asked = lambda: forced.memory.save(to_jsonable(replace(forced.memory.state, fence=(SIZE,))))
    told = live_store.LiveShield(forced).end_force()
    assert told is not None
    assert told.kind is DriftKind.SETTING_CHANGED
    assert forced.admin.set == [{FORCIBLY: "false"}]
    assert forced.memory.state.fence == (SIZE,)


@pytest.fixture
def prefix(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> release.Prefix:
    """The first segment, which the broker is to be told to delete."""
    monkeypatch.setattr(release, "_LOCK_SECONDS", 0.01)
    monkeypatch.setattr(release, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(cleanup_rules, "MEANWHILE_SECONDS", 0.0)
    facts = FileFacts.of(path_of(tmp_path, 0))
    return release._prefix(store, [Segment("commitlog", 0, facts, SegmentState.SEALED)])


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[threading.Event]:
    """Another part of this process has the hold's lock until it is told to end."""
    ends, has_it = threading.Event(), threading.Event()

    def hang() -> None:
        with marker.changing(tmp_path):
            has_it.set()
            ends.wait(60)

    thread = threading.Thread(target=hang)
    thread.start()
    assert has_it.wait(60)
    yield ends
    ends.set()
    thread.join()


def test_a_release_goes_on_once_a_process_that_kept_the_hold_is_gone(
    store: Any, prefix: release.Prefix, hung: threading.Event
) -> None:
    kept: list[float] = []

    def keep_lease() -> None:
        kept.append(time.monotonic())
        if len(kept) == 3:
            hung.set()

    release._delete_prefix(store, store.memory.state, prefix, Patience(60, 0, keep_lease))
    assert store.admin.triggers == 1
    assert len(kept) >= 3


@pytest.mark.usefixtures("hung")
def test_a_process_that_keeps_the_hold_is_told_as_a_broker_that_does_not_answer(
    store: Any, prefix: release.Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "UNANSWERED_SECONDS", 0.1)
    with pytest.raises(StoreBusyError, match="1 of 1 segments are left, and may be deleted at any time"):
        release._delete_prefix(store, store.memory.state, prefix, Patience(60, 0, lambda: None))
    assert store.admin.triggers == 0
