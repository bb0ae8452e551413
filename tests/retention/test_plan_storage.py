"""A plan comes back as it was, and takes no room where it says what the one before it said."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_engine.model.jsonable import to_jsonable
from storage_engine.model.plan import Cause, Decision, Plan, PlanRequest, Reason, Trigger, Urgency
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention.journal import Journal, Run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Journal:
    return Journal(f"sqlite:///{path}")


def decision(number: int, reason: Reason = Reason.NOT_EXPIRED, written_ns: int = 5) -> Decision:
    facts = FileFacts(f"/s/commitlog/{number:020d}", 1, number, 1, written_ns, written_ns)
    return Decision(Segment("commitlog", number, facts, SegmentState.SEALED), reason, f"why {number}")


def plan(*decisions: Decision, at_ms: int = 7) -> Plan:
    trigger = Trigger(Cause.TIME_UP, Urgency.ORDINARY, f"it is {at_ms}")
    return Plan("/s", "commitlog", at_ms, (trigger,), decisions, ("a notice",))


def recorded(journal: Journal, key: str, planned: Plan) -> Run:
    run = journal.begin_run(journal.add_store("/s", "rocketmq").store_id, key, PlanRequest())
    return journal.record_plan(run, planned, {})


def lists(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        (count,) = connection.execute("SELECT count(*) FROM storage_engine_plans").fetchone()
    connection.close()
    return int(count)


_decisions = st.lists(
    st.builds(
        decision,
        st.integers(0, 30),
        st.sampled_from([Reason.NOT_EXPIRED, Reason.EXPIRED, Reason.ACTIVE]),
        st.integers(5, 6),
    ),
    unique_by=lambda one: one.segment.base_offset,
).map(lambda found: sorted(found, key=lambda one: one.segment.base_offset))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=st.lists(_decisions, min_size=1, max_size=6))
def test_every_plan_of_a_store_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, plans: list[list[Decision]]
) -> None:
    journal = Journal(f"sqlite:///{tmp_path_factory.mktemp('journal') / 'journal.db'}")
    made = {f"r{i}": plan(*decisions, at_ms=i) for i, decisions in enumerate(plans)}
    for key, one in made.items():
        assert recorded(journal, key, one).plan == one
    store_id = journal.add_store("/s", "rocketmq").store_id
    assert {key: journal.run(store_id, key).plan for key in made} == made
    assert {key: journal.run(store_id, key).plan_digest for key in made} == {
        key: one.digest for key, one in made.items()
    }


def test_a_log_that_grows_and_is_cut_shares_its_decisions(journal: Journal, path: Path) -> None:
    whole = [decision(number) for number in range(100)]
    for key, decisions in {
        "first": whole,
        "same": whole,
        "written to": [*whole[:-1], decision(99, Reason.ACTIVE, 6)],
        "grown": [*whole, decision(100)],
        "cut": whole[3:],
    }.items():
        assert recorded(journal, key, plan(*decisions)).plan == plan(*decisions)
        assert lists(path) == 1, key
    other = [replace(one, detail="another") for one in whole]
    assert recorded(journal, "other", plan(*other)).plan == plan(*other)
    assert lists(path) == 2


def test_a_plan_of_an_older_journal_is_read_and_gone_on_from(journal: Journal, path: Path) -> None:
    old = plan(decision(0), decision(1))
    run = recorded(journal, "old", old)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE storage_engine_schema SET version = 3")
        connection.execute("DROP TABLE storage_engine_plans")
        connection.execute("UPDATE storage_engine_runs SET plan = ?", (json.dumps(to_jsonable(old)),))
    connection.close()
    upgraded = Journal(f"sqlite:///{path}")
    assert upgraded.run(run.store_id, "old").plan == old
    assert recorded(upgraded, "new", old).plan == old
