"""A plan comes back as it was, and takes no room where it says what the one before it said."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_engine.commands import Command, Text, commands_in
from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.journal import Journal, Run
from storage_engine.journal.tables.rows import pack, unpack
from storage_engine.model.plan import Cause, Decision, LogPlan, Plan, PlanRequest, Reason, Trigger, Urgency
from storage_engine.model.store import FileFacts, Segment, SegmentState


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Journal:
    return Journal(f"sqlite:///{path}")


def decision(
    number: int, reason: Reason = Reason.NOT_EXPIRED, written_ns: int = 5, log: str = "commitlog"
) -> Decision:
    facts = FileFacts(f"/s/{log}/{number:020d}", 1, number, 1, written_ns, written_ns)
    return Decision(Segment(log, number, facts, SegmentState.SEALED), reason, f"why {number}")


def plan(*decisions: Decision, at_ms: int = 7) -> Plan:
    trigger = Trigger(Cause.TIME_UP, Urgency.ORDINARY, f"it is {at_ms}")
    return Plan("/s", at_ms, (trigger,), (LogPlan("commitlog", decisions),), ("a notice",))


def before_logs(of_one_log: Plan) -> dict[str, Any]:
    """A plan as it was written when it was of one log."""
    (log,) = of_one_log.logs
    whole = to_jsonable(replace(of_one_log, logs=()))
    del whole["logs"]
    return {**whole, "log": log.log, "decisions": to_jsonable(log.decisions)}


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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_texts_of_a_plan_keep_the_commands_that_they_name(journal: Journal) -> None:
    detail = Text("it is refused: run ", Command("validate"))
    made = plan(decision(0), replace(decision(1), detail=detail))
    made = replace(made, notices=(Text("run ", Command("doctor")),))
    for key in ("first", "second"):
        back = recorded(journal, key, made)
        stored = journal.run(back.store_id, key).plan
        assert stored is not None
        assert stored == made
        assert list(map(commands_in, stored.notices)) == [(Command("doctor"),)]
        assert [commands_in(one.detail) for one in stored.decisions] == [(), (Command("validate"),)]
    changed = replace(decision(0), detail=Text(detail, " again"))
    back = recorded(journal, "third", plan(changed, *made.decisions[1:]))
    stored = journal.run(back.store_id, "third").plan
    assert stored is not None
    assert [commands_in(one.detail) for one in stored.decisions] == [(Command("validate"),)] * 2


def test_a_plan_of_several_logs_comes_back_and_is_stored_once(journal: Journal, path: Path) -> None:
    logs = tuple(
        LogPlan(name, tuple(decision(number, log=name) for number in range(count)))
        for name, count in (("orders-0", 3), ("orders-1", 0), ("orders-2", 2))
    )
    whole = replace(plan(), logs=logs)
    for key in ("first", "same"):
        assert recorded(journal, key, whole).plan == whole
        assert lists(path) == 1
    other = replace(
        whole, logs=(*logs[:2], LogPlan("orders-2", (decision(0, written_ns=6, log="orders-2"),)))
    )
    assert recorded(journal, "other", other).plan == other


def test_a_list_from_before_columns_is_gone_on_from(journal: Journal, path: Path) -> None:
    old = plan(*(decision(number) for number in range(20)))
    run = recorded(journal, "old", old)
    rows = zlib.compress(json.dumps(to_jsonable(old.decisions)).encode())
    head = {"store_root": "/s", "log": "commitlog", "decided_at_ms": 7, "triggers": to_jsonable(old.triggers)}
    head |= {"notices": ["a notice"], "decisions_in": 1, "skip": 0, "count": 20, "changes": []}
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE storage_engine_plans SET decisions = ?", (rows,))
        connection.execute("UPDATE storage_engine_runs SET plan = ?", (json.dumps(head),))
    connection.close()
    assert journal.run(run.store_id, "old").plan == old
    assert recorded(journal, "new", old).plan == old
    assert lists(path) == 1


def test_a_plan_of_an_older_journal_is_read_and_gone_on_from(journal: Journal, path: Path) -> None:
    old = plan(decision(0), decision(1))
    run = recorded(journal, "old", old)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE storage_engine_schema SET version = 3")
        connection.execute("DROP TABLE storage_engine_plans")
        connection.execute("UPDATE storage_engine_runs SET plan = ?", (json.dumps(before_logs(old)),))
    connection.close()
    upgraded = Journal(f"sqlite:///{path}")
    assert upgraded.run(run.store_id, "old").plan == old
    assert recorded(upgraded, "new", old).plan == old


_FIRST = LogPlan("commitlog", (decision(0, Reason.EXPIRED, 6), decision(1)))
ONE = Plan("/s", 7, (), (_FIRST,), store_id="id", lineage=2)
TWO = replace(ONE, logs=(*ONE.logs, LogPlan("b", (decision(3, Reason.EXPIRED, log="b"),))))


ALWAYS = (
    "d59fd8bc5dd00b774e3a55c15597476f2bda1ee5601fcdeb6673f94c506ec9e0",
    "59356ec80c58b9b58f3dacf54f4f01d7bb2bf5b3a05f46d53d7dfa82e8524ae2",
    "f423bfb8ee68c471bae207a81a1e666f8a66598276f2d04866609fc9867f8bf0",
)


def beyond(one: Decision, end: int | None, *companions: str) -> Decision:
    """The decision on a segment that states its end and has files beside it."""
    found = tuple(replace(one.segment.facts, path=f"{one.segment.facts.path}{kind}") for kind in companions)
    return replace(one, segment=replace(one.segment, end=end, companions=found))


def of_first(planned: Plan, end: int | None, *companions: str) -> Plan:
    first, *others = planned.logs[0].decisions
    log = replace(planned.logs[0], decisions=(beyond(first, end, *companions), *others))
    return replace(planned, logs=(log, *planned.logs[1:]))


def test_segments_of_one_file_are_stored_and_digested_as_they_always_were() -> None:
    """Waivers and runs in flight name these digests; unequal bytes would store each list once more."""
    assert (
        ONE.digest,
        TWO.digest,
        hashlib.sha256(zlib.decompress(pack(TWO.decisions))).hexdigest(),
    ) == ALWAYS


@pytest.mark.parametrize("planned", [ONE, TWO], ids=["one", "two"])
def test_ends_and_companions_are_in_the_digest(planned: Plan) -> None:
    plans = [
        planned,
        of_first(planned, 5),
        of_first(planned, 6),
        of_first(planned, None, ".count"),
        of_first(planned, None, ".index"),
        of_first(planned, 5, ".count"),
        of_first(planned, 5, ".count", ".index"),
    ]
    assert len({one.digest for one in plans}) == len(plans)
    # Of which lineage it is counts as well, as in a plan of several logs.
    assert replace(plans[1], lineage=3).digest != plans[1].digest


_beyond = st.builds(
    lambda number, end, kinds: beyond(decision(number), end, *kinds),
    st.integers(0, 30),
    st.none() | st.integers(30, 99),
    st.lists(st.sampled_from([".count", ".index"]), unique=True),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(_beyond, max_size=5))
def test_ends_and_companions_come_back(decisions: list[Decision]) -> None:
    assert unpack(pack(decisions)) == decisions
