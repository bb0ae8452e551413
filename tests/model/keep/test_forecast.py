"""What leaves a lake on which day, and what a month of it costs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.clock import DAY_MS
from storage_engine.model.keep.expiry_rules import ArchivedStream, GoingBytes, forecast_topics
from storage_engine.model.keep.keep_rules import Hold, KeepPolicy, KeepRule, Scope, Stream, goes_at_ms

NOW_MS = 20_000 * DAY_MS + 3_600_000
LONG_AGO = NOW_MS - 100 * DAY_MS


def archived(topic: str, age_days: float | None, size_bytes: int, log: str = "commitlog") -> ArchivedStream:
    stream = Stream("8c1d", ("main",), log, topic, topic.startswith("rmq_sys_"))
    newest_ms = None if age_days is None else NOW_MS - round(age_days * DAY_MS)
    return ArchivedStream(stream, size_bytes, size_bytes // 4, newest_ms)


def test_each_topic_has_its_rule_and_its_days_and_the_largest_comes_first() -> None:
    rules = (KeepRule(Scope(), "30 days"), KeepRule(Scope(topic="audit"), "7 years"))
    hold = Hold("h", Scope(topic="orders"), "why", "ann", LONG_AGO)
    policies = (KeepPolicy("v", LONG_AGO, rules, (hold,)),)
    found = forecast_topics(
        policies,
        [
            archived("prices", 40, 400),
            archived("prices", 10.5, 80),
            archived("prices", 10, 40),
            archived("prices", None, 4),
            archived("audit", 40, 800),
            archived("orders", 40, 100),
            archived("rmq_sys_x", 40, 8),
        ],
        NOW_MS,
        price=2.0,
    )
    assert [(it.topic, it.size_bytes, it.keep, it.rule, it.held_by) for it in found] == [
        ("audit", 800, "7 years", "topic audit", ()),
        ("prices", 524, "30 days", "everything", ()),
        ("orders", 100, "30 days", "everything", ("h",)),
        ("rmq_sys_x", 8, "forever", "", ()),
    ]
    prices = found[1]
    # What is past already goes on the next day that begins; of 10.5 days of age it is day 20 020.
    days = (GoingBytes(20_001, 400, 100), GoingBytes(20_020, 80, 20), GoingBytes(20_021, 40, 10))
    assert prices.goes == days
    assert found[2].goes == found[3].goes == ()
    assert prices.month_cost == 131 / 10**9 * 2.0
    assert len(found[0].goes) == 1


def test_without_a_policy_everything_stays_and_without_a_price_nothing_costs() -> None:
    (topic,) = forecast_topics((), [archived("prices", 40, 400)], NOW_MS)
    assert (topic.keep, topic.goes, topic.month_cost) == ("forever", (), None)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 100)), max_size=8), st.integers(0, 40))
def test_no_byte_goes_on_a_day_before_it_may(ages: list[tuple[int, int]], keep: int) -> None:
    policies = (KeepPolicy("v", LONG_AGO, (KeepRule(Scope(), f"{keep} days"),)),)
    streams = [archived("prices", age, size) for age, size in ages]
    for topic in forecast_topics(policies, streams, NOW_MS):
        assert sum(going.size_bytes for going in topic.goes) == topic.size_bytes
        for going in topic.goes:
            may_go = sum(
                it.size_bytes
                for it in streams
                if (goes_at_ms(policies, it.stream, it.newest_ms) or 0) <= going.day * DAY_MS
            )
            gone = sum(it.size_bytes for it in topic.goes if it.day <= going.day)
            assert gone <= may_go
