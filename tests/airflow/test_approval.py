"""The task that asks a second person: what it asks, and which answers it records."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.hitl import ApprovalOperator

from storage_engine import cycle
from storage_engine.assets import cleanup_due, store_alias
from storage_engine.hooks.configured_stores import ConfiguredStore
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.journal.journal import Journal, Step
from storage_engine.model.plan import PlanRequest, Said
from storage_engine.operators.approval import StorageEngineApprovalOperator
from storage_engine.operators.base import starter
from storage_engine.operators.retention import StorageEngineReleaseOperator
from storage_engine.operators.task_groups import cleanup_tasks
from storage_engine.retention import steps
from storage_engine.retention.plan.cleanup_due import look_for_due
from storage_engine.retention.proof import approvals
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.sensors.cleanup import StorageEngineDueSensor

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

STORE = "storage_engine_default"
APPROVE, REJECT = ApprovalOperator.APPROVE, ApprovalOperator.REJECT
ALL_HOURS = ";".join(str(hour) for hour in range(24))
BOB = {"id": "2", "name": "bob"}


class AskedError(Exception):
    """In place of waiting."""


class Pushed:
    """A task instance that keeps what is pushed."""

    id, map_index, dag_id, run_id, task_id = "id", -1, "dag", "one", "approve"

    def __init__(self) -> None:
        self.pushed: list[Any] = []

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.pushed.append(value)


def context_of(run_type: str = "manual", name: str | None = "ann") -> dict[str, Any]:
    run = SimpleNamespace(dag_id="dag", run_id="one", run_type=run_type, triggering_user_name=name)
    ti = Pushed()
    return {"dag_run": run, "ti": ti, "task_instance": ti}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ApprovalOperator]:
    """What was asked; the task ends there instead of waiting."""
    found: list[ApprovalOperator] = []

    def ask(operator: ApprovalOperator, context: Any) -> None:
        found.append(operator)
        raise AskedError

    monkeypatch.setattr(ApprovalOperator, "execute", ask)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow")
    return found


@pytest.fixture
def store(store_connection: Callable[..., Any]) -> Callable[..., ManagedStore]:
    """A store with a plan of so many segments that is archived: store(context, policy, segments)."""

    def make(context: dict[str, Any], policy: str = "always", segments: int = 2) -> ManagedStore:
        connection = store_connection(STORE, extra={"approval": policy}, deleteWhen=ALL_HOURS)
        now = time.time()
        for index, path in enumerate(sorted((connection.root / "commitlog").iterdir())):
            os.utime(path, (now - 864_000 * (index < segments),) * 2)
        managed: ManagedStore = StorageEngineHook(STORE).managed_store
        steps.make_plan(managed, "dag/one", PlanRequest(), starter=starter(context))
        cycle.consumer_lag(cycle.Cleanup(managed, "dag/one"))
        steps.archive(managed, "dag/one", steps.archive_jobs(managed, "dag/one"))
        return managed

    return make


def approval(**arguments: Any) -> StorageEngineApprovalOperator:
    operator = StorageEngineApprovalOperator(task_id="approve", storage_engine_conn_id=STORE, **arguments)
    object.__setattr__(operator, "skip", lambda *_, **__: None)
    return operator


def asks(operator: StorageEngineApprovalOperator, context: dict[str, Any]) -> None:
    context["task"] = operator
    with pytest.raises(AskedError):
        operator.execute(context)


def answer(user: dict[str, str] | None, option: str = APPROVE, *, after_s: int = 0) -> dict[str, Any]:
    at = datetime.now(UTC) + timedelta(seconds=after_s)
    return {"chosen_options": [option], "params_input": {}, "responded_at": at, "responded_by_user": user}


def releases(context: dict[str, Any]) -> list[int]:
    operator = StorageEngineReleaseOperator(task_id="release", storage_engine_conn_id=STORE)
    deleted: list[int] = operator.execute(context)["deleted_offsets"]
    return deleted


def test_it_asks_with_what_a_second_person_has_to_know(store: Any, asked: list[ApprovalOperator]) -> None:
    context = context_of()
    managed = store(context, segments=5)
    operator = approval(assigned_users=[BOB])
    asks(operator, context)
    (question,) = asked
    assert question.subject == f"{STORE}: delete 5 segments, 5.0 MiB?"
    assert question.body is not None
    for told in (
        "Asked because the store's policy is approval: always",
        "Reasons: 5 expired.",
        "unread messages of cg_orders",
        "In the lake with proof: 5 segments.",
        steps.recorded_plan(managed, "dag/one").digest,
    ):
        assert told in question.body
    assert (question.defaults, question.options) == ([REJECT], [APPROVE, REJECT])
    assert question.response_timeout == timedelta(hours=12)
    found = Journal(managed.journal_url)
    (record,) = found.all_stores()
    (opened,) = approvals.open_questions(found, record.store_id, 0)
    assert opened.question.link.startswith("http://airflow/dags/dag/runs/one/tasks/approve/required_actions")


def test_an_airflow_without_an_address_asks_too(
    store: Any, asked: list[ApprovalOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW__API__BASE_URL")
    context = context_of()
    managed = store(context)
    asks(approval(), context)
    journal = Journal(managed.journal_url)
    (opened,) = approvals.open_questions(journal, journal.all_stores()[0].store_id, 0)
    assert opened.question.link.startswith("/dags/dag/runs/one/tasks/approve/required_actions")


def test_a_long_question_is_cut_with_a_link(
    store: Any, asked: list[ApprovalOperator], monkeypatch: Any
) -> None:
    from storage_engine.retention.report import report_text

    monkeypatch.setattr(report_text, "_QUESTION_BYTES", 700)
    context = context_of()
    store(context)
    asks(approval(), context)
    assert asked[0].body is not None
    assert len(asked[0].body.encode()) <= 700
    assert "… all of it: storage-engine runs dag/one, and http://airflow/" in asked[0].body


@pytest.mark.parametrize("policy", ["none", "forced"])
def test_where_the_policy_asks_nobody_it_returns_at_once(
    store: Any, asked: list[ApprovalOperator], policy: str
) -> None:
    context = context_of()
    store(context, policy)
    assert approval().execute(context) is None
    assert asked == []
    assert len(releases(context)) == 2


def test_approved_by_another_user_the_plan_goes_and_once_is_enough(store: Any, asked: Any) -> None:
    context = context_of()
    store(context)
    operator = approval(assigned_users=[BOB])
    asks(operator, context)
    with pytest.raises(AirflowFailException, match="nobody has approved it"):
        releases(context)
    told = operator.execute_complete(context, answer(BOB))
    assert (told["said"], told["person"]["name"]) == ("approved", "bob")
    # Killed between the record and its own end, the task asks nobody again.
    assert approval(assigned_users=[BOB]).execute(context) is None
    assert len(asked) == 1
    assert len(releases(context)) == 2


@pytest.mark.parametrize("kind", ["scheduled", "asset_triggered"])
def test_a_run_that_nobody_began_takes_any_approver(store: Any, asked: Any, kind: str) -> None:
    context = context_of(kind, None)
    store(context)
    operator = approval()
    asks(operator, context)
    operator.execute_complete(context, answer(BOB))
    assert len(releases(context)) == 2


@pytest.mark.parametrize(
    ("event", "said", "why"),
    [
        (lambda: answer(BOB, REJECT), Said.REJECTED, ""),
        (lambda: answer({"id": "1", "name": "ann"}), Said.REFUSED, "isn't certainly another person"),
        (lambda: answer({"id": "9", "name": "ANN"}), Said.REFUSED, "isn't certainly another person"),
        (lambda: answer({"id": "3", "name": "eve"}), Said.REFUSED, "isn't on the list"),
        (lambda: answer({"id": "Anonymous", "name": "Anonymous"}), Said.REFUSED, "one admin"),
        (lambda: answer(None, REJECT), Said.TIMED_OUT, "nobody answered"),
        (lambda: answer(None, APPROVE), Said.TIMED_OUT, "nobody answered"),
        (lambda: answer(BOB, after_s=43_300), Said.TIMED_OUT, "answered after"),
    ],
)
def test_any_other_answer_is_recorded_and_nothing_goes(
    store: Any, asked: Any, event: Callable[[], dict[str, Any]], said: Said, why: str
) -> None:
    context = context_of()
    managed = store(context)
    operator = approval(assigned_users=[BOB, {"id": "1", "name": "ann"}, {"id": "9", "name": "ANN"}])
    asks(operator, context)
    skipped: list[Any] = []
    object.__setattr__(operator, "skip", lambda *_, **told: skipped.append(told))
    object.__setattr__(operator, "downstream_task_ids", {"release"})
    context["task"] = SimpleNamespace(get_direct_relatives=lambda **_: [SimpleNamespace(is_teardown=False)])
    operator.execute_complete(context, event())
    (pushed,) = context["ti"].pushed
    assert (pushed["said"], why in pushed["detail"], len(skipped)) == (said.value, True, 1)
    with pytest.raises(AirflowFailException):
        releases(context)
    found = look_for_due(managed)
    assert (found.is_refused, found.is_asked, found.waiting) == (True, False, ())


def test_who_left_the_list_after_the_question_may_not_approve(store: Any, asked: Any) -> None:
    context = context_of()
    store(context)
    asks(approval(assigned_users=[BOB]), context)
    later = approval(assigned_users=[{"id": "4", "name": "dan"}])
    assert later.execute_complete(context, answer(BOB))["said"] == "refused"


def test_of_a_run_whose_starter_airflow_does_not_tell_nobody_is_a_second_person(
    store: Any, asked: Any
) -> None:
    context = context_of("manual", None)
    store(context)
    operator = approval()
    asks(operator, context)
    assert operator.execute_complete(context, answer(BOB))["said"] == "refused"


def test_without_a_question_no_answer_is_recorded(store: Any) -> None:
    """As where somebody else's event reached the task."""
    context = context_of()
    managed = store(context)
    with pytest.raises(Exception, match="expected a question about its plan"):
        approval().execute_complete(context, answer(BOB))
    found = Journal(managed.journal_url)
    (record,) = found.all_stores()
    assert {event.subject for event in found.store_events(record.store_id, Step.APPROVAL)} == {
        "policy",
        "starter",
    }


def test_what_falls_due_while_a_run_waits_is_told_and_the_same_plan_is_not(store: Any, asked: Any) -> None:
    context = context_of()
    managed = store(context)
    asks(approval(), context)
    found = look_for_due(managed)
    assert (found.waiting, found.is_asked) == (("dag/one",), True)
    more = replace(managed, overrides={**managed.overrides, "fileReservedTime": "0"})
    found = look_for_due(more)
    assert (found.waiting, found.is_asked) == (("dag/one",), False)
    assert found.deletes > 2


def test_a_dag_asks_where_its_store_names_approvers(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag  # type: ignore[no-redef,attr-defined]

    listed = [
        {"conn_id": "near"},
        {"conn_id": "far", "approvers": [BOB]},
        {"conn_id": "all", "approvers": []},
    ]
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", json.dumps(listed))
    for kind in ("retention", "forced_cleanup"):
        bag = DagBag(f"dags/storage_{kind}.py", load_op_links=False)
        assert bag.import_errors == {}
        near, far, all_users = (bag.dags[f"storage_{kind}__{name}"] for name in ("near", "far", "all"))
        assert (near.max_active_runs, "approve" in near.task_ids) == (1, False)
        assert far.max_active_runs > 1
        assert len(far.tasks) == len(near.tasks) + 1
        task = far.get_task("approve")
        assert (task.upstream_task_ids, task.downstream_task_ids) == ({"archive"}, {"release"})
        assert [dict(user) for user in task.assigned_users] == [BOB]
        assert all_users.get_task("approve").assigned_users is None
    assert len(cleanup_tasks(ConfiguredStore("near"), plan={})) == 8


@pytest.mark.parametrize(
    ("asked_too", "active", "is_told"),
    [
        (False, 0, True),
        (True, 0, True),
        (True, 1, False),
        (False, 1, True),
        (False, 2, False),
    ],
)
def test_the_sensor_tells_of_what_no_run_does(asked_too: bool, active: int, is_told: bool) -> None:
    """One run waits for a person: a run that isn't waiting, or waits with this very plan, is doing it."""
    sensor = StorageEngineDueSensor(task_id="sense", storage_engine_conn_id=STORE)
    task = SimpleNamespace(get_dr_count=lambda **_: active)
    told: list[Any] = []
    # An alias of Airflow 3.1 is no key of a dict.
    events: Any = MagicMock()
    events[store_alias(STORE)].add.side_effect = lambda asset, extra: told.append(asset)
    object.__setattr__(sensor, "outlets", [store_alias(STORE)])
    context: Any = {"ti": task, "outlet_events": events}
    waiting = () if asked_too else ("dag/one",)
    assert sensor._tell_of(context, cleanup_due(STORE), {}, "dag", waiting) == []
    assert bool(told) is is_told
