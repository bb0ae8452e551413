"""What the DAGs between two cleanups do, each as its name says: beside a stopped broker and a running one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core import durable
from storage_engine.core.jsonable import from_jsonable
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.model.hold import HoldStatus
from storage_engine.retention.release.checkpointing import CheckpointResult
from storage_engine.rocketmq.engine.append.append import NewMessage
from storage_engine.rocketmq.engine.engine_settings import settings_for
from storage_engine.rocketmq.engine.message_store import open_store
from storage_engine.rocketmq.engine.serving import serving
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import resolve_layout
from storage_engine.sensors.cleanup import StorageEngineDueSensor
from tests.fixture_stores import file_sha256
from tests.integration.broker import Broker, name_server, running_broker
from tests.integration.live_store import SETTINGS, LiveLog, create_topic
from tests.rounds import later

# What Airflow and its dependencies warn about in their own code is not ours to mend.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

STORE = "storage_engine_default"
MONITOR, FLUSH = "storage_monitor.py", "storage_flush_checkpoint.py"

Run = Callable[..., dict[str, str]]


@pytest.fixture
def run(airflow_database: Path, load_dag: Any) -> Run:
    """Run a DAG to its end, which senses once; gives the states of its tasks."""

    def run_dag(file: str) -> dict[str, str]:
        dag = load_dag(file)
        for task in dag.tasks:
            task.retries = 0
            if isinstance(task, StorageEngineDueSensor):
                task.timeout = 0
        return {one.task_id: str(one.state) for one in dag.test().get_task_instances()}

    return run_dag


class History:
    """What the journal has of the store."""

    def __init__(self) -> None:
        store = StorageEngineHook(STORE).managed_store
        self._journal = Journal(store.journal_url)
        (record,) = self._journal.all_stores()
        self._store_id = record.store_id

    @property
    def samples(self) -> int:
        return len(self._journal.clock_readings(self._store_id))

    def results(self, step: Step, kind: type[Any]) -> list[Any]:
        events = self._journal.store_events(self._store_id, step, Phase.RESULT)
        return [from_jsonable(kind, event.payload["result"]) for event in events]


def bytes_of(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): file_sha256(path)
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.parent.name != ".storage-engine"
    }


@pytest.mark.again
def test_monitor_samples_a_stopped_brokers_store_and_holds_nothing(store_connection: Any, run: Run) -> None:
    root = store_connection(STORE).root
    before = bytes_of(root)
    for count in (1, 2):
        assert run(MONITOR) == {"monitor": "success", "sense": "skipped"}
        # One by monitor, with the archive lag, and one by sense.
        assert History().samples == 2 * count
    assert History().results(Step.HOLD, HoldStatus) == []
    assert History().results(Step.CHECKPOINT, CheckpointResult) == []
    assert bytes_of(root) == before


@pytest.mark.again
def test_flush_checkpoint_flushes_a_stopped_brokers_store_and_reads_its_checkpoint(
    store_connection: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store_connection(STORE).root
    before = bytes_of(root)
    flushed: list[str] = []
    flush = durable.fsync_path
    monkeypatch.setattr(durable, "fsync_path", lambda path: (flushed.append(str(path)), flush(path)))
    assert run(FLUSH) == {"flush_checkpoint": "success"}
    active = max((root / "commitlog").iterdir())
    assert {str(active), str(root / "checkpoint"), str(root / "commitlog")} <= set(flushed)
    (result,) = History().results(Step.CHECKPOINT, CheckpointResult)
    assert result.checkpoint["physic_msg_timestamp_ms"] > 0
    assert (result.progress, result.alarms) == (None, ())
    assert History().samples == 0
    assert bytes_of(root) == before


@pytest.mark.again
def test_flush_checkpoint_flushes_a_store_of_our_own_engine_and_tells_its_positions(
    store_connection: Any, run: Run
) -> None:
    root = store_connection(STORE, extra={"mode": "engine"}).root
    # Nobody serves it: the task opens it.
    assert run(FLUSH) == {"flush_checkpoint": "success"}
    config = load_broker_config(None, {}, root=root)
    slow = replace(
        settings_for(config, resolve_layout(config)),
        flush_interval_ms=600_000,
        flush_queue_thorough_interval_ms=600_000,
    )
    with open_store(config, slow) as store, serving(store):
        put = store.put(NewMessage("orders", b"new", b"KEYS\x01k\x02"))
        end = put.physical_offset + put.size_bytes
        assert store.wait_until_dispatched()
        assert run(FLUSH) == {"flush_checkpoint": "success"}
        assert run(MONITOR) == {"monitor": "success", "sense": "skipped"}
        assert store.put(NewMessage("orders", b"goes on")).physical_offset == end
    alone, asked = History().results(Step.CHECKPOINT, CheckpointResult)
    assert alone.positions.flushed == alone.positions.dispatched == put.physical_offset
    assert (asked.positions_before.wrote, asked.positions_before.flushed) == (end, put.physical_offset)
    after = asked.positions
    assert (after.wrote, after.committed, after.flushed, after.dispatched) == (end, end, end, end)
    assert asked.checkpoint["physic_msg_timestamp_ms"] == put.store_timestamp_ms
    assert asked.checkpoint["logics_msg_timestamp_ms"] == put.store_timestamp_ms
    assert (asked.progress.flush_behind_bytes, asked.alarms) == (0, ())
    assert History().results(Step.HOLD, HoldStatus) == []


@pytest.mark.parametrize("file", [MONITOR, *later(FLUSH)])
def test_a_running_broker_that_cannot_be_asked_fails_the_task(
    store_connection: Any, run: Run, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = store_connection(STORE, extra={"mode": "live", "broker_address": "127.0.0.1:1"}).root
    before = bytes_of(root)
    assert set(run(file).values()) == {"failed"}
    assert "BrokerUnavailableError: 127.0.0.1:1" in capsys.readouterr().out
    assert bytes_of(root) == before


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Broker]:
    with (
        name_server(tmp_path) as port,
        running_broker(tmp_path / "one", tmp_path / "work", port, SETTINGS) as broker,
    ):
        create_topic(broker.client)
        yield broker


@pytest.mark.again
def test_beside_a_running_broker_monitor_renews_the_hold_and_flush_checkpoint_measures(
    live: Broker, store_connection: Any, run: Run
) -> None:
    def connect(**settings: Any) -> None:
        broker = {"may_change_settings": True, "allow_same_disk": True, **settings}
        fields = {"mode": "live", "broker_address": live.client.address, "broker_settings": broker}
        store_connection(STORE, extra={"root": str(live.store), **fields}, make_lake=False)

    store_connection(STORE)
    connect(hold_hours=1)
    LiveLog(live).fill(3)
    assert run(FLUSH) == {"flush_checkpoint": "success"}
    (measured,) = History().results(Step.CHECKPOINT, CheckpointResult)
    assert (measured.flushed, measured.progress is not None) == (0, True)
    seen = measured.positions
    assert seen.wrote == seen.committed >= seen.flushed > 0
    assert seen.wrote >= seen.dispatched > 0
    assert seen.checkpoint == measured.checkpoint
    assert measured.positions_before is None
    assert History().results(Step.HOLD, HoldStatus) == []
    assert run(MONITOR) == {"monitor": "success", "sense": "skipped"}
    (begun,) = History().results(Step.HOLD, HoldStatus)
    # A hold is renewed once less than half of it is left.
    connect(hold_hours=48)
    assert run(MONITOR) == {"monitor": "success", "sense": "skipped"}
    _, renewed = History().results(Step.HOLD, HoldStatus)
    assert (begun.held, renewed.held) == (True, True)
    assert renewed.deletes_from_ms > begun.deletes_from_ms
    assert History().samples == 4
    assert len(History().results(Step.CHECKPOINT, CheckpointResult)) == 1
