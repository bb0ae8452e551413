"""When a broker's own rules take segments: held against those rules, moment by moment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.kafka.hold.due_logs import expiry, growth, kept_span_ms, written
from storage_engine.kafka.hold.hold_state import KnownLog, Written
from storage_engine.kafka.retention_rules import LogFacts, RetentionSettings, SegmentFacts, retention_pass

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
SIZES = [300, 200, 100, 50]


def log(*ages_ms: int) -> LogFacts:
    segments = tuple(
        SegmentFacts(100 * place, SIZES[place], NOW_MS - age_ms) for place, age_ms in enumerate(ages_ms)
    )
    return LogFacts(segments, 0, 100 * len(segments), 100 * len(segments))


@given(
    ages=st.lists(st.integers(-DAY_MS, 20 * DAY_MS), min_size=1, max_size=4),
    kept_ms=st.integers(-1, 10 * DAY_MS),
    kept_bytes=st.integers(-1, 700),
)
def test_a_segment_goes_by_the_rules_at_its_moment_and_no_earlier(
    ages: list[int], kept_ms: int, kept_bytes: int
) -> None:
    facts = log(*ages)
    settings = RetentionSettings(retention_ms=kept_ms, retention_bytes=kept_bytes)
    found = expiry(facts, settings, NOW_MS, 0.0)

    def gone(at_ms: int) -> set[int]:
        return {one.base_offset for one in retention_pass(facts, settings, at_ms).deletions}

    for base_offset, at_ms in found.items():
        if at_ms is None:
            assert base_offset not in gone(NOW_MS + 100 * DAY_MS)
            continue
        # The rules take size before age in one pass, and of size alone what is there is taken at once.
        assert base_offset in gone(at_ms)
        if at_ms > NOW_MS:
            assert base_offset not in gone(at_ms - 1)


def test_size_takes_a_segment_once_so_much_was_written_behind_it() -> None:
    facts = log(0, 0, 0, 0)
    settings = RetentionSettings(retention_ms=-1, retention_bytes=500)
    found = expiry(facts, settings, NOW_MS, 0.5)
    assert found == {0: NOW_MS + 300, 100: NOW_MS + 700, 200: NOW_MS + 900, 300: NOW_MS + 1000}
    assert set(expiry(facts, settings, NOW_MS, None).values()) == {None}
    assert expiry(facts, replace(settings, retention_bytes=350), NOW_MS, None)[0] == NOW_MS


@pytest.mark.parametrize("policy", [{"compact": True}, {"remote": True}, {"delete": False}])
def test_what_goes_by_other_rules_goes_by_none_of_these(policy: dict[str, bool]) -> None:
    found = expiry(log(9 * DAY_MS), RetentionSettings(**policy), NOW_MS, 1.0)  # type: ignore[arg-type]
    assert found == {0: None}


def test_growth_is_what_was_written_since_the_last_look() -> None:
    before = log(0, 0).segments
    assert growth(before, None, NOW_MS) is None
    since = written(before, None, NOW_MS)
    assert since == Written(NOW_MS, 100, 200)
    known = KnownLog("id", 1, 1, (1,), 0, 0, written=since)
    grown = (before[1]._replace(size_bytes=260), SegmentFacts(160, 40, NOW_MS))
    assert growth((before[0], *grown), known, NOW_MS + 50) == 2.0
    assert growth((before[0], before[1]), known, NOW_MS + 50) == 0.0
    # The segment of then is gone: how much was written to it, nobody knows.
    assert growth(grown[1:], known, NOW_MS + 50) is None
    # A moment ago tells little: it is measured from the first of such looks.
    assert written(grown, known, NOW_MS + 50) == since
    assert written(grown, known, NOW_MS + 700_000) == Written(NOW_MS + 700_000, 160, 40)


def test_for_how_long_records_are_kept() -> None:
    assert kept_span_ms(RetentionSettings(retention_ms=-1), 1.0) is None
    assert kept_span_ms(RetentionSettings(retention_ms=9, retention_bytes=6), 1.0) == 6
    assert kept_span_ms(RetentionSettings(retention_ms=9, retention_bytes=6), None) == 9
