from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.commands import Command, Text, commands_in
from storage_engine.core.jsonable import from_jsonable, to_jsonable, to_recorded
from storage_engine.exceptions import BadInputError
from storage_engine.model.plan import Cause, Decision, LogPlan, Plan, PlanRequest, Reason, Trigger, Urgency
from storage_engine.model.settings.policy import Policy
from storage_engine.model.store import FileFacts, Segment, SegmentState

facts = st.builds(
    FileFacts,
    path=st.text(),
    device=st.integers(0),
    inode=st.integers(0),
    size_bytes=st.integers(0),
    mtime_ns=st.integers(),
    ctime_ns=st.integers(),
)


@st.composite
def log_plans(draw: st.DrawFn, log: str) -> LogPlan:
    offsets = sorted(draw(st.sets(st.integers(0), max_size=3)))
    return LogPlan(
        log,
        tuple(
            Decision(
                Segment(log, offset, draw(facts), draw(st.sampled_from(SegmentState))),
                draw(st.sampled_from(Reason)),
                draw(st.text()),
            )
            for offset in offsets
        ),
    )


plans = st.builds(
    Plan,
    store_root=st.text(),
    decided_at_ms=st.integers(),
    triggers=st.lists(
        st.builds(Trigger, cause=st.sampled_from(Cause), urgency=st.sampled_from(Urgency), detail=st.text()),
        max_size=2,
    ).map(tuple),
    logs=st.lists(st.text(), unique=True, max_size=3).flatmap(
        lambda names: st.tuples(*(log_plans(name) for name in names))
    ),
    notices=st.lists(st.text(), max_size=2).map(tuple),
)


@pytest.mark.slow
@given(plans)
def test_a_plan_comes_back_from_json_with_its_digest(plan: Plan) -> None:
    back = from_jsonable(Plan, json.loads(json.dumps(to_jsonable(plan))))
    assert back == plan
    assert back.digest == plan.digest


def test_what_is_recorded_keeps_the_commands_that_texts_name() -> None:
    notices = (Text("run ", Command("doctor"), " or ", Command("docs", "disk"), "."), "plain", Text("plain"))
    plan = Plan("/s", 0, (), (), notices)
    back = from_jsonable(Plan, json.loads(json.dumps(to_recorded(plan))))
    assert back == plan
    assert list(map(commands_in, back.notices)) == list(map(commands_in, notices))
    assert to_recorded(plan)["notices"][1:] == ["plain", "plain"]
    # For everybody else it is a text, as in journals of earlier releases.
    assert to_jsonable(plan)["notices"][0] == "run storage-engine doctor or storage-engine docs disk."
    assert from_jsonable(Plan, to_jsonable(plan)) == plan


def test_defaults_fill_missing_keys() -> None:
    assert from_jsonable(PlanRequest, {"manual": True}) == PlanRequest(manual=True)


@pytest.mark.parametrize(
    ("cls", "data", "message"),
    [
        (Policy, {"archive": "sometimes"}, "Policy.archive: expected one of 'required', 'off'"),
        (Policy, {"archiv": "off"}, "Policy: expected only the keys archive, lag_policy, "),
        (PlanRequest, {"manual": 1}, "PlanRequest.manual: expected a value of type bool, found 1"),
        (PlanRequest, {"max_segments": True}, "PlanRequest.max_segments: expected a value of type int"),
        (FileFacts, {"path": "x"}, "FileFacts: expected the keys device, inode"),
        (Plan, [], "Plan: expected an object"),
        (str, [], "str: expected a text, or the parts of one, found []"),
        (str, ["a", []], "expected a text, or the parts of one"),
        (str, ["a", ["b", "c", "d"]], "expected a text, or the parts of one"),
        (str, ["a", [1]], "expected a text, or the parts of one"),
    ],
)
def test_bad_data_is_refused_by_key(cls: Any, data: Any, message: str) -> None:
    with pytest.raises(BadInputError, match=re.escape(message)):
        from_jsonable(cls, data)
