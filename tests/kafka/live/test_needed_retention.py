"""How far settings are raised: as far as it takes, never down, and no further than a disk can bear."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.kafka.hold.hold_state import (
    HELD_SETTINGS,
    RETENTION_BYTES,
    RETENTION_MS,
    UNLIMITED,
    HeldSetting,
    HoldState,
    TopicSetting,
)
from storage_engine.kafka.hold.needed_retention import (
    LogAge,
    TopicAge,
    bearable_ms,
    ends_at_ms,
    protects,
    raise_values,
)
from storage_engine.kafka.retention_rules import LogFacts, RetentionSettings, SegmentFacts, retention_pass

NOW_MS = 1_800_000_000_000
KEPT_MS = 86_400_000
INTERVAL_MS = 300_000

values = st.one_of(st.just(UNLIMITED), st.integers(0, 10 * KEPT_MS))
ages = st.builds(
    LogAge,
    oldest_ms=st.integers(NOW_MS - 20 * KEPT_MS, NOW_MS + KEPT_MS),
    size_bytes=st.integers(0, 1 << 40),
    grown_bytes=st.integers(0, 1 << 30),
    segment_bytes=st.integers(14, 1 << 30),
    span_ms=st.just(KEPT_MS),
    latest_bytes=st.integers(0, 1 << 30),
    log=st.just("t-0"),
)
topics = st.builds(
    TopicAge,
    topic=st.just("t"),
    topic_id=st.just("id"),
    settings=st.fixed_dictionaries(
        {key: st.builds(TopicSetting, values, st.booleans()) for key in HELD_SETTINGS}
    ),
    logs=st.lists(ages, max_size=4).map(tuple),
)


def change(
    topic: TopicAge, state: HoldState | None = None, *, strict: bool = False
) -> dict[str, HeldSetting]:
    found = raise_values(topic, state or HoldState(), NOW_MS, KEPT_MS, strict=strict, interval_ms=INTERVAL_MS)
    return {one.key: one for one in found}


def after(topic: TopicAge, changes: dict[str, HeldSetting]) -> TopicAge:
    settings = {key: TopicSetting(one.ours[-1], is_own=True) for key, one in changes.items()}
    return replace(topic, settings={**topic.settings, **settings})


@given(topics, st.booleans())
def test_a_setting_is_never_lowered_and_what_it_was_is_remembered(topic: TopicAge, strict: bool) -> None:
    for key, one in change(topic, strict=strict).items():
        found = topic.settings[key]
        assert found.value != UNLIMITED
        assert one.ours[-1] == UNLIMITED or one.ours[-1] > found.value
        assert one.original == found
        assert not one.is_set
        assert (one.ours[-1] == UNLIMITED) == strict


@given(topics)
def test_what_is_raised_keeps_all_that_is_there_and_is_not_raised_again(topic: TopicAge) -> None:
    held = after(topic, change(topic))
    for key in HELD_SETTINGS:
        assert protects(key, held.settings[key].value, held.logs, NOW_MS, KEPT_MS // 2)
    assert change(held) == {}


@given(topics, st.lists(st.integers(1, 1 << 28), min_size=1, max_size=5))
def test_kafkas_rules_delete_nothing_that_is_held(topic: TopicAge, sizes: list[int]) -> None:
    """By the rules themselves: for half of the time wanted, and as much as was written in all of it."""
    logs = [replace(log, size_bytes=sum(sizes), segment_bytes=max(sizes)) for log in topic.logs]
    held = after(topic, change(replace(topic, logs=tuple(logs))))
    settings = RetentionSettings(
        retention_ms=held.settings[RETENTION_MS].value, retention_bytes=held.settings[RETENTION_BYTES].value
    )
    for log in logs:
        assert log.oldest_ms is not None
        segments = [SegmentFacts(n, size, log.oldest_ms) for n, size in enumerate(sizes)]
        grown = SegmentFacts(len(sizes), log.grown_bytes, NOW_MS)
        facts = LogFacts((*segments, grown), 0, 1000, 1000)
        assert retention_pass(facts, settings, NOW_MS + KEPT_MS // 2).deletions == ()


@given(topics, st.booleans())
def test_a_change_counts_at_once_only_where_nothing_could_go_before_it_is_applied(
    topic: TopicAge, strict: bool
) -> None:
    for key, one in change(topic, strict=strict).items():
        safe = protects(key, topic.settings[key].value, topic.logs, NOW_MS, INTERVAL_MS)
        if not safe:
            assert one.counts_from_ms == NOW_MS + INTERVAL_MS


@given(topics)
def test_raised_again_either_value_is_ours_and_the_first_one_is_what_comes_back(topic: TopicAge) -> None:
    first = change(topic)
    held = after(topic, first)
    known = HoldState(settings=tuple(replace(one, is_set=True) for one in first.values()))
    older = replace(
        held,
        logs=tuple(replace(log, oldest_ms=(log.oldest_ms or 0) - KEPT_MS) for log in held.logs),
    )
    for key, again in change(older, known).items():
        if key not in first:
            continue
        assert again.original == topic.settings[key]
        assert again.ours == (first[key].ours[-1], again.ours[-1])
        assert again.is_ours(held.settings[key])
        assert not again.is_ours(TopicSetting(again.ours[-1] + 7, is_own=True))
        assert not again.is_ours(TopicSetting(topic.settings[key].value, is_own=True)) or (
            topic.settings[key] == TopicSetting(topic.settings[key].value, is_own=True)
        )


def test_a_young_topic_is_left_alone() -> None:
    log = LogAge(NOW_MS - KEPT_MS, 1000, 1000, 100, KEPT_MS, 0, "t-0")
    week = {RETENTION_MS: TopicSetting(7 * KEPT_MS, False), RETENTION_BYTES: TopicSetting(UNLIMITED, False)}
    assert change(TopicAge("t", "id", week, (log,))) == {}
    old = replace(log, oldest_ms=NOW_MS - 7 * KEPT_MS + 1000)
    (one,) = change(TopicAge("t", "id", week, (old,))).values()
    assert one.ours == (8 * KEPT_MS - 1000,)
    assert one.original == TopicSetting(7 * KEPT_MS, False)


def test_the_end_is_that_of_the_oldest_log_and_none_without_a_limit() -> None:
    logs = tuple(LogAge(at_ms, 1, 1, 1, 1, 1, "t-0") for at_ms in (NOW_MS, NOW_MS - 5, None))
    settings = {RETENTION_MS: TopicSetting(100, True), RETENTION_BYTES: TopicSetting(UNLIMITED, True)}
    topic = TopicAge("t", "id", settings, logs)
    assert ends_at_ms([topic]) == NOW_MS + 96
    unlimited = {**settings, RETENTION_MS: TopicSetting(UNLIMITED, True)}
    assert ends_at_ms([replace(topic, settings=unlimited)]) is None
    assert ends_at_ms([]) is None


@pytest.mark.parametrize(
    ("rooms", "expected_ms"),
    [
        ((), KEPT_MS),
        (((100, 0),), KEPT_MS),
        (((200, 100),), KEPT_MS),
        (((100, 100),), KEPT_MS // 2),
        (((1000, 100), (50, 100)), KEPT_MS // 4),
        (((-5, 100),), 0),
    ],
)
def test_a_disk_bears_what_it_has_room_for(rooms: tuple[tuple[int, int], ...], expected_ms: int) -> None:
    assert bearable_ms(KEPT_MS, rooms) == expected_ms
