"""A store whose disk never answers: its own tasks end with that, and no other store's trigger waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from storage_engine.exceptions import DiskUnavailableError
from storage_engine.journal.journal import Journal
from storage_engine.operators.retention import StorageEngineMonitorOperator
from storage_engine.retention.store import brokers
from storage_engine.sensors.cleanup import StorageEngineCleanupSensor
from storage_engine.triggers.cleanup import DeleteWindowTrigger
from tests.services.hanging_disk import hanging_disk

HANGING_STORES = 80
"""More than an event loop has threads for everybody."""
ALL_HOURS = ";".join(str(hour) for hour in range(24))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stores ``hanging_0`` and so on lie on it, by their connections."""
    journal_url = f"sqlite:///{tmp_path}/journal.db"
    assert Journal(journal_url).all_stores() == ()
    with hanging_disk(tmp_path / "disk") as disk:
        for number in range(HANGING_STORES):
            extra = {"root": str(disk / str(number)), "journal_url": journal_url}
            definition = json.dumps({"conn_type": "storage_engine", "extra": extra})
            monkeypatch.setenv(f"AIRFLOW_CONN_HANGING_{number}", definition)
        yield disk


@pytest.mark.parametrize(
    "task",
    [
        StorageEngineMonitorOperator(task_id="monitor", storage_engine_conn_id="hanging_0"),
        StorageEngineCleanupSensor(task_id="sense", storage_engine_conn_id="hanging_0"),
    ],
    ids=lambda task: str(task.task_id),
)
def test_its_task_fails_with_that(disk: Path, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "ANSWER_SECONDS", 0.2)
    with pytest.raises(DiskUnavailableError, match=f"{disk}/0: expected an answer of its disk within"):
        task.execute({})


def test_no_other_trigger_waits_for_it(disk: Path, store_connection: Any) -> None:
    store_connection("healthy", deleteWhen=ALL_HOURS)

    async def first_of(conn_id: str) -> TriggerEvent:
        async for event in DeleteWindowTrigger(conn_id).run():
            return event
        raise AssertionError("the trigger ended")

    async def both() -> tuple[TriggerEvent, int]:
        waiting = [asyncio.create_task(first_of(f"hanging_{number}")) for number in range(HANGING_STORES)]
        # Each is at its first look by now.
        await asyncio.sleep(0.5)
        event = await asyncio.wait_for(first_of("healthy"), 60)
        still = sum(not task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        return event, still

    event, still_waiting = asyncio.run(both())
    assert event.payload["cause"] == "time-up"
    assert still_waiting == HANGING_STORES
