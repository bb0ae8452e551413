"""Acts: their bytes, their chain, and the policies that come of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import BadInputError
from storage_engine.model.keep.acts import (
    Act,
    ActKind,
    KeepDecision,
    RecordedAct,
    decide_hold,
    decide_lift,
    decide_rule,
    decode_act,
    order_acts,
    policies_of,
    sha256_of_act,
)
from storage_engine.model.keep.keep_rules import KeepRule, Scope

KEEP = KeepDecision(ActKind.KEEP, rules=(KeepRule(Scope(topic="a*"), "30 days"),))
HOLD = KeepDecision(ActKind.HOLD, scope=Scope(topic="orders"), reason="case 7")


def chain(*decisions: KeepDecision) -> tuple[RecordedAct, ...]:
    acts: list[RecordedAct] = []
    for number, decision in enumerate(decisions):
        act = Act(number, acts[-1].sha256 if acts else "", "lake", "ann", "host", number, decision)
        acts.append(RecordedAct(sha256_of_act(act.encode()), act))
    return tuple(acts)


def test_an_act_comes_back_from_its_bytes() -> None:
    for recorded in chain(KEEP, HOLD, KeepDecision(ActKind.LIFT, lifts="x")):
        assert decode_act(recorded.act.encode(), "here") == recorded.act


def test_the_bytes_of_an_act_never_change() -> None:
    assert chain(KEEP)[0].sha256 == "3f71009e4982d8f7eae7dae176d56ab41958385292dea746ee4611649c798b4a"


@pytest.mark.parametrize(
    "decision", [{"kind": "expire"}, {"kind": "hold"}, {"kind": "lift"}, {"kind": "keep", "lifts": "x"}]
)
def test_what_this_release_does_not_know_is_no_act(decision: dict[str, object]) -> None:
    data = json.loads(chain(KEEP)[0].act.encode()) | {"decision": decision}
    with pytest.raises(BadInputError, match="here"):
        decode_act(json.dumps(data).encode(), "here")


@given(st.permutations(chain(KEEP, HOLD, KEEP, KeepDecision(ActKind.LIFT, lifts="x"))))
def test_acts_come_in_the_order_of_their_chain(acts: list[RecordedAct]) -> None:
    ordered = order_acts({recorded.sha256: recorded.act for recorded in acts}, acts[0].sha256)
    assert [recorded.act.number for recorded in ordered] == [0, 1, 2, 3]


def test_an_act_counts_before_it_is_named() -> None:
    acts = chain(KEEP, HOLD)
    found = {recorded.sha256: recorded.act for recorded in acts}
    assert order_acts(found, acts[0].sha256) == order_acts(found, "") == acts


def test_what_is_no_one_chain_is_told() -> None:
    acts = chain(KEEP, HOLD, KEEP)
    found = {recorded.sha256: recorded.act for recorded in acts}
    other = chain(HOLD)[0]
    with pytest.raises(ValueError, match=r"expected one act after the beginning, found .* and "):
        order_acts({**found, other.sha256: other.act}, "")
    with pytest.raises(ValueError, match=f"expected the act {acts[1].sha256}, which .* follows, found none"):
        order_acts({sha256: act for sha256, act in found.items() if sha256 != acts[1].sha256}, "")
    with pytest.raises(
        ValueError, match=f"expected the act {acts[2].sha256}, .*, found acts up to {acts[1].sha256}"
    ):
        order_acts({recorded.sha256: recorded.act for recorded in acts[:2]}, acts[2].sha256)
    with pytest.raises(ValueError, match="found acts up to none"):
        order_acts({}, acts[2].sha256)


def test_each_act_begins_a_policy() -> None:
    acts = chain(KEEP, HOLD, KeepDecision(ActKind.KEEP))
    lifted = chain(KEEP, HOLD, KeepDecision(ActKind.KEEP), KeepDecision(ActKind.LIFT, lifts=acts[1].sha256))
    policies = policies_of(lifted)
    assert [policy.version for policy in policies] == [recorded.sha256 for recorded in lifted]
    assert [len(policy.rules) for policy in policies] == [1, 1, 0, 0]
    assert [[hold.reason for hold in policy.holds] for policy in policies] == [[], ["case 7"], ["case 7"], []]
    assert policies[1].holds[0].hold_id == acts[1].sha256


def test_a_decision_that_is_in_force_is_not_recorded_again() -> None:
    acts = chain(KEEP, HOLD)
    assert decide_rule(acts, Scope(topic="a*"), "30 days") is None
    assert decide_hold(acts, Scope(topic="orders"), "case 7") is None
    assert decide_rule(acts, Scope(topic="b"), None) is None
    changed = decide_rule(acts, Scope(topic="a*"), "40 days")
    assert changed == KeepDecision(ActKind.KEEP, rules=(KeepRule(Scope(topic="a*"), "40 days"),))
    added = decide_rule(acts, Scope(topic="b"), "1 year")
    assert added is not None
    assert len(added.rules) == 2
    assert decide_rule(acts, Scope(topic="a*"), None) == KeepDecision(ActKind.KEEP)
    assert decide_hold(acts, Scope(topic="orders"), "case 8") is not None


def test_a_hold_is_lifted_once_by_the_beginning_of_its_id() -> None:
    acts = chain(KEEP, HOLD)
    hold_id = acts[1].sha256
    assert decide_lift(acts, hold_id[:12]) == KeepDecision(ActKind.LIFT, lifts=hold_id)
    assert decide_lift(chain(KEEP, HOLD, KeepDecision(ActKind.LIFT, lifts=hold_id)), hold_id) is None
    for wrong in ("", acts[0].sha256, "nothing"):
        with pytest.raises(
            BadInputError, match=rf"expected the id of a hold \({hold_id[:12]}\).*Nothing was changed"
        ):
            decide_lift(acts, wrong)
