"""Beside a real broker that writes and deletes, validation and lag find nothing where nothing is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from storage_engine.model.live import LiveBroker
from storage_engine.model.validation import Status
from storage_engine.quality.facts import collect_facts
from storage_engine.quality.validate import validate_store
from storage_engine.resources import project_path
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.rocketmq.lag import queue_lags
from storage_engine.spark.consumer_lag import ConsumerLagRequest, prepare
from tests.integration.broker import CLEANS_AT_ONCE, Broker, running_broker
from tests.integration.load import running_load
from tests.lakes import make_lakes
from tests.rounds import rounds

pytestmark = pytest.mark.integration

VALIDATIONS = rounds("STORAGE_ENGINE_VALIDATION_ROUNDS", 2, 20)
ROUNDS = rounds("STORAGE_ENGINE_VALIDATION_ROUNDS", 5, 20)
SEGMENT_BYTES = 128 * 1024
KEPT_SEGMENTS = 6
SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 1000,
    "fileReservedTime": 48,
    "cleanResourceInterval": 200,
    "deleteConsumeQueueFilesInterval": 0,
    "timerWheelEnable": False,
    # A busy machine is no reason to refuse a message.
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
"""Small files, and a broker that deletes five times a second what is older than two days."""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[Broker]:
    """A broker under producers and consumers, which all the time deletes the oldest of what it has."""
    work = tmp_path_factory.mktemp("busy")
    store = work / "store"
    with (
        running_broker(store, work, name_server_port, SETTINGS, main_class=CLEANS_AT_ONCE) as broker,
        running_load(
            broker,
            name_server_port,
            work / "load",
            topics=("orders", "payments"),
            groups=("fast", "slow@50"),
            rate=100,
            body_bytes=4000,
        ) as load,
        _old_ones_go(broker),
    ):
        yield broker
        load.stop()
        assert load.summary["failed"] == 0


@contextmanager
def _old_ones_go(broker: Broker) -> Iterator[None]:
    done = threading.Event()
    failed: list[BaseException] = []

    def age() -> None:
        try:
            with broker.client.__class__(broker.port, broker.access) as client:
                while not done.wait(0.3):
                    segments = sorted((broker.store / "commitlog").iterdir())
                    for segment in reversed(segments[:-KEPT_SEGMENTS]):
                        # The broker may have deleted it since it was listed.
                        with suppress(FileNotFoundError):
                            os.utime(segment, (0, 0))
                    client.delete_expired_commitlog()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=age)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not failed, failed


def live_store(broker: Broker, work: Path) -> ManagedStore:
    live = LiveBroker(address=broker.client.address, allow_same_disk=True)
    root, directory = str(broker.store), work / "managed"
    return make_lakes(ManagedStore.local("busy", root, directory, time_zone="UTC", live=live))


def test_validations_of_a_busy_store_find_nothing(busy: Broker, tmp_path: Path) -> None:
    from tests.quality.plain_runner import run_plainly  # it takes seconds, and every worker reads this file

    store = live_store(busy, tmp_path)
    first = last = busy.client.runtime_info()
    number, deadline = 0, time.monotonic() + 300
    # As many as were asked for, and until the broker has deleted between them.
    while number < VALIDATIONS or last.commitlog_min_offset == first.commitlog_min_offset:
        assert time.monotonic() < deadline, f"the broker deleted nothing within {number} validations"
        facts = collect_facts(store, None, full=number % 2 == 1, with_lake=False)
        checks = run_plainly(
            facts.tables, project_path("expectations"), tmp_path / f"gx{number}", run_name=f"round{number}"
        )
        wrong = [check for check in checks if check.status is not Status.OK]
        assert not wrong, (number, wrong)
        number, last = number + 1, busy.client.runtime_info()
    assert last.commitlog_min_offset > first.commitlog_min_offset
    assert last.commitlog_max_offset > first.commitlog_max_offset
    assert validate_store(store, with_lake=False, output_dir=tmp_path / "out").overall is Status.OK


def test_lag_of_a_busy_store_can_always_be_told(busy: Broker, tmp_path: Path) -> None:
    asked = ConsumerLagRequest(
        str(busy.store), str(tmp_path / "table"), live=LiveBroker(address=busy.client.address)
    )
    told, deadline = 0, time.monotonic() + 300
    while told < ROUNDS:
        ends = {topic: busy.client.topic_stats(topic) for topic in ("orders", "payments")}
        table = queue_lags(*prepare(asked)).to_pylist()
        rows: list[dict[str, Any]] = [row for row in table if row["group"] in ("fast", "slow")]
        assert all(row["max_offset"] >= ends[row["topic"]][row["queue_id"]].max_offset for row in rows)
        # each group begins with one queue after the other
        told += len(rows) == 16 and all(row["committed_offset"] is not None for row in rows)
        assert time.monotonic() < deadline
