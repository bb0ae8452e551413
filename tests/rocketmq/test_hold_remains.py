"""What a hold has left is told, and what to do about it, until somebody puts it back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.rocketmq.diagnose import hold_remains, judged_hold
from storage_engine.rocketmq.hold.hold_state import ChangedSetting, HoldState, Touched
from storage_engine.rocketmq.hold.marker import NAME, Marker, write_marker

NOW_MS = 1_800_000_000_000
OVER, STANDS = Marker("ours", "host-a", NOW_MS - 1), Marker("ours", "host-a", NOW_MS + 60_000)
LEFT = HoldState(
    "ours",
    1,
    touched=(Touched(0, "/s/0", 1, 2, 3),),
    changed_settings=(ChangedSetting("cleanFileForciblyEnable", "true", "false"),),
)


@pytest.mark.parametrize(
    ("marker", "local", "known", "knows_journal", "kinds"),
    [
        (None, None, None, False, []),
        (OVER, LEFT, None, False, ["dead-hold"]),
        (OVER, None, LEFT, True, ["dead-hold"]),
        (STANDS, LEFT, LEFT, True, []),
        (STANDS, LEFT, None, False, []),  # nobody was asked who holds it
        (STANDS, LEFT, None, True, ["foreign-hold"]),
        (STANDS, LEFT, HoldState("another", 1), True, ["foreign-hold"]),
        (None, LEFT, None, False, ["dead-hold"]),
        (None, HoldState("ours", 1), None, False, []),
    ],
)
def test_a_hold_is_judged_by_its_marker_and_by_who_knows_it(
    marker: Any, local: Any, known: Any, knows_journal: bool, kinds: list[str]
) -> None:
    found = list(judged_hold(Path("/s"), marker, local, known, knows_journal=knows_journal, now_ms=NOW_MS))
    assert [one.kind for one in found] == kinds
    assert all("unmanage" in one.advice for one in found)
    if local is LEFT and found:
        assert "1 changed file time, cleanFileForciblyEnable=false (before: true)" in found[0].what


def test_a_marker_that_can_not_be_read_is_told(store_copy: Callable[[str], Path]) -> None:
    store = store_copy("edge-frames")
    (store / NAME).write_text("no marker")
    (finding,) = hold_remains(store, None, NOW_MS)
    assert "expected the marker of a hold" in finding.what


def test_a_hold_without_a_watch_is_told(store_copy: Callable[[str], Path]) -> None:
    store, now_ms = store_copy("edge-frames"), time.time_ns() // 1_000_000
    write_marker(store, "ours", now_ms + 3_600_000)
    (finding,) = hold_remains(store, None, now_ms)
    assert (finding.kind, "no watch is alive" in finding.what) == ("no-watch", True)
