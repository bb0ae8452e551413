"""Sensors look once, then hand over to a trigger, and look again where the store is when it fires."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk.bases.operator import TriggerFailureReason
from airflow.sdk.exceptions import TaskDeferralError

from storage_engine.exceptions import StoreNotFoundError
from storage_engine.journal.journal import Journal
from storage_engine.sensors.cleanup import (
    StorageEngineCleanupSensor,
    StorageEngineDeleteWindowSensor,
    StorageEngineDiskLevelSensor,
    StorageEngineDueSensor,
)
from storage_engine.triggers.cleanup import CleanupCauseTrigger, DeleteWindowTrigger, DiskLevelTrigger

ALL_HOURS = ";".join(str(hour) for hour in range(24))
NEVER = "99"

SENSORS = [
    (StorageEngineDeleteWindowSensor, DeleteWindowTrigger),
    (StorageEngineDiskLevelSensor, DiskLevelTrigger),
    (StorageEngineCleanupSensor, CleanupCauseTrigger),
]


def sensor(kind: Any, conn_id: str = "a_store", **arguments: Any) -> Any:
    return kind(task_id="sense", storage_engine_conn_id=conn_id, **arguments)


def execute(task: Any) -> Any:
    return task.execute({})


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let every disk be this full, or unknown."""
    from storage_engine.model.disk import DiskUsage

    def set_level(percent: int | None) -> None:
        def usage(path: object) -> DiskUsage:
            return DiskUsage(str(path), percent, error="" if percent is not None else "not mounted")

        monkeypatch.setattr(DiskUsage, "of", usage)

    return set_level


@pytest.mark.slow
def test_an_open_window_ends_the_wait_at_once(store_connection: Any) -> None:
    store_connection(deleteWhen=ALL_HOURS)
    sensed = execute(sensor(StorageEngineDeleteWindowSensor))
    assert [trigger["cause"] for trigger in sensed["triggers"]] == ["time-up"]
    assert json.loads(json.dumps(sensed)) == sensed


@pytest.mark.parametrize(("kind", "trigger"), SENSORS)
def test_without_a_cause_the_wait_moves_to_the_triggerer(
    store_connection: Any, levels: Any, kind: Any, trigger: Any
) -> None:
    store_connection(deleteWhen=NEVER)
    levels(20)
    with pytest.raises(TaskDeferred) as deferred:
        execute(sensor(kind, timeout=3600))
    assert type(deferred.value.trigger) is trigger
    assert deferred.value.trigger.serialize()[1]["storage_engine_conn_id"] == "a_store"
    assert deferred.value.method_name == "execute_complete"
    assert timedelta(seconds=3000) < deferred.value.timeout <= timedelta(seconds=3600)


@pytest.mark.parametrize("kind", [StorageEngineDiskLevelSensor, StorageEngineCleanupSensor])
def test_a_full_disk_ends_the_wait(store_connection: Any, levels: Any, kind: Any) -> None:
    store_connection(deleteWhen=NEVER)
    levels(76)
    sensed = execute(sensor(kind))
    assert {trigger["cause"] for trigger in sensed["triggers"]} == {"space-full"}


@pytest.mark.parametrize("kind", [StorageEngineDiskLevelSensor, StorageEngineCleanupSensor])
def test_an_unknown_level_is_no_cause(store_connection: Any, levels: Any, kind: Any) -> None:
    store_connection(deleteWhen=NEVER)
    levels(None)
    with pytest.raises(TaskDeferred):
        execute(sensor(kind))


def test_a_full_disk_is_no_window(store_connection: Any, levels: Any) -> None:
    store_connection(deleteWhen=NEVER)
    levels(95)
    with pytest.raises(TaskDeferred):
        execute(sensor(StorageEngineDeleteWindowSensor))


@pytest.mark.slow
def test_a_wrong_alarm_of_the_triggerer_is_waited_out_again(store_connection: Any, levels: Any) -> None:
    store_connection(deleteWhen=NEVER)
    levels(20)
    with pytest.raises(TaskDeferred) as first:
        execute(sensor(StorageEngineDiskLevelSensor, timeout=60))
    deadline = first.value.kwargs["deadline"]
    with pytest.raises(TaskDeferred) as again:
        sensor(StorageEngineDiskLevelSensor, timeout=60).execute_complete(
            {}, {"cause": "space-full"}, deadline
        )
    assert again.value.kwargs["deadline"] == deadline
    levels(90)
    sensed = sensor(StorageEngineDiskLevelSensor).execute_complete({}, {"cause": "space-full"}, deadline)
    assert sensed["triggers"]


@pytest.mark.parametrize(
    ("soft_fail", "ends_with"), [(True, AirflowSkipException), (False, AirflowSensorTimeout)]
)
def test_a_timeout_skips_or_fails_as_asked(store_connection: Any, soft_fail: bool, ends_with: Any) -> None:
    store_connection(deleteWhen=NEVER, diskMaxUsedSpaceRatio="95")
    waiting = sensor(StorageEngineDeleteWindowSensor, timeout=5, soft_fail=soft_fail)
    with pytest.raises(ends_with, match="no cause for a cleanup within 5 s"):
        waiting.execute_complete({}, None, deadline=0.0)
    with pytest.raises(ends_with, match="no cause"):
        waiting.resume_execution("__fail__", {"error": TriggerFailureReason.TRIGGER_TIMEOUT}, {})


def test_a_broken_trigger_fails_the_task_even_with_soft_fail(store_connection: Any) -> None:
    store_connection(deleteWhen=NEVER)
    waiting = sensor(StorageEngineCleanupSensor, soft_fail=True)
    with pytest.raises(TaskDeferralError):
        waiting.resume_execution("__fail__", {"error": TriggerFailureReason.TRIGGER_FAILURE}, {})


def test_a_missing_store_fails_the_task_even_with_soft_fail(store_connection: Any) -> None:
    store_connection(extra={"root": "/no/such/store"})
    with pytest.raises(StoreNotFoundError, match="/no/such/store"):
        execute(sensor(StorageEngineCleanupSensor, soft_fail=True))


def test_not_deferrable_waits_in_its_own_process(store_connection: Any, levels: Any) -> None:
    store_connection(deleteWhen=NEVER)
    levels(20)
    with pytest.raises(AirflowSensorTimeout):
        execute(sensor(StorageEngineCleanupSensor, deferrable=False, timeout=0.2, poke_interval=0.1))


def test_not_deferrable_ends_its_wait_as_a_deferred_one_does(
    store_connection: Any, levels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_connection(deleteWhen=NEVER)
    levels(20)
    plain = {"deferrable": False, "timeout": 0.2, "poke_interval": 0.1, "soft_fail": True}
    with pytest.raises(AirflowSkipException, match="no cause for a cleanup within 0 s"):
        execute(sensor(StorageEngineCleanupSensor, **plain))
    due = sensor(StorageEngineDueSensor, **plain)
    told: list[object] = []
    monkeypatch.setattr(due, "_tell_of_sealed", lambda context, unmet: told.append(context) or True)
    assert execute(due) is None
    assert len(told) == 1


def test_every_look_leaves_a_sample_in_the_journal(store_connection: Any, levels: Any) -> None:
    store = store_connection(deleteWhen=ALL_HOURS)
    levels(42)
    execute(sensor(StorageEngineCleanupSensor))
    journal = Journal(f"sqlite:///{store.directory / 'journal.db'}")
    known = journal.find_store(str(store.root.resolve()))
    assert known is not None
    sample = journal.last_sample(known.store_id)
    assert sample is not None
    assert {level.used_percent for level in sample.levels} == {42}


@pytest.fixture
def broker_is_down(store_connection: Any) -> None:
    """A connection to a store beside a broker that doesn't run."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store_connection(extra={"mode": "beside", "broker_address": f"127.0.0.1:{port}"})


@pytest.mark.slow
@pytest.mark.usefixtures("broker_is_down")
@pytest.mark.parametrize(("kind", "waits_with"), SENSORS)
def test_a_broker_that_is_down_is_waited_for_as_a_cause_is(kind: Any, waits_with: Any) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        execute(sensor(kind))
    assert type(deferred.value.trigger) is waits_with


@pytest.mark.usefixtures("broker_is_down")
@pytest.mark.parametrize("soft_fail", [True, False])
def test_a_broker_that_is_still_down_when_the_time_is_up_is_not_taken_for_quiet(soft_fail: bool) -> None:
    waiting = sensor(StorageEngineCleanupSensor, timeout=5, soft_fail=soft_fail)
    with pytest.raises(AirflowSensorTimeout, match="can't be asked" if soft_fail else "no cause"):
        waiting.execute_complete({}, None, deadline=0.0)
