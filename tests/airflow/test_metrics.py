"""What Airflow's metrics have of a store, by the classes that Airflow sends them with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from socket import AF_INET, SOCK_DGRAM, socket
from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import AirflowSkipException, Stats, TaskDeferred
from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger
from airflow.sdk._shared.observability.metrics.statsd_logger import SafeStatsdLogger
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from statsd import StatsClient

from storage_engine.hooks.notifiers import metrics_sent
from storage_engine.sensors.cleanup import StorageEngineCleanupSensor
from tests.airflow.test_notifiers import run_dag, run_monitor
from tests.rounds import later

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STORE = "storage_engine_default"


def _sent_by_udp(work: Callable[[Any], object]) -> dict[str, float]:
    """Return the gauges that a server of StatsD gets while work has a client of it, by name."""
    with socket(AF_INET, SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        # All of it is there once the client has sent it; room for it is the kernel's, and enough.
        server.setblocking(False)
        work(StatsClient("127.0.0.1", server.getsockname()[1], prefix="airflow"))
        found = {}
        with suppress(BlockingIOError):
            while True:
                name, _, value = server.recv(65_536).decode().partition(":")
                if value.endswith("|g"):
                    found[name] = float(value.removesuffix("|g"))
        return found


class Received:
    """Takes what Airflow sends to StatsD."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, float]] = []

    def gauge(self, name: str, value: float, *_: object) -> None:
        self.sent.append((name, value))

    @property
    def gauges(self) -> dict[str, float]:
        return dict(self.sent)

    def times(self, metric: str) -> int:
        return sum(name.endswith(f".{metric}") for name, _ in self.sent)


def _monitor() -> None:
    assert run_monitor()["monitor"] == "success"


@pytest.fixture
def monitored(airflow_database: Path, store_connection: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the monitor, or what it is given, while Airflow sends its metrics by a class of its own."""

    def run(
        options: tuple[str, ...], backend: Any, work: Callable[[], object] = _monitor, **sets: str
    ) -> str:
        root = str(store_connection(STORE, **{"fileReservedTime": "1000000", **sets}).root)
        for name in options:
            monkeypatch.setenv(f"AIRFLOW__METRICS__{name.upper()}", "True")
        monkeypatch.setattr(Stats, "gauge", staticmethod(backend.gauge))
        work()
        return root

    return run


def test_plain_statsd_has_the_store_in_the_names(monitored: Any) -> None:
    received = Received()
    root = monitored(("statsd_on",), SafeStatsdLogger(received))
    place = (root + "/commitlog").replace("/", "_").replace(".", "_")
    assert 0 < received.gauges[f"storage_engine.{STORE}.{place}.disk_used_ratio"] < 1
    assert received.gauges[f"storage_engine.{STORE}.look_timestamp_seconds"] > 1_700_000_000
    # No run has been, so that nothing is known of one.
    assert not [name for name in received.gauges if "run_" in name]


def test_a_server_of_statsd_gets_them(monitored: Any) -> None:
    found = _sent_by_udp(lambda client: monitored(("statsd_on",), SafeStatsdLogger(client)))
    assert found[f"airflow.storage_engine.{STORE}.due_bytes"] >= 0
    assert found[f"airflow.storage_engine.{STORE}.look_timestamp_seconds"] > 1_700_000_000


def test_opentelemetry_has_the_store_as_a_tag(monitored: Any) -> None:
    reader = InMemoryMetricReader()
    monitored(("otel_on",), SafeOtelLogger(MeterProvider([reader])))
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: [dict(point.attributes or {}) for point in metric.data.data_points]
        for of in data.resource_metrics[0].scope_metrics
        for metric in of.metrics
    }
    assert found["airflow.storage_engine.retention_seconds"] == [{"store": STORE}]
    assert {tags["store"] for tags in found["airflow.storage_engine.disk_used_ratio"]} == {STORE}
    assert all("path" in tags for tags in found["airflow.storage_engine.disk_used_ratio"])


def test_a_backend_that_fails_ends_no_task(monitored: Any) -> None:
    class Failing:
        def gauge(self, *_: object, **more: object) -> None:
            raise OSError("no network")

    monitored(("statsd_on",), Failing())


@pytest.mark.parametrize(
    "options", [("statsd_on", "statsd_datadog_enabled"), ("otel_on",), *later(("statsd_on",))]
)
def test_each_task_of_a_run_sends_what_it_has_changed(monitored: Any, options: tuple[str, ...]) -> None:
    received, reader = Received(), InMemoryMetricReader()
    is_otel = options == ("otel_on",)
    backend = SafeOtelLogger(MeterProvider([reader])) if is_otel else SafeStatsdLogger(received)
    states: dict[str, str] = {}

    def clean() -> None:
        states.update(run_dag("storage_retention", {"manual": True}))

    monitored(options, backend, clean, fileReservedTime="1")
    assert {*states.values()} == {"success"}
    assert {"plan", "archive", "release", "validate", "report"} <= {it.rpartition(".")[2] for it in states}
    if is_otel:
        data = reader.get_metrics_data()
        assert data is not None
        found = {one.name: one for of in data.resource_metrics[0].scope_metrics for one in of.metrics}
        (point,) = found["airflow.storage_engine.validation_failed"].data.data_points
        assert (point.value, dict(point.attributes or {})) == (0, {"store": STORE})
        return
    told = "" if "statsd_datadog_enabled" in options else f"{STORE}."
    assert received.gauges[f"storage_engine.{told}validation_failed"] == 0
    assert received.gauges[f"storage_engine.{told}run_failed"] == 0
    # The plan takes the first sample.
    assert received.times("look_timestamp_seconds") == len(states)


def test_a_task_that_fails_sends_too(monitored: Any) -> None:
    received = Received()

    def fail() -> None:
        run_monitor()
        received.sent.clear()
        with pytest.raises(ValueError, match="its disk"), metrics_sent(STORE):
            raise ValueError("its disk is gone")

    monitored(("statsd_on",), SafeStatsdLogger(received), fail)
    assert received.times("look_timestamp_seconds") == 1


def test_a_sensor_sends_when_it_ends_and_not_while_it_waits(monitored: Any) -> None:
    received = Received()
    sensor: Any = StorageEngineCleanupSensor(task_id="sense", storage_engine_conn_id=STORE, timeout=60)

    def wait() -> None:
        run_monitor()
        received.sent.clear()
        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute({})
        with pytest.raises(AirflowRescheduleException), metrics_sent(STORE):
            raise AirflowRescheduleException(datetime.now(UTC))
        assert received.sent == []
        sensor.soft_fail = True
        with pytest.raises(AirflowSkipException):
            sensor.resume_execution(deferred.value.method_name, {"deadline": 0.0}, {})

    monitored(("statsd_on",), SafeStatsdLogger(received), wait, deleteWhen="99")
    assert received.times("look_timestamp_seconds") == 1
