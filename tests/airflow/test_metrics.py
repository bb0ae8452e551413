"""What Airflow's metrics have of a store, by the classes that Airflow sends them with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Stats
from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger
from airflow.sdk._shared.observability.metrics.statsd_logger import SafeStatsdLogger
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.airflow.test_notifiers import run_monitor

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STORE = "storage_engine_default"


class Received:
    """Takes what Airflow sends to StatsD."""

    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}

    def gauge(self, name: str, value: float, *_: object) -> None:
        self.gauges[name] = value


@pytest.fixture
def monitored(airflow_database: Path, store_connection: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the monitor while Airflow sends its metrics by a class of its own."""

    def run(options: tuple[str, ...], backend: Any) -> str:
        root = str(store_connection(STORE, fileReservedTime="1000000").root)
        for name in options:
            monkeypatch.setenv(f"AIRFLOW__METRICS__{name.upper()}", "True")
        monkeypatch.setattr(Stats, "gauge", staticmethod(backend.gauge))
        assert run_monitor()["monitor"] == "success"
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
