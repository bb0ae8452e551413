"""Each thing that has to hold after a live demo is told when it does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from demo.live_checks import BrokerBefore, LiveOutcome, check_live, mtimes
from storage_engine.retention.store.managed_store import ManagedStore

SEGMENT_BYTES = 1 << 20
OLD = {f"{number * SEGMENT_BYTES:020d}": "hash" for number in range(2)}
STAYS = [number * SEGMENT_BYTES for number in range(2, 8)]

Change = Callable[[LiveOutcome, ManagedStore], LiveOutcome]


@pytest.fixture
def store(tmp_path: Path) -> ManagedStore:
    """What a run leaves of eight segments; there is no lake."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    for base in STAYS:
        (tmp_path / "store" / "commitlog" / f"{base:020d}").touch()
    return ManagedStore.local("live", str(tmp_path / "store"), tmp_path)


@pytest.fixture
def outcome(store: ManagedStore) -> LiveOutcome:
    stayed = mtimes(Path(store.root))
    settings = {"fileReservedTime": "72", "cleanFileForciblyEnable": "true"}
    group = {"pulled": 1, "moved": 0, "failed": 0}
    return LiveOutcome(
        topic="t",
        keeps_up="fast",
        lags="slow",
        before=BrokerBefore(settings, {**dict.fromkeys(OLD, 1), **stayed}, OLD),
        settings_after=settings,
        mtimes_after=stayed,
        min_offset=STAYS[0],
        began_at_until_release=frozenset({0}),
        positions={0: 0},
        held=True,
        run_state="success",
        result={},
        records=({"sent": "t", "queue": 0, "queueOffset": 0, "sha256": "hash"},),
        summary={"failed": 0, "groups": {"fast": group, "slow": {**group, "moved": 4}}},
        served={(0, 0): "hash"},
    )


def failed(store: ManagedStore, outcome: LiveOutcome) -> set[str]:
    """What does not hold, apart from what takes a lake and a report."""
    checks = {check.text: check.holds for check in check_live(store, outcome)}
    assert sum("the lake can be read" in text or "a report was written" in text for text in checks) == 2
    return {
        text
        for text, holds in checks.items()
        if not holds and "the lake can be read" not in text and "a report was written" not in text
    }


def test_what_held_is_told_as_such(store: ManagedStore, outcome: LiveOutcome) -> None:
    assert failed(store, outcome) == set()


def _groups(outcome: LiveOutcome, name: str, **seen: int) -> LiveOutcome:
    groups = outcome.summary["groups"]
    return replace(outcome, summary={**outcome.summary, "groups": {**groups, name: {**groups[name], **seen}}})


def _touch(outcome: LiveOutcome, store: ManagedStore) -> LiveOutcome:
    (Path(store.root) / "commitlog" / f"{STAYS[1]:020d}").touch()
    os.utime(Path(store.root) / "commitlog" / f"{STAYS[0]:020d}", (1, 1))
    return replace(outcome, mtimes_after=mtimes(Path(store.root)))


def _leave_a_marker(outcome: LiveOutcome, store: ManagedStore) -> LiveOutcome:
    (Path(store.root) / ".storage-engine-hold").touch()
    return outcome


def _lose_one_more(outcome: LiveOutcome, store: ManagedStore) -> LiveOutcome:
    (Path(store.root) / "commitlog" / f"{STAYS[0]:020d}").unlink()
    return outcome


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda outcome, _: replace(outcome, run_state="failed"), "the DAG run ended: failed"),
        (lambda outcome, _: replace(outcome, held=False), "until the release nothing had gone"),
        (
            lambda outcome, _: replace(outcome, began_at_until_release=frozenset({0, SEGMENT_BYTES})),
            "until the release nothing had gone",
        ),
        (lambda outcome, _: replace(outcome, min_offset=0), "exactly the 2 expired segments are gone"),
        (_lose_one_more, "exactly the 2 expired segments are gone"),
        (
            lambda outcome, _: replace(outcome, summary={**outcome.summary, "failed": 1}),
            "no put failed: 1 sent, 1 failed",
        ),
        (lambda outcome, _: _groups(outcome, "fast", failed=1), "no pull of group fast failed"),
        (lambda outcome, _: _groups(outcome, "fast", moved=1), "no pull of group fast failed"),
        (lambda outcome, _: _groups(outcome, "fast", pulled=0), "no pull of group fast failed"),
        (lambda outcome, _: _groups(outcome, "slow", failed=1), "no pull of group slow failed"),
        (lambda outcome, _: _groups(outcome, "slow", moved=0), "no pull of group slow failed"),
        (
            lambda outcome, _: replace(outcome, settings_after={"fileReservedTime": "72"}),
            "the broker's settings are as before; found cleanFileForciblyEnable",
        ),
        (_touch, f"the times of the segments that stayed; found {STAYS[0]:020d}, {STAYS[1]:020d}"),
        (_leave_a_marker, "no hold is left in its store; found .storage-engine-hold"),
    ],
)
def test_what_did_not_hold_is_told(
    store: ManagedStore, outcome: LiveOutcome, change: Change, told: str
) -> None:
    found = failed(store, change(outcome, store))
    assert len(found) == 1
    assert told in found.pop()
