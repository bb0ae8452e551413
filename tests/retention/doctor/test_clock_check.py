"""Times that lie in the future tell of a clock that is off; small differences don't."""

from __future__ import annotations

import pytest

from storage_engine.retention.doctor.doctor import clock_findings
from tests.retention.doctor.stores import HOUR_MS, NOW_MS, segment


@pytest.mark.parametrize(
    ("segment_ms", "message_ms", "sample_ms", "count"),
    [
        (NOW_MS - HOUR_MS, NOW_MS - 1, NOW_MS, 0),
        (NOW_MS + 30_000, NOW_MS + 30_000, NOW_MS + 30_000, 0),
        (NOW_MS + HOUR_MS, None, None, 1),
        (NOW_MS, NOW_MS + HOUR_MS, None, 1),
        (NOW_MS, None, NOW_MS + HOUR_MS, 1),
        (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, 3),
    ],
)
def test_each_time_is_held_against_now(
    segment_ms: int, message_ms: int | None, sample_ms: int | None, count: int
) -> None:
    found = list(clock_findings([segment(0, segment_ms)], message_ms, sample_ms, NOW_MS))
    assert [one.kind for one in found] == ["clock"] * count


def test_a_clock_that_was_set_forward_is_told() -> None:
    (finding,) = clock_findings([segment(0, NOW_MS)], None, None, NOW_MS, 5 * HOUR_MS)
    assert "was set forward by 5 h" in finding.what
