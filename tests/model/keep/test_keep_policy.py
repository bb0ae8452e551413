"""When a stream may leave a lake, by every policy that the lake had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.clock import DAY_MS
from storage_engine.model.keep.keep_rules import (
    GRACE_MS,
    Hold,
    KeepPolicy,
    KeepRule,
    Scope,
    Stream,
    age_begins_ms,
    goes_at_ms,
)

NOW_MS = 1_700_000_000_000
ORDERS = Stream("8c1d", ("main",), "commitlog", "orders", False)

_KEEPS = st.one_of(
    st.just("forever"), st.integers(0, 40).map("{} days".format), st.integers(1, 3).map("{} years".format)
)
_SCOPES = st.builds(
    Scope,
    topic=st.sampled_from(["*", "orders", "o*", "*s", "other"]),
    log=st.sampled_from(["*", "commitlog", "c*"]),
    store=st.sampled_from(["*", "main", "8c1d", "m?in"]),
)
_RULES = st.lists(st.builds(KeepRule, _SCOPES, _KEEPS), max_size=4).map(tuple)
_HOLDS = st.lists(
    st.builds(Hold, st.just("h"), _SCOPES, st.just("why"), st.just("ann"), st.just(0)), max_size=2
).map(tuple)
_NEWEST = st.integers(NOW_MS - 2000 * DAY_MS, NOW_MS + DAY_MS)


@st.composite
def _histories(draw: st.DrawFn) -> tuple[KeepPolicy, ...]:
    times = sorted(draw(st.lists(st.integers(NOW_MS - 60 * DAY_MS, NOW_MS), min_size=1, max_size=4)))
    return tuple(KeepPolicy(str(at), at, draw(_RULES), draw(_HOLDS)) for at in times)


def policy(keep: str, days_ago: float, *holds: Hold) -> KeepPolicy:
    return KeepPolicy(keep, NOW_MS - round(days_ago * DAY_MS), (KeepRule(Scope(), keep),), holds)


def goes(policies: Sequence[KeepPolicy], age_days: float) -> float | None:
    """In how many days a stream of an age goes; None: never."""
    at_ms = goes_at_ms(policies, ORDERS, NOW_MS - round(age_days * DAY_MS))
    return None if at_ms is None else (at_ms - NOW_MS) / DAY_MS


def test_a_stream_goes_when_its_newest_message_is_past() -> None:
    assert goes((policy("30 days", 5),), 10) == 20
    assert goes((policy("30 days", 5),), 40) == -4, "24 hours after the first policy"
    assert goes((policy("forever", 5),), 40) is None
    assert goes((), 40) is None


def test_nothing_goes_in_the_first_day_of_a_policy_that_takes_more() -> None:
    assert goes((policy("30 days", 0),), 40) == 1
    assert goes((policy("30 days", 9), policy("10 days", 0.5)), 20) == 0.5
    assert goes((policy("30 days", 9), policy("10 days", 0.5)), 29.75) == 0.25, "then both take it"


def test_what_the_policy_before_would_have_taken_too_does_not_wait_again() -> None:
    assert goes((policy("30 days", 9), policy("10 days", 0.5)), 31) == -1
    assert goes((policy("30 days", 9), policy("20 days", 0.5), policy("10 days", 0.1)), 31) == -1


def test_a_policy_that_keeps_longer_counts_at_once() -> None:
    assert goes((policy("10 days", 9), policy("30 days", 0)), 20) == 10


def test_what_was_held_waits_a_day_after_the_hold_is_lifted() -> None:
    hold = Hold("h", Scope(topic="orders"), "why", "ann", 0)
    assert goes((policy("1 day", 9), policy("1 day", 5, hold)), 20) is None
    assert goes((policy("1 day", 9), policy("1 day", 5, hold), policy("1 day", 0)), 20) == 1


def test_rocketmq_counts_from_its_own_time_and_kafka_from_the_first_proof() -> None:
    assert age_begins_ms(broker_sets_times=True, last_ms=5, first_proven_at_ms=9) == 5
    assert age_begins_ms(broker_sets_times=True, last_ms=None, first_proven_at_ms=9) is None
    for timestamp in (None, 5, 9, 99):
        assert age_begins_ms(broker_sets_times=False, last_ms=timestamp, first_proven_at_ms=9) == 9
    assert age_begins_ms(broker_sets_times=False, last_ms=5, first_proven_at_ms=None) is None


@given(_histories())
def test_an_unknown_age_keeps(policies: tuple[KeepPolicy, ...]) -> None:
    assert goes_at_ms(policies, ORDERS, None) is None


@given(_histories(), _NEWEST, _SCOPES)
def test_a_hold_never_lets_more_go(policies: tuple[KeepPolicy, ...], newest_ms: int, scope: Scope) -> None:
    held = replace(policies[-1], holds=(*policies[-1].holds, Hold("x", scope, "why", "ann", 0)))
    before = goes_at_ms(policies, ORDERS, newest_ms)
    after = goes_at_ms((*policies[:-1], held), ORDERS, newest_ms)
    assert after is None or (before is not None and after >= before)


@given(_histories(), _NEWEST, st.data())
def test_a_rule_that_keeps_longer_never_lets_more_go(
    policies: tuple[KeepPolicy, ...], newest_ms: int, data: st.DataObject
) -> None:
    changed = data.draw(st.integers(0, len(policies) - 1))
    rules = policies[changed].rules
    if not rules:
        return
    number, keep = data.draw(st.integers(0, len(rules) - 1)), data.draw(_KEEPS)
    longer = KeepRule(rules[number].scope, keep)
    if longer.days is not None and (rules[number].days is None or longer.days < rules[number].days):
        return
    new = replace(policies[changed], rules=(*rules[:number], longer, *rules[number + 1 :]))
    before = goes_at_ms(policies, ORDERS, newest_ms)
    after = goes_at_ms((*policies[:changed], new, *policies[changed + 1 :]), ORDERS, newest_ms)
    assert after is None or (before is not None and after >= before)


@given(_histories(), _NEWEST)
def test_at_that_moment_every_policy_of_the_day_before_takes_it_and_a_moment_earlier_one_does_not(
    policies: tuple[KeepPolicy, ...], newest_ms: int
) -> None:
    def is_taken(at_ms: int) -> bool:
        ends = [*(following.since_ms for following in policies[1:]), None]
        in_force = [p for p, end in zip(policies, ends, strict=True) if end is None or end + GRACE_MS > at_ms]
        if policies[0].since_ms + GRACE_MS > at_ms:
            return False
        return all((due := p.due_ms(ORDERS, newest_ms)) is not None and due <= at_ms for p in in_force)

    at_ms = goes_at_ms(policies, ORDERS, newest_ms)
    if at_ms is None:
        assert not is_taken(NOW_MS + 100_000 * DAY_MS)
    else:
        assert is_taken(at_ms)
        assert not is_taken(at_ms - 1)
