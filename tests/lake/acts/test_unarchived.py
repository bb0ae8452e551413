"""What may go without a copy: only what each lake's rule and the journal's record of it permit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from storage_engine.core.clock import DAY_MS
from storage_engine.lake.acts.unarchived import NO_PERMITS, WAIT_MS, ArchivePermits, permitting_rule
from storage_engine.model.keep.keep_rules import ArchiveRule, Scope, Stream, archive_rule_for

NOW_MS = 100 * DAY_MS
NAMES = st.sampled_from(["a", "ab", "b", "c-0"])
PATTERNS = st.sampled_from(["*", "a", "a*", "?", "ab", "b", "c-0"])
AGES_MS = st.sampled_from([-1, 0, 1, WAIT_MS - 1, WAIT_MS, WAIT_MS + 1, 50 * DAY_MS])
RULES = st.builds(
    ArchiveRule,
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.builds(Scope, PATTERNS, PATTERNS, PATTERNS),
    st.booleans(),
    st.just("anna"),
    AGES_MS.map(lambda age_ms: NOW_MS - age_ms),
)
LAKES = st.lists(
    st.one_of(st.none(), st.lists(RULES, max_size=5, unique_by=lambda it: it.scope)), min_size=1, max_size=2
)
STREAMS = st.builds(Stream, st.just("id"), st.tuples(NAMES), NAMES, NAMES, st.just(False))


def all_recorded(lakes: Sequence[Sequence[ArchiveRule] | None]) -> dict[str, int]:
    return {rule.rule_id: rule.at_ms for rules in lakes for rule in rules or ()}


@given(STREAMS, LAKES, st.data())
def test_every_lake_has_to_permit_it_by_a_rule_that_is_recorded_and_old(
    stream: Stream, lakes: list[list[ArchiveRule] | None], data: st.DataObject
) -> None:
    recorded = {
        rule_id: data.draw(AGES_MS.map(lambda age_ms: NOW_MS - age_ms))
        for rule_id in all_recorded(lakes)
        if data.draw(st.booleans())
    }
    applying = [None if rules is None else archive_rule_for(rules, stream) for rules in lakes]
    permitted = all(
        rule is not None
        and not rule.archives
        and rule.rule_id in recorded
        and NOW_MS - recorded[rule.rule_id] >= WAIT_MS
        and NOW_MS - rule.at_ms >= WAIT_MS
        for rule in applying
    )
    assert permitting_rule(stream, lakes, recorded, NOW_MS) == (applying[0] if permitted else None)
    # What takes knowledge away never permits more.
    if not permitted:
        for number in range(len(lakes)):
            unknown = [None if at == number else rules for at, rules in enumerate(lakes)]
            assert permitting_rule(stream, unknown, recorded, NOW_MS) is None
        assert permitting_rule(stream, lakes, {}, NOW_MS) is None


@given(STREAMS, RULES, st.data())
def test_one_doubt_is_enough(stream: Stream, rule: ArchiveRule, data: st.DataObject) -> None:
    scope = Scope(*(data.draw(st.sampled_from(["*", name])) for name in (stream.topic, stream.log, "id")))
    rule = replace(rule, archives=False, at_ms=NOW_MS - WAIT_MS, scope=scope)
    recorded = {rule.rule_id: NOW_MS - WAIT_MS}
    assert permitting_rule(stream, [[rule]], recorded, NOW_MS) == rule
    assert permitting_rule(stream, [[rule]], recorded, NOW_MS - 1) is None
    assert permitting_rule(stream, [[rule], None], recorded, NOW_MS) is None
    assert permitting_rule(stream, [[rule], []], recorded, NOW_MS) is None
    assert permitting_rule(stream, [], recorded, NOW_MS) is None
    other = data.draw(st.text("0123456789abcdef", min_size=64, max_size=64))
    assume(other != rule.rule_id)
    assert permitting_rule(stream, [[rule]], {other: 0}, NOW_MS) is None
    assert permitting_rule(stream, [[replace(rule, rule_id=other)]], recorded, NOW_MS) is None
    assert permitting_rule(stream, [[replace(rule, at_ms=rule.at_ms + 1)]], recorded, NOW_MS) is None
    # A topic of the broker's own, also where a rule names it in full, and what has no topic.
    named = replace(rule, scope=replace(rule.scope, topic=stream.topic))
    assert permitting_rule(replace(stream, is_system=True), [[named]], recorded, NOW_MS) is None
    assert permitting_rule(replace(stream, topic=""), [[rule]], recorded, NOW_MS) is None
    # An exception that is as specific archives.
    exception = replace(rule, rule_id=other, archives=True)
    assert permitting_rule(stream, [[rule, exception]], recorded, NOW_MS) is None


@given(
    st.sampled_from(["kafka", "rocketmq"]), st.sampled_from(["a-0", "__consumer_offsets-3", "commitlog", "a"])
)
def test_only_a_log_of_one_topic_goes_whole(broker: str, log: str) -> None:
    rule = ArchiveRule("f" * 64, Scope(topic="*"), False, "anna", 0)
    permits = ArchivePermits("id", ("s",), broker, ((rule,),), {rule.rule_id: 0}, NOW_MS)
    assert bool(permits.clause_of_log(log)) is (broker == "kafka" and log == "a-0")
    assert NO_PERMITS.clause_of_log(log) == ""
