from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import GateRefusedError
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState
from storage_engine.rocketmq.hold.fence import with_original_times
from storage_engine.rocketmq.hold.hold_state import HoldState, Touched, load_state

NOWHERE = Path("/nowhere")
ORIGINAL_NS = 1_700_000_000_123_456_789
OURS_NS = 1_800_000_000_000_000_000
BEFORE_NS = 1_790_000_000_000_000_000


class Memory:
    def __init__(self, state: HoldState | None) -> None:
        self.saved: Mapping[str, Any] | None = None if state is None else to_jsonable(state)

    def load(self) -> Mapping[str, Any] | None:
        return self.saved

    def save(self, state: Mapping[str, Any] | None) -> None:
        self.saved = state


def log(mtime_ns: int, inode: int = 7) -> LogSnapshot:
    facts = FileFacts("/store/commitlog/0", 1, inode, 1000, mtime_ns, 5)
    return LogSnapshot("commitlog", (Segment("commitlog", 0, facts, SegmentState.SEALED),), 1500, 1500)


def original_in(log: LogSnapshot, state: HoldState | None) -> int | None:
    return with_original_times(log, Memory(state), NOWHERE).segments[0].original_mtime_ns


TOUCHED = Touched(0, "/store/commitlog/0", 7, ORIGINAL_NS, OURS_NS, ctime_ns=9, before_mtime_ns=BEFORE_NS)
STATE = HoldState("me", 1, touched=(TOUCHED,))
MEANT = HoldState("me", 1, touched=(replace(TOUCHED, ctime_ns=None),))


def test_a_segment_is_as_old_as_before_the_hold_touched_it() -> None:
    assert original_in(log(OURS_NS), STATE) == ORIGINAL_NS
    assert with_original_times(log(OURS_NS), Memory(STATE), NOWHERE).segments[0].mtime_ns == ORIGINAL_NS


@pytest.mark.parametrize("mtime_ns", [OURS_NS, BEFORE_NS])
def test_so_is_one_that_was_about_to_be_touched(mtime_ns: int) -> None:
    assert original_in(log(mtime_ns), MEANT) == ORIGINAL_NS


@pytest.mark.parametrize("state", [STATE, MEANT])
def test_what_somebody_else_touched_since_is_as_it_is_found(state: HoldState) -> None:
    assert original_in(log(OURS_NS + 10**9), state) is None


def test_another_file_under_the_name_was_never_touched() -> None:
    assert original_in(log(OURS_NS, inode=8), STATE) is None


def test_without_a_hold_nothing_is_changed() -> None:
    assert original_in(log(OURS_NS), None) is None
    assert with_original_times(log(OURS_NS), None, NOWHERE) == log(OURS_NS)


def test_a_hold_is_known_again_from_the_journal() -> None:
    state = replace(STATE, releasing=(0,), segments=((0, 7),), expected_settings={"fileReservedTime": "48"})
    assert load_state(Memory(state)) == state


def test_a_hold_of_another_release_is_refused() -> None:
    memory = Memory(STATE)
    memory.save({**(memory.load() or {}), "walls": 4})
    with pytest.raises(GateRefusedError, match="walls"):
        load_state(memory)
