"""Which rule says how long a stream is kept, and what a hold covers."""

from __future__ import annotations

import pytest

from storage_engine.brokers import find_broker
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.model.keep.keep_rules import Hold, KeepRule, Scope, Stream, keep_days, rule_for, with_rule


def stream(
    topic: str, *, log: str = "commitlog", names: tuple[str, ...] = ("main",), broker: str = "rocketmq"
) -> Stream:
    return Stream("8c1d", names, log, topic, find_broker(broker).topics.is_system(topic))


def rules(**keeps: str) -> tuple[KeepRule, ...]:
    return tuple(KeepRule(Scope(topic=topic.replace("any", "*")), keep) for topic, keep in keeps.items())


@pytest.mark.parametrize(
    ("keep", "days"),
    [
        ("forever", None),
        ("0 days", 0),
        ("1 day", 1),
        ("30 days", 30),
        ("7 years", 2562),
        ("100 years", 36_600),
    ],
)
def test_a_keep_is_a_number_of_days_and_a_year_is_never_cut_short(keep: str, days: int | None) -> None:
    assert keep_days(keep) == days


@pytest.mark.parametrize(
    "keep", ["", "30", "30 d", "-1 days", "1.5 days", "030 days", "101 years", "never", "30  days"]
)
def test_what_is_no_keep_is_refused(keep: str) -> None:
    with pytest.raises(
        BadInputError, match=r"expected forever, a number of days .* found .*Nothing was changed"
    ):
        KeepRule(Scope(), keep)


@pytest.mark.parametrize("pattern", ["", " a", "a\n", "x" * 256])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadInputError, match="expected 1 to 255 characters"):
        Scope(topic=pattern)


@pytest.mark.parametrize(
    ("topic", "keep"),
    [
        ("audit", "7 years"),
        ("audit-log", "1 year"),
        ("orders", "30 days"),
        ("debug-1", "0 days"),
        ("[x]", "3 days"),
    ],
)
def test_the_most_specific_rule_wins(topic: str, keep: str) -> None:
    given = rules(
        **{"any": "30 days", "auditany": "1 year", "audit": "7 years", "debug-?": "0 days", "[x]": "3 days"}
    )
    for order in (given, given[::-1]):
        rule = rule_for(order, stream(topic))
        assert rule is not None
        assert rule.keep == keep


def test_a_topic_counts_before_a_log_and_a_log_before_a_store() -> None:
    by_store = KeepRule(Scope(store="main-store-of-all"), "1 day")
    by_log = KeepRule(Scope(log="commit*"), "2 days")
    by_topic = KeepRule(Scope(topic="o*"), "3 days")
    orders = stream("orders", names=("old", "main-store-of-all"))
    assert rule_for((by_store, by_log, by_topic), orders) == by_topic
    assert rule_for((by_store, by_log), orders) == by_log
    assert rule_for((by_store,), orders) == by_store


def test_of_two_alike_the_one_that_keeps_longer_wins() -> None:
    assert rule_for(rules(aany="1 day", anyb="forever"), stream("ab")).keep == "forever"
    assert rule_for(rules(aany="1 year", anyb="365 days"), stream("ab")).keep == "1 year"


@pytest.mark.parametrize(
    ("broker", "topic"),
    [
        ("rocketmq", "SCHEDULE_TOPIC_XXXX"),
        ("rocketmq", "RMQ_SYS_TRANS_HALF_TOPIC"),
        ("rocketmq", "rmq_sys_wheel_timer"),
        ("kafka", "__consumer_offsets"),
        ("kafka", "__cluster_metadata"),
        ("toy", "anything"),
    ],
)
def test_a_wildcard_matches_no_topic_of_the_brokers_own(
    broker: str, topic: str, request: pytest.FixtureRequest
) -> None:
    if broker == "toy":
        # Whoever doesn't tell which topics are its own has none that a wildcard matches.
        from tests.toy_broker.toy_broker import BROKER

        own = Stream("8c1d", (), "log", topic, BROKER.topics.is_system(topic))
    else:
        own = stream(topic, broker=broker)
    assert rule_for(rules(**{"any": "0 days", f"{topic[:3]}any": "0 days"}), own) is None
    assert rule_for((KeepRule(Scope(topic=topic), "1 day"),), own) is not None


@pytest.mark.parametrize(
    ("broker", "topic"), [("rocketmq", "%RETRY%group"), ("rocketmq", "%DLQ%group"), ("kafka", "_own")]
)
def test_other_topics_are_no_topics_of_the_brokers_own(broker: str, topic: str) -> None:
    assert not find_broker(broker).topics.is_system(topic)


def test_only_a_rule_for_every_topic_applies_to_rows_without_one() -> None:
    for pattern, applies in (("*", True), ("?*", False), ("orders*", False)):
        assert KeepRule(Scope(topic=pattern), "0 days").applies_to(stream("")) == applies


def test_a_rule_names_a_store_by_its_newest_name_and_a_hold_by_any() -> None:
    renamed = stream("orders", names=("first", "second"))
    for name, applies in (("first", False), ("second", True), ("8c1d", True), ("8c*", True)):
        assert KeepRule(Scope(store=name), "1 day").applies_to(renamed) == applies
        assert Hold("", Scope(store=name), "why", "ann", 0).covers(renamed)


def test_a_hold_covers_own_topics_and_rows_without_a_topic() -> None:
    hold = Hold("", Scope(topic="orders*", log="commitlog"), "why", "ann", 0)
    assert hold.covers(stream("orders-1"))
    assert hold.covers(stream(""))
    assert not hold.covers(stream("others"))
    assert not hold.covers(stream("orders-1", log="other"))
    assert Hold("", Scope(topic="RMQ_*"), "why", "ann", 0).covers(stream("RMQ_SYS_TRANS_HALF_TOPIC"))


def test_a_rule_takes_the_place_of_that_of_the_same_scope() -> None:
    given = with_rule((), Scope(topic="a"), "1 day")
    given = with_rule(given, Scope(topic="b"), "2 days")
    given = with_rule(given, Scope(topic="a"), "3 days")
    assert {rule.scope.topic: rule.keep for rule in given} == {"a": "3 days", "b": "2 days"}
    assert with_rule(given, Scope(topic="a"), None) == (KeepRule(Scope(topic="b"), "2 days"),)


def test_rules_come_back_from_json_and_nothing_else_is_taken_for_one() -> None:
    rule = KeepRule(Scope(topic="a*"), "30 days")
    assert from_jsonable(KeepRule, to_jsonable(rule)) == rule
    for wrong in ({}, {"scope": {}}, {"scope": {}, "keep": 30}, {"scope": {"topics": "a"}, "keep": "1 day"}):
        with pytest.raises(BadInputError):
            from_jsonable(KeepRule, wrong)
