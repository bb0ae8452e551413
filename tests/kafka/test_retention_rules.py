"""Retention rules of Kafka, by example and by what holds of any log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.kafka.retention_rules import (
    Halt,
    LogFacts,
    RetentionSettings,
    Rule,
    SegmentDeletion,
    SegmentFacts,
    Stop,
    retention_pass,
)

NOW_MS = 1_800_000_000_000
SEGMENTS = tuple(SegmentFacts(100 * i, 1000, NOW_MS - 10_000 * (5 - i)) for i in range(5))
"""Five segments of 100 records; they are 50, 40, 30, 20 and 10 seconds old."""
LOG = LogFacts(SEGMENTS, 0, 500, 500)
KEEP = RetentionSettings(retention_ms=-1)


def deleted(log: LogFacts, settings: RetentionSettings) -> dict[int, Rule]:
    return {one.base_offset: one.rule for one in retention_pass(log, settings, NOW_MS).deletions}


def halt_of(rule: Rule, log: LogFacts, settings: RetentionSettings) -> Halt:
    (halt,) = [halt for halt in retention_pass(log, settings, NOW_MS).halts if halt.rule is rule]
    return halt


@pytest.mark.parametrize(
    ("start", "expected"),
    [(0, []), (99, []), (100, [0]), (250, [0, 100]), (400, [0, 100, 200, 300]), (500, None)],
)
def test_segments_below_the_logs_start_go_but_never_the_last(start: int, expected: list[int] | None) -> None:
    whole = expected if expected is not None else [0, 100, 200, 300]
    for policy in (True, False):
        assert list(deleted(LOG._replace(start_offset=start), replace(KEEP, delete=policy))) == whole


@pytest.mark.parametrize(
    ("kept", "count"), [(-1, 0), (5001, 0), (5000, 0), (4001, 0), (4000, 1), (2500, 2), (1, 4), (0, 5)]
)
def test_never_less_than_the_bound_stays(kept: int, count: int) -> None:
    settings = replace(KEEP, retention_bytes=kept)
    assert deleted(LOG, settings) == dict.fromkeys(range(0, 100 * count, 100), Rule.SIZE)
    stop = Stop.OFF if kept in (-1, 5001) else Stop.END if count == 5 else Stop.KEPT
    assert halt_of(Rule.SIZE, LOG, settings).stop is stop


@pytest.mark.parametrize(("kept_ms", "count"), [(-1, 0), (50_000, 0), (49_999, 1), (25_000, 3), (0, 5)])
def test_what_is_older_than_the_bound_goes(kept_ms: int, count: int) -> None:
    settings = replace(KEEP, retention_ms=kept_ms)
    assert deleted(LOG, settings) == dict.fromkeys(range(0, 100 * count, 100), Rule.TIME)


def test_a_future_timestamp_blocks_all_behind_it() -> None:
    future = (SEGMENTS[0]._replace(largest_timestamp_ms=NOW_MS + 1), *SEGMENTS[1:])
    log, settings = LOG._replace(segments=future), replace(KEEP, retention_ms=0)
    assert deleted(log, settings) == {}
    assert halt_of(Rule.TIME, log, settings) == Halt(Rule.TIME, Stop.FUTURE, 0)


def test_nothing_goes_above_the_high_watermark() -> None:
    log, settings = LOG._replace(high_watermark=250), replace(KEEP, retention_ms=0)
    assert deleted(log, settings) == {0: Rule.TIME, 100: Rule.TIME}
    assert halt_of(Rule.TIME, log, settings) == Halt(Rule.TIME, Stop.HIGH_WATERMARK, 200)
    assert 400 not in deleted(LOG._replace(high_watermark=499), settings)


def test_an_empty_last_segment_stays() -> None:
    empty = SegmentFacts(500, 0, 0)
    log, settings = LOG._replace(segments=(*SEGMENTS, empty)), replace(KEEP, retention_ms=0)
    assert list(deleted(log, settings)) == [0, 100, 200, 300, 400]
    assert halt_of(Rule.TIME, log, settings) == Halt(Rule.TIME, Stop.EMPTY, 500)


def test_rules_go_on_from_what_the_one_before_left() -> None:
    log = LOG._replace(start_offset=100)
    settings = replace(KEEP, retention_bytes=3000, retention_ms=25_000)
    assert retention_pass(log, settings, NOW_MS).deletions == (
        SegmentDeletion(0, Rule.LOG_START),
        SegmentDeletion(100, Rule.SIZE),
        SegmentDeletion(200, Rule.TIME),
    )


def test_policies_say_which_rules_there_are() -> None:
    log, settings = LOG._replace(start_offset=100), replace(KEEP, retention_ms=0)
    assert deleted(log, replace(settings, delete=False)) == {0: Rule.LOG_START}
    assert halt_of(Rule.TIME, log, replace(settings, delete=False)).stop is Stop.POLICY
    assert deleted(log, replace(settings, compact=True)) == {}
    assert halt_of(Rule.TIME, log, replace(settings, compact=True)).stop is Stop.COMPACTED


def test_with_remote_storage_the_local_bounds_count() -> None:
    settings = RetentionSettings(retention_ms=-1, local_retention_ms=25_000, local_retention_bytes=4000)
    assert deleted(LOG, settings) == {}
    assert len(deleted(LOG, replace(settings, remote=True))) == 3
    alike = RetentionSettings(retention_ms=25_000, remote=True)
    assert len(deleted(LOG, alike)) == 3


@st.composite
def logs(draw: st.DrawFn) -> LogFacts:
    sizes = draw(st.lists(st.integers(0, 50), min_size=1, max_size=8))
    offsets = [0]
    for _ in sizes:
        offsets.append(offsets[-1] + draw(st.integers(1, 9)))
    ages = draw(st.lists(st.integers(-20, 100), min_size=len(sizes), max_size=len(sizes)))
    segments = tuple(
        SegmentFacts(at, size, NOW_MS - age) for at, size, age in zip(offsets, sizes, ages, strict=False)
    )
    end = offsets[len(sizes)] if sizes[-1] else segments[-1].base_offset
    return LogFacts(segments, draw(st.integers(0, end)), draw(st.integers(0, end)), end)


@given(log=logs(), kept_bytes=st.integers(-1, 200), kept_ms=st.integers(-1, 90), delete=st.booleans())
def test_a_prefix_goes_and_each_bound_holds(
    log: LogFacts, kept_bytes: int, kept_ms: int, delete: bool
) -> None:
    settings = RetentionSettings(delete=delete, retention_bytes=kept_bytes, retention_ms=kept_ms)
    found = retention_pass(log, settings, NOW_MS)
    gone = [one.base_offset for one in found.deletions]
    assert gone == [segment.base_offset for segment in log.segments[: len(gone)]]
    assert [halt.rule for halt in found.halts] == list(Rule)
    ends = [*(segment.base_offset for segment in log.segments[1:]), log.end_offset]
    assert all(end <= log.high_watermark for end in ends[: len(gone)])
    by_rule = {rule: [one.base_offset for one in found.deletions if one.rule is rule] for rule in Rule}
    assert [offset for rule in Rule for offset in by_rule[rule]] == gone
    by_offset = {segment.base_offset: segment for segment in log.segments}
    assert all(NOW_MS - by_offset[at].largest_timestamp_ms > kept_ms for at in by_rule[Rule.TIME])
    if by_rule[Rule.SIZE]:
        after_time = len(by_rule[Rule.LOG_START]) + len(by_rule[Rule.SIZE])
        assert sum(segment.size_bytes for segment in log.segments[after_time:]) >= kept_bytes
    again = log._replace(segments=log.segments[len(gone) :])
    if again.segments:
        assert retention_pass(again, settings, NOW_MS).deletions == ()
