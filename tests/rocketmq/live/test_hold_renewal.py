"""Renewing a hold never takes what it finds for what should be: that was recorded when the hold was made."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_engine.core.host import person
from storage_engine.core.jsonable import from_jsonable
from storage_engine.exceptions import GateRefusedError
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.rocketmq.format.broker_config import RELEASE, load_broker_config
from storage_engine.rocketmq.hold.hold_state import (
    FORCIBLY,
    RESERVED,
    HoldMemories,
    HoldState,
    Observed,
    load_state,
)
from storage_engine.rocketmq.live import hold, release, status
from storage_engine.rocketmq.live.observe import list_files
from tests.rocketmq.live.held_files import FIRST_NS, LEASE_NS, SIZE, mtimes_ns, path_of

FILES = 20
NOW_MS = LEASE_NS // 10**6 - 24 * 3_600_000
OWN = {FORCIBLY: "false", RESERVED: "48"}
"""Settings of somebody who forbids force by himself."""


class Killed(BaseException):
    """In place of a SIGKILL."""


@dataclass
class Memory:
    """In the place of the journal's, with all that became durable in it, in order."""

    saved: Mapping[str, Any] | None = None
    durable: list[str] = field(default_factory=list)
    drift: list[Drift] = field(default_factory=list)
    dies_of_drift: bool = False

    def load(self) -> Mapping[str, Any] | None:
        return self.saved

    def save(self, state: Mapping[str, Any] | None) -> None:
        self.saved = state
        self.durable.append("state")

    def of_others(self) -> Sequence[Mapping[str, Any]]:
        return ()

    def record_drift(self, found: Sequence[Drift]) -> None:
        if self.dies_of_drift and found:
            raise Killed
        self.drift += found
        self.durable += [one.kind.value for one in found]

    @property
    def state(self) -> HoldState:
        return from_jsonable(HoldState, self.saved, "test")

    @property
    def kinds(self) -> list[DriftKind]:
        return [one.kind for one in self.drift]


@dataclass
class Admin:
    """In the place of a broker's."""

    settings: dict[str, str]
    address: str = "10.0.0.1:10911"
    boot_timestamp_ms: int = 1

    def config(self) -> dict[str, str]:
        return dict(self.settings)

    def update_config(self, settings: Mapping[str, str]) -> None:
        self.settings.update(settings)

    def view_message(self, offset: int) -> bytes:
        return b"the message at %d" % offset

    def has_slaves(self) -> bool:
        return False

    def runtime_info(self) -> Any:
        return SimpleNamespace(boot_timestamp_ms=self.boot_timestamp_ms)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A log of segments that have expired, whose broker forbids force by itself; nobody holds it yet."""
    (tmp_path / "commitlog").mkdir()
    for number in range(FILES):
        path_of(tmp_path, number).write_bytes(b"x" * SIZE)
        os.utime(path_of(tmp_path, number), ns=(FIRST_NS, FIRST_NS))
    log = (tmp_path / "commitlog",)
    layout = SimpleNamespace(
        root=tmp_path,
        log_paths=log,
        commitlog_paths=log,
        consumequeue=tmp_path / "consumequeue",
        batchconsumequeue=tmp_path / "batchconsumequeue",
    )
    opened = SimpleNamespace(
        memory=Memory(),
        admin=Admin(dict(OWN)),
        files=SimpleNamespace(
            files=SimpleNamespace(layout=layout), config=load_broker_config(None, {}, root=str(tmp_path))
        ),
        layout=layout,
        root=tmp_path,
        live=LiveBroker(may_change_settings=True),
        broker_conf=None,
        settings={},
    )

    def observe(store: Any, now_ms: int, state: HoldState | None = None) -> Observed:
        files = list_files(log)
        end = files[-1].end_offset
        settings = dict(opened.admin.settings)
        admin = opened.admin
        return Observed(
            now_ms, admin.address, admin.boot_timestamp_ms, 0, end, settings, "ASYNC_MASTER", files
        )

    monkeypatch.setattr(DiskUsage, "of", lambda path: DiskUsage(str(path), 10))
    for module in (hold, status):
        monkeypatch.setattr(module, "observe", observe)
    assert hold.renew(opened, NOW_MS).held  # type: ignore[arg-type]
    opened.memory.durable.clear()
    return opened


def test_a_setting_is_expected_as_it_was_when_the_hold_was_made(store: Any) -> None:
    store.admin.settings |= {RESERVED: "72"}
    assert hold.renew(store, NOW_MS).held
    assert store.memory.kinds == [DriftKind.SETTING_CHANGED]
    assert store.memory.state.expected_settings == OWN
    # Set back, it is as it should be; that is nobody's doing to be told of.
    store.admin.settings |= {RESERVED: "48"}
    assert hold.renew(store, NOW_MS).disturbances == ()


def test_a_release_that_nobody_tried_is_held_and_told_to_delete_nothing_until_it_is_accepted(
    store: Any,
) -> None:
    def renew(release: str) -> str:
        store.admin.settings |= {RELEASE: release}
        status = hold.renew(store, NOW_MS)
        assert status.held
        return " ".join(status.notices)

    # The broker may have been upgraded since the store was opened.
    store.settings = {RELEASE: "5.5.1"}
    files = list_files(store.files.files.layout.log_paths)
    before = [FileFacts.of(file.path) for file in files]
    segment = Segment("commitlog", 0, before[0], SegmentState.SEALED)

    assert not store.memory.state.may_delete("")
    assert "--accept-version" not in renew("5.5.9")
    assert "nothing is deleted through this broker: " in renew("5.6.0")
    with pytest.raises(GateRefusedError, match=r"found 5\.6\.0, .* --accept-version 5\.6\.0\. Nothing was"):
        release.delete_segments(store, [segment])
    store.live = replace(store.live, accept_version="5.6.0")
    assert "--accept-version" not in renew("5.6.0")
    assert (store.memory.state.accepted_release, store.memory.state.accepted_by) == ("5.6.0", person())
    assert store.memory.state.may_delete("5.6.0")

    # It is remembered, and ends with the next release.
    store.live = replace(store.live, accept_version="")
    assert "--accept-version" not in renew("5.6.0")
    assert "found 5.6.1" in renew("5.6.1")
    assert "found 5.6.0" in renew("5.6.0")
    assert [FileFacts.of(file.path) for file in files] == before


def test_drift_that_lasts_is_told_once_and_again_when_it_comes_back(store: Any) -> None:
    for told, value in ((1, "72"), (1, "72"), (1, "48"), (2, "72"), (3, "96")):
        store.admin.settings |= {RESERVED: value}
        hold.renew(store, NOW_MS)
        assert len(store.memory.drift) == told


def test_drift_that_lasts_is_not_told_again_by_a_newer_release(store: Any) -> None:
    store.admin.settings |= {RESERVED: "72"}
    hold.renew(store, NOW_MS)
    state = load_state(store.memory)
    assert state is not None
    # As the hold of each release so far has it.
    assert state.reported == (
        f"setting-changed: {store.admin.address}: expected fileReservedTime=48, found 72: somebody changed "
        "it while the store was held. Find out who, and set it back.",
    )


def test_force_is_forbidden_again_and_again_told_each_time(store: Any) -> None:
    for times in (1, 2, 3):
        store.admin.settings |= {FORCIBLY: "true"}
        assert not status.look(store, NOW_MS).held
        assert hold.renew(store, NOW_MS).held
        assert store.admin.settings[FORCIBLY] == "false"
        assert store.memory.kinds == [DriftKind.SETTING_CHANGED] * times


def test_what_somebody_set_meanwhile_is_not_what_the_end_of_the_hold_puts_back(store: Any) -> None:
    store.admin.settings |= {FORCIBLY: "true"}
    hold.renew(store, NOW_MS)
    hold.end_hold(store, NOW_MS)
    assert store.admin.settings == OWN
    assert set(mtimes_ns(store.files.files.layout.root).values()) == {FIRST_NS}


def test_what_may_not_be_set_is_told_once_and_stays_drift(store: Any) -> None:
    store.live = replace(store.live, may_change_settings=False)
    store.admin.settings |= {FORCIBLY: "true"}
    assert not status.look(store, NOW_MS).held
    for _ in range(2):
        renewed = hold.renew(store, NOW_MS)
        assert renewed.held
        assert "deletes whatever is held" in " ".join(renewed.notices)
        # A look says what the renewal said.
        assert status.look(store, NOW_MS).held
    assert store.memory.kinds == [DriftKind.SETTING_CHANGED]
    assert store.memory.state.expected_settings == OWN
    # Once it may be set, what is put back in the end is what was there in the beginning.
    store.live = replace(store.live, may_change_settings=True)
    hold.renew(store, NOW_MS)
    assert store.memory.state.changed_settings[0].original == "false"


def test_a_lost_journal_does_not_make_what_is_found_the_original(store: Any) -> None:
    root = store.files.files.layout.root
    store.memory = HoldMemories(Memory(store.memory.saved), root)
    hold.renew(store, NOW_MS + 13 * 3_600_000)
    store.admin.settings |= {FORCIBLY: "true", RESERVED: "72"}
    store.memory = HoldMemories(journal := Memory(), root)
    # A lost journal leaves a marker of a manager that nobody knows any more.
    (root / ".storage-engine-hold").unlink()
    hold.renew(store, NOW_MS + 13 * 3_600_000)
    assert journal.state.expected_settings == OWN
    hold.end_hold(store, NOW_MS)
    assert store.admin.settings == {FORCIBLY: "false", RESERVED: "72"}
    assert set(mtimes_ns(root).values()) == {FIRST_NS}


def test_a_touched_segment_is_fenced_again_and_gets_its_first_time_back(store: Any) -> None:
    root = store.files.files.layout.root
    for theirs_ns in (FIRST_NS + 10**9, LEASE_NS + 10 * 365 * 86400 * 10**9):
        os.utime(path_of(root, 0), ns=(theirs_ns, theirs_ns))
        hold.renew(store, NOW_MS)
        assert store.memory.kinds[-1] is DriftKind.MTIME_CHANGED
        assert mtimes_ns(root)[0] == LEASE_NS
    hold.end_hold(store, NOW_MS)
    assert set(mtimes_ns(root).values()) == {FIRST_NS}


def test_what_went_is_recorded_before_the_hold_goes_on_without_it(store: Any) -> None:
    path_of(store.files.files.layout.root, 0).unlink()
    renewed = hold.renew(store, NOW_MS)
    assert [one.kind for one in renewed.disturbances] == [DriftKind.SEGMENT_GONE]
    assert store.memory.durable[0] == DriftKind.SEGMENT_GONE.value
    assert hold.renew(store, NOW_MS).disturbances == ()


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda store: hold.renew(store, NOW_MS), id="renew"),
        pytest.param(lambda store: hold.locked(store).__enter__(), id="lock"),
        pytest.param(lambda store: hold.end_hold(store, NOW_MS), id="end"),
    ],
)
def test_killed_before_drift_is_recorded_the_next_look_finds_it(
    store: Any, act: Callable[[Any], object]
) -> None:
    path_of(store.files.files.layout.root, 0).unlink()
    store.memory.dies_of_drift = True
    with pytest.raises(Killed):
        act(store)
    found = [one.kind for one in status.look(store, NOW_MS).disturbances]
    assert found == [DriftKind.SEGMENT_GONE]


def test_what_is_found_when_a_store_is_locked_is_recorded(store: Any) -> None:
    path_of(store.files.files.layout.root, 0).unlink()
    with hold.locked(store):
        assert store.memory.kinds == [DriftKind.SEGMENT_GONE]


def test_another_broker_s_store_is_recorded_too(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = hold.observe(store, NOW_MS)
    monkeypatch.setattr(hold, "observe", lambda *_: replace(found, role="SLAVE"))
    assert not hold.renew(store, NOW_MS).held
    assert store.memory.kinds == [DriftKind.ROLE_CHANGED]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_others_do_between_renewals_the_intent_stays(store: Any, seed: int) -> None:
    chance, root = random.Random(seed), store.files.files.layout.root
    happened: dict[DriftKind, int] = {}

    def somebody(kind: DriftKind) -> None:
        left = sorted(mtimes_ns(root))
        if kind is DriftKind.MTIME_CHANGED:
            os.utime(path_of(root, left[chance.randrange(4)]), ns=(FIRST_NS - 10**9, FIRST_NS - 10**9))
        elif kind is DriftKind.SEGMENT_GONE:
            path_of(root, left[0]).unlink()
        elif kind is DriftKind.BROKER_RESTARTED:
            store.admin.boot_timestamp_ms += 1
        elif chance.random() < 0.5:
            store.admin.settings |= {FORCIBLY: "true"}
        else:
            store.admin.settings |= {RESERVED: str(49 + len(store.memory.drift))}
        happened[kind] = happened.get(kind, 0) + 1

    now_ms = NOW_MS
    kinds = (
        DriftKind.MTIME_CHANGED,
        DriftKind.SEGMENT_GONE,
        DriftKind.BROKER_RESTARTED,
        DriftKind.SETTING_CHANGED,
    )
    for _ in range(8):
        somebody(chance.choice(kinds))
        now_ms += chance.randrange(1, 15) * 3_600_000
        assert hold.renew(store, now_ms).held
        state = store.memory.state
        assert state.expected_settings == OWN
        assert {one.original for one in state.changed_settings} <= {OWN[FORCIBLY]}
        assert {one.original_mtime_ns for one in state.touched} == {FIRST_NS}
        fenced = [mtimes_ns(root)[base // SIZE] for base in state.fence]
        assert min(fenced) // 10**6 > now_ms
        assert store.admin.settings[FORCIBLY] == "false"
    told = Counter(store.memory.kinds)
    assert {kind: told[kind] for kind in happened} == happened
    hold.end_hold(store, now_ms)
    assert set(mtimes_ns(root).values()) == {FIRST_NS}
    assert store.admin.settings[FORCIBLY] == OWN[FORCIBLY]
