"""What a watch does first for a shield when something is deleted, and how often it asks the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention.monitor import store_watch
from storage_engine.retention.monitor.store_watch import ShieldWatch, _Duty
from storage_engine.retention.shield import ShieldResult
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import look_at_shield
from storage_engine.shield.links import make_links
from tests.clones import as_clone

SECONDS = 30


class Work:
    """In the place of a duty's: counts how often it began, and lasts until it may end."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order = name, order
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.order.append(self.name)
        assert self.may_end.wait(SECONDS)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def watch(tmp_path: Path, said: list[str]) -> ShieldWatch:
    (tmp_path / "store").mkdir()
    live = LiveBroker(address="127.0.0.1:1")
    store = ManagedStore.local("one", str(tmp_path / "store"), tmp_path / "lake", live=live)
    return ShieldWatch(store, said.append)


def worked(duty: _Duty, name: str, order: list[str]) -> Iterator[Work]:
    """Give a duty other work, and end it."""
    work = Work(name, order)
    duty._work = work
    yield work
    work.may_end.set()
    duty.join(SECONDS)


@pytest.fixture
def tending(watch: ShieldWatch, order: list[str]) -> Iterator[Work]:
    yield from worked(watch._tending, "tend", order)


@pytest.fixture
def asking(watch: ShieldWatch, order: list[str]) -> Iterator[Work]:
    yield from worked(watch._asking, "ask", order)


@pytest.fixture
def order() -> list[str]:
    return []


def test_what_is_gone_is_tended_first_and_the_broker_is_asked_once_for_it(
    watch: ShieldWatch,
    tending: Work,
    asking: Work,
    order: list[str],
    tmp_path: Path,
) -> None:
    watch._asking._every_seconds = 3600.0
    asking.may_end.set()
    watch.look()
    until(lambda: len(order) == 2)
    assert order == ["tend", "ask"]
    watch._asking.join(SECONDS)
    watch._result = ShieldResult(linked_paths=(str(tmp_path / "gone"),))
    for _ in range(20):  # a tending that is on its way takes a while
        watch.look()
        watch._asking.join(SECONDS)
    assert order == ["tend", "ask", "ask"]
    tending.may_end.set()
    watch._tending.join(SECONDS)
    watch.look()
    watch._tending.join(SECONDS)
    assert order == ["tend", "ask", "ask", "tend"]


def test_tending_that_failed_for_whatever_reason_is_said_and_goes_on(
    watch: ShieldWatch, asking: Work, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "_AFTER_ERROR_SECONDS", 0.0)
    done = threading.Event()

    def tend() -> None:
        watch._tending._work = done.set
        raise ZeroDivisionError("nobody thought of it")

    watch._tending._work = tend
    watch.look()
    watch._tending.join(SECONDS)
    (line,) = said
    assert "the shield can't be tended: ZeroDivisionError: nobody thought of it (" in line
    watch.look()
    assert done.wait(SECONDS)


def test_its_end_keeps_a_clone_that_alone_has_what_the_log_had(watch: ShieldWatch, tmp_path: Path) -> None:
    root = tmp_path / "store"
    segments = []
    for base_offset in (0, 8):
        path = root / "commitlog" / f"{base_offset:020d}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"as it was"[:8])
        segments.append(Segment("commitlog", base_offset, FileFacts.of(path), SegmentState.SEALED))
    make_links(root, segments, 1)
    written, _ = (as_clone(root, segment.base_offset) for segment in segments)
    Path(segments[0].facts.path).write_bytes(b"overwritten"[:8])
    watch.end()
    assert [seen.facts.path for seen in look_at_shield(root).links] == [str(written)]
    assert written.read_bytes() == b"as it was"[:8]
