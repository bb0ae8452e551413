"""A hold that would be too short is refused with what was measured, and with the true cause."""

from __future__ import annotations

from typing import Any, cast

from storage_engine.kafka.hold.hold_state import HELD_SETTINGS, HoldState, TopicSetting
from storage_engine.kafka.hold.needed_retention import LogAge, TopicAge
from storage_engine.kafka.live.raised_settings import raise_settings
from storage_engine.kafka.live.topic_state import Bearable, DiskLimit, ObservedNode, shortest
from tests.kafka.hold_memory import Memory

NOW_MS = 1_800_000_000_000
DAY_MS, ROUND_MS = 86_400_000, 300_000
GIB = 1 << 30
ROOMY = DiskLimit("/roomy", 80 * GIB, 70 * GIB, 1 << 20, DAY_MS)
TIGHT = DiskLimit("/tight", 11 * GIB, 1 * GIB, 100 * GIB, DAY_MS)
FULL = DiskLimit("/full", 5 * GIB, -5 * GIB, GIB, DAY_MS)


def refusal(bears: Bearable, interval_ms: int) -> str:
    settings = {key: TopicSetting(1, is_own=True) for key in HELD_SETTINGS}
    topic = TopicAge("t", "id", settings, (LogAge(NOW_MS - DAY_MS, GIB, GIB, GIB, DAY_MS, GIB, "t-0"),))
    found = ObservedNode(NOW_MS, (topic,), cast(Any, None), {}, interval_ms, {"t": bears})
    memory = Memory()
    raised = raise_settings(cast(Any, None), memory, HoldState(), found, lambda: None, strict=False)
    assert (memory.state, raised.state, raised.refused) == (None, HoldState(), {})
    return raised.too_short["t"]


def test_a_disk_that_is_too_full_is_named_with_its_free_bytes_and_its_growth() -> None:
    said = refusal(shortest(DAY_MS, [ROOMY, TIGHT]), ROUND_MS)
    assert "found 7 min 12 s: /tight has 11.0 GiB free, of which a hold may fill 1.0 GiB" in said
    assert "log files of 100.0 GiB were written to within the last 1 d, and twice as much may come" in said
    assert "for 20 min, four of the brokers' rounds (log.retention.check.interval.ms is 300000)" in said


def test_a_disk_without_room_bears_nothing() -> None:
    said = refusal(shortest(DAY_MS, [ROOMY, FULL]), ROUND_MS)
    assert "found 0 s: /full has 5.0 GiB free, of which a hold may fill 0 bytes" in said


def test_no_disk_is_blamed_where_the_brokers_rounds_are_longer_than_the_hold() -> None:
    said = refusal(shortest(DAY_MS, [ROOMY]), DAY_MS)
    assert said.startswith("expected hold_hours of at least 4 d, four of the brokers' rounds")
    assert "found 1 d. No setting was changed. Raise hold_hours" in said
    assert "disk" not in said


def test_no_disk_limits_a_hold_that_all_of_them_bear() -> None:
    assert shortest(DAY_MS, [ROOMY]) == shortest(DAY_MS, []) == Bearable(DAY_MS, DAY_MS)
