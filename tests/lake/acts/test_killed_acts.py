"""An act whose writer is killed at a durable operation is there once or not at all, and then recorded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from storage_engine.journal.journal import Journal
from storage_engine.lake.acts.act_files import Acts, read_acts, record_act
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.identity import read_mark
from storage_engine.model.keep.acts import (
    KeepDecision,
    decide_archive,
    decide_hold,
    decide_lift,
    decide_rule,
    policy_of,
)
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.retention.housekeeping.keeping import record_archive_rules
from tests.retention.kill_runner import Moment, count_durable_operations, not_killed
from tests.services.forks import in_child

Decide = Callable[[Acts], KeepDecision | None]

FIRST = partial(decide_hold, scope=Scope(topic="first"), reason="why")


def lift_first(acts: Acts) -> KeepDecision | None:
    return decide_lift(acts, acts[0].sha256)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "decide"),
    [
        pytest.param((), FIRST, id="the first hold", marks=pytest.mark.again),
        pytest.param(
            (FIRST,),
            partial(decide_rule, scope=Scope(topic="a*"), keep="30 days"),
            id="a rule",
            marks=pytest.mark.again,
        ),
        pytest.param((FIRST,), lift_first, id="a lift"),
    ],
)
def test_a_killed_writer_leaves_one_chain_and_the_next_one_goes_on(
    lake: Lake, tmp_path: Path, before: tuple[Decide, ...], decide: Decide
) -> None:
    for earlier in before:
        record_act(lake, earlier)
    policy = policy_of(read_acts(lake))
    shutil.copytree(tmp_path / "lake", tmp_path / "pristine")

    def record(kill_before: int | None) -> list[str]:
        done, at_step = count_durable_operations(None if kill_before is None else Moment("act", kill_before))
        at_step("act")
        record_act(open_lake(lake.config), decide)
        at_step("")
        return done

    status, operations = in_child(lambda: record(None))
    assert status == 0
    assert len(operations) >= 8
    recorded = set()
    for number in range(len(operations)):
        shutil.rmtree(tmp_path / "lake")
        shutil.copytree(tmp_path / "pristine", tmp_path / "lake")
        status, _ = in_child(lambda number=number: record(number))
        assert not_killed(status) == []
        left = read_acts(lake)
        recorded.add(len(left) - len(before))
        if len(left) == len(before):
            assert policy_of(left) == policy
        acts = record_act(lake, decide)
        assert len(acts) == len(before) + 1, operations[number]
        mark = read_mark(lake.segments())
        assert mark is not None
        assert mark.act == acts[-1].sha256
    assert recorded == {0, 1}


@pytest.mark.slow
def test_a_rule_of_a_killed_command_is_in_both_places_or_archives(lake: Lake, tmp_path: Path) -> None:
    """Between act and journal the rule stands in the lake alone; the command run again records the rest."""
    scope, url = Scope(topic="a"), f"sqlite:///{tmp_path}/lake/journal.db"
    store_id = Journal(url).add_store("/s", "rocketmq").store_id
    shutil.copytree(tmp_path / "lake", tmp_path / "pristine")
    decide = partial(decide_archive, scope=scope, archives=False)

    def record(kill_before: int | None) -> list[str]:
        done, at_step = count_durable_operations(None if kill_before is None else Moment("rule", kill_before))
        at_step("rule")
        again = open_lake(lake.config)
        record_archive_rules(again, url, record_act(again, decide), scope)
        at_step("")
        return done

    status, operations = in_child(lambda: record(None))
    assert status == 0
    seen = set()
    for number in range(len(operations)):
        shutil.rmtree(tmp_path / "lake")
        shutil.copytree(tmp_path / "pristine", tmp_path / "lake")
        status, _ = in_child(lambda number=number: record(number))
        assert not_killed(status) == []
        acts, rules = read_acts(lake), Journal(url).archive_rules(store_id)
        assert {rule.rule for rule in rules} <= {act.sha256 for act in acts}
        seen.add((len(acts), len(rules)))
        record(None)
        (act,), (rule,) = read_acts(lake), Journal(url).archive_rules(store_id)
        assert rule.rule == act.sha256, operations[number]
        # What was recorded keeps its time.
        assert not rules or rules == (rule,)
    assert {(0, 0), (1, 0)} <= seen <= {(0, 0), (1, 0), (1, 1)}
